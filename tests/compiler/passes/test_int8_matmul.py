"""Products of integers of 8 bits equal the interpreter's, in whatever form the target multiplies them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.elementwise import TARGETS
from tests.core.programs import computed

from sardonyx.compiler.passes.canonicalize import canonicalize
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED, host
from sardonyx.compiler.tiling.int8_forms import forms
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

pytestmark = pytest.mark.sampled

N, H, W = map(Dim.symbol, "NHW")
LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}


def compiled(function: Function, target: str) -> Program:
    return Program.compile(function, target=host() if target == host().name else NAMED[target], threads=2)


def codes(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    low, high = LIMITS[dtype]
    actual = rng.integers(low, high + 1, shape).astype(t.numpy_dtype(dtype))
    # The ends of the range are where sums of few bits overflow.
    return np.where(rng.random(shape) < 0.2, np.array(high, actual.dtype), actual)


def narrow(program: Program) -> set[str]:
    """The element types of the first operands of its products."""
    actual = set()
    for value in program.function.values:
        if value.op in ("contract", "convolve"):
            actual.add(value.operands[0].type.dtype.name)  # type: ignore[union-attr]
    return actual


def expected_form(target: str, weights: np.ndarray) -> str:
    """The element type of the first operand of a product with weights [K, columns], of which many are large."""
    fits = weights.min(initial=0) >= -128 and weights.max(initial=0) <= 127
    if fits and NAMED[target].saturates:
        pairs = np.pad(weights, ((0, len(weights) % 2), (0, 0))).reshape(-1, 2, weights.shape[1]).astype(np.int32)
        fits = max(pairs.clip(0).sum(1).max(), -pairs.clip(None, 0).sum(1).min()) * 255 < 1 << 15
    return "UINT8" if fits and NAMED[target].together(8) > 1 else "INT16"


PRODUCTS = [
    # x, weights, zero point of weights, rows, K, columns
    (t.UINT8, t.INT8, 0, 1, 4, 1), (t.UINT8, t.INT8, 0, 5, 64, 33), (t.INT8, t.INT8, 0, 7, 63, 16),
    (t.UINT8, t.UINT8, 128, 6, 128, 65), (t.UINT8, t.UINT8, 3, 13, 17, 70), (t.INT8, t.UINT8, 255, 2, 1, 5),
    (t.INT8, t.INT8, -128, 12, 300, 64),
]  # fmt: skip


@pytest.mark.skipif(not forms(host()), reason="the processor has no products of small integers")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("x_dtype", "w_dtype", "w_zero", "rows", "depth", "columns"), PRODUCTS)
def test_products_of_integers_are_exact(
    x_dtype: DType, w_dtype: DType, w_zero: int, rows: int, depth: int, columns: int, target: str
) -> None:
    rng = np.random.default_rng(depth)
    weights = codes(rng, w_dtype, (depth, columns))

    def body(x: L.Tensor, zero: L.Tensor) -> list[L.Tensor]:
        shifted = L.cast(x, t.INT32) - L.cast(zero, t.INT32)
        w = L.cast(constant(weights, w_dtype), t.INT32) - w_zero
        return [L.matmul(shifted, w)]

    function = trace("f", body, [TensorType(x_dtype, (N, depth)), TensorType(x_dtype, ())])
    program = compiled(function, target)
    assert not program.host
    assert narrow(program) == {expected_form(target, weights.astype(np.int32) - w_zero)}
    for count in (rows, 0, 1):
        x = codes(rng, x_dtype, (count, depth))
        for zero in LIMITS[x_dtype]:
            feeds = [x, np.array(zero, x.dtype)]
            (actual,), (expected,) = program.run(feeds), computed(function, feeds)
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_weights_of_seven_bits_are_those_of_bytes(target: str) -> None:
    rng = np.random.default_rng(4)
    weights = rng.choice(np.array([-64, 64, 63, 5], np.int8), (50, 35))

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.cast(x, t.INT32) - 3, L.cast(constant(weights, t.INT8), t.INT32))]

    function = trace("f", body, [TensorType(t.UINT8, (N, 50))])
    program = compiled(function, target)
    assert narrow(program) == {"UINT8" if NAMED[target].together(8) > 1 else "INT16"}
    feeds = [rng.choice(np.array([0, 255], np.uint8), (9, 50))]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("depth", "columns", "rows"), [(50, 35, 9), (64, 8, 3), (2100, 40, 150), (70, 16, 1)])
@pytest.mark.parametrize("known", [True, False], ids=["known", "open"])
def test_some_weights_of_products_are_too_large_to_be_added_up_with_their_neighbours(
    depth: int, columns: int, rows: int, known: bool, target: str
) -> None:
    rng = np.random.default_rng(8)
    large = rng.random((depth, columns)) < 0.001
    large[[2, 3], 1] = large[[6, 7], columns - 1] = True
    weights = np.where(large, rng.choice(np.array([-128, 127]), large.shape), rng.integers(-30, 31, large.shape))
    weights[[2, 6]] = weights[[3, 7]]

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.cast(x, t.INT32) - 3, L.cast(constant(weights.astype(np.int8), t.INT8), t.INT32))]

    function = trace("f", body, [TensorType(t.UINT8, (rows if known else N, depth))])
    program = compiled(function, target)
    assert narrow(program) == {"UINT8" if NAMED[target].together(8) > 1 else "INT16"}
    for count in (rows,) if known else (rows, 1, 0):
        feeds = [rng.choice(np.array([0, 255, 254], np.uint8), (count, depth))]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_scales_of_columns_follow_the_product(target: str) -> None:
    rng = np.random.default_rng(1)
    weights, scales = codes(rng, t.INT8, (40, 24)), rng.uniform(0.01, 0.1, 24).astype(np.float32)

    def body(x: L.Tensor, scale: L.Tensor) -> list[L.Tensor]:
        real = (L.cast(x, t.FLOAT) - 7.0) * scale
        return [
            L.maximum(L.matmul(real, L.cast(constant(weights, t.INT8), t.FLOAT) * constant(scales, t.FLOAT)) + 1.0, 0.0)
        ]

    function = trace("f", body, [TensorType(t.UINT8, (2, N, 40)), TensorType(t.FLOAT, ())])
    program = compiled(function, target)
    assert narrow(program) == {expected_form(target, weights)}
    feeds = [codes(rng, t.UINT8, (2, 9, 40)), np.array(0.02, np.float32)]
    (actual,), (expected,) = program.run(feeds), computed(function, feeds)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("window", [0, 3], ids=["product", "convolution"])
def test_products_of_dequantized_values_are_exact_but_for_three_roundings(window: int, target: str) -> None:
    rng = np.random.default_rng(window)
    shape = (16, 32, window, window) if window else (24, 256)
    weights, scales = codes(rng, t.INT8, shape), rng.uniform(1e-3, 0.1, shape[0]).astype(np.float32)
    factor = np.float32(0.0213)

    def body(x: L.Tensor) -> list[L.Tensor]:
        real = (L.cast(x, t.FLOAT) - 131.0) * constant(factor, t.FLOAT)
        along = constant(scales.reshape(-1, *[1] * (len(shape) - 1)), t.FLOAT)
        w = L.cast(constant(weights, t.INT8), t.FLOAT) * along
        return [
            L.convolve(real, w, strides=[1, 1], padding=[(1, 1)] * 2)
            if window
            else L.matmul(real, L.permute(w, (1, 0)))
        ]

    function = trace("f", body, [TensorType(t.UINT8, (1, 32, 5, 7) if window else (9, 256))])
    program = compiled(function, target)
    x = codes(rng, t.UINT8, (1, 32, 5, 7) if window else (9, 256))
    differences = x.astype(np.int64) - 131
    if window:
        padded = np.pad(differences, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        sums = np.einsum("nchwyx,mcyx->nmhw", windows, weights.astype(np.int64))
        exact = sums * scales.astype(np.float64).reshape(-1, 1, 1) * np.float64(factor)
    else:
        exact = (differences @ weights.T.astype(np.int64)) * scales.astype(np.float64) * np.float64(factor)
    (actual,), (reference,) = program.run([x]), computed(function, [x])
    if forms(NAMED.get(target, host())):
        np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=3 * 2.0**-24, atol=0)
    # The reference adds rounded products: sums of terms of both signs cancel, their roundings do not.
    terms = np.abs(differences).max() * np.abs(weights.astype(np.int64)).max() * scales.max() * factor
    depth = weights[0].size
    np.testing.assert_allclose(reference.astype(np.float64), exact, rtol=0, atol=depth * depth * terms * 2.0**-24)


@pytest.mark.parametrize("window", [0, 1], ids=["product", "convolution"])
@pytest.mark.parametrize(("of_weights", "of_image"), [(np.inf, 0.1), (0.1, np.inf), (3e38, 0.1), (1e30, 1e30)])
def test_infinite_scales_give_the_infinities_of_the_reference(window: int, of_weights: float, of_image: float) -> None:
    rng = np.random.default_rng(3)
    shape = (4, 8, 1, 1) if window else (8, 4)
    weights = rng.integers(-3, 4, shape).astype(np.int8)
    weights.reshape(-1)[::5] = 0
    scales = np.array([0.1, of_weights, 0.2, 0.3], np.float32).reshape(-1, *[1] * (len(shape) - 1) if window else ())

    def body(x: L.Tensor) -> list[L.Tensor]:
        real = L.cast(x, t.FLOAT) * constant(np.float32(of_image), t.FLOAT)
        w = L.cast(constant(weights, t.INT8), t.FLOAT) * constant(scales, t.FLOAT)
        return [L.convolve(real, w, strides=[1, 1], padding=[(0, 0)] * 2) if window else L.matmul(real, w)]

    function = trace("f", body, [TensorType(t.UINT8, (1, 8, 3, 3) if window else (5, 8))])
    x = rng.integers(0, 3, (1, 8, 3, 3) if window else (5, 8)).astype(np.uint8)
    x[..., :1] = 0
    np.testing.assert_allclose(Program.compile(function).run([x])[0], computed(function, [x])[0], rtol=1e-5, atol=1e-6)


def test_scales_along_the_sum_stay_where_they_are() -> None:
    rng = np.random.default_rng(2)
    weights, scales = codes(rng, t.INT8, (8, 5)), rng.uniform(0.01, 0.1, (8, 1)).astype(np.float32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.cast(x, t.FLOAT), L.cast(constant(weights, t.INT8), t.FLOAT) * constant(scales, t.FLOAT))]

    function = trace("f", body, [TensorType(t.UINT8, (3, 8))])
    program = Program.compile(function)
    assert narrow(program) == {"FLOAT"}
    feeds = [codes(rng, t.UINT8, (3, 8))]
    np.testing.assert_allclose(program.run(feeds)[0], computed(function, feeds)[0], rtol=1e-5)


@pytest.mark.parametrize("depth", [16, 258, 259])
def test_two_operands_of_a_run_are_multiplied_as_floats_where_these_are_exact(depth: int) -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.matmul(L.cast(x, t.INT32) - 255, L.cast(y, t.INT32) - 127)]

    function = trace("f", body, [TensorType(t.UINT8, (N, depth)), TensorType(t.INT8, (depth, 6))])
    program = Program.compile(function, target=NAMED["avx512"] if host().together(8) == 4 else host())
    assert narrow(program) == {"FLOAT" if depth <= 258 else "INT32"}
    feeds = [np.zeros((5, depth), np.uint8), np.full((depth, 6), -128, np.int8)]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


CONVOLUTIONS = [
    # image, channels, filters, groups, window, stride, dilation, padding, zero point
    (t.UINT8, 3, 20, 1, 3, 2, 1, 1, 0), (t.UINT8, 16, 16, 1, 1, 1, 1, 0, 9), (t.UINT8, 17, 33, 1, 3, 1, 1, 1, 200),
    (t.INT8, 24, 2, 1, 3, 1, 2, 2, -5), (t.INT8, 40, 70, 1, 3, 1, 1, 1, -128), (t.UINT8, 32, 32, 4, 3, 1, 1, 1, 1),
    (t.UINT8, 20, 20, 20, 3, 1, 1, 1, 0), (t.INT8, 20, 20, 20, 5, 2, 1, 2, 0), (t.UINT8, 33, 33, 33, 3, 1, 1, 1, 128),
    (t.UINT8, 6, 12, 2, 3, 1, 1, 1, 3), (t.UINT8, 1, 6, 1, 3, 1, 1, 1, 7), (t.INT8, 2, 1, 1, 5, 2, 1, 2, 3),
    (t.UINT8, 8, 3, 1, 1, 1, 1, 0, 200), (t.INT8, 40, 1, 1, 3, 1, 1, 1, -128),
]  # fmt: skip


@pytest.mark.parametrize(
    ("channels", "filters", "window", "form"),
    [(1, 8, 3, "FLOAT"), (2, 1, 7, "FLOAT"), (8, 3, 1, "FLOAT"), (32, 1, 3, "FLOAT"), (8, 8, 3, "UINT8")],
)
def test_images_of_few_channels_and_filters_are_multiplied_as_floats(
    channels: int, filters: int, window: int, form: str
) -> None:
    weights = codes(np.random.default_rng(0), t.INT8, (filters, channels, window, window)) // 4

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [L.convolve(L.cast(x, t.INT32), w, strides=[1, 1], padding=[(0, 0), (0, 0)])]

    function = canonicalize(trace("f", body, [TensorType(t.UINT8, (1, channels, 9, 40))]), NAMED["avx512vnni"])
    (image,) = (value.operands[0] for value in function.values if value.op == "convolve")
    assert image.type.dtype.name == form  # type: ignore[union-attr]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "channels", "filters", "groups", "window", "stride", "dilation", "padding", "zero"), CONVOLUTIONS
)
@pytest.mark.parametrize("known", [True, False], ids=["known", "open"])
def test_convolutions_of_integers_are_exact(
    dtype: DType, channels: int, filters: int, groups: int, window: int, stride: int, dilation: int, padding: int,
    zero: int, known: bool, target: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(channels)
    weights = codes(rng, t.INT8, (filters, channels // groups, window, window))
    bias = rng.integers(-1000, 1000, (filters, 1, 1)).astype(np.int32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        image = L.cast(x, t.INT32) - zero
        actual = L.convolve(
            image, L.cast(constant(weights, t.INT8), t.INT32), strides=[stride] * 2, padding=[(padding, padding)] * 2,
            kernel_dilation=[dilation] * 2, groups=groups,
        )  # fmt: skip
        return [actual + constant(bias, t.INT32)]

    sizes = (2, channels, 9, 14) if known else (N, channels, H, W)
    function = trace("f", body, [TensorType(dtype, sizes)])
    program = compiled(function, target)
    for n, h, w in ((2, 9, 14),) if known else ((2, 9, 14), (1, 5, 5), (1, 6, 31)):
        feeds = [codes(rng, dtype, (n, channels, h, w))]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=8, deadline=None)
@given(
    dtype=st.sampled_from([*LIMITS]), channels=st.integers(1, 24), filters=st.integers(1, 24), groups=st.integers(1, 2),
    window=st.integers(1, 4), stride=st.integers(1, 3), zero=st.sampled_from([0, -7, 9, 127, -128, 255]),
    cut=st.integers(0, 2), added=st.integers(0, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_transposed_convolutions_of_integers_are_exact(
    target: str, dtype: DType, channels: int, filters: int, groups: int, window: int, stride: int, zero: int, cut: int,
    added: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    weights = codes(rng, t.INT8, (groups * filters, channels, window, window))
    zero = int(np.clip(zero, *LIMITS[dtype]))
    low = max(0, window - 1 - cut)

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [
            L.convolve(
                L.cast(x, t.INT32) - zero, w, strides=[1, 1], padding=[(low, low + added)] * 2,
                base_dilation=[stride] * 2, groups=groups,
            )
        ]  # fmt: skip

    function = trace("f", body, [TensorType(dtype, (2, groups * channels, 6, 9))])
    program = compiled(function, target)
    assert not program.host
    feeds = [codes(rng, dtype, (2, groups * channels, 6, 9))]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_transposed_convolutions_of_dequantized_values_multiply_codes(target: str) -> None:
    rng = np.random.default_rng(2)
    weights, scales = codes(rng, t.INT8, (24, 16, 2, 2)), rng.uniform(0.01, 0.1, (24, 1, 1, 1)).astype(np.float32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        real = (L.cast(x, t.FLOAT) - 7.0) * constant(np.float32(0.02), t.FLOAT)
        w = L.cast(constant(weights, t.INT8), t.FLOAT) * constant(scales, t.FLOAT)
        w = L.reverse(w, (2, 3))
        return [L.convolve(real, w, strides=[1, 1], padding=[(1, 1)] * 2, base_dilation=[2, 2])]

    function = trace("f", body, [TensorType(t.UINT8, (1, 16, 5, 7))])
    program = compiled(function, target)
    assert narrow(program) == {"INT16"}
    feeds = [codes(rng, t.UINT8, (1, 16, 5, 7))]
    (actual,), (expected,) = program.run(feeds), computed(function, feeds)
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("window", "stride", "padding", "rank"), [(1, 1, 0, 2), (3, 1, 1, 2), (3, 2, 1, 1), (2, 1, 1, 3)]
)
@pytest.mark.parametrize("known", [True, False], ids=["known", "open"])
def test_some_weights_are_too_large_to_be_added_up_with_their_neighbours(
    window: int, stride: int, padding: int, rank: int, known: bool, target: str
) -> None:
    rng = np.random.default_rng(6)
    shape = (40, 30, *(window,) * rank)
    large = rng.random(shape) < 0.002
    large[:, 1::2] |= large[:, ::2]
    weights = np.where(large, rng.choice(np.array([-128, 127]), shape), rng.integers(-30, 31, shape)).astype(np.int8)

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [L.convolve(L.cast(x, t.INT32), w, strides=[stride] * rank, padding=[(padding, padding)] * rank)]

    sizes = (4, 7, 15)[-rank:]
    function = trace("f", body, [TensorType(t.UINT8, (2, 30, *(sizes if known else (N, H, W)[:rank])))])
    program = compiled(function, target)
    assert narrow(program) == {"UINT8" if NAMED[target].together(8) > 1 else "INT16"}
    feeds = [rng.choice(np.array([0, 255, 254], np.uint8), (2, 30, *sizes))]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", LIMITS, ids=lambda dtype: dtype.name)
def test_images_of_bytes_are_pooled_as_they_are(dtype: DType, stride: int) -> None:
    rng = np.random.default_rng(7)
    low, high = LIMITS[dtype]
    filters = codes(rng, t.INT8, (20, 8, 1, 1))

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(filters, t.INT8), t.FLOAT)
        y = L.convolve(L.cast(x, t.FLOAT), w, strides=[1, 1], padding=[(0, 0)] * 2)
        y = L.cast(L.clip(L.round_(y * 0.01), float(low), float(high)), dtype)
        return [L.reduce_window("max", y, [3, 3], strides=[stride, stride], padding=[(1, 1)] * 2)]

    function = trace("f", body, [TensorType(dtype, (N, 8, H, W))])
    program = Program.compile(function)
    assert "pooling" in [launch.title for launch in program.launches]
    for sizes in ((2, 9, 11), (1, 3, 40)):
        feeds = [codes(rng, dtype, (sizes[0], 8, *sizes[1:]))]
        np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_of_quantized_layers_stays_in_blocks_of_bytes(target: str) -> None:
    rng = np.random.default_rng(5)
    first, second = codes(rng, t.INT8, (32, 8, 3, 3)), codes(rng, t.INT8, (16, 32, 1, 1))
    scales = rng.uniform(0.001, 0.01, (16, 1, 1, 1)).astype(np.float32)

    def quantized(x: L.Tensor, zero: float) -> L.Tensor:
        return L.cast(L.clip(L.round_(x / 0.5) + zero, 0.0, 255.0), t.UINT8)

    def real(x: L.Tensor, zero: float) -> L.Tensor:
        return (L.cast(x, t.FLOAT) - zero) * 0.5

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(first, t.INT8), t.FLOAT) * 0.01
        y = quantized(L.maximum(L.convolve(real(x, 3.0), w, strides=[1, 1], padding=[(1, 1)] * 2), 0.0), 0.0)
        w = L.cast(constant(second, t.INT8), t.FLOAT) * constant(scales, t.FLOAT)
        z = quantized(L.convolve(real(y, 0.0), w, strides=[1, 1], padding=[(0, 0)] * 2), 128.0)
        return [z]

    function = trace("f", body, [TensorType(t.UINT8, (1, 8, 12, 12))])
    program = compiled(function, target)
    titles = [launch.title for launch in program.launches]
    assert sum(title.endswith("convolution") or title.startswith("winograd") for title in titles) == 2
    assert {value.type.dtype for value in program.blocks} <= {t.UINT8, t.INT16}
    feeds = [codes(rng, t.UINT8, (1, 8, 12, 12))]
    actual, expected = program.run(feeds)[0].astype(int), computed(function, feeds)[0].astype(int)
    # Where the result of the first layer is halfway between two codes, one unit is a step of the second.
    assert np.abs(actual - expected).max() <= 1
    assert (actual != expected).mean() < 0.01
