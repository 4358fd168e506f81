"""ONNX forms of window operations: convolutions, sums and extrema of windows, and padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size, dim_max, product
from sardonyx.core.export.node_writer import GraphWriter
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, Shape, numpy_dtype
from sardonyx.core.rules.numpy_rules import identity_of
from sardonyx.errors import UnsupportedError

Pairs = Sequence[tuple[Size, Size]]


def spread(
    w: GraphWriter,
    x: ir.Value,
    shape: Shape,
    low: Sequence[Size],
    high: Sequence[Size],
    dilation: Sequence[int],
    filler: ir.Value,
) -> ir.Value:
    """Dilate, pad and crop the leading axes; sizes and amounts may be symbolic."""
    sizes = list(shape)
    for axis, step in enumerate(dilation):
        if step > 1:
            x = _dilated(w, x, sizes, axis, step, filler)
            sizes[axis] = dim_max((sizes[axis] - 1) * step + 1, 0)
    before, after = ([dim_max(amount, 0) for amount in amounts] for amounts in (low, high))
    if any(amount != 0 for amount in (*before, *after)):
        rest = [0] * (len(shape) - len(low))
        x = w.node("Pad", x, w.sizes([*before, *rest, *after, *rest]), filler)
    cut = [a for a in range(len(low)) if any(not isinstance(amount, int) or amount < 0 for amount in (low[a], high[a]))]
    if not cut:
        return x
    starts = [dim_max(-low[a], 0) for a in cut]
    ends = [start + sizes[a] + low[a] + high[a] for start, a in zip(starts, cut, strict=True)]
    return w.node("Slice", x, w.sizes(starts), w.sizes(ends), w.ints(*cut))  # type: ignore[no-any-return]


def _dilated(w: GraphWriter, x: ir.Value, sizes: Sequence[Size], axis: int, step: int, filler: ir.Value) -> ir.Value:
    """Insert ``step - 1`` fillers between the elements of an axis."""
    wide = w.node("Unsqueeze", x, w.ints(axis + 1))
    amounts = [0] * (2 * len(sizes) + 2)
    amounts[len(sizes) + 1 + axis + 1] = step - 1
    padded = w.node("Pad", wide, w.ints(*amounts), filler)
    merged = [size * step if a == axis else size for a, size in enumerate(sizes)]
    flat = w.node("Reshape", padded, w.sizes(merged), allowzero=1)
    return w.node("Slice", flat, w.ints(0), w.ints(1 - step), w.ints(axis))  # type: ignore[no-any-return]


def convolution(
    w: GraphWriter,
    x: ir.Value,
    weights: ir.Value,
    shape: Shape,
    kernel: Shape,
    out: Shape,
    dtype: DType,
    *,
    strides: tuple[int, ...],
    padding: Pairs,
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
) -> ir.Value:
    """Write [G, N, C, *spatial] by [G, M, C, *kernel] as ``Conv``, groups and channels on one axis."""
    groups, n = shape[0], len(strides)
    if not isinstance(groups, int):
        raise UnsupportedError(f"expected a known number of groups for an ONNX convolution, got {groups}.")
    if not n:
        return w.node("Einsum", x, weights, equation="gnc,gmc->gnm")  # type: ignore[no-any-return]
    channels = groups * shape[2]
    rows = w.node("Transpose", x, perm=[1, 0, *range(2, 3 + n)])
    rows = w.node("Reshape", rows, w.sizes([shape[1], channels, *shape[3:]]), allowzero=1)
    pads: Any = [amount for pair in zip(*padding, strict=True) for amount in pair]
    if max(base_dilation) > 1 or not all(isinstance(amount, int) and amount >= 0 for amount in pads):
        (low, high), zero = zip(*padding, strict=True), w.number(0, dtype)
        flat = (shape[1], channels, *shape[3:])
        rows = spread(w, rows, flat, (0, 0, *low), (0, 0, *high), (1, 1, *base_dilation), zero)
        pads = None
    filters = w.node("Reshape", weights, w.sizes([groups * kernel[1], *kernel[2:]]), allowzero=1)
    result = w.node(
        "Conv", rows, filters, group=groups, strides=list(strides), dilations=list(kernel_dilation), pads=pads
    )
    result = w.node("Reshape", result, w.sizes([shape[1], groups, *out[2:]]), allowzero=1)
    return w.node("Transpose", result, perm=[1, 0, *range(2, 3 + n)])  # type: ignore[no-any-return]


def _as_images(w: GraphWriter, x: ir.Value, shape: Shape, n: int) -> ir.Value:
    """Reshape to [leading product, 1, *spatial]."""
    return w.node("Reshape", x, w.sizes([product(shape[: len(shape) - n]), 1, *shape[len(shape) - n :]]), allowzero=1)  # type: ignore[no-any-return]


def sum_window(
    w: GraphWriter,
    x: ir.Value,
    shape: Shape,
    out: Shape,
    dtype: DType,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: Pairs,
    dilation: tuple[int, ...],
) -> ir.Value:
    """Write sums of windows as a convolution with ones."""
    n = len(window)
    rows = _as_images(w, x, shape, n)
    images, zero = product(shape[: len(shape) - n]), w.number(0, dtype)
    low, high = zip(*padding, strict=True)
    rows = spread(w, rows, (images, 1, *shape[len(shape) - n :]), (0, 0, *low), (0, 0, *high), (1,) * (n + 2), zero)
    ones = w.constant(np.ones((1, 1, *window), numpy_dtype(dtype)))
    result = w.node("Conv", rows, ones, strides=list(strides), dilations=list(dilation))
    return w.node("Reshape", result, w.sizes(out), allowzero=1)  # type: ignore[no-any-return]


def extremum_window(
    w: GraphWriter,
    x: ir.Value,
    shape: Shape,
    out: Shape,
    dtype: DType,
    greatest: bool,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: Pairs,
    dilation: tuple[int, ...],
) -> ir.Value:
    """Write extrema of windows as ``MaxPool``, negated for minima; integers window by window."""
    if dtype not in (t.FLOAT, t.DOUBLE, t.FLOAT16):
        values, _, _ = _patches(w, x, shape, out, dtype, greatest, window, strides, padding, dilation)
        return w.node("ReduceMax" if greatest else "ReduceMin", values, w.ints(-1), keepdims=0)  # type: ignore[no-any-return]
    n = len(window)
    rows = _as_images(w, x if greatest else w.node("Neg", x), shape, n)
    images = product(shape[: len(shape) - n])
    low, high = zip(*padding, strict=True)
    least = w.number(-np.inf, dtype)
    rows = spread(w, rows, (images, 1, *shape[len(shape) - n :]), (0, 0, *low), (0, 0, *high), (1,) * (n + 2), least)
    result = w.node("MaxPool", rows, kernel_shape=list(window), strides=list(strides), dilations=list(dilation))
    return w.node("Reshape", result if greatest else w.node("Neg", result), w.sizes(out), allowzero=1)  # type: ignore[no-any-return]


def arg_window(
    w: GraphWriter,
    x: ir.Value,
    shape: Shape,
    out: Shape,
    dtype: DType,
    greatest: bool,
    *,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: Pairs,
    dilation: tuple[int, ...],
) -> ir.Value:
    """Write the flat index of the first extremum (or NaN) of every window; -1 in padding alone."""
    values, inside, positions = _patches(w, x, shape, out, dtype, greatest, window, strides, padding, dilation)
    best = w.node("ReduceMax" if greatest else "ReduceMin", values, w.ints(-1), keepdims=1)
    attained = w.node("Equal", values, best)
    if t.is_float(dtype):
        attained = w.node("Or", attained, w.node("Not", w.node("Equal", values, values)))
    attained = w.node("And", attained, inside)
    first = w.node("ArgMax", w.cast(attained, t.INT32, t.BOOL), axis=-1, keepdims=1)
    one = w.node("Equal", w.constant(np.arange(math.prod(window))), first)
    chosen = w.node("Where", w.node("And", one, attained), positions, w.number(-1, t.INT64))
    return w.node("ReduceMax", chosen, w.ints(-1), keepdims=0)  # type: ignore[no-any-return]


def _patches(
    w: GraphWriter,
    x: ir.Value,
    shape: Shape,
    out: Shape,
    dtype: DType,
    greatest: bool,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return all windows, [leading…, out…, window], with a mask and flat indices.

    The mask is False in padding; mask and flat indices have the shape [out…, window].
    """
    n = len(window)
    lead, spatial = shape[: len(shape) - n], shape[len(shape) - n :]
    inside, positions = None, None
    for axis in range(n):
        at = _coordinates(
            w, axis, n, out[len(out) - n + axis], window[axis], strides[axis], padding[axis][0], dilation[axis]
        )
        size = w.size(spatial[axis])
        fits = w.node("And", w.node("Less", w.ints(-1), at), w.node("Less", at, size))
        at = w.node("Max", w.node("Min", at, w.node("Sub", size, w.ints(1))), w.ints(0))
        inside = fits if inside is None else w.node("And", inside, fits)
        positions = at if positions is None else w.node("Add", w.node("Mul", positions, size), at)
    flat = w.sizes([*out[len(out) - n :], math.prod(window)])
    inside, positions = (w.node("Reshape", v, flat, allowzero=1) for v in (inside, positions))
    rows = w.node("Reshape", x, w.sizes([*lead, product(spatial)]), allowzero=1)
    patches = w.node("Gather", rows, positions, axis=len(lead))
    identity = identity_of("max" if greatest else "min", numpy_dtype(dtype))
    return w.node("Where", inside, patches, w.number(identity, dtype)), inside, positions


def _coordinates(
    w: GraphWriter, axis: int, n: int, count: Size, window: int, stride: int, low: Size, dilation: int
) -> ir.Value:
    """Return the coordinates of all window elements along an axis.

    Of the ``2 * n`` axes of the result, ``axis`` counts windows and ``n + axis`` the elements of a window.
    """
    zero, one = w.constant(np.array(0)), w.constant(np.array(1))
    line = w.node("Range", zero, w.node("Squeeze", w.size(count), w.ints(0)), one)
    starts = w.node("Sub", w.node("Mul", line, w.ints(stride)), w.size(low))
    starts = w.node("Unsqueeze", starts, w.ints(*(a for a in range(2 * n) if a != axis)))
    steps = np.arange(window).reshape([-1 if a == n + axis else 1 for a in range(2 * n)]) * dilation
    return w.node("Add", starts, w.constant(steps))  # type: ignore[no-any-return]
