"""Causal attention whose keys and values may be fewer than its queries, as ONNX Runtime's operator for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Expr, Refusal, Result, microsoft, rule
from sardonyx.rewrite.notation import Cast, Expand, Gather, Shape, Sub
from sardonyx.rewrite.rules.attention import Scores, objection, scores
from sardonyx.rewrite.rules.heads import HEADS_SECOND, heads_joined_after, joined_heads, parted, repeated_heads
from sardonyx.rewrite.rules.masks import is_causal
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

_WIDTHS = 8
"""Its kernels take heads whose width is a multiple of this."""


@rule(
    "fuse_group_query_attention",
    on="Reshape",
    after="Transpose",
    exactness=APPROXIMATES,
    opset=7,
    emits="com.microsoft",
    targets=("onnxruntime",),
)
def group_query_attention(s: Site) -> Result:
    """Causal attention with heads parted and joined is GroupQueryAttention; e^-10000, if that is added, is 0."""
    product = made_by(s, heads_joined_after(s), "MatMul")
    found = None if product is None else scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or found is None or not facts.used_once(product.outputs[0]):
        return None
    if found.mask is None or not is_causal(s, found.mask):
        return Refusal("the mask is not known to be causal")
    reason = objection(s, found, product.inputs[1])
    if reason is not None:
        return Refusal(reason)
    q, k, v = joined_heads(s, found.q), _keys(s, found), _heads(s, product.inputs[1])
    if q is None or k is None or v is None:
        return Refusal("q, k or v has its heads from elsewhere")
    reason = _sizes_objection(s, found, q, k, v)
    if reason is not None:
        return Refusal(reason)
    last, total = _lengths(s, q[0])
    operator = microsoft("GroupQueryAttention")
    return operator(q[0], k[0], v[0], None, None, last, total, num_heads=q[1], kv_num_heads=k[1], scale=found.scale)


Heads = tuple[ir.Value, int]
"""The tensor (batch, length, heads · width) with all heads, and how many these are."""


def _heads(s: Site, value: ir.Value | None) -> Heads | None:
    return joined_heads(s, repeated_heads(s, value) or value)


def _keys(s: Site, found: Scores) -> Heads | None:
    node = made_by(s, found.turned, "Transpose")
    perm = None if node is None else tuple(s.attr("perm", (), node=node))
    if node is None or perm is None:
        return None
    if perm == (0, 1, 3, 2):
        return _heads(s, node.inputs[0])
    return parted(s, node.inputs[0]) if (perm[0], perm[1], perm[3], perm[2]) == HEADS_SECOND else None


def _sizes_objection(s: Site, found: Scores, q: Heads, k: Heads, v: Heads) -> str | None:
    dims, mask = s.sizes.dims(found.q), s.sizes.dims(found.mask)
    joined = [s.sizes.dims(each[0]) for each in (q, k, v)]
    if dims is None or mask is None or any(each is None for each in joined):
        return "a rank is not known"
    if k[1] != v[1] or q[1] % k[1] or not isinstance(dims[3], int) or dims[3] % _WIDTHS:
        return f"the heads' width is not a multiple of {_WIDTHS}, or k and v have other numbers of heads"
    widths = [facts.dim_at(each, -1) for each, _ in (q, k, v)]
    if widths != [q[1] * dims[3], k[1] * dims[3], k[1] * dims[3]]:
        return "the heads of q, k and v are not of one width"
    if any(each is None or each[:2] != (dims[0], dims[2]) for each in joined):
        return "there are not as many keys as queries"
    if len(mask) < 2 or any(size != 1 for size in mask[:-2]) or not all(equal(m, dims[2]) is True for m in mask[-2:]):
        return "the mask has not a row for each query and a column for each key"
    return None


def _lengths(s: Site, q: ir.Value) -> tuple[Expr | np.ndarray, Expr | np.ndarray]:
    """The place of the last key of each sample, and how many keys there are."""
    dims = s.sizes.dims(q)
    if dims is not None and isinstance(dims[0], int) and isinstance(dims[1], int):
        return np.full(dims[0], dims[1] - 1, np.int32), np.array(dims[1], np.int32)
    shape = Shape(q)
    total = Cast(Gather(shape, np.array(1, np.int64)), to=ir.DataType.INT32.value)
    return Expand(Sub(total, np.array(1, np.int32)), Gather(shape, np.array([0], np.int64))), total
