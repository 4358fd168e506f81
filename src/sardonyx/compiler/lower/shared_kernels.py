"""Sharing of kernels by canonical form: groups that differ only in their buffers are emitted once.

The canonical form of a group is the graph that its kernels compute, with all facts on which emission depends: types,
parameters, layouts, values in memory, schedules chosen by fusion, the elements of integer constants and those of
constants of equal elements. Values are numbered in the order of a walk from the group's roots, so that the values of
two groups of one form correspond. Elements of other constants are not part of the form: only :class:`.Prepared` may
read them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.lower.launch import Buffer, Count, Launch, Prepared, Read, Relaid, Scratch, Stage
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Dim
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType

_FEW_ELEMENTS = 64
"""Largest number of elements of an integer constant whose elements are part of a form."""


class SharedKernels:
    """The launches of the groups lowered so far, by canonical form."""

    def __init__(self) -> None:
        self._lowered: dict[Hashable, tuple[tuple[Value, ...], list[Launch]]] = {}

    def launches(self, context: FunctionContext, group: Group, lower: Callable[[Group], list[Launch]]) -> list[Launch]:
        """Return the launches of a group: those of an equal group over other buffers, or new ones.

        Args:
            context: The function of the group.
            group: The group.
            lower: Emits the kernels of a group; raises if the group has none.
        """
        form = canonical_form(context, group)
        if form is None:
            return lower(group)
        known = self._lowered.get(form.key)
        if known is None:
            launches = lower(group)
            if _sources(launches) <= {*form.values}:
                self._lowered[form.key] = form.values, launches
            return launches
        values, shared = known
        image = dict(zip(values, form.values, strict=True))
        launches = [_moved(launch, group, image) for launch in shared]
        context.relaid.update(buffer for launch in launches for buffer in launch.buffers if isinstance(buffer, Relaid))
        return launches


def _sources(launches: Iterable[Launch]) -> set[Value]:
    """Return all values to which launches refer."""
    values: set[Value] = set()
    for launch in launches:
        values.update((launch.writes, *launch.other_writes))
        for buffer in launch.buffers:
            if isinstance(buffer, Value):
                values.add(buffer)
            elif isinstance(buffer, (Prepared, Relaid, Stage, Count)):
                values.add(buffer.source)
    return values


def _moved(launch: Launch, group: Group, image: dict[Value, Value]) -> Launch:
    """Return a launch for another group of the same form."""
    return replace(
        launch,
        buffers=tuple(_moved_buffer(buffer, image) for buffer in launch.buffers),
        writes=image[launch.writes],
        other_writes=tuple(image[value] for value in launch.other_writes),
        group=group,
    )


def _moved_buffer(buffer: Buffer, image: dict[Value, Value]) -> Buffer:
    match buffer:
        case Value():
            return image[buffer]
        case Prepared(source, form, make, moves):

            def moved(read: Read) -> np.ndarray:
                return make(lambda value: read(image[value]))

            return Prepared(image[source], form, moved, moves)
        case Relaid() | Stage() | Count():
            return replace(buffer, source=image[buffer.source])
        case Scratch() | str():
            return buffer


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
                operation = (value.op, value.type, _parameters(value, is_read), tuple(numbers[x] for x in operands))
                entries.append((operation, value in group.members, *_facts(context, value)))
    except _Other:
        return None
    constants = tuple(value for value in numbers if value.is_constant)
    # Emission may read indices and integer weights, with the scales and zero points that belong to them.
    same = constants if any(_is_table(value) for value in constants) else ()
    gates = tuple(_gates(context, value, numbers) for value in numbers if value in context.grouping.gate_choices)
    rows = None if group.rows is None else (group.rows.shape, group.rows.axes)
    key = (tuple(numbers[value] for value in ends), group.kind, rows, tuple(entries), gates, same)
    return CanonicalForm(key, tuple(numbers))


def _parameters(value: Value, is_read: bool) -> Hashable:
    """Return the parameters on which emission depends; of a value that is read from memory, only elements."""
    if value.is_constant:
        return _elements(value)
    return None if is_read else tuple((name, _plain(value.params[name])) for name in sorted(value.params))


def _elements(value: Value) -> Hashable:
    array = value.known
    if not isinstance(array, np.ndarray) or array.dtype == object:
        raise _Other
    if is_splat(value):
        return array.ravel()[:1].tobytes()
    return None if array.dtype.kind == "f" or _is_table(value) else array.tobytes()


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
    """Return the layout of a value, its copies in memory, the pattern of which it is the result, and its sharing."""
    copies = frozenset((copy.block, copy.dtype) for copy in context.relaid if copy.source is value)
    convolution = context.grouping.convolutions.get(value)
    pattern: Hashable = value in context.grouping.attentions
    if convolution is not None:
        pattern = convolution.groups, convolution.ends, convolution.margins, convolution.filling
    return context.blocks.get(value, 0), copies, pattern, value in context.in_place


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
