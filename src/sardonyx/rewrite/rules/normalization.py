"""Normalizations written out: a mean taken off, a division by the spread, and factors and terms after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LpNormalization,
    RMSNormalization,
)
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.polynomials import number_of, read_outside
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.rules.reshapes import same_dims
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

DIVISORS = ("Sqrt", "Pow", "Reciprocal", "Div")
"""What makes the divisor of a normalization, or its inverse."""

LAYER_NORMALIZATION = 17
"""The operator set that brought LayerNormalization."""


@dataclass
class Spread:
    """A divisor √(mean(d²) + ε), and how it was made.

    Attributes:
        deviation: The d that is squared.
        epsilon: What is added to the mean.
        axes: The axes of the mean, from the front.
        nodes: The nodes that compute it of d.
    """

    deviation: ir.Value
    epsilon: float
    axes: tuple[int, ...]
    nodes: dict[ir.Node, None] = field(default_factory=dict)


def made_by(s: Site, value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node of the same graph that produces ``value``, if it is one of these standard operators."""
    node = None if value is None else value.producer()
    return node if node is not None and node.graph is s.node.graph and facts.is_op(node, *op_types) else None


def mean_of(s: Site, value: ir.Value | None) -> tuple[ir.Node, tuple[int, ...]] | None:
    """The ReduceMean that makes ``value``, its axes kept, with the axes from the front."""
    node = made_by(s, value, "ReduceMean")
    along = None if node is None or not s.attr("keepdims", 1, node=node) else reduced_axes(s, node)
    return (node, along) if node is not None and along else None


def spread(s: Site, value: ir.Value | None) -> Spread | None:
    """How ``value`` is √(mean(d²) + ε), or None where it is not."""
    root = made_by(s, value, "Sqrt", "Pow")
    if root is None or (root.op_type == "Pow" and number_of(root.inputs[1]) != 0.5):
        return None
    return _variance(s, root)


def _variance(s: Site, root: ir.Node) -> Spread | None:
    nodes = {root: None}
    value, epsilon = root.inputs[0], 0.0
    raised = made_by(s, value, "Add")
    if raised is not None:
        number = next((i for i in (0, 1) if number_of(raised.inputs[i]) is not None), None)
        if number is None:
            return None
        epsilon, value = number_of(raised.inputs[number]) or 0.0, raised.inputs[1 - number]
        nodes[raised] = None
    mean = mean_of(s, value)
    square = None if mean is None else made_by(s, mean[0].inputs[0], "Mul", "Pow")
    if mean is None or square is None or epsilon < 0:
        return None
    deviation, other = square.inputs[0], square.inputs[1]
    if deviation is None or not (other is deviation if square.op_type == "Mul" else number_of(other) == 2):
        return None
    nodes.update({mean[0]: None, square: None})
    return Spread(deviation, epsilon, mean[1], nodes)


def divided_by_spread(s: Site) -> Spread | None:
    """How the root is d / √(mean(d²) + ε), as a quotient or as a product with the inverse."""
    if s.node.op_type == "Div":
        found = spread(s, s.input(1))
        return found if found is not None and found.deviation is s.input(0) else None
    for index in (0, 1):
        inverse = made_by(s, s.input(index), "Reciprocal", "Div", "Pow")
        if inverse is None:
            continue
        if inverse.op_type == "Pow":
            found = _variance(s, inverse) if number_of(inverse.inputs[1]) == -0.5 else None
        else:
            quotient = inverse.op_type == "Div"
            found = None if quotient and number_of(inverse.inputs[0]) != 1 else spread(s, inverse.inputs[int(quotient)])
        if found is not None and found.deviation is s.input(1 - index):
            found.nodes[inverse] = None
            return found
    return None


def ends_normalization(s: Site, value: ir.Value | None) -> bool:
    """Whether the root scales or shifts d / √(mean(d²) + ε), or shifts that after its scale: ``value`` is its operand.

    Below operator set 17 a layer normalization is written in parts, and engines look for all of them: also for a scale
    of ones and a shift of zeros.
    """
    scaled = made_by(s, value, "Mul") if s.node.op_type == "Add" else None
    normalized = [value, *(scaled.inputs if scaled is not None else ())]
    quotients = [made_by(s, each, "Div", "Mul") for each in normalized] if s.node.op_type in ("Mul", "Add") else []
    return any(node is not None and divided_by_spread(Site(s.workspace, node)) is not None for node in quotients)


@dataclass(frozen=True)
class Centered:
    """A deviation x − mean(x), the two nodes that make it, and the axes of the mean."""

    x: ir.Value
    nodes: dict[ir.Node, None]
    axes: tuple[int, ...]


def centered(s: Site, deviation: ir.Value) -> Centered | None:
    """How ``deviation`` is x − mean(x), or None where it is not."""
    difference = made_by(s, deviation, "Sub")
    mean = None if difference is None else mean_of(s, difference.inputs[1])
    if difference is None or mean is None:
        return None
    x = difference.inputs[0]
    return Centered(x, {difference: None, mean[0]: None}, mean[1]) if x is not None and mean[0].inputs[0] is x else None


def trailing(axes: tuple[int, ...], rank: int | None) -> int | None:
    """How many axes at the end these are, or None where they are others."""
    return len(axes) if rank is not None and axes == tuple(range(rank - len(axes), rank)) else None


def _ones(value: ir.Value, shape: tuple[int, ...]) -> np.ndarray | None:
    kind = facts.dtype(value)
    return None if kind not in FLOATS or kind is None else np.ones(shape, kind.numpy())


def _sizes(value: ir.Value, last: int) -> tuple[int, ...] | None:
    """The sizes of the last axes; None where one is not known, or is 0, which engines refuse to normalize over."""
    sizes = [facts.dim_at(value, axis) for axis in range(-last, 0)]
    return tuple(size for size in sizes if size) if all(sizes) else None


@rule("fuse_instance_normalization", on=("Div", "Mul"), after=DIVISORS, exactness=REASSOCIATES, opset=6)
def instance_normalization(s: Site) -> Result:
    """(x − mean) / √(variance + ε) over all axes but the first two is InstanceNormalization, for images and volumes."""
    found = divided_by_spread(s)
    middle = None if found is None else centered(s, found.deviation)
    if found is None or middle is None or middle.axes != found.axes:
        return None
    last, rank = trailing(found.axes, facts.rank(middle.x)), facts.rank(middle.x)
    if last is None or rank is None or rank != last + 2 or last < 2:
        return None
    channels = facts.dim_at(middle.x, 1)
    if not channels or facts.dtype(middle.x) not in FLOATS[:2]:
        return Refusal("the number of channels is not known, or engines have no kernel for the type")
    if any(facts.dim_at(middle.x, axis) == 0 for axis in found.axes):
        return Refusal("nothing is left to take a mean of")
    outside = read_outside({**found.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    ones = _ones(middle.x, (channels,))
    return InstanceNormalization(middle.x, ones, None if ones is None else np.zeros_like(ones), epsilon=found.epsilon)


@rule("fuse_layer_normalization", on=("Div", "Mul"), after=DIVISORS, exactness=REASSOCIATES, opset=17)
def layer_normalization(s: Site) -> Result:
    """(x − mean) / √(variance + ε) over the last axes is LayerNormalization."""
    found = divided_by_spread(s)
    middle = None if found is None else centered(s, found.deviation)
    if found is None or middle is None or middle.axes != found.axes:
        return None
    last, rank = trailing(found.axes, facts.rank(middle.x)), facts.rank(middle.x)
    if last is None:
        return Refusal("the mean is not taken over the last axes")
    if rank == last + 2 and last >= 2:
        return None
    sizes = _sizes(middle.x, last)
    ones = None if sizes is None else _ones(middle.x, sizes)
    if ones is None:
        return Refusal("a size of the axes is not known, or is 0, or the type is no float")
    outside = read_outside({**found.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return LayerNormalization(middle.x, ones, axis=-last, epsilon=found.epsilon)


@rule("fuse_layer_normalization", on="Add", after="Mul", among="Sub", exactness=REASSOCIATES, opset=17)
def layer_normalization_as_line(s: Site) -> Result:
    """TensorFlow's x·w + (b − mean·w) with w = g / √(variance + ε) is LayerNormalization."""
    for index in (0, 1):
        product, rest = made_by(s, s.input(index), "Mul"), made_by(s, s.input(1 - index), "Sub")
        shift = None if rest is None else made_by(s, rest.inputs[1], "Mul")
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
    factor, found = divided
    middle = centered(s, found.deviation)
    if (
        middle is None
        or middle.x is not x
        or middle.axes != found.axes
        or mean not in [n.outputs[0] for n in middle.nodes]
    ):
        return None
    last = trailing(found.axes, facts.rank(x))
    sizes = None if last is None else _sizes(x, last)
    if last is None or sizes is None or facts.dtype(x) not in FLOATS:
        return Refusal("the mean is not taken over last axes of known sizes")
    scale, offset = _row(factor, sizes), _row(bias, sizes)
    if scale is None or offset is None or facts.rank(x) != facts.rank(s.output):
        return Refusal("the factor or the term is not one constant for each element of the last axes")
    outside = read_outside({**nodes, **found.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return LayerNormalization(x, scale, offset, axis=-last, epsilon=found.epsilon)


def _inverse_times(s: Site, weight: ir.Value) -> tuple[ir.Value | None, Spread] | None:
    """How ``weight`` is g / √(variance + ε): g, and the divisor."""
    node = made_by(s, weight, "Mul", "Div")
    if node is None:
        return None
    if node.op_type == "Div":
        found = spread(s, node.inputs[1])
        if found is not None:
            found.nodes[node] = None
        return None if found is None else (node.inputs[0], found)
    for index in (0, 1):
        inverse = made_by(s, node.inputs[index], "Reciprocal")
        found = None if inverse is None else spread(s, inverse.inputs[0])
        if found is not None and inverse is not None:
            found.nodes.update({node: None, inverse: None})
            return node.inputs[1 - index], found
    return None


def _row(value: ir.Value | None, sizes: tuple[int, ...]) -> np.ndarray | None:
    """A constant with one number for each element of the last axes, in their shape."""
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
    """The quotient x / √(mean(x²) + ε) over the last axes is RMSNormalization."""
    found = divided_by_spread(s)
    if found is None or centered(s, found.deviation) is not None:
        return None
    last = trailing(found.axes, facts.rank(found.deviation))
    sizes = None if last is None else _sizes(found.deviation, last)
    ones = None if sizes is None else _ones(found.deviation, sizes)
    if last is None or ones is None:
        return Refusal("the mean is not taken over last axes of known sizes, or the type is no float")
    outside = read_outside(found.nodes, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return RMSNormalization(found.deviation, ones, axis=-last, epsilon=found.epsilon)


NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "GroupNormalization")


def _parameter(s: Site, node: ir.Node, value: ir.Value | None) -> np.ndarray | ir.Value | None:
    """``value`` in the shape of the normalization's parameters: a constant brought to it, or what has it already."""
    out = node.outputs[0]
    if not keeps_shape(s, out, [value]):
        return None
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        rank, axis = facts.rank(out), s.attr("axis", -1, node=node)
        sizes = None if rank is None else _sizes(out, rank - axis % rank)
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


def _normalization(s: Site) -> tuple[ir.Node, ir.Value | None] | None:
    """The normalization that the root takes, read by nothing else, and the root's other operand."""
    for index in (0, 1):
        node = s.producer(index, *NORMALIZATIONS)
        if node is not None and all(facts.unused(v) for v in node.outputs[1:]) and facts.used_once(node.outputs[0]):
            return node, s.input(1 - index)
    return None


@rule("fuse_scale_into_normalization", on="Mul", after=NORMALIZATIONS, exactness=REASSOCIATES, opset=7)
def scale_of_normalization(s: Site) -> Result:
    """A factor for each normalized element (or channel) after a normalization is part of its scale."""
    found = _normalization(s)
    if found is None:
        return None
    node, other = found
    factor, scale = _parameter(s, node, other), facts.constant(node.inputs[1])
    if factor is None or scale is None:
        return Refusal("the factor is not one number for each normalized element, or the scale is computed")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if isinstance(factor, ir.Value):
        if bias is not None or not np.all(scale == 1):
            return Refusal("the factor is not constant, and the normalization has parameters already")
        return _with_parameters(node, factor, None)
    old = facts.constant(bias)
    if bias is not None and old is None:
        return Refusal("the normalization's bias is not constant")
    return _with_parameters(node, (scale * factor).astype(scale.dtype), None if old is None else old * factor)


@rule("fuse_bias_into_normalization", on="Add", after=NORMALIZATIONS, exactness=REASSOCIATES, opset=7)
def bias_of_normalization(s: Site) -> Result:
    """A term for each normalized element (or channel) after a normalization is part of its bias."""
    found = _normalization(s)
    if found is None or found[0].op_type == "RMSNormalization":
        return None
    node, other = found
    term = _parameter(s, node, other)
    if term is None:
        return Refusal("the term is not one number for each normalized element")
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        old = facts.constant(bias)
        if old is None or isinstance(term, ir.Value):
            return Refusal("the term or the normalization's bias is not constant")
        term = (old + term).astype(old.dtype)
    return _with_parameters(node, node.inputs[1], term)


def _with_parameters(node: ir.Node, scale: np.ndarray | ir.Value | None, bias: np.ndarray | ir.Value | None) -> Result:
    inputs = [node.inputs[0], scale] if bias is None else [node.inputs[0], scale, bias]
    return Op((node.op_type,))(*inputs, **dict[str, Any](node.attributes))


@rule(
    "fuse_cast_into_normalization",
    on="Cast",
    after=("LayerNormalization", "RMSNormalization"),
    exactness=REASSOCIATES,
    opset=17,
)
def casts_around_normalization(s: Site) -> Result:
    """A normalization of halves cast to 32 bits and back computes in 32 bits by itself."""
    node = s.producer(0, "LayerNormalization", "RMSNormalization")
    raised = None if node is None else made_by(s, node.inputs[0], "Cast")
    if node is None or raised is None or s.attr("to") != ir.DataType.FLOAT16:
        return None
    if facts.dtype(raised.inputs[0]) != ir.DataType.FLOAT16 or facts.dtype(node.inputs[0]) != ir.DataType.FLOAT:
        return None
    if not facts.used_once(node.outputs[0]) or not all(facts.unused(v) for v in node.outputs[1:]):
        return Refusal("the result in 32 bits is read too")
    narrow: list[np.ndarray] = []
    for value in node.inputs[1:]:
        wide = facts.constant(value)
        if wide is None or not np.array_equal(wide.astype(np.float16).astype(wide.dtype), wide):
            return Refusal("a parameter loses bits as float16")
        narrow.append(wide.astype(np.float16))
    return Op((node.op_type,))(raised.inputs[0], *narrow, **dict[str, Any](node.attributes))


@rule(
    "fuse_group_normalization",
    on="Reshape",
    after="InstanceNormalization",
    exactness=REASSOCIATES,
    opset=21,
    targets=BESIDE_ONNXRUNTIME,
)
def group_normalization(s: Site) -> Result:
    """Reshape to groups, InstanceNormalization and Reshape back are GroupNormalization."""
    node = s.producer(0, "InstanceNormalization")
    grouped = None if node is None else made_by(s, node.inputs[0], "Reshape")
    if node is None or grouped is None or grouped.inputs[0] is None:
        return None
    x, rank = grouped.inputs[0], facts.rank(grouped.inputs[0])
    groups, channels = facts.dim_at(grouped.outputs[0], 1), facts.dim_at(x, 1)
    if rank is None or rank < 3 or groups is None or channels is None or not same_dims(s, x, s.output):
        return None
    dims, first = s.sizes.dims(x), s.sizes.dims(grouped.outputs[0])
    if dims is None or first is None or dims[0] != first[0] or channels % groups:
        return Refusal("the groups are not parts of the channels")
    if not facts.used_once(node.outputs[0]) or not facts.used_once(grouped.outputs[0]):
        return Refusal("a tensor in between has other readers")
    scale, bias = facts.constant(node.inputs[1]), facts.constant(node.inputs[2])
    if scale is None or bias is None:
        return Refusal("the parameters of the groups are not constant")
    each = channels // groups
    return GroupNormalization(
        x, np.repeat(scale, each), np.repeat(bias, each), epsilon=s.attr("epsilon", node=node), num_groups=groups
    )


@rule(
    "fuse_lp_normalization", on="Div", after=("ReduceL1", "ReduceL2"), exactness=APPROXIMATES, opset=22, default=False
)
def lp_normalization(s: Site) -> Result:
    """The quotient x / ‖x‖ along an axis is LpNormalization; asked for only, since it gives 0 and not NaN for zeros."""
    norm = s.producer(1, "ReduceL1", "ReduceL2")
    along = None if norm is None or not s.attr("keepdims", 1, node=norm) else reduced_axes(s, norm)
    if norm is None or along is None or norm.inputs[0] is not s.input(0):
        return None
    if len(along) != 1 or not facts.used_once(norm.outputs[0]) or facts.dtype(s.output) not in FLOATS[::2]:
        return Refusal("the norm is taken along several axes, read by others, or of another type")
    return LpNormalization(s.input(0), axis=along[0], p=int(norm.op_type[-1]))
