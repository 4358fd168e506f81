"""Pools: maximum, mean or norm over windows or over whole images; and unpooling.

Source: ONNX Operators, *MaxPool*, *AveragePool*, *LpPool*, *GlobalMaxPool*, *GlobalAveragePool*, *GlobalLpPool*,
*MaxUnpool*. Sums of 16-bit floats are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
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
    y = _pool("max", x, over)
    return (y,) if outputs < 2 else (y, _indices(x, over, bool(storage_order)))


def _spatial(x: Tensor) -> Sequence[Size]:
    if x.rank < 3:
        raise ShapeError(f"expected an image of rank 3 or more, got rank {x.rank}.")
    return x.shape[2:]


def _pool(kind: str, x: Tensor, over: Windows) -> Tensor:
    return L.reduce_window(kind, x, over.kernel, strides=over.strides, padding=over.padding, dilation=over.dilations)


def _indices(x: Tensor, over: Windows, column_major: bool) -> Tensor:
    """Return the flat index in all of ``x`` of each window's maximum; each image is row- or column-major."""
    index = _pool("argmax", x, over)
    images = L.reshape(L.arange(L.product(x.shape[:2])), (*x.shape[:2], *(1,) * (x.rank - 2)))
    if column_major:
        rest, index, stride = index, L.zeros_like(index), L.product(x.shape[2:])
        for size in reversed(x.shape[2:]):
            stride = floor_div(stride, size)
            index = index + L.remainder(rest, L.number(size)) * L.number(stride)
            rest = rest / L.number(size)
    return images * L.number(L.product(x.shape[2:])) + index


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
    """Average over windows.

    With ``count_include_pad`` declared padding counts; padding added by ``ceil_mode`` never counts.
    """
    over = windows(_spatial(x), kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    wide = L.widened(x)
    ones = L.full(x.shape[2:], 1, wide.dtype)
    if count_include_pad:
        before, after = zip(*over.declared, strict=True)
        ones = L.pad(ones, before, after, 1)
        added = [(low - a, high - b) for (low, high), (a, b) in zip(over.padding, over.declared, strict=True)]
        count = _pool("add", ones, over._replace(padding=tuple(added)))
    else:
        count = _pool("add", ones, over)
    return L.cast(_pool("add", wide, over) / count, x.dtype)


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
    return L.cast(L.norm_of(_pool("add", L.abs_(L.widened(x)) ** _check_norm(p), over), p), x.dtype)


def _check_norm(p: float) -> float:
    if not p > 0:
        raise InvalidModelError(f"expected a positive p, got {p}.")
    return p


@operator("GlobalMaxPool", since=1)
def global_max_pool(x: Tensor) -> Tensor:
    return L.reduce_max(x, range(2, x.rank), keepdims=True)


@operator("GlobalAveragePool", since=1)
def global_average_pool(x: Tensor) -> Tensor:
    return L.cast(L.reduce_mean(L.widened(x), range(2, x.rank), keepdims=True), x.dtype)


@operator("GlobalLpPool", since=1)
def global_lp_pool(x: Tensor, *, p: float = 2) -> Tensor:
    total = L.reduce_sum(L.abs_(L.widened(x)) ** _check_norm(p), range(2, x.rank), keepdims=True)
    return L.cast(L.norm_of(total, p), x.dtype)


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
    """Scatter values into the size that follows from the windows; ``output_shape`` then appends zeros.

    ONNX's own test case requires the latter.
    """
    n = len(kernel_shape)
    x = L.of_rank(x, n + 2, f"the input of MaxUnpool with a kernel of {n} axes")
    axes = zip(x.shape[2:], kernel_shape, per_axis(strides, n, "strides"), explicit_padding(pads, n), strict=True)
    full = (*x.shape[:2], *((size - 1) * stride - low - high + k for size, k, stride, (low, high) in axes))
    zeros = L.full((L.product(full),), 0, x.dtype)
    vectors, values = L.reshape(indices, (L.product(x.shape), 1)), L.reshape(x, (L.product(x.shape),))
    y = L.reshape(L.scatter_nd(zeros, vectors, values, from_end=False), full)
    if output_shape is None:
        return y
    target = L.sizes(output_shape, "the output shape")
    problem = f"an output shape of {', '.join(map(str, target))} does not hold {y.type}."
    if len(target) != y.rank:
        raise ShapeError(problem)
    for size, old in zip(target, full, strict=True):
        y = L.at_most(y, old, size, problem)
    return L.pad(y, [0] * y.rank, [size - old for size, old in zip(target, full, strict=True)])
