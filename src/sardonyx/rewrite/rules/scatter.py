"""Scatters that write a box: assignments to a slice, which exporters write with index grids."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, A, Expr, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Concat, Reshape, ScatterND, Slice
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.rules.fold import evaluate_constants

PEEKED_ELEMENTS = 1 << 23
"""Largest number of indices that are evaluated to find the addressed elements."""


def peek(workspace: Workspace, value: ir.Value | None) -> np.ndarray | None:
    """Return the value of a constant subgraph, which stays as it is; None if not constant or too large."""
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
    """Return the nodes that compute ``value`` from constants alone, in order, or None."""
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
    """Return the box ``((low, high), …)`` that ScatterND indices enumerate in row-major order, or None."""
    if indices.size == 0:
        return None
    rows = indices.reshape(-1, indices.shape[-1])
    # In row-major order, the first row is the lowest corner and the last row the highest.
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


@rule("eliminate_scatter_of_slice", exactness=EXACT, opset=11)
def assigned_slice(data: V, indices: V, updates: V, reduction: A) -> Rewrite:
    """Replace a ScatterND that assigns to a slice of one axis by a Concat."""

    def concat(m: Match) -> Result:
        shape, index_shape = facts.static_shape(m.data), facts.static_shape(m.indices)
        if m.reduction not in (None, "none", b"none") or shape is None or not index_shape:
            return None
        rows = peek(m.site.workspace, m.indices)
        if rows is None:
            return Refusal("the indices are not constant")
        box = addressed_box(rows)
        if box is None:
            return Refusal("the indices do not enumerate a box in row-major order")
        if any(high > size for (_, high), size in zip(box, shape, strict=False)):
            return Refusal("an index is out of bounds")
        partial = [axis for axis, (low, high) in enumerate(box) if (low, high) != (0, shape[axis])]
        if len(partial) > 1:
            return Refusal("the indices select a part of more than one axis")
        return _assign(m.data, m.updates, shape, box, partial)

    return ScatterND(data, indices, updates, reduction=reduction) >> concat


def _assign(
    data: ir.Value, updates: ir.Value, shape: tuple[int, ...], box: Sequence[tuple[int, int]], partial: Sequence[int]
) -> Expr | ir.Value:
    """Return ``data`` with ``updates`` in the box, which is a part of at most one axis."""
    box_shape = tuple(high - low for low, high in box) + shape[len(box) :]
    part: Expr | ir.Value = updates
    if facts.static_shape(updates) != box_shape:
        part = Reshape(updates, np.array(box_shape, np.int64))
    if not partial:
        return part
    axis = partial[0]
    low, high = box[axis]
    before = [_piece(data, axis, 0, low)] if low > 0 else []
    after = [_piece(data, axis, high, shape[axis])] if high < shape[axis] else []
    return Concat(*before, part, *after, axis=axis)


def _piece(data: ir.Value, axis: int, start: int, end: int) -> Expr:
    return Slice(
        data,
        np.array([start], np.int64),
        np.array([end], np.int64),
        np.array([axis], np.int64),
        np.array([1], np.int64),
    )
