"""Sharing of kernels by canonical form: groups that differ only in their buffers are emitted once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

import numpy as np

from sardonyx.compiler.lower.canonical_form import canonical_form
from sardonyx.compiler.lower.context import FunctionContext
from sardonyx.compiler.lower.kernel_store import KernelStore
from sardonyx.compiler.lower.launch import Buffer, Count, Launch, Prepared, Read, Relaid, Scratch, Stage
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.ir.graph import Value


class SharedKernels:
    """The launches of the groups lowered so far, by canonical form.

    Args:
        stored: The kernels of other compilations; None to emit all kernels.
    """

    def __init__(self, stored: KernelStore | None = None) -> None:
        self._stored = stored
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
            launches = lower(group)
            context.keep(launches)
            return launches
        known = self._lowered.get(form.key)
        if known is None:
            launches = lower(group) if self._stored is None else self._stored.launches(form, group, lower)
            if _sources(launches) <= {*form.values}:
                self._lowered[form.key] = form.values, launches
        else:
            values, shared = known
            image = dict(zip(values, form.values, strict=True))
            launches = [_moved(launch, group, image) for launch in shared]
        context.keep(launches)
        return launches

    def keep(self) -> None:
        """Put the kernels that were emitted into the store, after their compilation."""
        if self._stored is not None:
            self._stored.keep()


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
        case Prepared(source, _, make):

            def moved(read: Read) -> np.ndarray:
                return make(lambda value: read(image[value]))

            return replace(buffer, source=image[source], make=moved)
        case Relaid() | Stage() | Count():
            return replace(buffer, source=image[buffer.source])
        case Scratch() | str():
            return buffer
