"""Windows over spatial axes, shared by convolutions and pools; defines no operator.

Source: ONNX Operators, *Conv*, *MaxPool*, *AveragePool*: attributes ``auto_pad``, ``pads``, ``strides``, ``dilations``,
``kernel_shape``, ``ceil_mode``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.core.dim import Size, at_least, ceil_div, dim_max, dim_min, floor_div
from sardonyx.errors import InvalidModelError

Padding = tuple[tuple[Size, Size], ...]


class Windows(NamedTuple):
    """Windows over the spatial axes, one entry for each axis.

    Attributes:
        kernel: Number of elements of a window.
        strides: Distance from one window to the next.
        dilations: Distance from one element of a window to the next.
        padding: Padding before and after the elements to fit the windows; negative if elements are in no window.
        declared: The declared padding, without the part added by ``ceil_mode``.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Padding
    declared: Padding

    def counts(self, sizes: Sequence[Size]) -> tuple[Size, ...]:
        """Return the number of windows over axes of ``sizes``."""
        axes = zip(sizes, self.kernel, self.strides, self.dilations, self.padding, strict=True)
        return tuple(
            floor_div(size + low + high - dilation * (kernel - 1) - 1, stride) + 1
            for size, kernel, stride, dilation, (low, high) in axes
        )


def windows(
    sizes: Sequence[Size],
    kernel: Sequence[Size],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Windows:
    """Return windows of ``kernel`` elements over axes of ``sizes``.

    Raises:
        InvalidModelError: An attribute has the wrong length or a number out of range.
    """
    n = len(sizes)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise InvalidModelError(
            f"unknown auto_pad {auto_pad!r}.", remedy="Use 'NOTSET', 'VALID', 'SAME_UPPER' or 'SAME_LOWER'."
        )
    if len(kernel) != n or any(isinstance(size, int) and size < 1 for size in kernel):
        raise InvalidModelError(f"a kernel of {', '.join(map(str, kernel))} does not fit {n} spatial axes.")
    strides, dilations = per_axis(strides, n, "strides"), per_axis(dilations, n, "dilations")
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        padding = declared = tuple(
            split_padding(same_padding(*axis), auto_pad) for axis in zip(sizes, reach, strides, strict=True)
        )
    else:
        padding = declared = explicit_padding(pads if auto_pad == "NOTSET" else None, n)
        if ceil_mode and auto_pad == "NOTSET":
            padding = tuple(_ceil_padding(*axis) for axis in zip(sizes, reach, strides, declared, strict=True))
    return Windows(tuple(kernel), strides, dilations, padding, declared)  # type: ignore[arg-type]


def per_axis(values: Sequence[int] | None, n: int, name: str) -> tuple[int, ...]:
    """Return an attribute with one positive number for each of ``n`` axes, 1 by default."""
    values = tuple(values or (1,) * n)
    if len(values) != n or min(values, default=1) < 1:
        raise InvalidModelError(
            f"expected {n} positive numbers in `{name}`, one for each spatial axis, got {list(values)}."
        )
    return values


def explicit_padding(pads: Sequence[int] | None, n: int) -> Padding:
    """Return the attribute ``pads`` of ``n`` axes as pairs; no padding by default."""
    pads = pads or (0,) * (2 * n)
    if len(pads) != 2 * n:
        raise InvalidModelError(f"expected {2 * n} numbers in `pads` for {n} spatial axes, got {len(pads)}.")
    return tuple(zip(pads[:n], pads[n:], strict=True))


def same_padding(size: Size, reach: Size, stride: int) -> Size:
    """Return the total padding of an axis for ``ceil(size / stride)`` windows."""
    total = (ceil_div(size, stride) - 1) * stride + reach - size
    return total if at_least(reach, stride) is True else dim_max(total, 0)


def split_padding(total: Size, auto_pad: str) -> tuple[Size, Size]:
    """Split padding into halves; an odd element goes after for ``SAME_UPPER``, before otherwise."""
    less = floor_div(total, 2)
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)


def _ceil_padding(size: Size, reach: Size, stride: int, pads: tuple[Size, Size]) -> tuple[Size, Size]:
    """Return padding with one more window for remaining elements; no window begins in the end padding."""
    low, high = pads
    count = ceil_div(size + low + dim_min(high + stride - reach, 0), stride)
    return low, (count - 1) * stride + reach - size - low
