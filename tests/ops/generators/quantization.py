"""Cases of quantized numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import Array, Case, Draw, scalar
from tests.ops.generators.table import draws


def _by_channel(draw: Draw, shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Return the shape of scales and, if per channel, their axis."""
    if draw.chance(0.5):
        return (), {}
    axis = draw.axis(len(shape))
    return shape[axis : axis + 1 or None], {"axis": axis}


@draws("QuantizeLinear")
def quantize(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4, zero=False)
    scales, options = _by_channel(draw, shape)
    dtype = draw.pick(np.uint8, np.int8, np.uint16, np.int16)
    point: Array | None = draw.array(scales, dtype, 0, 100)
    if draw.chance(0.2):
        point = None
    return Case(name, 21, [draw.array(shape, special=False), draw.positive(scales), point], options)


@draws("DequantizeLinear")
def dequantize(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4, zero=False)
    scales, options = _by_channel(draw, shape)
    dtype = draw.pick(np.uint8, np.int8, np.uint16, np.int16, np.int32)
    point = draw.maybe(lambda: np.zeros(scales, dtype) if dtype == np.int32 else draw.array(scales, dtype, 0, 100))
    return Case(name, 21, [draw.array(shape, dtype, None, 100), draw.positive(scales), point], options)


@draws("DynamicQuantizeLinear")
def dynamic(draw: Draw, name: str) -> Case:
    return Case(name, 11, [draw.array(draw.shape(1, zero=False), special=False)], {}, 3)


@draws("MatMulInteger")
def integers(draw: Draw, name: str) -> Case:
    m, k, n = (draw.integer(1, 4) for _ in range(3))
    left, right = draw.pick(np.uint8, np.int8), draw.pick(np.uint8, np.int8)
    leading = draw.shape(0, 2, zero=False)
    points = [
        draw.maybe(lambda: scalar(draw.integer(0, 9), left)), draw.maybe(lambda: scalar(draw.integer(0, 9), right))
    ]  # fmt: skip
    a, b = draw.array((*leading, m, k), left, None, 100), draw.array((*leading, k, n), right, None, 100)
    return Case(name, 10, [a, b, *points])


@draws("QLinearMatMul")
def quantized(draw: Draw, name: str) -> Case:
    m, k, n = (draw.integer(1, 4) for _ in range(3))
    dtype = draw.pick(np.uint8, np.int8)
    leading = draw.shape(0, 2, zero=False)
    a, b = draw.array((*leading, m, k), dtype, None, 20), draw.array((*leading, k, n), dtype, None, 20)
    points = [scalar(draw.integer(0, 5), dtype) for _ in range(3)]
    scales = [draw.positive(()), draw.positive(()), np.array(draw.pick(4.0, 30.0), np.float32)]
    return Case(name, 10, [a, scales[0], points[0], b, scales[1], points[1], scales[2], points[2]])
