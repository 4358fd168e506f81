"""Winograd's convolutions of integers equal the interpreter's to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import NAMED
from sardonyx.compiler.tiling.toom_cook import INTEGER_RESULTS, as_floats, integer_convolution
from sardonyx.compiler.tiling.winograd import most_exact_results
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import DType, TensorType

N, H, W = map(Dim.symbol, "NHW")


def convolution(dtype: DType, weights: np.ndarray, zero: int, shape: tuple[object, ...]) -> Function:
    """A convolution that keeps its sizes, of the differences of codes and a zero point."""
    padding = [(size // 2, size // 2) for size in weights.shape[2:]]

    def body(x: L.Tensor) -> list[L.Tensor]:
        w = L.cast(constant(weights, t.INT8), t.INT32)
        return [L.convolve(L.cast(x, t.INT32) - zero, w, strides=[1, 1], padding=padding)]

    return trace("f", body, [TensorType(dtype, shape)])  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["avx2", "sse", "avx512", "avx512vnni"])
@pytest.mark.parametrize(
    ("dtype", "zero", "window", "channels", "filters", "open"),
    [
        (t.UINT8, 0, (3, 3), 64, 64, False), (t.UINT8, 131, (3, 3), 67, 50, True),
        (t.INT8, -128, (3, 3), 72, 48, False), (t.INT8, 0, (3, 1), 128, 96, False),
    ],
)  # fmt: skip
def test_sums_are_exact(
    dtype: DType, zero: int, window: tuple[int, int], channels: int, filters: int, open: bool, target: str
) -> None:
    rng = np.random.default_rng(channels)
    weights = rng.choice(np.array([-128, 127, 126, -127, 3], np.int8), (filters, channels, *window))
    shape = (N, channels, H, W) if open else (1, channels, 29, 30)
    program = Program.compile(convolution(dtype, weights, zero, shape), target=NAMED[target], threads=2)
    # Four products of bytes in an instruction are as fast as a line of few taps with half of the products.
    expected = target != "avx512vnni" or (window == (3, 3) and not open)
    assert any("winograd" in launch.title and "4" in launch.title for launch in program.launches) == expected
    limits = np.iinfo(t.numpy_dtype(dtype))
    for sizes in ((2, 7, 9), (1, 2, 31)) if open else ((1, 29, 30),):
        for low in (limits.min, limits.max):  # All ends of the range, or any code.
            x = rng.integers(low, limits.max + 1, (sizes[0], channels, *sizes[1:])).astype(t.numpy_dtype(dtype))
            function = convolution(dtype, weights, zero, shape)
            np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


def filters_of_sum(total: int) -> np.ndarray:
    """Weights of 64 filters of 116 channels; of the last one, the magnitudes have this sum."""
    weights = np.zeros((64, 116, 3, 3), np.int8)
    last = weights[-1].reshape(-1)
    last[: total // 127] = 127
    last[total // 127] = total % 127
    return weights


LARGEST_SUM = ((1 << 31) - 1) // (255 * 64)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_exact_sum_is_exact(sign: int) -> None:
    weights = sign * filters_of_sum(LARGEST_SUM)
    function = convolution(t.UINT8, weights, 0, (1, 116, 30, 30))
    program = Program.compile(function, target=NAMED["avx512vnni"], threads=1)
    assert any("winograd F(4x4)" in launch.title for launch in program.launches)
    x = np.full((1, 116, 30, 30), 255, np.uint8)
    np.testing.assert_array_equal(program.run([x])[0], computed(function, [x])[0])


def test_large_numbers_have_smaller_tiles_or_none() -> None:
    assert most_exact_results(filters_of_sum(LARGEST_SUM)) == 4
    assert most_exact_results(filters_of_sum(LARGEST_SUM + 1)) == 2  # Words lose 6 bits by the division.
    assert most_exact_results(np.full((1, 2048, 3, 3), 128)) == 0  # 32 bits do not hold the sums.
    assert most_exact_results(np.full((1, 8, 3, 3), 700)) == 2  # 16 bits do not hold the transformed weights.
    assert most_exact_results(np.full((1, 8, 3, 3), 4000)) == 0


@pytest.mark.parametrize("m", INTEGER_RESULTS)
def test_short_convolutions_of_integers_are_multiples_of_the_results(m: int) -> None:
    short = integer_convolution(m)
    output, weight, input_ = (as_floats(matrix) for matrix in (short.output, short.weight, short.input))
    assert all((matrix == matrix.round()).all() for matrix in (output, weight, input_))
    rng = np.random.default_rng(m)
    x, w = rng.integers(-255, 256, short.n), rng.integers(-128, 128, short.taps)
    expected = np.correlate(x, w) * short.factor * 2 ** np.array(short.shifts)
    np.testing.assert_array_equal(output @ ((weight @ w) * (input_ @ x)), expected)
    assert abs(input_).sum(1).max() == short.input_growth
    assert abs(weight).sum(1).max() == short.weight_growth


def test_images_of_sixteen_bits_are_convolved_directly() -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        w = constant(np.ones((64, 64, 3, 3), np.int16), t.INT16)
        return [L.convolve(L.cast(x, t.INT16), w, strides=[1, 1], padding=[(1, 1)] * 2, dtype=t.INT32)]

    function = trace("f", body, [TensorType(t.INT32, (1, 64, 14, 14))])
    program = Program.compile(function, target=NAMED["avx2"], threads=1)
    assert not any("winograd" in launch.title for launch in program.launches)
    feeds = [np.random.default_rng(1).integers(-32768, 32768, (1, 64, 14, 14)).astype(np.int32)]
    np.testing.assert_array_equal(program.run(feeds)[0], computed(function, feeds)[0])
