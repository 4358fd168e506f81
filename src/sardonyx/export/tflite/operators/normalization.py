"""Normalizations and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import Tensor


def _along_last(c: Call, name: str, options: tuple[str, dict[str, float]] | None) -> Tensor:
    """Write an operator of the last axis along another axis; more than 4 axes are merged."""
    x, s, axis = c.input(), c.scope, c.axis(-1)
    order = [i for i in range(x.rank) if i != axis] + [axis]
    y = s.transpose(x, order)
    flat = y if y.rank <= 4 else s.reshape(y, [s.product(y.shape[:-1]), y.shape[-1]])
    result = s.reshape(s.op(name, [s.checked(name, flat)], flat.shape, options=options), y.shape)
    return s.transpose(result, [order.index(i) for i in range(x.rank)])


@emits("Softmax")
def softmax(c: Call) -> Tensor:
    """Write normalized exponentials."""
    return _along_last(c, "SOFTMAX", ("SoftmaxOptions", {"beta": 1.0}))


@emits("LogSoftmax")
def log_softmax(c: Call) -> Tensor:
    """Write logarithms of normalized exponentials."""
    return _along_last(c, "LOG_SOFTMAX", None)


def normalized(s: Scope, x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """Return `x` with mean 0 and variance 1 along axes."""
    mean = s.reduce("MEAN", x, axes)
    centred = s.binary("SUB", x, mean)
    variance = s.reduce("MEAN", s.binary("MUL", centred, centred), axes)
    factor = s.unary("RSQRT", s.binary("ADD", variance, s.like(epsilon, x)))
    return s.binary("MUL", centred, factor)


def _channels(c: Call, x: Tensor, number: int) -> Tensor:
    """Return a parameter [channels] that broadcasts over an image."""
    parameter = c.input(number)
    return parameter if c.is_last else c.scope.reshape(parameter, [parameter.shape[0], *[1] * (x.rank - 2)])


@emits("BatchNormalization")
def batch_normalization(c: Call) -> Tensor:
    """Write a scale and a shift for each channel."""
    x, s = c.input(), c.scope
    if c.attribute("training_mode", 0):
        raise c.refuse("training mode")
    epsilon = float(c.attribute("epsilon", 1e-5))
    scale, bias, mean, variance = (c.input(i) for i in range(1, 5))
    arrays = [t.array for t in (scale, bias, mean, variance)]
    if all(array is not None for array in arrays):
        a, b, m, v = (np.asarray(array, np.float64) for array in arrays)
        slope = a / np.sqrt(v + epsilon)
        scale, bias = (s.constant(t.astype(np.float32)) for t in (slope, b - m * slope))
    else:
        scale = s.binary("MUL", scale, s.unary("RSQRT", s.binary("ADD", variance, s.like(epsilon, variance))))
        bias = s.binary("SUB", bias, s.binary("MUL", mean, scale))
    if not c.is_last and x.rank > 2:
        scale, bias = (s.reshape(t, [t.shape[0], *[1] * (x.rank - 2)]) for t in (scale, bias))
    return s.binary("ADD", s.binary("MUL", x, scale), bias)


@emits("InstanceNormalization")
def instance_normalization(c: Call) -> Tensor:
    """Write normalization of each channel of each image."""
    x, s = c.input(), c.scope
    axes = range(1, x.rank - 1) if c.is_last else range(2, x.rank)
    y = normalized(s, x, list(axes), float(c.attribute("epsilon", 1e-5)))
    return s.binary("ADD", s.binary("MUL", y, _channels(c, x, 1)), _channels(c, x, 2))


@emits("GroupNormalization")
def group_normalization(c: Call) -> Tensor:
    """Write normalization of groups of channels."""
    x, s, groups = c.input(), c.scope, int(c.attribute("num_groups"))
    if not c.is_last or not isinstance(x.shape[-1], int):
        raise c.refuse("an unknown number of channels")
    inner = s.product(x.shape[1:-1])
    y = s.reshape(x, [x.shape[0], inner, groups, x.shape[-1] // groups])
    y = s.reshape(normalized(s, y, [1, 3], float(c.attribute("epsilon", 1e-5))), x.shape)
    return s.binary("ADD", s.binary("MUL", y, c.input(1)), c.input(2))


@emits("LayerNormalization")
def layer_normalization(c: Call) -> Tensor:
    """Write normalization of the last axes."""
    x, s, axis = c.input(), c.scope, c.axis(-1)
    if any(output.uses() or output.is_graph_output() for output in c.call.outputs[1:]):
        raise c.refuse("the mean or the deviation as outputs")
    y = normalized(s, x, list(range(axis, x.rank)), float(c.attribute("epsilon", 1e-5)))
    y = s.binary("MUL", y, c.input(1))
    return s.binary("ADD", y, c.input(2)) if c.has(2) else y


@emits("MeanVarianceNormalization")
def mean_variance_normalization(c: Call) -> Tensor:
    """Write (x - mean) / (deviation + 1e-9)."""
    x, s = c.input(), c.scope
    axes = [int(a) % x.rank for a in c.attribute("axes", [0, 2, 3])]
    centred = s.binary("SUB", x, s.reduce("MEAN", x, axes))
    deviation = s.unary("SQRT", s.reduce("MEAN", s.binary("MUL", centred, centred), axes))
    return s.binary("DIV", centred, s.binary("ADD", deviation, s.like(1e-9, x)))


@emits("LpNormalization")
def lp_normalization(c: Call) -> Tensor:
    """Write division by the norm along an axis; a zero norm divides by one."""
    from sardonyx.export.tflite.operators.elementwise import select

    x, s, axis = c.input(), c.scope, c.axis(-1)
    if int(c.attribute("p", 2)) == 1:
        norm = s.reduce("SUM", s.unary("ABS", x), [axis])
    else:
        norm = s.unary("SQRT", s.reduce("SUM", s.binary("MUL", x, x), [axis]))
    is_zero = s.binary("EQUAL", norm, s.like(0, x), type="BOOL")
    return s.binary("DIV", x, select(s, is_zero, s.like(1, x), norm))


@emits("LRN")
def lrn(c: Call) -> Tensor:
    """Write normalization over neighbouring channels; ONNX divides alpha by their number."""
    x, s, size = c.input(), c.scope, int(c.attribute("size"))
    if not c.is_last or x.rank != 4 or size % 2 == 0:
        raise c.refuse("an even number of channels, or an input that is not an image")
    options = {
        "radius": size // 2,
        "bias": float(c.attribute("bias", 1.0)),
        "alpha": float(c.attribute("alpha", 1e-4)) / size,
        "beta": float(c.attribute("beta", 0.75)),
    }
    return s.op("LOCAL_RESPONSE_NORMALIZATION", [x], x.shape, options=("LocalResponseNormalizationOptions", options))
