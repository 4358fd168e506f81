"""Fused operators of ONNX Runtime's optimizer: products, convolutions and biases with an activation.

Source: ONNX Runtime's contrib operators, *FusedConv*, *FusedMatMul*, *FusedGemm*, *BiasGelu*, *FastGelu*, *QuickGelu*,
*BiasSoftmax*, *BiasSplitGelu*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions import activations, convolution, products
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"


def apply_activation(x: Tensor, name: str, params: Sequence[float]) -> Tensor:
    """Apply an activation by its ONNX name, with its parameters in order.

    Raises:
        InvalidModelError: The activation is unknown.
    """
    first, second = [*params, None, None][:2]
    match name:
        case "":
            return x
        case "Relu":
            return activations.relu(x)
        case "Tanh":
            return L.tanh(x)
        case "Sigmoid":
            return activations.sigmoid(x)
        case "LeakyRelu":
            return activations.leaky_relu(x, alpha=0.01 if first is None else first)
        case "Clip":
            return L.clip(x, first, second)
        case "HardSigmoid":
            return activations.hard_sigmoid(
                x, alpha=0.2 if first is None else first, beta=0.5 if second is None else second
            )
        case "Elu":
            return activations.elu(x, alpha=1.0 if first is None else first)
    raise InvalidModelError(f"unknown fused activation {name!r}.")


@operator("FusedConv", since=1, domain=DOMAIN)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    y = convolution.conv(
        x, w, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    return apply_activation(y if z is None else y + z, activation, activation_params)


@operator("FusedMatMul", since=1, domain=DOMAIN)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    product = L.matmul(_transpose(a, transA, transBatchA), _transpose(b, transB, transBatchB))
    return product if alpha == 1 else product * alpha


def _transpose(x: Tensor, transposed: int, batched: int) -> Tensor:
    """Swap the last two axes of an operand; with ``batched`` first move axis 0 before the last axis."""
    if batched:
        x = L.permute(x, [*range(1, x.rank - 1), 0, x.rank - 1])
    return L.swap_axes(x, -1, -2) if transposed and x.rank > 1 else x


@operator("FusedGemm", since=1, domain=DOMAIN)
def fused_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    y = products.gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    parameters = [value for value in (activation_alpha, activation_beta, activation_gamma) if value is not None]
    return apply_activation(y, activation, parameters)


@operator("Gelu", since=1, domain=DOMAIN)
def gelu(x: Tensor) -> Tensor:
    return activations.gelu(x)


@operator("BiasGelu", since=1, domain=DOMAIN)
def bias_gelu(a: Tensor, b: Tensor) -> Tensor:
    return activations.gelu(a + b)


@operator("FastGelu", since=1, domain=DOMAIN)
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return activations.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("QuickGelu", since=1, domain=DOMAIN)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    return x * L.sigmoid(x * alpha)


@operator("BiasSoftmax", since=1, domain=DOMAIN)
def bias_softmax(data: Tensor, bias: Tensor, *, axis: int = 1, is_inner_broadcast: int) -> Tensor:
    """Return the softmax of ``data + bias`` over all axes from ``axis`` on.

    The bias lacks outer axes (``is_inner_broadcast``), or the axes before ``axis`` after the first.
    """
    at = L.normalized_axis(axis, data.rank)
    if not is_inner_broadcast and 0 < bias.rank < data.rank:
        bias = L.reshape(bias, (bias.shape[0], *(1,) * (data.rank - bias.rank), *bias.shape[1:]))
    summed = data + bias
    return L.reshape(L.softmax(L.flatten_to(summed, at), -1), summed.shape)


@operator("BiasSplitGelu", since=1, domain=DOMAIN)
def bias_split_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Return the first half of the last axis times the Gelu of the second."""
    summed = x + bias
    if not summed.rank:
        raise ShapeError(f"expected an axis of two halves, got {x.type}.")
    half = summed.shape[-1] // 2
    left, right = L.slice_(summed, -1, 0, half), L.slice_(summed, -1, half, 2 * half)
    return left * activations.gelu(right)
