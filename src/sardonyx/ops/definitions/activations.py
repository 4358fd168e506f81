"""Activations: elementwise functions, and softmax functions along an axis.

Source: ONNX Operators, *Relu* to *SwiGLU*, *Softmax*, *LogSoftmax*, *Hardmax*. Before version 13 the latter three
flattened their operand to a matrix: the axes before ``axis``, and the others. Elementwise functions are computed in
float32 for 16-bit floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.precision import rounded_once
from sardonyx.ops.registry import operator


@operator("Relu", since=1)
def relu(x: Tensor) -> Tensor:
    return L.maximum(x, 0)


@operator("LeakyRelu", since=1)
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return L.where(x < 0, x * alpha, x)


@operator("PRelu", since=7)
def parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    return L.where(x < 0, x * L.broadcast_to(slope, x.shape), x)


@operator("PRelu", since=1)
def parametric_relu_by_channel(x: Tensor, slope: Tensor) -> Tensor:
    """Accept a slope that is one number, or one for each channel (the second axis)."""
    if slope.rank == 1 and slope.shape[0] != 1 and x.rank > 2:
        slope = L.unsqueeze(slope, range(1, x.rank - 1))
    return parametric_relu(x, slope)


@operator("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return L.where(L.constant(alpha, x.dtype) < x, x, 0)


@operator("Shrink", since=9)
@rounded_once
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    wide = L.cast(x, t.DOUBLE) if t.is_integer(x.dtype) else x
    return L.cast(L.where(wide < -lambd, wide + bias, L.where(wide > lambd, wide - bias, 0)), x.dtype)


@operator("Elu", since=1)
@rounded_once
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return L.where(x < 0, (L.exp(L.minimum(x, 0)) - 1) * alpha, x)


@operator("Celu", since=12)
@rounded_once
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    scaled = x / alpha
    # The gradient of a power that is not selected would be infinite.
    return L.maximum(x, 0) + L.minimum((L.exp(L.minimum(scaled, 0) if alpha > 0 else scaled) - 1) * alpha, 0)


@operator("Selu", since=6)
@rounded_once
def selu(x: Tensor, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Tensor:
    return elu(x, alpha=alpha) * gamma


@operator("Selu", since=1)
def selu_first(x: Tensor, *, alpha: float = 1.6732, gamma: float = 1.0507) -> Tensor:
    return selu(x, alpha=alpha, gamma=gamma)


@operator("Gelu", since=20)
@rounded_once
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        return x * 0.5 * (1 + L.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)))
    if approximate != "none":
        raise InvalidModelError(f"unknown `approximate` value {approximate!r}.", remedy="Use 'none' or 'tanh'.")
    return x * 0.5 * (1 + L.erf(x / math.sqrt(2)))


@operator("Sigmoid", since=1)
@rounded_once
def sigmoid(x: Tensor) -> Tensor:
    return L.sigmoid(x)


@operator("HardSigmoid", since=1)
@rounded_once
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return L.clip(x * alpha + beta, 0, 1)


@operator("HardSwish", since=14)
@rounded_once
def hard_swish(x: Tensor) -> Tensor:
    return x * hard_sigmoid(x, alpha=1 / 6, beta=0.5)


@operator("Swish", since=24)
@rounded_once
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * L.sigmoid(x * alpha)


@operator("SwiGLU", since=28)
@rounded_once
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    return swish(a, alpha=alpha) * L.of_shape(b, a.shape, "the second operand")


@operator("Softplus", since=1)
@rounded_once
def softplus(x: Tensor) -> Tensor:
    """Return ``log(exp(x) + 1)``, computed without overflow."""
    return L.softplus(x)


@operator("Mish", since=18)
@rounded_once
def mish(x: Tensor) -> Tensor:
    return x * L.tanh(softplus(x))


@operator("Softsign", since=1)
@rounded_once
def softsign(x: Tensor) -> Tensor:
    return x / (L.abs_(x) + 1)


# Along an axis.


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """Return 1 at the first maximum along the axis, 0 elsewhere."""
    greatest = L.equal(x, L.reduce_max(x, [axis], keepdims=True))
    return L.cast(greatest & L.equal(L.cumulative("add", L.cast(greatest, t.INT64), axis), 1), x.dtype)


def _register_along_axis(name: str, compute: Callable[..., Tensor]) -> None:
    @operator(name, since=13)
    def definition(x: Tensor, *, axis: int = -1) -> Tensor:
        return compute(x, axis=axis)

    @operator(name, since=1)
    def of_matrix(x: Tensor, *, axis: int = 1) -> Tensor:
        if not -x.rank <= axis <= x.rank:
            raise ShapeError(f"axis {axis} is out of range for rank {x.rank}.")
        matrix = L.flatten_to(x, axis + x.rank if axis < 0 else axis)
        return L.reshape(compute(matrix, axis=1), x.shape)


_register_along_axis("Softmax", L.softmax)
_register_along_axis("LogSoftmax", L.log_softmax)
_register_along_axis("Hardmax", _hardmax)
