"""Scatters that write a box: an assignment to a slice, which exporters spell with index grids."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Expr, Refusal, Result, rule
from sardonyx.rewrite.notation import Concat, Reshape, Slice
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.rules.fold import evaluate_constants
from sardonyx.rewrite.site import Site

PEEKED_ELEMENTS = 1 << 23
"""Indices looked at, at most, to see what they address."""


def peek(workspace: Workspace, value: ir.Value | None) -> np.ndarray | None:
    """A constant subgraph's value, without making it a weight; None if it is not constant or too large."""
    shape = facts.static_shape(value)
    if value is None or shape is None or int(np.prod(shape, dtype=object)) > PEEKED_ELEMENTS:
        return None
    known = facts.constant(value)
    if known is not None:
        return known
    memo: dict[ir.Value, np.ndarray | None] = workspace.memo.setdefault("peek", {})
    if value not in memo:
        nodes = _constant_subgraph(value)
        try:
            memo[value] = evaluate_constants(workspace, nodes, [value])[value] if nodes else None
        except SardonyxError:
            memo[value] = None
    return memo[value]


def _constant_subgraph(value: ir.Value) -> list[ir.Node] | None:
    """The nodes that compute ``value`` from constants alone, in order; None if something else takes part."""
    order: dict[ir.Node, None] = {}
    stack: list[tuple[ir.Node | None, bool]] = [(value.producer(), False)]
    while stack:
        node, ready = stack.pop()
        if node is None or len(order) > 200:
            return None
        if node in order:
            continue
        if ready:
            order[node] = None
            continue
        if not facts.is_pure(node) or facts.bodies(node):
            return None
        stack.append((node, True))
        for v in node.inputs:
            if v is None or facts.is_constant(v):
                continue
            shape = facts.static_shape(v)
            if shape is None or int(np.prod(shape, dtype=object)) > PEEKED_ELEMENTS:
                return None
            stack.append((v.producer(), False))
    return list(order)


def addressed_box(indices: np.ndarray) -> tuple[tuple[int, int], ...] | None:
    """The box ``((low, high), …)`` that ScatterND indices walk through in row-major order, else None."""
    if indices.size == 0:
        return None
    rows = indices.reshape(-1, indices.shape[-1])
    # In order, the first row is the lowest corner and the last one the highest.
    low, high = rows[0].tolist(), rows[-1].tolist()
    sizes = [b - a + 1 for a, b in zip(low, high, strict=True)]
    if min(low) < 0 or min(sizes) < 1 or math.prod(sizes) != len(rows):
        return None
    grid = rows.reshape(*sizes, -1)
    for axis, (begin, size) in enumerate(zip(low, sizes, strict=True)):
        along = np.arange(begin, begin + size).reshape(-1, *(1,) * (len(sizes) - axis - 1))
        if not (grid[..., axis] == along).all():
            return None
    return tuple((a, b + 1) for a, b in zip(low, high, strict=True))


@rule("eliminate_scatter_of_slice", on="ScatterND", exactness=EXACT, opset=11)
def assigned_slice(s: Site) -> Result:
    """ScatterND that assigns to a slice of one axis is a Concat of what stays and what is assigned."""
    if s.attr("reduction", "none") not in ("none", b"none"):
        return None
    data, indices, updates = s.node.inputs
    shape, index_shape = facts.static_shape(data), facts.static_shape(indices)
    if data is None or updates is None or shape is None or index_shape is None or not index_shape:
        return None
    found = peek(s.workspace, indices)
    if found is None:
        return Refusal("its indices are not constant")
    box = addressed_box(found)
    if box is None:
        return Refusal("its indices are no box in order")
    if any(high > size for (_, high), size in zip(box, shape, strict=False)):
        return Refusal("its indices leave the tensor")
    partial = [axis for axis, (low, high) in enumerate(box) if (low, high) != (0, shape[axis])]
    if len(partial) > 1:
        return Refusal("it assigns to a part of more than one axis")
    box_shape = tuple(high - low for low, high in box) + shape[len(box) :]
    part: Expr | ir.Value = updates
    if facts.static_shape(updates) != box_shape:
        part = Reshape(updates, np.array(box_shape, np.int64))
    if not partial:
        return part
    axis = partial[0]
    low, high = box[axis]
    pieces: list[Expr | ir.Value] = []
    if low > 0:
        pieces.append(_piece(data, axis, 0, low))
    pieces.append(part)
    if high < shape[axis]:
        pieces.append(_piece(data, axis, high, shape[axis]))
    return Concat(*pieces, axis=axis)


def _piece(data: ir.Value, axis: int, start: int, end: int) -> Expr:
    return Slice(
        data,
        np.array([start], np.int64),
        np.array([end], np.int64),
        np.array([axis], np.int64),
        np.array([1], np.int64),
    )
