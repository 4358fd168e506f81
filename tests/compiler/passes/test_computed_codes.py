"""Products of two computed operands of codes equal the interpreter's, for any types, zero points and sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.elementwise import TARGETS
from tests.compiler.quantizations import LIMITS, dequantized, quantized
from tests.core.programs import computed

from sardonyx.compiler.analysis.shape_guards import MOST_TERMS
from sardonyx.compiler.call.fault import Fault
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, Target, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

pytestmark = pytest.mark.sampled

B, M, N, K = map(Dim.symbol, "BMNK")

LAYOUTS: dict[str, tuple[Callable[[L.Tensor], L.Tensor], ...]] = {
    "rows by columns": (lambda x: x, lambda y: L.permute(y, (0, 2, 1))),
    "rows by rows": (lambda x: x, lambda y: y),
    "columns by columns": (lambda x: L.permute(x, (0, 2, 1)), lambda y: L.permute(y, (0, 2, 1))),
    "parts": (lambda x: L.slice_(x, 2, 1, x.shape[2]), lambda y: L.slice_(y, 1, 1, y.shape[1])),
    "batch in the middle": (lambda x: L.permute(x, (1, 0, 2)), lambda y: L.permute(y, (1, 0, 2))),
}
"""Movements from inputs to [batch, M, K] and [batch, K, N]."""


def input_shapes(layout: str, b: int, m: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return {
        "rows by columns": ((b, m, k), (b, n, k)), "rows by rows": ((b, m, k), (b, k, n)),
        "columns by columns": ((b, k, m), (b, n, k)), "parts": ((b, m, k + 1), (b, k + 1, n)),
        "batch in the middle": ((m, b, k), (k, b, n)),
    }[layout]  # fmt: skip


def opened(shape: tuple[int, ...], names: dict[int, Dim]) -> tuple[int | Dim, ...]:
    return tuple(names.get(size, size) for size in shape)


def drawn(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    low, high = LIMITS[dtype]
    codes = rng.integers(low, high + 1, shape).astype(t.numpy_dtype(dtype))
    return np.where(rng.random(shape) < 0.2, np.array(rng.choice([low, high]), codes.dtype), codes)


def target_of(name: str) -> Target:
    return host() if name == host().name else NAMED[name]


def operands(program: Program) -> list[tuple[str, ...]]:
    """Return the element types of the operands of the products."""
    products = (value for value in program.function.values if value.op == "contract")
    return [tuple(x.type.dtype.name for x in value.operands) for value in products]  # type: ignore[union-attr]


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from([*LAYOUTS]), dtypes=st.tuples(st.sampled_from([*LIMITS]), st.sampled_from([*LIMITS])),
    zeros=st.tuples(st.integers(0, 255), st.integers(0, 255)), sizes=st.permutations([5, 9, 17, 33, 64, 130]),
    batch=st.integers(1, 3), target=st.sampled_from(TARGETS), is_open=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_of_integers_are_exact(
    layout: str, dtypes: tuple[DType, DType], zeros: tuple[int, int], sizes: list[int], batch: int, target: str,
    is_open: bool, seed: int,
) -> None:  # fmt: skip
    m, n, k = sizes[:3]
    shapes = input_shapes(layout, batch, m, n, k)
    names = {batch: B, m: M, n: N, k: K, k + 1: K + 1} if is_open else {}
    points = [LIMITS[dtype][0] + zero for dtype, zero in zip(dtypes, zeros, strict=True)]

    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        a, b = (
            move(L.cast(z, t.INT32) - point) for move, z, point in zip(LAYOUTS[layout], (x, y), points, strict=True)
        )
        return [L.matmul(a, b)]

    types = [TensorType(dtype, opened(shape, names)) for dtype, shape in zip(dtypes, shapes, strict=True)]
    function = trace("f", body, types)
    program = Program.compile(function, target=target_of(target), threads=2)
    rng = np.random.default_rng(seed)
    feeds = [drawn(rng, dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])
    if is_open:  # One row, one column and one term have code of their own.
        few = input_shapes(layout, 2, 1, 1, 1)
        feeds = [drawn(rng, dtype, shape) for dtype, shape in zip(dtypes, few, strict=True)]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_bytes_are_multiplied_where_the_target_adds_them_without_saturation(target: str) -> None:
    def body(x: L.Tensor, y: L.Tensor, z: L.Tensor) -> list[L.Tensor]:
        product = L.matmul(L.cast(x, t.INT32) - 3, L.permute(L.cast(y, t.INT32) - 128, (0, 2, 1)))
        return [product, L.matmul(dequantized(x, 0.02, 3), L.permute(dequantized(z, 0.03, -5), (0, 2, 1)))]

    types = [TensorType(t.UINT8, (2, 20, 64)), TensorType(t.UINT8, (2, 30, 64)), TensorType(t.INT8, (2, 30, 64))]
    program = Program.compile(trace("f", body, types), target=target_of(target), threads=1)
    has_bytes = target_of(target).together(8) == 4 and not target_of(target).saturates
    assert operands(program) == [("UINT8", "INT8") if has_bytes else ("FLOAT", "FLOAT")] * 2


def attention(is_quantized: bool, *shape: int | Dim) -> Function:
    def body(q: L.Tensor, k: L.Tensor, v: L.Tensor) -> list[L.Tensor]:
        scores = L.matmul(dequantized(q, 0.02, 120), L.permute(dequantized(k, 0.02, 131), (0, 2, 1))) * 0.125
        if is_quantized:
            scores = dequantized(quantized(scores, 0.05, 128, t.UINT8), 0.05, 128)
        e = L.exp(scores - L.reduce_max(scores, [-1], keepdims=True))
        weights = e / L.reduce_sum(e, [-1], keepdims=True)
        if is_quantized:
            weights = dequantized(quantized(weights, 1 / 255, 0, t.UINT8), 1 / 255, 0)
        return [quantized(L.matmul(weights, dequantized(v, 0.0317, 128)), 0.0203, 128, t.UINT8)]

    return trace("f", body, [TensorType(t.UINT8, shape)] * 3)


@pytest.mark.parametrize("size", [50, 101])
@pytest.mark.parametrize("is_open", [False, True], ids=["known", "open"])
def test_quantized_attention_multiplies_bytes(size: int, is_open: bool) -> None:
    function = attention(True, B if is_open else 3, N if is_open else size, 32)
    program = Program.compile(function, threads=1)
    feeds = [np.random.default_rng(i).integers(0, 256, (3, size, 32)).astype(np.uint8) for i in range(3)]
    actual, expected = program.run(feeds)[0].astype(int), computed(function, feeds)[0].astype(int)
    # Sums are exact, the interpreter's are not: codes near ties differ by one.
    assert (np.abs(actual - expected) <= 1).all()
    assert (actual == expected).mean() > 0.999
    if host().together(8) == 4 and not host().saturates:
        assert operands(program) == [("UINT8", "INT8")] * 2


def test_attention_of_dequantized_operands_alone_is_one_kernel_of_floats() -> None:
    program = Program.compile(attention(False, 3, 50, 32), threads=1)
    assert "attention" in " ".join(launch.title for launch in program.launches)


def test_scales_that_permit_infinite_sums_leave_the_floats() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(dequantized(x, 1e30, 3), L.permute(dequantized(y, 1e8, 3), (0, 2, 1)))]

    program = Program.compile(trace("f", body, [TensorType(t.UINT8, (2, 20, 64))] * 2), threads=1)
    assert operands(program) == [("FLOAT", "FLOAT")]


def test_constants_of_a_batch_are_multiplied_as_codes() -> None:
    rng = np.random.default_rng(0)
    weights = drawn(rng, t.INT8, (3, 64, 20))

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.cast(x, t.INT32) - 7, L.cast(constant(weights, t.INT8), t.INT32))]

    function = trace("f", body, [TensorType(t.UINT8, (3, 40, 64))])
    feeds = [drawn(rng, t.UINT8, (3, 40, 64))]
    np.testing.assert_array_equal(Program.compile(function, threads=1).run(feeds)[0], computed(function, feeds)[0])


def test_open_sizes_whose_sums_exceed_32_bits_are_left_to_the_interpreter() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(dequantized(x, 1.0, 0), dequantized(y, 1.0, 0))]

    function = trace("f", body, [TensorType(t.UINT8, (1, 8, K)), TensorType(t.UINT8, (1, K, 8))])
    program = Program.compile(function, threads=1)
    for terms in (MOST_TERMS - 1, MOST_TERMS + 3):
        feeds = [np.full(shape, 255, np.uint8) for shape in ((1, 8, terms), (1, terms, 8))]
        if terms > MOST_TERMS and operands(program) == [("UINT8", "INT8")]:
            with pytest.raises(Fault, match=f"min\\({MOST_TERMS}"):
                program.run(feeds)
        else:
            np.testing.assert_allclose(program.run(feeds)[0], np.full((1, 8, 8), 255.0**2 * terms), rtol=1e-6)
