"""Canonical forms of groups: groups of one form have equal kernels over other buffers.

The canonical form of a group is the graph that its kernels compute, with all facts on which emission depends: types,
parameters, layouts, values in memory, schedules chosen by fusion, the elements of integer constants and those of
constants of equal elements, and in groups that quantize the magnitude classes of other constants. Values are numbered
in the order of a walk from the group's roots, so that the values of two groups of one form correspond. Elements of
other constants are not part of the form: only :class:`.Prepared` may read them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.analysis.magnitudes import magnitude_class, quantizes
from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Dim
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType

_FEW_ELEMENTS = 64
"""Largest number of elements of an integer constant whose elements are part of a form."""


class CanonicalForm(NamedTuple):
    """The canonical form of a group.

    Attributes:
        key: Equal for groups whose kernels differ in the buffers alone.
        values: The values of the group and its operands, in the order of the walk.
    """

    key: Hashable
    values: tuple[Value, ...]


class _Other(Exception):
    """A parameter or constant on which emission may depend in unknown ways."""


def canonical_form(context: FunctionContext, group: Group) -> CanonicalForm | None:
    """Return the canonical form of a group; None if emission depends on more than a form holds."""
    numbers: dict[Value, int] = {}
    entries: list[Hashable] = []
    limited = quantizes(group.members)
    ends = [*group.roots, *([] if group.anchor is None else [group.anchor])]
    waiting = [*reversed(ends), *([] if context.iteration is None else [context.iteration])]
    try:
        while waiting:
            value = waiting[-1]
            is_read = value not in group.members and context.in_memory(value)
            operands = () if is_read else value.operands
            missing = [operand for operand in operands if operand not in numbers]
            if missing and value not in numbers:
                waiting.extend(reversed(missing))
                continue
            waiting.pop()
            if value not in numbers:
                numbers[value] = len(numbers)
                operation = (
                    value.op,
                    value.type,
                    _parameters(value, is_read, limited),
                    tuple(numbers[x] for x in operands),
                )
                entries.append((operation, value in group.members, *_facts(context, value)))
    except _Other:
        return None
    constants = tuple(value for value in numbers if value.is_constant)
    # Emission may read indices and integer weights, with the scales and zero points that belong to them.
    same = constants if any(_is_table(value) for value in constants) else ()
    gates = tuple(_gates(context, value, numbers) for value in numbers if value in context.grouping.gate_choices)
    rows = None if group.rows is None else (group.rows.shape, group.rows.axes)
    iteration = None if context.iteration is None else numbers[context.iteration]
    key = (tuple(numbers[value] for value in ends), group.kind, rows, tuple(entries), gates, iteration, same)
    return CanonicalForm(key, tuple(numbers))


def _parameters(value: Value, is_read: bool, limited: bool) -> Hashable:
    """Return the parameters on which emission depends; of a value that is read from memory, only elements."""
    if value.is_constant:
        return _elements(value, limited)
    return None if is_read else tuple((name, _plain(value.params[name])) for name in sorted(value.params))


def _elements(value: Value, limited: bool) -> Hashable:
    array = value.known
    if not isinstance(array, np.ndarray) or array.dtype == object:
        raise _Other
    if is_splat(value):
        return array.ravel()[:1].tobytes()
    if array.dtype.kind == "f" or _is_table(value):
        return magnitude_class(value) if limited else None
    return array.tobytes()


def _is_table(constant: Value) -> bool:
    """Return True for many elements of another type than a floating-point one."""
    array = constant.known
    return array.dtype.kind != "f" and array.size > _FEW_ELEMENTS and not is_splat(constant)


def _plain(part: Any) -> Hashable:
    if isinstance(part, tuple):
        return tuple(map(_plain, part))
    if isinstance(part, float):
        return part.hex()
    if part is None or isinstance(part, (bool, int, str, Dim, DType)):
        return part
    raise _Other


def _facts(context: FunctionContext, value: Value) -> tuple[Hashable, ...]:
    """Return the layout of a value, its copies and extremes, the pattern of which it is the result, and its sharing."""
    copies = frozenset((copy.block, copy.dtype) for copy in context.relaid if copy.source is value)
    convolution = context.grouping.convolutions.get(value)
    pattern: Hashable = value in context.grouping.attentions, value in context.grouping.weight_gradients
    if convolution is not None:
        pattern = (
            convolution.groups, convolution.ends, convolution.margins, convolution.filling, convolution.shift,
            convolution.flips,
        )  # fmt: skip
    extremes = value in context.reduced, context.extremes[value].bytes if value in context.extremes else None
    return context.blocks.get(value, 0), copies, extremes, pattern, value in context.in_place


def _gates(context: FunctionContext, value: Value, numbers: dict[Value, int]) -> Hashable:
    """Return the schedule and the gates of a product with gates."""
    choice, gates = context.grouping.gate_choices[value], context.grouping.gates.get(value)
    parts = None
    if gates is not None:
        parts = (
            gates.units,
            tuple(sorted((numbers.get(part, -1), number) for part, number in gates.parts.items())),
            tuple(numbers.get(result, -1) for result in gates.results),
        )
    return numbers[value], choice.problem, choice.schedule, parts
