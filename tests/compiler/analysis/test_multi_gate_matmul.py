"""Products of gates: what follows all gates of a unit is in the product's kernel, and equal to the interpreter's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close, check
from tests.core.programs import computed

from sardonyx.compiler.lower.launch import all_launches
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify

pytestmark = pytest.mark.sampled

N = Dim.symbol("N")
STEPS = 4
Cell = Callable[[L.Tensor, Sequence[L.Tensor], int], list[L.Tensor]]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def weights(*shape: int) -> L.Tensor:
    return constant(normal(*shape) * shape[0] ** -0.5, t.FLOAT)


def parts(x: L.Tensor, units: int) -> list[L.Tensor]:
    return [L.slice_(x, -1, start, start + units) for start in range(0, int(x.shape[-1]), units)]


def lstm(x: L.Tensor, state: Sequence[L.Tensor], units: int) -> list[L.Tensor]:
    h, c = state
    i, o, f, g = parts(x + L.matmul(h, weights(units, 4 * units)), units)
    c = L.sigmoid(f) * c + L.sigmoid(i) * L.tanh(g)
    return [L.sigmoid(o) * L.tanh(c), c]


def gru(x: L.Tensor, state: Sequence[L.Tensor], units: int) -> list[L.Tensor]:
    (h,) = state
    xz, xr, xh = parts(x, units)
    hz, hr = parts(L.matmul(h, weights(units, 2 * units)) + 0.5, units)
    z, r = L.sigmoid(xz + hz), L.sigmoid(xr + hr)
    new = L.tanh(xh + L.matmul(r * h, weights(units, units)))
    return [(1 - z) * new + z * h]


def gru_linear_before_reset(x: L.Tensor, state: Sequence[L.Tensor], units: int) -> list[L.Tensor]:
    (h,) = state
    xz, xr, xh = parts(x, units)
    hz, hr = parts(L.matmul(h, weights(units, 2 * units)), units)
    z, r = L.sigmoid(xz + hz), L.sigmoid(xr + hr)
    new = L.tanh(xh + r * (L.matmul(h, weights(units, units)) + weights(units)))
    return [(1 - z) * new + z * h]


CELLS: dict[str, tuple[Cell, int, int]] = {
    "lstm": (lstm, 4, 2), "gru": (gru, 3, 1), "gru, linear before reset": (gru_linear_before_reset, 3, 1),
}  # fmt: skip
"""Cells, how many gates the input has, and states."""


def layer(cell: Cell, gates: int, states: int, batch: Size, units: int) -> Function:
    def over(x: L.Tensor, *initial: L.Tensor) -> list[L.Tensor]:
        def step(i: L.Tensor, *state: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
            new = cell(L.take(x, i, 0), state, units)
            return None, new, new[:1]

        last, (hidden,) = L.loop(L.size_tensor([STEPS], ()), None, list(initial), step)
        return [hidden, *last]

    types = [TensorType(t.FLOAT, (STEPS, batch, gates * units))] + [TensorType(t.FLOAT, (batch, units))] * states
    return trace("layer", over, types)


def arrays(gates: int, states: int, batch: int, units: int) -> list[np.ndarray]:
    return [normal(STEPS, batch, gates * units), *(normal(batch, units) * 0.5 for _ in range(states))]


def kernels(program: Program) -> list[str]:
    return [launch.title for launch in all_launches(program.launches) if not launch.bodies]


def holds(name: str) -> bool:
    """Whether a tile has all gates of a cell, of any rows: where a GRU resets before, its product is of two."""
    return name == "gru" or host().vector_registers >= 32


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("batch", "units"), [(1, 1), (1, 17), (2, 64), (1, 130)])
def test_a_step_is_one_kernel_for_each_product(name: str, batch: int, units: int) -> None:
    cell, gates, states = CELLS[name]
    program = check(layer(cell, gates, states, batch, units), arrays(gates, states, batch, units))
    expected = ["gates", "contract"] if name == "gru" else ["gates"]
    assert kernels(program) == expected


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(("batch", "units"), [(7, 5), (12, 16)])
def test_with_few_registers_a_tile_of_many_gates_has_all_rows_or_none(name: str, batch: int, units: int) -> None:
    cell, gates, states = CELLS[name]
    program = check(layer(cell, gates, states, batch, units), arrays(gates, states, batch, units))
    assert ("gates" in kernels(program)) == holds(name)


@pytest.mark.skipif(host().vector_bits < 512, reason="tiles of other targets hold all gates in any case")
@pytest.mark.parametrize(("units", "expected"), [(64, ["gates"]), (512, ["contract", "map"])])
def test_long_panels_that_would_pass_twice_are_left_in_memory(units: int, expected: list[str]) -> None:
    # A tile of eight rows by four vectors would need more registers than there are.
    assert kernels(Program.compile(simplify(layer(lstm, 4, 2, 8, units)))) == expected


@pytest.mark.parametrize("name", CELLS)
def test_of_any_batch(name: str) -> None:
    cell, gates, states = CELLS[name]
    calls = [arrays(gates, states, batch, 19) for batch in (1, 6, 0, 29)]
    program = check(layer(cell, gates, states, N, 19), *calls)
    assert ("gates" in kernels(program)) == holds(name)


@pytest.mark.parametrize("name", CELLS)
def test_with_few_registers(name: str) -> None:
    cell, gates, states = CELLS[name]
    function, inputs = layer(cell, gates, states, 2, 21), arrays(gates, states, 2, 21)
    program = Program.compile(simplify(function), target=NAMED["avx2"])
    assert "gates" in kernels(program)
    assert_close(program.run(inputs), computed(function, inputs))


@pytest.mark.parametrize("units", [48, 200])
def test_weights_are_read_forth_and_back_by_any_number_of_threads(units: int) -> None:
    function, inputs = simplify(layer(lstm, 4, 2, 2, units)), arrays(4, 2, 2, units)
    one, two, three = (Program.compile(function, threads=threads).run(inputs) for threads in (1, 2, 3))
    assert_close(one, computed(function, inputs))
    for results in (two, three):
        for a, b in zip(one, results, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_gated_linear_unit_is_one_kernel() -> None:
    def unit(x: L.Tensor) -> list[L.Tensor]:
        value, gate = parts(L.matmul(x, weights(24, 2 * 40)) + weights(80), 40)
        return [value * L.sigmoid(gate)]

    program = check(trace("unit", unit, [TensorType(t.FLOAT, (N, 3, 24))]), [normal(5, 3, 24)], [normal(1, 3, 24)])
    assert kernels(program) == ["gates"]


def test_of_a_sum_of_two_products_one_has_the_gates() -> None:
    def step(x: L.Tensor, h: L.Tensor, c: L.Tensor) -> list[L.Tensor]:
        return lstm(L.matmul(x, weights(5, 4 * 8)), [h, c], 8)

    types = [TensorType(t.FLOAT, (N, 5)), *[TensorType(t.FLOAT, (N, 8))] * 2]
    calls = [[normal(n, 5), normal(n, 8), normal(n, 8)] for n in (2, 7)]
    program = check(trace("step", step, types), *calls)
    assert kernels(program).count("contract") == (1 if holds("lstm") else 2)


def test_results_are_whole_before_any_of_them_is_read() -> None:
    def both(x: L.Tensor) -> list[L.Tensor]:
        a, b = parts(L.matmul(x, weights(8, 2 * 16)), 16)
        first = L.tanh(a)
        through = L.matmul(first, weights(16, 16))
        return [L.matmul(through, weights(16, 4)) + 1, L.exp(b) * L.tanh(L.reduce_sum(x, [1], keepdims=True))]

    program = check(trace("both", both, [TensorType(t.FLOAT, (3, 8))]), [normal(3, 8)])
    assert kernels(program).count("gates") == 1


def test_gates_that_something_else_reads_stay_a_product() -> None:
    def unit(x: L.Tensor) -> list[L.Tensor]:
        product = L.matmul(x, weights(8, 32))
        value, gate = parts(product, 16)
        return [value * L.sigmoid(gate), L.reduce_sum(product, [1])]

    program = check(trace("unit", unit, [TensorType(t.FLOAT, (3, 8))]), [normal(3, 8)])
    assert "gates" not in kernels(program)


@pytest.mark.parametrize(("l1", "lines"), [(1 << 16, 0), (1 << 12, 4)])
def test_large_operands_of_the_epilogue_are_asked_for_before_the_product(l1: int, lines: int) -> None:
    function, inputs = layer(lstm, 4, 2, 2, 64), arrays(4, 2, 2, 64)
    program = Program.compile(simplify(function), target=dataclasses.replace(host(), l1=l1))
    (step,) = [launch for launch in all_launches(program.launches) if launch.title == "gates"]
    into_first_level = re.findall(r"call void @llvm.prefetch.p0\(ptr %\w+, i32 0, i32 3, i32 1\)", step.text)
    assert len(into_first_level) == lines
    assert_close(program.run(inputs), computed(function, inputs))


@pytest.mark.parametrize(("units", "shared"), [(32, False), (256, True)])
def test_steps_are_shared_where_that_is_worth_it(units: int, shared: bool) -> None:
    launches = Program.compile(simplify(layer(lstm, 4, 2, 1, units))).launches
    (step,) = (launch for launch in all_launches(launches) if launch.title == "gates")
    assert step.useful_chunks is not None
    assert (step.useful_chunks >= 2) == shared
