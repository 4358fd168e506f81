"""Attention masks: which masks are causal, and which may mask a whole row (guards against NaN)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import APPROXIMATES, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Attention, IsNaN, Where
from sardonyx.rewrite.rules.broadcasting import keeps_shape, repeated_number
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.scales import match_scaled
from sardonyx.rewrite.rules.signatures import axis_of, slice_ranges
from sardonyx.rewrite.site import Site

MASKED = -1e4
"""Largest additive mask value that counts as −∞: exporters write −10000, and e^−10000 is 0."""

FARTHEST = 16
"""Nodes before a mask that are searched for −∞."""

_PASSING = ("Where", "Add", "Cast", "Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def _triangle(s: Site, value: ir.Value | None) -> bool | None:
    """Return True if ``value`` is nonzero exactly up to the diagonal of the last two axes.

    Returns:
        False if ``value`` is nonzero exactly above the diagonal, None otherwise.
    """
    node = producer_of(s, value, "Trilu", "Not", "Cast", "Equal", "Unsqueeze")
    if node is None:
        array = facts.constant(value) if facts.is_constant(value) and facts.dtype(value) == ir.DataType.BOOL else None
        lower = None if array is None or array.ndim < 2 else np.tril(np.ones(array.shape[-2:], np.bool_))
        if array is None or lower is None:
            return None
        return True if (array == lower).all() else False if (array != lower).all() else None
    if node.op_type == "Trilu":
        number = repeated_number(s, node.inputs[0])
        return None if not number or math.isnan(number) else _side(s, node)
    if node.op_type == "Unsqueeze":
        return _triangle(s, node.inputs[0]) if _adds_leading_axes(s, node) else None
    if node.op_type == "Cast":
        return _triangle(s, node.inputs[0]) if s.attr("to", node=node) == ir.DataType.BOOL else None
    if node.op_type == "Equal" and repeated_number(s, node.inputs[1]) != 0:
        return None
    inner = _triangle(s, node.inputs[0])
    return None if inner is None else not inner


def _side(s: Site, node: ir.Node) -> bool | None:
    """Return the triangle that a Trilu keeps: True up to the diagonal, False above, None if another."""
    diagonal = node.inputs[1] if len(node.inputs) > 1 else None
    offset = 0 if diagonal is None else facts.scalar(diagonal)
    return {(0, 0): True, (1, 1): False}.get((s.attr("upper", node=node), offset))


def _adds_leading_axes(s: Site, node: ir.Node) -> bool:
    before, after = s.sizes.dims(node.inputs[0]), s.sizes.dims(node.outputs[0])
    return before is not None and after is not None and len(before) >= 2 and after[-2:] == before[-2:]


def is_causal(s: Site, mask: ir.Value | None) -> bool:
    """Return True if each query of a boolean or additive mask sees exactly the keys up to its position."""
    if facts.dtype(mask) == ir.DataType.BOOL:
        return _triangle(s, mask) is True
    node = producer_of(s, mask, "Where", "Trilu", "Unsqueeze")
    if node is None:
        array = facts.constant(mask) if facts.is_constant(mask) else None
        if array is None or array.ndim < 2:
            return False
        lower = np.tril(np.ones(array.shape[-2:], np.bool_))
        return bool((np.where(lower, array, 0) == 0).all() and (np.where(lower, MASKED, array) <= MASKED).all())
    if node.op_type == "Unsqueeze":
        return _adds_leading_axes(s, node) and is_causal(s, node.inputs[0])
    if node.op_type == "Trilu":
        number = repeated_number(s, node.inputs[0])
        return number is not None and number <= MASKED and _side(s, node) is False
    side = _triangle(s, node.inputs[0])
    seen, unseen = (repeated_number(s, node.inputs[at]) for at in ((1, 2) if side else (2, 1)))
    return side is not None and seen == 0 and unseen is not None and unseen <= MASKED


def is_causal_after_cache(s: Site, mask: ir.Value | None, past: Size, total: Size) -> bool:
    """Return True if a mask is rows ``past:total`` and columns ``0:total`` of a constant causal table.

    A table with fewer rows or columns has no entry for some of the ``total`` keys: no run succeeds.
    """
    expected = {-2: (past, total), -1: (0, total)}
    while (node := producer_of(s, mask, "Slice")) is not None:
        rank, spans = facts.rank(node.inputs[0]), _spans(s, node)
        if rank is None or spans is None:
            return False
        for axis, span in spans.items():
            at = axis if axis < 0 else axis - rank
            if at not in expected or not all(equal(a, b) is True for a, b in zip(span, expected.pop(at), strict=True)):
                return False
        mask = node.inputs[0]
    shape = facts.static_shape(mask)
    return not expected and shape is not None and min(shape[-2:]) > 1 and facts.is_constant(mask) and is_causal(s, mask)


def _spans(s: Site, node: ir.Node) -> dict[int, tuple[Size, Size]] | None:
    """Return start and end by axis of a Slice with steps of 1; None if not known."""
    if s.opset < 10:
        return None
    operands = [s.sizes.elements(value) for value in node.inputs[1:]]
    starts, ends, on, steps = [*(None if entries is None else entries[1] for entries in operands), None, None, None][:4]
    if len(node.inputs) > 4 and steps is None:
        return None
    if starts is None or ends is None or on is None or not len(starts) == len(ends) == len(on):
        return None
    if any(not isinstance(axis, int) for axis in on) or any(step != 1 for step in steps or ()):
        return None
    return {int(axis): (start, end) for axis, start, end in zip(on, starts, ends, strict=True) if isinstance(axis, int)}


def leaves_every_query_a_key(s: Site, mask: ir.Value | None) -> bool:
    """Return True if every query of a boolean or additive mask is known to see a key."""
    if is_causal(s, mask) or _adds_finite_numbers(s, mask):
        return True
    table, from_first = mask_table(s, mask)
    array = facts.constant(table) if facts.is_constant(table) else None
    if array is None or not array.ndim or np.isnan(array).any() or np.isposinf(array).any():
        return False
    seen = array if array.dtype == np.bool_ else np.isfinite(array)
    # A slice that starts at the first key contains the keys that each query sees in it.
    return from_first is not None and bool(seen[..., :1].any(-1).all() if from_first else seen.any(-1).all())


def _adds_finite_numbers(s: Site, mask: ir.Value | None) -> bool:
    """Return True if an additive mask has at most two values, both finite."""
    node = producer_of(s, mask, "Where")
    numbers = [repeated_number(s, mask)] if node is None else [repeated_number(s, value) for value in node.inputs[1:]]
    finite = all(isinstance(number, float) and math.isfinite(number) for number in numbers)
    return finite and facts.dtype(mask) != ir.DataType.BOOL


def may_mask_whole_rows(s: Site, mask: ir.Value | None) -> bool:
    """Return True if an additive mask may contain −∞ at positions that only a run decides."""
    queue = [mask]
    for _ in range(FARTHEST):
        if not queue:
            return False
        value = queue.pop(0)
        if leaves_every_query_a_key(s, value):
            continue
        if repeated_number(s, value) == -math.inf:
            return True
        node = producer_of(s, value, *_PASSING)
        if node is not None:
            queue += node.inputs[1:] if node.op_type == "Where" else node.inputs
    return False


def mask_table(s: Site, mask: ir.Value | None) -> tuple[ir.Value | None, bool | None]:
    """Return the tensor that a mask is sliced from, and the keys selected.

    Returns:
        The tensor; True if the Slices select a prefix of the keys, False if all keys, None if neither is known.
    """
    prefix: bool | None = False
    while (node := producer_of(s, mask, "Slice")) is not None:
        first = _takes_first(s, node)
        prefix = None if first is None or prefix is None else prefix or first
        mask = node.inputs[0]
    return mask, prefix


def _takes_first(s: Site, node: ir.Node) -> bool | None:
    """Return True if a Slice takes a prefix along the last axis, False if all, None if other elements."""
    rank, ranges = facts.rank(node.inputs[0]), slice_ranges(s, node)
    if rank is None:
        return None
    if ranges is not None:
        start, _, step = ranges.get(rank - 1, (0, 0, 1))
        return None if (start, step) != (0, 1) else rank - 1 in ranges
    starts, on, steps = (None if len(node.inputs) <= at else s.sizes.constant(node.inputs[at]) for at in (1, 3, 4))
    if on is not None and not all(-rank <= axis < rank for axis in on):
        return None
    if on is not None and rank - 1 not in {axis % rank for axis in on}:
        return False
    if starts is None or on is None or (len(node.inputs) > 4 and steps is None):
        return None
    along = {axis % rank: span for axis, span in zip(on, zip(starts, steps or starts, strict=True), strict=True)}
    start, step = along[rank - 1]
    return True if start == 0 and (steps is None or step == 1) else None


def _finite_somewhere(s: Site, scores: ir.Value | None) -> bool:
    """Return True if each row of ``scores`` has a finite number for finite operands of the product before."""
    inner, _ = match_scaled(s, scores) or (scores, 1.0)
    node = producer_of(s, inner, "MatMul", "Add")
    if node is None or node.op_type == "MatMul":
        return node is not None
    for at in (0, 1):
        mask, rest = node.inputs[at], node.inputs[1 - at]
        if leaves_every_query_a_key(s, mask) and keeps_shape(s, node.outputs[0], [mask]) and _spans_keys(s, mask, rest):
            return _finite_somewhere(s, rest)
    return False


def _spans_keys(s: Site, mask: ir.Value | None, scores: ir.Value | None) -> bool:
    """Return True if a mask has one element per key, rather than one for all."""
    own, keys = s.sizes.dims(mask), s.sizes.dims(scores)
    return bool(own and keys) and own is not None and keys is not None and own[-1] == keys[-1]


def _remove_guard(m: Match) -> ir.Value | Refusal | None:
    value: ir.Value = m.x
    softmax, rank = producer_of(m.site, value, "Softmax"), facts.rank(value)
    if softmax is None or rank is None or rank != facts.rank(m.root.outputs[0]):
        return None
    if axis_of(m.site, softmax, -1 if m.site.opset >= 13 else 1) != rank - 1:
        return Refusal("the Softmax is not along the last axis")
    if not _finite_somewhere(m.site, softmax.inputs[0]):
        return Refusal("a mask may mask a whole row, whose NaN the guard replaces by 0")
    return value


@rule("eliminate_nan_guard", exactness=APPROXIMATES, opset=9)
def guard_of_softmax(x: V) -> Rewrite:
    """Remove Where(IsNaN(p), 0, p) of a Softmax p if no mask masks a whole row, for finite operands."""
    return Where(IsNaN(x).once, 0, x) >> _remove_guard


@rule("fuse_causal_mask_into_attention", exactness=APPROXIMATES, opset=23)
def causal_mask(q: V, k: V, v: V, mask: V) -> Rewrite:
    """Replace a causal mask of Attention by is_causal; −10000 in an additive mask counts as −∞."""

    def causal(m: Match) -> Result:
        s = m.site
        if s.attr("is_causal") or not is_causal(s, m.mask):
            return None
        dims, query_dims, key_dims = (s.sizes.dims(value) for value in (m.mask, m.q, m.k))
        if dims is None or query_dims is None or key_dims is None or dims[-2:] != (query_dims[-2], key_dims[-2]):
            return Refusal("expected a mask with one row per query and one column per key")
        attributes = dict[str, Any](m.root.attributes) | {"is_causal": 1}
        outputs = Attention(m.q, m.k, m.v, n_outputs=len(m.root.outputs), **attributes)
        return tuple(outputs.out(i) for i in range(len(m.root.outputs)))

    return Attention(q, k, v, mask) >> causal
