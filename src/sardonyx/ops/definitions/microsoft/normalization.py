"""Normalizations fused by ONNX Runtime with a residual, embeddings or an activation.

Source: ONNX Runtime's contrib operators, *SkipLayerNormalization*, *SkipSimplifiedLayerNormalization*,
*EmbedLayerNormalization*, *QEmbedLayerNormalization*, *GroupNorm*; *SimplifiedLayerNormalization*, which is in the
default domain.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import ShapeError
from sardonyx.ops.definitions.microsoft.quantization import dequantize
from sardonyx.ops.definitions.normalization import layer_normalization
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"


@operator("SimplifiedLayerNormalization", since=1)
def simplified_layer_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor]:
    """Divide by the root of the mean square over the axes from ``axis`` on."""
    wide = L.cast(x, t.computing_type(stash_type, "stash_type"))
    over = range(L.normalized_axis(axis, x.rank), x.rank)
    inverse = 1 / L.sqrt(L.reduce_mean(wide * wide, over, keepdims=True) + epsilon)
    return L.cast(wide * inverse, scale.dtype) * scale, inverse


@operator("SkipLayerNormalization", since=1, domain=DOMAIN)
def skip_layer_normalization(
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    summed = _residual(x, skip, bias)
    return *layer_normalization(summed, gamma, beta, axis=-1, epsilon=epsilon), summed


@operator("SkipSimplifiedLayerNormalization", since=1, domain=DOMAIN)
def skip_simplified_layer_normalization(
    x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None, *, epsilon: float = 1e-12
) -> tuple[Tensor, ...]:
    summed = _residual(x, skip, bias)
    y, inverse = simplified_layer_normalization(summed, gamma, epsilon=epsilon)
    return y, L.zeros_like(inverse), inverse, summed


def _residual(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    """Return the sum; a skip without a batch axis, or with batch size 1, is broadcast over the batch."""
    if skip.rank not in (x.rank, x.rank - 1):
        raise ShapeError(f"expected a skip of rank {x.rank} or {x.rank - 1}, got rank {skip.rank}.")
    summed = x + skip
    return summed if bias is None else summed + bias


@operator("EmbedLayerNormalization", since=1, domain=DOMAIN)
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Tensor, ...]:
    """Normalize the sum of word, position and segment embeddings; also count each row's unmasked tokens."""
    input_ids = L.of_rank(input_ids, 2, "the tokens")
    positions = L.arange(input_ids.shape[1], t.INT32) if position_ids is None else position_ids
    summed = L.take(word_embedding, input_ids, 0) + L.take(position_embedding, positions, 0)
    if segment_ids is not None and segment_embedding is not None:
        summed = summed + L.take(segment_embedding, segment_ids, 0)
    y = layer_normalization(summed, gamma, beta, axis=-1, epsilon=epsilon)[0]
    unmasked = L.full((input_ids.shape[0],), 0, t.INT32) if mask is None else L.reduce_sum(L.cast(mask, t.INT32), [1])
    return y, unmasked, summed


@operator("QEmbedLayerNormalization", since=1, domain=DOMAIN)
def quantized_embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_embedding_scale: Tensor,
    position_embedding_scale: Tensor,
    segment_embedding_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_embedding_zero_point: Tensor,
    position_embedding_zero_point: Tensor,
    segment_embedding_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    """Compute *EmbedLayerNormalization* of quantized tables; each table has one scale."""
    segments = None
    if segment_embedding is not None and segment_embedding_scale is not None:
        segments = dequantize(segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    return embed_layer_normalization(
        input_ids,
        segment_ids,
        dequantize(word_embedding, word_embedding_scale, word_embedding_zero_point),
        dequantize(position_embedding, position_embedding_scale, position_embedding_zero_point),
        segments,
        dequantize(gamma, gamma_scale, gamma_zero_point),
        dequantize(beta, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )[:2]


@operator("GroupNorm", since=1, domain=DOMAIN)
def group_norm(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    activation: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    groups: int,
) -> Tensor:
    """Normalize channels in groups in float32 and scale; ``activation`` 1 applies SiLU."""
    x = L.of_rank(x, 4, "the images")
    wide = L.cast(x if channels_last else L.permute(x, [0, 2, 3, 1]), t.FLOAT)
    n, h, w, c = wide.shape
    grouped = L.reshape(wide, (n, h, w, groups, c // groups))
    mean = L.reduce_mean(grouped, [1, 2, 4], keepdims=True)
    centred = grouped - mean
    variance = L.reduce_mean(centred * centred, [1, 2, 4], keepdims=True)
    y = L.reshape(centred / L.sqrt(variance + epsilon), wide.shape) * L.cast(gamma, t.FLOAT) + L.cast(beta, t.FLOAT)
    y = L.cast(y * L.sigmoid(y) if activation else y, x.dtype)
    return y if channels_last else L.permute(y, [0, 3, 1, 2])
