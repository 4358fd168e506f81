"""Convolutions take in what stands around them: biases, scales, batch normalization, padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Op, Operand, Refusal, Result, rule
from sardonyx.rewrite.rules.ranges import value_range
from sardonyx.rewrite.rules.signatures import apply_along
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.weight_dependencies import asked, made

CONVOLUTIONS = ("Conv", "ConvTranspose")


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """The attributes as they stand, to be given to a new node."""
    return dict(node.attributes)


def output_channels(node: ir.Node) -> int | None:
    """Number of output channels, when the weight's shape is known."""
    shape = facts.static_shape(node.inputs[1])
    if shape is None or len(shape) < 3:
        return None
    group = node.attributes["group"].as_int() if "group" in node.attributes else 1
    return shape[0] if node.op_type == "Conv" else shape[1] * group


def per_channel(value: ir.Value | None, channels: int, rank: int) -> np.ndarray | None:
    """A constant that is one number a channel (or one for all) when broadcast against NC…, as shape [channels]."""
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
    """The weight with each output channel multiplied by ``scale`` (shape [channels])."""
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
    """The product in the weight's type; halves are multiplied in a wider one, by pieces and not as a wide copy."""
    factor = factor.astype(weight.dtype if weight.dtype.itemsize > 2 else np.float64)
    product = np.empty(weight.shape, weight.dtype)
    np.multiply(weight, factor, out=product, casting="unsafe")
    return product


def rebuilt(node: ir.Node, weight: Operand, bias: Operand) -> Expr:
    """The same convolution with another weight and bias."""
    return Op((node.op_type,))(node.inputs[0], weight, bias, **attributes_of(node))


def sole_convolution(s: Site, index: int) -> ir.Node | Refusal | None:
    """The convolution that produces input ``index`` and is read only here, with a constant weight."""
    node = s.producer(index, *CONVOLUTIONS)
    if node is None:
        return None
    if not facts.used_once(node.outputs[0]):
        return Refusal("the convolution has other readers")
    if not facts.is_constant(node.inputs[1]):
        return Refusal("the convolution's weight is not constant")
    if len(node.inputs) > 2 and node.inputs[2] is not None and not facts.is_constant(node.inputs[2]):
        return Refusal("the convolution's bias is not constant")
    if facts.refers_to_function_attribute(node):
        return Refusal("the convolution's attributes are the function's")
    return node


def bias_of(node: ir.Node) -> np.ndarray | None:
    """The constant bias, or None."""
    return facts.constant(node.inputs[2]) if len(node.inputs) > 2 else None


@rule("fuse_bn_into_conv", on="BatchNormalization", after=CONVOLUTIONS, exactness=REASSOCIATES)
def batch_norm(s: Site) -> Result:
    """BatchNormalization after a convolution becomes part of its weight and bias."""
    conv = sole_convolution(s, 0)
    if not isinstance(conv, ir.Node):
        return conv
    channels = output_channels(conv)
    norm = norm_parameters(s, channels)
    if not isinstance(norm, tuple):
        return norm
    weight, bias = (facts.constant_tensor(value) for value in (*conv.inputs, None)[1:3])
    if weight is None:
        return None
    group = conv.attributes["group"].as_int() if "group" in conv.attributes else 1
    fold = functools.partial(_normed, None if conv.op_type == "Conv" else group, s.attr("epsilon"))
    return rebuilt(conv, *made(fold, weight, *norm, *([] if bias is None else [bias])))


def _normed(
    transposed: int | None, epsilon: float, weight: np.ndarray, *parameters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The weight and the bias of a convolution and the normalization behind it.

    Args:
        transposed: Groups of a ConvTranspose; None of a Conv.
        epsilon: The normalization's.
        weight: The convolution's.
        *parameters: The normalization's scale, shift, mean and variance, and the convolution's bias if it has one.
    """
    scale, shift = scale_and_shift(epsilon, *parameters[:4])
    total = shift
    for bias in parameters[4:]:
        total = bias.astype(np.float64) * scale + shift
    return _scaled(weight, scale, transposed), total.astype(weight.dtype)


def scale_and_shift(
    epsilon: float, gamma: np.ndarray, beta: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """BatchNormalization in inference as ``x * scale + shift``, both float64 of shape [channels]."""
    with np.errstate(all="ignore"):
        scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        return scale, beta.astype(np.float64) - mean.astype(np.float64) * scale


def norm_factors(s: Site, channels: int | None) -> tuple[np.ndarray, np.ndarray] | Refusal:
    """BatchNormalization in inference as ``x * scale + shift``, both float64 of shape [channels]."""
    norm = norm_parameters(s, channels)
    if not isinstance(norm, tuple):
        return norm
    return scale_and_shift(s.attr("epsilon"), *[tensor.numpy() for tensor in norm])


def norm_parameters(s: Site, channels: int | None) -> tuple[ir.TensorProtocol, ...] | Refusal:
    """Scale, shift, mean and variance of a BatchNormalization in inference, all of shape [channels]."""
    if s.attr("training_mode", 0) or (s.opset < 7 and not s.attr("is_test", 0)):
        return Refusal("the normalization is in training mode")
    if not s.unused_outputs_from(1):
        return Refusal("its running statistics are read")
    if s.opset < 9 and not s.attr("spatial", 1):
        return Refusal("it normalizes every element by itself (spatial=0)")
    found = [facts.constant_tensor(s.input(i)) for i in range(1, 5)]
    parts = tuple([part for part in found if part is not None and tuple(part.shape) == (channels,)])
    if len(parts) < len(found):
        return Refusal("its parameters are not constants of one number a channel")
    if not asked(functools.partial(_has_finite_scale, s.attr("epsilon")), *parts):
        return Refusal("its scale is not finite")
    return parts


def _has_finite_scale(epsilon: float, *parts: np.ndarray) -> bool:
    return bool(np.isfinite(scale_and_shift(epsilon, *parts)[0]).all())


@rule("fuse_add_bias_into_conv", on=("Add", "Sub", "Sum"), after=CONVOLUTIONS, exactness=REASSOCIATES, opset=7)
def bias(s: Site) -> Result:
    """Adding one number a channel to a convolution is its bias."""
    if len(s.node.inputs) != 2:
        return None
    found = _with_numbers(s, (0, 1) if s.node.op_type != "Sub" else (0,), "what is added")
    if not isinstance(found, tuple):
        return found
    conv, added = found
    if s.node.op_type == "Sub":
        added = -added
    old = bias_of(conv)
    total = added if old is None else (old.astype(np.float64) + added).astype(old.dtype)
    weight = conv.inputs[1]
    assert weight is not None
    return rebuilt(conv, weight, np.ascontiguousarray(total))


def _with_numbers(s: Site, places: Sequence[int], what: str) -> tuple[ir.Node, np.ndarray] | Refusal | None:
    """A convolution that only this node reads, as one of the operands at ``places``, and the other operand.

    The other one has to be a constant of one number a channel; ``what`` it is, is told where it is not.
    """
    for index in places:
        conv = sole_convolution(s, index)
        if conv is None or (isinstance(conv, Refusal) and not facts.is_constant(s.input(1 - index))):
            continue
        if isinstance(conv, Refusal):
            return conv
        channels, weight_shape = output_channels(conv), facts.static_shape(conv.inputs[1])
        if channels is None or weight_shape is None:
            return Refusal("the convolution's weight has no known shape")
        numbers = per_channel(s.input(1 - index), channels, len(weight_shape))
        return Refusal(f"{what} is not one number a channel") if numbers is None else (conv, numbers)
    return None


@rule("fuse_add_bias_into_conv", on="Add", after=CONVOLUTIONS, exactness=REASSOCIATES, opset=7)
def bias_beside_open_weight(s: Site) -> Result:
    """Adding one constant a channel to a convolution without bias, whose weight is not constant, is its bias."""
    found = _open_convolution(s)
    if not isinstance(found, tuple):
        return found
    conv, added, channels = found
    weight, rank = conv.inputs[1], facts.rank(conv.outputs[0])
    if not facts.is_constant(added) or facts.is_constant(weight) or rank is None or weight is None:
        return None
    row = per_channel(added, channels, rank)
    return Refusal("what is added is not one number a channel") if row is None else rebuilt(conv, weight, row.copy())


@rule("fuse_add_bias_into_conv", on="Add", exactness=REASSOCIATES, opset=7, default=False)
def computed_bias(s: Site) -> Result:
    """Adding one computed number a channel to a convolution without bias: squeezed, it is the bias."""
    found = _open_convolution(s)
    if not isinstance(found, tuple):
        return found
    conv, added, channels = found
    shape, rank = facts.static_shape(added), facts.rank(conv.outputs[0])
    if shape is None or rank is None or len(shape) > rank:
        return Refusal("the shape of what is added is not known")
    full = (1,) * (rank - len(shape)) + shape
    if facts.is_constant(added) or full != (1, channels) + (1,) * (rank - 2) or len(shape) < rank - 1:
        return Refusal("what is added is not one computed number a channel")
    channel = len(shape) - rank + 1
    axes = [axis for axis in range(len(shape)) if axis != channel]
    return Op((conv.op_type,))(*conv.inputs[:2], apply_along(s, "Squeeze", added, axes), **attributes_of(conv))


def _open_convolution(s: Site) -> tuple[ir.Node, ir.Value, int] | Refusal | None:
    """A convolution without bias that is read by the Add alone, what is added, and the number of channels."""
    for index in (0, 1):
        conv, added = s.producer(index, *CONVOLUTIONS), s.input(1 - index)
        if conv is None or added is None or facts.refers_to_function_attribute(conv):
            continue
        if len(conv.inputs) > 2 and conv.inputs[2] is not None:
            return Refusal("the convolution has a bias")
        if not facts.used_once(conv.outputs[0]):
            return Refusal("the convolution has other readers")
        channels = output_channels(conv) or facts.dim_at(conv.outputs[0], 1)
        return Refusal("the number of channels is not known") if channels is None else (conv, added, channels)
    return None


@rule("fuse_mul_into_conv", on=("Mul", "Div"), after=CONVOLUTIONS, exactness=REASSOCIATES, opset=7)
def scale_after(s: Site) -> Result:
    """Multiplying a convolution by one number a channel scales its weight and bias."""
    found = _with_numbers(s, (0, 1) if s.node.op_type == "Mul" else (0,), "the factor")
    if not isinstance(found, tuple):
        return found
    conv, factor = found
    wide = factor.astype(np.float64)
    if s.node.op_type == "Div":
        with np.errstate(divide="ignore"):
            wide = 1.0 / wide
    if not np.isfinite(wide).all():
        return Refusal("the factor is not finite")
    weight = scaled_weight(conv, wide)
    old = bias_of(conv)
    assert weight is not None
    return rebuilt(conv, weight, None if old is None else (old.astype(np.float64) * wide).astype(old.dtype))


@rule("fuse_preceding_mul_into_conv", on="Conv", after="Mul", exactness=REASSOCIATES, opset=7)
def scale_before(s: Site) -> Result:
    """A convolution of a tensor multiplied by one number a channel is a convolution with a scaled weight."""
    multiply = s.producer(0, "Mul")
    if multiply is None or not facts.used_once(multiply.outputs[0]):
        return None
    weight_shape = facts.static_shape(s.input(1))
    if weight_shape is None or not facts.is_constant(s.input(1)) or facts.refers_to_function_attribute(s.node):
        return None
    group = s.attr("group", 1)
    channels = weight_shape[1] * group
    for index in (0, 1):
        rank = facts.rank(multiply.inputs[1 - index])
        if rank != len(weight_shape):
            continue
        factor = per_channel(multiply.inputs[index], channels, len(weight_shape))
        if factor is None or not np.isfinite(factor).all():
            continue
        if facts.dim_at(multiply.inputs[1 - index], 1) != channels and facts.scalar(multiply.inputs[index]) is None:
            return Refusal("the factor may broadcast the channels")
        weight = facts.constant(s.input(1))
        assert weight is not None
        scaled = weight.astype(np.float64) * _along_inputs(factor, weight, group)
        return Op(("Conv",))(
            multiply.inputs[1 - index], scaled.astype(weight.dtype), s.input(2), **attributes_of(s.node)
        )
    return None


def _along_inputs(numbers: np.ndarray, weight: np.ndarray, group: int) -> np.ndarray:
    """One number an input channel, laid along the weight of a Conv, as float64: [out, in / group, 1, …]."""
    # Output channel o reads input channels of group o // (out / group).
    per_group = numbers.reshape(group, weight.shape[1]).astype(np.float64)
    return np.repeat(per_group, weight.shape[0] // group, axis=0).reshape(weight.shape[:2] + (1,) * (weight.ndim - 2))


@rule("fuse_preceding_bn_into_conv", on="Conv", after="BatchNormalization", exactness=REASSOCIATES)
def batch_norm_before(s: Site) -> Result:
    """BatchNormalization before a convolution that pads nothing becomes part of its weight and bias."""
    norm = s.producer(0, "BatchNormalization")
    weight_shape = facts.static_shape(s.input(1))
    if norm is None or weight_shape is None or facts.refers_to_function_attribute(s.node):
        return None
    if not facts.used_once(norm.outputs[0]):
        return Refusal("the normalization has other readers")
    if not facts.is_constant(s.input(1)) or (s.input(2) is not None and not facts.is_constant(s.input(2))):
        return Refusal("the convolution's weight or bias is not constant")
    group = s.attr("group", 1)
    factors = norm_factors(Site(s.workspace, norm), weight_shape[1] * group)
    if not isinstance(factors, tuple):
        return factors
    scale, shift = factors
    if shift.any() and (any(s.attr("pads") or ()) or s.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")):
        return Refusal("padding with zeros comes after the normalization")
    weight = facts.constant(s.input(1))
    assert weight is not None
    wide = weight.astype(np.float64)
    total = (wide * _along_inputs(shift, weight, group)).sum(axis=tuple(range(1, weight.ndim)))
    old = facts.constant(s.input(2))
    if old is not None:
        total = total + old.astype(np.float64)
    scaled = (wide * _along_inputs(scale, weight, group)).astype(weight.dtype)
    return Op(("Conv",))(norm.inputs[0], scaled, total.astype(weight.dtype), **attributes_of(s.node))


@rule("fuse_bn_into_gemm", on="BatchNormalization", after=("Gemm", "MatMul"), exactness=REASSOCIATES)
def batch_norm_after_gemm(s: Site) -> Result:
    """BatchNormalization after a Gemm, or a MatMul of matrices, with constant weight becomes part of it."""
    gemm = s.producer(0, "Gemm", "MatMul")
    if gemm is None or any(facts.rank(value) != 2 for value in gemm.inputs[:2]):
        return None
    if not facts.used_once(gemm.outputs[0]) or not facts.is_constant(gemm.inputs[1]):
        return Refusal("the product has other readers or no constant weight")
    if gemm.op_type == "MatMul" and s.opset < 7:
        return Refusal("Gemm broadcasts no bias before opset 7")
    bias_value = gemm.inputs[2] if len(gemm.inputs) > 2 else None
    if bias_value is not None and not facts.is_constant(bias_value):
        return Refusal("the Gemm's bias is not constant")
    if facts.refers_to_function_attribute(gemm):
        return None
    weight = facts.constant(gemm.inputs[1])
    assert weight is not None
    transposed = bool(facts.attribute(gemm, "transB", s.opset, 0))
    channels = weight.shape[0 if transposed else 1]
    factors = norm_factors(s, channels)
    if not isinstance(factors, tuple):
        return factors
    scale, shift = factors
    beta = facts.attribute(gemm, "beta", s.opset, 1.0)
    scaled = weight.astype(np.float64) * (scale[:, None] if transposed else scale[None, :])
    if bias_value is not None and beta != 0:
        old = facts.constant(bias_value)
        assert old is not None
        total = old.astype(np.float64) * scale + shift / beta
        return Op(("Gemm",))(
            gemm.inputs[0], scaled.astype(weight.dtype), total.astype(weight.dtype), **attributes_of(gemm)
        )
    kept = {k: v for k, v in attributes_of(gemm).items() if k != "beta"}
    return Op(("Gemm",))(gemm.inputs[0], scaled.astype(weight.dtype), shift.astype(weight.dtype), **kept)


def pad_amounts(s: Site, pad: ir.Node, most: float | None = None) -> tuple[int, ...] | Refusal:
    """A Pad node's amounts (begins, then ends), when it pads by known amounts with zeros.

    Args:
        s: The site of the rule.
        pad: The node.
        most: Take any number up to this one instead of zero.
    """
    if facts.attribute(pad, "mode", s.opset, "constant") not in ("constant", b"constant"):
        return Refusal("it does not pad with a constant")
    if s.opset < 11:
        amounts = facts.attribute(pad, "pads", s.opset) or facts.attribute(pad, "paddings", s.opset)
        value = facts.attribute(pad, "value", s.opset, 0.0)
    else:
        amounts = facts.constant_ints(pad.inputs[1])
        given = pad.inputs[2] if len(pad.inputs) > 2 else None
        value = 0.0 if given is None else facts.scalar(given)
        axes = pad.inputs[3] if len(pad.inputs) > 3 else None
        if axes is not None:
            amounts = _spread(amounts, facts.constant_ints(axes), facts.rank(pad.inputs[0]))
    if amounts is None:
        return Refusal("the amounts are not known")
    if most is not None and (value is None or not value <= most):
        return Refusal("it pads with a number that may be greater than what it pads")
    if most is None and (value is None or value != 0):
        return Refusal("it pads with another number than zero")
    return tuple(int(a) for a in amounts)


def _spread(amounts: Sequence[int] | None, axes: Sequence[int] | None, rank: int | None) -> tuple[int, ...] | None:
    if amounts is None or axes is None or rank is None:
        return None
    full = [0] * (2 * rank)
    for i, axis in enumerate(axes):
        full[axis % rank] = amounts[i]
        full[axis % rank + rank] = amounts[i + len(axes)]
    return tuple(full)


def _padded(s: Site, operators: str, most: float | None = None) -> tuple[ir.Node, list[int]] | Refusal | None:
    """The Pad before a window operator, and the pads of both together."""
    pad = s.producer(0, "Pad")
    if pad is None:
        return None
    amounts = pad_amounts(s, pad, most)
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
    return pad, [o + a for o, a in zip(old, [*begins[2:], *ends[2:]], strict=True)]


@rule("fuse_pad_into_conv", on="Conv", after="Pad", exactness=REASSOCIATES)
def pad_before_conv(s: Site) -> Result:
    """Padding with zeros before a convolution is the convolution's own padding."""
    found = _padded(s, "convolution")
    if not isinstance(found, tuple) or facts.refers_to_function_attribute(s.node):
        return found if isinstance(found, Refusal) else None
    pad, pads = found
    kept = {k: v for k, v in attributes_of(s.node).items() if k not in ("pads", "auto_pad")}
    return Op(("Conv",))(pad.inputs[0], *s.node.inputs[1:], pads=pads, **kept)


@rule("fuse_pad_into_pool", on="AveragePool", exactness=REASSOCIATES, opset=7)
def pad_before_average(s: Site) -> Result:
    """Padding with zeros before an AveragePool that counts its padding is the pool's own padding."""
    found = _padded(s, "pool")
    if not isinstance(found, tuple) or facts.refers_to_function_attribute(s.node):
        return found if isinstance(found, Refusal) else None
    pad, pads = found
    counts = bool(s.attr("count_include_pad", 0))
    old = s.attr("pads") or [0] * len(pads)
    if any(old) and not counts:
        return Refusal("the pool does not count its own padding")
    if s.attr("ceil_mode", 0):
        return Refusal("windows that reach over the end (ceil_mode) count padding in another way")
    if not _every_window_meets_the_input(s, pads):
        return Refusal("the padding is as large as the window")
    kept = {k: v for k, v in attributes_of(s.node).items() if k not in ("pads", "auto_pad", "count_include_pad")}
    return Op(("AveragePool",))(pad.inputs[0], pads=pads, count_include_pad=1, **kept)


@rule("fuse_pad_into_pool", on="MaxPool", after="Pad", exactness=REASSOCIATES)
def pad_before_maximum(s: Site) -> Result:
    """Padding with a number that cannot be the maximum, before a MaxPool, is the pool's own padding.

    ONNX Runtime's MaxPool keeps or drops a NaN by the place in the window that it stands at, and that is another one.
    """
    pad = s.producer(0, "Pad")
    if pad is None or facts.refers_to_function_attribute(s.node):
        return None
    low, _ = value_range(s, pad.inputs[0])
    found = _padded(s, "pool", most=-math.inf if low is None else low)
    if not isinstance(found, tuple):
        return found
    _, pads = found
    if not s.unused_outputs_from(1):
        return Refusal("the places of the maxima are read, which count the padding")
    if s.attr("ceil_mode", 0) or any(step != 1 for step in s.attr("dilations") or ()):
        return Refusal("windows with holes (dilations), or over the end (ceil_mode), may meet padding alone")
    if not _every_window_meets_the_input(s, pads):
        return Refusal("the padding is as large as the window")
    kept = {k: v for k, v in attributes_of(s.node).items() if k not in ("pads", "auto_pad")}
    return Op(("MaxPool",))(pad.inputs[0], pads=pads, **kept)


def _every_window_meets_the_input(s: Site, pads: Sequence[int]) -> bool:
    kernel = s.attr("kernel_shape")
    return all(p < k for p, k in zip(pads, [*kernel, *kernel], strict=True))
