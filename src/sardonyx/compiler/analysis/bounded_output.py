"""Host functions with kernels: data-dependent numbers of results, up to a known maximum.

A kernel writes its results contiguously into memory for the maximum, and their number into a :class:`.Count`, from
which the size of the result is read.
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
        limit: Maximum number of selected boxes of a category; None for 0.
        overlap: Overlap (intersection over union) above which a box suppresses another; None for 0.
        threshold: Lower bound of the score of a selected box; None for no bound.
    """

    boxes: Value
    scores: Value
    limit: Value | None
    overlap: Value | None
    threshold: Value | None


def suppression_operands(value: Value) -> Suppression:
    """Return the operands of a ``host`` of ``NonMaxSuppression``, with None for absent operands."""
    remaining = iter(value.operands)
    present: tuple[bool, ...] = value.params["function"].present
    operands = [next(remaining) if is_present else None for is_present in present]
    boxes, scores, limit, overlap, threshold = operands + [None] * (5 - len(operands))
    assert boxes is not None and scores is not None
    return Suppression(boxes, scores, limit, overlap, threshold)


def most_per_category(value: Value) -> Size:
    """Return the maximum number of boxes that a ``NonMaxSuppression`` selects for a category of an image."""
    operands = suppression_operands(value)
    boxes = shape_of(operands.boxes)[1]
    if operands.limit is None:
        return 0
    return dim_min(boxes, max(int(operands.limit.known.item()), 0)) if operands.limit.is_constant else boxes


def _accepts_suppression(value: Value) -> bool:
    operands = suppression_operands(value)
    floats = (operands.boxes, operands.scores, operands.overlap, operands.threshold)
    return all(_dtype(operand) == t.FLOAT for operand in floats if operand is not None)


def _most_selected(value: Value) -> Size:
    images, categories, _ = shape_of(suppression_operands(value).scores)
    return images * categories * most_per_category(value)


def _accepts_non_zero(value: Value) -> bool:
    (source,) = value.operands
    return _dtype(source) in DTYPES and len(shape_of(source)) > 0


def _dtype(value: Value) -> t.DType | None:
    return value.type.dtype if isinstance(value.type, TensorType) else None


class _HostKernel(NamedTuple):
    accepts: Callable[[Value], bool]
    most: Callable[[Value], Size]


_HOST_KERNELS = {
    "NonMaxSuppression": _HostKernel(_accepts_suppression, _most_selected),
    "NonZero": _HostKernel(_accepts_non_zero, lambda value: math.prod(shape_of(value.operands[0]))),
}


def has_kernel(value: Value) -> bool:
    """Return True if a ``host`` is computed by a kernel."""
    if value.op != "host":
        return False
    function = value.params["function"]
    # Only operator definitions record which inputs are present; a function of the user may have any name.
    is_operator = function.domain == "" and function.present is not None
    return is_operator and function.name in _HOST_KERNELS and _HOST_KERNELS[function.name].accepts(value)


def most_results(value: Value) -> Size:
    """Return the maximum number of results of a ``host`` that has a kernel."""
    return _HOST_KERNELS[value.params["function"].name].most(value)
