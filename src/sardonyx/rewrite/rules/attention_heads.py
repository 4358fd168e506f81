"""The heads of attention: split, repeated or packed before Attention and merged after."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import REASSOCIATES, Expr, Op, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axes_of, axis_of, build_split, split_sizes
from sardonyx.rewrite.site import Site

HEADS_SECOND = (0, 2, 1, 3)
"""The permutation between (batch, length, heads, width) and (batch, heads, length, width), both ways."""

PARTS_FIRST = (2, 0, 3, 1, 4)
"""The permutation from (batch, length, parts, heads, width) to (parts, batch, heads, length, width)."""


def match_split_heads(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Return the tensor (batch, length, heads * width) that is split into heads, and the number of heads."""
    transpose = producer_of(s, value, "Transpose")
    if transpose is None:
        return _split_of_length_one(s, value)
    if tuple(s.attr("perm", (), node=transpose)) != HEADS_SECOND:
        return None
    return split_source(s, transpose.inputs[0])


def split_source(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Return the tensor that a Reshape splits into (batch, length, heads, width), and the number of heads."""
    node = producer_of(s, value, "Reshape")
    merged, split = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or merged is None or split is None or len(merged) != 3 or len(split) != 4:
        return None
    heads, source = split[2], node.inputs[0]
    if source is None or not isinstance(heads, int):
        return None
    return (source, heads) if all(equal(merged[axis], split[axis]) is True for axis in (0, 1)) else None


def _split_of_length_one(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Return the same for length 1, where a Reshape alone gives (batch, heads, 1, width)."""
    node = producer_of(s, value, "Reshape")
    merged, split = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or merged is None or split is None or len(merged) != 3 or len(split) != 4:
        return None
    heads, source = split[1], node.inputs[0]
    alone = merged[1] == 1 and split[2] == 1 and equal(merged[0], split[0]) is True
    return (source, heads) if alone and source is not None and isinstance(heads, int) else None


def match_merged_heads(s: Site) -> ir.Value | None:
    """Return the value whose heads the root merges: a Transpose and Reshape, or a Reshape for length 1."""
    transpose = s.producer(0, "Transpose")
    if transpose is None:
        split, merged = s.sizes.dims(s.input(0)), s.sizes.dims(s.output)
        if split is None or merged is None or (len(split), len(merged)) != (4, 3):
            return None
        alone = split[2] == 1 and merged[1] == 1 and equal(split[0], merged[0]) is True
        return s.input(0) if alone else None
    if tuple(s.attr("perm", (), node=transpose)) != HEADS_SECOND or not facts.used_once(transpose.outputs[0]):
        return None
    split, merged = s.sizes.dims(transpose.outputs[0]), s.sizes.dims(s.output)
    if split is None or merged is None or len(merged) != 3:
        return None
    return transpose.inputs[0] if all(equal(split[axis], merged[axis]) is True for axis in (0, 1)) else None


@rule("fuse_heads_into_attention", on="Reshape", after=("Transpose", "Attention"), exactness=REASSOCIATES, opset=23)
def heads_of_attention(s: Site) -> Result:
    """Fuse Reshapes and Transposes that split and merge heads around Attention into the operator."""
    node = producer_of(s, match_merged_heads(s), "Attention")
    if node is None or not facts.used_once(node.outputs[0]) or not all(facts.unused(v) for v in node.outputs[3:]):
        return None
    packed: dict[ir.Value, Expr] = {}
    parts = [_without_heads(s, value, packed) for value in node.inputs[:3]]
    if any(part is None for part in parts):
        return Refusal("q, k or v is not split into heads by Reshape and Transpose")
    (q, heads), (k, kv_heads), (v, _) = (part for part in parts if part is not None)
    attributes = dict[str, Any](node.attributes) | {"q_num_heads": heads, "kv_num_heads": kv_heads}
    fused = Op(("Attention",))(q, k, v, *node.inputs[3:], n_outputs=len(node.outputs), **attributes)
    others = {value: fused.out(i) for i, value in enumerate(node.outputs) if i}  # outputs that have heads in both forms
    return Patch({s.output: fused.out(0), **others}, before=node)


def _without_heads(s: Site, value: ir.Value | None, packed: dict[ir.Value, Expr]) -> tuple[Expr | ir.Value, int] | None:
    """Return the tensor (batch, length, heads * width) before the split and rotation, and the heads."""
    node = producer_of(s, value, "RotaryEmbedding")
    if node is None:
        return match_split_heads(s, value) or _part(s, value, packed)
    inner = match_split_heads(s, node.inputs[0]) or _part(s, node.inputs[0], packed)
    if inner is None or value is None or not facts.used_once(value) or s.attr("num_heads", 0, node=node):
        return None
    rotated = Op(("RotaryEmbedding",))(
        inner[0], *node.inputs[1:], **dict[str, Any](node.attributes) | {"num_heads": inner[1]}
    )
    return rotated, inner[1]


def _part(s: Site, value: ir.Value | None, packed: dict[ir.Value, Expr]) -> tuple[Expr, int] | None:
    """Return one of the packed tensors that Reshape, Transpose and Split or Gather split into heads."""
    taken_from = _selected(s, value)
    transpose = None if taken_from is None else producer_of(s, taken_from[0], "Transpose")
    if taken_from is None or transpose is None or tuple(s.attr("perm", (), node=transpose)) != PARTS_FIRST:
        return None
    node = producer_of(s, transpose.inputs[0], "Reshape")
    source = None if node is None else node.inputs[0]
    merged, parted_dims = s.sizes.dims(source), s.sizes.dims(transpose.inputs[0])
    if source is None or merged is None or parted_dims is None or len(merged) != 3 or merged[:2] != parted_dims[:2]:
        return None
    parts, heads, width = parted_dims[2:]
    if not isinstance(parts, int) or not isinstance(heads, int) or not isinstance(width, int):
        return None
    whole = packed.setdefault(source, build_split(s, source, [heads * width] * parts, 2))
    return whole.out(taken_from[1]), heads


def _selected(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """Return the source of ``value`` and its index along the source's first axis."""
    node = producer_of(s, value, "Squeeze", "Gather")
    source = None if node is None else node.inputs[0]
    if node is None or source is None:
        return None
    if node.op_type == "Gather":
        index, size = facts.scalar(node.inputs[1]), facts.dim_at(source, 0)
        if axis_of(s, node) != 0 or facts.rank(node.inputs[1]) != 0 or index is None or size is None:
            return None
        return source, index % size
    parts = producer_of(s, source, "Split")
    if parts is None or axes_of(s, node) != (0,) or axis_of(s, parts) != 0 or parts.inputs[0] is None:
        return None
    return (parts.inputs[0], source.index() or 0) if set(split_sizes(s, parts) or ()) == {1} else None


def match_repeated_heads(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the tensor whose heads Unsqueeze, Expand and Reshape repeat, or None."""
    last = producer_of(s, value, "Reshape")
    grown = None if last is None else producer_of(s, last.inputs[0], "Expand")
    first = None if grown is None else producer_of(s, grown.inputs[0], "Unsqueeze", "Reshape")
    source = None if first is None else first.inputs[0]
    if value is None or grown is None or first is None or source is None:
        return None
    before, apart, wide, after = (s.sizes.dims(v) for v in (source, first.outputs[0], grown.outputs[0], value))
    if before is None or apart is None or wide is None or after is None or (len(before), len(wide)) != (4, 5):
        return None
    if apart != (*before[:2], 1, *before[2:]) or (*wide[:2], *wide[3:]) != before or len(after) != 4:
        return None
    same = after[0] == before[0] and after[1] == wide[1] * wide[2] and after[2:] == before[2:]
    return source if same else None


@rule("fuse_repeated_heads_into_attention", on="Attention", after="Reshape", exactness=REASSOCIATES, opset=23)
def grouped_queries(s: Site) -> Result:
    """Fuse Attention with keys and values whose heads are repeated into grouped Attention."""
    k, v = match_repeated_heads(s, s.input(1)), match_repeated_heads(s, s.input(2))
    if k is None or v is None or facts.dim_at(k, 1) is None or facts.dim_at(k, 1) != facts.dim_at(v, 1):
        return None
    return Op(("Attention",))(s.input(0), k, v, *s.node.inputs[3:], **dict[str, Any](s.node.attributes))
