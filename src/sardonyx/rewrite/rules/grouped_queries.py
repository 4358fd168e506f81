"""Causal attention whose keys and values may be fewer than its queries, as ONNX Runtime's operator for it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Expr, Patch, Refusal, Result, microsoft, rule
from sardonyx.rewrite.notation import Add, Cast, Expand, Gather, Shape, Sub
from sardonyx.rewrite.rules.attention import Scores, objection, scores
from sardonyx.rewrite.rules.attention_heads import (
    HEADS_SECOND,
    heads_joined_after,
    joined_heads,
    parted,
    repeated_heads,
)
from sardonyx.rewrite.rules.caches import appended, of_one_length
from sardonyx.rewrite.rules.masks import is_causal, is_causal_behind
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


@rule(
    "fuse_group_query_attention",
    on="Reshape",
    after=("Transpose", "MatMul"),
    among=("Concat",),
    exactness=APPROXIMATES,
    opset=7,
    emits="com.microsoft",
    targets=("onnxruntime",),
)
def cached_group_query_attention(s: Site) -> Result:
    """Causal attention to keys and values of earlier runs, and to new ones appended to them, does so by itself."""
    product = made_by(s, heads_joined_after(s), "MatMul")
    found = None if product is None else scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or found is None or not facts.used_once(product.outputs[0]):
        return None
    keys, values = _plain_keys(s, found), product.inputs[1]
    keys, values = repeated_heads(s, keys) or keys, repeated_heads(s, values) or values
    key_parts, value_parts = appended(s, keys), appended(s, values)
    if keys is None or values is None or key_parts is None or value_parts is None:
        return None
    reason = objection(s, found, product.inputs[1]) or _cache_objection(s, found, (keys, values), key_parts)
    if reason is not None:
        return Refusal(reason)
    if not of_one_length(s, key_parts, value_parts):
        return Refusal("there are not as many values as keys, of earlier runs or new ones")
    (past_keys, new_keys), (past_values, new_values) = key_parts, value_parts
    q, k, v = joined_heads(s, found.q), joined_heads(s, new_keys), joined_heads(s, new_values)
    if q is None or k is None or v is None:
        return Refusal("q, k or v has its heads from elsewhere")
    reason = _heads_objection(s, found, q, k, v)
    if reason is not None:
        return Refusal(reason)
    last, total = _lengths(s, q[0], past_keys)
    made = microsoft("GroupQueryAttention")(
        *(q[0], k[0], v[0], past_keys, past_values, last, total),
        n_outputs=3,
        num_heads=q[1],
        kv_num_heads=k[1],
        scale=found.scale,
    )
    return Patch({s.output: made.out(0), keys: made.out(1), values: made.out(2)})


def _plain_keys(s: Site, found: Scores) -> ir.Value | None:
    node = made_by(s, found.turned, "Transpose")
    plain = node is not None and tuple(s.attr("perm", (), node=node)) == (0, 1, 3, 2)
    return node.inputs[0] if node is not None and plain else None


def _cache_objection(
    s: Site, found: Scores, joined: tuple[ir.Value, ir.Value], cache: tuple[ir.Value, ir.Value]
) -> str | None:
    """Why the new queries may not see just the keys up to their own places, or others read what is cached."""
    if any(len(value.uses()) != 1 for value in joined):
        return "others read the keys or values of all runs"
    queries, new, past = (s.sizes.dims(value) for value in (found.q, cache[1], cache[0]))
    if queries is None or new is None or past is None or equal(queries[2], new[2]) is not True:
        return "there are not as many new keys as queries"
    if queries[2] != 1 and queries[0] != 1:
        return "its kernel takes several queries behind a cache of one sample only"
    if found.mask is None:
        return None if queries[2] == 1 else "nothing is masked, and there may be more than one query"
    total = s.sizes.dims(joined[0])
    if total is None or not is_causal_behind(s, found.mask, past[2], total[2]):
        return "the mask is not known to be causal behind what is cached"
    return None


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


def _heads_objection(s: Site, found: Scores, q: Heads, k: Heads, v: Heads) -> str | None:
    dims, joined = s.sizes.dims(found.q), [s.sizes.dims(each[0]) for each in (q, k, v)]
    if dims is None or any(each is None for each in joined):
        return "a rank is not known"
    if k[1] != v[1] or q[1] % k[1] or not isinstance(dims[3], int) or dims[3] % _WIDTHS:
        return f"the heads' width is not a multiple of {_WIDTHS}, or k and v have other numbers of heads"
    widths = [facts.dim_at(each, -1) for each, _ in (q, k, v)]
    if widths != [q[1] * dims[3], k[1] * dims[3], k[1] * dims[3]]:
        return "the heads of q, k and v are not of one width"
    return None


def _sizes_objection(s: Site, found: Scores, q: Heads, k: Heads, v: Heads) -> str | None:
    reason = _heads_objection(s, found, q, k, v)
    dims, mask = s.sizes.dims(found.q), s.sizes.dims(found.mask)
    joined = [s.sizes.dims(each[0]) for each in (q, k, v)]
    if reason is not None or dims is None or mask is None:
        return reason or "a rank is not known"
    if any(each is None or each[:2] != (dims[0], dims[2]) for each in joined):
        return "there are not as many keys as queries"
    if len(mask) < 2 or any(size != 1 for size in mask[:-2]) or not all(equal(m, dims[2]) is True for m in mask[-2:]):
        return "the mask has not a row for each query and a column for each key"
    return None


def _lengths(s: Site, q: ir.Value, past: ir.Value | None = None) -> tuple[Expr | np.ndarray, Expr | np.ndarray]:
    """The place of the last key of each sample, and how many keys there are: the queries' number, and the past's."""
    batch, queries = (facts.dim_at(q, axis) for axis in (0, 1))
    before = 0 if past is None else facts.dim_at(past, 2)
    if batch is not None and queries is not None and before is not None:
        return np.full(batch, before + queries - 1, np.int32), np.array(before + queries, np.int32)
    shape = Shape(q)
    length = Gather(shape, np.array(1, np.int64))
    if past is not None:
        length = Add(length, Gather(Shape(past), np.array(2, np.int64)))
    keys = Cast(length, to=ir.DataType.INT32.value)
    return Expand(Sub(keys, np.array(1, np.int32)), Gather(shape, np.array([0], np.int64))), keys
