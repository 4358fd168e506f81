"""Operators on 8-bit tensors with a scale and a zero point each: ONNX Runtime's *QLinear* operators.

Source: ONNX Runtime's contrib operators, *QuantizeLinear* to *QLinearSoftmax*, *NhwcMaxPool*. Each dequantizes to
float32, computes its operator, and rounds to even in units of the result's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions import activations, pooling, quantization
from sardonyx.ops.definitions.products import subtract_zero_point
from sardonyx.ops.registry import find, operator

DOMAIN = "com.microsoft"


@operator("QuantizeLinear", since=1, domain=DOMAIN)
def quantize_linear(x: Tensor, y_scale: Tensor, y_zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return quantization.quantize_linear(L.cast(x, t.FLOAT), L.cast(y_scale, t.FLOAT), y_zero_point, axis=axis)


@operator("DequantizeLinear", since=1, domain=DOMAIN)
def dequantize_linear(x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None = None, *, axis: int = 1) -> Tensor:
    return quantization.dequantize_linear(x, x_scale, x_zero_point, axis=axis)


def per_tensor(parameter: Tensor, what: str) -> Tensor:
    """Return a per-tensor scale or zero point as a scalar.

    Raises:
        ShapeError: The parameter has several elements.
    """
    if any(isinstance(size, int) and size != 1 for size in parameter.shape):
        raise ShapeError(f"expected {what} with one number for the whole tensor, got {parameter.type}.")
    return L.reshape(parameter, ())


def dequantize(x: Tensor, scale: Tensor, zero_point: Tensor | None) -> Tensor:
    """Dequantize with a per-tensor scale and zero point."""
    zero_point = None if zero_point is None else per_tensor(zero_point, "a zero point")
    return quantization.dequantize_linear(x, per_tensor(scale, "a scale"), zero_point)


def _quantize(x: Tensor, scale: Tensor, zero_point: Tensor | None, like: Tensor) -> Tensor:
    """Quantize to the element type of ``like``."""
    zero_point = L.zero(like.dtype) if zero_point is None else per_tensor(zero_point, "a zero point")
    return quantization.quantize_units(x / per_tensor(scale, "a scale"), zero_point, like.dtype)


def _compute_dequantized(
    compute: Callable[[Tensor], Tensor],
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None,
) -> Tensor:
    """Dequantize, compute, and quantize."""
    return _quantize(compute(dequantize(x, x_scale, x_zero_point)), y_scale, y_zero_point, x)


def _add_zero_point_and_round(units: Tensor, zero_point: Tensor | None, dtype: DType) -> Tensor:
    """Add the zero point, then round: an odd zero point rounds halves the other way than rounding first."""
    moved = units if zero_point is None else units + L.cast(per_tensor(zero_point, "a zero point"), t.FLOAT)
    return quantization.quantize_units(moved, None, dtype)


@operator("QLinearAdd", since=1, domain=DOMAIN)
def quantized_add(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    total = dequantize(a, a_scale, a_zero_point) + dequantize(b, b_scale, b_zero_point)
    return _add_zero_point_and_round(total / per_tensor(c_scale, "a scale"), c_zero_point, a.dtype)


@operator("QLinearMul", since=1, domain=DOMAIN)
def quantized_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None,
    c_scale: Tensor,
    c_zero_point: Tensor | None = None,
) -> Tensor:
    x, y = L.cast(subtract_zero_point(a, a_zero_point), t.FLOAT), L.cast(subtract_zero_point(b, b_zero_point), t.FLOAT)
    ratio = per_tensor(a_scale, "a scale") * per_tensor(b_scale, "a scale") / per_tensor(c_scale, "a scale")
    return _add_zero_point_and_round(x * y * ratio, c_zero_point, a.dtype)


@operator("QLinearSigmoid", since=1, domain=DOMAIN)
def quantized_sigmoid(
    x: Tensor, x_scale: Tensor, x_zero_point: Tensor | None, y_scale: Tensor, y_zero_point: Tensor | None = None
) -> Tensor:
    return _compute_dequantized(activations.sigmoid, x, x_scale, x_zero_point, y_scale, y_zero_point)


@operator("QLinearLeakyRelu", since=1, domain=DOMAIN)
def quantized_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    return _compute_dequantized(
        lambda real: activations.leaky_relu(real, alpha=alpha), x, x_scale, x_zero_point, y_scale, y_zero_point
    )


@operator("QLinearSoftmax", since=1, domain=DOMAIN)
def quantized_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    axis: int = -1,
    opset_: int,
) -> Tensor:
    """Compute the softmax of version ``opset`` of ``ai.onnx``: before 13, over all axes from ``axis`` on."""
    softmax = find("", "Softmax", opset_)
    if softmax is None:
        raise InvalidModelError(f"unknown version {opset_} of ai.onnx in `opset`.")
    return _compute_dequantized(
        lambda real: softmax.definition(real, axis=axis), x, x_scale, x_zero_point, y_scale, y_zero_point
    )


@operator("QLinearReduceMean", since=1, domain=DOMAIN)
def quantized_mean(
    data: Tensor,
    data_scale: Tensor,
    data_zero_point: Tensor | None,
    reduced_scale: Tensor,
    reduced_zero_point: Tensor | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Tensor:
    return _compute_dequantized(
        lambda real: L.reduce_mean(real, axes or None, bool(keepdims)),
        data, data_scale, data_zero_point, reduced_scale, reduced_zero_point,
    )  # fmt: skip


@operator("QLinearWhere", since=1, domain=DOMAIN)
def quantized_where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    chosen = L.where(condition, dequantize(x, x_scale, x_zero_point), dequantize(y, y_scale, y_zero_point))
    return _quantize(chosen, z_scale, z_zero_point, x)


@operator("QLinearConcat", since=1, domain=DOMAIN)
def quantized_concat(y_scale: Tensor, y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    """Concatenate tensors, each followed by its scale and its zero point."""
    if not inputs or len(inputs) % 3:
        raise InvalidModelError(f"expected three inputs for each tensor of QLinearConcat, got {len(inputs)} in all.")
    parts = [dequantize(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantize(L.concat(parts, axis), y_scale, y_zero_point, y_zero_point)


def channels_first(x: Tensor) -> Tensor:
    """Permute [batch, *spatial, channels] to [batch, channels, *spatial]."""
    return L.permute(x, [0, x.rank - 1, *range(1, x.rank - 1)])


def channels_last(x: Tensor) -> Tensor:
    """Permute [batch, channels, *spatial] to [batch, *spatial, channels]."""
    return L.permute(x, [0, *range(2, x.rank), 1])


def apply_channels_first(compute: Callable[[Tensor], Tensor], x: Tensor, last: int) -> Tensor:
    """Apply a channels-first function; with ``last`` the channels of ``x`` are last."""
    return channels_last(compute(channels_first(x))) if last else compute(x)


@operator("QLinearAveragePool", since=1, domain=DOMAIN)
def quantized_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    def pool(real: Tensor) -> Tensor:
        return pooling.average_pool(
            real, auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
            kernel_shape=kernel_shape, pads=pads, strides=strides,
        )  # fmt: skip

    mean = apply_channels_first(pool, dequantize(x, x_scale, x_zero_point), channels_last)
    return _add_zero_point_and_round(mean / per_tensor(y_scale, "a scale"), y_zero_point, x.dtype)


@operator("QLinearGlobalAveragePool", since=1, domain=DOMAIN)
def quantized_global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    *,
    channels_last: int = 0,
) -> Tensor:
    """Average with an integer sum."""
    spatial = range(1, x.rank - 1) if channels_last else range(2, x.rank)
    total = L.reduce_sum(subtract_zero_point(x, per_tensor(x_zero_point, "a zero point")), spatial, keepdims=True)
    count = L.number(L.product([x.shape[axis] for axis in spatial]), t.FLOAT)
    factor = per_tensor(x_scale, "a scale") / (per_tensor(y_scale, "a scale") * count)
    return quantization.quantize_units(
        L.cast(total, t.FLOAT) * factor, per_tensor(y_zero_point, "a zero point"), x.dtype
    )


@operator("NhwcMaxPool", since=1, domain=DOMAIN)
def channels_last_max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    y = pooling.max_pool(
        channels_first(x), auto_pad=auto_pad, ceil_mode=ceil_mode, dilations=dilations, kernel_shape=kernel_shape,
        pads=pads, strides=strides, outputs=1,
    )  # fmt: skip
    return channels_last(y[0])
