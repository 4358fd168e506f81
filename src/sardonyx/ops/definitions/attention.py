"""Attention: ``Attention``, ``RotaryEmbedding``, ``LinearAttention``.

Source: ONNX Operators, *Attention*, *RotaryEmbedding*, *LinearAttention*; Vaswani et al. (2017), Ainslie et al. (2023,
grouped queries), Su et al. (2021, rotary positions).
"""

from __future__ import annotations

import math

from sardonyx.core import language as L
from sardonyx.core.dim import dim_max, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Size, Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.registry import operator


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [batch, sequence, heads * size] to [batch, heads, sequence, size].

    Raises:
        ShapeError: The last axis is not a multiple of the heads.
    """
    batch, sequence, hidden = L.of_rank(x, 3, "an operand with packed heads").shape
    if heads < 1 or (isinstance(hidden, int) and hidden % heads):
        raise ShapeError(f"an axis of {hidden} does not split into {heads} heads.")
    return L.swap_axes(L.reshape(x, (batch, sequence, heads, floor_div(hidden, heads))), 1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Reshape [batch, heads, sequence, size] to [batch, sequence, heads * size]."""
    batch, heads, sequence, size = x.shape
    return L.reshape(L.swap_axes(x, 1, 2), (batch, sequence, heads * size))


def repeat_heads(x: Tensor, heads: Size) -> Tensor:
    """Repeat each head of [batch, heads, sequence, size] consecutively until there are ``heads`` of them.

    Raises:
        ShapeError: ``heads`` is not a multiple of the heads of ``x``.
    """
    batch, own, sequence, size = x.shape
    if own == heads:
        return x
    if isinstance(own, int) and isinstance(heads, int) and (own < 1 or heads % own):
        raise ShapeError(f"expected a number of query heads that is a multiple of {own} key heads, got {heads}.")
    repeated = L.broadcast_to(L.unsqueeze(x, [2]), (batch, own, floor_div(heads, own), sequence, size))
    return L.reshape(repeated, (batch, heads, sequence, size))


def scaled_scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """Return the scaled products of queries and keys, [batch, heads, queries, keys].

    Queries and keys are each scaled by the square root of ``scale``, which avoids overflow. The default scale is one
    over the square root of the head size.
    """
    size = L.cast(L.size_tensor([q.shape[-1]], ()), t.DOUBLE)
    root = L.cast(L.sqrt(1 / L.sqrt(size) if scale is None else L.constant(scale, t.DOUBLE)), q.dtype)
    return L.matmul(q * root, L.swap_axes(k * root, -2, -1))


@operator("Attention", since=23)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    opset: int,
) -> tuple[Tensor, ...]:
    packed = q.rank == 3
    if packed:
        if q_num_heads is None or kv_num_heads is None:
            raise InvalidModelError("Attention of rank 3 needs `q_num_heads` and `kv_num_heads`.")
        q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    elif opset >= 25 and (q_num_heads is not None or kv_num_heads is not None):
        raise InvalidModelError("Attention of rank 4 does not accept `q_num_heads` and `kv_num_heads`.")
    q, k, v = (L.of_rank(x, 4, "an operand of attention") for x in (q, k, v))
    past: Size = 0
    if past_key is not None and past_value is not None and nonpad_kv_seqlen is None:
        past_key, past_value = (L.of_rank(x, 4, "a cache of attention") for x in (past_key, past_value))
        past, k, v = past_key.shape[2], L.concat([past_key, k], 2), L.concat([past_value, v], 2)
    elif past_key is not None or past_value is not None:
        raise InvalidModelError("Attention needs `past_key` and `past_value` together, and without `nonpad_kv_seqlen`.")
    bias = None if attn_mask is None else _bias(attn_mask, k.shape[2], q.dtype, padded=opset >= 24)
    # Of other numbers engines and the standard's function body make no causal mask.
    is_masked = is_causal == 1
    allowed = _allowed(q.shape[2], k.shape[2], past, nonpad_kv_seqlen, is_masked, left_window_size, right_window_size)
    if allowed is not None:
        bias = L.where(allowed, L.constant(0, q.dtype) if bias is None else bias, -math.inf)
    raw = scaled_scores(q, repeat_heads(k, q.shape[1]), scale)
    capped = softcap * L.tanh(raw / softcap) if softcap else raw
    scores = capped if bias is None else capped + bias
    weights = _softmax(
        scores, bias, q.dtype if softmax_precision is None else t.computing_type(softmax_precision, "softmax_precision")
    )
    weights = L.cast(weights, q.dtype)
    y = L.matmul(weights, repeat_heads(v, q.shape[1]), q.dtype)
    if not 0 <= qk_matmul_output_mode <= 3:
        raise InvalidModelError(f"expected a `qk_matmul_output_mode` from 0 to 3, got {qk_matmul_output_mode}.")
    return join_heads(y) if packed else y, k, v, (raw, capped, scores, weights)[qk_matmul_output_mode]


def _bias(mask: Tensor, keys: Size, dtype: DType, *, padded: bool) -> Tensor:
    """Return the additive bias of a mask; since version 24 a mask shorter than the keys masks the rest."""
    if mask.dtype == t.BOOL:
        mask = L.where(mask, L.constant(0, dtype), -math.inf)
    mask = L.cast(mask, dtype)
    if not padded:
        return mask
    if not mask.rank:
        raise ShapeError("expected a mask with an axis of keys, got a number.")
    missing = dim_max(keys - mask.shape[-1], 0)
    return L.pad(mask, (0,) * mask.rank, (*(0,) * (mask.rank - 1), missing), -math.inf)


def _allowed(
    queries: Size, keys: Size, past: Size, ends: Tensor | None, causal: int, left: int, right: int
) -> Tensor | None:
    """Return the mask of attended keys: unpadded, causal, and inside the window; None if all are attended."""
    if left < -1 or right < -1:
        raise InvalidModelError(f"expected a window size of -1 (unlimited) or more, got {min(left, right)}.")
    offset, allowed = L.size_tensor([past], ()), None
    if ends is not None:
        ends = L.unsqueeze(ends, [1, 2, 3])
        offset, allowed = ends - L.size_tensor([queries], ()), L.iota((1, 1, 1, keys), 3) < ends
    if not causal and left < 0 and right < 0:
        return allowed
    # Distance from the query to the key; the position of a query is its index plus the offset.
    after = L.iota((queries, keys), 1) - L.iota((queries, keys), 0) - offset
    for applies, condition in ((causal, after <= 0), (left >= 0, after >= -left), (right >= 0, after <= right)):
        if applies:
            allowed = condition if allowed is None else allowed & condition
    return allowed


def _softmax(scores: Tensor, bias: Tensor | None, dtype: DType) -> Tensor:
    """Return the softmax over keys in the element type; 0 for a query whose keys are all masked."""
    if bias is None:
        return L.softmax(L.cast(scores, dtype))
    masked = L.equal(L.reduce_max(bias, [-1], keepdims=True), -math.inf)
    # Fully masked rows are also zeroed before the softmax, so that no NaN enters a gradient.
    return L.where(masked, 0, L.softmax(L.cast(L.where(masked, 0, scores), dtype)))


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    packed = x.rank == 3
    if packed:
        if num_heads is None:
            raise InvalidModelError("RotaryEmbedding of rank 3 needs `num_heads`.")
        x = split_heads(x, num_heads)
    x = L.of_rank(x, 4, "the input of RotaryEmbedding")
    rotated_size = rotary_embedding_dim or x.shape[-1]
    half = floor_div(rotated_size, 2)
    if position_ids is not None:
        cos_cache, sin_cache = (L.take(L.of_rank(c, 2, "a cache"), position_ids, 0) for c in (cos_cache, sin_cache))
    shape = (x.shape[0], x.shape[2], half)
    cos, sin = (L.unsqueeze(L.of_shape(c, shape, "a cache"), [1]) for c in (cos_cache, sin_cache))
    first, rest = L.slice_(x, -1, 0, rotated_size), L.slice_(x, -1, rotated_size, x.shape[-1])
    pairs = L.reshape(first, (*x.shape[:3], half, 2) if interleaved else (*x.shape[:3], 2, half))
    axis = -1 if interleaved else -2
    a, b = L.entry(pairs, 0, axis), L.entry(pairs, 1, axis)
    rotated = L.concat([L.unsqueeze(cos * a - sin * b, [axis]), L.unsqueeze(sin * a + cos * b, [axis])], axis)
    y = L.concat([L.reshape(rotated, first.shape), rest], -1)
    return join_heads(y) if packed else y


@operator("LinearAttention", since=27)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """Compute token by token in float32; ``chunk_size`` only suggests a split and does not affect results."""
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise InvalidModelError(
            f"unknown `update_rule` {update_rule!r}.", remedy="Use 'linear', 'gated', 'delta' or 'gated_delta'."
        )
    for name, operand, needed in (("decay", decay, "gated" in update_rule), ("beta", beta, "delta" in update_rule)):
        if (operand is not None) != needed:
            verb = "needs" if needed else "does not accept"
            raise InvalidModelError(f"the update rule {update_rule!r} {verb} {name!r}.")
    if q_num_heads < 1 or kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise InvalidModelError(
            f"expected a number of query heads that is a multiple of {kv_num_heads} key heads, got {q_num_heads}."
        )
    q, k, v = (
        _split_tokens(x, heads) for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    g = None if decay is None else _split_tokens(decay, kv_num_heads)
    rate = None if beta is None else L.unsqueeze(L.swap_axes(L.cast(beta, t.FLOAT), 0, 1), [-1])
    tokens, batch, _, d_k = q.shape
    d_v = v.shape[-1]
    factor = 1 / L.sqrt(L.cast(L.size_tensor([d_k], ()), t.FLOAT)) if scale == 0.0 else L.constant(scale, t.FLOAT)
    shape = (batch, kv_num_heads, d_k, d_v)
    state = L.full(shape, 0, t.FLOAT) if past_state is None else L.of_shape(past_state, shape, "past_state")

    def token(i: Tensor, state: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        kt, vt = L.take(k, i, 0), L.take(v, i, 0)
        if g is not None:
            state = L.unsqueeze(L.exp(L.take(g, i, 0)), [-1]) * state
        if rate is not None:
            vt = L.take(rate, i, 0) * (vt - L.einsum("bhdm,bhd->bhm", state, kt))
        state = state + L.unsqueeze(kt, [-1]) * L.unsqueeze(vt, [-2])
        grouped = L.reshape(L.take(q, i, 0), (batch, kv_num_heads, q_num_heads // kv_num_heads, d_k))
        return None, [state], [factor * L.einsum("bhgd,bhdm->bhgm", grouped, state)]

    (last,), (y,) = L.loop(L.size_tensor([tokens], ()), None, [L.cast(state, t.FLOAT)], token)
    output = L.reshape(L.swap_axes(y, 0, 1), (batch, tokens, q_num_heads * d_v))
    state_dtype = query.dtype if past_state is None else past_state.dtype
    return L.cast(output, query.dtype), L.cast(last, state_dtype)


def _split_tokens(x: Tensor, heads: int) -> Tensor:
    """Rearrange [batch, tokens, heads * size] to [tokens, batch, heads, size] in float32."""
    return L.permute(split_heads(L.cast(x, t.FLOAT), heads), [2, 0, 1, 3])
