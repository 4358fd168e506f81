"""Pooling: rounding of sizes, dilations and padding missing in older sets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.site import AttributeValue, Site
from sardonyx.rewrite.opset.table import down, up


@up("GlobalLpPool", "LpPool", version=2)
def exponent_as_integer(site: Site) -> None:
    """Turn the exponent into an integer."""
    exponent = site.real("p", 2.0)
    if not exponent.is_integer() or abs(exponent) >= 1 << 63:
        site.refuse(f"expected an integer exponent, got p={exponent}")
    site.become(attributes=site.attributes(p=int(exponent)))


@down("GlobalLpPool", "LpPool", version=2)
def exponent_as_number(site: Site) -> None:
    """Turn the exponent into a float."""
    site.become(attributes=site.attributes(p=float(site.integer("p", 2))))


@dataclass(frozen=True)
class _Window:
    """A pooling window as set by the attributes, with explicit pads."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    overhang: list[int]
    """Elements beyond the padded end read by the last window of ``ceil_mode``."""

    @property
    def span(self) -> list[int]:
        """Number of elements covered by a window."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def _window(site: Site) -> _Window:
    kernel = site.integers("kernel_shape") or []
    axes = len(kernel)
    strides, dilations = (site.integers(name) or [1] * axes for name in ("strides", "dilations"))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mode = site.text("auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        sizes = [site.size(site.required(0), i + 2) for i in range(axes)]
        total = [max((math.ceil(n / s) - 1) * s + w - n, 0) for n, s, w in zip(sizes, strides, span, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (less, more) if mode == "SAME_UPPER" else (more, less)
        return _Window(kernel, strides, dilations, begin, end, [0] * axes)
    pads = site.integers("pads") if mode == "NOTSET" else None
    pads = pads or [0] * (2 * axes)
    begin, end = pads[:axes], pads[axes:]
    overhang = [0] * axes
    if site.integer("ceil_mode"):
        for i in range(axes):
            overhang[i] = _overhang(site.size(site.required(0), i + 2), begin[i], end[i], span[i], strides[i])
    return _Window(kernel, strides, dilations, begin, end, overhang)


def _overhang(size: int, begin: int, end: int, span: int, stride: int) -> int:
    """Return how far the last window, starting inside the input or front padding, exceeds the end."""
    count = math.ceil((size + begin + end - span) / stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    return max((count - 1) * stride + span - (size + begin + end), 0)


@down("MaxPool", version=10)
def maximum_without_ceiling(site: Site) -> None:
    """Write ``ceil_mode`` as padding at the end, which does not affect a maximum."""
    if any(d != 1 for d in site.integers("dilations") or []):
        site.refuse("its dilations exist only from opset 10")
    attributes = site.attributes(drop=["ceil_mode"])
    if site.integer("ceil_mode"):
        if site.uses_output(1):
            site.refuse("its indices with ceil_mode exist only from opset 10")
        attributes = _without_ceiling(site)
    site.become(attributes={k: v for k, v in attributes.items() if k != "dilations"})


def _without_ceiling(site: Site) -> dict[str, AttributeValue | ir.Attr]:
    """Return the node's attributes with ``ceil_mode`` as padding at the end."""
    window = _window(site)
    if site.node.op_type == "AveragePool" and site.integer("count_include_pad") and any(window.overhang):
        site.refuse("its last window exceeds the padding with count_include_pad")
    end = [e + o for e, o in zip(window.end, window.overhang, strict=True)]
    return site.attributes(drop=["ceil_mode", "auto_pad"], pads=window.begin + end)


@down("AveragePool", version=10)
def average_without_ceiling(site: Site) -> None:
    """Write ``ceil_mode`` as padding at the end, which an average without counted padding ignores."""
    ceiling = site.integer("ceil_mode")
    site.become(attributes=_without_ceiling(site) if ceiling else site.attributes(drop=["ceil_mode"]))


@down("AveragePool", "LpPool", "MaxPool", version=22)
def last_window_inside(site: Site) -> None:
    """Fix the sizes if older sets would count a last window that starts in the padding at the end."""
    x = site.required(0)
    if not site.integer("ceil_mode") or site.static_shape(x) is None:
        return
    window = _window(site)
    ends = zip(site.sizes(x)[2:], window.begin, window.end, window.span, window.strides, strict=True)
    if any(math.ceil((n + b + e - w) / s) * s >= n + b for n, b, e, w, s in ends):
        site.become(attributes=_without_ceiling(site))


@down("AveragePool", version=19)
def dilated_average(site: Site) -> None:
    """Write a dilated average as a convolution with ones, divided by the count of elements."""
    if all(d == 1 for d in site.integers("dilations") or []):
        site.become(attributes=site.attributes(drop=["dilations"]))
        return
    x, window = site.required(0), _window(site)
    ones = site.emit("ConstantOfShape", site.emit("Shape", x), value=ir.Tensor(np.ones(1, site.dtype(x).numpy())))
    counted = _padded(site, ones, window, float(site.integer("count_include_pad")))
    total = _sums(site, _padded(site, x, window, 0.0), window)
    site.replace(site.emit("Div", total, _sums(site, counted, window)))


@down("LpPool", version=18)
def dilated_norm(site: Site) -> None:
    """Write a dilated or rounded-up norm as the root of a sum of powers, by a convolution with ones."""
    dilated = any(d != 1 for d in site.integers("dilations") or [])
    if not dilated and not site.integer("ceil_mode"):
        site.become(attributes=site.attributes(drop=["dilations", "ceil_mode"]))
        return
    x, window, exponent = site.required(0), _window(site), site.integer("p", 2)
    powers = site.emit("Pow", site.emit("Abs", x), site.scalar(exponent, x))
    total = _sums(site, _padded(site, powers, window, 0.0), window)
    site.replace(site.emit("Pow", total, site.scalar(1 / exponent, x)))


def _padded(site: Site, x: ir.Value, window: _Window, fill: float) -> ir.Value:
    """Return ``x`` with explicit padding, and zeros in the overhang."""
    value = x
    for begin, end, number in ((window.begin, window.end, fill), ([0] * len(window.end), window.overhang, 0.0)):
        if any(begin) or any(end):
            pads = site.constant([0, 0, *begin, 0, 0, *end])
            value = site.emit("Pad", value, pads, site.scalar(number, x))
    return value


def _sums(site: Site, x: ir.Value, window: _Window) -> ir.Value:
    channels = site.size(site.required(0), 1)
    site.require_room(channels, *window.kernel)
    ones = site.constant(np.ones([channels, 1, *window.kernel]), site.dtype(x))
    return site.emit("Conv", x, ones, group=channels, strides=window.strides, dilations=window.dilations)
