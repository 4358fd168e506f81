"""Functions of 8-bit codes are lookups in tables that have the bits of the reference, for any codes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.elementwise import TARGETS
from tests.core.programs import computed

from sardonyx.compiler.explain import explain
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}
N = Dim.symbol("N")


def dequantized(x: L.Tensor, scale: float, zero: int) -> L.Tensor:
    return (L.cast(x, t.FLOAT) - float(zero)) * constant(np.float32(scale), t.FLOAT)


def quantized(x: L.Tensor, scale: float, zero: int, dtype: DType) -> L.Tensor:
    low, high = LIMITS[dtype]
    units = L.round_(x / constant(np.float32(scale), t.FLOAT)) + float(zero)
    return L.cast(L.clip(units, float(low), float(high)), dtype)


def silu(x: L.Tensor) -> L.Tensor:
    """``x * sigmoid(x)`` with a quantized sigmoid, as quantizers of single operators write it."""
    gate = quantized(1.0 / (1.0 + L.exp(-x)), 1 / 255, 0, t.UINT8)
    return x * dequantized(gate, 1 / 255, 0)


ACTIVATIONS: dict[str, Callable[[L.Tensor], L.Tensor]] = {
    "none": lambda x: x, "silu": silu, "tanh": L.tanh, "logarithm": L.log, "root": L.sqrt,
    "reciprocal": lambda x: 1.0 / x,
}  # fmt: skip


def activation(
    name: str, scale: float, zero: int, goal: tuple[float, int], dtypes: tuple[DType, DType], *shape: int | Dim
) -> Function:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [quantized(ACTIVATIONS[name](dequantized(x, scale, zero)), *goal, dtypes[1])]

    return trace("f", body, [TensorType(dtypes[0], shape)])


def titles(program: Program) -> list[str]:
    return [launch.title for launch in program.launches]


def all_codes(dtype: DType, *shape: int) -> np.ndarray:
    count = int(np.prod(shape))
    return np.resize(np.arange(256, dtype=np.uint8), count).view(t.numpy_dtype(dtype)).reshape(shape)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([*ACTIVATIONS]), scale=st.floats(2.0**-126, 2.0**100, width=32),
    goal=st.floats(2.0**-126, 2.0**100, width=32), zero=st.integers(-128, 255), dtype=st.sampled_from([*LIMITS]),
    goal_dtype=st.sampled_from([*LIMITS]), size=st.sampled_from([1, 31, 256, 259, 5000]),
)  # fmt: skip
def test_lookups_have_the_bits_of_the_reference(
    name: str, scale: float, goal: float, zero: int, dtype: DType, goal_dtype: DType, size: int
) -> None:
    zeros = [min(max(zero, low), high) for low, high in (LIMITS[dtype], LIMITS[goal_dtype])]
    function = activation(name, scale, zeros[0], (goal, zeros[1]), (dtype, goal_dtype), N)
    program = Program.compile(function, threads=1)
    codes = all_codes(dtype, size)
    with np.errstate(all="ignore"):
        (expected,) = computed(function, [codes])
    np.testing.assert_array_equal(program.run([codes])[0], expected)
    assert titles(program) == ["table of codes"] or name == "none"  # a division by 1 is none


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str) -> None:
    function = activation("silu", 0.04, 7, (0.03, 3), (t.INT8, t.UINT8), 3, 5, 200)
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)
    codes = all_codes(t.INT8, 3, 5, 200)
    np.testing.assert_array_equal(program.run([codes])[0], computed(function, [codes])[0])
    assert titles(program) == ["table of codes"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [32, 24, 41])
@pytest.mark.parametrize(("samples", "height", "width"), [(1, 20, 20), (3, 5, 7), (N, 17, 19)])
def test_tables_between_convolutions_keep_blocks(
    channels: int, samples: int | Dim, height: int, width: int, target: str
) -> None:
    rng = np.random.default_rng(1)
    first, second = (rng.integers(-30, 31, (channels, channels, 1, 1)).astype(np.int8) for _ in range(2))

    def convolved(x: L.Tensor, weights: np.ndarray) -> L.Tensor:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return L.cast(L.convolve(L.cast(x, t.INT32), w, strides=[1, 1], padding=[(0, 0)] * 2), t.FLOAT) * 0.001

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = quantized(convolved(x, first), 0.2, 128, t.UINT8)
        z = quantized(silu(dequantized(y, 0.2, 128)), 0.1, 5, t.UINT8)
        return [convolved(z, second)]

    function = trace("f", body, [TensorType(t.UINT8, (samples, channels, height, width))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)
    assert titles(program).count("table of codes") == 1
    if channels == 32 and target == host().name:
        assert len(titles(program)) <= 4  # the image in blocks, two convolutions and the table
    count = samples if isinstance(samples, int) else 2
    codes = rng.integers(0, 256, (count, channels, height, width)).astype(np.uint8)
    np.testing.assert_array_equal(program.run([codes])[0], computed(function, [codes])[0])


@pytest.mark.parametrize("samples", [2, N], ids=["known", "open"])
def test_several_readers_of_dequantized_codes_read_the_codes(samples: int | Dim) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        z = dequantized(quantized(x, 0.05, 128, t.UINT8), 0.05, 128)
        return [L.reduce_sum(z, (2, 3)), L.permute(L.exp(z), (0, 2, 3, 1))]

    function = trace("f", body, [TensorType(t.FLOAT, (samples, 8, 6, 6))])
    program = Program.compile(function, threads=1)
    stored = [kernel.result for kernel in explain(program, {} if samples == 2 else {"N": 2}).kernels]
    assert sum("uint8" in result for result in stored) == 1
    assert not any(result.startswith("float") and result.endswith("8, 6, 6]") for result in stored), stored
    x = np.random.default_rng(0).standard_normal((2, 8, 6, 6)).astype(np.float32)
    for actual, expected in zip(program.run([x]), computed(function, [x]), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_floats_that_others_read_are_computed() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.tanh(dequantized(x, 0.1, 3))
        return [quantized(y, 0.01, 5, t.INT8), y, L.reduce_sum(y, (1,))]

    function = trace("f", body, [TensorType(t.INT8, (4, 64))])
    program = Program.compile(function, threads=1)
    codes = all_codes(t.INT8, 4, 64)
    actual, expected = program.run([codes]), computed(function, [codes])
    np.testing.assert_array_equal(actual[0], expected[0])
    for one, other in zip(actual[1:], expected[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert "table of codes" in titles(program)


def test_functions_of_two_values_are_no_tables() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [quantized(L.tanh(dequantized(x, 0.1, 3) + dequantized(y, 0.2, 0)), 0.01, 5, t.INT8)]

    function = trace("f", body, [TensorType(t.INT8, (4, 64))] * 2)
    assert "table of codes" not in titles(Program.compile(function, threads=1))
