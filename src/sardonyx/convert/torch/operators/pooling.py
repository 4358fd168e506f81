"""Pooling over windows, with the adaptive and the inverse forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.indexing import as_long
from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx


def spread(values: Any, count: int) -> list[int]:
    """Return one number an axis: a single number holds for all."""
    numbers = list(values) if isinstance(values, (tuple, list)) else [values]
    if not all(isinstance(number, int) for number in numbers):
        raise UnsupportedError("a window of open size has no translation.")
    return numbers * count if len(numbers) == 1 else numbers


def _batched(x: Tensor, spatial: int) -> Tensor:
    return x if x.rank == spatial + 2 else L.unsqueeze(x, [0])


def _unbatched(y: Tensor, x: Tensor, spatial: int) -> Tensor:
    return y if x.rank == spatial + 2 else L.squeeze(y, [0])


def _max_pool(
    x: Tensor, spatial: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: bool
) -> Any:
    kernel = spread(kernel, spatial)
    stride = spread(stride, spatial) if stride not in (None, [], ()) else kernel
    pads = spread(padding, spatial)
    whole = _batched(x, spatial)
    values = cast(whole, t.FLOAT) if whole.dtype not in (t.FLOAT, t.DOUBLE, t.FLOAT16, t.BFLOAT16) else whole
    pooled = onnx.MaxPool(
        values, kernel_shape=kernel, strides=stride, pads=[*pads, *pads], dilations=spread(dilation, spatial),
        ceil_mode=int(ceil_mode), outputs=2 if indices else 1,
    )  # fmt: skip
    if not indices:
        return _unbatched(cast(pooled, x.dtype), x, spatial)
    plane = L.product(whole.shape[2:])
    at = L.floor_mod(pooled[1], L.number(plane))
    return _unbatched(cast(pooled[0], x.dtype), x, spatial), _unbatched(at, x, spatial)


def _max_pool_of(spatial: int, indices: bool) -> Any:
    def function(
        x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        return _max_pool(x, spatial, kernel_size, stride, padding, dilation, ceil_mode, indices)

    return function


aten("max_pool1d.default")(_max_pool_of(1, False))
aten("max_pool2d.default")(_max_pool_of(2, False))
aten("max_pool3d.default")(_max_pool_of(3, False))
aten("max_pool1d_with_indices.default")(_max_pool_of(1, True))
aten("max_pool2d_with_indices.default")(_max_pool_of(2, True))
aten("max_pool3d_with_indices.default")(_max_pool_of(3, True))


def _avg_pool(
    x: Tensor, spatial: int, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, include: bool, divisor: Any
) -> Tensor:
    kernel = spread(kernel, spatial)
    stride = spread(stride, spatial) if stride not in (None, [], ()) else kernel
    pads = spread(padding, spatial)
    if divisor is not None and ceil_mode:
        raise UnsupportedError("an average over clipped windows with another divisor has no translation.")
    pooled = onnx.AveragePool(
        _batched(x, spatial), kernel_shape=kernel, strides=stride, pads=[*pads, *pads], ceil_mode=int(ceil_mode),
        count_include_pad=int(include or divisor is not None),
    )  # fmt: skip
    if divisor is not None:
        pooled = pooled * (L.product(kernel) / divisor)
    return _unbatched(pooled, x, spatial)


@aten("avg_pool1d.default")
def _avg_pool1d(
    x: Tensor, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, include: bool = True
) -> Tensor:
    return _avg_pool(x, 1, kernel, stride, padding, ceil_mode, include, None)


def _avg_pool_of(spatial: int) -> Any:
    def function(
        x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Tensor:  # fmt: skip
        return _avg_pool(x, spatial, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return function


aten("avg_pool2d.default")(_avg_pool_of(2))
aten("avg_pool3d.default")(_avg_pool_of(3))


# Adaptive forms.


def _output_sizes(x: Tensor, output_size: Any, spatial: int) -> list[Size]:
    sizes = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * spatial
    own = x.shape[x.rank - spatial :]
    return [old if size is None else size_of(size) for size, old in zip(sizes, own, strict=True)]


def _is_even(x: Tensor, sizes: Sequence[Size]) -> bool:
    own = x.shape[x.rank - len(sizes) :]
    return all(
        isinstance(a, int) and isinstance(b, int) and b > 0 and a % b == 0 for a, b in zip(own, sizes, strict=True)
    )


def _membership(size: Size, count: Size) -> Tensor:
    """Return a mask [count, size]: the entries of each part of an axis."""
    part, entry = L.unsqueeze(L.arange(count), [1]), L.unsqueeze(L.arange(size), [0])
    total, parts = L.number(size), L.number(count)
    begin = (part * total) / parts
    end = ((part + 1) * total + parts - 1) / parts
    return (entry >= begin) & (entry < end)


def _adaptive_avg(x: Tensor, output_size: Any, spatial: int) -> Tensor:
    sizes = _output_sizes(x, output_size, spatial)
    axes = list(range(x.rank - spatial, x.rank))
    if all(size == 1 for size in sizes):
        if x.rank == spatial + 2:
            return onnx.GlobalAveragePool(x)  # type: ignore[no-any-return]
        return onnx.ReduceMean(x, L.constant(axes), keepdims=1)  # type: ignore[no-any-return]
    if _is_even(x, sizes):
        kernel = [int(x.shape[axis]) // int(size) for axis, size in zip(axes, sizes, strict=True)]  # type: ignore[arg-type]
        return _avg_pool(x, spatial, kernel, kernel, 0, False, True, None)
    for axis, size in zip(axes, sizes, strict=True):
        if x.shape[axis] == size:
            continue
        mask = cast(_membership(x.shape[axis], size), x.dtype)
        weights = mask / L.reduce_sum(mask, [1], keepdims=True)
        last = L.swap_axes(x, axis, x.rank - 1)
        x = L.swap_axes(L.matmul(last, L.permute(weights, [1, 0])), axis, x.rank - 1)
    return x


def _adaptive_max(x: Tensor, output_size: Any, spatial: int) -> tuple[Tensor, Tensor]:
    sizes = _output_sizes(x, output_size, spatial)
    axes = list(range(x.rank - spatial, x.rank))
    indices = L.zeros_like(cast(x, t.INT64))
    if _is_even(x, sizes):
        kernel = [int(x.shape[axis]) // int(size) for axis, size in zip(axes, sizes, strict=True)]  # type: ignore[arg-type]
        return _max_pool(x, spatial, kernel, kernel, 0, 1, False, True)  # type: ignore[no-any-return]
    lowest = L.constant(float("-inf"), x.dtype)
    scale: Size = 1
    # From the last axis on: the first of equal maxima is then that of the smallest index in row-major order.
    for axis, size in reversed(list(zip(axes, sizes, strict=True))):
        old = x.shape[axis]
        last, at = L.swap_axes(x, axis, x.rank - 1), L.swap_axes(indices, axis, x.rank - 1)
        candidates = L.where(_membership(old, size), L.unsqueeze(last, [-2]), lowest)
        argument = L.argmax(candidates, -1)
        x = L.swap_axes(L.gather_elements(last, argument, last.rank - 1), axis, x.rank - 1)
        inner = L.gather_elements(at, argument, at.rank - 1) + argument * L.number(scale)
        indices = L.swap_axes(inner, axis, x.rank - 1)
        scale = scale * old
    return x, indices


for _spatial in (1, 2, 3):

    def _avg(x: Tensor, output_size: Any, spatial: int = _spatial) -> Tensor:
        return _adaptive_avg(x, output_size, spatial)

    def _max(x: Tensor, output_size: Any, spatial: int = _spatial) -> tuple[Tensor, Tensor]:
        return _adaptive_max(x, output_size, spatial)

    aten(f"adaptive_avg_pool{_spatial}d.default", f"_adaptive_avg_pool{_spatial}d.default")(_avg)
    aten(f"adaptive_max_pool{_spatial}d.default")(_max)


# Inverse and random forms.


def _max_unpool(x: Tensor, indices: Tensor, output_size: Any, spatial: int) -> Tensor:
    leading = x.shape[: x.rank - spatial]
    size = [size_of(s) for s in list(output_size)[-spatial:]]
    plane = L.product(size)
    flat = L.product(x.shape[x.rank - spatial :])
    zeros = L.full([*leading, plane], L.zero(x.dtype), x.dtype)
    at, values = reshaped(as_long(indices), [*leading, flat]), reshaped(x, [*leading, flat])
    return reshaped(onnx.ScatterElements(zeros, at, values, axis=len(leading)), [*leading, *size])


@aten("max_unpool2d.default")
def _max_unpool2d(x: Tensor, indices: Tensor, output_size: Any) -> Tensor:
    return _max_unpool(x, indices, output_size, 2)


@aten("max_unpool3d.default")
def _max_unpool3d(x: Tensor, indices: Tensor, output_size: Any, stride: Any, padding: Any) -> Tensor:
    return _max_unpool(x, indices, output_size, 3)


def _fractional(x: Tensor, kernel: Any, output_size: Any, samples: Tensor, spatial: int) -> tuple[Tensor, Tensor]:
    kernel, sizes = spread(kernel, spatial), spread(output_size, spatial)
    whole = _batched(x, spatial)
    samples = samples if samples.rank == 3 else L.unsqueeze(samples, [0])
    indices = L.zeros_like(cast(whole, t.INT64))
    scale: Size = 1
    for i in reversed(range(spatial)):
        axis, size = 2 + i, whole.shape[2 + i]
        # The last dimension has the first sample, as in torch.
        u = L.unsqueeze(L.entry(samples, spatial - 1 - i if spatial == 2 else i, 2), [2])
        alpha = cast(L.number(size - kernel[i]), x.dtype) / max(sizes[i] - 1, 1)
        steps = L.reshape(cast(L.arange(sizes[i]), x.dtype), [1, 1, sizes[i]])
        begin = cast(L.floor((steps + u) * alpha), t.INT64) - cast(L.floor(u * alpha), t.INT64)
        begin = L.where(L.equal(steps, sizes[i] - 1), L.number(size - kernel[i]), begin)
        entry = L.reshape(L.arange(size), [1, 1, 1, size])
        begin = L.unsqueeze(begin, [-1])
        mask = (entry >= begin) & (entry < begin + kernel[i])
        last, at = L.swap_axes(whole, axis, 1 + spatial), L.swap_axes(indices, axis, 1 + spatial)
        between = [1] * (spatial - 1)
        mask = L.reshape(mask, [mask.shape[0], mask.shape[1], *between, sizes[i], size])
        candidates = L.where(mask, L.unsqueeze(last, [-2]), L.constant(float("-inf"), x.dtype))
        argument = L.argmax(candidates, -1)
        whole = L.swap_axes(L.gather_elements(last, argument, 1 + spatial), axis, 1 + spatial)
        inner = L.gather_elements(at, argument, 1 + spatial) + argument * L.number(scale)
        indices = L.swap_axes(inner, axis, 1 + spatial)
        scale = scale * size
    return _unbatched(whole, x, spatial), _unbatched(indices, x, spatial)


@aten("fractional_max_pool2d.default")
def _fractional2d(x: Tensor, kernel_size: Any, output_size: Any, random_samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel_size, output_size, random_samples, 2)


@aten("fractional_max_pool3d.default")
def _fractional3d(x: Tensor, kernel_size: Any, output_size: Any, random_samples: Tensor) -> tuple[Tensor, Tensor]:
    return _fractional(x, kernel_size, output_size, random_samples, 3)
