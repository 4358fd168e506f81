"""The heads of attention: parted, turned, repeated or packed before it and joined after it, as it does by itself."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Op, Patch, Refusal, Result, rule
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axes_of, axis_of, build_split, split_sizes
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

HEADS_SECOND = (0, 2, 1, 3)
"""The permutation between (batch, length, heads, width) and (batch, heads, length, width), either way."""

PARTS_FIRST = (2, 0, 3, 1, 4)
"""The permutation from (batch, length, parts, heads, width) to (parts, batch, heads, length, width)."""


def joined_heads(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """The tensor (batch, length, heads · width) that Reshape and Transpose make heads of, and how many."""
    turned = producer_of(s, value, "Transpose")
    if turned is None:
        return _parted_at_once(s, value)
    if tuple(s.attr("perm", (), node=turned)) != HEADS_SECOND:
        return None
    return parted(s, turned.inputs[0])


def parted(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    node = producer_of(s, value, "Reshape")
    joined, parted = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or joined is None or parted is None or len(joined) != 3 or len(parted) != 4:
        return None
    heads, source = parted[2], node.inputs[0]
    if source is None or not isinstance(heads, int):
        return None
    return (source, heads) if all(equal(joined[axis], parted[axis]) is True for axis in (0, 1)) else None


def _parted_at_once(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """The same where the length is 1, so that a Reshape alone makes (batch, heads, 1, width) of it."""
    node = producer_of(s, value, "Reshape")
    joined, apart = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or joined is None or apart is None or len(joined) != 3 or len(apart) != 4:
        return None
    heads, source = apart[1], node.inputs[0]
    alone = joined[1] == 1 and apart[2] == 1 and equal(joined[0], apart[0]) is True
    return (source, heads) if alone and source is not None and isinstance(heads, int) else None


def heads_joined_after(s: Site) -> ir.Value | None:
    """What Transpose and the Reshape at the root join the heads of; where the length is 1, the Reshape alone."""
    turned = s.producer(0, "Transpose")
    if turned is None:
        apart, joined = s.sizes.dims(s.input(0)), s.sizes.dims(s.output)
        if apart is None or joined is None or (len(apart), len(joined)) != (4, 3):
            return None
        alone = apart[2] == 1 and joined[1] == 1 and equal(apart[0], joined[0]) is True
        return s.input(0) if alone else None
    if tuple(s.attr("perm", (), node=turned)) != HEADS_SECOND or not facts.used_once(turned.outputs[0]):
        return None
    apart, joined = s.sizes.dims(turned.outputs[0]), s.sizes.dims(s.output)
    if apart is None or joined is None or len(joined) != 3:
        return None
    return turned.inputs[0] if all(equal(apart[axis], joined[axis]) is True for axis in (0, 1)) else None


@rule("fuse_heads_into_attention", on="Reshape", after=("Transpose", "Attention"), exactness=REASSOCIATES, opset=23)
def heads_of_attention(s: Site) -> Result:
    """Attention between Reshapes and Transposes that part and join its heads does so by itself."""
    node = producer_of(s, heads_joined_after(s), "Attention")
    if node is None or not facts.used_once(node.outputs[0]) or not all(facts.unused(v) for v in node.outputs[3:]):
        return None
    packed: dict[ir.Value, Expr] = {}
    parts = [_without_heads(s, value, packed) for value in node.inputs[:3]]
    if any(part is None for part in parts):
        return Refusal("q, k or v has its heads from elsewhere")
    (q, heads), (k, kv_heads), (v, _) = (part for part in parts if part is not None)
    attributes = dict[str, Any](node.attributes) | {"q_num_heads": heads, "kv_num_heads": kv_heads}
    made = Op(("Attention",))(q, k, v, *node.inputs[3:], n_outputs=len(node.outputs), **attributes)
    kept = {value: made.out(i) for i, value in enumerate(node.outputs) if i}  # with or without heads, these have them
    return Patch({s.output: made.out(0), **kept}, before=node)


def _without_heads(s: Site, value: ir.Value | None, packed: dict[ir.Value, Expr]) -> tuple[Expr | ir.Value, int] | None:
    """The tensor (batch, length, heads · width) of which ``value`` has the heads apart, rotated or not; how many."""
    node = producer_of(s, value, "RotaryEmbedding")
    if node is None:
        return joined_heads(s, value) or _part(s, value, packed)
    inner = joined_heads(s, node.inputs[0]) or _part(s, node.inputs[0], packed)
    if inner is None or value is None or not facts.used_once(value) or s.attr("num_heads", 0, node=node):
        return None
    turned = Op(("RotaryEmbedding",))(
        inner[0], *node.inputs[1:], **dict[str, Any](node.attributes) | {"num_heads": inner[1]}
    )
    return turned, inner[1]


def _part(s: Site, value: ir.Value | None, packed: dict[ir.Value, Expr]) -> tuple[Expr, int] | None:
    """One of the tensors side by side in one, of which Reshape, Transpose and Split or Gather make it with heads."""
    found = _taken(s, value)
    turned = None if found is None else producer_of(s, found[0], "Transpose")
    if found is None or turned is None or tuple(s.attr("perm", (), node=turned)) != PARTS_FIRST:
        return None
    node = producer_of(s, turned.inputs[0], "Reshape")
    source = None if node is None else node.inputs[0]
    joined, parted_dims = s.sizes.dims(source), s.sizes.dims(turned.inputs[0])
    if source is None or joined is None or parted_dims is None or len(joined) != 3 or joined[:2] != parted_dims[:2]:
        return None
    parts, heads, width = parted_dims[2:]
    if not isinstance(parts, int) or not isinstance(heads, int) or not isinstance(width, int):
        return None
    whole = packed.setdefault(source, build_split(s, source, [heads * width] * parts, 2))
    return whole.out(found[1]), heads


def _taken(s: Site, value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """The tensor, and the place along its first axis, that ``value`` is taken from."""
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


def repeated_heads(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The tensor each of whose heads Unsqueeze, Expand and Reshape repeat; None where nothing is repeated so."""
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
    """Keys and values whose heads are repeated for groups of queries go into Attention as they are."""
    k, v = repeated_heads(s, s.input(1)), repeated_heads(s, s.input(2))
    if k is None or v is None or facts.dim_at(k, 1) is None or facts.dim_at(k, 1) != facts.dim_at(v, 1):
        return None
    return Op(("Attention",))(s.input(0), k, v, *s.node.inputs[3:], **dict[str, Any](s.node.attributes))
