"""Activations, softmax, and layers that do nothing in evaluation."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.convert.torch.operators.elementwise import (
    add_,
    div_,
    less_,
    like,
    mul_,
    pointwise,
    sub_,
    where_,
)
from sardonyx.convert.torch.operators.promotion import cast, core_dtype, floating
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx

DROPOUTS = ("alpha_dropout", "dropout", "feature_alpha_dropout", "feature_dropout")
"""Operators that return the operand itself, not a copy, outside of training."""


def _sigmoid(x: Tensor) -> Tensor:
    return pointwise("Sigmoid", L.sigmoid, x)


@aten("relu.default")
def relu(x: Tensor) -> Tensor:
    """Return the positive part."""
    return pointwise("Relu", lambda a: L.maximum(a, 0), x)


@aten("relu6.default")
def _relu6(x: Tensor) -> Tensor:
    return _hardtanh(x, 0, 6)


@aten("hardtanh.default")
def _hardtanh(x: Tensor, low: Any = -1, high: Any = 1) -> Tensor:
    return onnx.Clip(x, like(x, low), like(x, high))  # type: ignore[no-any-return]


@aten("gelu.default")
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return onnx.Gelu(x, approximate=approximate if approximate != "none" else None)  # type: ignore[no-any-return]


@aten("silu.default")
def silu(x: Tensor) -> Tensor:
    """Return x times its sigmoid."""
    return mul_(x, _sigmoid(x))


@aten("mish.default")
def _mish(x: Tensor) -> Tensor:
    return onnx.Mish(x)  # type: ignore[no-any-return]


@aten("hardsigmoid.default")
def _hardsigmoid(x: Tensor) -> Tensor:
    return onnx.HardSigmoid(x, alpha=1 / 6, beta=0.5)  # type: ignore[no-any-return]


@aten("hardswish.default")
def _hardswish(x: Tensor) -> Tensor:
    return onnx.HardSwish(x)  # type: ignore[no-any-return]


@aten("leaky_relu.default")
def _leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    return onnx.LeakyRelu(x, alpha=float(slope))  # type: ignore[no-any-return]


@aten("elu.default")
def _elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    if scale == 1 and input_scale == 1:
        return onnx.Elu(x, alpha=float(alpha))  # type: ignore[no-any-return]
    negative = sub_(pointwise("Exp", L.exp, mul_(x, like(x, input_scale))), like(x, 1))
    low = mul_(negative, like(x, alpha * scale))
    return where_(less_(like(x, 0), x), mul_(x, like(x, scale)), low)


@aten("celu.default")
def _celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    return onnx.Celu(x, alpha=float(alpha)) if x.dtype == t.FLOAT else _celu_plain(x, alpha)


def _celu_plain(x: Tensor, alpha: float) -> Tensor:
    negative = sub_(pointwise("Exp", L.exp, div_(x, like(x, alpha))), like(x, 1))
    return where_(less_(like(x, 0), x), x, mul_(negative, like(x, alpha)))


@aten("selu.default")
def _selu(x: Tensor) -> Tensor:
    return onnx.Selu(x)  # type: ignore[no-any-return]


@aten("prelu.default", "_prelu_kernel.default")
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    if weight.rank and weight.rank != x.rank:
        shape: list[Size] = [1] * x.rank
        shape[1 if x.rank > 1 else 0] = weight.shape[0]
        weight = reshaped(weight, shape)
    return onnx.PRelu(x, weight)  # type: ignore[no-any-return]


@aten("softplus.default")
def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if beta == 1:
        return onnx.Softplus(x)  # type: ignore[no-any-return]
    scaled = mul_(x, like(x, beta))
    return where_(less_(like(x, threshold), scaled), x, div_(onnx.Softplus(scaled), like(x, beta)))


@aten("log_sigmoid.default")
def _log_sigmoid(x: Tensor) -> Tensor:
    negative = pointwise("Neg", lambda a: -a, x)
    return pointwise("Neg", lambda a: -a, onnx.Softplus(negative))


@aten("log_sigmoid_forward.default")
def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    return _log_sigmoid(x), x


@aten("softshrink.default")
def _softshrink(x: Tensor, bound: float = 0.5) -> Tensor:
    return onnx.Shrink(x, lambd=float(bound), bias=float(bound))  # type: ignore[no-any-return]


@aten("hardshrink.default")
def _hardshrink(x: Tensor, bound: float = 0.5) -> Tensor:
    return onnx.Shrink(x, lambd=float(bound), bias=0.0)  # type: ignore[no-any-return]


@aten("threshold.default")
def _threshold(x: Tensor, threshold: Any, value: Any) -> Tensor:
    return where_(less_(like(x, threshold), x), x, like(x, value))


@aten("glu.default")
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    dim = L.normalized_axis(dim, x.rank)
    half = x.shape[dim] // 2
    first, second = onnx.Split(
        x,
        outputs=2,
        axis=dim,
        num_outputs=2,
        body=lambda y: [L.slice_(y, dim, 0, half), L.slice_(y, dim, half, half * 2)],
    )
    return mul_(first, _sigmoid(second))


@aten("rrelu.default", "rrelu_with_noise.default", "rrelu_with_noise_functional.default")
def _rrelu(x: Tensor, *more: Any, **options: Any) -> Any:
    numbers = [value for value in more if isinstance(value, (int, float)) and not isinstance(value, bool)]
    flags = [value for value in more if isinstance(value, bool)]
    if any(flags) or options.get("training"):
        raise UnsupportedError("rrelu in training mode draws random slopes.")
    lower, upper = (options.get("lower", 1 / 8), options.get("upper", 1 / 3)) if len(numbers) < 2 else numbers[:2]
    result = _leaky_relu(x, (lower + upper) / 2)
    noise = next((value for value in more if isinstance(value, Tensor)), None)
    return result if noise is None else (result, noise)


def _softmax_node(name: str, core: Any, x: Tensor, dim: int) -> Tensor:
    x = floating(x)
    if x.rank == 0:
        return reshaped(_softmax_node(name, core, reshaped(x, [1]), 0), [])
    return onnx.__getattr__(name)(x, axis=dim, body=lambda y: [core(y, dim)])  # type: ignore[no-any-return]


@aten("softmax.int", "special_softmax.default")
def softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Return exponentials over their sum along an axis."""
    return _softmax_node("Softmax", L.softmax, x if dtype is None else cast(x, core_dtype(dtype)), dim)


@aten("log_softmax.int", "special_log_softmax.default")
def _log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _softmax_node("LogSoftmax", L.log_softmax, x if dtype is None else cast(x, core_dtype(dtype)), dim)


@aten("_softmax.default")
def _inner_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return softmax(cast(x, t.FLOAT) if half_to_float else x, dim)


@aten("_log_softmax.default")
def _inner_log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return _log_softmax(cast(x, t.FLOAT) if half_to_float else x, dim)


@aten("_safe_softmax.default")
def safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Return the softmax; zeros for rows that hold -inf alone."""
    x = x if dtype is None else cast(x, core_dtype(dtype))
    masked = onnx.ReduceMax(x, L.constant([dim]), keepdims=1, body=lambda y, _: [L.reduce_max(y, [dim], True)])
    return where_(pointwise("Equal", L.equal, masked, like(x, -math.inf)), like(x, 0), softmax(x, dim))


def _inactive(name: str) -> None:
    def function(x: Tensor, p: Any = 0.5, train: Any = False, inplace: bool = False) -> Tensor:
        if train is True and p != 0:
            raise UnsupportedError(f"{name} in training mode draws random numbers.")
        return x

    aten(f"{name}.default")(function)


for _name in DROPOUTS:
    _inactive(_name)


@aten("native_dropout.default")
def _native_dropout(x: Tensor, p: float, train: Any) -> tuple[Tensor, Tensor]:
    if train and p != 0:
        raise UnsupportedError("dropout in training mode draws random numbers.")
    return x, L.full(x.shape, True, t.BOOL)


@aten("softsign.default")
def _softsign(x: Tensor) -> Tensor:
    return div_(x, add_(like(x, 1), pointwise("Abs", L.abs_, x)))
