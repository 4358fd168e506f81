"""Masks of attention: what is known of them before a run, and guards against rows that are masked wholly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Match, Op, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import IsNaN, Where
from sardonyx.rewrite.rules.broadcasting import keeps_shape, repeated
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.scales import scaled
from sardonyx.rewrite.rules.signatures import axis_of, slice_ranges
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

MASKED = -1e4
"""What exporters add to a score, or write for it, that shall not count is this or less: e to that power is 0."""

FARTHEST = 16
"""Nodes behind a mask at which −∞ is looked for."""

_PASSING = ("Where", "Add", "Cast", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def _triangle(s: Site, value: ir.Value | None) -> bool | None:
    """Whether ``value`` is all but 0 exactly up to the diagonal of its last two axes (True), or above it (False)."""
    node = made_by(s, value, "Trilu", "Not", "Cast", "Equal", "Unsqueeze")
    if node is None:
        array = facts.constant(value) if facts.is_constant(value) and facts.dtype(value) == ir.DataType.BOOL else None
        lower = None if array is None or array.ndim < 2 else np.tril(np.ones(array.shape[-2:], np.bool_))
        if array is None or lower is None:
            return None
        return True if (array == lower).all() else False if (array != lower).all() else None
    if node.op_type == "Trilu":
        number = repeated(s, node.inputs[0])
        return None if not number or math.isnan(number) else _side(s, node)
    if node.op_type == "Unsqueeze":
        return _triangle(s, node.inputs[0]) if _appends_in_front(s, node) else None
    if node.op_type == "Cast":
        return _triangle(s, node.inputs[0]) if s.attr("to", node=node) == ir.DataType.BOOL else None
    if node.op_type == "Equal" and repeated(s, node.inputs[1]) != 0:
        return None
    inner = _triangle(s, node.inputs[0])
    return None if inner is None else not inner


def _side(s: Site, node: ir.Node) -> bool | None:
    """Which triangle a Trilu keeps: up to the diagonal (True), above it (False), or another."""
    diagonal = node.inputs[1] if len(node.inputs) > 1 else None
    offset = 0 if diagonal is None else facts.scalar(diagonal)
    return {(0, 0): True, (1, 1): False}.get((s.attr("upper", node=node), offset))


def _appends_in_front(s: Site, node: ir.Node) -> bool:
    before, after = s.sizes.dims(node.inputs[0]), s.sizes.dims(node.outputs[0])
    return before is not None and after is not None and len(before) >= 2 and after[-2:] == before[-2:]


def is_causal(s: Site, mask: ir.Value | None) -> bool:
    """Whether a mask, of booleans or to be added, lets each query see the keys up to its own place and no others."""
    if facts.dtype(mask) == ir.DataType.BOOL:
        return _triangle(s, mask) is True
    node = made_by(s, mask, "Where", "Trilu", "Unsqueeze")
    if node is None:
        array = facts.constant(mask) if facts.is_constant(mask) else None
        if array is None or array.ndim < 2:
            return False
        lower = np.tril(np.ones(array.shape[-2:], np.bool_))
        return bool((np.where(lower, array, 0) == 0).all() and (np.where(lower, MASKED, array) <= MASKED).all())
    if node.op_type == "Unsqueeze":
        return _appends_in_front(s, node) and is_causal(s, node.inputs[0])
    if node.op_type == "Trilu":
        number = repeated(s, node.inputs[0])
        return number is not None and number <= MASKED and _side(s, node) is False
    side = _triangle(s, node.inputs[0])
    seen, unseen = (repeated(s, node.inputs[at]) for at in ((1, 2) if side else (2, 1)))
    return side is not None and seen == 0 and unseen is not None and unseen <= MASKED


def is_causal_behind(s: Site, mask: ir.Value | None, past: Size, total: Size) -> bool:
    """Whether a mask is the rows from ``past`` to ``total``, and as many columns, of a constant causal table.

    Where the table has no such rows or columns, it has not a column for each of the ``total`` keys: no run succeeds.
    """
    wanted = {-2: (past, total), -1: (0, total)}
    while (node := made_by(s, mask, "Slice")) is not None:
        rank, spans = facts.rank(node.inputs[0]), _spans(s, node)
        if rank is None or spans is None:
            return False
        for axis, span in spans.items():
            at = axis % rank - rank
            if at not in wanted or not all(equal(a, b) is True for a, b in zip(span, wanted.pop(at), strict=True)):
                return False
        mask = node.inputs[0]
    shape = facts.static_shape(mask)
    return not wanted and shape is not None and min(shape[-2:]) > 1 and facts.is_constant(mask) and is_causal(s, mask)


def _spans(s: Site, node: ir.Node) -> dict[int, tuple[Size, Size]] | None:
    """Where a Slice by steps of 1 begins and ends, by axis; None where that is not known."""
    if s.opset < 10:
        return None
    given = [s.sizes.elements(value) for value in node.inputs[1:]]
    starts, ends, on, steps = [*(None if found is None else found[1] for found in given), None, None, None][:4]
    if len(node.inputs) > 4 and steps is None:
        return None
    if starts is None or ends is None or on is None or not len(starts) == len(ends) == len(on):
        return None
    if any(not isinstance(axis, int) for axis in on) or any(step != 1 for step in steps or ()):
        return None
    return {int(axis): (start, end) for axis, start, end in zip(on, starts, ends, strict=True) if isinstance(axis, int)}


def leaves_a_key(s: Site, mask: ir.Value | None) -> bool:
    """Whether each query of a mask, of booleans or to be added, surely sees a key: no row is masked wholly."""
    if is_causal(s, mask) or _adds_finite_numbers(s, mask):
        return True
    table, from_first = table_of(s, mask)
    array = facts.constant(table) if facts.is_constant(table) else None
    if array is None or not array.ndim or np.isnan(array).any() or np.isposinf(array).any():
        return False
    seen = array if array.dtype == np.bool_ else np.isfinite(array)
    # A part of the keys that begins with the first holds what each query sees there.
    return from_first is not None and bool(seen[..., :1].any(-1).all() if from_first else seen.any(-1).all())


def _adds_finite_numbers(s: Site, mask: ir.Value | None) -> bool:
    """Whether a mask is to be added and is one of two finite numbers everywhere, wherever they stand."""
    node = made_by(s, mask, "Where")
    numbers = [repeated(s, mask)] if node is None else [repeated(s, value) for value in node.inputs[1:]]
    finite = all(isinstance(number, float) and math.isfinite(number) for number in numbers)
    return finite and facts.dtype(mask) != ir.DataType.BOOL


def may_hide_all(s: Site, mask: ir.Value | None) -> bool:
    """Whether a mask that is added holds −∞ where a run decides, so that it may leave a query no key."""
    queue = [mask]
    for _ in range(FARTHEST):
        if not queue:
            return False
        value = queue.pop(0)
        if leaves_a_key(s, value):
            continue
        if repeated(s, value) == -math.inf:
            return True
        node = made_by(s, value, *_PASSING)
        if node is not None:
            queue += node.inputs[1:] if node.op_type == "Where" else node.inputs
    return False


def table_of(s: Site, mask: ir.Value | None) -> tuple[ir.Value | None, bool | None]:
    """What Slices take a mask from; whether that is the first so many keys (None: others) or all of them (False)."""
    taken: bool | None = False
    while (node := made_by(s, mask, "Slice")) is not None:
        first = _takes_first(s, node)
        taken = None if first is None or taken is None else taken or first
        mask = node.inputs[0]
    return mask, taken


def _takes_first(s: Site, node: ir.Node) -> bool | None:
    """Whether a Slice takes the first so many, however many, along the last axis (None: others) or all (False)."""
    rank, ranges = facts.rank(node.inputs[0]), slice_ranges(s, node)
    if rank is None:
        return None
    if ranges is not None:
        start, _, step = ranges.get(rank - 1, (0, 0, 1))
        return None if (start, step) != (0, 1) else rank - 1 in ranges
    starts, on, steps = (None if len(node.inputs) <= at else s.sizes.constant(node.inputs[at]) for at in (1, 3, 4))
    if on is not None and rank - 1 not in {axis % rank for axis in on}:
        return False
    if starts is None or on is None or (len(node.inputs) > 4 and steps is None):
        return None
    along = {axis % rank: span for axis, span in zip(on, zip(starts, steps or starts, strict=True), strict=True)}
    start, step = along[rank - 1]
    return True if start == 0 and (steps is None or step == 1) else None


def _finite_somewhere(s: Site, scores: ir.Value | None) -> bool:
    """Whether each row of ``scores`` has a finite number where the operands of the product behind it are finite."""
    inner, _ = scaled(s, scores) or (scores, 1.0)
    node = made_by(s, inner, "MatMul", "Add")
    if node is None or node.op_type == "MatMul":
        return node is not None
    for at in (0, 1):
        mask, rest = node.inputs[at], node.inputs[1 - at]
        if leaves_a_key(s, mask) and keeps_shape(s, node.outputs[0], [mask]) and _spans_keys(s, mask, rest):
            return _finite_somewhere(s, rest)
    return False


def _spans_keys(s: Site, mask: ir.Value | None, scores: ir.Value | None) -> bool:
    """Whether a mask has an element for each key, and not one for all."""
    own, keys = s.sizes.dims(mask), s.sizes.dims(scores)
    return bool(own and keys) and own is not None and keys is not None and own[-1] == keys[-1]


def _guarded(m: Match) -> ir.Value | Refusal | None:
    value: ir.Value = m.x
    softmax, rank = made_by(m.site, value, "Softmax"), facts.rank(value)
    if softmax is None or rank is None or rank != facts.rank(m.root.outputs[0]):
        return None
    if axis_of(m.site, softmax, -1 if m.site.opset >= 13 else 1) != rank - 1:
        return Refusal("the Softmax is not taken along the last axis")
    if not _finite_somewhere(m.site, softmax.inputs[0]):
        return Refusal("a mask may leave a row nothing: the guard makes 0 of its NaN")
    return value


@rule("eliminate_nan_guard", exactness=APPROXIMATES, opset=9)
def guard_of_softmax(x: V) -> Rewrite:
    """Where(IsNaN(p), 0, p) of a Softmax p over products is p where no mask takes a whole row, for finite operands."""
    return Where(IsNaN(x).once, 0, x) >> _guarded


@rule("fuse_causal_mask_into_attention", on="Attention", exactness=APPROXIMATES, opset=23)
def causal_mask(s: Site) -> Result:
    """Attention with a mask of the keys after each query is causal by itself; e^-10000, if that is added, is 0."""
    mask = s.input(3)
    if mask is None or len(s.node.inputs) > 4 or s.attr("is_causal") or not is_causal(s, mask):
        return None
    dims, q, k = (s.sizes.dims(value) for value in (mask, s.input(0), s.input(1)))
    if dims is None or q is None or k is None or dims[-2:] != (q[-2], k[-2]):
        return Refusal("the mask has not a row for each query and a column for each key")
    attributes = dict[str, Any](s.node.attributes) | {"is_causal": 1}
    outputs = Op(("Attention",))(*s.node.inputs[:3], n_outputs=len(s.node.outputs), **attributes)
    return tuple(outputs.out(i) for i in range(len(s.node.outputs)))
