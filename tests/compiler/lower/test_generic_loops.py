"""Contractions, convolutions and windows for which there is no template equal the interpreter's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.compiler.program_checks import assert_close
from tests.core.programs import computed

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType

pytestmark = pytest.mark.sampled

N, C, H, W = map(Dim.symbol, "NCHW")
DTYPES = (t.FLOAT, t.DOUBLE, t.INT32)
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "strided": {"strides": (2, 1), "padding": ((1, 0), (0, 2)), "base_dilation": (1, 1), "kernel_dilation": (1, 2)},
    "transposed": {"strides": (1, 1), "padding": ((2, 2), (1, 3)), "base_dilation": (2, 3), "kernel_dilation": (1, 1)},
    "cropped": {"strides": (1, 2), "padding": ((-1, 1), (2, -1)), "base_dilation": (1, 2), "kernel_dilation": (2, 1)},
}


def checked(function: Function, *arrays: np.ndarray) -> None:
    program = Program.compile(function)
    assert not program.grouping.host
    assert_close(program.run(list(arrays)), computed(function, arrays))


def random(shape: tuple[int, ...], dtype: t.DType) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * 3).astype(t.numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name.lower())
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(case: dict[str, Any], dtype: t.DType) -> None:
    def body(x: L.Tensor, w: L.Tensor) -> list[L.Tensor]:
        return [apply("convolve", x, w, dtype=dtype, **case)]

    types = [TensorType(dtype, (2, N, C, H, W)), TensorType(dtype, (2, 5, C, 3, 2))]
    program = Program.compile(trace("f", body, types))
    assert not program.grouping.host
    for n, c, h, w in ((1, 3, 7, 9), (2, 1, 9, 18), (1, 4, 5, 37), (0, 1, 5, 5), (1, 0, 6, 6)):
        arrays = [random((2, n, c, h, w), dtype), random((2, 5, c, 3, 2), dtype)]
        assert_close(program.run(arrays), computed(program.function, arrays))


def test_a_convolution_of_images_with_weights_that_are_computed() -> None:
    def body(x: L.Tensor, w: L.Tensor) -> list[L.Tensor]:
        groups = L.permute(L.reshape(x, (x.shape[0], 2, 3, *x.shape[2:])), (1, 0, 2, 3, 4))
        filters = L.reshape(w + 1.0, (2, 4, 3, 3, 3))
        case = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "base_dilation": (1, 1), "kernel_dilation": (1, 1)}
        actual = L.permute(apply("convolve", groups, filters, dtype=t.FLOAT, **case), (1, 0, 2, 3, 4))
        return [L.tanh(L.reshape(actual, (x.shape[0], 8, *actual.shape[3:])))]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 6, H, W)), TensorType(t.FLOAT, (8, 3, 3, 3))])
    checked(function, random((2, 6, 5, 17), t.FLOAT), random((8, 3, 3, 3), t.FLOAT))


@pytest.mark.parametrize("kind", ["argmax", "argmin", "max", "add"])
@pytest.mark.parametrize("dtype", [t.FLOAT, t.FLOAT16, t.UINT8, t.INT16], ids=lambda d: d.name.lower())
def test_windows(dtype: t.DType, kind: str) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        return [
            L.reduce_window(kind, x, [2, 3], strides=[1, 2], padding=[(1, 0), (2, 1)], dilation=[2, 1]),
            L.reduce_window(kind, x, [1, 1, 1, 2], strides=[1] * 4, padding=[(0, 0)] * 4, dilation=[1] * 4),
        ]

    program = Program.compile(trace("f", body, [TensorType(dtype, (N, C, H, W))]))
    assert not program.grouping.host
    for shape in ((1, 2, 5, 40), (2, 3, 4, 17), (1, 1, 3, 2)):
        x = random(shape, dtype)
        if t.is_float(dtype):
            x.reshape(-1)[::5] = np.nan
        assert_close(program.run([x]), computed(program.function, [x]))


@pytest.mark.parametrize("kind", ["max", "min", "add"])
def test_a_window_that_sees_all_of_an_image_is_a_reduction(kind: str) -> None:
    def body(x: L.Tensor) -> list[L.Tensor]:
        none = [(0, 0)] * 2
        return [
            L.abs_(L.reduce_window(kind, x, [5, 9], strides=[2, 3], padding=none, dilation=[1, 1])),
            L.reduce_window(kind, x, [1, 9], strides=[1, 1], padding=none, dilation=[1, 1]),
        ]

    function = trace("f", body, [TensorType(t.FLOAT, (N, C, 5, 9))])
    program = Program.compile(function)
    assert [launch.title for launch in program.launches] == ["rows"] * 2
    x = random((2, 3, 5, 9), t.FLOAT)
    assert_close(program.run([x]), computed(function, [x]))


@pytest.mark.parametrize("width", [5, 12, 70])
def test_what_follows_windows_of_a_known_width(width: int) -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        actual = L.reduce_window("max", x, [3, 3], strides=[1, 1], padding=[(1, 1)] * 2, dilation=[1, 1])
        return [L.tanh(actual + y) * 2.0]

    function = trace("f", body, [TensorType(t.FLOAT, (2, 3, 6, width)), TensorType(t.FLOAT, (3, 1, width))])
    checked(function, random((2, 3, 6, width), t.FLOAT), random((3, 1, width), t.FLOAT))


def test_products_over_axes_that_lie_apart() -> None:
    def body(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        return [L.contract(x, y, batch=[], left=[0, 2], right=[0, 2])]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 3, H)), TensorType(t.FLOAT, (N, W, H))])
    for sizes in ((2, 5, 19), (1, 7, 1), (0, 2, 3)):
        n, h, w = sizes
        checked(function, random((n, 3, h), t.FLOAT), random((n, w, h), t.FLOAT))


@pytest.mark.parametrize("interior", [0, 1, 2])
def test_padding_that_crops_by_open_sizes(interior: int) -> None:
    """The result has ``M`` elements, whether ``N`` is more or less."""

    def body(x: L.Tensor, like: L.Tensor) -> list[L.Tensor]:
        (n,), (m,) = x.shape, like.shape
        low = (m - n) // 2
        high = m - n - low - interior * (n - 1)
        return [L.pad(x, [low], [high], L.reduce_sum(like), [interior])]

    program = Program.compile(trace("f", body, [TensorType(t.FLOAT, (N,)), TensorType(t.FLOAT, (W,))]))
    assert not program.grouping.host
    for n, m in ((1, 1), (7, 3), (3, 7), (17, 5), (5, 40), (33, 33), (9, 0)):
        arrays = [random((n,), t.FLOAT), random((m,), t.FLOAT)]
        assert_close(program.run(arrays), computed(program.function, arrays))


def test_a_product_with_a_constant_repeated_along_an_open_axis() -> None:
    def body(x: L.Tensor, like: L.Tensor) -> list[L.Tensor]:
        row = L.broadcast_to(L.constant(np.arange(3, dtype=np.float32)[None]), (like.shape[0], 3))
        return [L.contract(x, row, batch=[], left=[1], right=[1])]

    function = trace("f", body, [TensorType(t.FLOAT, (N, 3)), TensorType(t.FLOAT, (W,))])
    checked(function, random((5, 3), t.FLOAT), random((7,), t.FLOAT))
