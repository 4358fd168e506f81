"""Attention below the operator set of the standard's, as ONNX Runtime's Attention and MultiHeadAttention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Expr, Refusal, Result, microsoft, rule
from sardonyx.rewrite.rules.attention import Scores, mask_operand, match_scores, objection
from sardonyx.rewrite.rules.attention_heads import match_merged_heads, match_split_heads, split_source
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME, not_its_type
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import apply_along
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.weight_dependencies import derive

STANDARD_SINCE = 23
"""Operator set that introduced Attention."""


@dataclass(frozen=True)
class _Heads:
    """Attention over q, k and v, each [batch, length, heads · width], with merged heads after."""

    scores: Scores
    q: ir.Value
    k: ir.Value
    v: ir.Value
    heads: int


@dataclass(frozen=True)
class _Projections:
    """The projections x @ w + b of q, k and v, from one input.

    Attributes:
        x: The input [batch, length, width].
        weights: The constant matrices, [width, heads · size] each.
        biases: The constant vectors; None for no bias.
    """

    x: ir.Value
    weights: tuple[ir.Value, ...]
    biases: tuple[ir.Value | None, ...]


@rule(
    "fuse_projected_attention",
    on="Reshape",
    after="Transpose",
    exactness=REASSOCIATES,
    opset=7,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def projected_attention(s: Site) -> Result:
    """Fuse the projections of one input, their attention and merged heads into ONNX Runtime's Attention."""
    attention = _match(s)
    projections = None if attention is None else _projections(s, attention)
    if attention is None or isinstance(attention, Refusal) or projections is None:
        return None
    if (refusal := not_its_type(projections.x)) is not None:
        return refusal
    mask = mask_operand(s, attention.scores)
    if isinstance(mask, Refusal):
        return mask
    if attention.scores.mask is not None and facts.dtype(attention.scores.mask) == ir.DataType.BOOL:
        return Refusal("the operator adds its mask, and the mask is boolean")
    weights = [facts.constant_tensor(value) for value in projections.weights]
    (weight,) = derive(lambda *arrays: [np.concatenate(arrays, axis=1)], *(w for w in weights if w is not None))
    sizes = [int(facts.dim_at(value, 1) or 0) for value in projections.weights]
    return microsoft("Attention")(
        projections.x,
        weight,
        _joined_biases(projections, sizes),
        None,
        None,
        None if attention.scores.mask is None else _with_four_axes(s, attention.scores.mask, mask),
        num_heads=attention.heads,
        qkv_hidden_sizes=None if len(set(sizes)) == 1 else sizes,
        scale=attention.scores.scale,
    )


@rule(
    "fuse_multi_head_attention",
    on="Reshape",
    after="Transpose",
    exactness=REASSOCIATES,
    opset=7,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def multi_head_attention(s: Site) -> Result:
    """Fuse attention with split and merged heads into ONNX Runtime's MultiHeadAttention, without a mask."""
    attention = _match(s)
    if attention is None or isinstance(attention, Refusal):
        return attention
    if attention.scores.mask is not None:
        return Refusal("its kernel is slower with a mask")
    operator = microsoft("MultiHeadAttention")
    return operator(attention.q, attention.k, attention.v, num_heads=attention.heads, scale=attention.scores.scale)


def _match(s: Site) -> _Heads | Refusal | None:
    """Match the root as softmax(scale · q · kᵀ + mask) · v with split heads before and merged heads after."""
    product = producer_of(s, match_merged_heads(s), "MatMul")
    scores = None if product is None else match_scores(s, product.inputs[0])
    if s.opset >= STANDARD_SINCE or product is None or scores is None or not facts.used_once(product.outputs[0]):
        return None
    reason = objection(s, scores, product.inputs[1])
    if reason is not None:
        return Refusal(reason)
    transpose = producer_of(s, scores.keys_transposed, "Transpose")
    perm = None if transpose is None else tuple(s.attr("perm", (), node=transpose))
    keys = split_source(s, transpose.inputs[0]) if transpose is not None and perm == (0, 2, 3, 1) else None
    queries, values = match_split_heads(s, scores.q), match_split_heads(s, product.inputs[1])
    if queries is None or keys is None or values is None:
        return Refusal("q, k or v is not split into heads by Reshape and Transpose")
    return _Heads(scores, queries[0], keys[0], values[0], queries[1])


def _projections(s: Site, attention: _Heads | Refusal) -> _Projections | None:
    """Return the constant projections of q, k and v if all have one input and no other readers, else None."""
    if isinstance(attention, Refusal):
        return None
    parts = [_projection(s, value) for value in (attention.q, attention.k, attention.v)]
    matched = [part for part in parts if part is not None]
    if len(matched) < 3 or any(x is not matched[0][0] for x, _, _ in matched):
        return None
    widths = [facts.dim_at(w, 1) for _, w, _ in matched]
    if widths[0] != widths[1] or any(not width or width % attention.heads for width in widths):
        return None
    x, weights, biases = matched[0][0], tuple(w for _, w, _ in matched), tuple(b for _, _, b in matched)
    return _Projections(x, weights, biases) if facts.rank(x) == 3 else None


def _projection(s: Site, value: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value | None] | None:
    """Match ``value``, read by one node, as x @ w + b with a constant matrix and a constant vector or no bias."""
    added = producer_of(s, value, "Add")
    product, bias = value, None
    if added is not None and facts.used_once(value):
        for index in (0, 1):
            term, other = added.inputs[index], added.inputs[1 - index]
            if term is not None and other is not None and facts.is_constant(term) and facts.rank(term) == 1:
                product, bias = other, term
    node = producer_of(s, product, "MatMul")
    if node is None or not facts.used_once(product):
        return None
    x, w = node.inputs
    width = None if w is None or not facts.is_constant(w) or facts.rank(w) != 2 else facts.dim_at(w, 1)
    if x is None or w is None or width is None or (bias is not None and facts.static_shape(bias) != (width,)):
        return None
    return x, w, bias


def _joined_biases(projections: _Projections, sizes: list[int]) -> ir.TensorProtocol | np.ndarray:
    """Return the biases of q, k and v in one vector; engines before 2022 require one."""
    if all(bias is None for bias in projections.biases):
        return np.zeros(sum(sizes), np.float32)
    present = [tensor for bias in projections.biases if (tensor := facts.constant_tensor(bias)) is not None]
    is_present = [bias is not None for bias in projections.biases]

    def join(*arrays: np.ndarray) -> list[np.ndarray]:
        rows = iter(arrays)
        parts = [
            next(rows) if here else np.zeros(size, np.float32) for here, size in zip(is_present, sizes, strict=True)
        ]
        return [np.concatenate(parts)]

    (bias,) = derive(join, *present)
    return bias


def _with_four_axes(s: Site, mask: ir.Value, operand: ir.Value | Expr | None) -> ir.Value | Expr | None:
    """Return the mask with four axes, [batch or 1, heads or 1, queries, keys]."""
    rank = facts.rank(mask)
    if operand is None or rank is None or rank >= 4:
        return operand
    return apply_along(s, "Unsqueeze", operand, range(4 - rank))
