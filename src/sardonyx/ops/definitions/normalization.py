"""Normalizations: by mean and variance, by a norm, or over neighbouring channels.

Source: ONNX Operators, *BatchNormalization* (arXiv:1502.03167), *InstanceNormalization* (arXiv:1607.08022),
*LayerNormalization* (arXiv:1607.06450), *GroupNormalization* (arXiv:1803.08494), *RMSNormalization* (arXiv:1910.07467),
*LRN*, *LpNormalization*, *MeanVarianceNormalization*. Unless the operator declares a precision, 16-bit floats are
normalized in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.convolution import align_to_channels
from sardonyx.ops.registry import operator


def _moments(x: Tensor, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the mean and the population variance over axes, which are kept with size 1."""
    mean = L.reduce_mean(x, axes, keepdims=True)
    centred = x - mean
    return mean, L.reduce_mean(centred * centred, axes, keepdims=True)


def _standardize(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    mean, variance = _moments(x, axes)
    return (x - mean) / L.sqrt(variance + epsilon)


@operator("BatchNormalization", since=14)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    y, *statistics = _batch_normalize(x, scale, b, input_mean, input_var, epsilon, momentum, bool(training_mode), 1)
    return y, *statistics[:2]


def _batch_normalize(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    variance: Tensor,
    epsilon: float,
    momentum: float,
    training: bool,
    spatial: int,
) -> tuple[Tensor, ...]:
    """Return the result; in training also the mean and variance, first the running ones, then the batch's."""
    if x.rank == 1:  # One channel.
        x = L.unsqueeze(x, [1])
        y, *rest = _batch_normalize(x, scale, b, mean, variance, epsilon, momentum, training, spatial)
        return L.squeeze(y, [1]), *rest
    wide = L.widened(x)
    scale, b, used_mean, used_variance = (L.cast(part, wide.dtype) for part in (scale, b, mean, variance))
    statistics: list[Tensor] = []
    if training:
        axes = [axis for axis in range(x.rank) if axis == 0 or (axis > 1 and spatial)]
        now = [L.reshape(moment, mean.shape) for moment in _moments(wide, axes)]
        old = (used_mean, used_variance)
        running = [before * momentum + new * (1 - momentum) for before, new in zip(old, now, strict=True)]
        statistics = [L.cast(part, mean.dtype) for part in (*running, *now)]
        used_mean, used_variance = now
    if spatial:
        scale, b, used_mean, used_variance = (
            align_to_channels(part, x) for part in (scale, b, used_mean, used_variance)
        )
    deviation = L.sqrt(used_variance + epsilon)
    # Stored statistics and scales are usually constants, and so is their quotient.
    normal = (wide - used_mean) / deviation * scale if training else (wide - used_mean) * (scale / deviation)
    return L.cast(normal + b, x.dtype), *statistics


@operator("BatchNormalization", since=7)
def batch_normalization_by_outputs(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Train if more than one result is requested (versions 7 and 9)."""
    return _batch_normalize(x, scale, b, mean, var, epsilon, momentum, outputs > 1, spatial)


@operator("BatchNormalization", since=1)
def batch_normalization_by_test(
    x: Tensor,
    scale: Tensor,
    b: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
) -> tuple[Tensor, ...]:
    return _batch_normalize(x, scale, b, mean, var, epsilon, momentum, not is_test, spatial)


@operator("InstanceNormalization", since=1)
def instance_normalization(x: Tensor, scale: Tensor, b: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    wide = L.widened(x)
    scale, b = (align_to_channels(L.cast(part, wide.dtype), x) for part in (scale, b))
    return L.cast(_standardize(wide, range(2, x.rank), epsilon) * scale + b, x.dtype)


@operator("LayerNormalization", since=17)
@operator("LayerNormalization", since=1)  # ONNX Runtime's own, which its optimizers put into models of any version.
def layer_normalization(
    x: Tensor, scale: Tensor, b: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    wide = L.cast(x, t.computing_type(stash_type, "stash_type"))
    mean, variance = _moments(wide, range(L.normalized_axis(axis, x.rank), x.rank))
    inverse = 1 / L.sqrt(variance + epsilon)
    y = L.cast((wide - mean) * inverse, x.dtype) * L.broadcast_to(scale, x.shape)
    return y if b is None else y + L.broadcast_to(b, x.shape), mean, inverse


@operator("RMSNormalization", since=23)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    wide = L.cast(x, t.computing_type(stash_type, "stash_type"))
    axes = range(L.normalized_axis(axis, x.rank), x.rank)
    normalized = wide / L.sqrt(L.reduce_mean(wide * wide, axes, keepdims=True) + epsilon)
    return L.cast(L.cast(normalized, x.dtype), scale.dtype) * L.broadcast_to(scale, x.shape)


@operator("GroupNormalization", since=21)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    groups = _split_groups(L.cast(x, t.computing_type(stash_type, "stash_type")), num_groups)
    y = L.cast(L.reshape(_standardize(groups, [2], epsilon), x.shape), x.dtype)
    return y * align_to_channels(scale, x) + align_to_channels(bias, x)


@operator("GroupNormalization", since=18)
def group_normalization_by_group(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Tensor:
    """Normalize with a scale and a bias for each group, not for each channel (the first version)."""
    groups = _split_groups(L.widened(x), num_groups)
    scale, bias = (align_to_channels(L.cast(part, groups.dtype), groups) for part in (scale, bias))
    return L.cast(L.reshape(_standardize(groups, [2], epsilon) * scale + bias, x.shape), x.dtype)


def _split_groups(x: Tensor, groups: int) -> Tensor:
    """Return the elements of each group, [N, groups, elements]."""
    if x.rank < 2:
        raise ShapeError(f"expected at least 2 axes, got {x.type}.")
    channels = x.shape[1]
    if groups < 1 or (isinstance(channels, int) and channels % groups):
        raise ShapeError(f"expected a number of channels that is a multiple of {groups} groups, got {channels}.")
    return L.reshape(x, (x.shape[0], groups, floor_div(channels, groups) * L.product(x.shape[2:])))


@operator("LRN", since=1)
def local_response_normalization(
    x: Tensor, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int
) -> Tensor:
    """Normalize over neighbouring channels, ``(size-1)/2`` before (rounded down) and after (rounded up)."""
    if size < 1 or x.rank < 2:
        raise InvalidModelError(f"a region of {size} channels does not fit {x.type}.")
    wide, n = L.widened(x), x.rank - 1
    padding = [((size - 1) // 2, size // 2), *[(0, 0)] * (n - 1)]
    squares = L.reduce_window("add", wide * wide, (size, *(1,) * (n - 1)), strides=(1,) * n, padding=padding)
    return L.cast(wide / (bias + alpha / size * squares) ** beta, x.dtype)


@operator("LpNormalization", since=1)
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Divide by the norm; the result is 0 if the norm is 0."""
    if p not in (1, 2):
        raise InvalidModelError(f"expected p of 1 or 2 for LpNormalization, got {p}.")
    wide = L.abs_(L.widened(x))
    norm = L.reduce_sum(wide, [axis], True) if p == 1 else L.norm_of(L.reduce_sum(wide * wide, [axis], True))
    is_zero = L.equal(norm, 0)
    return L.cast(L.where(is_zero, 0, L.widened(x) / L.where(is_zero, 1, norm)), x.dtype)


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    """Normalize with 1e-9 added to the deviation, as in ONNX's own expansion, so that constants give 0."""
    wide = L.widened(x)
    mean, variance = _moments(wide, axes)
    return L.cast((wide - mean) / (L.norm_of(variance) + 1e-9), x.dtype)
