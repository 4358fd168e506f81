"""Attention of ONNX Runtime's optimizer and exporters: projections, several mask forms, and caches.

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
"""Additive score of masked keys."""


def lowest(dtype: t.DType) -> float:
    """Return the lowest finite number of a float type."""
    return -65504.0 if dtype == t.FLOAT16 else -3.3895313892515355e38 if dtype == t.BFLOAT16 else -3.4028234663852886e38


def mask_bias(mask: Tensor, batch: Size, past: Size, queries: Size, keys: Size, low: float, dtype: t.DType) -> Tensor:
    """Return the additive bias of a mask, broadcasting to [batch, heads, queries, keys].

    Args:
        mask: 1 for unmasked keys, as [batch, keys], [batch, queries, keys] or [batch, 1, all, all]; or the end of the
            keys of each sequence, [batch], optionally followed by the start, [2 * batch].
        batch: Number of sequences.
        past: Number of keys before the first query.
        queries: Number of queries of a sequence.
        keys: Number of keys of a sequence.
        low: Additive score of masked keys.
        dtype: The element type of scores.
    """
    if mask.rank == 1:
        positions = L.iota((1, keys), 1, mask.dtype)
        unmasked = positions < L.unsqueeze(L.slice_(mask, 0, 0, batch), [1])
        starts = "A mask of one axis needs its size to be known to be that of the batch, or twice this."
        if same(mask.shape[0], batch) is not True and L.is_equal(mask.shape[0], batch * 2, starts):
            unmasked = unmasked & (positions >= L.unsqueeze(L.slice_(mask, 0, batch, batch * 2), [1]))
    else:
        unmasked = mask > 0
    if unmasked.rank == 4:
        unmasked = L.slice_(L.slice_(unmasked, 2, past, past + queries), 3, 0, keys)
    elif unmasked.rank in (2, 3):
        unmasked = L.unsqueeze(unmasked, [1, 2] if unmasked.rank == 2 else [1])
    return L.where(unmasked, L.constant(0, dtype), low)


def causal_bias(past: Size, queries: Size, keys: Size, dtype: t.DType) -> Tensor:
    """Return the additive bias that masks the keys after each query, [queries, keys]."""
    after = L.iota((queries, keys), 1) - L.iota((queries, keys), 0) - L.number(past)
    return L.where(after > 0, L.constant(lowest(dtype), dtype), 0)


def attend(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None], scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return attention over heads, [batch, heads, sequence, size], and the biased scores."""
    scores = scaled_scores(q, k, scale or None)
    for bias in biases:
        scores = scores if bias is None else scores + bias
    weights = L.cast(L.softmax(L.widened(scores)), q.dtype)
    return L.matmul(weights, v), scores


def _append_to_cache(
    cache: Tensor | None, new: Tensor, length: Tensor | None, indirection: Tensor | None = None
) -> tuple[Tensor, Tensor, Size]:
    """Append keys or values [batch, heads, sequence, size] to the cache of earlier steps.

    Args:
        cache: Earlier keys or values; with ``length``, a buffer that is filled up to this length.
        new: Keys or values of this step.
        length: The filled length of the buffer.
        indirection: The beam of each earlier token, [batch, beams, all].

    Returns:
        All keys or values, the cache for the next step, and the number of earlier tokens.
    """
    if cache is None:
        return new, new, 0
    if length is None:
        joined = L.concat([cache, new], 2)
        return joined, joined, cache.shape[2]
    before = L.one_size(length, "past_sequence_length")
    earlier = L.slice_(cache, 2, 0, before)
    updated = L.concat([earlier, new, L.slice_(cache, 2, before + new.shape[2], cache.shape[2])], 2)
    return (
        L.concat([earlier if indirection is None else _reorder_by_beam(earlier, indirection), new], 2),
        updated,
        before,
    )


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
    """Return attention of concatenated queries, keys and values, and the cache for the next step."""
    ends = [sizes[0], sizes[0] + sizes[1], sizes[0] + sizes[1] + sizes[2]]
    q, k, v = (
        split_heads(L.slice_(projected, -1, end - size, end), heads) for end, size in zip(ends, sizes, strict=True)
    )
    k, new_keys, before = _append_to_cache(None if past is None else L.entry(past, 0), k, past_length)
    v, new_values, _ = _append_to_cache(None if past is None else L.entry(past, 1), v, past_length)
    y, _ = _attend_masked(q, k, v, mask, attention_bias, before, unidirectional=unidirectional, low=low, scale=scale)
    return (y,) if outputs < 2 else (y, L.stack([new_keys, new_values]))


def _attend_masked(
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
    """Return masked, optionally causal attention with joined heads, and its scores."""
    (batch, _, queries, _), keys = q.shape, k.shape[2]
    padding = None if mask is None else mask_bias(mask, batch, before, queries, keys, low, q.dtype)
    causal = causal_bias(before, queries, keys, q.dtype) if unidirectional == 1 else None
    y, scores = attend(q, k, v, [attention_bias, padding, causal], scale)
    return join_heads(y), scores


def _in_thirds(x: Tensor) -> tuple[Tensor, Size]:
    """Return the tensor after checking that its last axis has three equal parts, and the size of a part.

    Raises:
        ShapeError: The last axis is not divisible by 3.
    """
    whole = x.shape[-1]
    if isinstance(whole, int) and whole % 3:
        raise ShapeError(f"expected an axis divisible by 3 for queries, keys and values, got {whole}.")
    size = floor_div(whole, 3)
    return L.of_size(x, -1, 3 * size, "queries, keys and values"), size


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
        raise UnsupportedError("Attention with `do_rotary` is not supported.", remedy="Use RotaryEmbedding.")
    projected = L.matmul(x, weights)
    projected = projected if bias is None else projected + bias
    sizes: Sequence[Size] = qkv_hidden_sizes
    if sizes:
        projected = L.of_size(projected, -1, sum(qkv_hidden_sizes), "queries, keys and values")
    else:
        projected, size = _in_thirds(projected)
        sizes = (size,) * 3
    if len(sizes) != 3:
        raise InvalidModelError(f"expected 3 numbers in `qkv_hidden_sizes`, got {len(sizes)}.")
    return _self_attention(
        projected, mask_index, past, attention_bias, past_sequence_length if past_present_share_buffer else None,
        sizes, num_heads,
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
    """Project with an integer matrix product; the rest is computed in floating point."""
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("QAttention with `do_rotary` or `past_present_share_buffer` is not supported.")
    projected, size = _in_thirds(
        integer_matmul_to_float(x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    )
    return _self_attention(
        projected, mask_index, past, None, None, (size,) * 3, num_heads,
        unidirectional=unidirectional, low=mask_filter_value, scale=scale, outputs=outputs,
    )  # fmt: skip


def _split_inputs(
    query: Tensor, key: Tensor | None, value: Tensor | None, bias: Tensor | None, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values by head, with biases, from separate or packed tensors.

    Packed tensors are [batch, sequence, heads, 3, size], or 2 in place of 3 for keys and values. Keys and values
    [batch, heads, sequence, size] are used unchanged.
    """
    for name, x in (("queries", query), ("keys", key), ("values", value)):
        if x is not None and x.rank not in (3, 4, 5):
            raise ShapeError(f"expected 3, 4 or 5 axes for the {name}, got {x.type}.")
    if query.rank == 5:
        query, key, value = (_unpack(query, i) for i in range(3))
    elif key is None:
        query, size = _in_thirds(query)
        query, key, value = (L.slice_(query, -1, i * size, (i + 1) * size) for i in range(3))
    elif key.rank == 5:
        key, value = _unpack(key, 0), _unpack(key, 1)
    if value is None:
        raise InvalidModelError("MultiHeadAttention has keys and no values.")
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


def _unpack(x: Tensor, which: int) -> Tensor:
    """Return one part of [batch, sequence, heads, parts, size] as [batch, sequence, heads * size]."""
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
    q, k, v = _split_inputs(query, key, value, bias, num_heads)
    k, new_keys, before = _append_to_cache(past_key, k, past_sequence_length, cache_indirection)
    v, new_values, _ = _append_to_cache(past_value, v, past_sequence_length, cache_indirection)
    y, scores = _attend_masked(
        q, k, v, key_padding_mask, attention_bias, before, unidirectional=unidirectional, low=mask_filter_value,
        scale=scale,
    )  # fmt: skip
    return y, new_keys, new_values, scores


def _reorder_by_beam(cache: Tensor, indirection: Tensor) -> Tensor:
    """Return a cache whose tokens are read from the beams that ``indirection`` lists."""
    rows, _, tokens, _ = cache.shape
    first = L.arange(rows) / L.number(indirection.shape[1]) * L.number(indirection.shape[1])
    beam = L.reshape(L.slice_(indirection, 2, 0, tokens), (rows, tokens))
    row = L.cast(beam, t.INT64) + L.unsqueeze(first, [1])
    indices = L.concat([L.unsqueeze(row, [-1]), L.iota((rows, tokens, 1), 1)], -1)
    return L.swap_axes(L.gather_nd(L.swap_axes(cache, 1, 2), indices), 1, 2)


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
    """Compute ``MultiHeadAttention`` of one token; keys of rank 4 mean cross attention."""
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
    """Compute ``MultiHeadAttention`` of unpadded sequences: pad, compute, and remove the padding."""
    (batch, longest), tokens = token_offset.shape, query.shape[0]
    offsets = L.slice_(L.reshape(token_offset, (batch * longest,)), 0, 0, tokens)

    def pad(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        rows = L.full((batch * longest, *x.shape[1:]), 0, x.dtype)
        padded = L.scatter_nd(rows, L.unsqueeze(offsets, [1]), x)
        return L.reshape(padded, (batch, longest, *x.shape[1:]))

    ends = L.slice_(cumulative_sequence_length, 0, 1, batch + 1)
    lengths = ends - L.slice_(cumulative_sequence_length, 0, 0, batch)
    y, *_ = multi_head_attention(
        pad(query), pad(key), pad(value), bias, lengths, attention_bias,  # type: ignore[arg-type]
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
    """Apply rotary embedding; a single position is the position of the first token of every sequence."""
    rotated_size = rotary_embedding_dim or L.of_rank(cos_cache, 2, "the cosines").shape[1] * 2
    if x.rank not in (3, 4):
        raise ShapeError(f"expected 3 or 4 axes for the input, got {x.type}.")
    sequence = x.shape[-2]
    if position_ids.rank == 1:
        position_ids = L.broadcast_to(position_ids + L.iota((1, sequence), 1), (x.shape[0], sequence))
    if not num_heads and x.rank == 3:
        num_heads = L.static_size(x, -1, "the size of all heads") // max(_static(rotated_size, cos_cache), 1)
    return standard.rotary_embedding(
        x, cos_cache, sin_cache, position_ids, interleaved=interleaved, num_heads=num_heads,
        rotary_embedding_dim=rotated_size,  # type: ignore[arg-type]
    )  # fmt: skip


def _static(rotated_size: Size, cache: Tensor) -> int:
    return rotated_size if isinstance(rotated_size, int) else 2 * L.static_size(cache, 1, "the size of a head")
