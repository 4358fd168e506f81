"""Convolutions absorb their neighbours: biases, scales, batch normalization, padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    SILENT,
    AnyOf,
    C,
    Expr,
    Guard,
    Match,
    Maybe,
    Op,
    Operand,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import AveragePool, BatchNormalization, Conv, ConvInteger, MaxPool, Pad
from sardonyx.rewrite.rules.ranges import value_range
from sardonyx.rewrite.rules.signatures import apply_along, axis_from_front
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.weight_dependencies import derive, query

CONVOLUTIONS = ("Conv", "ConvTranspose")
Convolution = AnyOf(*CONVOLUTIONS)


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Return the attributes for a new node."""
    return dict(node.attributes)


def output_channels(node: ir.Node) -> int | None:
    """Return the number of output channels, or None unless the weight's shape is known."""
    shape = facts.static_shape(node.inputs[1])
    if shape is None or len(shape) < 3:
        return None
    group = node.attributes["group"].as_int() if "group" in node.attributes else 1
    return shape[0] if node.op_type == "Conv" else shape[1] * group


def per_channel(value: ir.Value | None, channels: int, rank: int) -> np.ndarray | None:
    """Return a constant of one number a channel (or one for all) of NC…, as shape [channels], or None."""
    shape = facts.static_shape(value)
    if shape is None or not facts.is_constant(value) or len(shape) > rank:
        return None
    full = (1,) * (rank - len(shape)) + shape
    if any(size != 1 for axis, size in enumerate(full) if axis != 1) or full[1] not in (1, channels):
        return None
    array = facts.constant(value)
    assert array is not None
    return np.broadcast_to(array.reshape(-1), (channels,))


def scaled_weight(node: ir.Node, scale: np.ndarray) -> np.ndarray | None:
    """Return the weight with each output channel multiplied by ``scale`` (shape [channels])."""
    weight = facts.constant(node.inputs[1])
    if weight is None:
        return None
    group = node.attributes["group"].as_int() if "group" in node.attributes else 1
    return _scaled(weight, scale, None if node.op_type == "Conv" else group)


def _scaled(weight: np.ndarray, scale: np.ndarray, transposed: int | None) -> np.ndarray:
    """As :func:`scaled_weight`; ``transposed`` are the groups of a ConvTranspose."""
    if transposed is None:
        return _product(weight, scale.reshape((-1,) + (1,) * (weight.ndim - 1)))
    # ConvTranspose: [in, out / group, …]; input channel i belongs to group i // (in / group).
    factor = np.repeat(scale.reshape(transposed, weight.shape[1]), weight.shape[0] // transposed, axis=0)
    return _product(weight, factor.reshape(weight.shape[:2] + (1,) * (weight.ndim - 2)))


def _product(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Multiply in the weight's type; float16 in float64, by buffered pieces instead of a wide copy."""
    factor = factor.astype(weight.dtype if weight.dtype.itemsize > 2 else np.float64)
    product = np.empty(weight.shape, weight.dtype)
    np.multiply(weight, factor, out=product, casting="unsafe")
    return product


def rebuild_convolution(node: ir.Node, weight: Operand, bias: Operand) -> Expr:
    """Return the same convolution with another weight and bias."""
    return Op((node.op_type,))(node.inputs[0], weight, bias, **attributes_of(node))


def folding_objection(node: ir.Node) -> Refusal | None:
    """Return why the weight of a convolution cannot absorb its only reader; None if it can."""
    if not facts.used_once(node.outputs[0]):
        return Refusal("the convolution has other readers")
    if not facts.is_constant(node.inputs[1]):
        return Refusal("the convolution's weight is not constant")
    if len(node.inputs) > 2 and node.inputs[2] is not None and not facts.is_constant(node.inputs[2]):
        return Refusal("the convolution's bias is not constant")
    if facts.refers_to_function_attribute(node):
        return Refusal("the convolution's attributes are the function's")
    return None


def is_foldable(m: Match) -> Refusal | None:
    """Guard: nothing else reads the matched convolution, and its weight and bias are constant."""
    return folding_objection(m.node(*CONVOLUTIONS))


def bias_of(node: ir.Node) -> np.ndarray | None:
    """Return the constant bias, or None."""
    return facts.constant(node.inputs[2]) if len(node.inputs) > 2 else None


@rule("fuse_bn_into_conv", exactness=REASSOCIATES)
def batch_norm(x: V, w: V, b: Maybe) -> Rewrite:
    """BatchNormalization(Conv(x, w, b)) is Conv(x, w * s, b'), with s = scale / sqrt(variance + epsilon)."""

    def folded(m: Match) -> Result:
        s, conv = m.site, m.node(*CONVOLUTIONS)
        norm = norm_parameters(s, output_channels(conv))
        if not isinstance(norm, tuple):
            return norm
        weight, bias = facts.constant_tensor(m.w), facts.constant_tensor(m.b)
        if weight is None:
            return None
        group = conv.attributes["group"].as_int() if "group" in conv.attributes else 1
        fold = functools.partial(_normed, None if conv.op_type == "Conv" else group, s.attr("epsilon"))
        return rebuild_convolution(conv, *derive(fold, weight, *norm, *([] if bias is None else [bias])))

    return BatchNormalization(Convolution(x, w, b), ...) >> folded | where(is_foldable)


def _normed(
    transposed: int | None, epsilon: float, weight: np.ndarray, *parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight and bias of a convolution merged with the normalization after it.

    Args:
        transposed: Groups of a ConvTranspose; None for a Conv.
        epsilon: The normalization's epsilon.
        weight: The convolution's weight.
        *parameters: The normalization's scale, shift, mean and variance, and the convolution's bias if present.
    """
    scale, shift = scale_and_shift(epsilon, *parameters[:4])
    total = shift
    for bias in parameters[4:]:
        total = bias.astype(np.float64) * scale + shift
    return _scaled(weight, scale, transposed), total.astype(weight.dtype)


def scale_and_shift(
    epsilon: float, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return BatchNormalization in inference as ``x * scale + shift``, both float64 of shape [channels]."""
    with np.errstate(all="ignore"):
        scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        return scale, beta.astype(np.float64) - mean.astype(np.float64) * scale


def norm_factors(s: Site, channels: int | None) -> tuple[np.ndarray, np.ndarray] | Refusal:
    """Return BatchNormalization in inference as ``x * scale + shift``, both float64 of shape [channels]."""
    norm = norm_parameters(s, channels)
    if not isinstance(norm, tuple):
        return norm
    return scale_and_shift(s.attr("epsilon"), *[tensor.numpy() for tensor in norm])


def norm_parameters(s: Site, channels: int | None) -> tuple[ir.TensorProtocol, ...] | Refusal:
    """Return scale, shift, mean, variance of a BatchNormalization in inference, each [channels]."""
    if s.attr("training_mode", 0) or (s.opset < 7 and not s.attr("is_test", 0)):
        return Refusal("the normalization is in training mode")
    if not s.unused_outputs_from(1):
        return Refusal("its running statistics are read")
    if s.opset < 9 and not s.attr("spatial", 1):
        return Refusal("it normalizes every element by itself (spatial=0)")
    tensors = [facts.constant_tensor(s.input(i)) for i in range(1, 5)]
    parts = tuple([part for part in tensors if part is not None and tuple(part.shape) == (channels,)])
    if len(parts) < len(tensors):
        return Refusal("its parameters are not constants of one number a channel")
    if not query(functools.partial(_has_finite_scale, s.attr("epsilon")), *parts):
        return Refusal("its scale is not finite")
    return parts


def _has_finite_scale(epsilon: float, *parts: np.ndarray) -> bool:
    return bool(np.isfinite(scale_and_shift(epsilon, *parts)[0]).all())


def _channel_numbers(m: Match) -> np.ndarray | None:
    """Return c as one number a channel of the matched convolution, or None."""
    conv = m.node(*CONVOLUTIONS)
    channels, weight_shape = output_channels(conv), facts.static_shape(conv.inputs[1])
    return None if channels is None or weight_shape is None else per_channel(m.c, channels, len(weight_shape))


def _is_one_number_a_channel(what: str) -> Guard:
    """Guard: c is a constant of one number a channel, and the convolution can absorb it."""

    def objection(m: Match) -> Refusal | None:
        conv = m.node(*CONVOLUTIONS)
        refusal = folding_objection(conv)
        if refusal is not None:
            return refusal if facts.is_constant(m.c) else SILENT
        if output_channels(conv) is None:
            return Refusal("the convolution's weight has no known shape")
        return Refusal(f"{what} is not one number a channel") if _channel_numbers(m) is None else None

    return objection


@rule("fuse_add_bias_into_conv", exactness=REASSOCIATES, opset=7)
def bias(x: V, w: V, b: Maybe, c: V) -> Rewrite:
    """Conv(x, w, b) + c is Conv(x, w, b + c), for one number c a channel; Conv(x, w, b) - c likewise."""

    def with_bias(m: Match) -> Result:
        conv, term = m.node(*CONVOLUTIONS), _channel_numbers(m)
        assert term is not None
        if m.root.op_type == "Sub":
            term = -term
        old = bias_of(conv)
        total = term if old is None else (old.astype(np.float64) + term).astype(old.dtype)
        return rebuild_convolution(conv, m.w, np.ascontiguousarray(total))

    return AnyOf("Add", "Sub", "Sum")(Convolution(x, w, b), c) >> with_bias | where(
        _is_one_number_a_channel("what is added")
    )


def _has_free_bias(m: Match) -> Refusal | None:
    """Guard: the convolution has no bias and no other readers, and its number of channels is known."""
    conv = m.node(*CONVOLUTIONS)
    if facts.refers_to_function_attribute(conv):
        return SILENT
    if m.b is not None:
        return Refusal("the convolution has a bias")
    if not facts.used_once(conv.outputs[0]):
        return Refusal("the convolution has other readers")
    return Refusal("the number of channels is not known") if _channels(conv) is None else None


def _channels(conv: ir.Node) -> int | None:
    return output_channels(conv) or facts.dim_at(conv.outputs[0], 1)


@rule("fuse_add_bias_into_conv", exactness=REASSOCIATES, opset=7)
def bias_beside_open_weight(x: V, w: V, b: Maybe, c: V) -> Rewrite:
    """Fuse Conv(x, w) + c into Conv(x, w, c), for one constant number c a channel and a computed weight."""

    def with_bias(m: Match) -> Result:
        conv = m.node(*CONVOLUTIONS)
        channels, rank = _channels(conv), facts.rank(conv.outputs[0])
        if not facts.is_constant(m.c) or facts.is_constant(m.w) or rank is None or channels is None:
            return None
        row = per_channel(m.c, channels, rank)
        if row is None:
            return Refusal("what is added is not one number a channel")
        return rebuild_convolution(conv, m.w, row.copy())

    return Convolution(x, w, b) + c >> with_bias | where(_has_free_bias)


@rule("fuse_add_bias_into_conv", exactness=REASSOCIATES, opset=7, default=False)
def computed_bias(x: V, w: V, b: Maybe, c: V) -> Rewrite:
    """Conv(x, w) + c is Conv(x, w, Squeeze(c)), for one computed number c a channel."""

    def with_bias(m: Match) -> Result:
        conv = m.node(*CONVOLUTIONS)
        shape, rank = facts.static_shape(m.c), facts.rank(conv.outputs[0])
        if shape is None or rank is None or len(shape) > rank:
            return Refusal("the shape of what is added is not known")
        full = (1,) * (rank - len(shape)) + shape
        if facts.is_constant(m.c) or full != (1, _channels(conv)) + (1,) * (rank - 2) or len(shape) < rank - 1:
            return Refusal("what is added is not one computed number a channel")
        channel = len(shape) - rank + 1
        axes = [axis for axis in range(len(shape)) if axis != channel]
        squeezed = apply_along(m.site, "Squeeze", m.c, axes)
        return Op((conv.op_type,))(m.x, m.w, squeezed, **attributes_of(conv))

    return Convolution(x, w, b) + c >> with_bias | where(_has_free_bias)


@rule("fuse_mul_into_conv", exactness=REASSOCIATES, opset=7)
def scale_after(x: V, w: V, b: Maybe, c: V) -> Rewrite:
    """Conv(x, w, b) * c is Conv(x, w * c, b * c), for one number c a channel; Conv(x, w, b) / c likewise."""

    def scaled(m: Match) -> Result:
        conv, factor = m.node(*CONVOLUTIONS), _channel_numbers(m)
        assert factor is not None
        wide = factor.astype(np.float64)
        if m.root.op_type == "Div":
            with np.errstate(divide="ignore"):
                wide = 1.0 / wide
        if not np.isfinite(wide).all():
            return Refusal("the factor is not finite")
        weight, old = scaled_weight(conv, wide), bias_of(conv)
        assert weight is not None
        return rebuild_convolution(
            conv, weight, None if old is None else (old.astype(np.float64) * wide).astype(old.dtype)
        )

    return AnyOf("Mul", "Div")(Convolution(x, w, b), c) >> scaled | where(_is_one_number_a_channel("the factor"))


@rule("fuse_preceding_mul_into_conv", exactness=REASSOCIATES, opset=7)
def scale_before(x: V, c: V, w: C, b: Maybe) -> Rewrite:
    """Conv(x * c, w, b) is Conv(x, w * c, b), for one number c a channel."""

    def scaled(m: Match) -> Result:
        s, weight_shape = m.site, facts.static_shape(m.w)
        if weight_shape is None or facts.refers_to_function_attribute(s.node) or facts.rank(m.x) != len(weight_shape):
            return None
        group = s.attr("group", 1)
        channels = weight_shape[1] * group
        factor = per_channel(m.c, channels, len(weight_shape))
        if factor is None or not np.isfinite(factor).all():
            return None
        if facts.dim_at(m.x, 1) != channels and facts.scalar(m.c) is None:
            return Refusal("the factor may broadcast the channels")
        weight = facts.constant(m.w)
        assert weight is not None
        product = weight.astype(np.float64) * _along_inputs(factor, weight, group)
        return Op(("Conv",))(m.x, product.astype(weight.dtype), m.b, **attributes_of(s.node))

    return Conv(x * c, w, b) >> scaled | where(guard(lambda m: unshared(m) is None, ""))


def _along_inputs(numbers: np.ndarray, weight: np.ndarray, group: int) -> np.ndarray:
    """Return one number an input channel as float64 factors of a Conv's weight: [out, in / group, 1, …]."""
    # Output channel o reads input channels of group o // (out / group).
    per_group = numbers.reshape(group, weight.shape[1]).astype(np.float64)
    return np.repeat(per_group, weight.shape[0] // group, axis=0).reshape(weight.shape[:2] + (1,) * (weight.ndim - 2))


@rule("fuse_preceding_bn_into_conv", exactness=REASSOCIATES)
def batch_norm_before(x: V, w: V, b: Maybe) -> Rewrite:
    """Fuse Conv(BatchNormalization(x), w, b) into Conv(x, w * s, b'), s = scale / √(variance + epsilon)."""

    def folded(m: Match) -> Result:
        s, norm, weight_shape = m.site, m.node("BatchNormalization"), facts.static_shape(m.w)
        if weight_shape is None or facts.refers_to_function_attribute(s.node):
            return None
        if not facts.used_once(norm.outputs[0]):
            return Refusal("the normalization has other readers")
        if not facts.is_constant(m.w) or (m.b is not None and not facts.is_constant(m.b)):
            return Refusal("the convolution's weight or bias is not constant")
        group = s.attr("group", 1)
        factors = norm_factors(Site(s.workspace, norm), weight_shape[1] * group)
        if not isinstance(factors, tuple):
            return factors
        scale, shift = factors
        if shift.any() and (any(s.attr("pads") or ()) or s.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")):
            return Refusal("padding with zeros comes after the normalization")
        weight = facts.constant(m.w)
        assert weight is not None
        wide = weight.astype(np.float64)
        total = (wide * _along_inputs(shift, weight, group)).sum(axis=tuple(range(1, weight.ndim)))
        old = facts.constant(m.b)
        if old is not None:
            total = total + old.astype(np.float64)
        scaled = (wide * _along_inputs(scale, weight, group)).astype(weight.dtype)
        return Op(("Conv",))(m.x, scaled, total.astype(weight.dtype), **attributes_of(s.node))

    return Conv(BatchNormalization(x, ...), w, b) >> folded


@rule("fuse_bn_into_gemm", exactness=REASSOCIATES)
def batch_norm_after_gemm(x: V, w: V, b: Maybe) -> Rewrite:
    """Fuse BatchNormalization(x @ w + b) into x @ (w * s) + b', with s = scale / √(variance + epsilon)."""

    def folded(m: Match) -> Result:
        s, gemm = m.site, m.node("Gemm", "MatMul")
        if any(facts.rank(value) != 2 for value in (m.x, m.w)):
            return None
        if not facts.used_once(gemm.outputs[0]) or not facts.is_constant(m.w):
            return Refusal("the product has other readers or no constant weight")
        if gemm.op_type == "MatMul" and s.opset < 7:
            return Refusal("Gemm broadcasts no bias before opset 7")
        if m.b is not None and not facts.is_constant(m.b):
            return Refusal("the Gemm's bias is not constant")
        if facts.refers_to_function_attribute(gemm):
            return None
        weight = facts.constant(m.w)
        assert weight is not None
        transposed = bool(s.attr("transB", 0, node=gemm))
        factors = norm_factors(s, weight.shape[0 if transposed else 1])
        if not isinstance(factors, tuple):
            return factors
        scale, shift = factors
        beta = s.attr("beta", 1.0, node=gemm)
        scaled = weight.astype(np.float64) * (scale[:, None] if transposed else scale[None, :])
        attributes = attributes_of(gemm)
        if m.b is not None and beta != 0:
            old = facts.constant(m.b)
            assert old is not None
            total = old.astype(np.float64) * scale + shift / beta
        else:
            total = shift
            attributes.pop("beta", None)
        return Op(("Gemm",))(m.x, scaled.astype(weight.dtype), total.astype(weight.dtype), **attributes)

    return BatchNormalization(AnyOf("Gemm", "MatMul")(x, w, b), ...) >> folded


def pad_amounts(s: Site, pad: ir.Node, most: float | None = None, number: float = 0.0) -> tuple[int, ...] | Refusal:
    """Return a Pad node's amounts (begins, then ends) if they are known and the padding is one number.

    Args:
        s: The site of the rule.
        pad: The node.
        most: Accept any number up to this one instead of ``number``.
        number: The number.
    """
    if facts.attribute(pad, "mode", s.opset, "constant") not in ("constant", b"constant"):
        return Refusal("it does not pad with a constant")
    if s.opset < 11:
        amounts = facts.attribute(pad, "pads", s.opset) or facts.attribute(pad, "paddings", s.opset)
        value = facts.attribute(pad, "value", s.opset, 0.0)
    else:
        amounts = facts.constant_ints(pad.inputs[1])
        constant = pad.inputs[2] if len(pad.inputs) > 2 else None
        value = 0.0 if constant is None else facts.scalar(constant)
        axes = pad.inputs[3] if len(pad.inputs) > 3 else None
        if axes is not None:
            amounts = _spread(amounts, facts.constant_ints(axes), facts.rank(pad.inputs[0]))
    if amounts is None:
        return Refusal("the amounts are not known")
    if most is not None and (value is None or not value <= most):
        return Refusal("it pads with a number that may be greater than what it pads")
    if most is None and (value is None or value != number):
        return Refusal("it pads with another number than zero" if number == 0 else "it pads with another number")
    return tuple(int(a) for a in amounts)


def _spread(amounts: Sequence[int] | None, axes: Sequence[int] | None, rank: int | None) -> tuple[int, ...] | None:
    if amounts is None or axes is None or rank is None:
        return None
    full = [0] * (2 * rank)
    for i, written in enumerate(axes):
        if (axis := axis_from_front(written, rank)) is None:
            return None
        full[axis] = amounts[i]
        full[axis + rank] = amounts[i + len(axes)]
    return tuple(full)


def _total_pads(s: Site, operators: str, most: float | None = None, number: float = 0.0) -> list[int] | Refusal | None:
    """Return the pads of a window operator together with those of the Pad before the operator."""
    pad = s.producer(0, "Pad")
    if pad is None:
        return None
    amounts = pad_amounts(s, pad, most, number)
    if isinstance(amounts, Refusal):
        return amounts
    if s.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return Refusal(f"the {operators} chooses its padding itself (auto_pad)")
    rank = len(amounts) // 2
    begins, ends = amounts[:rank], amounts[rank:]
    if any(begins[:2]) or any(ends[:2]):
        return Refusal("it pads batch or channels")
    if min(amounts, default=0) < 0:
        return Refusal("it crops")
    old = s.attr("pads") or [0] * (2 * (rank - 2))
    return [o + a for o, a in zip(old, [*begins[2:], *ends[2:]], strict=True)]


@rule("fuse_pad_into_conv", exactness=REASSOCIATES)
def pad_before_conv(x: V) -> Rewrite:
    """Conv(Pad(x), …) is Conv(x, …, pads), for padding with zeros."""

    def padded(m: Match) -> Result:
        pads = _total_pads(m.site, "convolution")
        if not isinstance(pads, list) or facts.refers_to_function_attribute(m.root):
            return pads if isinstance(pads, Refusal) else None
        attributes = {k: v for k, v in attributes_of(m.root).items() if k not in ("pads", "auto_pad")}
        return Op(("Conv",))(m.x, *m.root.inputs[1:], pads=pads, **attributes)

    return Conv(Pad(x, ...), ...) >> padded


@rule("fuse_pad_into_conv", exactness=EXACT, opset=10)
def pad_before_integer_conv(x: V) -> Rewrite:
    """ConvInteger(Pad(x, z), w, z) is ConvInteger(x, w, z, pads), for padding with the zero point of x."""

    def padded(m: Match) -> Result:
        zero = m.root.inputs[2] if len(m.root.inputs) > 2 else None
        number = 0 if zero is None else facts.scalar(zero)
        if number is None:
            return Refusal("the zero point is not known")
        pads = _total_pads(m.site, "convolution", number=float(number))
        if not isinstance(pads, list) or facts.refers_to_function_attribute(m.root):
            return pads if isinstance(pads, Refusal) else None
        attributes = {k: v for k, v in attributes_of(m.root).items() if k not in ("pads", "auto_pad")}
        return ConvInteger(m.x, *m.root.inputs[1:], pads=pads, **attributes)

    return ConvInteger(Pad(x, ...), ...) >> padded


@rule("fuse_pad_into_pool", exactness=REASSOCIATES, opset=7)
def pad_before_average(x: V) -> Rewrite:
    """Fuse AveragePool(Pad(x)) into AveragePool(x, pads, count_include_pad), for padding with zeros."""

    def padded(m: Match) -> Result:
        s = m.site
        pads = _total_pads(s, "pool")
        if not isinstance(pads, list) or facts.refers_to_function_attribute(s.node):
            return pads if isinstance(pads, Refusal) else None
        counts = bool(s.attr("count_include_pad", 0))
        old = s.attr("pads") or [0] * len(pads)
        if any(old) and not counts:
            return Refusal("the pool does not count its own padding")
        if s.attr("ceil_mode", 0):
            return Refusal("windows that reach over the end (ceil_mode) count padding in another way")
        if not _every_window_meets_the_input(s, pads):
            return Refusal("the padding is as large as the window")
        replaced = ("pads", "auto_pad", "count_include_pad")
        attributes = {k: v for k, v in attributes_of(s.node).items() if k not in replaced}
        return Op(("AveragePool",))(m.x, pads=pads, count_include_pad=1, **attributes)

    return AveragePool(Pad(x, ...)) >> padded


@rule("fuse_pad_into_pool", exactness=REASSOCIATES)
def pad_before_maximum(x: V) -> Rewrite:
    """MaxPool(Pad(x, v)) is MaxPool(x, pads), for a number v that cannot be the maximum.

    ONNX Runtime's MaxPool keeps or drops a NaN by its index in the window, which the padding changes.
    """

    def padded(m: Match) -> Result:
        s = m.site
        if facts.refers_to_function_attribute(s.node):
            return None
        low, _ = value_range(s, m.x)
        pads = _total_pads(s, "pool", most=-math.inf if low is None else low)
        if not isinstance(pads, list):
            return pads
        if not s.unused_outputs_from(1):
            return Refusal("the indices of the maxima are read, which count the padding")
        if s.attr("ceil_mode", 0) or any(step != 1 for step in s.attr("dilations") or ()):
            return Refusal("windows with holes (dilations), or over the end (ceil_mode), may meet padding alone")
        if not _every_window_meets_the_input(s, pads):
            return Refusal("the padding is as large as the window")
        attributes = {k: v for k, v in attributes_of(s.node).items() if k not in ("pads", "auto_pad")}
        return Op(("MaxPool",))(m.x, pads=pads, **attributes)

    return MaxPool(Pad(x, ...)) >> padded


def _every_window_meets_the_input(s: Site, pads: Sequence[int]) -> bool:
    kernel = s.attr("kernel_shape")
    return all(p < k for p, k in zip(pads, [*kernel, *kernel], strict=True))
