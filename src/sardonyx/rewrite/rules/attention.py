"""Attention written out: products, scales, masks and Softmax as one operator, with its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size, dim_min
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Expr, Op, Refusal, Result, microsoft, rule
from sardonyx.rewrite.notation import Attention, Concat, Expand, Shape, Transpose
from sardonyx.rewrite.rules.attention_heads import heads_joined_after, joined_heads, parted
from sardonyx.rewrite.rules.broadcasting import repeated
from sardonyx.rewrite.rules.masks import MASKED, leaves_every_query_a_key, mask_table, may_mask_whole_rows
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.scales import match_scaled
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site
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
    softmax = producer_of(s, value, "Softmax")
    if softmax is None or value is None or not facts.used_once(value) or facts.rank(value) != 4:
        return None
    if axis_of(s, softmax, -1 if s.opset >= 13 else 1) != 3:
        return None
    at, mask = _unmasked(s, softmax.inputs[0])
    found = _product(s, at)
    if found is None:
        return None
    node, scale = found
    sides = [match_scaled(s, operand) or (operand, 1.0) for operand in node.inputs]
    q, turned = sides[0][0], sides[1][0]
    return None if q is None or turned is None else Scores(q, turned, scale * sides[0][1] * sides[1][1], mask)


def _unmasked(s: Site, value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The scores behind a mask that is added to them, or that says which of them count; and the mask."""
    node = producer_of(s, value, "Add", "Where")
    if node is None or not facts.used_once(node.outputs[0]):
        return value, None
    if node.op_type == "Where":
        number = repeated(s, node.inputs[2])
        seen = number is not None and number <= MASKED and leaves_every_query_a_key(s, node.inputs[0])
        return (node.inputs[1], node.inputs[0]) if seen else (value, None)
    for at in (0, 1):
        if _product(s, node.inputs[at]) is not None:
            return node.inputs[at], node.inputs[1 - at]
    return value, None


def _product(s: Site, value: ir.Value | None) -> tuple[ir.Node, float] | None:
    """The MatMul, and the number that it is multiplied by, which make ``value``."""
    inner, scale = match_scaled(s, value) or (value, 1.0)
    node = producer_of(s, inner, "MatMul")
    return (node, scale) if node is not None and inner is not None and facts.used_once(inner) else None


def objection(s: Site, found: Scores, v: ir.Value | None) -> str | None:
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
    if may_mask_whole_rows(s, found.mask):
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
    most = facts.dim_at(mask_table(s, mask)[0], axis)
    # The first so many of a table of n > 1: were they fewer than the scores, these could not be broadcast.
    return most is not None and most > 1 and equal(dims[axis], dim_min(most, size)) is True


def _keys(s: Site, turned: ir.Value) -> Expr | ir.Value | None:
    """The keys (batch, heads, length, width) of which ``turned`` has the last two axes changed over."""
    node = producer_of(s, turned, "Transpose")
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
    reason = objection(s, found, s.input(1))
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
    found = [match_scaled(s, value) for value in s.node.inputs[:2]]
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
    product = producer_of(s, heads_joined_after(s), "MatMul")
    found = None if product is None else scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or found is None or not facts.used_once(product.outputs[0]):
        return None
    reason = "its kernel is slower with a mask" if found.mask is not None else objection(s, found, product.inputs[1])
    if reason is not None:
        return Refusal(reason)
    turned = producer_of(s, found.turned, "Transpose")
    perm = None if turned is None else s.attr("perm", (), node=turned)
    keys = parted(s, turned.inputs[0]) if turned is not None and tuple(perm or ()) == (0, 2, 3, 1) else None
    queries, values = joined_heads(s, found.q), joined_heads(s, product.inputs[1])
    if queries is None or keys is None or values is None:
        return Refusal("q, k or v has its heads from elsewhere")
    operator = microsoft("MultiHeadAttention")
    return operator(queries[0], keys[0], values[0], num_heads=queries[1], scale=found.scale)
