"""Assignments to slices: a ``scatter`` whose constant indices are a regular grid.

Exporters write ``y[a:b:s, …] = z`` with an index for every element; the written elements are a strided part of ``y``.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir.graph import Value


@dataclass(frozen=True)
class StridedBox:
    """The written elements: along each indexed axis, update ``i`` goes to index ``start + step * i``.

    Attributes:
        starts: First index along each axis.
        steps: Distance between consecutive indices along each axis.
    """

    starts: tuple[int, ...]
    steps: tuple[int, ...]


_boxes: weakref.WeakKeyDictionary[Value, StridedBox | None] = weakref.WeakKeyDictionary()


def written_box(value: Value) -> StridedBox | None:
    """Return the box of elements that a ``scatter`` writes, or None.

    None if the elements are not a box, or if an index is out of range.
    """
    if value not in _boxes:
        _boxes[value] = _find_box(value)
    return _boxes[value]


def _find_box(value: Value) -> StridedBox | None:
    indices = value.operands[1]
    *sizes, depth = shape_of(indices)
    if value.params["kind"] != "set" or value.params["batch"] or len(sizes) != depth or not is_closed(indices):
        return None
    written = evaluate_closed(indices)
    if not written.size:
        return None
    starts, steps = [], []
    for axis, extent in enumerate(shape_of(value)[:depth]):
        coordinates = np.moveaxis(written[..., axis], axis, 0).reshape(written.shape[axis], -1)
        line = coordinates[:, 0].astype(np.int64)
        step = int(line[1] - line[0]) if line.size > 1 else 1
        regular = step > 0 and bool((np.diff(line) == step).all()) and bool((coordinates == line[:, None]).all())
        if not regular or line[0] < 0 or not isinstance(extent, int) or line[-1] >= extent:
            return None
        starts.append(int(line[0]))
        steps.append(step)
    return StridedBox(tuple(starts), tuple(steps))
