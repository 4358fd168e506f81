"""Several convolutions as one: consecutive with a 1×1 kernel, parallel, or per channel group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import (
    REASSOCIATES,
    SILENT,
    Match,
    Maybe,
    Op,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
    where,
)
from sardonyx.rewrite.notation import Conv
from sardonyx.rewrite.rules.convolution import attributes_of, bias_of, folding_objection
from sardonyx.rewrite.rules.signatures import axis_of, build_split, split_sizes
from sardonyx.rewrite.rules.slices import contiguous_range
from sardonyx.rewrite.site import Site

_UNPADDED = ("NOTSET", "VALID")


def _are_foldable(m: Match) -> Refusal | None:
    """Guard: both convolutions have constant weights and equal groups; only the second reads the first."""
    if facts.refers_to_function_attribute(m.root):
        return SILENT
    first = m.nodes[1]
    objection = folding_objection(first)
    if objection is not None:
        return objection
    if not all(value is None or facts.is_constant(value) for value in (m.w2, m.b2)):
        return Refusal("the second convolution's weight or bias is not constant")
    if _weight_shapes(m) is None:
        return SILENT
    if m.site.attr("group", 1) != m.site.attr("group", 1, node=first):
        return Refusal("the convolutions differ in their number of groups")
    return None


def _weight_shapes(m: Match) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    one, two = facts.static_shape(m.w1), facts.static_shape(m.w2)
    if one is None or two is None or not 3 <= len(one) == len(two) or 0 in (*one, *two):
        return None
    return one, two


@rule("fuse_consecutive_convs", exactness=REASSOCIATES)
def pointwise_after(x: V, w1: V, b1: Maybe, w2: V, b2: Maybe) -> Rewrite:
    """Fuse Conv(Conv(x, w1, b1), w2, b2) into Conv(x, w2 @ w1, b) for a 1×1 kernel w2, if no dearer."""

    def merged(m: Match) -> Result:
        s, first = m.site, m.nodes[1]
        shapes = _weight_shapes(m)
        if shapes is None:
            return None
        one, two = shapes
        if any(size != 1 for size in two[2:]) or any(s.attr("pads") or ()):
            return None
        group, strides = s.attr("group", 1), s.attr("strides") or [1] * (len(two) - 2)
        own = s.attr("strides", node=first) or [1] * len(strides)
        if any(step != 1 for step in strides) and s.attr("auto_pad", "NOTSET", node=first) not in _UNPADDED:
            return Refusal("the first convolution pads by its own steps (auto_pad)")
        # The 1×1 convolution may skip positions of the first, a saving that is not counted.
        if math.prod((two[0], *one[1:])) > math.prod(one) + math.prod(two):
            return Refusal("one convolution would multiply more than both")
        weight = _merge_weights(first, s.node, group, "gom,gmck->gock")
        attributes = attributes_of(first) | {"strides": [a * b for a, b in zip(own, strides, strict=True)]}
        return Op(("Conv",))(m.x, weight, _merge_biases(first, s.node, group), **attributes)

    return Conv(Conv(x, w1, b1), w2, b2) >> merged | where(_are_foldable)


@rule("fuse_consecutive_convs", exactness=REASSOCIATES)
def pointwise_before(x: V, w1: V, b1: Maybe, w2: V, b2: Maybe) -> Rewrite:
    """Fuse Conv(Conv(x, w1, b1), w2, b2) into Conv(x, w2 @ w1, b) for a 1×1 kernel w1, if no dearer."""

    def merged(m: Match) -> Result:
        s, first = m.site, m.nodes[1]
        shapes = _weight_shapes(m)
        if shapes is None:
            return None
        one, two = shapes
        if any(size != 1 for size in one[2:]) or any(s.attr("pads", node=first) or ()) or math.prod(two[2:]) == 1:
            return None
        if any(step != 1 for step in s.attr("strides", node=first) or ()):
            return Refusal("the 1×1 convolution skips positions")
        bias = bias_of(first)
        padded = any(s.attr("pads") or ()) or s.attr("auto_pad", "NOTSET") not in _UNPADDED
        if padded and bias is not None and bias.any():
            return Refusal("the second convolution pads the result of the 1×1 convolution, whose bias is not 0")
        before = math.prod(two) + (math.prod(one) if _has_as_many_positions(s, first) else 0)
        if math.prod((two[0], one[1], *two[2:])) > before:
            return Refusal("one convolution would multiply more than both")
        group = s.attr("group", 1)
        weight = _merge_weights(first, s.node, group, "gomk,gmc->gock")
        attributes = attributes_of(s.node) | {"kernel_shape": list(two[2:])}
        return Op(("Conv",))(m.x, weight, _merge_biases(first, s.node, group), **attributes)

    return Conv(Conv(x, w1, b1), w2, b2) >> merged | where(_are_foldable)


def _has_as_many_positions(s: Site, first: ir.Node) -> bool:
    """Return True if the first convolution computes at least as many positions as the root."""
    inner, outer = s.sizes.dims(first.outputs[0]), s.sizes.dims(s.output)
    if inner is None or outer is None:
        return False
    return all(
        x >= y if isinstance(x, int) and isinstance(y, int) else equal(x, y) is True
        for x, y in zip(inner[2:], outer[2:], strict=True)
    )


def _grouped(array: np.ndarray, group: int) -> np.ndarray:
    """Reshape a weight [out, in / group, …] to [group, out / group, in / group, kernel]."""
    return array.astype(np.float64).reshape(group, array.shape[0] // group, array.shape[1], -1)


def _merge_weights(first: ir.Node, second: ir.Node, group: int, equation: str) -> np.ndarray:
    """Return the weight of both convolutions; ``equation`` names the second's weight, then the first's."""
    one, two = facts.constant(first.inputs[1]), facts.constant(second.inputs[1])
    assert one is not None and two is not None
    kernel = one.shape[2:] if math.prod(two.shape[2:]) == 1 else two.shape[2:]
    operands = [_grouped(two, group), _grouped(one, group)]
    terms = equation.split("->")[0].split(",")
    operands = [a if len(t) == 4 else a[..., 0] for a, t in zip(operands, terms, strict=True)]
    whole = np.einsum(equation, *operands, optimize=True)
    return np.ascontiguousarray(whole.reshape(two.shape[0], one.shape[1], *kernel).astype(one.dtype))


def _merge_biases(first: ir.Node, second: ir.Node, group: int) -> np.ndarray | None:
    inner, outer, weight = bias_of(first), bias_of(second), facts.constant(second.inputs[1])
    assert weight is not None
    if inner is None:
        return outer
    carried = np.einsum("gomk,gm->go", _grouped(weight, group), inner.astype(np.float64).reshape(group, -1))
    total = carried.reshape(-1) + (0 if outer is None else outer.astype(np.float64))
    return np.asarray(total, weight.dtype)


@rule("fuse_parallel_convs", on="Conv", exactness=REASSOCIATES, default=False)
def parallel_convs(s: Site) -> Result:
    """Fuse Conv(x, a) and Conv(x, b) with equal attributes into Split(Conv(x, Concat(a, b)))."""
    x = s.input(0)
    if x is None or facts.refers_to_function_attribute(s.node) or s.attr("group", 1) != 1:
        return None
    siblings = [
        use.node
        for use in x.uses()
        if use.idx == 0 and facts.is_op(use.node, "Conv") and use.node.graph is s.graph and _alike(s, use.node)
    ]
    if len(siblings) < 2 or siblings[0] is not s.node:
        return None
    parts = _together(siblings)
    if parts is None:
        return Refusal("a weight or a bias is not constant")
    sizes = [(facts.static_shape(node.inputs[1]) or (0,))[0] for node in siblings]
    joined = build_split(s, Op(("Conv",))(x, *parts, **attributes_of(s.node)), sizes, 1)
    return Patch({node.outputs[0]: joined.out(i) for i, node in enumerate(siblings)}, after=x)


@rule("fuse_split_convs", on="Concat", after="Conv", exactness=REASSOCIATES)
def convs_of_parts(s: Site) -> Result:
    """Fuse Concat of Convs on all equal parts of the channels, with equal attributes, into one Conv."""
    if len(s.node.inputs) < 2 or axis_of(s, s.node) != 1:
        return None
    convs = [s.producer(index, "Conv") for index in range(len(s.node.inputs))]
    nodes = [node for node in convs if node is not None]
    if len(nodes) != len(convs) or any(facts.refers_to_function_attribute(node) for node in nodes):
        return None
    if not all(facts.used_once(node.outputs[0]) for node in nodes):
        return Refusal("a convolution has other readers")
    source = _source(s, nodes)
    if source is None:
        return None
    shapes = {facts.static_shape(node.inputs[1]) for node in nodes}
    if len(shapes) != 1 or None in shapes or not all(_alike(Site(s.workspace, nodes[0]), node) for node in nodes):
        return Refusal("the convolutions have other attributes or weights of other shapes")
    parts = _together(nodes)
    if parts is None:
        return Refusal("a weight or a bias is not constant")
    attributes = attributes_of(nodes[0]) | {"group": s.attr("group", 1, node=nodes[0]) * len(nodes)}
    return Op(("Conv",))(source, *parts, **attributes)


def _alike(s: Site, other: ir.Node) -> bool:
    """Return True if another convolution has the root's kernel, strides, dilations, padding and groups."""
    if facts.refers_to_function_attribute(other) or facts.dtype(other.inputs[1]) != facts.dtype(s.input(1)):
        return False
    shapes = [facts.static_shape(node.inputs[1]) for node in (s.node, other)]
    if shapes[0] is None or shapes[1] is None or shapes[0][1:] != shapes[1][1:]:
        return False
    axes = len(shapes[0]) - 2
    usual = {"strides": [1] * axes, "dilations": [1] * axes, "pads": [0] * (2 * axes), "auto_pad": "NOTSET", "group": 1}

    def slides(node: ir.Node) -> list[object]:
        written = [s.attr(name, plain, node=node) for name, plain in usual.items()]
        return [
            list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value for value in written
        ]

    return slides(s.node) == slides(other)


def _together(convs: Sequence[ir.Node]) -> list[np.ndarray] | None:
    """Concatenate the weights, and the biases if any has one; None if one is computed."""
    weights = [facts.constant(node.inputs[1]) for node in convs]
    if not all(value is None or facts.is_constant(value) for node in convs for value in node.inputs[2:]):
        return None
    known = [weight for weight in weights if weight is not None]
    if len(known) != len(weights):
        return None
    parts = [np.concatenate(known)]
    biases = [bias_of(node) for node in convs]
    if any(bias is not None for bias in biases):
        pairs = zip(known, biases, strict=True)
        parts.append(np.concatenate([np.zeros(w.shape[0], w.dtype) if b is None else b for w, b in pairs]))
    return parts


def _source(s: Site, convs: Sequence[ir.Node]) -> ir.Value | None:
    """Return the tensor whose channels these read, all of them, in equal parts and in order."""
    spans = [_channels(s, node.inputs[0]) for node in convs]
    known = [span for span in spans if span is not None]
    if len(known) != len(spans) or len({id(source) for source, _, _ in known}) != 1:
        return None
    source, first, part_size = known[0]
    if first != 0 or any((start, size) != (i * part_size, part_size) for i, (_, start, size) in enumerate(known)):
        return None
    return source if facts.dim_at(source, 1) == part_size * len(known) else None


def _channels(s: Site, value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """Return the source of a Split or Slice of channels, the first channel and their number."""
    node = None if value is None else value.producer()
    if node is None or value is None or node.graph is not s.graph or node.inputs[0] is None:
        return None
    if facts.is_op(node, "Split") and axis_of(s, node) == 1:
        sizes, index = split_sizes(s, node), value.index() or 0
        return None if sizes is None else (node.inputs[0], sum(sizes[:index]), sizes[index])
    if facts.is_op(node, "Slice"):
        span = contiguous_range(s, node)
        return (node.inputs[0], span[1], span[2] - span[1]) if span is not None and span[0] == 1 else None
    return None
