"""Rotary embeddings written in primitives, in halves or interleaved pairs.

The heads are the second axis, as in the operator, or the third, after the length. The rotation covers the width of a
head, or its first part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import REASSOCIATES, Expr, Op, Operand, Refusal, Result, rule
from sardonyx.rewrite.notation import Expand, RotaryEmbedding, Transpose, Unsqueeze
from sardonyx.rewrite.rules.attention import FLOATS
from sardonyx.rewrite.rules.attention_heads import HEADS_SECOND, split_source
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import (
    apply_along,
    axes_of,
    axis_of,
    covers_axis,
    normalize_axes,
    reapply,
    slice_ranges,
    split_sizes,
)
from sardonyx.rewrite.rules.slices import contiguous_range
from sardonyx.rewrite.site import Site

Cache = Expr | ir.Value | np.ndarray

CacheReader = Callable[[Site, ir.Value | None, ir.Value, int, str], Cache | None]
"""Returns the cache for the cosines or sines multiplied with x, at the index of x's length axis."""


@rule("fuse_rotary_embedding", on="Add", after="Mul", exactness=REASSOCIATES, opset=23)
def rotary_embedding(s: Site) -> Result:
    """Fuse x · cos + (−x₂, x₁) · sin of halves or pairs of x into RotaryEmbedding."""
    products = [producer_of(s, value, "Mul") for value in s.node.inputs]
    for straight, crossed in (products, products[::-1]):
        if straight is None or crossed is None:
            continue
        for at in (0, 1):
            x, pairs = _match_rotated_halves(s, crossed.inputs[at]), False
            if x is None:
                x, pairs = _match_rotated_pairs(s, crossed.inputs[at]), True
            if x is None or x not in straight.inputs:
                continue
            cos = straight.inputs[1 - straight.inputs.index(x)]
            reader = _paired_cache if pairs else _half_cache
            return _build_rotary(s, x, (cos, crossed.inputs[1 - at]), reader, interleaved=pairs)
    return None


@rule("fuse_rotary_embedding", on="Reshape", after="Concat", exactness=REASSOCIATES, opset=23)
def rotary_pairs(s: Site) -> Result:
    """Fuse the pairs (x₁ · cos − x₂ · sin, x₁ · sin + x₂ · cos) into interleaved RotaryEmbedding."""
    parts = _match_interleaved(s, s.output)
    real, imaginary = (
        (None, None) if parts is None else (producer_of(s, parts[0], "Sub"), producer_of(s, parts[1], "Add"))
    )
    if parts is None or real is None or imaginary is None:
        return None
    straight, crossed = (producer_of(s, value, "Mul") for value in real.inputs)
    others = [producer_of(s, value, "Mul") for value in imaginary.inputs]
    if straight is None or crossed is None or None in others:
        return None
    for at in (0, 1):
        first = _match_even_or_odd(s, straight.inputs[at], 0)
        for other in (0, 1):
            if first is None or first is not _match_even_or_odd(s, crossed.inputs[other], 1):
                continue
            x1, cos, x2, sin = (*_operand_pair(straight, at), *_operand_pair(crossed, other))
            products = {frozenset(node.inputs) for node in others if node is not None}
            if products != {frozenset((x1, sin)), frozenset((x2, cos))}:
                continue
            if not all(facts.used_once(value) for value in parts):
                return Refusal("the rotated tensor has other readers")
            return _build_rotary(s, first, (cos, sin), _whole_cache, interleaved=True)
    return None


def _operand_pair(product: ir.Node, at: int) -> tuple[ir.Value | None, ir.Value | None]:
    return product.inputs[at], product.inputs[1 - at]


def _build_rotary(
    s: Site, x: ir.Value, waves: tuple[ir.Value | None, ...], reader: CacheReader, *, interleaved: bool
) -> Result:
    dims = s.sizes.dims(x)
    if dims is None or len(dims) != 4 or facts.dtype(x) not in FLOATS or s.sizes.dims(s.output) != dims:
        return Refusal("expected x of rank 4: batch, heads, length and width")
    for length in (2, 1):
        cos, sin = (reader(s, value, x, length, kind) for value, kind in zip(waves, ("Cos", "Sin"), strict=True))
        if cos is not None and sin is not None:
            attributes: dict[str, Any] = {"interleaved": 1 if interleaved else None}
            if length == 1:
                return _build_with_heads_third(s, x, cos, sin, attributes)
            return RotaryEmbedding(x, cos, sin, **attributes)
    expected = "one number per pair and position" if interleaved else "two equal halves per position and sample"
    return Refusal(f"expected cosines and sines with {expected}")


def _build_with_heads_third(s: Site, x: ir.Value, cos: Operand, sin: Operand, attributes: dict[str, Any]) -> Result:
    """Build RotaryEmbedding of [batch, length, heads, width].

    It applies before the split of heads, else between two Transposes.
    """
    whole_heads, node = split_source(s, x), x.producer()
    if whole_heads is None or node is None:
        rotated = RotaryEmbedding(Transpose(x, perm=HEADS_SECOND), cos, sin, **attributes)
        return Transpose(rotated, perm=HEADS_SECOND)
    source, heads = whole_heads
    rotated = RotaryEmbedding(source, cos, sin, **attributes | {"num_heads": heads})
    return reapply(node, rotated, *node.inputs[1:])


@rule("fuse_rotary_embedding", on="Concat", after=("RotaryEmbedding", "Transpose"), exactness=REASSOCIATES, opset=23)
def partial_rotary_embedding(s: Site) -> Result:
    """Fuse RotaryEmbedding of the first part of each head and a Concat with the rest."""
    if len(s.node.inputs) != 2:
        return None
    back = _swapped_heads_source(s, s.input(0))
    rotary = producer_of(s, back or s.input(0), "RotaryEmbedding")
    if rotary is None:
        return None
    first = rotary.inputs[0] if back is None else _swapped_heads_source(s, rotary.inputs[0])
    source = _common_source(s, first, s.input(1))
    if source is None or facts.rank(s.output) != 4 or axis_of(s, s.node) != 3:
        return Refusal("the concatenated rest does not follow the rotated part, or the heads have no axis")
    if not facts.used_once(rotary.outputs[0]) or len(rotary.inputs) != 3:
        return Refusal("the rotated tensor has other readers, or position indices")
    if s.attr("rotary_embedding_dim", 0, node=rotary):
        return Refusal("the inner RotaryEmbedding is partial already")
    attributes = dict[str, Any](rotary.attributes) | {"rotary_embedding_dim": facts.dim_at(first, 3)}
    if back is not None:
        return _build_with_heads_third(s, source, rotary.inputs[1], rotary.inputs[2], attributes)
    return Op(("RotaryEmbedding",))(source, *rotary.inputs[1:], **attributes)


def _swapped_heads_source(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the tensor before a Transpose of heads and length whose only result is ``value``, or None."""
    node = producer_of(s, value, "Transpose")
    if node is None or value is None or not facts.used_once(value):
        return None
    return node.inputs[0] if tuple(s.attr("perm", (), node=node)) == HEADS_SECOND else None


def _common_source(s: Site, first: ir.Value | None, rest: ir.Value | None) -> ir.Value | None:
    """Return the tensor that two values partition along the last axis, by Split or by Slices."""
    parts = [_last_columns(s, value) for value in (first, rest)]
    if parts[0] is None or parts[1] is None or parts[0][0] is not parts[1][0]:
        return None
    source, start, middle = parts[0]
    return source if (start, middle, parts[1][2]) == (0, parts[1][1], facts.dim_at(source, -1)) else None


def _last_columns(s: Site, value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """Return the tensor of which ``value`` is a part along the last axis, with the part's start and end."""
    node = producer_of(s, value, "Split", "Slice")
    source, rank = (None, None) if node is None else (node.inputs[0], facts.rank(value))
    if node is None or source is None or value is None or rank is None:
        return None
    if node.op_type == "Slice":
        span = contiguous_range(s, node)
        return (source, *span[1:]) if span is not None and span[0] == rank - 1 else None
    sizes, index = split_sizes(s, node), value.index() or 0
    if sizes is None or axis_of(s, node) != rank - 1:
        return None
    return source, sum(sizes[:index]), sum(sizes[: index + 1])


def _match_rotated_halves(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the x for which ``value`` is (−x₂, x₁) in halves."""
    joined = producer_of(s, value, "Concat")
    if joined is None or value is None or len(joined.inputs) != 2 or not facts.used_once(value):
        return None
    rank, negated = facts.rank(value), producer_of(s, joined.inputs[0], "Neg")
    if rank is None or negated is None or axis_of(s, joined) != rank - 1:
        return None
    second, first = _match_half(s, negated.inputs[0], 1), _match_half(s, joined.inputs[1], 0)
    return first if first is second else None


def _match_rotated_pairs(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the x for which ``value`` is (−x₂, x₁) for every pair of neighbors (x₁, x₂)."""
    parts = _match_interleaved(s, value)
    negated = None if parts is None else producer_of(s, parts[0], "Neg")
    if parts is None or negated is None or value is None or not facts.used_once(value):
        return None
    x = _match_even_or_odd(s, negated.inputs[0], 1)
    return x if x is not None and x is _match_even_or_odd(s, parts[1], 0) else None


def _match_interleaved(s: Site, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """Return the two tensors that ``value`` interleaves along the last axis."""
    flat = producer_of(s, value, "Reshape")
    joined = None if flat is None else producer_of(s, flat.inputs[0], "Concat")
    if joined is None or len(joined.inputs) != 2 or not facts.used_once(joined.outputs[0]):
        return None
    parts = [_squeezed_source(s, operand) for operand in joined.inputs]
    paired, dims = s.sizes.dims(joined.outputs[0]), s.sizes.dims(value)
    if parts[0] is None or parts[1] is None or paired is None or dims is None:
        return None
    if axis_of(s, joined) != len(paired) - 1 or paired[-1] != 2 or len(dims) != len(paired) - 1:
        return None
    if not all(equal(a, b) is True for a, b in zip((*paired[:-2], paired[-2] * 2), dims, strict=True)):
        return None
    return parts[0], parts[1]


def _squeezed_source(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the tensor that ``value`` is with a new last axis of size 1."""
    node = producer_of(s, value, "Unsqueeze", "Reshape")
    narrow, wide = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    return node.inputs[0] if node is not None and narrow is not None and wide == (*narrow, 1) else None


def _match_even_or_odd(s: Site, value: ir.Value | None, index: int) -> ir.Value | None:
    """Return the x of which ``value`` is the even (0) or odd (1) elements along the last axis."""
    node = producer_of(s, value, "Slice", "Squeeze", "Gather")
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
        is_element = facts.rank(node.inputs[1]) == 0 and axis_of(s, node) == rank - 1 and at in (index, index - 2)
        return _match_pairs(s, source) if is_element else None
    parts = producer_of(s, source, "Split")
    if parts is None or normalize_axes(axes_of(s, node) or (), rank) != (rank - 1,) or axis_of(s, parts) != rank - 1:
        return None
    ones = split_sizes(s, parts) == (1, 1) and source.index() == index
    return _match_pairs(s, parts.inputs[0]) if ones else None


def _match_pairs(s: Site, value: ir.Value | None) -> ir.Value | None:
    """Return the x that ``value`` is with its last axis split into pairs."""
    node = producer_of(s, value, "Reshape")
    x, pairs = (None, None) if node is None else (s.sizes.dims(node.inputs[0]), s.sizes.dims(value))
    if node is None or x is None or pairs is None or len(pairs) != len(x) + 1 or pairs[-1] != 2:
        return None
    is_split = all(equal(a, b) is True for a, b in zip(x, (*pairs[:-2], pairs[-2] * 2), strict=True))
    return node.inputs[0] if is_split else None


def _match_half(s: Site, value: ir.Value | None, index: int) -> ir.Value | None:
    """Return the tensor of which ``value`` is the first or second half along the last axis."""
    node = producer_of(s, value, "Split", "Slice")
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
    return x if start == size // 2 and covers_axis((0, end, step), size) else None


def _half_cache(s: Site, value: ir.Value | None, x: ir.Value, length: int, kind: str) -> Cache | None:
    """Return the cache [batch, length, width / 2] that ``value`` contains twice, side by side."""
    dims = s.sizes.dims(x)
    if dims is None or value is None:
        return None
    if facts.is_constant(value):
        table = _table(s, value, x, length)
        if table is None or dims[3] != table.shape[1]:
            return None
        return _equal_parts(table[:, : table.shape[1] // 2], table[:, table.shape[1] // 2 :], x)
    raised = producer_of(s, value, "Unsqueeze")
    wave = None if raised is None else producer_of(s, raised.inputs[0], kind)
    doubled = None if wave is None else producer_of(s, wave.inputs[0], "Concat")
    if (
        raised is None
        or doubled is None
        or normalize_axes(axes_of(s, raised) or (), facts.rank(value)) != (3 - length,)
    ):
        return None
    if len(doubled.inputs) != 2 or doubled.inputs[0] is not doubled.inputs[1] or axis_of(s, doubled) != 2:
        return None
    angles = s.sizes.dims(doubled.inputs[0])
    if angles is None or len(angles) != 3 or not _is_row_per_position(angles, dims, length):
        return None
    return Op((kind,))(doubled.inputs[0]) if equal(angles[2] * 2, dims[3]) is True else None


def _is_row_per_position(rows: tuple[Size, ...], dims: tuple[Size, ...], length: int) -> bool:
    """Return True if there is one row per position of each sample."""
    return equal(rows[0], dims[0]) is True and equal(rows[1], dims[length]) is True


def _table(s: Site, value: ir.Value, x: ir.Value, length: int) -> np.ndarray | None:
    """Return a constant with one row per position, equal for all samples and heads, and an even width."""
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
    """Return the cache [batch, length, width / 2] of which ``value`` repeats each column."""
    dims = s.sizes.dims(x)
    if value is None or dims is None:
        return None
    if facts.is_constant(value):
        table = _table(s, value, x, length)
        if table is None or dims[3] != table.shape[1]:
            return None
        return _equal_parts(table[:, 0::2], table[:, 1::2], x)
    wave = producer_of(s, value, kind)
    flat = producer_of(s, value if wave is None else wave.inputs[0], "Reshape")
    twice = None if flat is None else producer_of(s, flat.inputs[0], "Tile", "Expand", "Concat")
    base = None if twice is None else _squeezed_source(s, twice.inputs[0])
    if twice is None or base is None or len(set(twice.inputs)) != 1 + (twice.op_type != "Concat"):
        return None
    narrow, wide, laid = (s.sizes.dims(v) for v in (base, twice.outputs[0], value))
    if narrow is None or wide != (*narrow, 2) or len(narrow) != 3:
        return None
    rows = [narrow[0], narrow[1], narrow[2] * 2]
    rows.insert(3 - length, 1)
    if laid != tuple(rows) or not _is_row_per_position(narrow, dims, length) or equal(rows[3], dims[3]) is not True:
        return None
    return base if wave is None else Op((kind,))(base)


def _whole_cache(s: Site, value: ir.Value | None, x: ir.Value, length: int, kind: str) -> Cache | None:
    """Return the cache [batch, length, width / 2] for a ``value`` that broadcasts with the halves of x."""
    dims, shape = s.sizes.dims(x), s.sizes.dims(value)
    if value is None or dims is None or shape is None or len(dims) != 4 or not 2 <= len(shape) <= 4:
        return None
    full = (1,) * (4 - len(shape)) + shape
    if equal(full[length], dims[length]) is not True or equal(full[3] * 2, dims[3]) is not True:
        return None
    if full[3 - length] != 1:
        return None
    if len(shape) == 4 and equal(full[0], dims[0]) is True and not facts.is_constant(value):
        return apply_along(s, "Squeeze", value, [3 - length])
    if full[0] != 1 or not isinstance(dims[0], int):
        return None
    if facts.is_constant(value):
        array = facts.constant(value)
        rows = None if array is None else array.reshape(array.size // array.shape[-1], array.shape[-1])
        return None if rows is None else np.ascontiguousarray(np.broadcast_to(rows, (dims[0], *rows.shape)))
    one = _reshape_to_three_axes(s, value, 3 - length - (4 - len(shape)))
    return one if dims[0] == 1 else Expand(one, np.array([dims[0], 1, 1], np.int64))


def _reshape_to_three_axes(s: Site, value: ir.Value, heads: int) -> Expr | ir.Value:
    """Return ``value`` as [1, length, width / 2]; its axis ``heads`` of size 1 is absent if negative."""
    rank = facts.rank(value)
    if rank == 4:
        return apply_along(s, "Squeeze", value, [heads])
    if rank == 3 and heads >= 0:
        alone = apply_along(s, "Squeeze", value, [heads])
        return apply_along(s, "Unsqueeze", alone, [0])
    return Unsqueeze(value, np.array([0], np.int64)) if rank == 2 else value
