"""Products of bfloat16 add exact products in float32, by every instruction of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.compiler.bfloat16_targets import KINDS, WITH_BFLOAT16, processor

from sardonyx.compiler.program import Program
from sardonyx.compiler.tiling.gemm import bfloat16_width, choose_gemm
from sardonyx.compiler.tiling.gemm_schedule import GemmProblem, GemmSchedule
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.activations import relu
from sardonyx.ops.definitions.products import matmul

M = Dim.symbol("M")


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)


def compiled(weights: np.ndarray, rows: tuple[Size, ...], target: str) -> Program:
    w = constant(weights)

    def body(x: Tensor) -> list[Tensor]:
        return [relu(matmul(x, w))]

    function = trace("product", body, [TensorType(t.BFLOAT16, (*rows, len(weights)))])
    return Program.compile(function, target=processor(target), threads=2)


def forms(program: Program) -> set[str]:
    """The forms of the program's products."""
    schedules = [launch.choice.schedule for launch in program.launches if launch.choice is not None]
    return {schedule.form for schedule in schedules if isinstance(schedule, GemmSchedule)}


def check(program: Program, x: np.ndarray, weights: np.ndarray) -> None:
    wide, factor = x.astype(np.float64), weights.astype(np.float64)
    exact = np.maximum(wide @ factor, 0)
    actual = program.run([x])[0].astype(np.float64)
    assert actual.shape == exact.shape
    assert (np.abs(actual - exact) <= exact * 2.0**-8 + 1e-6 * (np.abs(wide) @ np.abs(factor))).all()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize(("k", "n"), [(64, 32), (96, 48), (1002, 333), (334, 17), (33, 70), (760, 40)])
def test_any_number_of_rows(k: int, n: int, target: str) -> None:
    weights = drawn(k, n)
    program = compiled(weights, (M,), target)
    assert ("matrix" in forms(program)) == (processor(target).has_tiles and k % 2 == 0)
    for rows in (1, 0, 2, 15, 16, 17, 31, 32, 33, 300):
        check(program, drawn(rows, k, seed=rows), weights)


@pytest.mark.parametrize("target", WITH_BFLOAT16)
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_known_rows(rows: int, target: str) -> None:
    weights = drawn(258, 100)
    check(compiled(weights, (rows,), target), drawn(rows, 258, seed=1), weights)


@pytest.mark.parametrize("target", KINDS)
def test_a_batch_of_matrices(target: str) -> None:
    weights = drawn(68, 36)
    check(compiled(weights, (3, M), target), drawn(3, 37, 68, seed=2), weights)


@pytest.mark.parametrize("target", KINDS)
def test_numbers_after_a_row_do_not_count(target: str) -> None:
    weights = drawn(70, 32)
    program = compiled(weights, (M,), target)
    x = drawn(20, 70, seed=3)
    x[1::2, :3] = np.nan
    check(program, np.ascontiguousarray(x[::2]), weights)
    actual = program.run([x])[0].astype(np.float32)
    assert np.isfinite(actual[::2]).all()
    assert np.isnan(actual[1::2]).all()


def test_the_schedule_follows_rows_and_instructions() -> None:
    def form(m: Size, target: str) -> str:
        width = bfloat16_width(m, 512, 512, processor(target))
        stored = t.FLOAT if width == 2 else t.BFLOAT16
        problem = GemmProblem(m, 512, 512 // width, t.BFLOAT16, "packed", stored, width)
        schedule = choose_gemm(problem, processor(target)).schedule
        return f"{schedule.form} {schedule.tile.dot_width}"

    assert [form(m, "avx512amx") for m in (1, 64, M)] == ["tiles 2", "matrix 2", "matrix 2"]
    assert [form(m, "avx512bf16") for m in (1, 64, M)] == ["tiles 2", "tiles 1", "tiles 1"]
    assert [form(m, "avx512bf16, fast pairs") for m in (1, 64, M)] == ["tiles 2"] * 3
    assert [form(m, "avx2") for m in (1, 64, M)] == ["tiles 1"] * 3


Axes = tuple[int, ...]

COMPUTED: dict[str, tuple[str, Axes, Axes]] = {
    "rows by columns": ("mk,nk->mn", (1,), (1,)),
    "rows by rows": ("mk,kn->mn", (1,), (0,)),
    "columns by rows": ("km,kn->mn", (0,), (0,)),
    "columns by columns": ("km,nk->mn", (0,), (1,)),
    "batches": ("bmk,bkn->bmn", (2,), (1,)),
    "transposed batches": ("bmk,bnk->bmn", (2,), (2,)),
    "two summed axes": ("bkm,bkn->mn", (0, 1), (0, 1)),
}
"""Equations of two computed operands, and the summed axes of each."""

SIZES = [(64, 64, 64), (37, 50, 34), (9, 17, 2), (128, 33, 126), (40, 41, 99), (8, 64, 30), (200, 16, 256), (5, 40, 64)]
"""Rows, columns and terms."""


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_operands(name: str, is_open: bool, target: str) -> None:
    equation, left, right = COMPUTED[name]
    first, second, _ = equation.replace("->", ",").split(",")
    batch = ((0, 0),) if "b" in first and 0 not in left else ()
    for m, n, k in SIZES if is_open else SIZES[:5]:
        sizes = {"m": m, "n": n, "k": k, "b": 4}
        symbols = {"m": M, "b": Dim.symbol("B")} if is_open else {}
        shapes = [tuple(sizes[axis] for axis in part) for part in (first, second)]
        types = [
            TensorType(t.BFLOAT16, tuple(symbols.get(axis, sizes[axis]) for axis in part)) for part in (first, second)
        ]

        def body(x: Tensor, y: Tensor) -> list[Tensor]:
            return [apply("contract", x, y, batch=batch, left=left, right=right, dtype=t.BFLOAT16)]

        function = trace("product", body, types)
        program = Program.compile(function, target=processor(target))
        x, y = (drawn(*shape, seed=i) for i, shape in enumerate(shapes))
        wide = [array.astype(np.float64) for array in (x, y)]
        exact = np.einsum(equation, *wide)
        bound = np.abs(exact) * 2.0**-8 + 1e-6 * np.einsum(equation, *map(np.abs, wide))
        assert (np.abs(program.run([x, y])[0].astype(np.float64) - exact) <= bound).all(), (m, n, k)


@pytest.mark.skipif("avx512bf16" not in WITH_BFLOAT16, reason="this machine multiplies no pairs of bfloat16")
def test_pairs_of_computed_operands_are_multiplied_at_once() -> None:
    def widths(k: int, target: str) -> set[int]:
        def body(x: Tensor, y: Tensor) -> list[Tensor]:
            return [apply("contract", x, y, batch=(), left=(1,), right=(0,), dtype=t.BFLOAT16)]

        types = [TensorType(t.BFLOAT16, (M, k)), TensorType(t.BFLOAT16, (k, 48))]
        program = Program.compile(trace("product", body, types), target=processor(target))
        schedules = [launch.choice.schedule for launch in program.launches if launch.choice is not None]
        return {schedule.tile.dot_width for schedule in schedules if isinstance(schedule, GemmSchedule)}

    assert widths(64, "avx512bf16, fast pairs") == {2}
    assert widths(63, "avx512bf16, fast pairs") == {1}, "words of two numbers would cross rows"
    assert widths(64, "avx512bf16") == {1}


@pytest.mark.skipif("avx512bf16" not in WITH_BFLOAT16, reason="this machine multiplies no pairs of bfloat16")
@pytest.mark.parametrize(("steps", "width"), [(6, 2), (5, 1)])
@pytest.mark.parametrize("equation", ["msb,sbn->mn", "msb,nsb->mn"])
def test_pairs_of_joined_axes_need_an_even_product_of_their_sizes(equation: str, steps: int, width: int) -> None:
    first, second, _ = equation.replace("->", ",").split(",")
    samples = Dim.symbol("S")
    left, right = ((1, 2), (second.index("s"), second.index("b")))

    def body(x: Tensor, y: Tensor) -> list[Tensor]:
        return [apply("contract", x, y, batch=(), left=left, right=right, dtype=t.BFLOAT16)]

    sizes: dict[str, Any] = {"m": 40, "n": 48, "s": steps, "b": samples}
    types = [TensorType(t.BFLOAT16, tuple(sizes[axis] for axis in part)) for part in (first, second)]
    program = Program.compile(trace("product", body, types), target=processor("avx512bf16, fast pairs"))
    schedules = [launch.choice.schedule for launch in program.launches if launch.choice is not None]
    assert {one.tile.dot_width for one in schedules if isinstance(one, GemmSchedule)} == {width}
    for count in (1, 3, 8):
        sizes["b"] = count
        x, y = (drawn(*(sizes[axis] for axis in part), seed=i) for i, part in enumerate((first, second)))
        wide = [array.astype(np.float64) for array in (x, y)]
        exact = np.einsum(equation, *wide)
        bound = np.abs(exact) * 2.0**-8 + 1e-6 * np.einsum(equation, *map(np.abs, wide))
        assert (np.abs(program.run([x, y])[0].astype(np.float64) - exact) <= bound).all()
