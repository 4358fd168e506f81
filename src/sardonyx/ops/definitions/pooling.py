"""Pools: the greatest, the mean or a norm over windows, or over all of an image; and back.

Source: ONNX Operators, *MaxPool*, *AveragePool*, *LpPool*, *GlobalMaxPool*, *GlobalAveragePool*, *GlobalLpPool*,
*MaxUnpool*. Sums of 16-bit floats are formed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size, at_least, floor_div
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.windows import Windows, explicit_padding, per_axis, windows
from sardonyx.ops.registry import operator


@operator("MaxPool", since=1)
def max_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    storage_order: int = 0,
    strides: Sequence[int] | None = None,
    outputs: int,
) -> tuple[Tensor, ...]:
    over = windows(_spatial(x), kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    y = _pooled("max", x, over)
    return (y,) if outputs < 2 else (y, _indices(x, over, bool(storage_order)))


def _spatial(x: Tensor) -> Sequence[Size]:
    if x.rank < 3:
        raise ShapeError(f"an image has a batch, channels and spatial axes, and there are {x.rank} in all.")
    return x.shape[2:]


def _pooled(kind: str, x: Tensor, over: Windows) -> Tensor:
    return L.reduce_window(kind, x, over.kernel, strides=over.strides, padding=over.padding, dilation=over.dilations)


def _indices(x: Tensor, over: Windows, column_major: bool) -> Tensor:
    """Where in all of ``x``, as one axis, the greatest of each window lies; every image row- or column-major."""
    place = _pooled("argmax", x, over)
    images = L.reshape(L.arange(L.product(x.shape[:2])), (*x.shape[:2], *(1,) * (x.rank - 2)))
    if column_major:
        left, place, stride = place, L.zeros_like(place), L.product(x.shape[2:])
        for size in reversed(x.shape[2:]):
            stride = floor_div(stride, size)
            place = place + L.remainder(left, L.number(size)) * L.number(stride)
            left = left / L.number(size)
    return images * L.number(L.product(x.shape[2:])) + place


@operator("AveragePool", since=1)
def average_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Declared padding counts if ``count_include_pad`` says so; what ``ceil_mode`` reaches beyond it never does."""
    over = windows(_spatial(x), kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    wide = L.widened(x)
    ones = L.full(x.shape[2:], 1, wide.dtype)
    if count_include_pad:
        before, after = zip(*over.declared, strict=True)
        ones = L.pad(ones, before, after, 1)
        left = [(low - a, high - b) for (low, high), (a, b) in zip(over.padding, over.declared, strict=True)]
        count = _pooled("add", ones, over._replace(padding=tuple(left)))
    else:
        count = _pooled("add", ones, over)
    return L.cast(_pooled("add", wide, over) / count, x.dtype)


@operator("LpPool", since=1)
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    kernel_shape: Sequence[int],
    p: float = 2,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    over = windows(_spatial(x), kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return L.cast(_pooled("add", L.abs_(L.widened(x)) ** _norm(p), over) ** (1 / p), x.dtype)


def _norm(p: float) -> float:
    if not p > 0:
        raise InvalidModelError(f"there is no norm of p = {p}.", remedy="p is positive.")
    return p


@operator("GlobalMaxPool", since=1)
def global_max_pool(x: Tensor) -> Tensor:
    return L.reduce_max(x, range(2, x.rank), keepdims=True)


@operator("GlobalAveragePool", since=1)
def global_average_pool(x: Tensor) -> Tensor:
    return L.cast(L.reduce_mean(L.widened(x), range(2, x.rank), keepdims=True), x.dtype)


@operator("GlobalLpPool", since=1)
def global_lp_pool(x: Tensor, *, p: float = 2) -> Tensor:
    total = L.reduce_sum(L.abs_(L.widened(x)) ** _norm(p), range(2, x.rank), keepdims=True)
    return L.cast(total ** (1 / p), x.dtype)


@operator("MaxUnpool", since=9)
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Tensor | None = None,
    *,
    kernel_shape: Sequence[int],
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Indices are into the size that follows from the windows; ``output_shape`` then adds zeros at the ends.

    That is what ONNX's own case for it holds.
    """
    n = len(kernel_shape)
    x = L.of_rank(x, n + 2, f"what is put back by a kernel of {n} axes")
    axes = zip(x.shape[2:], kernel_shape, per_axis(strides, n, "strides"), explicit_padding(pads, n), strict=True)
    full = (*x.shape[:2], *((size - 1) * stride - low - high + k for size, k, stride, (low, high) in axes))
    nothing = L.full((L.product(full),), 0, x.dtype)
    vectors, values = L.reshape(indices, (L.product(x.shape), 1)), L.reshape(x, (L.product(x.shape),))
    y = L.reshape(L.scatter_nd(nothing, vectors, values, from_end=False), full)
    if output_shape is None:
        return y
    wanted = L.sizes(output_shape, "the output shape")
    if len(wanted) != y.rank or any(at_least(size, old) is False for size, old in zip(wanted, full, strict=True)):
        raise ShapeError(f"an output shape of {', '.join(map(str, wanted))} does not hold {y.type}.")
    return L.pad(y, [0] * y.rank, [size - old for size, old in zip(wanted, full, strict=True)])
