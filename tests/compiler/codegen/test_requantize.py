"""Convolutions with requantized results give the same codes as the separate primitives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.compiler.elementwise import TARGETS
from tests.core.programs import computed

from sardonyx.compiler.codegen.requantize import packs
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType

pytestmark = pytest.mark.sampled

W = Dim.symbol("W")
EDGES = [-3e9, -2147483648.0, -300.0, -0.5, -0.0, 0.5, 1.5, 2.5, 126.5, 127.5, 254.5, 255.5, 1e6, 3e9]
RANGES = [
    (t.UINT8, 0, 0, 255), (t.UINT8, 131, 0, 255), (t.UINT8, 255, 0, 255), (t.UINT8, 3, 3, 200), (t.INT8, 0, -128, 127),
    (t.INT8, -128, -128, 127), (t.INT8, 127, -127, 127), (t.INT8, -5, -5, 90),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("known", [True, False], ids=["known", "open"])
@pytest.mark.parametrize("alone", [True, False], ids=["one reader", "two"])
@pytest.mark.parametrize("channels", [24, 21], ids=["blocks", "channels past the last"])
@pytest.mark.parametrize(("dtype", "zero", "low", "high"), RANGES)
def test_results_become_codes(
    dtype: DType, zero: int, low: int, high: int, channels: int, alone: bool, known: bool, target: str
) -> None:
    rng = np.random.default_rng(channels)
    same = np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.convolve(x, constant(same, t.FLOAT), strides=[1, 1], padding=[(0, 0)] * 2)
        z = L.cast(L.clip(L.round_(y) + float(zero), float(low), float(high)), dtype)
        w = L.cast(constant(same.astype(np.int8), t.INT8), t.INT32)
        results = [L.convolve(L.cast(z, t.INT32), w, strides=[1, 1], padding=[(0, 0)] * 2)]
        return results if alone else [*results, L.reduce_window("max", z, [2, 2], strides=[2, 2], padding=[(1, 1)] * 2)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, channels, 3, 13 if known else W))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    for width in (13,) if known else range(1, 14):
        x = rng.uniform(-300, 300, (1, channels, 3, width)).astype(np.float32)
        spots = np.float32(rng.choice(EDGES, x.shape))
        feeds = [np.where(rng.random(x.shape) < 0.5, spots, x)]
        feeds[0][0, channels // 2, 1, width // 2] = np.nan
        for actual, expected in zip(program.run(feeds), computed(function, feeds), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("target", [name for name in TARGETS if packs(NAMED.get(name, host()))])
@pytest.mark.parametrize(("divisor", "zero"), [(0.1, 128), (41.0, 7), (0.0625, 0), (3.7e-3, 131)])
def test_codes_are_those_of_a_division(divisor: float, zero: int, target: str) -> None:
    same = np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.convolve(x, constant(same, t.FLOAT), strides=[1, 1], padding=[(0, 0)] * 2)
        z = L.cast(L.clip(L.round_(y / divisor) + float(zero), 0.0, 255.0), t.UINT8)
        w = L.cast(constant(same.astype(np.int8), t.INT8), t.INT32)
        return [L.convolve(L.cast(z, t.INT32), w, strides=[1, 1], padding=[(0, 0)] * 2)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 8, 3, W))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    halves = np.float32(divisor) * (np.arange(-140, 260, dtype=np.float32) + np.float32(0.5))
    near = np.concatenate([halves, np.nextafter(halves, np.float32(-9e9)), np.nextafter(halves, np.float32(9e9))])
    feeds = [np.broadcast_to(near, (1, 8, 3, near.size)).copy()]
    feeds[0][0, 1, 1, :4] = [np.inf, -np.inf, 3e38, -3e38]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", [name for name in TARGETS if packs(NAMED.get(name, host()))])
@pytest.mark.parametrize("wide", [False, True], ids=["bytes", "words"])
@pytest.mark.parametrize(("second", "zero"), [(0.1, 128), (0.05, 0), (0.0237, 3)])
def test_codes_of_codes_are_those_of_both_quantizations(second: float, zero: int, wide: bool, target: str) -> None:
    rng = np.random.default_rng(zero)
    same = np.eye(16, dtype=np.float32).reshape(16, 16, 1, 1)
    # Neighbouring large weights, whose sums exceed 16 bits without VNNI, need images of words.
    weights = rng.choice(np.array([-127, 127], np.int8), (16, 16, 1, 1)) if wide else same.astype(np.int8)

    def quantized(x: L.Tensor, scale: float, zero: int) -> L.Tensor:
        return L.cast(L.clip(L.round_(x / scale) + float(zero), 0.0, 255.0), t.UINT8)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.convolve(x, constant(same, t.FLOAT), strides=[1, 1], padding=[(0, 0)] * 2)
        z = (L.cast(quantized(y, 0.1, 128), t.FLOAT) - 128.0) * 0.1
        z = quantized(L.clip(z, -2.0, 6.0), second, zero)
        image = L.cast(z, t.INT32) - (zero if wide else 0)
        return [L.convolve(image, L.cast(constant(weights, t.INT8), t.INT32), strides=[1, 1], padding=[(0, 0)] * 2)]

    function = trace("f", body, [TensorType(t.FLOAT, (1, 16, 3, 15))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    x = rng.uniform(-15, 15, (1, 16, 3, 15)).astype(np.float32)
    feeds = [np.where(rng.random(x.shape) < 0.3, np.round(x * 20) / np.float32(20), x)]
    feeds[0][0, 1, 1, :5] = [np.inf, -np.inf, 3e38, -3e38, np.nan]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", [name for name in TARGETS if packs(NAMED.get(name, host()))])
@pytest.mark.parametrize("scale", [1e-3, 3.0, 3e7, math.inf, math.nan], ids=str)
@pytest.mark.parametrize(("dtype", "zero", "low", "high"), RANGES)
def test_sums_of_integers_become_codes(dtype: DType, zero: int, low: int, high: int, scale: float, target: str) -> None:
    """Bounds of the scales decide where the limits are applied."""
    rng = np.random.default_rng(zero % 7)
    channels = 21
    weights = constant(rng.integers(-60, 61, (channels, channels, 1, 1)).astype(np.int8), t.INT8)
    scales = np.float32(rng.uniform(1e-4, 1e-3, (channels, 1, 1)))
    scales[channels // 2] = scale
    same = constant(np.eye(channels, dtype=np.int8).reshape(channels, channels, 1, 1), t.INT8)
    summand = np.float32(rng.uniform(-9, 9, (channels, 1, 1)))

    def convolved(x: L.Tensor, w: L.Tensor) -> L.Tensor:
        return L.convolve(L.cast(x, t.INT32), L.cast(w, t.INT32), strides=[1, 1], padding=[(0, 0)] * 2)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = L.cast(convolved(x, weights), t.FLOAT) * constant(scales, t.FLOAT) + constant(summand, t.FLOAT)
        z = L.cast(L.clip(L.round_(y / 0.0625) + float(zero), float(low), float(high)), dtype)
        return [convolved(z, same)]

    function = trace("f", body, [TensorType(t.UINT8, (1, channels, 3, 13))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    feeds = [rng.integers(0, 256, (1, channels, 3, 13)).astype(np.uint8)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


def gated(y: L.Tensor, kind: str) -> L.Tensor:
    share = 1.0 / (1.0 + L.exp(-(y * 1.702 if kind == "quick gelu" else y)))
    return {"sigmoid": share, "swapped": share * y}.get(kind, y * share)


@pytest.mark.parametrize("target", [name for name in TARGETS if packs(NAMED.get(name, host()))])
@pytest.mark.parametrize(
    ("kind", "scale", "factor"),
    [("sigmoid", 1 / 256, 1.0), ("silu", 0.05, 1.0), ("silu", 0.004, 8.0), ("swapped", 0.05, 4.0),
     ("quick gelu", 0.03, 1.0), ("silu", 3e-4, 1.0)],
)  # fmt: skip
@pytest.mark.parametrize("channels", [32, 21], ids=["blocks", "channels past the last"])
def test_gated_sums_of_integers_become_codes(
    kind: str, scale: float, factor: float, channels: int, target: str
) -> None:
    """The codes are those of the exact function, but for numbers within a thousandth of the middle of two codes."""
    rng = np.random.default_rng(channels)
    weights = constant(rng.integers(-60, 61, (channels, channels, 1, 1)).astype(np.int8), t.INT8)
    scales = np.float32(rng.uniform(1e-4, 1e-3, (channels, 1, 1)))
    summand = np.float32(rng.uniform(-9, 9, (channels, 1, 1)))
    factors = np.float32(factor ** rng.integers(-1, 2, (channels, 1, 1)))
    same = constant(np.eye(channels, dtype=np.int8).reshape(channels, channels, 1, 1), t.INT8)
    zero = 7.0

    def convolved(x: L.Tensor, w: L.Tensor) -> L.Tensor:
        return L.convolve(L.cast(x, t.INT32), L.cast(w, t.INT32), strides=[1, 1], padding=[(0, 0)] * 2)

    def sums(x: L.Tensor) -> L.Tensor:
        return L.cast(convolved(x, weights), t.FLOAT) * constant(scales, t.FLOAT) + constant(summand, t.FLOAT)

    def body(x: L.Tensor) -> list[L.Tensor]:
        y = gated(sums(x), kind)
        y = y * constant(factors, t.FLOAT) if factor != 1 else y
        return [convolved(L.cast(L.clip(L.round_(y / scale) + zero, 0.0, 255.0), t.UINT8), same)]

    function = trace("f", body, [TensorType(t.UINT8, (1, channels, 30, 41))])
    program = Program.compile(function, target=host() if target == host().name else NAMED[target], threads=1)
    feeds = [rng.integers(0, 256, (1, channels, 30, 41)).astype(np.uint8)]
    of_sums = trace("sums", lambda x: [sums(x)], [TensorType(t.UINT8, (1, channels, 30, 41))])
    x = computed(of_sums, feeds)[0].astype(np.float64)
    with np.errstate(all="ignore"):
        share = 1 / (1 + np.exp(-(x * np.float32(1.702) if kind == "quick gelu" else x)))
        units = (share if kind == "sigmoid" else x * share) * (factors if factor != 1 else 1) / np.float32(scale)
    exact = np.clip(units + zero, 0, 255)
    codes = program.run(feeds)[0]
    assert np.abs(codes - exact).max() <= 0.5 + 1e-3
    assert len(np.unique(codes)) > 20
