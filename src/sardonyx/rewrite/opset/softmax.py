"""Softmax, LogSoftmax and Hardmax: over a flattened matrix before set 13, along one axis since then."""

from __future__ import annotations

from sardonyx.rewrite.opset.shaping import reshape_like
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down, up


def _rest_is_one(site: Site, axis: int, rank: int) -> bool:
    shape = site.required(0).shape
    return shape is not None and all(shape[i] == 1 for i in range(axis + 1, rank))


@up("Softmax", "LogSoftmax", "Hardmax", version=13)
def along_one_axis(site: Site) -> None:
    """Keep the axis if the definitions agree, else flatten the input to the matrix."""
    x = site.required(0)
    axis = site.integer("axis", 1)
    if x.shape is not None:
        rank = len(x.shape)
        axis = axis + rank if axis < 0 else axis
        if _rest_is_one(site, axis, rank):
            site.become(attributes=site.attributes(axis=axis - rank if axis == rank - 1 else axis))
            return
    elif axis == -1:
        site.become(attributes=site.attributes(axis=-1))
        return
    rows = site.emit("Flatten", x, axis=axis)
    site.replace(reshape_like(site, site.emit(site.node.op_type, rows, axis=-1), x))


@down("Softmax", "LogSoftmax", "Hardmax", version=13)
def of_a_matrix(site: Site) -> None:
    """Move the axis to the end, where both definitions agree."""
    x = site.required(0)
    axis = site.integer("axis", -1)
    if x.shape is None and axis == -1:
        site.become(attributes=site.attributes(axis=-1))
        return
    rank = site.rank(x)
    axis = axis + rank if axis < 0 else axis
    if _rest_is_one(site, axis, rank):
        site.become(attributes=site.attributes(axis=axis))
        return
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    moved = site.emit("Transpose", x, perm=order)
    site.replace(site.emit("Transpose", site.emit(site.node.op_type, moved, axis=rank - 1), perm=order))
