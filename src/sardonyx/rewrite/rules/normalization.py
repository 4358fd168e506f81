"""Normalizations written in primitives: subtract the mean, divide by the deviation, scale and shift."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    APPROXIMATES,
    REASSOCIATES,
    A,
    AnyOf,
    Match,
    Op,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import (
    Cast,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    Reshape,
    RMSNormalization,
)
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.polynomials import find_shared_value, number_of
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.rules.reshapes import output_has_dims
from sardonyx.rewrite.rules.signatures import axis_from_front
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

DIVISORS = ("Sqrt", "Pow", "Reciprocal", "Div")
"""Operators that end the divisor of a normalization, or its inverse."""

LAYER_NORMALIZATION = 17
"""Operator set that introduced LayerNormalization."""


@dataclass
class RootMeanSquare:
    """A divisor √(mean(d²) + ε), with its nodes.

    Attributes:
        deviation: The squared value d.
        epsilon: The number added to the mean.
        axes: The axes of the mean, counted from the front.
        nodes: The nodes between d and the divisor.
    """

    deviation: ir.Value
    epsilon: float
    axes: tuple[int, ...]
    nodes: dict[ir.Node, None] = field(default_factory=dict)


def producer_of(s: Site, value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the producer of ``value`` in the same graph, if its type is one of these standard operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.graph is s.node.graph and facts.is_op(node, *op_types) else None


def match_mean(s: Site, value: ir.Value | None) -> tuple[ir.Node, tuple[int, ...]] | None:
    """Return the ReduceMean with keepdims that produces ``value``, and its axes counted from the front."""
    node = producer_of(s, value, "ReduceMean")
    along = None if node is None or not s.attr("keepdims", 1, node=node) else reduced_axes(s, node)
    return (node, along) if node is not None and along else None


def match_rms(s: Site, value: ir.Value | None) -> RootMeanSquare | None:
    """Match ``value`` as √(mean(d²) + ε)."""
    root = producer_of(s, value, "Sqrt", "Pow")
    if root is None or (root.op_type == "Pow" and number_of(root.inputs[1]) != 0.5):
        return None
    return _variance(s, root)


def _variance(s: Site, root: ir.Node) -> RootMeanSquare | None:
    nodes = {root: None}
    value, epsilon = root.inputs[0], 0.0
    raised = producer_of(s, value, "Add")
    if raised is not None:
        constant_at = next((i for i in (0, 1) if number_of(raised.inputs[i]) is not None), None)
        if constant_at is None:
            return None
        epsilon, value = number_of(raised.inputs[constant_at]) or 0.0, raised.inputs[1 - constant_at]
        nodes[raised] = None
    mean = match_mean(s, value)
    square = None if mean is None else producer_of(s, mean[0].inputs[0], "Mul", "Pow")
    if mean is None or square is None or epsilon < 0:
        return None
    deviation, other = square.inputs[0], square.inputs[1]
    if deviation is None or not (other is deviation if square.op_type == "Mul" else number_of(other) == 2):
        return None
    nodes.update({mean[0]: None, square: None})
    return RootMeanSquare(deviation, epsilon, mean[1], nodes)


def match_division_by_rms(s: Site) -> RootMeanSquare | None:
    """Match the root as d / √(mean(d²) + ε), a quotient or a product with the inverse."""
    if s.node.op_type == "Div":
        rms = match_rms(s, s.input(1))
        return rms if rms is not None and rms.deviation is s.input(0) else None
    for index in (0, 1):
        inverse = producer_of(s, s.input(index), "Reciprocal", "Div", "Pow")
        if inverse is None:
            continue
        if inverse.op_type == "Pow":
            rms = _variance(s, inverse) if number_of(inverse.inputs[1]) == -0.5 else None
        else:
            quotient = inverse.op_type == "Div"
            rms = (
                None if quotient and number_of(inverse.inputs[0]) != 1 else match_rms(s, inverse.inputs[int(quotient)])
            )
        if rms is not None and rms.deviation is s.input(1 - index):
            rms.nodes[inverse] = None
            return rms
    return None


def is_affine_of_normalization(s: Site, value: ir.Value | None) -> bool:
    """Return True if the root scales or shifts d / √(mean(d²) + ε), with ``value`` as its operand.

    Below operator set 17 a layer normalization consists of several nodes, and engines match all of them, including a
    scale of ones and a shift of zeros.
    """
    scaled = producer_of(s, value, "Mul") if s.node.op_type == "Add" else None
    candidates = [value, *(scaled.inputs if scaled is not None else ())]
    is_affine = s.node.op_type in ("Mul", "Add")
    quotients = [producer_of(s, candidate, "Div", "Mul") for candidate in candidates] if is_affine else []
    return any(node is not None and match_division_by_rms(Site(s.workspace, node)) is not None for node in quotients)


@dataclass(frozen=True)
class Centered:
    """A centered value x − mean(x), its two nodes, and the axes of the mean."""

    x: ir.Value
    nodes: dict[ir.Node, None]
    axes: tuple[int, ...]


def match_centered(s: Site, deviation: ir.Value) -> Centered | None:
    """Match ``deviation`` as x − mean(x)."""
    difference = producer_of(s, deviation, "Sub")
    mean = None if difference is None else match_mean(s, difference.inputs[1])
    if difference is None or mean is None:
        return None
    x = difference.inputs[0]
    return Centered(x, {difference: None, mean[0]: None}, mean[1]) if x is not None and mean[0].inputs[0] is x else None


def count_trailing(axes: tuple[int, ...], rank: int | None) -> int | None:
    """Return the number of axes if they are the last ones, else None."""
    return len(axes) if rank is not None and axes == tuple(range(rank - len(axes), rank)) else None


def _ones(value: ir.Value, shape: tuple[int, ...]) -> np.ndarray | None:
    kind = facts.dtype(value)
    return None if kind not in FLOATS or kind is None else np.ones(shape, kind.numpy())


def _sizes_of_last(value: ir.Value, last: int) -> tuple[int, ...] | None:
    """Return the sizes of the last axes; None if one is not known, or is 0, which engines reject."""
    sizes = [facts.dim_at(value, axis) for axis in range(-last, 0)]
    return tuple(size for size in sizes if size) if all(sizes) else None


@rule("fuse_instance_normalization", on=("Div", "Mul"), after=DIVISORS, exactness=REASSOCIATES, opset=6)
def instance_normalization(s: Site) -> Result:
    """Fuse (x − mean) / √(variance + ε) over the axes of images and volumes into InstanceNormalization."""
    rms = match_division_by_rms(s)
    middle = None if rms is None else match_centered(s, rms.deviation)
    if rms is None or middle is None or middle.axes != rms.axes:
        return None
    last, rank = count_trailing(rms.axes, facts.rank(middle.x)), facts.rank(middle.x)
    if last is None or rank is None or rank != last + 2 or last < 2:
        return None
    channels = facts.dim_at(middle.x, 1)
    if not channels or facts.dtype(middle.x) not in FLOATS[:2]:
        return Refusal("the number of channels is not known, or engines lack a kernel for the type")
    if any(facts.dim_at(middle.x, axis) == 0 for axis in rms.axes):
        return Refusal("a normalized axis has size 0")
    outside = find_shared_value({**rms.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"intermediate value '{outside}' has other readers")
    ones = _ones(middle.x, (channels,))
    return InstanceNormalization(middle.x, ones, None if ones is None else np.zeros_like(ones), epsilon=rms.epsilon)


@rule("fuse_layer_normalization", on=("Div", "Mul"), after=DIVISORS, exactness=REASSOCIATES, opset=17)
def layer_normalization(s: Site) -> Result:
    """Fuse (x − mean) / √(variance + ε) over the last axes into LayerNormalization."""
    rms = match_division_by_rms(s)
    middle = None if rms is None else match_centered(s, rms.deviation)
    if rms is None or middle is None or middle.axes != rms.axes:
        return None
    last, rank = count_trailing(rms.axes, facts.rank(middle.x)), facts.rank(middle.x)
    if last is None:
        return Refusal("the mean is not over the last axes")
    if rank == last + 2 and last >= 2:
        return None
    sizes = _sizes_of_last(middle.x, last)
    ones = None if sizes is None else _ones(middle.x, sizes)
    if ones is None:
        return Refusal("the size of a normalized axis is not known or 0, or the type is not a float")
    outside = find_shared_value({**rms.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"intermediate value '{outside}' has other readers")
    return LayerNormalization(middle.x, ones, axis=-last, epsilon=rms.epsilon)


@rule("fuse_layer_normalization", on="Add", after="Mul", among="Sub", exactness=REASSOCIATES, opset=17)
def layer_normalization_as_line(s: Site) -> Result:
    """Fuse TensorFlow's x·w + (b − mean·w) with w = g / √(variance + ε) into LayerNormalization."""
    for index in (0, 1):
        product, rest = producer_of(s, s.input(index), "Mul"), producer_of(s, s.input(1 - index), "Sub")
        shift = None if rest is None else producer_of(s, rest.inputs[1], "Mul")
        if product is None or rest is None or shift is None:
            continue
        for at, on in ((0, 0), (0, 1), (1, 0), (1, 1)):
            x, weight, mean = product.inputs[at], product.inputs[1 - at], shift.inputs[on]
            if x is not None and weight is not None and weight is shift.inputs[1 - on]:
                result = _line(s, x, weight, mean, rest.inputs[0], {product: None, rest: None, shift: None})
                if result is not None:
                    return result
    return None


def _line(
    s: Site, x: ir.Value, weight: ir.Value, mean: ir.Value | None, bias: ir.Value | None, nodes: dict[ir.Node, None]
) -> Result:
    divided = _inverse_times(s, weight)
    if divided is None:
        return None
    factor, rms = divided
    middle = match_centered(s, rms.deviation)
    if (
        middle is None
        or middle.x is not x
        or middle.axes != rms.axes
        or mean not in [n.outputs[0] for n in middle.nodes]
    ):
        return None
    last = count_trailing(rms.axes, facts.rank(x))
    sizes = None if last is None else _sizes_of_last(x, last)
    if last is None or sizes is None or facts.dtype(x) not in FLOATS:
        return Refusal("the mean is not over last axes of known sizes")
    scale, offset = _row(factor, sizes), _row(bias, sizes)
    if scale is None or offset is None or facts.rank(x) != facts.rank(s.output):
        return Refusal("the scale or the bias is not a constant over the last axes")
    outside = find_shared_value({**nodes, **rms.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"intermediate value '{outside}' has other readers")
    return LayerNormalization(x, scale, offset, axis=-last, epsilon=rms.epsilon)


def _inverse_times(s: Site, weight: ir.Value) -> tuple[ir.Value | None, RootMeanSquare] | None:
    """Match ``weight`` as g / √(variance + ε): return g and the divisor."""
    node = producer_of(s, weight, "Mul", "Div")
    if node is None:
        return None
    if node.op_type == "Div":
        rms = match_rms(s, node.inputs[1])
        if rms is not None:
            rms.nodes[node] = None
        return None if rms is None else (node.inputs[0], rms)
    for index in (0, 1):
        inverse = producer_of(s, node.inputs[index], "Reciprocal")
        rms = None if inverse is None else match_rms(s, inverse.inputs[0])
        if rms is not None and inverse is not None:
            rms.nodes.update({node: None, inverse: None})
            return node.inputs[1 - index], rms
    return None


def _row(value: ir.Value | None, sizes: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant broadcast to the sizes of the last axes, or None."""
    shape = facts.static_shape(value)
    if shape is None or not facts.is_constant(value):
        return None
    lead = max(len(shape) - len(sizes), 0)
    tail = shape[lead:]
    if any(size != 1 for size in shape[:lead]) or any(
        size not in (1, want) for size, want in zip(reversed(tail), reversed(sizes), strict=False)
    ):
        return None
    array = facts.constant(value)
    return None if array is None else np.ascontiguousarray(np.broadcast_to(array.reshape(tail), sizes))


@rule("fuse_rms_normalization", on=("Div", "Mul"), after=DIVISORS, exactness=REASSOCIATES, opset=23)
def rms_normalization(s: Site) -> Result:
    """Fuse x / √(mean(x²) + ε) over the last axes into RMSNormalization."""
    rms = match_division_by_rms(s)
    if rms is None or match_centered(s, rms.deviation) is not None:
        return None
    last = count_trailing(rms.axes, facts.rank(rms.deviation))
    sizes = None if last is None else _sizes_of_last(rms.deviation, last)
    ones = None if sizes is None else _ones(rms.deviation, sizes)
    if last is None or ones is None:
        return Refusal("the mean is not over last axes of known sizes, or the type is not a float")
    outside = find_shared_value(rms.nodes, s.node)
    if outside is not None:
        return Refusal(f"intermediate value '{outside}' has other readers")
    return RMSNormalization(rms.deviation, ones, axis=-last, epsilon=rms.epsilon)


WITH_BIAS = ("LayerNormalization", "InstanceNormalization", "GroupNormalization")

NORMALIZATIONS = ("RMSNormalization", *WITH_BIAS)


def _parameter(s: Site, node: ir.Node, value: ir.Value | None) -> np.ndarray | ir.Value | None:
    """Return ``value`` in the shape of the normalization's parameters, or None.

    A constant is broadcast to the shape; another value must have the shape.
    """
    out = node.outputs[0]
    if not keeps_shape(s, out, [value]):
        return None
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        rank, axis = facts.rank(out), s.attr("axis", -1, node=node)
        first = None if rank is None else axis_from_front(axis, rank)
        sizes = None if rank is None or first is None else _sizes_of_last(out, rank - first)
        if sizes is None:
            return None
        row = _row(value, sizes)
        return value if row is None and facts.static_shape(value) == sizes else row
    shape, rank, channels = facts.static_shape(value), facts.rank(out), facts.dim_at(out, 1)
    if shape is None or rank is None or channels is None or not facts.is_constant(value):
        return None
    full = (1,) * (rank - len(shape)) + shape
    if any(size != 1 for axis, size in enumerate(full) if axis != 1):
        return None
    array = facts.constant(value)
    return None if array is None else np.ascontiguousarray(np.broadcast_to(array.reshape(-1), (channels,)))


@rule("fuse_scale_into_normalization", exactness=REASSOCIATES, opset=7)
def scale_of_normalization(x: V, scale: V, factor: V) -> Rewrite:
    """Fuse a factor per normalized element (or channel) into the scale of a normalization."""

    def fuse(m: Match) -> Result:
        node = m.nodes[1]
        factor, scale = _parameter(m.site, node, m.factor), facts.constant(m.scale)
        if factor is None or scale is None:
            return Refusal("expected a factor per normalized element or channel, and a constant scale")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if isinstance(factor, ir.Value):
            if bias is not None or not np.all(scale == 1):
                return Refusal("the factor is not constant, and the normalization already has a scale or bias")
            return _with_parameters(node, factor, None)
        old = facts.constant(bias)
        if bias is not None and old is None:
            return Refusal("the bias of the normalization is not constant")
        return _with_parameters(node, (scale * factor).astype(scale.dtype), None if old is None else old * factor)

    return AnyOf(*NORMALIZATIONS)(x, scale, ...) * factor >> fuse | where(unshared)


@rule("fuse_bias_into_normalization", exactness=REASSOCIATES, opset=7)
def bias_of_normalization(x: V, scale: V, term: V) -> Rewrite:
    """Fuse a term per normalized element (or channel) into the bias of a normalization."""

    def fuse(m: Match) -> Result:
        node = m.nodes[1]
        term = _parameter(m.site, node, m.term)
        if term is None:
            return Refusal("expected a term per normalized element or channel")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            old = facts.constant(bias)
            if old is None or isinstance(term, ir.Value):
                return Refusal("the term or the bias of the normalization is not constant")
            term = (old + term).astype(old.dtype)
        return _with_parameters(node, m.scale, term)

    return AnyOf(*WITH_BIAS)(x, scale, ...) + term >> fuse | where(unshared)


def _with_parameters(node: ir.Node, scale: np.ndarray | ir.Value | None, bias: np.ndarray | ir.Value | None) -> Result:
    inputs = [node.inputs[0], scale] if bias is None else [node.inputs[0], scale, bias]
    return Op((node.op_type,))(*inputs, **dict[str, Any](node.attributes))


@rule("fuse_cast_into_normalization", exactness=REASSOCIATES, opset=17)
def casts_around_normalization(x: V, to: A) -> Rewrite:
    """Remove the casts to float32 and back around a normalization of float16, which computes in float32."""

    def fuse(m: Match) -> Result:
        node = m.nodes[1]
        if (facts.dtype(m.x), facts.dtype(node.inputs[0]), m.to) != (ir.DataType.FLOAT16, ir.DataType.FLOAT, 10):
            return None
        if not facts.used_once(node.outputs[0]) or not all(facts.unused(v) for v in node.outputs[1:]):
            return Refusal("the float32 result has other readers")
        narrow: list[np.ndarray] = []
        for value in node.inputs[1:]:
            wide = facts.constant(value)
            if wide is None or not np.array_equal(wide.astype(np.float16).astype(wide.dtype), wide):
                return Refusal("a parameter is not exact in float16")
            narrow.append(wide.astype(np.float16))
        return Op((node.op_type,))(m.x, *narrow, **dict[str, Any](node.attributes))

    normalization = AnyOf("LayerNormalization", "RMSNormalization")(Cast(x), ...)
    return Cast(normalization, to=to) >> fuse


@rule("fuse_group_normalization", exactness=REASSOCIATES, opset=21, targets=BESIDE_ONNXRUNTIME)
def group_normalization(x: V, scale: V, bias: V, epsilon: A) -> Rewrite:
    """Fuse Reshape to groups, InstanceNormalization and Reshape back into GroupNormalization."""

    def fuse(m: Match) -> Result:
        s, normalization, grouped = m.site, m.nodes[1], m.nodes[2].outputs[0]
        rank, groups, channels = facts.rank(m.x), facts.dim_at(grouped, 1), facts.dim_at(m.x, 1)
        if rank is None or rank < 3 or groups is None or channels is None or not output_has_dims(s, m.x):
            return None
        dims, group_dims = s.sizes.dims(m.x), s.sizes.dims(grouped)
        if dims is None or group_dims is None or dims[0] != group_dims[0] or channels % groups:
            return Refusal("the groups do not divide the channels")
        if not facts.used_once(normalization.outputs[0]) or not facts.used_once(grouped):
            return Refusal("an intermediate tensor has other readers")
        group_scale, group_bias = facts.constant(m.scale), facts.constant(m.bias)
        if group_scale is None or group_bias is None:
            return Refusal("the scale or bias of the groups is not constant")
        size = channels // groups
        weights = np.repeat(group_scale, size), np.repeat(group_bias, size)
        return GroupNormalization(m.x, *weights, epsilon=m.epsilon, num_groups=groups)

    return Reshape(InstanceNormalization(Reshape(x, ...), scale, bias, epsilon=epsilon), ...) >> fuse


@rule("fuse_lp_normalization", exactness=APPROXIMATES, opset=22, default=False)
def lp_normalization(x: V) -> Rewrite:
    """Fuse x / ‖x‖ along an axis into LpNormalization; optional: zeros give 0 instead of NaN."""

    def fuse(m: Match) -> Result:
        s, norm = m.site, m.nodes[1]
        along = reduced_axes(s, norm) if s.attr("keepdims", 1, node=norm) else None
        if along is None:
            return None
        if len(along) != 1 or not facts.used_once(norm.outputs[0]) or facts.dtype(s.output) not in FLOATS[::2]:
            return Refusal("the norm is along several axes, has other readers, or has an unsupported type")
        return LpNormalization(m.x, axis=along[0], p=int(norm.op_type[-1]))

    return x / AnyOf("ReduceL1", "ReduceL2")(x, ...) >> fuse
