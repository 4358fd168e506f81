"""Experimental operators, dropped before the first releases of ONNX but present in old models."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, slice_axis
from sardonyx.rewrite.opset.site import Site


def _scaled(site: Site, x: ir.Value, factor: float) -> ir.Value:
    return x if factor == 1.0 else _with_scalar(site, "Mul", x, factor)


def _with_scalar(site: Site, op_type: str, x: ir.Value, number: float) -> ir.Value:
    if site.target >= 7:
        return site.emit(op_type, x, site.scalar(number, x))
    return site.emit(op_type, x, site.constant(np.asarray(number), site.dtype(x)), broadcast=1)


def _image_scaler(site: Site) -> ir.Value:
    """Compute ``scale · x`` plus a bias per channel."""
    x = _scaled(site, site.required(0), site.real("scale", 1.0))
    bias = np.asarray(site.reals("bias") or [0.0])
    if site.target >= 7:
        return site.emit("Add", x, site.constant(bias[:, None, None], site.dtype(site.required(0))))
    return site.emit("Add", x, site.constant(bias, site.dtype(site.required(0))), broadcast=1, axis=1)


def _affine(site: Site) -> ir.Value:
    """``alpha · x + beta``."""
    x = _scaled(site, site.required(0), site.real("alpha", 1.0))
    return _with_scalar(site, "Add", x, site.real("beta", 0.0))


def _scaled_tanh(site: Site) -> ir.Value:
    """``alpha · tanh(beta · x)``."""
    return _scaled(
        site, site.emit("Tanh", _scaled(site, site.required(0), site.real("beta", 1.0))), site.real("alpha", 1.0)
    )


def _parametric_softplus(site: Site) -> ir.Value:
    """``alpha · log(1 + exp(beta · x))``."""
    inner = site.emit("Softplus", _scaled(site, site.required(0), site.real("beta", 1.0)))
    return _scaled(site, inner, site.real("alpha", 1.0))


def _scale(site: Site) -> ir.Value:
    """``scale · x``."""
    return _with_scalar(site, "Mul", site.required(0), site.real("scale", 1.0))


def _crop(site: Site) -> ir.Value:
    """Cut the border (left, top, right, bottom), or ``scale`` rows and columns from the top left."""
    border, size = site.integers("border") or [0, 0, 0, 0], site.integers("scale")
    if len(border) != 4 or (size and len(size) != 2):
        site.refuse("`border` has not 4 numbers, or `scale` not 2")
    left, top, right, bottom = border
    end = int(np.iinfo(np.int32).max)
    rows, columns = (top + size[0], left + size[1]) if size else (-bottom or end, -right or end)
    return slice_axis(site, slice_axis(site, site.required(0), 2, top, rows), 3, left, columns)


def _constant_fill(site: Site) -> ir.Value:
    """Return a tensor of one number, shaped by a list, an input's contents or an input's shape."""
    shape = site.integers("shape") or []
    if (source := site.input(0)) is not None:
        as_shape = site.integer("input_as_shape")
        shape = site.constant_integers(0, "shape") or [] if as_shape else list(site.sizes(source))
        shape += site.integers("extra_shape") or []
    dtype = ir.DataType(site.integer("dtype", int(ir.DataType.FLOAT)))
    site.require_room(*shape)
    return site.constant(np.full(shape, site.real("value")), dtype)


def _mean_variance(site: Site) -> ir.Value:
    """Subtract the mean over the image (and the channels) and divide by the standard deviation."""
    if site.target < 7:
        site.refuse("its arithmetic needs broadcasting by shape (opset 7)")
    x = site.required(0)
    axes = [0, 1, 2, 3] if site.integer("across_channels") else [0, 2, 3]
    off = site.emit("Sub", x, reduce(site, "ReduceMean", x, axes))
    if not site.integer("normalize_variance", 1):
        return off
    variance = reduce(site, "ReduceMean", site.emit("Mul", off, off), axes)
    return site.emit("Div", off, site.emit("Sqrt", _with_scalar(site, "Add", variance, 1e-9)))


def _thresholded(site: Site) -> ir.Value:
    """Compute ``x`` above ``alpha``, else zero."""
    x, alpha = site.required(0), site.real("alpha", 1.0)
    above = site.cast(_with_scalar(site, "Greater", x, alpha), site.dtype(x))
    return site.emit("Mul", _with_scalar(site, "Max", x, alpha) if site.target >= 8 else x, above)


EXPERIMENTAL: dict[str, Callable[[Site], ir.Value]] = {
    "Affine": _affine,
    "ConstantFill": _constant_fill,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "MeanVarianceNormalization": _mean_variance,
    "ParametricSoftplus": _parametric_softplus,
    "Scale": _scale,
    "ScaledTanh": _scaled_tanh,
    "ThresholdedRelu": _thresholded,
}
"""Experimental operator → function that emits its equivalent in the same operator set."""


def replace_experimental(site: Site) -> None:
    """Replace one experimental node by standard ones."""
    site.replace(EXPERIMENTAL[site.node.op_type](site))
