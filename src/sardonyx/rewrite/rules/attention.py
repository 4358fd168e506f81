"""Attention written out: products, scales, masks and Softmax as one operator, with its heads, and rotary embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size, dim_min
from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Site
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Expr, Op, Refusal, Result, microsoft, rule
from sardonyx.rewrite.notation import Attention, Concat, Expand, RotaryEmbedding, Shape, Transpose
from sardonyx.rewrite.rules.broadcasting import repeated
from sardonyx.rewrite.rules.heads import heads_joined_after, joined_heads, parted
from sardonyx.rewrite.rules.masks import MASKED, leaves_a_key, may_hide_all, table_of
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.scales import scaled
from sardonyx.rewrite.rules.signatures import axes, axis_of, normalized, slice_ranges, split_sizes, whole
from sardonyx.rewrite.sizes import equal

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Scores:
    """softmax(scale · q·kᵀ + mask) as it is written: k stands turned, as ``turned``.

    A mask of booleans says which scores count.
    """

    q: ir.Value
    turned: ir.Value
    scale: float
    mask: ir.Value | None


def scores(s: Site, value: ir.Value | None) -> Scores | None:
    """The Softmax of scaled products that makes ``value`` and is read by nothing else, or None."""
    softmax = made_by(s, value, "Softmax")
    if softmax is None or value is None or not facts.used_once(value) or facts.rank(value) != 4:
        return None
    if axis_of(s, softmax, -1 if s.opset >= 13 else 1) != 3:
        return None
    at, mask = _unmasked(s, softmax.inputs[0])
    found = _product(s, at)
    if found is None:
        return None
    node, scale = found
    sides = [scaled(s, operand) or (operand, 1.0) for operand in node.inputs]
    q, turned = sides[0][0], sides[1][0]
    return None if q is None or turned is None else Scores(q, turned, scale * sides[0][1] * sides[1][1], mask)


def _unmasked(s: Site, value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The scores behind a mask that is added to them, or that says which of them count; and the mask."""
    node = made_by(s, value, "Add", "Where")
    if node is None or not facts.used_once(node.outputs[0]):
        return value, None
    if node.op_type == "Where":
        number = repeated(s, node.inputs[2])
        seen = number is not None and number <= MASKED and leaves_a_key(s, node.inputs[0])
        return (node.inputs[1], node.inputs[0]) if seen else (value, None)
    for at in (0, 1):
        if _product(s, node.inputs[at]) is not None:
            return node.inputs[at], node.inputs[1 - at]
    return value, None


def _product(s: Site, value: ir.Value | None) -> tuple[ir.Node, float] | None:
    """The MatMul, and the number that it is multiplied by, which make ``value``."""
    inner, scale = scaled(s, value) or (value, 1.0)
    node = made_by(s, inner, "MatMul")
    return (node, scale) if node is not None and inner is not None and facts.used_once(inner) else None


def _objection(s: Site, found: Scores, v: ir.Value | None) -> str | None:
    """Why the operators for attention cannot take these operands, if there is a reason."""
    if facts.dtype(found.q) not in FLOATS:
        return "engines have no kernel of Attention for this type"
    if found.scale <= 0:
        return "Attention multiplies both q and k by the root of a scale above 0"
    q, turned, values = (s.sizes.dims(each) for each in (found.q, found.turned, v))
    if q is None or turned is None or values is None or not len(q) == len(turned) == len(values) == 4:
        return "a rank is not known, or is not 4"
    if not all(equal(q[axis], other[axis]) is True for axis in (0, 1) for other in (turned, values)):
        return "batches or heads are broadcast"
    return None


def _mask_operand(s: Site, found: Scores) -> ir.Value | Expr | Refusal | None:
    """The mask as Attention takes it: ONNX Runtime broadcasts it along batches and heads only."""
    mask, q, turned = (s.sizes.dims(each) for each in (found.mask, found.q, found.turned))
    if found.mask is None or q is None or turned is None:
        return None
    if (
        mask is None
        or not 2 <= len(mask) <= 4
        or facts.dtype(found.mask) not in (ir.DataType.BOOL, facts.dtype(found.q))
    ):
        return Refusal("the mask's rank is not known, or not from 2 to 4")
    if may_hide_all(s, found.mask):
        return Refusal("the mask may hide all keys from a query, of which engines make one thing or another")
    lead = zip(reversed(mask[:-2]), reversed(q[:2]), strict=False)
    if not all(size == 1 or equal(size, want) is True for size, want in lead):
        return Refusal("the mask broadcasts the scores")
    if not _as_long(s, found.mask, -1, turned[3]):
        return Refusal("the mask is broadcast along keys")
    if _as_long(s, found.mask, -2, q[2]):
        return found.mask
    if mask[-2] != 1:
        return Refusal("the mask has not a row for each query")
    ones = np.ones(len(mask) - 2, np.int64)
    if isinstance(q[2], int):
        return Expand(found.mask, np.array([*ones, q[2], 1], np.int64))
    if equal(q[2], mask[-1]) is not True:
        return Refusal("the mask is broadcast along queries, of which there are not as many as keys")
    queries = Shape(found.mask, start=len(mask) - 1)
    return Expand(found.mask, Concat(ones, queries, np.ones(1, np.int64), axis=0))


def _as_long(s: Site, mask: ir.Value, axis: int, size: Size) -> bool:
    """Whether the mask, where it can be broadcast with the scores at all, has this size along an axis."""
    dims = s.sizes.dims(mask)
    if dims is None or equal(dims[axis], size) is True:
        return dims is not None
    most = facts.dim_at(table_of(s, mask)[0], axis)
    # The first so many of a table of n > 1: were they fewer than the scores, these could not be broadcast.
    return most is not None and most > 1 and equal(dims[axis], dim_min(most, size)) is True


def _keys(s: Site, turned: ir.Value) -> Expr | ir.Value | None:
    """The keys (batch, heads, length, width) of which ``turned`` has the last two axes changed over."""
    node = made_by(s, turned, "Transpose")
    perm = None if node is None else s.attr("perm", node=node)
    if node is None or perm is None or len(perm) != 4:
        return None
    order = [perm[0], perm[1], perm[3], perm[2]]
    return node.inputs[0] if order == [0, 1, 2, 3] else Transpose(node.inputs[0], perm=order)


@rule("fuse_attention", on="MatMul", after="Softmax", exactness=APPROXIMATES, opset=23)
def attention(s: Site) -> Result:
    """softmax(scale · q·kᵀ + mask) · v is Attention, also where -10000 or less is written for masked scores."""
    found = scores(s, s.input(0))
    if found is None:
        return None
    reason = _objection(s, found, s.input(1))
    if reason is not None:
        return Refusal(reason)
    keys, mask = _keys(s, found.turned), _mask_operand(s, found)
    if keys is None:
        return Refusal("the keys are not turned by a Transpose")
    if isinstance(mask, Refusal):
        return mask
    return Attention(found.q, keys, s.input(1), *([] if mask is None else [mask]), scale=found.scale)


@rule("fuse_scale_into_attention", on="Attention", after=("Mul", "Div"), exactness=REASSOCIATES, opset=23)
def scale_of_attention(s: Site) -> Result:
    """A number that q or k is multiplied by before Attention is part of its scale."""
    width = facts.dim_at(s.input(0), -1)
    number = s.attr("scale")
    if number is None and width and facts.rank(s.input(0)) == 4:
        number = width**-0.5
    found = [scaled(s, value) for value in s.node.inputs[:2]]
    if not any(found) or number is None:
        return None
    (q, by), (k, times) = (part or (value, 1.0) for part, value in zip(found, s.node.inputs, strict=False))
    if by * times <= 0:
        return Refusal("Attention multiplies both q and k by the root of a scale above 0")
    made = Op(("Attention",))(
        q,
        k,
        *s.node.inputs[2:],
        n_outputs=len(s.node.outputs),
        **dict[str, Any](s.node.attributes) | {"scale": number * by * times},
    )
    return tuple(made.out(i) for i in range(len(s.node.outputs)))


@rule(
    "fuse_multi_head_attention",
    on="Reshape",
    after="Transpose",
    exactness=REASSOCIATES,
    opset=7,
    emits="com.microsoft",
    targets=("onnxruntime",),
)
def multi_head_attention(s: Site) -> Result:
    """Attention with its heads parted and joined is ONNX Runtime's MultiHeadAttention, where nothing is masked."""
    product = made_by(s, heads_joined_after(s), "MatMul")
    found = None if product is None else scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or found is None or not facts.used_once(product.outputs[0]):
        return None
    reason = "its kernel is slower with a mask" if found.mask is not None else _objection(s, found, product.inputs[1])
    if reason is not None:
        return Refusal(reason)
    turned = made_by(s, found.turned, "Transpose")
    perm = None if turned is None else s.attr("perm", (), node=turned)
    keys = parted(s, turned.inputs[0]) if turned is not None and tuple(perm or ()) == (0, 2, 3, 1) else None
    queries, values = joined_heads(s, found.q), joined_heads(s, product.inputs[1])
    if queries is None or keys is None or values is None:
        return Refusal("q, k or v has its heads from elsewhere")
    operator = microsoft("MultiHeadAttention")
    return operator(queries[0], keys[0], values[0], num_heads=queries[1], scale=found.scale)


@rule("fuse_rotary_embedding", on="Add", after="Mul", exactness=REASSOCIATES, opset=23)
def rotary_embedding(s: Site) -> Result:
    """The sum x · cos + (−x₂, x₁) · sin, with x in halves and caches of two equal halves, is RotaryEmbedding."""
    products = [made_by(s, value, "Mul") for value in s.node.inputs]
    for straight, crossed in (products, products[::-1]):
        if straight is None or crossed is None:
            continue
        for at in (0, 1):
            x = _rotated(s, crossed.inputs[at])
            if x is None or x not in straight.inputs:
                continue
            cos = straight.inputs[1 - straight.inputs.index(x)]
            return _rotary(s, x, cos, crossed.inputs[1 - at])
    return None


def _rotary(s: Site, x: ir.Value, cos: ir.Value | None, sin: ir.Value | None) -> Result:
    dims = s.sizes.dims(x)
    if dims is None or len(dims) != 4 or facts.dtype(x) not in FLOATS or s.sizes.dims(s.output) != dims:
        return Refusal("x has not the four axes batch, heads, length and width")
    caches = [_half_cache(s, value, x, kind) for value, kind in ((cos, "Cos"), (sin, "Sin"))]
    if caches[0] is None or caches[1] is None:
        return Refusal("the cosines and sines are not two equal halves for each place of each batch")
    return RotaryEmbedding(x, caches[0], caches[1])


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


def _half_cache(s: Site, value: ir.Value | None, x: ir.Value, kind: str) -> Expr | np.ndarray | None:
    """The cache (batch, length, width / 2) whose columns, twice side by side, are ``value``."""
    dims, shape = s.sizes.dims(x), facts.static_shape(value)
    if dims is None or value is None:
        return None
    if facts.is_constant(value):
        array = facts.constant(value)
        if array is None or shape is None or len(shape) < 2 or any(size != 1 for size in shape[:-2]):
            return None
        if not isinstance(dims[0], int) or dims[2:] != shape[-2:] or shape[-1] % 2:
            return None
        first, second = np.split(array.reshape(shape[-2:]), 2, axis=1)
        if not np.array_equal(first, second):
            return None
        return np.ascontiguousarray(np.broadcast_to(first, (dims[0], *first.shape)))
    raised = made_by(s, value, "Unsqueeze")
    wave = None if raised is None else made_by(s, raised.inputs[0], kind)
    doubled = None if wave is None else made_by(s, wave.inputs[0], "Concat")
    if raised is None or doubled is None or normalized(axes(s, raised) or (), facts.rank(value)) != (1,):
        return None
    if len(doubled.inputs) != 2 or doubled.inputs[0] is not doubled.inputs[1] or axis_of(s, doubled) != 2:
        return None
    angles = s.sizes.dims(doubled.inputs[0])
    if angles is None or len(angles) != 3 or not all(equal(angles[i], dims[j]) is True for i, j in ((0, 0), (1, 2))):
        return None
    return Op((kind,))(doubled.inputs[0]) if equal(angles[2] * 2, dims[3]) is True else None
