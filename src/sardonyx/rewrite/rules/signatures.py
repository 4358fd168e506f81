"""Parameters that are attributes in some operator sets and inputs in others.

This module has no rule; the rules on axes, slices and splits share these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core import dim
from sardonyx.core.dim import Size, product
from sardonyx.errors import SizeLimitError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import Expr, Op
from sardonyx.rewrite.site import Site

END = np.iinfo(np.int64).max
"""End of a Slice that exporters write for "to the end"."""

Range = tuple[int, int, int]
"""Start, end and step of a Slice along one axis, as written."""

_AXES_AS_INPUT = {"Squeeze": 13, "Unsqueeze": 13, "ReduceSum": 13}


def axes_of(s: Site, node: ir.Node) -> tuple[int, ...] | None:
    """Return the axes of a Squeeze, Unsqueeze or Reduce as written; empty if absent, None if not known."""
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    if operand is not None:
        return facts.constant_ints(operand)
    if "axes" in node.attributes and node.attributes["axes"].is_ref():
        return None
    written = s.attr("axes", node=node)
    return () if written is None else tuple(int(axis) for axis in written)


def axis_from_front(axis: int, rank: int) -> int | None:
    """Return an axis counted from the front; None if the axis is invalid, as of a node that no run reaches."""
    return axis % rank if -rank <= axis < rank else None


def normalize_axes(written: Sequence[int], rank: int | None) -> tuple[int, ...] | None:
    """Return the axes counted from the front, sorted; None if the rank is not known or an axis is invalid."""
    if rank is None:
        return tuple(sorted(written)) if all(axis >= 0 for axis in written) else None
    if not all(-rank <= axis < rank for axis in written):
        return None
    return tuple(sorted({axis % rank for axis in written}))


def apply_along(s: Site, op_type: str, x: Expr | ir.Value, along: Sequence[int], **attrs: Any) -> Expr:
    """Return ``op_type`` of ``x`` along axes, in the form of the operator set in force."""
    if s.opset >= _AXES_AS_INPUT.get(op_type, 18):
        return Op((op_type,))(x, np.array(along, np.int64), **attrs)
    return Op((op_type,))(x, axes=list(along), **attrs)


def may_reject_sizes(s: Site, *nodes: ir.Node) -> bool:
    """Return True if a node is a Squeeze of axes not known to be of size 1, which fails for other sizes.

    For compiled code, also if a node is a Reshape that is not known to fit: compiled code refuses what the interpreter
    refuses, and merges shapes itself, with the conditions of each.
    """
    for node in nodes:
        if node.op_type == "Reshape" and s.target == "native" and not _is_certain_to_fit(s, node):
            return True
        if node.op_type != "Squeeze":
            continue
        along = normalize_axes(axes_of(s, node) or (), facts.rank(node.inputs[0]))
        if along is None or not all(facts.dim_at(node.inputs[0], axis) == 1 for axis in along):
            return True
    return False


def _is_certain_to_fit(s: Site, node: ir.Node) -> bool:
    """Return True if a Reshape accepts every input of the known shape, also an empty one."""
    dims, elements = s.sizes.dims(node.inputs[0]), s.sizes.elements(node.inputs[1] if len(node.inputs) > 1 else None)
    if dims is None or elements is None:
        return False
    copies = not s.attr("allowzero", 0, node=node)
    before, inferred = list(dims), 0
    after: list[Size] = []
    for axis, size in enumerate(elements[1]):
        if size == -1:
            inferred += 1
        elif axis < len(dims) and (dim.equal(size, dims[axis]) or (copies and size == 0)):
            before[axis] = 1  # Copied, also where it is 0.
        elif copies and may_copy(size, dims, axis):
            return False
        else:
            after.append(size)
    try:
        total, rest = product(before), product(after)
        if inferred and not copies and not all(size == -1 or dim.at_least(size, 1) for size in elements[1]):
            return False  # With `allowzero`, no size is inferred beside a 0.
        if inferred == 1 and rest != 0:
            # Sound where a symbol is 0: copied sizes are left out, and no other size may be 0.
            return dim.equal(dim.floor_div(total, rest, dim.POSITIVE) * rest, total) is True
        return inferred == 0 and dim.equal(total, rest) is True
    except SizeLimitError:
        return False


def may_copy(size: Size, dims: Sequence[Size], axis: int) -> bool:
    """Return True if an entry of a new shape may be 0, and copy an axis of another size or none."""
    if isinstance(size, int):
        return size == 0
    return dim.at_least(size, dim.dim_min(1, dims[axis]) if axis < len(dims) else 1) is not True


def slice_ranges(s: Site, node: ir.Node) -> dict[int, Range] | None:
    """Return the ranges of a Slice by axis (counted from the front); None if one is not known."""
    if s.opset < 10:
        starts, ends, on = s.attr("starts", node=node), s.attr("ends", node=node), s.attr("axes", node=node)
        steps = None
    else:
        operands = [None if v is None else s.sizes.constant(v) for v in node.inputs[1:]]
        if any(v is not None and o is None for v, o in zip(node.inputs[1:], operands, strict=True)):
            return None
        operands += [None] * (4 - len(operands))
        starts, ends, on, steps = operands[:4]
    if starts is None or ends is None:
        return None
    on = tuple(range(len(starts))) if on is None else tuple(on)
    steps = (1,) * len(starts) if steps is None else tuple(steps)
    rank = facts.rank(node.inputs[0])
    if not len(starts) == len(ends) == len(on) == len(steps):
        return None
    if rank is None and any(axis < 0 for axis in on):
        return None
    front = [axis if rank is None else axis_from_front(axis, rank) for axis in on]
    ranges = {
        axis: (int(start), int(end), int(step))
        for axis, start, end, step in zip(front, starts, ends, steps, strict=True)
        if axis is not None
    }
    return ranges if len(ranges) == len(on) and 0 not in steps else None


def build_slice(s: Site, x: ir.Value, ranges: Mapping[int, Range]) -> Expr | None:
    """Return the Slice of ``x`` by these ranges; None if the operator set in force cannot express it."""
    on = sorted(ranges)
    starts, ends, steps = ([ranges[axis][i] for axis in on] for i in range(3))
    if s.opset < 10:
        if any(step != 1 for step in steps):
            return None
        return Op(("Slice",))(x, starts=starts, ends=ends, axes=on)
    operands = [np.array(values, np.int64) for values in (starts, ends, on)]
    if any(step != 1 for step in steps):
        operands.append(np.array(steps, np.int64))
    return Op(("Slice",))(x, *operands)


def covers_axis(span: Range, size: int | None) -> bool:
    """Return True if a range selects all of an axis of ``size`` (None: not known), in order."""
    start, end, step = span
    if step != 1:
        return False
    if size is None:
        return start == 0 and end >= np.iinfo(np.int32).max
    return (start == 0 or start <= -size) and end >= size


def split_sizes(s: Site, node: ir.Node) -> tuple[int, ...] | None:
    """Return the sizes of a Split's parts; None if not known."""
    operand = node.inputs[1] if len(node.inputs) > 1 else None
    if operand is not None:
        return s.sizes.constant(operand)
    written = s.attr("split", node=node)
    if written is not None:
        return tuple(int(size) for size in written)
    size = facts.dim_at(node.inputs[0], s.attr("axis", 0, node=node))
    if size is None or "split" in node.attributes:
        return None
    part_size = -(-size // len(node.outputs))
    return tuple(max(min(part_size, size - i * part_size), 0) for i in range(len(node.outputs)))


def build_split(s: Site, x: Expr | ir.Value, sizes: Sequence[int], axis: int) -> Expr:
    """Return the Split of ``x`` along ``axis`` into parts of these sizes."""
    if s.opset >= 13:
        return Op(("Split",))(x, np.array(sizes, np.int64), n_outputs=len(sizes), axis=axis)
    return Op(("Split",))(x, n_outputs=len(sizes), axis=axis, split=list(sizes))


def reapply(node: ir.Node, *inputs: Expr | ir.Value | None) -> Expr:
    """Return the node's operator with the same attributes on other inputs."""
    return Op((node.op_type,), node.domain)(*inputs, **dict[str, Any](node.attributes))


def axis_of(s: Site, node: ir.Node, default: int = 0) -> int | None:
    """Return the ``axis`` attribute, counted from the front if the rank of the first input is known."""
    attribute = node.attributes.get("axis")
    if attribute is not None and attribute.is_ref():
        return None
    axis = int(s.attr("axis", default, node=node))
    rank = facts.rank(node.inputs[0])
    return axis if rank is None else axis_from_front(axis, rank)


def is_read_only_by(value: ir.Value, *op_types: str) -> bool:
    """Return True if only these operators read ``value``, as first input, and no graph output does."""
    uses = value.uses()
    return not value.is_graph_output() and all(
        use.idx == 0 and use.node.op_type in op_types and use.node.graph is value.graph for use in uses
    )
