"""TopK, ArgMax, OneHot, gathers and scatters."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.shaping import reduce, reshape, slice_axis, squeeze, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up

_T = ir.DataType


@up("TopK", version=10)
def count_to_input(site: Site) -> None:
    """Turn ``k`` into an input."""
    site.become(inputs=[site.required(0), site.constant([site.integer("k")])], attributes=site.attributes(drop=["k"]))


@down("TopK", version=10)
def count_to_attribute(site: Site) -> None:
    """Turn a constant ``k`` into an attribute."""
    count = site.constant_integers(1, "K") or [0]
    axis = site.axis("axis", -1, site.rank(site.required(0)))
    site.become(inputs=[site.required(0)], attributes={"axis": axis, "k": count[0]})


@down("TopK", version=11)
def largest_and_sorted(site: Site) -> None:
    """Select the smallest as the largest of the negated; sorted results satisfy ``sorted=0``."""
    x = site.required(0)
    axis = site.axis("axis", -1, site.rank(x))
    dtype = site.dtype(x)
    wide = dtype if dtype in (_T.FLOAT16, _T.FLOAT, _T.DOUBLE) else _T.DOUBLE
    if dtype in (_T.INT64, _T.UINT64):
        site.refuse(f"no type accepted by the target opset holds {dtype.name} exactly")
    value = site.cast(x, wide)
    smallest = not site.integer("largest", 1)
    if smallest:
        value = site.emit("Neg", value)
    values, indices = site.emit_many("TopK", [value, site.required(1)], 2, {"axis": axis})
    if smallest:
        values = site.emit("Neg", values)
    site.replace(site.cast(values, dtype), indices)


@down("ArgMax", "ArgMin", version=12)
def first_of_equals(site: Site) -> None:
    """Select the last of equal extremes as the first of the reversed axis."""
    if not site.integer("select_last_index"):
        site.become(attributes=site.attributes(drop=["select_last_index"]))
        return
    x = site.required(0)
    axis = site.axis("axis", 0, site.rank(x))
    reversed_axis = slice_axis(site, x, axis, -1, np.iinfo(np.int64).min + 1, -1)
    index = site.emit(site.node.op_type, reversed_axis, axis=axis, keepdims=site.integer("keepdims", 1))
    length = slice_axis(site, site.emit("Shape", x), 0, axis, axis + 1)
    last = site.emit("Sub", length, site.constant([1]))
    result = site.emit("Sub", last, index)
    if site.rank(x) == 1 and not site.integer("keepdims", 1):
        result = squeeze(site, result, [0])
    site.replace(result)


def _cannot_be_negative(site: Site, indices: ir.Value) -> bool:
    content = site.known(indices)
    if content is not None:
        return bool((content >= 0).all())
    producer = indices.producer()
    known = {"ArgMax", "ArgMin", "Shape", "Size", "NonZero"}
    return site.dtype(indices).name.startswith("UINT") or (producer is not None and producer.op_type in known)


@up("OneHot", version=11)
def negative_indices_hidden(site: Site) -> None:
    """Move negative indices out of range: before this set, a negative index selected nothing."""
    indices, depth, values = (site.required(i) for i in range(3))
    if _cannot_be_negative(site, indices):
        return
    dtype = site.dtype(indices)
    negative = site.emit("Less", indices, site.scalar(0, indices))
    beyond = reshape(site, site.cast(depth, dtype), [1])
    if site.rank(indices) == 0:
        beyond = squeeze(site, beyond, [0])
    site.become(inputs=[site.emit("Where", negative, beyond, indices), depth, values])


@down("OneHot", version=11)
def negative_indices_counted(site: Site) -> None:
    """Count negative indices from the front."""
    indices, depth, values = (site.required(i) for i in range(3))
    attributes = site.attributes()
    if site.integer("axis", -1) < -1:
        attributes["axis"] = site.axis("axis", -1, site.rank(indices) + 1)
    if not _cannot_be_negative(site, indices):
        count = site.cast(depth, site.dtype(indices))
        if site.rank(depth) == 1 and site.rank(indices) == 0:
            count = squeeze(site, count, [0])
        zero = site.scalar(0, indices)
        counted = site.emit("Add", indices, count)
        counted = site.emit("Where", site.emit("Less", counted, zero), count, counted)
        indices = site.emit("Where", site.emit("Less", indices, zero), counted, indices)
    site.become(inputs=[indices, depth, values], attributes=attributes)


@up("Scatter", version=11)
def scatter_renamed(site: Site) -> None:
    """Rename ``Scatter`` to ``ScatterElements``."""
    site.become(op_type="ScatterElements")


@down("ScatterElements", version=11)
def scatter_by_old_name(site: Site) -> None:
    """Rename ``ScatterElements`` to ``Scatter``."""
    axis = site.integer("axis")
    axis = axis + site.rank(site.required(0)) if axis < 0 else axis
    site.become(op_type="Scatter", attributes={"axis": axis})


@down("ScatterElements", "ScatterND", version=18)
def without_extremes(site: Site) -> None:
    """Refuse reductions by ``max`` and ``min``, which have no equivalent before set 18."""
    reduction = site.text("reduction", "none")
    if reduction in ("max", "min"):
        site.refuse(f"its reduction {reduction!r} exists only from opset 18")


@down("GatherND", version=12)
def without_batch_axes(site: Site) -> None:
    """Turn batch axes into leading indices."""
    batch = site.integer("batch_dims")
    x, indices = site.required(0), site.required(1)
    if not batch:
        site.become(attributes=site.attributes(drop=["batch_dims"]))
        return
    sizes = site.sizes(indices)[:-1]
    site.require_room(len(sizes), *sizes)
    leading = site.constant(np.moveaxis(np.indices(sizes)[:batch], 0, -1).astype(np.int64))
    site.become(inputs=[x, site.emit("Concat", leading, indices, axis=len(sizes))], attributes={})


@down("GatherND", version=11)
def gather_flat(site: Site) -> None:
    """Flatten the leading axes of the data, of known sizes, and each index tuple to one index."""
    x, indices = site.required(0), site.required(1)
    depth = site.size(indices, -1)
    sizes = site.sizes(x)
    numbers = _flat_numbers(site, indices, np.asarray(sizes[:depth]))
    flat = reshape(site, x, [math.prod(sizes[:depth]), *sizes[depth:]])
    site.replace(site.emit("Gather", flat, numbers, axis=0))


@down("GatherElements", version=11)
def gather_elements_flat(site: Site) -> None:
    """Flatten all axes, of known sizes, and compute flat indices of the elements."""
    x, indices = site.required(0), site.required(1)
    sizes, extents = site.sizes(x), site.sizes(indices)
    axis = site.axis("axis", 0, len(sizes))
    strides = [int(np.prod(sizes[i + 1 :])) for i in range(len(sizes))]
    site.require_room(len(extents), *extents)
    grid = np.indices(extents)
    fixed = sum((grid[i] * strides[i] for i in range(len(extents)) if i != axis), start=np.zeros(extents, np.int64))
    counted = _counted_from_front(site, indices, np.asarray(sizes[axis]))
    along = site.emit("Mul", counted, site.constant(np.asarray(strides[axis], np.int64)))
    numbers = site.emit("Add", along, site.constant(fixed.astype(np.int64)))
    site.replace(site.emit("Gather", reshape(site, x, [-1]), numbers, axis=0))


def _counted_from_front(site: Site, indices: ir.Value, sizes: np.ndarray) -> ir.Value:
    indices = site.cast(indices, _T.INT64)
    content = site.known(indices)
    if content is not None:
        return site.constant(np.where(content < 0, content + sizes, content).astype(np.int64))
    negative = site.emit("Less", indices, site.constant(np.asarray(0, np.int64)))
    shifted = site.emit("Add", indices, site.constant(sizes.astype(np.int64)))
    return site.emit("Where", negative, shifted, indices)


@down("ScatterND", version=11)
def scatter_flat(site: Site) -> None:
    """Flatten the leading axes of the data, of known sizes, and each index tuple to one index."""
    x, indices, updates = (site.required(i) for i in range(3))
    sizes, extents = site.sizes(x), site.sizes(indices)
    depth, count = extents[-1], math.prod(extents[:-1])
    rest = math.prod(sizes[depth:])
    numbers = _flat_numbers(site, indices, np.asarray(sizes[:depth]))
    index = site.emit("Expand", reshape(site, numbers, [count, 1]), site.constant([count, rest]))
    flat = [reshape(site, x, [math.prod(sizes[:depth]), rest]), reshape(site, updates, [count, rest])]
    site.replace(reshape(site, site.emit("Scatter", flat[0], index, flat[1], axis=0), list(sizes)))


def _flat_numbers(site: Site, indices: ir.Value, lead: np.ndarray) -> ir.Value:
    """Return the flat index of each index tuple over axes of sizes ``lead``."""
    strides = np.append(np.cumprod(lead[::-1])[::-1][1:], 1)
    terms = site.emit("Mul", _counted_from_front(site, indices, lead), site.constant(strides))
    return reduce(site, "ReduceSum", terms, [site.rank(indices) - 1], keepdims=False)


@down("TensorScatter", version=24)
def cache_update_by_scatter(site: Site) -> None:
    """Scatter each row of the update to its start plus its row index, along an axis of known size."""
    cache, update = site.required(0), site.required(1)
    sizes = site.sizes(update)
    axis = site.axis("axis", -2, len(sizes))
    limit = site.size(cache, axis)
    site.require_room(sizes[axis])
    site.require_room(sizes[0])
    steps = site.constant(np.arange(sizes[axis], dtype=np.int64))
    starts = site.input(2)
    if starts is None:
        starts = site.constant([0] * sizes[0])
    rows = site.emit("Add", unsqueeze(site, starts, [1]), steps)
    if site.text("mode", "linear") == "circular":
        rows = site.emit("Mod", rows, site.constant(np.asarray(limit, np.int64)))
    shape = [1] * len(sizes)
    shape[0], shape[axis] = sizes[0], sizes[axis]
    indices = site.emit("Expand", reshape(site, rows, shape), site.constant(list(sizes)))
    site.replace(site.emit("ScatterElements", cache, indices, update, axis=axis))
