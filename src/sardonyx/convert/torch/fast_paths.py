"""Fused operators of torch's transformer layers as programs of plain operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


def _additive(mask: Any, kind: int | None, like: Any) -> Any:
    """Return a mask as a summand of scores ``[batch, heads, queries, keys]``.

    Args:
        mask: Booleans that are True for masked keys, or summands.
        kind: 0 for ``[queries, keys]``, 1 for padding ``[batch, keys]``, 2 for both in one.
        like: The scores.
    """
    if kind == 1:
        mask = mask[:, None, None, :]
    elif mask.dim() == 3:
        mask = mask.reshape(like.shape[0], -1, like.shape[-2], like.shape[-1])
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return attention by heads, and the weights of the keys; see ``torch.nn.MultiheadAttention``."""
    size = embed_dim // num_head
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    q, k, v = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (num_head, size)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    scores = (q / math.sqrt(size)) @ k.transpose(-2, -1)
    if mask is not None:
        scores = scores + _additive(mask, mask_type, scores)
    chances = scores.softmax(-1)
    result = torch.nn.functional.linear((chances @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return result, result.new_empty(0)
    return result, chances.mean(1) if average_attn_weights else chances


def _layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """Return a layer of an encoder; see ``torch.nn.TransformerEncoderLayer``."""
    functional = torch.nn.functional

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attended(x: Any) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)[0]

    def fed(x: Any) -> Any:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attended(first(src))
        return x + fed(second(x))
    x = first(src + attended(src))
    return second(x + fed(x))


RULES: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._transformer_encoder_layer_fwd.default: _layer,
    torch.ops.aten._native_multi_head_attention.default: _attention,
}
"""Decompositions by operator."""
