"""Movements between dequantization and quantization move codes, and change no bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.quantizations import LIMITS, dequantized, quantized
from tests.core.programs import computed

from sardonyx.compiler.passes.code_movements import move_codes
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

MOVEMENTS: dict[str, Callable[[L.Tensor], L.Tensor]] = {
    "pad": lambda x: L.pad(x, (0, 0, 1, 0), (0, 0, 2, 1), 0.0),
    "slice": lambda x: L.slice_(x, 2, 1, 4),
    "concat": lambda x: L.concat([x, L.slice_(x, 1, 0, 2)], 1),
    "maxima": lambda x: L.reduce_window("max", x, [3, 3], strides=[2, 2], padding=[(1, 1)] * 2),
    "repeat": lambda x: L.repeat(L.repeat(x, 2, 2), 3, 3),
    "pick": lambda x: L.take(x, constant(np.array([0, 0, 1, 2, 2, 4, 4])), 2),
    "minima": lambda x: L.reduce_window("min", x, [2, 2], strides=[1, 1], padding=[(0, 0)] * 2),
}


def around(movement: str, scale: float, zero: int, goal: tuple[float, int], dtype: DType) -> Function:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [quantized(MOVEMENTS[movement](dequantized(x, scale, zero)), *goal, dtype)]

    return trace("f", body, [TensorType(dtype, (2, 4, 5, 7))])


@settings(max_examples=40, deadline=None)
@given(
    movement=st.sampled_from([*MOVEMENTS]), scale=st.floats(1e-6, 1e3), zero=st.integers(-128, 255),
    dtype=st.sampled_from([*LIMITS]), same=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_moved_codes_are_those_of_moved_floats(
    movement: str, scale: float, zero: int, dtype: DType, same: bool, seed: int
) -> None:
    low, high = LIMITS[dtype]
    zero = min(max(zero, low), high)
    goal = (scale, zero) if same else (scale * 1.7, min(zero + 3, high))
    function = around(movement, scale, zero, goal, dtype)
    moved = move_codes(function)
    codes = np.random.default_rng(seed).integers(low, high + 1, (2, 4, 5, 7)).astype(t.numpy_dtype(dtype))
    np.testing.assert_array_equal(computed(moved, [codes])[0], computed(function, [codes])[0])
    floats = {value.op for value in moved.values if value.type.dtype == t.FLOAT}  # type: ignore[union-attr]
    assert not floats & {"pad", "slice", "concat", "reduce_window", "gather"}
    if same:
        assert "round" not in floats


@pytest.mark.parametrize("movement", MOVEMENTS)
def test_compiled_movements_give_the_same_codes(movement: str) -> None:
    function = around(movement, 0.037, 7, (0.037, 7), t.UINT8)
    feeds = [np.random.default_rng(0).integers(0, 256, (2, 4, 5, 7)).astype(np.uint8)]
    program = Program.compile(function, threads=1)
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("dtype", [*LIMITS], ids=["uint8", "int8"])
@pytest.mark.parametrize(("scale", "moves"), [(1e-44, True), (0.3, True), (1e30, True), (1e38, False)])
def test_dequantized_values_are_sorted_by_their_codes(scale: float, moves: bool, dtype: DType) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        floats = dequantized(x, scale, 5)
        orders = [L.sort(floats, 1, descending) for descending in (False, True)]
        return orders + [L.top_k(floats, 1, 20, largest) for largest in (False, True)]

    function = trace("f", body, [TensorType(dtype, (3, 400))])
    moved = move_codes(function)
    sorted_types = {
        value.operands[0].type.dtype  # type: ignore[union-attr]
        for value in moved.values if value.op in ("sort", "top_k")
    }  # fmt: skip
    assert sorted_types == {dtype if moves else t.FLOAT}
    low, high = LIMITS[dtype]
    codes = np.random.default_rng(0).integers(low, high + 1, (3, 400)).astype(t.numpy_dtype(dtype))
    expected = computed(function, [codes])
    for actual in (computed(moved, [codes]), Program.compile(function, threads=1).run([codes])):
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [*LIMITS], ids=["uint8", "int8"])
def test_joined_values_of_several_scales_are_joined_codes(dtype: DType) -> None:
    low, high = LIMITS[dtype]

    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        parts = [dequantized(x, 0.031, low + 100), dequantized(y, 0.07, low + 3), dequantized(x, 0.05, low + 120)]
        return [quantized(L.concat(parts, 1), 0.05, low + 120, dtype)]

    function = trace("f", body, [TensorType(dtype, (2, 3, 5, 7)), TensorType(dtype, (2, 6, 5, 7))])
    moved = move_codes(function)
    rng = np.random.default_rng(0)
    feeds = [rng.integers(low, high + 1, (2, size, 5, 7)).astype(t.numpy_dtype(dtype)) for size in (3, 6)]
    np.testing.assert_array_equal(computed(moved, feeds)[0], computed(function, feeds)[0])
    np.testing.assert_array_equal(Program.compile(function, threads=1).run(feeds)[0], computed(function, feeds)[0])
    assert [value.type.dtype for value in moved.values if value.op == "concat"] == [dtype]  # type: ignore[union-attr]
    assert sum(value.op == "round" for value in moved.values) == 2  # The codes of the last part are unchanged.


def test_zeros_are_not_added_before_a_quantization() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [quantized(x + constant(np.zeros((4, 1), np.float32), t.FLOAT), 0.05, 0, t.INT8)]

    function = trace("f", body, [TensorType(t.FLOAT, (4, 8))])
    moved = move_codes(function)
    assert all(value.op != "add" for value in moved.values)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    x[0, :6] = [-0.0, 0.0, np.inf, -np.inf, 1e-45, -1e-45]
    np.testing.assert_array_equal(computed(moved, [x])[0], computed(function, [x])[0])


def test_windows_beside_the_image_keep_floats() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        y = dequantized(x, 0.5, 0)
        return [L.reduce_window("max", y, [2, 2], strides=[1, 1], padding=[(2, 0), (0, 0)])]

    function = trace("f", body, [TensorType(t.UINT8, (1, 4, 5, 7))])
    assert [value.type for value in move_codes(function).values if value.op == "reduce_window"] == [
        value.type for value in function.values if value.op == "reduce_window"
    ]


def test_a_filling_without_a_code_keeps_floats() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.pad(dequantized(x, 0.5, 0), (0, 0, 1, 1), (0, 0, 1, 1), 0.3)]

    function = trace("f", body, [TensorType(t.UINT8, (1, 4, 5, 7))])
    (pad,) = [value for value in move_codes(function).values if value.op == "pad"]
    assert pad.type.dtype == t.FLOAT  # type: ignore[union-attr]


def test_sums_of_a_contraction_are_stored_as_8_bits() -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.integers(-30, 31, (32, 32, 1, 1)).astype(np.int8) for _ in range(2))

    def convolved(x: L.Tensor, weights: np.ndarray) -> L.Tensor:
        w = L.cast(constant(weights, t.INT8), t.FLOAT) * 0.01
        return L.convolve(dequantized(x, 0.1, 0), w, strides=[1, 1], padding=[(0, 0)] * 2)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = quantized(convolved(x, first), 0.2, 3, t.UINT8)
        z = quantized(convolved(y, second), 0.3, 5, t.UINT8)
        return [quantized(dequantized(y, 0.2, 3) + dequantized(z, 0.3, 5), 0.4, 0, t.UINT8)]

    program = Program.compile(trace("f", body, [TensorType(t.UINT8, (1, 32, 20, 20))]), threads=1)
    written = {value.type.dtype for launch in program.launches for value in launch.all_writes}  # type: ignore[union-attr]
    assert written == {t.UINT8}
