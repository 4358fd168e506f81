"""Grouped-query attention with a cache, as exporters of language models emit it.

Source: ONNX Runtime's contrib operators, *GroupQueryAttention*; Ainslie et al. (2023, grouped queries), Su et al.
(2021, rotary positions).
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.dim import dim_max, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, UnsupportedError
from sardonyx.ops.definitions.attention import join_heads, repeat_heads, rotary_embedding, scaled_scores, split_heads
from sardonyx.ops.definitions.microsoft.attention import lowest
from sardonyx.ops.definitions.microsoft.normalization import simplified_layer_normalization
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"


@operator("GroupQueryAttention", since=1, domain=DOMAIN)
def group_query_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    seqlens_k: Tensor,
    total_sequence_length: Tensor,
    cos_cache: Tensor | None = None,
    sin_cache: Tensor | None = None,
    position_ids: Tensor | None = None,
    attention_bias: Tensor | None = None,
    head_sink: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    query_seqlens: Tensor | None = None,
    *,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    kv_num_heads: int,
    local_window_size: int = -1,
    num_heads: int,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
) -> tuple[Tensor, ...]:
    """Attend with a cache; the keys of a sequence end at ``seqlens_k`` + 1.

    If the number of queries equals the total length, the step is the first and the cache is empty. ``query_seqlens`` is
    the number of queries of each sequence; queries after them are padding.
    """
    if {k_quant_type, v_quant_type} != {"NONE"} or sliding_window_cache:
        raise UnsupportedError("GroupQueryAttention with a quantized or sliding cache is not supported.")
    q, k, v = _by_head(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        q, _ = simplified_layer_normalization(q, q_norm_weight, epsilon=qk_norm_epsilon)
        k, _ = simplified_layer_normalization(k, k_norm_weight, epsilon=qk_norm_epsilon)
    total, count = L.one_size(total_sequence_length, "total_sequence_length"), q.shape[2]
    ends = L.cast(seqlens_k, t.INT64) + 1
    first = L.equal(L.number(count), L.number(total))
    if query_seqlens is None:
        valid = L.number(count)
        past = L.where(first, 0, ends - valid)
    else:
        valid = L.unsqueeze(L.cast(query_seqlens, t.INT64), [1])
        past, first = ends - L.squeeze(valid, [1]), L.full((), False, t.BOOL)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise InvalidModelError("GroupQueryAttention with `do_rotary` needs `cos_cache` and `sin_cache`.")
        positions = _positions(position_ids, past, count, first)
        q, k = (_rotate(x, cos_cache, sin_cache, positions, rotary_interleaved) for x in (q, k))
    keys, values = (_append_to_cache(cache, new, past, valid, total) for cache, new in ((past_key, k), (past_value, v)))
    allowed = _allowed(past, ends, count, total, causal, local_window_size)
    scores = scaled_scores(q, repeat_heads(L.slice_(keys, 2, 0, total), num_heads), scale or None)
    scores = softcap * L.tanh(scores / softcap) if softcap else scores
    scores = scores if attention_bias is None else scores + attention_bias
    masked = L.where(allowed, scores, lowest(q.dtype))
    sink = L.full((num_heads,), 0, q.dtype) if head_sink is None and smooth_softmax == 1 else head_sink
    weights = L.cast(_softmax(L.widened(masked), sink), q.dtype)
    y = L.matmul(weights, repeat_heads(L.slice_(values, 2, 0, total), num_heads))
    return join_heads(y), keys, values, weights if qk_output == 2 else L.where(allowed, scores, 0)


def _by_head(
    query: Tensor, key: Tensor | None, value: Tensor | None, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return [batch, heads, sequence, size] of queries, keys and values, separate or concatenated."""
    if key is None or value is None:
        size = floor_div(query.shape[-1], heads + 2 * kv_heads)
        a, b, c = (size * count for count in (heads, heads + kv_heads, heads + 2 * kv_heads))
        query, key, value = L.slice_(query, -1, 0, a), L.slice_(query, -1, a, b), L.slice_(query, -1, b, c)
    return split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)


def _positions(position_ids: Tensor | None, past: Tensor, count: L.Size, first: Tensor) -> Tensor:
    """Return the positions [batch, queries]; a first step reads only the first of ``position_ids``."""
    steps = L.iota((1, count), 1)
    if position_ids is None:
        return L.unsqueeze(past, [1]) + steps
    start = L.slice_(L.slice_(L.of_rank(position_ids, 2, "the positions"), 0, 0, 1), 1, 0, 1)
    return L.where(first, start + steps, position_ids)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: int) -> Tensor:
    cos = L.of_rank(cos, 2, "the cosines")
    positions = L.broadcast_to(positions, (x.shape[0], x.shape[2]))
    return rotary_embedding(x, cos, sin, positions, interleaved=interleaved, rotary_embedding_dim=2 * cos.shape[1])  # type: ignore[arg-type]


def _append_to_cache(cache: Tensor | None, new: Tensor, past: Tensor, valid: Tensor, total: L.Size) -> Tensor:
    """Append ``valid`` entries of ``new`` to the ``past`` entries of each sequence; 0 after both."""
    joined = new if cache is None else L.concat([cache, new], 2)
    before: L.Size = 0 if cache is None else cache.shape[2]
    positions = L.iota((1, dim_max(before, total)), 1)
    past = L.unsqueeze(past, [1])
    sources = L.where(positions < past, positions, positions - past + L.number(before))
    is_valid = positions < past + valid
    picked = L.gather_nd(L.swap_axes(joined, 1, 2), L.unsqueeze(L.where(is_valid, sources, 0), [-1]), batch=1)
    return L.where(L.unsqueeze(is_valid, [1, 3]), L.swap_axes(picked, 1, 2), 0)


def _allowed(past: Tensor, ends: Tensor, count: L.Size, total: L.Size, causal: int, window: int) -> Tensor:
    """Return the mask of keys that each query attends, [batch, 1, queries, keys]."""
    keys = L.iota((1, 1, 1, total), 3)
    allowed = keys < L.unsqueeze(ends, [1, 2, 3])
    position = L.unsqueeze(past, [1, 2, 3]) + L.iota((1, 1, count, 1), 2)
    if causal:
        allowed = allowed & (keys <= position)
    return allowed & (keys > position - window) if window > 0 else allowed


def _softmax(scores: Tensor, sink: Tensor | None) -> Tensor:
    """Return the softmax over keys; a sink is a score for each head without a value."""
    if sink is None:
        return L.softmax(scores)
    column = L.broadcast_to(L.reshape(L.cast(sink, scores.dtype), (sink.shape[0], 1, 1)), (*scores.shape[:-1], 1))
    return L.slice_(L.softmax(L.concat([scores, column], -1)), -1, 0, scores.shape[-1])
