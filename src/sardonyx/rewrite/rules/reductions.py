"""Reductions: without effect, nested, or with axes that an adjacent operator drops or inserts."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    APPROXIMATES,
    EXACT,
    REASSOCIATES,
    A,
    AnyOf,
    Expr,
    Match,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    where,
)
from sardonyx.rewrite.notation import Add, CumSum, Squeeze, Sum, Unsqueeze
from sardonyx.rewrite.rules.broadcasting import fill_tensor
from sardonyx.rewrite.rules.reshapes import FAMILY, output_has_dims, reshape_like
from sardonyx.rewrite.rules.signatures import apply_along, axes_of, normalize_axes
from sardonyx.rewrite.site import Site

NESTING = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
"""Reductions that are the identity on one element and nest along separate axes."""

REDUCTIONS = (*NESTING, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def reduced_axes(s: Site, node: ir.Node) -> tuple[int, ...] | None:
    """Return the reduced axes counted from the front; None if not known."""
    written, rank = axes_of(s, node), facts.rank(node.inputs[0])
    if written is None:
        return None
    if written:
        return normalize_axes(written, rank)
    if s.attr("noop_with_empty_axes", 0, node=node):
        return ()
    return None if rank is None else tuple(range(rank))


def _reduce(s: Site, node: ir.Node, along: tuple[int, ...], keepdims: bool) -> Expr:
    x = node.inputs[0]
    assert x is not None
    return apply_along(s, node.op_type, x, along, keepdims=int(keepdims))


@rule("eliminate_nop_reduce", exactness=REASSOCIATES, opset=5)
def reduce_of_one(x: V) -> Rewrite:
    """Replace a reduction along axes of size 1 by its input, reshaped; a sum of −0.0 alone is 0.0."""

    def source(m: Match) -> Result:
        s, along = m.site, reduced_axes(m.site, m.root)
        if along is None or not all(facts.dim_at(m.x, axis) == 1 for axis in along):
            return None
        if along == () and not s.attr("noop_with_empty_axes", 0) and s.rank(0) != 0:
            return None
        return m.x if s.attr("keepdims", 1) or not along else reshape_like(s, m.x, s.output)

    return AnyOf(*NESTING)(x, ...) >> source


@rule("fuse_consecutive_reduce_unsqueeze", exactness=EXACT)
def reduce_unsqueeze() -> Rewrite:
    """Fuse Unsqueeze of the axes dropped by a reduction: the reduction keeps the axes."""

    def keep_axes(m: Match) -> Result:
        s, node = m.site, m.nodes[1]
        if s.attr("keepdims", 1, node=node):
            return None
        if not facts.used_once(node.outputs[0]):
            return Refusal("the reduced tensor has other readers")
        along, inserted = reduced_axes(s, node), normalize_axes(axes_of(s, s.node) or (), facts.rank(s.output))
        if not along or along != inserted:
            return Refusal("the Unsqueeze inserts other axes than the reduction drops")
        return _reduce(s, node, along, keepdims=True)

    return Unsqueeze(AnyOf(*REDUCTIONS)(...), ...) >> keep_axes


@rule("fuse_consecutive_reduce_unsqueeze", exactness=EXACT)
def reduce_squeeze() -> Rewrite:
    """Fuse Squeeze of the axes kept by a reduction: the reduction drops the axes."""

    def drop_axes(m: Match) -> Result:
        s, node = m.site, m.nodes[1]
        if not s.attr("keepdims", 1, node=node):
            return None
        if not facts.used_once(node.outputs[0]):
            return Refusal("the reduced tensor has other readers")
        along, dropped = reduced_axes(s, node), normalize_axes(axes_of(s, s.node) or (), s.rank(0))
        if not along or along != dropped:
            return Refusal("the Squeeze drops other axes than the reduction keeps")
        return _reduce(s, node, along, keepdims=False)

    return Squeeze(AnyOf(*REDUCTIONS)(...), ...) >> drop_axes


@rule("fuse_consecutive_reduce_unsqueeze", exactness=EXACT)
def reduce_reshape(x: V) -> Rewrite:
    """Fuse a Reshape that keeps or drops exactly the reduced axes into keepdims."""

    def reduce(m: Match) -> Result:
        s, node = m.site, m.nodes[1]
        along, dims, target = reduced_axes(s, node), s.sizes.dims(m.x), s.sizes.dims(s.output)
        if not facts.used_once(node.outputs[0]) or not along or dims is None or target is None:
            return None
        shape_with_axes = tuple(1 if axis in along else size for axis, size in enumerate(dims))
        shape_without_axes = tuple(size for axis, size in enumerate(dims) if axis not in along)
        for keepdims, shape in ((True, shape_with_axes), (False, shape_without_axes)):
            if shape == target and bool(s.attr("keepdims", 1, node=node)) != keepdims:
                return _reduce(s, node, along, keepdims=keepdims)
        return None

    return AnyOf(*FAMILY)(AnyOf(*REDUCTIONS)(x, ...), ...) >> reduce


@rule("fuse_consecutive_reduces", exactness=REASSOCIATES)
def reduce_of_reduce(x: V) -> Rewrite:
    """Fuse two reductions of one type along separate axes.

    ONNX Runtime's ReduceMax and ReduceMin propagate NaN or not depending on its position, before as after.
    """

    def fuse(m: Match) -> Result:
        s, inner = m.site, m.nodes[1]
        if inner.op_type != s.node.op_type:
            return None
        first, second, rank = reduced_axes(s, inner), reduced_axes(s, s.node), facts.rank(m.x)
        keeps = bool(s.attr("keepdims", 1))
        if not first or not second or rank is None or not facts.used_once(inner.outputs[0]):
            return Refusal("the axes are not known, or the inner result has other readers")
        if keeps != bool(s.attr("keepdims", 1, node=inner)):
            return Refusal("keepdims of the two reductions differ")
        if not keeps:
            remaining = [axis for axis in range(rank) if axis not in first]
            second = tuple(remaining[axis] for axis in second)
        elif set(first) & set(second):
            return Refusal("an axis is reduced twice")
        return _reduce(s, inner, tuple(sorted((*first, *second))), keepdims=keeps)

    return AnyOf(*NESTING)(AnyOf(*NESTING)(x, ...), ...) >> fuse


@rule("eliminate_nop_variadic", exactness=EXACT)
def variadic_of_one(x: V) -> Rewrite:
    """Remove Sum, Max, Min or Mean of one tensor."""
    return AnyOf("Sum", "Max", "Min", "Mean")(x) >> x


@rule("rewrite_sum_as_add", exactness=EXACT, opset=8)
def sum_of_two(x: V, y: V) -> Rewrite:
    """Write Sum of two tensors as Add, which more rules and kernels know."""
    return Sum(x, y) >> Add(x, y)


@rule("eliminate_nop_softmax", on="Softmax", exactness=APPROXIMATES, opset=9, default=False)
def softmax_of_one(s: Site) -> Result:
    """Replace Softmax along an axis of size 1 by ones; optional, since NaN and infinities are lost."""
    axis, shape, kind = s.attr("axis", -1 if s.opset >= 13 else 1), facts.static_shape(s.output), facts.dtype(s.output)
    if shape is None or kind is None or not shape:
        return None
    along = shape[axis:] if s.opset < 13 else (shape[axis],)
    if any(size != 1 for size in along):
        return None
    result = fill_tensor(shape, 1, kind)
    if isinstance(result, Expr):
        return result
    nodes: list[ir.Node] = []
    return Patch({s.output: s.workspace.new_constant(result, s.graph, f"{s.output.name}_ones", nodes)}, nodes=nodes)


def _sums_one_element(m: Match) -> bool:
    axis = facts.scalar(m.axis)
    if not isinstance(axis, int) or m.exclusive or facts.dim_at(m.x, axis) != 1:
        return False
    return output_has_dims(m.site, m.x)


@rule("eliminate_nop_reduce", exactness=REASSOCIATES)
def cumulative_sum_of_one(x: V, axis: V, exclusive: A) -> Rewrite:
    """Remove an inclusive CumSum along an axis of size 1."""
    return CumSum(x, axis, exclusive=exclusive) >> x | where(guard(_sums_one_element, ""))
