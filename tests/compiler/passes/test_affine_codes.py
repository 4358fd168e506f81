"""Normalizations between two quantizations are a product and a sum, and give the same codes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.elementwise import TARGETS
from tests.compiler.quantizations import LIMITS, dequantized, quantized
from tests.core.programs import computed

from sardonyx.compiler.codegen.requantize import packs
from sardonyx.compiler.passes.affine_codes import ascending, fit
from sardonyx.compiler.passes.code_movements import move_codes
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

pytestmark = pytest.mark.sampled


def of_channels(array: np.ndarray, axis: int, rank: int) -> L.Tensor:
    shape = [-1 if other == axis else 1 for other in range(rank)]
    return constant(array.reshape(shape).astype(np.float32), t.FLOAT)


def normalized(
    channels: int, axis: int, seed: int, dtype: DType, goal: DType, zero: int, spread: float = 3.0
) -> Function:
    rng = np.random.default_rng(seed)
    mean, divisor = rng.normal(size=channels), rng.uniform(0.1, 2, channels)
    factor, summand = rng.normal(size=channels), rng.normal(size=channels)
    shape = [1, 256, 256, 256][: axis + 1]
    shape[axis] = channels

    def body(x: L.Tensor) -> list[L.Tensor]:
        rank = axis + 1
        y = dequantized(x, 0.0371, zero) - of_channels(mean, axis, rank)
        y = y / of_channels(divisor, axis, rank) * of_channels(factor, axis, rank) + of_channels(summand, axis, rank)
        return [quantized(y, spread / 255, zero, goal)]

    return trace("f", body, [TensorType(dtype, (256, channels))])


@settings(max_examples=20, deadline=None)
@given(
    dtype=st.sampled_from([*LIMITS]), goal=st.sampled_from([*LIMITS]), zero=st.integers(0, 127),
    spread=st.floats(0.01, 50), seed=st.integers(0, 1 << 20),
)  # fmt: skip
def test_codes_of_normalized_codes_are_those_of_floats(
    dtype: DType, goal: DType, zero: int, spread: float, seed: int
) -> None:
    function = normalized(17, 1, seed, dtype, goal, zero, spread)
    moved = move_codes(function)
    feeds = [np.repeat(ascending(dtype)[:, None], 17, 1)]
    np.testing.assert_array_equal(computed(moved, feeds)[0], computed(function, feeds)[0])
    assert not any(value.op == "div" for value in moved.values)


@pytest.mark.parametrize("target", [name for name in TARGETS if packs(NAMED.get(name, host()))])
@pytest.mark.parametrize("dtype", [*LIMITS], ids=["uint8", "int8"])
def test_normalized_results_of_convolutions(dtype: DType, target: str) -> None:
    rng = np.random.default_rng(3)
    same = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    low, high = LIMITS[dtype]
    mean, divisor, factor = rng.normal(size=16), rng.uniform(0.1, 2, 16), rng.normal(size=16)

    def body(x: L.Tensor, residual: L.Tensor) -> list[L.Tensor]:
        y = L.convolve(x, constant(same, t.FLOAT), strides=[1, 1], padding=[(0, 0)] * 2)
        z = dequantized(quantized(y, 0.11, low + 120, dtype), 0.11, low + 120)
        z = (z - of_channels(mean, 1, 4)) / of_channels(divisor, 1, 4) * of_channels(factor, 1, 4)
        codes = quantized(z, 0.17, low + 90, dtype)
        added = dequantized(codes, 0.17, low + 90) + dequantized(residual, 0.05, 3)
        return [codes, quantized(added, 0.2, low + 100, dtype)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 16, 2, 13)), TensorType(dtype, (1, 16, 2, 13))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    x = rng.uniform(-20, 20, (1, 16, 2, 13)).astype(np.float32)
    x[0, 1, 1, :6] = [np.nan, np.inf, -np.inf, 3e38, -3e38, 0.055]
    feeds = [x, rng.integers(low, high + 1, x.shape).astype(t.numpy_dtype(dtype))]
    for actual, expected in zip(program.run(feeds), computed(function, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_other_functions_keep_their_floats() -> None:
    x = np.arange(256)
    for floats in (np.square(x / 16) - 40, np.where(x > 100, x * 0.3, x * 0.7), np.full(256, np.nan)):
        assert fit(floats[None].astype(np.float32), x, -128, 127) is None


def test_results_beyond_the_limits() -> None:
    x = np.arange(256)
    floats = np.stack([x * 1e3, x * 0 + 4.0, x - 1e6, np.minimum(x * 0.9, 0), np.where(x > 7, 1e5, -1e5)])
    fitted = fit(floats.astype(np.float32), x, -10, 200)
    assert fitted is not None
    factor, summand = fitted
    actual = np.round(np.float32(x) * factor[:, None] + summand[:, None])
    np.testing.assert_array_equal(np.clip(actual, -10, 200), np.clip(np.round(np.float32(floats)), -10, 200))
