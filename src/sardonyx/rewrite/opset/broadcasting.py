"""Broadcasting: by the attributes ``broadcast`` and ``axis`` before set 7, as in numpy since then."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reshape, squeeze, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up

_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")


@up(*_BINARY, version=7)
def broadcast_by_shape(site: Site) -> None:
    """Append axes of size one to the second operand to align it as ``axis`` did."""
    a, b = site.required(0), site.required(1)
    if site.integer("broadcast") and site.has("axis"):
        axis, rank = site.integer("axis"), site.rank(b)
        axis = axis + site.rank(a) if axis < 0 else axis
        if not 0 <= axis <= site.rank(a):
            site.refuse(f"`axis` is {site.integer('axis')}, out of range for rank {site.rank(a)}")
        trailing = site.rank(a) - axis - rank
        if trailing > 0 and site.static_shape(b) not in ((), (1,)):
            b = unsqueeze(site, b, list(range(rank, rank + trailing)))
    site.become(inputs=[a, b], attributes=site.attributes(drop=["axis", "broadcast", "consumed_inputs"]))


@down(*_BINARY, version=7)
def broadcast_by_attribute(site: Site) -> None:
    """Align a second operand that fits inside the first by ``axis``, and tile others to the full shape."""
    a, b = site.required(0), site.required(1)
    left, right = site.sizes(a), site.sizes(b)
    if left == right:
        return
    whole = np.broadcast_shapes(left, right)
    if left != whole:
        a = _tiled(site, a, left, whole)
    core = tuple(n for i, n in enumerate(right) if n != 1 or i >= len(right))
    if right and not core:
        b, right = reshape(site, b, [1]), (1,)
    axis = _placed(right, whole)
    if axis is None:
        b = _tiled(site, b, right, whole)
        site.become(inputs=[a, b])
        return
    start, stop, first = axis
    if (start, stop) != (0, len(right)):
        b = squeeze(site, b, [i for i in range(len(right)) if not start <= i < stop])
    site.become(inputs=[a, b], attributes=site.attributes(broadcast=1, axis=first))


def _placed(small: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the range of non-unit axes of ``small`` and its first axis in ``whole``; None with gaps."""
    wide = [i for i, n in enumerate(small) if n != 1]
    offset = len(whole) - len(small)
    if not wide:
        return (0, len(small), 0)
    start, stop = wide[0], wide[-1] + 1
    if small[start:stop] != whole[offset + start : offset + stop]:
        return None
    return start, stop, offset + start


def _tiled(site: Site, x: ir.Value, shape: tuple[int, ...], whole: tuple[int, ...]) -> ir.Value:
    """Tile ``x`` to the full shape."""
    full = (1,) * (len(whole) - len(shape)) + shape
    value = reshape(site, x, list(full)) if full != shape else x
    repeats = [1 if new == now else new // now for new, now in zip(whole, full, strict=True)]
    return site.emit("Tile", value, site.constant(repeats))


@down("Max", "Min", "Sum", "Mean", version=8)
def operands_of_one_shape(site: Site) -> None:
    """Add operands of different shapes pair by pair, or tile all to the common shape."""
    values = [site.required(i) for i in range(len(site.inputs))]
    if len(values) == 1:
        return
    if site.node.op_type in ("Sum", "Mean") and any(site.static_shape(v) is None for v in values):
        total = values[0]
        for value in values[1:]:
            total = site.emit("Add", total, value)
        if site.node.op_type == "Mean":
            total = site.emit("Div", total, site.scalar(len(values), total))
        site.replace(total)
        return
    shapes = [site.sizes(value) for value in values]
    whole = np.broadcast_shapes(*shapes)
    if all(shape == whole for shape in shapes):
        return
    site.become(inputs=[v if s == whole else _tiled(site, v, s, whole) for v, s in zip(values, shapes, strict=True)])


@up("PRelu", version=7)
def slope_of_channels(site: Site) -> None:
    """Append axes of size one to a slope per channel."""
    x, slope = site.required(0), site.required(1)
    if site.static_shape(slope) != (1,) and site.rank(slope) == 1 and site.rank(x) > 2:
        slope = unsqueeze(site, slope, list(range(1, site.rank(x) - 1)))
        site.become(inputs=[x, slope])


@down("PRelu", version=7)
def slope_as_vector(site: Site) -> None:
    """Reduce a slope to one number, or one per channel."""
    x, slope = site.required(0), site.required(1)
    sizes = site.sizes(slope)
    rank = site.rank(x)
    full = (1,) * (rank - len(sizes)) + sizes
    if any(n != 1 for i, n in enumerate(full) if i != 1):
        site.refuse("its slope varies along other axes than the channel axis")
    count = full[1] if rank > 1 else 1
    site.become(inputs=[x, slope if sizes == (count,) else reshape(site, slope, [count])])
