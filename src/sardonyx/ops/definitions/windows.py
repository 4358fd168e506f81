"""Windows that move over spatial axes, as convolutions and pools share them: no operator of its own.

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
    """Windows over the spatial axes, one entry an axis.

    Attributes:
        kernel: Elements of a window.
        strides: From one window to the next.
        dilations: From one element of a window to the next.
        padding: Before and after the elements, so that the windows fit; negative where elements are in no window.
        declared: The part of it that the model declares: ``ceil_mode`` may have added to it.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Padding
    declared: Padding

    def counts(self, sizes: Sequence[Size]) -> tuple[Size, ...]:
        """How many windows there are over axes of ``sizes``."""
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
    """Windows of ``kernel`` elements over axes of ``sizes``.

    Raises:
        InvalidModelError: An attribute has another length than there are axes, or a number that is out of its range.
    """
    n = len(sizes)
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise InvalidModelError(f"there is no auto_pad {auto_pad!r}.")
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
            padding = tuple(_rounded_up(*axis) for axis in zip(sizes, reach, strides, declared, strict=True))
    return Windows(tuple(kernel), strides, dilations, padding, declared)  # type: ignore[arg-type]


def per_axis(values: Sequence[int] | None, n: int, name: str) -> tuple[int, ...]:
    """An attribute with a number from 1 on for each of ``n`` axes, by default 1."""
    values = tuple(values or (1,) * n)
    if len(values) != n or min(values, default=1) < 1:
        raise InvalidModelError(f"{name} of {list(values)} do not fit {n} spatial axes: one number each, from 1 on.")
    return values


def explicit_padding(pads: Sequence[int] | None, n: int) -> Padding:
    """The attribute ``pads`` of ``n`` axes, by axis; none by default."""
    pads = pads or (0,) * (2 * n)
    if len(pads) != 2 * n:
        raise InvalidModelError(f"pads has {len(pads)} numbers, and {n} spatial axes need {2 * n}.")
    return tuple(zip(pads[:n], pads[n:], strict=True))


def same_padding(size: Size, reach: Size, stride: int) -> Size:
    """All padding of an axis for as many windows as strides fit, the last one begun."""
    total = (ceil_div(size, stride) - 1) * stride + reach - size
    return total if at_least(reach, stride) is True else dim_max(total, 0)


def split_padding(total: Size, auto_pad: str) -> tuple[Size, Size]:
    """Half of it before and half after; what is odd goes after for ``SAME_UPPER``, before otherwise."""
    less = floor_div(total, 2)
    return (less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less)


def _rounded_up(size: Size, reach: Size, stride: int, pads: tuple[Size, Size]) -> tuple[Size, Size]:
    """Padding for one more window where elements are left over; none begins in the padding after them."""
    low, high = pads
    count = ceil_div(size + low + dim_min(high + stride - reach, 0), stride)
    return low, (count - 1) * stride + reach - size - low
