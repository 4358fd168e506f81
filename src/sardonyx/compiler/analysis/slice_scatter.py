"""Assignments to slices: a ``scatter`` whose indices, known when a program is made, are a regular grid.

``y[a:b:s, …] = z`` is exported with an index for every element; what it writes is a part of ``y``, evenly apart.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.constant_values import computed, is_closed
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir.graph import Value


@dataclass(frozen=True)
class Box:
    """Which elements are written: along each axis that is indexed, ``start + step * i`` for the ``i``-th update.

    Attributes:
        starts: The first ones.
        steps: From one to the next.
    """

    starts: tuple[int, ...]
    steps: tuple[int, ...]


_boxes: weakref.WeakKeyDictionary[Value, Box | None] = weakref.WeakKeyDictionary()


def box(value: Value) -> Box | None:
    """What a ``scatter`` writes, where that is a box; None otherwise, or where indices are out of range."""
    if value not in _boxes:
        _boxes[value] = _found(value)
    return _boxes[value]


def _found(value: Value) -> Box | None:
    indices = value.operands[1]
    *sizes, depth = shape_of(indices)
    if value.params["kind"] != "set" or value.params["batch"] or len(sizes) != depth or not is_closed(indices):
        return None
    places = computed(indices)
    if not places.size:
        return None
    starts, steps = [], []
    for axis, extent in enumerate(shape_of(value)[:depth]):
        along = np.moveaxis(places[..., axis], axis, 0).reshape(places.shape[axis], -1)
        line = along[:, 0].astype(np.int64)
        step = int(line[1] - line[0]) if line.size > 1 else 1
        regular = step > 0 and bool((np.diff(line) == step).all()) and bool((along == line[:, None]).all())
        if not regular or line[0] < 0 or not isinstance(extent, int) or line[-1] >= extent:
            return None
        starts.append(int(line[0]))
        steps.append(step)
    return Box(tuple(starts), tuple(steps))
