"""Reductions: over nothing, of each other, and with the axes that a neighbour drops or puts back."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, EXACT, REASSOCIATES, Expr, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.broadcasting import filled
from sardonyx.rewrite.rules.reshapes import FAMILY, in_shape_of, same_dims
from sardonyx.rewrite.rules.signatures import axes, normalized, with_axes
from sardonyx.rewrite.site import Site

NESTING = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
"""Reductions that give a single element as it is, and may be taken along some axes first and others after."""

REDUCTIONS = (*NESTING, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def reduced_axes(s: Site, node: ir.Node) -> tuple[int, ...] | None:
    """The axes that a reduction takes, from the front; None where they are not known."""
    given, rank = axes(s, node), facts.rank(node.inputs[0])
    if given is None:
        return None
    if given:
        return normalized(given, rank)
    if s.attr("noop_with_empty_axes", 0, node=node):
        return ()
    return None if rank is None else tuple(range(rank))


def _reduce(s: Site, node: ir.Node, along: tuple[int, ...], keepdims: bool) -> Expr:
    x = node.inputs[0]
    assert x is not None
    return with_axes(s, node.op_type, x, along, keepdims=int(keepdims))


@rule("eliminate_nop_reduce", on=NESTING, exactness=REASSOCIATES, opset=5)
def reduce_of_one(s: Site) -> Result:
    """Reduction along axes of size 1 is its input, in the result's shape; a sum of −0.0 alone is 0.0."""
    along = reduced_axes(s, s.node)
    if along is None or not all(facts.dim_at(s.input(0), axis) == 1 for axis in along):
        return None
    if along == () and not s.attr("noop_with_empty_axes", 0) and s.rank(0) != 0:
        return None
    if s.attr("keepdims", 1) or not along:
        return s.input(0)
    return in_shape_of(s, s.input(0), s.output)


@rule("fuse_consecutive_reduce_unsqueeze", on="Unsqueeze", after=REDUCTIONS, exactness=EXACT)
def reduce_unsqueeze(s: Site) -> Result:
    """Reduction whose dropped axes an Unsqueeze puts back keeps its axes."""
    node, between = s.producer(0, *REDUCTIONS), s.input(0)
    if node is None or between is None or s.attr("keepdims", 1, node=node):
        return None
    if not facts.used_once(between):
        return Refusal("the reduced tensor has other readers")
    along, back = reduced_axes(s, node), normalized(axes(s, s.node) or (), facts.rank(s.output))
    if not along or along != back:
        return Refusal("other axes are put back than are reduced")
    return _reduce(s, node, along, keepdims=True)


@rule("fuse_consecutive_reduce_unsqueeze", on="Squeeze", after=REDUCTIONS, exactness=EXACT)
def reduce_squeeze(s: Site) -> Result:
    """Reduction whose kept axes a Squeeze drops does not keep them."""
    node, between = s.producer(0, *REDUCTIONS), s.input(0)
    if node is None or between is None or not s.attr("keepdims", 1, node=node):
        return None
    if not facts.used_once(between):
        return Refusal("the reduced tensor has other readers")
    along, dropped = reduced_axes(s, node), normalized(axes(s, s.node) or (), facts.rank(between))
    if not along or along != dropped:
        return Refusal("other axes are dropped than are reduced")
    return _reduce(s, node, along, keepdims=False)


@rule("fuse_consecutive_reduce_unsqueeze", on=FAMILY, after=REDUCTIONS, exactness=EXACT)
def reduce_reshape(s: Site) -> Result:
    """Reduction whose result is reshaped to what keeping, or dropping, its axes gives."""
    node, between = s.producer(0, *REDUCTIONS), s.input(0)
    if node is None or between is None or not facts.used_once(between):
        return None
    along, dims, wanted = reduced_axes(s, node), s.sizes.dims(node.inputs[0]), s.sizes.dims(s.output)
    if not along or dims is None or wanted is None:
        return None
    kept = tuple(1 if axis in along else size for axis, size in enumerate(dims))
    dropped = tuple(size for axis, size in enumerate(dims) if axis not in along)
    for keepdims, shape in ((True, kept), (False, dropped)):
        if shape == wanted and bool(s.attr("keepdims", 1, node=node)) != keepdims:
            return _reduce(s, node, along, keepdims=keepdims)
    return None


@rule("fuse_consecutive_reduces", on=NESTING, after=NESTING, exactness=REASSOCIATES)
def reduce_of_reduce(s: Site) -> Result:
    """A reduction of the same reduction along other axes is one along both.

    ONNX Runtime's ReduceMax and ReduceMin keep or drop a NaN by the place that it stands at, before as after.
    """
    inner, between = s.producer(0, s.node.op_type), s.input(0)
    if inner is None or between is None:
        return None
    first, second, rank = reduced_axes(s, inner), reduced_axes(s, s.node), facts.rank(inner.inputs[0])
    keeps = bool(s.attr("keepdims", 1))
    if not first or not second or rank is None or not facts.used_once(between):
        return Refusal("axes are not known, or the inner result has other readers")
    if keeps != bool(s.attr("keepdims", 1, node=inner)):
        return Refusal("one keeps its axes and the other does not")
    if not keeps:
        remaining = [axis for axis in range(rank) if axis not in first]
        second = tuple(remaining[axis] for axis in second)
    elif set(first) & set(second):
        return Refusal("an axis is reduced twice")
    return _reduce(s, inner, tuple(sorted((*first, *second))), keepdims=keeps)


@rule("eliminate_nop_variadic", on=("Sum", "Max", "Min", "Mean"), exactness=EXACT)
def variadic_of_one(s: Site) -> Result:
    """Sum, Max, Min or Mean of one tensor."""
    return s.input(0) if len(s.node.inputs) == 1 else None


@rule("eliminate_nop_softmax", on="Softmax", exactness=APPROXIMATES, opset=9, default=False)
def softmax_of_one(s: Site) -> Result:
    """Softmax along an axis of size 1 is 1; only asked for, since it hides NaN and infinities in the input."""
    axis, shape, kind = s.attr("axis", -1 if s.opset >= 13 else 1), facts.static_shape(s.output), facts.dtype(s.output)
    if shape is None or kind is None or not shape:
        return None
    along = shape[axis:] if s.opset < 13 else (shape[axis],)
    if any(size != 1 for size in along):
        return None
    result = filled(shape, 1, kind)
    if isinstance(result, Expr):
        return result
    nodes: list[ir.Node] = []
    return Patch({s.output: s.workspace.new_constant(result, s.graph, f"{s.output.name}_ones", nodes)}, nodes=nodes)


@rule("eliminate_nop_reduce", on="CumSum", exactness=REASSOCIATES)
def cumulative_sum_of_one(s: Site) -> Result:
    """CumSum along an axis of size 1, its own element included, is its input."""
    axis = facts.scalar(s.input(1))
    if not isinstance(axis, int) or s.attr("exclusive", 0) or facts.dim_at(s.input(0), axis) != 1:
        return None
    return s.input(0) if same_dims(s, s.input(0), s.output) else None
