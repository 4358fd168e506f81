"""Products and convolutions of quantized tensors, and operators on block-quantized weights.

Source: ONNX Runtime's contrib operators, *QLinearConv*, *QGemm*, *MatMulIntegerToFloat*, *DynamicQuantizeMatMul*,
*DynamicQuantizeLSTM*, *MatMulNBits*, *MatMulBnb4*, *GatherBlockQuantized*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import ceil_div, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import ShapeError, UnsupportedError
from sardonyx.ops.definitions import convolution, products, quantization, recurrent
from sardonyx.ops.definitions.microsoft.quantization import apply_channels_first
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"


@operator("QLinearConv", since=1, domain=DOMAIN)
def quantized_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    def convolved(images: Tensor) -> Tensor:
        return convolution.quantized_conv(
            images, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b, auto_pad=auto_pad,
            dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides,
        )  # fmt: skip

    return apply_channels_first(convolved, x, channels_last)


@operator("QGemm", since=1, domain=DOMAIN)
def quantized_gemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """Quantize the result if it has a scale, else return floats; ``c`` is in units of the products."""
    left = products.subtract_zero_point(a, a_zero_point)
    right = products.subtract_zero_point(
        b, L.unsqueeze(b_zero_point, [-1]) if transB and b_zero_point.rank else b_zero_point
    )
    total = products.gemm(left, right, c, transA=transA, transB=transB)
    scale = a_scale * b_scale * alpha
    if y_scale is None:
        return L.cast(total, t.FLOAT) * scale
    zero_point = L.zero(a.dtype) if y_zero_point is None else y_zero_point
    return quantization.quantize_units(L.cast(total, t.FLOAT) * (scale / y_scale), zero_point, zero_point.dtype)


@operator("MatMulIntegerToFloat", since=1, domain=DOMAIN)
def integer_matmul_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    left = products.subtract_zero_point(a, a_zero_point)
    right = products.subtract_zero_point(b, None if b_zero_point is None else _over_rows(b, b_zero_point))
    if a_scale.rank == 0 or a_scale.shape == (1,):
        scale = L.cast(a_scale, t.FLOAT) * L.cast(_over_rows(b, b_scale), t.FLOAT)
        y = L.cast(L.matmul(left, right), t.FLOAT) * scale
    else:
        real = L.cast(left, t.FLOAT) * L.cast(a_scale, t.FLOAT)
        y = L.matmul(real, L.cast(right, t.FLOAT)) * L.cast(_over_rows(b, b_scale), t.FLOAT)
    y = L.cast(y, a_scale.dtype)
    return y if bias is None else y + bias


def _over_rows(b: Tensor, parameter: Tensor) -> Tensor:
    """Reshape scales or zero points of columns, [..., columns], to broadcast over matrices."""
    return L.unsqueeze(parameter, [-2]) if 1 < parameter.rank < b.rank else parameter


@operator("DynamicQuantizeMatMul", since=1, domain=DOMAIN)
def dynamically_quantized_matmul(
    a: Tensor, b: Tensor, b_scale: Tensor, b_zero_point: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Quantize the floating-point operand to its own range, then multiply."""
    units, a_scale, a_zero_point = quantization.dynamic_quantize_linear(a)
    return integer_matmul_to_float(units, b, a_scale, b_scale, a_zero_point, b_zero_point, bias)


class _QuantizedLayer(recurrent.Layer):
    """A recurrent layer with integer weights; the other factors are quantized at every step."""

    w_quantization: tuple[Tensor, Tensor]
    r_quantization: tuple[Tensor, Tensor]

    def input_product(self, x: Tensor, w: Tensor, direction: int) -> Tensor:
        scale, zero_point = (L.entry(parameter, direction) for parameter in self.w_quantization)
        return dynamically_quantized_matmul(x, L.swap_axes(w, 0, 1), scale, zero_point)

    def hidden_product(self, h: Tensor, r: Tensor, direction: int) -> Tensor:
        scale, zero_point = (L.entry(parameter, direction) for parameter in self.r_quantization)
        return dynamically_quantized_matmul(h, L.swap_axes(r, 0, 1), scale, zero_point)


@operator("DynamicQuantizeLSTM", since=1, domain=DOMAIN)
def dynamically_quantized_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero_point: Tensor,
    r_scale: Tensor,
    r_zero_point: Tensor,
    *,
    activations: Sequence[str] = ("Sigmoid", "Tanh", "Tanh") * 2,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """Compute an LSTM; ``W`` and ``R`` are transposed: [directions, input or hidden, 4 * hidden]."""
    layer = _QuantizedLayer(
        x, L.swap_axes(w, 1, 2), L.swap_axes(r, 1, 2), b, sequence_lens, [initial_h, initial_c], gates=4,
        direction=direction, layout=0, hidden_size=hidden_size,
    )  # fmt: skip
    layer.w_quantization, layer.r_quantization = (w_scale, w_zero_point), (r_scale, r_zero_point)
    count = 3 * len(layer.backward)
    functions = recurrent.activation_functions(activations, activation_alpha, activation_beta, clip, count)
    return recurrent.run_lstm(layer, functions, p, input_forget)


def unpack_bits(x: Tensor, bits: int) -> Tensor:
    """Unpack bytes [..., n] to numbers of few bits, [..., n * 8 // bits], the lowest bits first.

    Raises:
        UnsupportedError: The width is not 2, 4 or 8 bits.
    """
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"numbers of {bits} bits are not supported.", remedy="Use 2, 4 or 8 bits.")
    if bits == 8:
        return x
    if not x.rank:
        raise ShapeError(f"expected at least 1 axis for packed numbers, got {x.type}.")
    shifts = L.constant(list(range(0, 8, bits)), t.UINT8)
    parts = L.shift_right(L.unsqueeze(x, [-1]), shifts) & L.constant((1 << bits) - 1, t.UINT8)
    return L.reshape(parts, (*x.shape[:-1], x.shape[-1] * (8 // bits)))


@operator("MatMulNBits", since=1, domain=DOMAIN)
def matmul_n_bits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """Multiply by weights [N, K] that are quantized in blocks along K.

    ``g_idx`` is the block of each row of K; ``accuracy_level``, which permits other engines to round, has no effect.
    """
    if weight_prepacked:
        raise UnsupportedError("`weight_prepacked` weights, in the layout of one device, are not supported.")
    blocks = ceil_div(K, block_size)
    units = L.slice_(L.reshape(unpack_bits(b, bits), (N, blocks * block_size)), 1, 0, K)
    block = L.arange(K) / block_size if g_idx is None else g_idx
    scale = L.take(L.widened(L.reshape(scales, (N, blocks))), block, 1)
    if zero_points is None:
        middle: L.Operand = 1 << (bits - 1)
    else:
        packed = zero_points.dtype == t.UINT8
        rows = L.reshape(zero_points, (N, floor_div(L.product(zero_points.shape), N)))
        middle = L.take(L.cast(unpack_bits(rows, bits) if packed else rows, scale.dtype), block, 1)
    weights = (L.cast(units, scale.dtype) - middle) * scale
    y = L.cast(L.matmul(L.widened(a), L.swap_axes(weights, 0, 1)), a.dtype)
    return y if bias is None else y + bias


FP4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""Magnitudes by the low bits of a code; the high bit is the sign. Source: bitsandbytes, ``dDequantizeFP4Tree``."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Values by code. Source: Dettmers et al., QLoRA, 2023."""


@operator("MatMulBnb4", since=1, domain=DOMAIN)
def matmul_bnb4(
    a: Tensor,
    b: Tensor,
    absmax: Tensor,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Tensor:
    """Multiply by weights [N, K] of 4-bit floats (0: FP4, 1: NF4), with the largest magnitude of each run of elements.

    Raises:
        UnsupportedError: The weights are those of the transposed product of training, or have another type.
    """
    if not transB or quant_type not in (0, 1):
        raise UnsupportedError(f"`transB` {transB} with `quant_type` {quant_type} is not supported.")
    count = K * N
    shifts = L.constant([4, 0], t.UINT8)  # The first of two codes is in the high half.
    halves = L.shift_right(L.unsqueeze(L.reshape(b, (ceil_div(count, 2),)), [-1]), shifts) & L.constant(15, t.UINT8)
    codes = L.reshape(halves, (ceil_div(count, 2) * 2,))
    table = NF4 if quant_type else (*FP4, *(-value for value in FP4))
    units = L.take(L.constant(list(table), t.FLOAT), L.cast(L.slice_(codes, 0, 0, count), t.INT64), 0)
    scale = L.take(L.widened(L.reshape(absmax, (ceil_div(count, block_size),))), L.arange(count) / block_size, 0)
    weights = L.reshape(units * L.cast(scale, t.FLOAT), (N, K))
    return L.cast(L.matmul(L.widened(a), L.swap_axes(weights, 0, 1)), a.dtype)


@operator("GatherBlockQuantized", since=1, domain=DOMAIN)
def gather_block_quantized(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """Gather dequantized entries of a block-quantized table; 0 for indices out of range."""
    axis, by_block = L.normalized_axis(gather_axis, data.rank), L.normalized_axis(quantize_axis, data.rank)
    if data.dtype == t.UINT8:
        data, middle = unpack_bits(data, bits), 1 << (bits - 1)
        if zero_points is not None:
            zero_points = L.slice_(unpack_bits(zero_points, bits), -1, 0, scales.shape[-1])
    else:
        middle = 0
    if block_size:
        scales = L.of_size(scales, by_block, ceil_div(data.shape[by_block], block_size), "the scales of blocks")
    size = data.shape[axis]
    at = L.cast(indices, t.INT64)
    at = L.where(at < 0, at + L.number(size), at)
    inside = (at >= 0) & (at < L.number(size))
    at = L.where(inside, at, 0)

    def expand_parameter(parameter: Tensor) -> Tensor:
        block = at / block_size if axis == by_block and block_size else at
        entries = L.take(parameter, L.zeros_like(at) if parameter.shape[axis] == 1 else block, axis)
        if axis == by_block or not block_size:
            return entries
        along = by_block + indices.rank - 1 if by_block > axis else by_block
        return L.slice_(L.repeat(entries, along, block_size), along, 0, data.shape[by_block])

    units = L.cast(L.take(data, at, axis), t.FLOAT)
    units = units - (middle if zero_points is None else L.cast(expand_parameter(zero_points), t.FLOAT))
    entries = L.cast(units * L.cast(expand_parameter(scales), t.FLOAT), scales.dtype)
    return L.where(
        L.unsqueeze(inside, [a for a in range(entries.rank) if not axis <= a < axis + indices.rank]), entries, 0
    )
