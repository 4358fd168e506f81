"""Causal attention with fewer key and value heads than query heads, as GroupQueryAttention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import APPROXIMATES, Expr, Patch, Refusal, Result, microsoft, rule
from sardonyx.rewrite.notation import Add, Cast, Expand, Gather, Shape, Sub
from sardonyx.rewrite.rules.attention import Scores, match_scores, objection
from sardonyx.rewrite.rules.attention_heads import (
    HEADS_SECOND,
    match_merged_heads,
    match_repeated_heads,
    match_split_heads,
    split_source,
)
from sardonyx.rewrite.rules.caches import have_one_length, match_appended
from sardonyx.rewrite.rules.masks import is_causal, is_causal_after_cache
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.site import Site

_WIDTHS = 8
"""Head widths are multiples of this in the kernels of the operator."""


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
    """Fuse causal attention with split and merged heads into GroupQueryAttention.

    A mask of −10000 that is added counts as −∞: e^−10000 is 0.
    """
    product = producer_of(s, match_merged_heads(s), "MatMul")
    attention = None if product is None else match_scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or attention is None or not facts.used_once(product.outputs[0]):
        return None
    if attention.mask is None or not is_causal(s, attention.mask):
        return Refusal("the mask is not known to be causal")
    reason = objection(s, attention, product.inputs[1])
    if reason is not None:
        return Refusal(reason)
    q, k, v = match_split_heads(s, attention.q), _keys(s, attention), _heads(s, product.inputs[1])
    if q is None or k is None or v is None:
        return Refusal("the heads of q, k or v are not split from one axis")
    reason = _sizes_objection(s, attention, q, k, v)
    if reason is not None:
        return Refusal(reason)
    last, total = _sequence_lengths(s, q[0])
    operator = microsoft("GroupQueryAttention")
    return operator(q[0], k[0], v[0], None, None, last, total, num_heads=q[1], kv_num_heads=k[1], scale=attention.scale)


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
    """Fuse causal attention to cached and appended keys and values into GroupQueryAttention."""
    product = producer_of(s, match_merged_heads(s), "MatMul")
    attention = None if product is None else match_scores(s, product.inputs[0])
    if s.opset >= 23 or product is None or attention is None or not facts.used_once(product.outputs[0]):
        return None
    keys, values = _untransposed_keys(s, attention), product.inputs[1]
    keys, values = match_repeated_heads(s, keys) or keys, match_repeated_heads(s, values) or values
    key_parts, value_parts = match_appended(s, keys), match_appended(s, values)
    if keys is None or values is None or key_parts is None or value_parts is None:
        return None
    reason = objection(s, attention, product.inputs[1]) or _cache_objection(s, attention, (keys, values), key_parts)
    if reason is not None:
        return Refusal(reason)
    if not have_one_length(s, key_parts, value_parts):
        return Refusal("keys and values differ in length, in the cache or in the new part")
    (past_keys, new_keys), (past_values, new_values) = key_parts, value_parts
    q, k, v = match_split_heads(s, attention.q), match_split_heads(s, new_keys), match_split_heads(s, new_values)
    if q is None or k is None or v is None:
        return Refusal("the heads of q, k or v are not split from one axis")
    reason = _heads_objection(s, attention, q, k, v)
    if reason is not None:
        return Refusal(reason)
    last, total = _sequence_lengths(s, q[0], past_keys)
    fused = microsoft("GroupQueryAttention")(
        *(q[0], k[0], v[0], past_keys, past_values, last, total),
        n_outputs=3,
        num_heads=q[1],
        kv_num_heads=k[1],
        scale=attention.scale,
    )
    return Patch({s.output: fused.out(0), keys: fused.out(1), values: fused.out(2)})


def _untransposed_keys(s: Site, attention: Scores) -> ir.Value | None:
    node = producer_of(s, attention.keys_transposed, "Transpose")
    is_swap_of_last_axes = node is not None and tuple(s.attr("perm", (), node=node)) == (0, 1, 3, 2)
    return node.inputs[0] if node is not None and is_swap_of_last_axes else None


def _cache_objection(
    s: Site, attention: Scores, joined: tuple[ir.Value, ir.Value], cache: tuple[ir.Value, ir.Value]
) -> str | None:
    """Return the reason why new queries may not see exactly the keys up to their own position, or None."""
    if any(len(value.uses()) != 1 for value in joined):
        return "the concatenated keys or values have other readers"
    queries, new, past = (s.sizes.dims(value) for value in (attention.q, cache[1], cache[0]))
    if queries is None or new is None or past is None or equal(queries[2], new[2]) is not True:
        return "the numbers of new keys and queries are not known to be equal"
    if queries[2] != 1 and queries[0] != 1:
        return "the kernel supports several queries after a cache for a single sample only"
    if attention.mask is None:
        return None if queries[2] == 1 else "the attention has no mask and may have more than one query"
    total = s.sizes.dims(joined[0])
    if total is None or not is_causal_after_cache(s, attention.mask, past[2], total[2]):
        return "the mask is not known to be causal after the cached keys"
    return None


Heads = tuple[ir.Value, int]
"""A tensor [batch, length, heads · width], and the number of heads."""


def _heads(s: Site, value: ir.Value | None) -> Heads | None:
    return match_split_heads(s, match_repeated_heads(s, value) or value)


def _keys(s: Site, attention: Scores) -> Heads | None:
    node = producer_of(s, attention.keys_transposed, "Transpose")
    perm = None if node is None else tuple(s.attr("perm", (), node=node))
    if node is None or perm is None:
        return None
    if perm == (0, 1, 3, 2):
        return _heads(s, node.inputs[0])
    return split_source(s, node.inputs[0]) if (perm[0], perm[1], perm[3], perm[2]) == HEADS_SECOND else None


def _heads_objection(s: Site, attention: Scores, q: Heads, k: Heads, v: Heads) -> str | None:
    dims, joined = s.sizes.dims(attention.q), [s.sizes.dims(tensor) for tensor, _ in (q, k, v)]
    if dims is None or None in joined:
        return "a rank is not known"
    if k[1] != v[1] or q[1] % k[1] or not isinstance(dims[3], int) or dims[3] % _WIDTHS:
        return f"expected a head width that is a multiple of {_WIDTHS}, and equal numbers of heads in k and v"
    widths = [facts.dim_at(tensor, -1) for tensor, _ in (q, k, v)]
    if widths != [q[1] * dims[3], k[1] * dims[3], k[1] * dims[3]]:
        return "the heads of q, k and v have different widths"
    return None


def _sizes_objection(s: Site, attention: Scores, q: Heads, k: Heads, v: Heads) -> str | None:
    reason = _heads_objection(s, attention, q, k, v)
    dims, mask = s.sizes.dims(attention.q), s.sizes.dims(attention.mask)
    joined = [s.sizes.dims(tensor) for tensor, _ in (q, k, v)]
    if reason is not None or dims is None or mask is None:
        return reason or "a rank is not known"
    if any(sizes is None or sizes[:2] != (dims[0], dims[2]) for sizes in joined):
        return "the numbers of keys and queries are not known to be equal"
    if len(mask) < 2 or any(size != 1 for size in mask[:-2]) or not all(equal(m, dims[2]) is True for m in mask[-2:]):
        return "expected a mask with one row per query and one column per key"
    return None


def _sequence_lengths(
    s: Site, q: ir.Value, past: ir.Value | None = None
) -> tuple[Expr | np.ndarray, Expr | np.ndarray]:
    """Return the index of the last key of each sample, and the total number of keys (cached and new)."""
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
