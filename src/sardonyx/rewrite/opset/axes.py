"""Axes as attributes or inputs (sets 13 and 18), and negative axes (set 11)."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up

_ELEMENTWISE_PART: dict[str, Callable[[Site, ir.Value], ir.Value]] = {
    "ReduceL1": lambda site, x: site.emit("Abs", x),
    "ReduceL2": lambda site, x: site.emit("Abs", x),
    "ReduceLogSum": lambda site, x: site.emit("Log", x),
    "ReduceLogSumExp": lambda site, x: site.emit("Log", site.emit("Exp", x)),
    "ReduceSumSquare": lambda site, x: site.emit("Mul", x, x),
}
"""Elementwise part of a reduction over no axes (``noop_with_empty_axes``, set 18)."""

_REDUCTIONS_18 = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSumSquare",
)
_REDUCTIONS = (*_REDUCTIONS_18, "ReduceSum")


@up("ReduceSum", "Squeeze", "Unsqueeze", version=13)
@up(*_REDUCTIONS_18, version=18)
def axes_to_input(site: Site) -> None:
    """Turn the attribute ``axes`` into a constant input."""
    axes = site.integers("axes")
    inputs = [site.required(0), site.constant(axes) if axes is not None else None]
    site.become(inputs=inputs, attributes=site.attributes(drop=["axes"]))


@down("ReduceSum", version=13)
@down(*_REDUCTIONS_18, version=18)
def reduction_axes_to_attribute(site: Site) -> None:
    """Turn the input ``axes`` into an attribute, and a reduction over no axes into its elementwise part."""
    x = site.required(0)
    axes = site.constant_integers(1, "axes")
    if not axes and site.integer("noop_with_empty_axes"):
        part = _ELEMENTWISE_PART.get(site.node.op_type)
        site.replace(part(site, x) if part else site.emit("Identity", x))
        return
    attributes = site.attributes(drop=["noop_with_empty_axes"])
    site.become(inputs=[x], attributes=attributes | ({"axes": axes} if axes else {}))


@down("Squeeze", "Unsqueeze", version=13)
def squeeze_axes_to_attribute(site: Site) -> None:
    """Turn the input ``axes`` into an attribute."""
    axes = site.constant_integers(1, "axes")
    if axes == []:
        site.replace(site.emit("Identity", site.required(0)))
        return
    site.become(inputs=[site.required(0)], attributes=site.attributes() | ({"axes": axes} if axes else {}))


@down(*_REDUCTIONS, "Squeeze", version=11)
def axes_from_front(site: Site) -> None:
    """Count negative axes from the front."""
    _axes_from_front(site, 0)


@down("Unsqueeze", version=11)
def unsqueeze_axes_from_front(site: Site) -> None:
    """Count negative axes from the front of the result."""
    _axes_from_front(site, len(site.integers("axes") or ()))


def _axes_from_front(site: Site, added: int) -> None:
    axes = site.integers("axes")
    if axes is None or min(axes, default=0) >= 0:
        return
    rank = site.rank(site.required(0)) + added
    site.become(attributes=site.attributes(axes=[a + rank if a < 0 else a for a in axes]))


@down(
    "ArgMax",
    "ArgMin",
    "Compress",
    "Concat",
    "Flatten",
    "Gather",
    "Hardmax",
    "LogSoftmax",
    "Softmax",
    "Split",
    version=11,
)
def axis_from_front(site: Site) -> None:
    """Count a negative axis from the front."""
    axis = site.integer("axis")
    if axis < 0:
        site.become(attributes=site.attributes(axis=axis + site.rank(site.required(0))))


@up("Concat", version=4)
def concat_axis_written_out(site: Site) -> None:
    """Write out the default axis 1, which is required from this set on."""
    site.become(attributes=site.attributes(axis=site.integer("axis", 1)))
