"""Convolutions as matrix products with the windows of an image: gradients of weights, and computed weights.

A kernel of convolutions reads all weights for each row of outputs, and weights that are computed in the same call must
first be packed. With few positions in a sample the weights are larger than the image: a product reads them once, as
they are. Its other operand holds the elements of the image at every tap, ``[channels * taps, batch * positions]``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.weight_gradients import (
    FEWEST_POSITIONS,
    has_kernel,
    is_weight_gradient,
    known_product,
)
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor, apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_FEWEST_WEIGHTS = 1 << 15
"""Fewest weights for which a product is faster than packing them: less than that stays in L1 and L2."""


def multiply_windows(core: Value, x: Tensor, w: Tensor, params: dict[str, Any]) -> Value | None:
    """Return a ``convolve`` as a product with windows; None if a kernel of convolutions suits it better.

    Args:
        core: The ``convolve``.
        x: The first operand.
        w: The second operand.
        params: The parameters of the ``convolve``.
    """
    if is_weight_gradient(core):
        return None if has_kernel(core) else _gradient_of_weights(core, x, w, params)
    if is_closed(w) or dtype_of(core) not in (t.FLOAT, t.DOUBLE) or shape_of(core)[0] != 1:
        return None
    if (known_product(shape_of(w)) or 0) < _FEWEST_WEIGHTS:
        return None
    transposed = _transposed_weights(w)
    if transposed is not None and all(stride == 1 for stride in params["strides"]):
        return _gradient_of_image(core, x, transposed, params) if _has_few(shape_of(x)[3:]) else None
    if any(base != 1 for base in params["base_dilation"]) or not _has_few(shape_of(core)[3:]):
        return None
    return _convolution(core, x, w, params)


def _has_few(positions: Sequence[Size]) -> bool:
    count = known_product(positions)
    return count is not None and count < FEWEST_POSITIONS


def _transposed_weights(w: Value) -> Tensor | None:
    """Return the weights of which a kernel is the reverse with exchanged channels; None for other kernels."""
    rank = len(shape_of(w))
    spatial, swapped = tuple(range(3, rank)), (0, 2, 1, *range(3, rank))
    for first, second in (("reverse", "permute"), ("permute", "reverse")):
        if w.op == first and w.operands[0].op == second:
            reverse, permute = (w, w.operands[0]) if first == "reverse" else (w.operands[0], w)
            if reverse.params["axes"] == spatial and permute.params["axes"] == swapped:
                return cast("Tensor", w.operands[0].operands[0])
    return None


def _exchange(x: Tensor) -> Tensor:
    """Return ``[groups, channels, batch, *spatial]`` of ``[groups, batch, channels, *spatial]``, or the reverse."""
    order = (0, 2, 1, *range(3, x.rank))
    if x.op == "permute":
        axes = x.params["axes"]
        return L.permute(cast("Tensor", x.operands[0]), [axes[axis] for axis in order])
    return L.permute(x, order)


def _taps(sizes: Sequence[Size]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(cast("int", size)) for size in sizes))


def _windows(
    x: Tensor, taps: Sequence[Size], counts: Sequence[Size], strides: Sequence[int], dilation: Sequence[int],
    padding: Sequence[tuple[Size, Size]], base: Sequence[int],
) -> Tensor:  # fmt: skip
    """Return the elements of an image at every tap: [groups, channels * taps, batch * positions].

    Args:
        x: The image, [groups, channels, batch, *spatial].
        taps: Taps along each spatial axis.
        counts: Positions along each spatial axis.
        strides: Distances of positions.
        dilation: Distances of taps.
        padding: Elements before and after each spatial axis.
        base: Distances of the elements of the image.
    """
    none = [0, 0, 0]
    low, high = [*none, *(pair[0] for pair in padding)], [*none, *(pair[1] for pair in padding)]
    padded = L.pad(x, low, high, 0, [*none, *(step - 1 for step in base)])
    groups, channels, batch = x.shape[:3]
    positions = L.product([batch, *counts])
    parts = []
    for tap in _taps(taps):
        part = padded
        for axis, (index, step, stride, count) in enumerate(zip(tap, dilation, strides, counts, strict=True), 3):
            start = index * step
            part = L.slice_(part, axis, start, start + (count - 1) * stride + 1, stride)
        parts.append(L.reshape(part, (groups, channels, 1, positions)))
    windows = parts[0] if len(parts) == 1 else L.concat(parts, 2)
    return L.reshape(windows, (groups, channels * len(parts), positions))


def _gradient_of_weights(core: Value, x: Tensor, dy: Tensor, params: dict[str, Any]) -> Value:
    """Return the sum over batch and positions of dy times the windows of x, [groups, channels, filters, *taps]."""
    groups, channels, filters, *taps = shape_of(core)
    positions = dy.shape[3:]
    windows = _windows(
        x, taps, positions, params["kernel_dilation"], params["strides"], params["padding"], params["base_dilation"]
    )
    rows = L.reshape(dy, (groups, filters, L.product(dy.shape[2:])))
    product = L.contract(rows, windows, batch=[(0, 0)], left=[2], right=[2], dtype=params["dtype"])
    shaped = L.reshape(product, (groups, filters, channels, *taps))
    return L.permute(shaped, [0, 2, 1, *range(3, x.rank)])


def _convolution(core: Value, x: Tensor, w: Tensor, params: dict[str, Any]) -> Value:
    """Return the product of weights [filters, channels * taps] by windows, [1, batch, filters, *positions]."""
    _, batch, filters, *counts = shape_of(core)
    taps = w.shape[3:]
    windows = _windows(
        _exchange(x), taps, counts, params["strides"], params["kernel_dilation"], params["padding"],
        params["base_dilation"],
    )  # fmt: skip
    rows = L.reshape(w, (filters, L.product(w.shape[2:])))
    product = L.contract(rows, L.reshape(windows, windows.shape[1:]), left=[1], right=[0], dtype=params["dtype"])
    shaped = L.reshape(product, (1, filters, batch, *counts))
    return L.permute(shaped, [0, 2, 1, *range(3, x.rank)])


def _gradient_of_image(core: Value, dy: Tensor, w: Tensor, params: dict[str, Any]) -> Value:
    """Return the sum over taps of the products of dy by the weights of a tap, [1, batch, channels, *spatial].

    Args:
        core: The ``convolve`` of dy by the reversed weights.
        dy: The gradient of the convolution's result, [1, batch, filters, *positions].
        w: The weights, [1, filters, channels, *taps].
        params: The parameters of the ``convolve``.
    """
    _, filters, channels, *taps = w.shape
    batch, positions, spatial = dy.shape[1], dy.shape[3:], shape_of(core)[3:]
    count = len(list(_taps(taps)))
    last = range(3, dy.rank)
    rows = L.reshape(L.permute(dy, [0, 1, *last, 2]), (L.product([batch, *positions]), filters))
    columns = L.reshape(w, (filters, channels * count))
    products = apply("contract", rows, columns, batch=(), left=(1,), right=(0,), dtype=params["dtype"])
    products = L.reshape(products, (batch, *positions, channels, count))
    total: Tensor | None = None
    for number, tap in enumerate(_taps(taps)):
        part = L.reshape(L.slice_(products, len(positions) + 2, number, number + 1), (batch, *positions, channels))
        low: list[Size] = [0]
        high: list[Size] = [0]
        for index, size, step, stride, (before, _), at, width in zip(
            tap, taps, params["kernel_dilation"], params["base_dilation"], params["padding"], positions, spatial,
            strict=True,
        ):  # fmt: skip
            start = before - (size - 1 - index) * step
            low.append(start)
            high.append(width - start - (at - 1) * stride - 1)
        inner = [0, *(stride - 1 for stride in params["base_dilation"]), 0]
        moved = L.pad(part, [*low, 0], [*high, 0], 0, inner)
        total = moved if total is None else total + moved
    assert total is not None
    ordered = L.permute(total, [0, len(positions) + 1, *range(1, len(positions) + 1)])
    return L.reshape(ordered, (1, batch, channels, *spatial))
