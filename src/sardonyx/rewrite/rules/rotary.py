"""Rotary embeddings written out: with what is turned in two halves, or in pairs of neighbours (interleaved).

Heads stand second, as the operator has them, or third, behind the places; all of a head's width is turned, or the
first part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Op, Operand, Refusal, Result, rule
from sardonyx.rewrite.notation import Expand, RotaryEmbedding, Transpose, Unsqueeze
from sardonyx.rewrite.rules.attention import FLOATS
from sardonyx.rewrite.rules.attention_heads import HEADS_SECOND, parted
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.signatures import (
    again,
    axes,
    axis_of,
    normalized,
    slice_ranges,
    split_sizes,
    whole,
    with_axes,
)
from sardonyx.rewrite.rules.slices import contiguous
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

Cache = Expr | ir.Value | np.ndarray

CacheReader = Callable[[Site, ir.Value | None, ir.Value, int, str], Cache | None]
"""Reads the cache off cosines or sines as they are multiplied with x, whose places stand along the axis given."""


@rule("fuse_rotary_embedding", on="Add", after="Mul", exactness=REASSOCIATES, opset=23)
def rotary_embedding(s: Site) -> Result:
    """The sum x · cos + (−x₂, x₁) · sin, with x in halves and caches of two equal halves, is RotaryEmbedding."""
    products = [made_by(s, value, "Mul") for value in s.node.inputs]
    for straight, crossed in (products, products[::-1]):
        if straight is None or crossed is None:
            continue
        for at in (0, 1):
            x, pairs = _rotated(s, crossed.inputs[at]), False
            if x is None:
                x, pairs = _rotated_pairs(s, crossed.inputs[at]), True
            if x is None or x not in straight.inputs:
                continue
            cos = straight.inputs[1 - straight.inputs.index(x)]
            taken = _paired_cache if pairs else _half_cache
            return _rotary(s, x, (cos, crossed.inputs[1 - at]), taken, interleaved=pairs)
    return None


@rule("fuse_rotary_embedding", on="Reshape", after="Concat", exactness=REASSOCIATES, opset=23)
def rotary_pairs(s: Site) -> Result:
    """The pairs (x₁ · cos − x₂ · sin, x₁ · sin + x₂ · cos) of neighbours in x are RotaryEmbedding, interleaved."""
    parts = _joined_pairs(s, s.output)
    real, imaginary = (None, None) if parts is None else (made_by(s, parts[0], "Sub"), made_by(s, parts[1], "Add"))
    if parts is None or real is None or imaginary is None:
        return None
    straight, crossed = (made_by(s, value, "Mul") for value in real.inputs)
    others = [made_by(s, value, "Mul") for value in imaginary.inputs]
    if straight is None or crossed is None or None in others:
        return None
    for at in (0, 1):
        first = _neighbour(s, straight.inputs[at], 0)
        for back in (0, 1):
            if first is None or first is not _neighbour(s, crossed.inputs[back], 1):
                continue
            x1, cos, x2, sin = (*_turned(straight, at), *_turned(crossed, back))
            found = {frozenset(node.inputs) for node in others if node is not None}
            if found != {frozenset((x1, sin)), frozenset((x2, cos))}:
                continue
            if not all(facts.used_once(value) for value in parts):
                return Refusal("what is turned has other readers")
            return _rotary(s, first, (cos, sin), _whole_cache, interleaved=True)
    return None


def _turned(product: ir.Node, at: int) -> tuple[ir.Value | None, ir.Value | None]:
    return product.inputs[at], product.inputs[1 - at]


def _rotary(
    s: Site, x: ir.Value, waves: tuple[ir.Value | None, ...], taken: CacheReader, *, interleaved: bool
) -> Result:
    dims = s.sizes.dims(x)
    if dims is None or len(dims) != 4 or facts.dtype(x) not in FLOATS or s.sizes.dims(s.output) != dims:
        return Refusal("x has not the four axes batch, heads, length and width")
    for length in (2, 1):
        cos, sin = (taken(s, value, x, length, kind) for value, kind in zip(waves, ("Cos", "Sin"), strict=True))
        if cos is not None and sin is not None:
            attributes: dict[str, Any] = {"interleaved": 1 if interleaved else None}
            return RotaryEmbedding(x, cos, sin, **attributes) if length == 2 else _third(s, x, cos, sin, attributes)
    told = "a number for each pair of each place" if interleaved else "two equal halves for each place of each batch"
    return Refusal(f"the cosines and sines are not {told}")


def _third(s: Site, x: ir.Value, cos: Operand, sin: Operand, attributes: dict[str, Any]) -> Result:
    """RotaryEmbedding of (batch, length, heads, width): before the heads are parted, else between two Transposes."""
    whole_heads, node = parted(s, x), x.producer()
    if whole_heads is None or node is None:
        turned = RotaryEmbedding(Transpose(x, perm=HEADS_SECOND), cos, sin, **attributes)
        return Transpose(turned, perm=HEADS_SECOND)
    source, heads = whole_heads
    turned = RotaryEmbedding(source, cos, sin, **attributes | {"num_heads": heads})
    return again(node, turned, *node.inputs[1:])


@rule("fuse_rotary_embedding", on="Concat", after=("RotaryEmbedding", "Transpose"), exactness=REASSOCIATES, opset=23)
def partial_rotary_embedding(s: Site) -> Result:
    """RotaryEmbedding of the first part of each head, joined with the rest, is one of the heads with that width."""
    if len(s.node.inputs) != 2:
        return None
    back = _heads_moved(s, s.input(0))
    turned = made_by(s, back or s.input(0), "RotaryEmbedding")
    if turned is None:
        return None
    first = turned.inputs[0] if back is None else _heads_moved(s, turned.inputs[0])
    source = _split_between(s, first, s.input(1))
    if source is None or facts.rank(s.output) != 4 or axis_of(s, s.node) != 3:
        return Refusal("the rest is not what follows what is turned, in heads with an axis of their own")
    if not facts.used_once(turned.outputs[0]) or len(turned.inputs) != 3:
        return Refusal("what is turned has other readers, or places of its own")
    if s.attr("rotary_embedding_dim", 0, node=turned):
        return Refusal("only a part of the part is turned")
    attributes = dict[str, Any](turned.attributes) | {"rotary_embedding_dim": facts.dim_at(first, 3)}
    if back is not None:
        return _third(s, source, turned.inputs[1], turned.inputs[2], attributes)
    return Op(("RotaryEmbedding",))(source, *turned.inputs[1:], **attributes)


def _heads_moved(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The tensor that a Transpose makes ``value`` of, of which nothing else reads it, if heads and places change."""
    node = made_by(s, value, "Transpose")
    if node is None or value is None or not facts.used_once(value):
        return None
    return node.inputs[0] if tuple(s.attr("perm", (), node=node)) == HEADS_SECOND else None


def _split_between(s: Site, first: ir.Value | None, rest: ir.Value | None) -> ir.Value | None:
    """The tensor that two values are, one behind the other along the last axis, taken by Split or by Slices."""
    parts = [_last_columns(s, value) for value in (first, rest)]
    if parts[0] is None or parts[1] is None or parts[0][0] is not parts[1][0]:
        return None
    source, start, middle = parts[0]
    return source if (start, middle, parts[1][2]) == (0, parts[1][1], facts.dim_at(source, -1)) else None


def _last_columns(s: Site, value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """The tensor of whose last axis ``value`` is a part, with the part's start and end."""
    node = made_by(s, value, "Split", "Slice")
    source, rank = (None, None) if node is None else (node.inputs[0], facts.rank(value))
    if node is None or source is None or value is None or rank is None:
        return None
    if node.op_type == "Slice":
        span = contiguous(s, node)
        return (source, *span[1:]) if span is not None and span[0] == rank - 1 else None
    sizes, index = split_sizes(s, node), value.index() or 0
    if sizes is None or axis_of(s, node) != rank - 1:
        return None
    return source, sum(sizes[:index]), sum(sizes[: index + 1])


def _rotated(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The x that ``value`` is (−x₂, x₁) of."""
    joined = made_by(s, value, "Concat")
    if joined is None or value is None or len(joined.inputs) != 2 or not facts.used_once(value):
        return None
    rank, negated = facts.rank(value), made_by(s, joined.inputs[0], "Neg")
    if rank is None or negated is None or axis_of(s, joined) != rank - 1:
        return None
    second, first = _half(s, negated.inputs[0], 1), _half(s, joined.inputs[1], 0)
    return first if first is second else None


def _rotated_pairs(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The x of which ``value`` has every pair of neighbours (x₁, x₂) as (−x₂, x₁)."""
    parts = _joined_pairs(s, value)
    negated = None if parts is None else made_by(s, parts[0], "Neg")
    if parts is None or negated is None or value is None or not facts.used_once(value):
        return None
    x = _neighbour(s, negated.inputs[0], 1)
    return x if x is not None and x is _neighbour(s, parts[1], 0) else None


def _joined_pairs(s: Site, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """The two tensors whose elements stand by turns in ``value`` along the last axis."""
    flat = made_by(s, value, "Reshape")
    joined = None if flat is None else made_by(s, flat.inputs[0], "Concat")
    if joined is None or len(joined.inputs) != 2 or not facts.used_once(joined.outputs[0]):
        return None
    parts = [_without_last(s, each) for each in joined.inputs]
    apart, whole_dims = s.sizes.dims(joined.outputs[0]), s.sizes.dims(value)
    if parts[0] is None or parts[1] is None or apart is None or whole_dims is None:
        return None
    if axis_of(s, joined) != len(apart) - 1 or apart[-1] != 2 or len(whole_dims) != len(apart) - 1:
        return None
    if not all(equal(a, b) is True for a, b in zip((*apart[:-2], apart[-2] * 2), whole_dims, strict=True)):
        return None
    return parts[0], parts[1]


def _without_last(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The tensor that ``value`` is with a last axis of size 1."""
    node = made_by(s, value, "Unsqueeze", "Reshape")
    narrow, wide = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    return node.inputs[0] if node is not None and narrow is not None and wide == (*narrow, 1) else None


def _neighbour(s: Site, value: ir.Value | None, index: int) -> ir.Value | None:
    """The x whose elements at even (0) or odd (1) places of the last axis ``value`` holds."""
    node = made_by(s, value, "Slice", "Squeeze", "Gather")
    source = None if node is None else node.inputs[0]
    rank = facts.rank(source)
    if node is None or source is None or rank is None:
        return None
    if node.op_type == "Slice":
        size, ranges = facts.dim_at(source, -1), slice_ranges(s, node)
        if size is None or size % 2 or ranges is None or ranges.keys() != {rank - 1}:
            return None
        start, end, step = ranges[rank - 1]
        return source if (start, step) == (index, 2) and end >= size - 1 + index else None
    if node.op_type == "Gather":
        at = facts.scalar(node.inputs[1])
        taken = facts.rank(node.inputs[1]) == 0 and axis_of(s, node) == rank - 1 and at in (index, index - 2)
        return _of_pairs(s, source) if taken else None
    parts = made_by(s, source, "Split")
    if parts is None or normalized(axes(s, node) or (), rank) != (rank - 1,) or axis_of(s, parts) != rank - 1:
        return None
    ones = split_sizes(s, parts) == (1, 1) and source.index() == index
    return _of_pairs(s, parts.inputs[0]) if ones else None


def _of_pairs(s: Site, value: ir.Value | None) -> ir.Value | None:
    """The x that ``value`` is with its last axis parted in pairs."""
    node = made_by(s, value, "Reshape")
    x, pairs = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or x is None or pairs is None or len(pairs) != len(x) + 1 or pairs[-1] != 2:
        return None
    same = all(equal(a, b) is True for a, b in zip(x, (*pairs[:-2], pairs[-2] * 2), strict=True))
    return node.inputs[0] if same else None


def _half(s: Site, value: ir.Value | None, index: int) -> ir.Value | None:
    """The tensor whose first or second half along the last axis ``value`` is."""
    node = made_by(s, value, "Split", "Slice")
    x = None if node is None else node.inputs[0]
    size, rank = facts.dim_at(x, -1), facts.rank(x)
    if node is None or x is None or value is None or size is None or rank is None or size % 2:
        return None
    if node.op_type == "Split":
        halves = split_sizes(s, node) == (size // 2, size // 2) and axis_of(s, node) == rank - 1
        return x if halves and value is node.outputs[index] else None
    ranges = slice_ranges(s, node)
    if ranges is None or ranges.keys() != {rank - 1}:
        return None
    start, end, step = ranges[rank - 1]
    if index == 0:
        return x if (start, end, step) == (0, size // 2, 1) else None
    return x if start == size // 2 and whole((0, end, step), size) else None


def _half_cache(s: Site, value: ir.Value | None, x: ir.Value, length: int, kind: str) -> Cache | None:
    """The cache (batch, length, width / 2) whose columns, twice side by side, are ``value``."""
    dims = s.sizes.dims(x)
    if dims is None or value is None:
        return None
    if facts.is_constant(value):
        table = _table(s, value, x, length)
        if table is None or dims[3] != table.shape[1]:
            return None
        return _equal_parts(table[:, : table.shape[1] // 2], table[:, table.shape[1] // 2 :], x)
    raised = made_by(s, value, "Unsqueeze")
    wave = None if raised is None else made_by(s, raised.inputs[0], kind)
    doubled = None if wave is None else made_by(s, wave.inputs[0], "Concat")
    if raised is None or doubled is None or normalized(axes(s, raised) or (), facts.rank(value)) != (3 - length,):
        return None
    if len(doubled.inputs) != 2 or doubled.inputs[0] is not doubled.inputs[1] or axis_of(s, doubled) != 2:
        return None
    angles = s.sizes.dims(doubled.inputs[0])
    if angles is None or len(angles) != 3 or not _of_places(angles, dims, length):
        return None
    return Op((kind,))(doubled.inputs[0]) if equal(angles[2] * 2, dims[3]) is True else None


def _of_places(rows: tuple[Size, ...], dims: tuple[Size, ...], length: int) -> bool:
    """Whether there is a row for each place of each batch."""
    return equal(rows[0], dims[0]) is True and equal(rows[1], dims[length]) is True


def _table(s: Site, value: ir.Value, x: ir.Value, length: int) -> np.ndarray | None:
    """A constant with a row for each place, the same for all batches and heads, and an even number of columns."""
    dims, shape = s.sizes.dims(x), facts.static_shape(value)
    if dims is None or shape is None or not 2 <= len(shape) <= 4 or shape[-1] % 2:
        return None
    full = (1,) * (4 - len(shape)) + shape
    if any(size != 1 for axis, size in enumerate(full[:3]) if axis != length):
        return None
    if not isinstance(dims[0], int) or dims[length] != full[length]:
        return None
    array = facts.constant(value)
    return None if array is None else array.reshape(full[length], full[3])


def _equal_parts(first: np.ndarray, second: np.ndarray, x: ir.Value) -> np.ndarray | None:
    batch = facts.dim_at(x, 0)
    if batch is None or not np.array_equal(first, second):
        return None
    return np.ascontiguousarray(np.broadcast_to(first, (batch, *first.shape)))


def _paired_cache(s: Site, value: ir.Value | None, x: ir.Value, length: int, kind: str) -> Cache | None:
    """The cache (batch, length, width / 2) of which ``value`` has each column twice, one beside the other."""
    dims = s.sizes.dims(x)
    if value is None or dims is None:
        return None
    if facts.is_constant(value):
        table = _table(s, value, x, length)
        if table is None or dims[3] != table.shape[1]:
            return None
        return _equal_parts(table[:, 0::2], table[:, 1::2], x)
    wave = made_by(s, value, kind)
    flat = made_by(s, value if wave is None else wave.inputs[0], "Reshape")
    twice = None if flat is None else made_by(s, flat.inputs[0], "Tile", "Expand", "Concat")
    base = None if twice is None else _without_last(s, twice.inputs[0])
    if twice is None or base is None or len(set(twice.inputs)) != 1 + (twice.op_type != "Concat"):
        return None
    narrow, wide, laid = (s.sizes.dims(v) for v in (base, twice.outputs[0], value))
    if narrow is None or wide != (*narrow, 2) or len(narrow) != 3:
        return None
    rows = [narrow[0], narrow[1], narrow[2] * 2]
    rows.insert(3 - length, 1)
    if laid != tuple(rows) or not _of_places(narrow, dims, length) or equal(rows[3], dims[3]) is not True:
        return None
    return base if wave is None else Op((kind,))(base)


def _whole_cache(s: Site, value: ir.Value | None, x: ir.Value, length: int, kind: str) -> Cache | None:
    """The cache (batch, length, width / 2) that ``value`` is as it broadcasts with the halves of x."""
    dims, shape = s.sizes.dims(x), s.sizes.dims(value)
    if value is None or dims is None or shape is None or len(dims) != 4 or not 2 <= len(shape) <= 4:
        return None
    full = (1,) * (4 - len(shape)) + shape
    if equal(full[length], dims[length]) is not True or equal(full[3] * 2, dims[3]) is not True:
        return None
    if full[3 - length] != 1:
        return None
    if len(shape) == 4 and equal(full[0], dims[0]) is True and not facts.is_constant(value):
        return with_axes(s, "Squeeze", value, [3 - length])
    if full[0] != 1 or not isinstance(dims[0], int):
        return None
    if facts.is_constant(value):
        array = facts.constant(value)
        rows = None if array is None else array.reshape(array.size // array.shape[-1], array.shape[-1])
        return None if rows is None else np.ascontiguousarray(np.broadcast_to(rows, (dims[0], *rows.shape)))
    one = _with_three_axes(s, value, 3 - length - (4 - len(shape)))
    return one if dims[0] == 1 else Expand(one, np.array([dims[0], 1, 1], np.int64))


def _with_three_axes(s: Site, value: ir.Value, heads: int) -> Expr | ir.Value:
    """(1, length, width / 2) of what has an axis of size 1 for heads, at ``heads``, or left it out where negative."""
    rank = facts.rank(value)
    if rank == 4:
        return with_axes(s, "Squeeze", value, [heads])
    if rank == 3 and heads >= 0:
        alone = with_axes(s, "Squeeze", value, [heads])
        return with_axes(s, "Unsqueeze", alone, [0])
    return Unsqueeze(value, np.array([0], np.int64)) if rank == 2 else value
