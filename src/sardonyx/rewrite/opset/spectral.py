"""DFT: axis as attribute or input, and the transform as a matrix product."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import slice_axis, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


@up("DFT", version=20)
def axis_to_input(site: Site) -> None:
    """Turn the axis into an input."""
    axis = site.constant(np.asarray(site.integer("axis", 1), np.int64))
    site.become(inputs=[site.required(0), site.input(1), axis], attributes=site.attributes(drop=["axis"]))


@down("DFT", version=20)
def axis_to_attribute(site: Site) -> None:
    """Turn a constant axis, -2 by default, into an attribute."""
    axes = site.constant_integers(2, "axis")
    axis = axes[0] if axes else -2
    if axis < 0:
        axis += site.rank(site.required(0))
    site.become(inputs=[site.required(0), site.input(1)], attributes=site.attributes(axis=axis))


@down("DFT", version=17)
def transform_by_matrix(site: Site) -> None:
    """Multiply real and imaginary parts by cosines and sines, along an axis of known size."""
    x = site.required(0)
    rank, inverse = site.rank(x), site.integer("inverse")
    axis = site.axis("axis", 1, rank)
    size = site.size(x, axis)
    lengths = site.constant_integers(1, "dft_length")
    is_real = inverse and site.integer("onesided")
    length = lengths[0] if lengths else 2 * (size - 1) if is_real else size
    if length < 1:
        site.refuse(f"expected a length of at least 1, got {length}")
    if is_real:
        _real_inverse(site, x, axis, length)
        return
    bins = length // 2 + 1 if site.integer("onesided") else length
    site.require_room(min(size, length), bins)
    angle = 2 * np.pi * np.outer(np.arange(min(size, length)), np.arange(bins)) / length
    scale = 1 / length if inverse else 1.0
    waves = {name: site.constant(f(angle) * scale, site.dtype(x)) for name, f in (("cos", np.cos), ("sin", np.sin))}
    if length < size:
        x = slice_axis(site, x, axis, 0, length)
    order = [i for i in range(rank - 1) if i != axis] + [axis]
    parts = [_part(site, x, i, rank, order) for i in range(site.size(x, rank - 1))]
    sign = 1 if inverse else -1
    real, imaginary = _rotate(site, parts, waves, sign)
    back = [order.index(i) for i in range(rank - 1)]
    results = [unsqueeze(site, site.emit("Transpose", p, perm=back), [rank - 1]) for p in (real, imaginary)]
    site.replace(site.emit("Concat", *results, axis=rank - 1))


def _part(site: Site, x: ir.Value, index: int, rank: int, order: list[int]) -> ir.Value:
    """Return the real (0) or imaginary (1) part, with the transformed axis last."""
    position = site.constant(np.asarray(index, np.int64))
    return site.emit("Transpose", site.emit("Gather", x, position, axis=rank - 1), perm=order)


def _rotate(site: Site, parts: list[ir.Value], waves: dict[str, ir.Value], sign: int) -> tuple[ir.Value, ir.Value]:
    real = site.emit("MatMul", parts[0], waves["cos"])
    imaginary = site.emit("MatMul", parts[0], waves["sin"])
    if sign < 0:
        imaginary = site.emit("Neg", imaginary)
    if len(parts) == 1:
        return real, imaginary
    across = site.emit("MatMul", parts[1], waves["sin"])
    along = site.emit("MatMul", parts[1], waves["cos"])
    return site.emit("Sub" if sign > 0 else "Add", real, across), site.emit("Add", imaginary, along)


def _real_inverse(site: Site, x: ir.Value, axis: int, length: int) -> None:
    """Transform a half spectrum to real numbers: bins with a mirror image count twice."""
    rank = site.rank(x)
    bins = length // 2 + 1
    if site.size(x, axis) < bins:
        site.refuse("expected a spectrum of at least half its length")
    order = [i for i in range(rank - 1) if i != axis] + [axis]
    x = slice_axis(site, x, axis, 0, bins)
    site.require_room(bins, length)
    weight = np.full(bins, 2.0)
    weight[0] = 1.0
    if length % 2 == 0:
        weight[-1] = 1.0
    angle = 2 * np.pi * np.outer(np.arange(bins), np.arange(length)) / length
    waves = [site.constant(f(angle) * weight[:, None] / length, site.dtype(x)) for f in (np.cos, np.sin)]
    terms = [site.emit("MatMul", _part(site, x, i, rank, order), wave) for i, wave in enumerate(waves)]
    real = site.emit("Transpose", site.emit("Sub", *terms), perm=[order.index(i) for i in range(rank - 1)])
    site.replace(unsqueeze(site, real, [rank - 1]))
