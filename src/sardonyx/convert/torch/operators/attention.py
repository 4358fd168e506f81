"""Scaled dot products: attention in all forms."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.convert.torch.operators.activations import safe_softmax, softmax
from sardonyx.convert.torch.operators.elementwise import add_, like, mul_, where_
from sardonyx.convert.torch.operators.products import linear, matmul
from sardonyx.convert.torch.operators.promotion import cast, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import expanded, reshaped
from sardonyx.core import language as L
from sardonyx.core.dim import floor_div
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx


def _scale(query: Tensor, scale: float | None) -> Tensor:
    if scale is not None:
        return like(query, scale)
    size = query.shape[-1]
    if isinstance(size, int):
        return like(query, 1 / math.sqrt(size))
    return L.reciprocal(L.sqrt(tensor_of(size, query.dtype)))


def _repeated_heads(x: Tensor, heads: Any) -> Tensor:
    """Repeat the heads of keys or values for groups of queries."""
    own = x.shape[-3]
    if own == heads:
        return x
    times = floor_div(heads, own)
    lead = x.shape[:-3]
    wide = reshaped(x, [*lead, own, 1, *x.shape[-2:]])
    return reshaped(expanded(wide, [*lead, own, times, *x.shape[-2:]]), [*lead, heads, *x.shape[-2:]])


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return attention [..., queries, size] and the scores before the softmax."""
    axes = [*range(key.rank - 2), key.rank - 1, key.rank - 2]
    scores = matmul(mul_(query, _scale(query, scale)), L.permute(key, axes))
    if causal:
        ones = expanded(constant(True, t.BOOL), [query.shape[-2], key.shape[-2]])
        lower = onnx.Trilu(ones, upper=0)
        scores = where_(lower, scores, like(scores, -math.inf))
    if mask is not None:
        scores = where_(mask, scores, like(scores, -math.inf)) if mask.dtype == t.BOOL else _added(scores, mask)
    # A row that is masked as a whole has no attention: torch answers 0.
    weights = softmax(scores, -1) if mask is None else safe_softmax(scores, -1)
    return matmul(weights, value), scores


def _added(scores: Tensor, mask: Tensor) -> Tensor:
    return add_(scores, cast(mask, scores.dtype))


@aten("scaled_dot_product_attention.default")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key, value = (_repeated_heads(x, query.shape[-3]) for x in (key, value))
    return attention(query, key, value, attn_mask, causal=is_causal, scale=scale)[0]


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def _flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    result, scores = attention(query, key, value, attn_mask, causal=is_causal, scale=scale)
    total = onnx.ReduceLogSumExp(scores, constant([-1]), keepdims=0)
    return result, total


@aten("_native_multi_head_attention.default")
def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    size: int,
    heads: int,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    if mask is not None:
        raise UnsupportedError("the fused attention of torch.nn takes masks that this translation does not.")
    width = floor_div(size, heads)
    parts = []
    for i, x in enumerate((query, key, value)):
        weight = L.slice_(in_weight, 0, i * size, (i + 1) * size)
        bias = None if in_bias is None else L.slice_(in_bias, 0, i * size, (i + 1) * size)
        y = linear(x, weight, bias)
        parts.append(L.permute(reshaped(y, [x.shape[0], x.shape[1], heads, width]), [0, 2, 1, 3]))
    result, scores = attention(*parts)
    whole = reshaped(L.permute(result, [0, 2, 1, 3]), [query.shape[0], query.shape[1], size])
    weights = softmax(scores, -1)
    weights = L.reduce_mean(weights, [1]) if average_attn_weights else weights
    return linear(whole, out_weight, out_bias), weights


@aten("_grouped_mm.default", "grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_product(
    x: Tensor, weights: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """Return the products of consecutive groups of rows with a matrix of their own: mixture of experts.

    Args:
        x: Rows of all groups, [rows, size]; without ``offs`` one matrix for each group.
        weights: The matrices, [groups, size, columns].
        offs: The end of each group, [groups].
        bias: Not accepted.
        out_dtype: Type of the results.
    """
    if bias is not None:
        raise UnsupportedError("a grouped product with bias has no translation.")
    if offs is None:
        return matmul(x, weights)
    if x.rank != 2 or weights.rank != 3:
        raise UnsupportedError(f"a grouped product of ranks {x.rank} and {weights.rank} has no translation.")
    groups = L.static_size(weights, 0, "the number of groups")
    parts = []
    at = cast(offs, t.INT64)
    ends = [onnx.Slice(at, constant([i]), constant([i + 1]), constant([0])) for i in range(groups)]
    sizes = [L.one_size(end, "the end of a group") for end in ends]
    for i in range(groups):
        low = constant([0]) if i == 0 else ends[i - 1]
        bounds = (0 if i == 0 else sizes[i - 1], sizes[i])
        rows = onnx.Slice(x, low, ends[i], constant([0]), body=_rows_between(*bounds))
        matrix = reshaped(L.slice_(weights, 0, i, i + 1), weights.shape[1:])
        parts.append(matmul(rows, matrix))
    whole = parts[0] if groups == 1 else onnx.Concat(*parts, axis=0)
    return L.reshape(whole, [x.shape[0], weights.shape[2]])


def _rows_between(low: Any, high: Any) -> Any:
    return lambda y, *_: [L.slice_(y, 0, low, high)]
