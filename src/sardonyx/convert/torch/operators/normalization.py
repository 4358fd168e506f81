"""Normalization over batches, rows, groups and instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sardonyx.convert.torch.operators.elementwise import add_, div_, like, mul_, pointwise, sub_
from sardonyx.convert.torch.operators.promotion import cast, torch_dtype
from sardonyx.convert.torch.operators.reductions import mean_, sum_, variance, vector_norm
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import common_shape, expanded, reshaped
from sardonyx.core import language as L
from sardonyx.core.dim import floor_div, product
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx


def _inverse_root(x: Tensor, eps: float) -> Tensor:
    return pointwise("Reciprocal", L.reciprocal, pointwise("Sqrt", L.sqrt, add_(x, like(x, eps))))


def _by_channel(x: Tensor, value: Tensor) -> Tensor:
    """Return a vector of channels in a shape that broadcasts with [batch, channels, …]."""
    return reshaped(value, [value.shape[0], *[1] * (x.rank - 2)])


def _batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, eps: float
) -> Tensor:
    if mean is None or var is None:
        return _instance_norm(x, weight, bias, eps, over_batch=True)
    dtype = mean.dtype
    channels = [x.shape[1]]
    scale = L.full(channels, 1, dtype) if weight is None else weight
    shift = L.full(channels, 0, dtype) if bias is None else bias
    return onnx.BatchNormalization(x, scale, shift, mean, var, epsilon=float(eps))  # type: ignore[no-any-return]


@aten("batch_norm.default")
def _batch_norm_any(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Tensor:
    if training:
        return _batch_norm(x, weight, bias, None, None, eps)
    return _batch_norm(x, weight, bias, mean, var, eps)


@aten("_native_batch_norm_legit_no_training.default")
def _batch_norm_evaluated(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    empty = L.full([0], 0, mean.dtype)
    return _batch_norm(x, weight, bias, mean, var, eps), empty, empty


def _instance_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, *, over_batch: bool) -> Tensor:
    axes = [a for a in range(x.rank) if a != 1 and (over_batch or a != 0)]
    var, mean = variance(x, axes, 0, True)
    result = mul_(sub_(x, mean), _inverse_root(var, eps))
    if weight is not None:
        result = mul_(result, _by_channel(x, weight))
    return result if bias is None else add_(result, _by_channel(x, bias))


@aten("instance_norm.default")
def _instance_norm_any(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    from_input: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Tensor:
    if not from_input:
        return _batch_norm(x, weight, bias, mean, var, eps)
    if x.rank < 3 or not isinstance(x.shape[1], int):
        return _instance_norm(x, weight, bias, eps, over_batch=False)
    scale = L.full([x.shape[1]], 1, x.dtype) if weight is None else weight
    shift = L.full([x.shape[1]], 0, x.dtype) if bias is None else bias
    return onnx.InstanceNormalization(x, scale, shift, epsilon=float(eps))  # type: ignore[no-any-return]


def layer_norm(x: Tensor, count: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Normalize over the last ``count`` axes."""
    axis = x.rank - count
    scale = L.full(x.shape[axis:], 1, x.dtype) if weight is None else weight
    return onnx.LayerNormalization(x, scale, bias, axis=axis, epsilon=float(eps))  # type: ignore[no-any-return]


@aten("layer_norm.default")
def _layer_norm(
    x: Tensor,
    shape: Sequence[Any],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    return layer_norm(x, len(shape), weight, bias, eps)


@aten("native_layer_norm.default")
def _native_layer_norm(
    x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(x.rank - len(shape), x.rank))
    var, mean = variance(x, axes, 0, True)
    return layer_norm(x, len(shape), weight, bias, eps), mean, _inverse_root(var, eps)


@aten("rms_norm.default", "_fused_rms_norm.default")
def _rms_norm(x: Tensor, shape: Sequence[Any], weight: Tensor | None = None, eps: float | None = None) -> Any:
    axes = list(range(x.rank - len(shape), x.rank))
    wide = L.widened(x)
    epsilon = torch.finfo(torch_dtype(wide.dtype)).eps if eps is None else eps
    root = _inverse_root(mean_(mul_(wide, wide), axes, True), epsilon)
    result = cast(mul_(wide, root), x.dtype)
    return result if weight is None else mul_(result, cast(weight, result.dtype))


@aten("group_norm.default")
def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> Tensor:
    # Groups are instances of a tensor [batch, groups, elements].
    rows = reshaped(x, [x.shape[0], groups, floor_div(product(x.shape[1:]), groups)])
    ones, zeros = L.full([groups], 1, x.dtype), L.full([groups], 0, x.dtype)
    normal = onnx.InstanceNormalization(rows, ones, zeros, epsilon=float(eps))
    result = reshaped(normal, x.shape)
    if weight is not None:
        result = mul_(result, _by_channel(x, weight))
    return result if bias is None else add_(result, _by_channel(x, bias))


@aten("native_group_norm.default")
def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = reshaped(x, [x.shape[0], groups, floor_div(product(x.shape[1:]), groups)])
    var, mean = variance(rows, [2], 0, False)
    return _group_norm(x, groups, weight, bias, eps), mean, _inverse_root(var, eps)


@aten("local_response_norm.default")
def _local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    return onnx.LRN(x, size=size, alpha=float(alpha), beta=float(beta), bias=float(k))  # type: ignore[no-any-return]


@aten("normalize.default")
def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    return div_(x, L.maximum(vector_norm(x, p, dim, True), constant(eps, x.dtype)))


@aten("cosine_similarity.default")
def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    shape = common_shape(x, y)
    axis = L.normalized_axis(dim, len(shape)) - len(shape)
    x, y = (v if v.rank >= -axis and v.shape[axis] == shape[axis] else expanded(v, shape) for v in (x, y))
    axes = [axis]
    x, y = (div_(v, L.maximum(vector_norm(v, 2, axes, True), like(v, eps))) for v in (x, y))
    return sum_(mul_(x, y), axes)


@aten("weight_norm_interface.default", "_weight_norm_interface.default")
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    if dim < 0:
        raise UnsupportedError("a norm over the whole weight has no axis.")
    norm = vector_norm(v, 2, [a for a in range(v.rank) if a != dim], True)
    return mul_(v, div_(g, norm)), norm
