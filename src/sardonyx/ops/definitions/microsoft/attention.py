"""Attention as ONNX Runtime's optimizer and exporters write it: with projections, masks of several forms, and caches.

Source: ONNX Runtime's contrib operators, *Attention*, *QAttention*, *MultiHeadAttention*, *PackedMultiHeadAttention*,
*DecoderMaskedMultiHeadAttention*, *RotaryEmbedding*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.dim import equal as same
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError, UnsupportedError
from sardonyx.ops.definitions import attention as standard
from sardonyx.ops.definitions.attention import join_heads, scaled_scores, split_heads
from sardonyx.ops.definitions.microsoft.quantized_products import integer_matmul_to_float
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"
FILTER = -10000.0
"""What a mask adds to the scores of keys that take no part."""


def lowest(dtype: t.DType) -> float:
    """The least finite number of a float type."""
    return -65504.0 if dtype == t.FLOAT16 else -3.3895313892515355e38 if dtype == t.BFLOAT16 else -3.4028234663852886e38


def mask_bias(mask: Tensor, batch: Size, past: Size, queries: Size, keys: Size, low: float, dtype: t.DType) -> Tensor:
    """What a mask adds to scores, broadcasting to [batch, heads, queries, keys].

    Args:
        mask: 1 for keys that take part, as [batch, keys], [batch, queries, keys] or [batch, 1, all, all]; or where
            they end in each sequence, [batch], with where they begin after it, [2 * batch].
        batch: How many sequences.
        past: Keys before those of the first query.
        queries: Of a sequence.
        keys: Of a sequence.
        low: What is added where the mask says no.
        dtype: The element type of scores.
    """
    if mask.rank == 1:
        places = L.iota((1, keys), 1, mask.dtype)
        kept = places < L.unsqueeze(L.slice_(mask, 0, 0, batch), [1])
        if same(mask.shape[0], batch * 2) is True:
            kept = kept & (places >= L.unsqueeze(L.slice_(mask, 0, batch, batch * 2), [1]))
    else:
        kept = mask > 0
    if kept.rank == 4:
        kept = L.slice_(L.slice_(kept, 2, past, past + queries), 3, 0, keys)
    elif kept.rank in (2, 3):
        kept = L.unsqueeze(kept, [1, 2] if kept.rank == 2 else [1])
    return L.where(kept, L.constant(0, dtype), low)


def causal_bias(past: Size, queries: Size, keys: Size, dtype: t.DType) -> Tensor:
    """What keeps queries from the keys after them, [queries, keys]."""
    after = L.iota((queries, keys), 1) - L.iota((queries, keys), 0) - L.number(past)
    return L.where(after > 0, L.constant(lowest(dtype), dtype), 0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None], scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention over heads, [batch, heads, sequence, size]; and its scores with what is added to them."""
    scores = scaled_scores(q, k, scale or None)
    for bias in biases:
        scores = scores if bias is None else scores + bias
    weights = L.cast(L.softmax(L.widened(scores)), q.dtype)
    return L.matmul(weights, v), scores


def _cached(
    cache: Tensor | None, new: Tensor, length: Tensor | None, indirection: Tensor | None = None
) -> tuple[Tensor, Tensor, Size]:
    """Keys or values [batch, heads, sequence, size] after those of earlier steps.

    Args:
        cache: The earlier ones; with ``length``, a buffer of which as many are filled.
        new: Those of this step.
        length: How many are filled.
        indirection: From which beam each of the earlier ones is, [batch, beams, all].

    Returns:
        All of them; what is kept for the next step; and how many there were before.
    """
    if cache is None:
        return new, new, 0
    if length is None:
        joined = L.concat([cache, new], 2)
        return joined, joined, cache.shape[2]
    before = L.one_size(length, "past_sequence_length")
    earlier = L.slice_(cache, 2, 0, before)
    kept = L.concat([earlier, new, L.slice_(cache, 2, before + new.shape[2], cache.shape[2])], 2)
    return L.concat([earlier if indirection is None else _by_beam(earlier, indirection), new], 2), kept, before


def _self_attention(
    projected: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    attention_bias: Tensor | None,
    past_length: Tensor | None,
    sizes: Sequence[Size],
    heads: int,
    *,
    unidirectional: int,
    low: float,
    scale: float | None,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Attention of queries, keys and values that lie side by side; and the keys and values for the next step."""
    ends = [sizes[0], sizes[0] + sizes[1], sizes[0] + sizes[1] + sizes[2]]
    q, k, v = (
        split_heads(L.slice_(projected, -1, end - size, end), heads) for end, size in zip(ends, sizes, strict=True)
    )
    k, kept_keys, before = _cached(None if past is None else L.entry(past, 0), k, past_length)
    v, kept_values, _ = _cached(None if past is None else L.entry(past, 1), v, past_length)
    y, _ = _masked(q, k, v, mask, attention_bias, before, unidirectional=unidirectional, low=low, scale=scale)
    return (y,) if outputs < 2 else (y, L.stack([kept_keys, kept_values]))


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    attention_bias: Tensor | None,
    before: Size,
    *,
    unidirectional: int,
    low: float,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention with a mask and in one direction, joined; and its scores."""
    (batch, _, queries, _), keys = q.shape, k.shape[2]
    padding = None if mask is None else mask_bias(mask, batch, before, queries, keys, low, q.dtype)
    causal = causal_bias(before, queries, keys, q.dtype) if unidirectional else None
    y, scores = attend(q, k, v, [attention_bias, padding, causal], scale)
    return join_heads(y), scores


def _third(size: Size) -> Size:
    if isinstance(size, int) and size % 3:
        raise ShapeError(f"queries, keys and values of one size do not fill an axis of {size}.")
    return floor_div(size, 3)


@operator("Attention", since=1, domain=DOMAIN)
def attention(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    mask_index: Tensor | None = None,
    past: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    if do_rotary:
        raise UnsupportedError("Attention with rotary positions is not defined.", remedy="Use RotaryEmbedding.")
    projected = L.matmul(x, weights)
    return _self_attention(
        projected if bias is None else projected + bias, mask_index, past, attention_bias,
        past_sequence_length if past_present_share_buffer else None,
        tuple(qkv_hidden_sizes) or (_third(projected.shape[-1]),) * 3, num_heads,
        unidirectional=unidirectional, low=mask_filter_value, scale=scale, outputs=outputs,
    )  # fmt: skip


@operator("QAttention", since=1, domain=DOMAIN)
def quantized_attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    outputs: int,
) -> tuple[Tensor, ...]:
    """The projection is a product of integers; what follows is real."""
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("QAttention with rotary positions or a shared buffer is not defined.")
    projected = integer_matmul_to_float(x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return _self_attention(
        projected, mask_index, past, None, None, (_third(projected.shape[-1]),) * 3, num_heads,
        unidirectional=unidirectional, low=mask_filter_value, scale=scale, outputs=outputs,
    )  # fmt: skip


def _separated(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values by head, from tensors of their own or from packed ones, with their biases.

    Packed are [batch, sequence, heads, 3, size], or 2 of keys and values; [batch, heads, sequence, size] are keys and
    values as they are.
    """
    if query.rank == 5:
        query, key, value = (_of_packed(query, i) for i in range(3))
    elif key is None:
        size = _third(query.shape[-1])
        query, key, value = (L.slice_(query, -1, i * size, (i + 1) * size) for i in range(3))
    elif key.rank == 5:
        key, value = _of_packed(key, 0), _of_packed(key, 1)
    if value is None:
        raise InvalidModelError("keys are given without values.")
    if key.rank == 4:
        q = query if bias is None else query + L.slice_(bias, 0, 0, query.shape[-1])
        return split_heads(q, heads), key, value
    parts: list[Tensor] = []
    begin: Size = 0
    for x in (query, key, value):
        end = begin + x.shape[-1]
        parts.append(split_heads(x if bias is None else x + L.slice_(bias, 0, begin, end), heads))
        begin = end
    return parts[0], parts[1], parts[2]


def _of_packed(x: Tensor, which: int) -> Tensor:
    """[batch, sequence, heads, parts, size] to one part, [batch, sequence, heads * size]."""
    part = L.entry(x, which, 3)
    return L.reshape(part, (*part.shape[:2], part.shape[2] * part.shape[3]))


@operator("MultiHeadAttention", since=1, domain=DOMAIN)
def multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    q, k, v = _separated(query, key, value, bias, num_heads)
    k, kept_keys, before = _cached(past_key, k, past_sequence_length, cache_indirection)
    v, kept_values, _ = _cached(past_value, v, past_sequence_length, cache_indirection)
    y, scores = _masked(
        q, k, v, key_padding_mask, attention_bias, before, unidirectional=unidirectional, low=mask_filter_value,
        scale=scale,
    )  # fmt: skip
    return y, kept_keys, kept_values, scores


def _by_beam(cache: Tensor, indirection: Tensor) -> Tensor:
    """A cache of which every token is read from the beam that ``indirection`` tells for it."""
    rows, _, tokens, _ = cache.shape
    first = L.arange(rows) / L.number(indirection.shape[1]) * L.number(indirection.shape[1])
    beam = L.reshape(L.slice_(indirection, 2, 0, tokens), (rows, tokens))
    row = L.cast(beam, t.INT64) + L.unsqueeze(first, [1])
    places = L.concat([L.unsqueeze(row, [-1]), L.iota((rows, tokens, 1), 1)], -1)
    return L.swap_axes(L.gather_nd(L.swap_axes(cache, 1, 2), places), 1, 2)


@operator("DecoderMaskedMultiHeadAttention", since=1, domain=DOMAIN)
def decoder_masked_multi_head_attention(
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    mask_index: Tensor | None = None,
    attention_bias: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_sequence_length: Tensor | None = None,
    beam_width: Tensor | None = None,
    cache_indirection: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """``MultiHeadAttention`` of one token; keys of four axes are those of another sequence."""
    return multi_head_attention(
        query, key, value, bias, mask_index, attention_bias, past_key, past_value,
        past_sequence_length if past_present_share_buffer else None, cache_indirection,
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale,
    )  # fmt: skip


@operator("PackedMultiHeadAttention", since=1, domain=DOMAIN)
def packed_multi_head_attention(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    bias: Tensor | None,
    token_offset: Tensor,
    cumulative_sequence_length: Tensor,
    attention_bias: Tensor | None = None,
    *,
    mask_filter_value: float = FILTER,
    num_heads: int,
    scale: float | None = None,
) -> Tensor:
    """``MultiHeadAttention`` of sequences without the padding between them: put in, and taken out again."""
    (batch, longest), tokens = token_offset.shape, query.shape[0]
    offsets = L.slice_(L.reshape(token_offset, (batch * longest,)), 0, 0, tokens)

    def padded(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        rows = L.full((batch * longest, *x.shape[1:]), 0, x.dtype)
        put = L.scatter_nd(rows, L.unsqueeze(offsets, [1]), x)
        return L.reshape(put, (batch, longest, *x.shape[1:]))

    ends = L.slice_(cumulative_sequence_length, 0, 1, batch + 1)
    lengths = ends - L.slice_(cumulative_sequence_length, 0, 0, batch)
    y, *_ = multi_head_attention(
        padded(query), padded(key), padded(value), bias, lengths, attention_bias,  # type: ignore[arg-type]
        mask_filter_value=mask_filter_value, num_heads=num_heads, scale=scale,
    )  # fmt: skip
    return L.take(L.reshape(y, (batch * longest, y.shape[-1])), offsets, 0)


@operator("RotaryEmbedding", since=1, domain=DOMAIN)
def rotary_embedding(
    x: Tensor,
    position_ids: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Tensor:
    """One position is that of the first token of every sequence."""
    turned = rotary_embedding_dim or cos_cache.shape[1] * 2
    sequence = x.shape[-2]
    if position_ids.rank == 1:
        position_ids = L.broadcast_to(position_ids + L.iota((1, sequence), 1), (x.shape[0], sequence))
    return standard.rotary_embedding(
        x, cos_cache, sin_cache, position_ids, interleaved=interleaved,
        num_heads=num_heads or floor_div(x.shape[-1], turned), rotary_embedding_dim=turned,  # type: ignore[arg-type]
    )  # fmt: skip
