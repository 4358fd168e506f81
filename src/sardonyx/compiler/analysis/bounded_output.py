"""Host functions that have kernels: those whose results are so many as the data say, up to a number known before.

A kernel writes its results one behind the other into memory for the most there can be, and how many there are into a
:class:`.Count`, from which the size of the result is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from sardonyx.compiler.analysis.element_types import DTYPES
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Size, dim_min
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType


class Suppression(NamedTuple):
    """The operands of a ``NonMaxSuppression``.

    Attributes:
        boxes: ``[images, boxes, 4]``.
        scores: ``[images, categories, boxes]``.
        limit: Most boxes of a category; None for 0.
        overlap: From which share on a box takes away another; None for 0.
        threshold: What scores have to be above; None for nothing.
    """

    boxes: Value
    scores: Value
    limit: Value | None
    overlap: Value | None
    threshold: Value | None


def suppression(value: Value) -> Suppression:
    """The operands of a ``host`` of ``NonMaxSuppression``, with None for those left out."""
    given = iter(value.operands)
    present: tuple[bool, ...] = value.params["function"].present
    operands = [next(given) if there else None for there in present]
    boxes, scores, limit, overlap, threshold = operands + [None] * (5 - len(operands))
    assert boxes is not None and scores is not None
    return Suppression(boxes, scores, limit, overlap, threshold)


def chosen_of_category(value: Value) -> Size:
    """Most boxes that a ``NonMaxSuppression`` gives of a category of an image."""
    found = suppression(value)
    boxes = shape_of(found.boxes)[1]
    if found.limit is None:
        return 0
    return dim_min(boxes, max(int(found.limit.known.item()), 0)) if found.limit.is_constant else boxes


def _suppresses(value: Value) -> bool:
    operands = suppression(value)
    floats = (operands.boxes, operands.scores, operands.overlap, operands.threshold)
    return all(_dtype(each) == t.FLOAT for each in floats if each is not None)


def _most_chosen(value: Value) -> Size:
    images, categories, _ = shape_of(suppression(value).scores)
    return images * categories * chosen_of_category(value)


def _is_known_array(value: Value) -> bool:
    (source,) = value.operands
    return _dtype(source) in DTYPES and len(shape_of(source)) > 0


def _dtype(value: Value) -> t.DType | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None


class _Known(NamedTuple):
    takes: Callable[[Value], bool]
    most: Callable[[Value], Size]


_KNOWN = {
    "NonMaxSuppression": _Known(_suppresses, _most_chosen),
    "NonZero": _Known(_is_known_array, lambda value: math.prod(shape_of(value.operands[0]))),
}


def has_kernel(value: Value) -> bool:
    """Whether a ``host`` is computed by a kernel."""
    if value.op != "host":
        return False
    function = value.params["function"]
    # Definitions of operators say which inputs they are given; a function of somebody's own may have any name.
    is_operator = function.domain == "" and function.present is not None
    return is_operator and function.name in _KNOWN and _KNOWN[function.name].takes(value)


def most_results(value: Value) -> Size:
    """How many results a ``host`` with a kernel gives at most."""
    return _KNOWN[value.params["function"].name].most(value)
