"""Convolutions of images in a program, whatever their layouts and forms, equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.compiler.executor.unused_memory import poison
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.executor.arena import BLOCKS
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType

pytestmark = pytest.mark.sampled

N, H, W = map(Dim.symbol, "NHW")


@pytest.mark.parametrize(
    ("channels", "filters", "groups"),
    [(1, 1, 1), (3, 20, 1), (17, 33, 1), (24, 2, 1), (20, 20, 20), (32, 32, 8), (12, 20, 4), (6, 12, 3)],
)
def test_weights_are_packed_when_run(channels: int, filters: int, groups: int) -> None:
    def body(x: L.Tensor, w: L.Tensor) -> list[L.Tensor]:
        actual = L.convolve(x, w * 2.0, strides=[1, 2], padding=[(1, 1), (0, 1)], groups=groups)
        return [L.tanh(actual)]

    types = [TensorType(t.FLOAT, (N, channels, H, W)), TensorType(t.FLOAT, (filters, channels // groups, 3, 2))]
    function = trace("f", body, types)
    program = Program.compile(function)
    assert "direct convolution" in [launch.title for launch in program.launches]
    rng = np.random.default_rng(1)
    for n, h, w in ((1, 5, 6), (2, 3, 33), (0, 4, 4)):
        x = rng.standard_normal((n, channels, h, w)).astype(np.float32)
        weights = rng.standard_normal((filters, channels // groups, 3, 2)).astype(np.float32) / 10
        assert_close(program.run([x, weights]), computed(function, [x, weights]))


@pytest.mark.parametrize("dtype", [t.FLOAT16, t.BFLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("channels", [3, 40])
def test_images_of_16_bits_are_written_once_more_for_a_convolution(channels: int, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((24, channels, 3, 3)) / 20

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.convolve(x, constant(weights, dtype), strides=[2, 2], padding=[(1, 1)] * 2)]

    function = trace("f", body, [TensorType(dtype, (N, channels, H, W))])
    program = Program.compile(function)
    assert titles(program) == ["layout", "direct convolution"]
    for sizes in ((2, 9, 11), (1, 4, 40)):
        x = rng.standard_normal((sizes[0], channels, *sizes[1:])).astype(t.numpy_dtype(dtype))
        actual, expected = (item[0].astype(np.float32) for item in (program.run([x]), computed(function, [x])))
        np.testing.assert_allclose(actual, expected, rtol=0.02, atol=0.02)


def convolved(x: L.Tensor, filters: int, window: int = 3, stride: int = 1) -> L.Tensor:
    channels = x.shape[1]
    assert isinstance(channels, int)
    rng = np.random.default_rng([channels, filters, window])
    weights = rng.standard_normal((filters, channels, window, window)).astype(np.float32) / (3 * window)
    padding = [(window // 2, window // 2)] * 2
    return L.convolve(x, constant(weights), strides=[stride, stride], padding=padding)


def titles(function: Program) -> list[str]:
    return [launch.title for launch in function.launches]


FEW = host().lanes(32) // 2
"""Most channels and filters of images whose lanes are places."""


@pytest.mark.parametrize(("height", "width"), [(5, 40), (H, W)], ids=["known", "open"])
@pytest.mark.parametrize("counts", [(16, 3, 16), (16, 1, 2, 24), (24, 4, 1), (2, 3, 20, 3), (3, FEW, FEW, 1)], ids=str)
def test_images_of_few_channels_between_others(counts: tuple[int, ...], height: Size, width: Size) -> None:
    """Layouts change where they have to; nothing is left to the interpreter."""

    def body(x: L.Tensor) -> list[L.Tensor]:
        for number, filters in enumerate(counts[1:]):
            x = L.maximum(convolved(x, filters, 5 if number % 2 else 3), 0.0)
        return [x + 1.0]

    function = trace("f", body, [TensorType(t.FLOAT, (N, counts[0], height, width))])
    program = Program.compile(function)
    assert not program.host
    for n, h, w in ((1, 5, 40), (2, 3, 33), (1, 9, 100)) if isinstance(height, Dim) else ((2, height, width),):
        x = np.random.default_rng(2).standard_normal((n, counts[0], h, w)).astype(np.float32)
        assert_close(program.run([x]), computed(function, [x]))


def test_what_follows_a_convolution_of_few_channels_is_part_of_its_kernel() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.tanh(convolved(x, 2, 5) + y) * 2.0]

    function = trace("f", body, [TensorType(t.FLOAT, (1, FEW, H, W)), TensorType(t.FLOAT, (1, 2, H, W))])
    program = Program.compile(function)
    assert titles(program) == ["planar convolution"]
    rng = np.random.default_rng(3)
    for h, w in ((1, 1), (4, 17), (3, 200)):
        arrays = [rng.standard_normal((1, c, h, w)).astype(np.float32) for c in (FEW, 2)]
        assert_close(program.run(arrays), computed(function, arrays))


@pytest.mark.parametrize(
    ("channels", "filters", "stride", "width", "title"),
    [
        (FEW, FEW, 1, W, "planar convolution"),
        (FEW, FEW, 2, W, "planar convolution"),
        (FEW, FEW, 3, W, "direct convolution"),
        (FEW, FEW, 1, 3, "direct convolution"),
        (FEW, 2 * FEW + 1, 1, W, "direct convolution"),
        (4 * FEW, FEW, 3, W, "direct convolution"),
    ],
)
def test_the_form_follows_from_channels_and_rows(
    channels: int, filters: int, stride: int, width: Size, title: str
) -> None:
    function = trace("f", lambda x: [convolved(x, filters, 5, stride)], [TensorType(t.FLOAT, (1, channels, H, width))])
    assert title in titles(Program.compile(function))


@pytest.mark.parametrize("channels", [32, 20])
@pytest.mark.parametrize("filters", [24, 2])
def test_statistics_of_a_part_of_an_image_are_taken_in_its_blocks(channels: int, filters: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        image = convolved(x, channels)
        part = L.slice_(L.slice_(image, 2, 1, image.shape[2] - 1), 3, 2, image.shape[3])
        mean = L.reduce_sum(part, [2, 3], keepdims=True) / 100
        return [convolved(L.maximum(part - mean, 0.0), filters)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 8, H, W))])
    program = Program.compile(function)
    rows = next(launch for launch in program.launches if launch.title == "rows")
    assert program.blocks[rows.writes] == host().lanes(32)
    for sizes in ((2, 9, 11), (1, 4, 40), (1, 3, 4)):
        x = np.random.default_rng(4).standard_normal((sizes[0], 8, *sizes[1:])).astype(np.float32)
        poison(BLOCKS)
        assert_close(program.run([x]), computed(function, [x]))


def test_images_that_others_read_in_blocks_are_computed_in_blocks() -> None:
    """A first layer of few taps is not worth a change of layout."""
    function = trace(
        "f", lambda x: [convolved(L.maximum(convolved(x, FEW), 0.0), 64)], [TensorType(t.FLOAT, (1, 3, H, W))]
    )
    assert "planar convolution" not in titles(Program.compile(function))


@pytest.mark.parametrize("size", [7, 14, 30])
@pytest.mark.parametrize("channels", [1, 16])
def test_weights_that_are_computed_of_constants_are_packed_once(size: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    codes = constant(rng.integers(-128, 128, (16, channels, 3, 3)).astype(np.int8))
    scale = constant(rng.uniform(0.01, 0.02, (16, 1, 1, 1)).astype(np.float32))

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [L.convolve(x, L.cast(codes, t.FLOAT) * scale, strides=[1, 1], padding=[(1, 1), (1, 1)])]

    function = trace("f", body, [TensorType(t.FLOAT, (N, channels, size, size))])
    program = Program.compile(function)
    assert "map" not in [launch.title for launch in program.launches]
    x = rng.standard_normal((2, channels, size, size)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("window", [2, 3])
def test_windows_over_channels_follow_a_convolution_and_a_pool(window: int) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        image = convolved(x, 20)
        pooled = L.reduce_window("max", image, (window, window), strides=(1, 1), padding=[(0, 0)] * 2)
        squares = L.reduce_window("add", pooled * pooled, (5, 1, 1), strides=(1,) * 3, padding=[(2, 2), (0, 0), (0, 0)])
        return [convolved(pooled / (squares + 1), 4)]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 3, H, W))])
    program = Program.compile(function)
    assert titles(program).count("pooling") == 2
    x = np.random.default_rng(3).standard_normal((2, 3, 7, 9)).astype(np.float32)
    assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize(
    ("channels", "filters", "groups"), [(6, 15, 3), (34, 2, 2), (68, 12, 4), (20, 20, 20), (32, 32, 8), (8, 160, 8)]
)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("is_open", [False, True])
def test_nan_and_infinity_stay_in_their_group(
    channels: int, filters: int, groups: int, stride: int, is_open: bool
) -> None:
    rng = np.random.default_rng([channels, filters])
    weights = rng.standard_normal((filters, channels // groups, 3, 2)).astype(np.float32)

    def body(x: L.Tensor) -> list[L.Tensor]:
        padding = [(1, 1), (0, 1)]
        return [L.convolve(x, constant(weights), strides=[stride, 1], padding=padding, groups=groups)]

    sizes = (N, channels, H, W) if is_open else (2, channels, 7, 23)
    function = trace("f", body, [TensorType(t.FLOAT, sizes)])
    program = Program.compile(function)
    x = rng.standard_normal((2, channels, 7, 23)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        for at in ((0, 0, 0, 0), (1, channels // 2, 3, 11), (1, channels - 1, 6, 22)):
            y = x.copy()
            y[at] = value
            (actual,), (expected,) = program.run([y]), computed(function, [y])
            np.testing.assert_allclose(actual, expected, atol=1e-4)
