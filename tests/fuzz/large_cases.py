"""Cases of more than a vector, a tile or a block: kernels that the small cases of the generators do not reach.

Sizes are near multiples of vectors and tiles, so that remainders of every width occur.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tests.ops.generators.draw import Case, Draw


def size_of(draw: Draw, most: int) -> int:
    """Return a size: a multiple of 8 or one near it, or any."""
    size = 8 * draw.integer(1, max(most // 8, 1)) + draw.pick(0, 0, 0, 1, -1, 3) if draw.chance(0.7) else 0
    return min(size or draw.integer(1, most), most)


def _floats(draw: Draw, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return draw.array(shape, dtype, special=False) / np.asarray(3, dtype)


def _convolution(draw: Draw) -> Case:
    name, n = draw.pick("Conv", "Conv", "ConvTranspose"), draw.pick(1, 2, 2, 2, 3)
    group, channels, features = draw.pick(1, 1, 1, 2), size_of(draw, 40), size_of(draw, 40)
    kernel = [draw.pick(1, 3, 3, 5)] * n
    spatial = [size + draw.integer(2, (30, 20, 7)[n - 1]) for size in kernel]
    if name == "Conv" and draw.chance(0.2):
        group, channels, features = channels, 1, draw.pick(1, 1, 2)  # Depthwise.
    options: dict[str, Any] = {"group": group} | draw.options(
        strides=[draw.pick(1, 1, 2)] * n, pads=[draw.integer(0, kernel[0] // 2)] * (2 * n)
    )
    first, second = (features * group, channels) if name == "Conv" else (channels * group, features)
    inputs = [
        _floats(draw, draw.integer(1, 3), channels * group, *spatial), _floats(draw, first, second, *kernel),
        draw.maybe(lambda: _floats(draw, features * group)),
    ]  # fmt: skip
    return Case(name, 11, inputs, options)


def _pooling(draw: Draw) -> Case:
    kernel = [draw.integer(2, 3)] * 2
    options = draw.options(strides=[draw.pick(1, 2)] * 2, pads=[draw.integer(0, 1)] * 4)
    x = _floats(draw, draw.integer(1, 2), size_of(draw, 40), draw.integer(5, 30), draw.integer(5, 30))
    return Case(draw.pick("MaxPool", "AveragePool"), 11, [x], {"kernel_shape": kernel} | options)


def _product(draw: Draw) -> Case:
    m, k, n = (size_of(draw, most) for most in (70, 150, 100))
    batch = draw.pick((), (), (3,), (2, 2))
    dtype = draw.pick(np.float32, np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    a, b = _floats(draw, *batch, m, k, dtype=dtype), _floats(draw, *draw.pick((), batch), k, n, dtype=dtype)
    return Case("MatMul", 13, [a.astype(dtype), b.astype(dtype)])


def _integer_product(draw: Draw) -> Case:
    m, k, n = (size_of(draw, most) for most in (40, 150, 100))
    kinds = draw.pick(np.uint8, np.int8), draw.pick(np.uint8, np.int8)
    a, b = draw.array((m, k), kinds[0], None, 100), draw.array((k, n), kinds[1], None, 100)
    points = draw.array((), kinds[0], 0, 9), draw.array(draw.pick((), (n,)), kinds[1], 0, 9)
    if draw.chance(0.5):
        return Case("MatMulInteger", 10, [a, b, *(points if draw.chance(0.7) else ())])
    scales = [draw.positive(()), draw.positive(points[1].shape), np.float32(900)]
    inputs = [a, scales[0], points[0], b, scales[1], points[1], np.asarray(scales[2]), draw.array((), kinds[0], 0, 9)]
    return Case("QLinearMatMul", 10, inputs)


def _quantized_convolution(draw: Draw) -> Case:
    channels, features, kernel = size_of(draw, 40), size_of(draw, 40), draw.pick(1, 3)
    group = draw.pick(1, 1, 2)
    kinds = draw.pick(np.uint8, np.int8), draw.pick(np.uint8, np.int8)
    spatial = [kernel + draw.integer(2, 14) for _ in range(2)]
    x = draw.array((draw.integer(1, 2), channels * group, *spatial), kinds[0], None, 50)
    w = draw.array((features * group, channels, kernel, kernel), kinds[1], None, 50)
    per_channel = draw.pick((), (features * group,))
    inputs = [
        x, draw.positive(()), draw.array((), kinds[0], 0, 9), w, draw.positive(per_channel),
        np.zeros(per_channel, kinds[1]), np.asarray(np.float32(900)), draw.array((), kinds[0], 0, 9),
        draw.maybe(lambda: draw.array((features * group,), np.int32)),
    ]  # fmt: skip
    return Case("QLinearConv", 10, inputs, {"group": group} | draw.options(pads=[1] * 4, strides=[draw.pick(1, 2)] * 2))


def _attention(draw: Draw) -> Case:
    batch, heads, group = draw.integer(1, 2), draw.integer(1, 3), draw.pick(1, 2)
    queries, keys, size = size_of(draw, 40), size_of(draw, 70), size_of(draw, 40)
    mask = draw.maybe(lambda: draw.array((queries, keys), draw.pick(np.float32, np.bool_), special=False))
    inputs = [
        _floats(draw, batch, heads * group, queries, size), *(_floats(draw, batch, heads, keys, size) for _ in "kv"),
        mask,
    ]  # fmt: skip
    return Case("Attention", 23, inputs, draw.options(is_causal=draw.integer(0, 1), softcap=draw.pick(0.0, 2.0)))


def _packed_product(draw: Draw) -> Case:
    bits, size = draw.pick(2, 4, 4, 8), draw.pick(16, 32, 64)
    k, n, m = size_of(draw, 150), size_of(draw, 70), draw.pick(1, 1, size_of(draw, 20))
    count = -(-k // size)
    codes = draw.numbers.integers(0, 256, (n, count, size * bits // 8)).astype(np.uint8)
    points = draw.maybe(lambda: draw.numbers.integers(0, 256, (n, -(-count * bits // 8))).astype(np.uint8))
    inputs = [_floats(draw, m, k), codes, draw.positive((n, count)) / 8, points]
    options = {"K": k, "N": n, "bits": bits, "block_size": size}
    return Case("MatMulNBits", 1, inputs, options, 1, "com.microsoft")


def _rows(draw: Draw) -> Case:
    shape = draw.integer(1, 9), size_of(draw, 70), size_of(draw, 150)
    x, name = (
        _floats(draw, *shape),
        draw.pick("Softmax", "LayerNormalization", "CumSum", "Transpose", "TopK", "ReduceMean"),
    )
    if name == "LayerNormalization":
        return Case(name, 17, [x, _floats(draw, shape[2]), draw.maybe(lambda: _floats(draw, shape[2]))])
    if name == "CumSum":
        return Case(name, 14, [x, np.array(draw.axis(3))])
    if name == "Transpose":
        return Case(name, 13, [x], {"perm": draw.random.sample(range(3), 3)})
    if name == "TopK":
        axis = draw.axis(3)
        return Case(name, 11, [x, np.array([draw.integer(1, shape[axis])])], {"axis": axis}, 2)
    if name == "ReduceMean":
        return Case(name, 18, [x, np.array([draw.axis(3)])], draw.options(keepdims=draw.integer(0, 1)))
    return Case(name, 13, [x], {"axis": draw.axis(3)})


def _recurrent(draw: Draw) -> Case:
    name = draw.pick("LSTM", "GRU", "RNN")
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[name]
    steps, batch, inputs, hidden = draw.integer(1, 5), size_of(draw, 9), size_of(draw, 40), size_of(draw, 40)
    direction = draw.pick("forward", "bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    operands = [
        _floats(draw, steps, batch, inputs), _floats(draw, directions, gates * hidden, inputs),
        _floats(draw, directions, gates * hidden, hidden),
        draw.maybe(lambda: _floats(draw, directions, 2 * gates * hidden)),
        draw.maybe(lambda: draw.numbers.integers(1, steps + 1, batch).astype(np.int32), 0.3),
    ]  # fmt: skip
    return Case(name, 14, operands, {"hidden_size": hidden, "direction": direction}, 2)


LARGE: Mapping[str, Callable[[Draw], Case]] = {
    "large.Attention": _attention,
    "large.Conv": _convolution,
    "large.LSTM": _recurrent,
    "large.MatMul": _product,
    "large.MatMulInteger": _integer_product,
    "large.MatMulNBits": _packed_product,
    "large.MaxPool": _pooling,
    "large.QLinearConv": _quantized_convolution,
    "large.Softmax": _rows,
}
"""Generators by name."""
