"""Pad: amounts, value and axes as attributes or inputs; the mode ``wrap``."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import slice_axis
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@up("Pad", version=2)
def paddings_renamed(site: Site) -> None:
    """Rename ``paddings`` to ``pads``."""
    site.become(attributes=site.attributes(drop=["paddings"], pads=site.integers("paddings") or []))


@down("Pad", version=2)
def pads_renamed(site: Site) -> None:
    """Rename ``pads`` to ``paddings``."""
    site.become(attributes=site.attributes(drop=["pads"], paddings=site.integers("pads") or []))


@up("Pad", version=11)
def pads_to_input(site: Site) -> None:
    """Turn amounts and value into inputs."""
    x = site.required(0)
    value = site.real("value")
    inputs = [x, site.constant(site.integers("pads") or [])]
    if value != 0.0 and site.text("mode", "constant") == "constant":
        inputs.append(site.scalar(value, x))
    site.become(inputs=inputs, attributes=site.attributes(drop=["pads", "value"]))


@down("Pad", version=11)
def pads_to_attribute(site: Site) -> None:
    """Turn constant amounts and value into attributes."""
    pads = site.constant_integers(1, "pads") or []
    attributes = site.attributes(pads=pads)
    if site.input(2) is not None:
        attributes["value"] = float(site.constant_input(2, "constant_value").reshape(-1)[0])
    site.become(inputs=[site.required(0)], attributes=attributes)


@down("Pad", version=18)
def pads_of_every_axis(site: Site) -> None:
    """Expand amounts for some axes to amounts for all axes."""
    x, axes = site.required(0), site.constant_integers(3, "axes")
    if axes is None:
        return
    rank = site.rank(x)
    axes = [a + rank if a < 0 else a for a in axes]
    indices = axes + [a + rank for a in axes]
    pads = site.known(site.input(1))
    if pads is not None:
        every = np.zeros(2 * rank, np.int64)
        every[indices] = pads.reshape(-1)
        amounts = site.constant(every)
    else:
        nothing = site.constant([0] * (2 * rank))
        amounts = site.emit("ScatterElements", nothing, site.constant(indices), site.required(1))
    site.become(inputs=[x, amounts, site.input(2)])


@down("Pad", version=19)
def wrap_by_concat(site: Site) -> None:
    """Write ``wrap`` as a concatenation of slices from the other end of the axis."""
    if site.text("mode", "constant") != "wrap":
        return
    value = site.required(0)
    rank = site.rank(value)
    pads = site.constant_integers(1, "pads") or []
    axes = [a + rank if a < 0 else a for a in site.constant_integers(3, "axes") or range(rank)]
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if before or after:
            value = _wrap(site, value, axis, before, after)
    site.replace(value)


def _wrap(site: Site, x: ir.Value, axis: int, before: int, after: int) -> ir.Value:
    size = site.size(x, axis)
    if min(before, after) < 0 or max(before, after) > size:
        if not size:
            site.refuse("an axis without elements has none to wrap around")
        site.require_room(max(before + size + after, 0))
        indices = [i % size for i in range(-before, size + after)]
        return site.emit("Gather", x, site.constant(indices), axis=axis)
    parts = [slice_axis(site, x, axis, size - before, size)] if before else []
    parts.append(x)
    if after:
        parts.append(slice_axis(site, x, axis, 0, after))
    return site.emit("Concat", *parts, axis=axis)
