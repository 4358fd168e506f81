"""Bounds of values that kernels compute and no memory holds.

A stored value costs memory, which a call limits before its kernels run. The elements of a fused value cost time alone:
a size that is read from a tensor, or written in the model, could keep a kernel busy for years. Beyond a bound the
interpreter computes the call: it stores every value, so that the limits of memory and time apply.
"""

from __future__ import annotations

from collections.abc import Iterator

from sardonyx.compiler.analysis.shape_guards import Equal
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size, dim_min, product, symbols
from sardonyx.core.ir.graph import Value, definer
from sardonyx.core.ir.types import TensorType

MOST_ELEMENTS = 1 << 30
"""Elements of a fused value up to which a kernel computes them: seconds on one thread."""


def bounds_of_unstored(context: FunctionContext) -> list[Equal]:
    """Return pairs of sizes that are equal if no fused value has too many elements; see :mod:`.analysis.shape_guards`.

    Sizes of inputs have no bound here: the work over inputs in memory is the caller's choice. The bound of sizes that
    the model fixes grows with the square of its largest stored value, the number of all pairs of elements.
    """
    fixed = [count for value in context.grouping.order if context.in_memory(value) for count in _fixed_count(value)]
    most = max(MOST_ELEMENTS, max(fixed, default=0) ** 2)
    bounds: list[Equal] = []
    for count in dict.fromkeys(_counts(context)):
        if isinstance(count, int):
            if count > most:
                bounds.append((most, count))
        elif any(_is_read_from_tensor(symbol) for symbol in symbols(count)):
            bounds.append((dim_min(count, MOST_ELEMENTS), count))
    return bounds


def _fixed_count(value: Value) -> Iterator[int]:
    """Yield the number of elements of a tensor whose sizes the model fixes."""
    if _has_shape(value) and isinstance(count := product(shape_of(value)), int):
        yield count


def _has_shape(value: Value) -> bool:
    """Return True for a tensor of known rank; the interpreter also computes others."""
    return isinstance(value.type, TensorType) and value.type.shape is not None


def _is_read_from_tensor(symbol: str) -> bool:
    value = definer(symbol)
    return value is not None and value.op == "bind"


def _counts(context: FunctionContext) -> Iterator[Size]:
    """Yield the numbers of elements of the fused values that kernels iterate over."""
    for group in context.grouping.groups:
        for value in _iterated(group):
            if _has_shape(value) and not context.in_memory(value):
                yield product(shape_of(value))


def _iterated(group: Group) -> Iterator[Value]:
    """Yield the members of a group, and the operands over whose elements reductions and contractions iterate."""
    for value in group.members:
        yield value
        if value is group.anchor or value.op == "reduce":
            yield from value.operands
