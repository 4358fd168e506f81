"""Attention written out: products, scales, masks and Softmax fused into one operator, with its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size, dim_min
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Expr, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import Attention, Concat, Expand, Shape, Transpose
from sardonyx.rewrite.rules.broadcasting import repeated_number
from sardonyx.rewrite.rules.masks import MASKED, leaves_every_query_a_key, mask_table, may_mask_whole_rows
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.scales import match_scaled
from sardonyx.rewrite.rules.signatures import axis_of
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Scores:
    """The operands of softmax(scale * q @ keys_transposed + mask).

    A boolean mask selects the scores that count.
    """

    q: ir.Value
    keys_transposed: ir.Value
    scale: float
    mask: ir.Value | None


def match_scores(s: Site, value: ir.Value | None) -> Scores | None:
    """Return the scaled, masked Softmax that produces ``value`` for one reader, or None."""
    softmax = producer_of(s, value, "Softmax")
    if softmax is None or value is None or not facts.used_once(value) or facts.rank(value) != 4:
        return None
    if axis_of(s, softmax, -1 if s.opset >= 13 else 1) != 3:
        return None
    unmasked, mask = _unmasked(s, softmax.inputs[0])
    scaled_product = _product(s, unmasked)
    if scaled_product is None:
        return None
    node, scale = scaled_product
    sides = [match_scaled(s, operand) or (operand, 1.0) for operand in node.inputs]
    q, keys_transposed = sides[0][0], sides[1][0]
    return (
        None
        if q is None or keys_transposed is None
        else Scores(q, keys_transposed, scale * sides[0][1] * sides[1][1], mask)
    )


def _unmasked(s: Site, value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the scores before a mask is added or selects among them, and the mask."""
    node = producer_of(s, value, "Add", "Where")
    if node is None or not facts.used_once(node.outputs[0]):
        return value, None
    if node.op_type == "Where":
        number = repeated_number(s, node.inputs[2])
        seen = number is not None and number <= MASKED and leaves_every_query_a_key(s, node.inputs[0])
        return (node.inputs[1], node.inputs[0]) if seen else (value, None)
    for at in (0, 1):
        if _product(s, node.inputs[at]) is not None:
            return node.inputs[at], node.inputs[1 - at]
    return value, None


def _product(s: Site, value: ir.Value | None) -> tuple[ir.Node, float] | None:
    """Return the MatMul that produces ``value`` and its scalar factor."""
    inner, scale = match_scaled(s, value) or (value, 1.0)
    node = producer_of(s, inner, "MatMul")
    return (node, scale) if node is not None and inner is not None and facts.used_once(inner) else None


def objection(s: Site, scores: Scores, v: ir.Value | None) -> str | None:
    """Return the reason why the attention operators cannot compute these operands, or None."""
    if facts.dtype(scores.q) not in FLOATS:
        return "engines have no kernel of Attention for this type"
    if scores.scale <= 0:
        return "Attention multiplies both q and k by the root of a scale above 0"
    q, keys, values = (s.sizes.dims(value) for value in (scores.q, scores.keys_transposed, v))
    if q is None or keys is None or values is None or not len(q) == len(keys) == len(values) == 4:
        return "a rank is not known, or is not 4"
    if not all(equal(q[axis], other[axis]) is True for axis in (0, 1) for other in (keys, values)):
        return "batches or heads are broadcast"
    return None


def mask_operand(s: Site, scores: Scores) -> ir.Value | Expr | Refusal | None:
    """Return the mask for Attention; ONNX Runtime broadcasts a mask along batches and heads only."""
    mask, q, keys = (s.sizes.dims(value) for value in (scores.mask, scores.q, scores.keys_transposed))
    if scores.mask is None or q is None or keys is None:
        return None
    if (
        mask is None
        or not 2 <= len(mask) <= 4
        or facts.dtype(scores.mask) not in (ir.DataType.BOOL, facts.dtype(scores.q))
    ):
        return Refusal("the mask's rank is not known, or not from 2 to 4")
    if may_mask_whole_rows(s, scores.mask):
        return Refusal("the mask may hide all keys from a query, for which engines differ")
    lead = zip(reversed(mask[:-2]), reversed(q[:2]), strict=False)
    if not all(size == 1 or equal(size, want) is True for size, want in lead):
        return Refusal("the mask broadcasts the scores")
    if not _as_long(s, scores.mask, -1, keys[3]):
        return Refusal("the mask is broadcast along keys")
    if _as_long(s, scores.mask, -2, q[2]):
        return scores.mask
    if mask[-2] != 1:
        return Refusal("the mask needs one row for each query")
    ones = np.ones(len(mask) - 2, np.int64)
    if isinstance(q[2], int):
        return Expand(scores.mask, np.array([*ones, q[2], 1], np.int64))
    if equal(q[2], mask[-1]) is not True:
        return Refusal("the mask is broadcast along queries, whose number differs from the number of keys")
    queries = Shape(scores.mask, start=len(mask) - 1)
    return Expand(scores.mask, Concat(ones, queries, np.ones(1, np.int64), axis=0))


def _as_long(s: Site, mask: ir.Value, axis: int, size: Size) -> bool:
    """Return True if the mask certainly has this size along an axis when broadcast with the scores."""
    dims = s.sizes.dims(mask)
    if dims is None or equal(dims[axis], size) is True:
        return dims is not None
    most = facts.dim_at(mask_table(s, mask)[0], axis)
    # A slice of a table of n > 1 rows that is shorter than the scores would not broadcast with them.
    return most is not None and most > 1 and equal(dims[axis], dim_min(most, size)) is True


def _keys(s: Site, keys_transposed: ir.Value) -> Expr | ir.Value | None:
    """Return the keys (batch, heads, length, width) whose last two axes are exchanged in the operand."""
    node = producer_of(s, keys_transposed, "Transpose")
    perm = None if node is None else s.attr("perm", node=node)
    if node is None or perm is None or len(perm) != 4:
        return None
    order = [perm[0], perm[1], perm[3], perm[2]]
    return node.inputs[0] if order == [0, 1, 2, 3] else Transpose(node.inputs[0], perm=order)


@rule("fuse_attention", on="MatMul", after="Softmax", exactness=APPROXIMATES, opset=23)
def attention(s: Site) -> Result:
    """Fuse softmax(scale * q @ kᵀ + mask) @ v into Attention(q, k, v, mask); a mask may be -10000 or less."""
    scores = match_scores(s, s.input(0))
    if scores is None:
        return None
    reason = objection(s, scores, s.input(1))
    if reason is not None:
        return Refusal(reason)
    keys, mask = _keys(s, scores.keys_transposed), mask_operand(s, scores)
    if keys is None:
        return Refusal("no Transpose exchanges the last two axes of the keys")
    if isinstance(mask, Refusal):
        return mask
    return Attention(scores.q, keys, s.input(1), *([] if mask is None else [mask]), scale=scores.scale)


@rule("fuse_scale_into_attention", on="Attention", after=("Mul", "Div"), exactness=REASSOCIATES, opset=23)
def scale_of_attention(s: Site) -> Result:
    """Fuse Attention(q * c, k, v, scale=s) into Attention(q, k, v, scale=s * c); k * c likewise."""
    width = facts.dim_at(s.input(0), -1)
    number = s.attr("scale")
    if number is None and width and facts.rank(s.input(0)) == 4:
        number = width**-0.5
    factors = [match_scaled(s, value) for value in s.node.inputs[:2]]
    if not any(factors) or number is None:
        return None
    (q, by), (k, times) = (part or (value, 1.0) for part, value in zip(factors, s.node.inputs, strict=False))
    if by * times <= 0:
        return Refusal("Attention multiplies both q and k by the root of a scale above 0")
    fused = Op(("Attention",))(
        q,
        k,
        *s.node.inputs[2:],
        n_outputs=len(s.node.outputs),
        **dict[str, Any](s.node.attributes) | {"scale": number * by * times},
    )
    return tuple(fused.out(i) for i in range(len(s.node.outputs)))
