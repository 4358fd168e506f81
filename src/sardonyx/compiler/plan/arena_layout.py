"""Layouts of the arena: lifetimes and sizes of the buffers of a segment and of its bodies.

A layout is an area of the arena: the buffers of a segment, or of the body of a loop or choice. The layout of a body is
itself a buffer of the enclosing layout. Offsets are computed in a call, from the sizes
(:mod:`sardonyx.compiler.executor.tape_planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.compiler.executor.size_program import SizeTable
from sardonyx.compiler.lower.launch import Body, Count, Launch, Relaid, Scratch, Stage
from sardonyx.compiler.plan.stored_shapes import bytes_register
from sardonyx.compiler.target.alignment import ALIGNMENT
from sardonyx.core.ir.graph import Value

ITERATION_NUMBER = "number"
"""Key, with the index of a loop's launch, of the buffer for the number of the iteration."""


@dataclass(frozen=True)
class StateBuffer:
    """One of the two buffers of a loop state; iterations read one and write the other, in turns.

    Attributes:
        slot: Index of the state among the carried values.
        half: 0 for the buffer read by even iterations, 1 for the buffer read by odd iterations.
    """

    slot: int
    half: int


@dataclass
class Layout:
    """An area of the arena, for one segment or one body.

    Attributes:
        buffers: Numbers of the buffers in the area.
        bodies: Layouts of bodies, by the index of the launch and the index of the body.
        number: Row of the layout in the plan.
        bytes: Register of the bytes of the area.
    """

    buffers: dict[Hashable, int]
    bodies: dict[tuple[int, int], Layout]
    number: int
    bytes: int

    @property
    def count(self) -> int | None:
        """Buffer of a number of results, or of the iterations of a counting loop; None without."""
        counts = (buffer for key, buffer in self.buffers.items() if key == (0, ITERATION_NUMBER) or _is_count(key))
        return next(counts, None)


@dataclass
class _Lifetime:
    """The register of a buffer's bytes, and the launches between which the buffer is alive."""

    bytes: int
    first: int
    last: int


class ArenaLayouts:
    """The layouts of a plan.

    Args:
        table: Registers of sizes.
        threads: Number of threads that share the work.

    Attributes:
        buffers: For each buffer, the register of its bytes, and its first and last launch.
        titles: Description of each buffer, for reports.
        rows: For each layout, its first buffer, the end of its buffers, the register of its bytes, and its own buffer
            in the enclosing layout.
    """

    def __init__(self, table: SizeTable, threads: int) -> None:
        self._table = table
        self._threads = threads
        self.buffers: list[tuple[int, int, int]] = []
        self.titles: list[str] = []
        self.rows: list[list[int]] = []

    def add(
        self,
        launches: Sequence[Launch],
        blocks: Mapping[Value, int],
        is_external: Callable[[Value], bool],
        results: Sequence[Value],
    ) -> Layout:
        """Add the layout of launches, after the layouts of their bodies.

        Args:
            launches: The launches.
            blocks: Channels per block, of values in blocked layout.
            is_external: True for a value in memory outside of this layout.
            results: Values that are read after the last launch.
        """
        lifetimes: dict[Hashable, _Lifetime] = {}
        bodies: dict[tuple[int, int], Layout] = {}

        def use(buffer: Hashable, bytes_: Callable[[], int], at: int, last: int) -> None:
            if buffer in lifetimes:
                lifetimes[buffer].last = last
            else:
                lifetimes[buffer] = _Lifetime(bytes_(), at, last)

        table = self._table
        for at, (first, end, launch) in enumerate(concurrent_runs(launches)):
            for number, body in enumerate(launch.bodies):
                in_place = results_in_place(launch, body)
                layout = bodies[at, number] = self.add(
                    body.launches,
                    body.blocks,
                    lambda value, in_place=in_place: value.op == "input" or value in in_place,  # type: ignore[misc]
                    body.function.results,
                )
                lifetimes[at, number] = _Lifetime(layout.bytes, first, end)
            if launch.writes.op == "loop":
                lifetimes[at, ITERATION_NUMBER] = _Lifetime(table.register(8), first, end)
                for slot in range(launch.writes.params["carried"]):
                    state = bytes_register(table, launch.writes.operands[2 + slot], {})
                    lifetimes.update({(at, StateBuffer(slot, half)): _Lifetime(state, first, end) for half in (0, 1)})
            for buffer in launch.buffers:
                if isinstance(buffer, Scratch):
                    lifetimes[at, buffer] = _Lifetime(self._scratch(buffer), first, end)
                elif isinstance(buffer, Count):
                    lifetimes[buffer] = _Lifetime(table.register(buffer.bytes), first, len(launches))
                elif isinstance(buffer, (Relaid, Stage)):
                    use(buffer, lambda buffer=buffer: table.register(buffer.bytes), first, end)  # type: ignore[misc]
                elif isinstance(buffer, Value) and not (
                    buffer.is_constant or buffer.op == "dims" or is_external(buffer)
                ):
                    last = len(launches) if buffer in results else end
                    use(buffer, lambda buffer=buffer: bytes_register(table, buffer, blocks), first, last)  # type: ignore[misc]
        return self._append(lifetimes, bodies)

    def _scratch(self, buffer: Scratch) -> int:
        """Return the register of the scratch bytes of all workers."""
        table = self._table
        one = table.round_up(table.sum([table.register(buffer.bytes), table.register(1)]), ALIGNMENT)
        return table.product([one, table.register(self._threads)])

    def _append(self, lifetimes: Mapping[Hashable, _Lifetime], bodies: dict[tuple[int, int], Layout]) -> Layout:
        first = len(self.buffers)
        buffers = {buffer: first + number for number, buffer in enumerate(lifetimes)}
        self.buffers += [(lifetime.bytes, lifetime.first, lifetime.last) for lifetime in lifetimes.values()]
        self.titles += map(_title, lifetimes)
        for key, body in bodies.items():
            self.rows[body.number][3] = buffers[key]
        bytes_ = self._table.reserve()
        self.rows.append([first, len(self.buffers), bytes_, 0])
        return Layout(buffers, bodies, len(self.rows) - 1, bytes_)


def concurrent_runs(launches: Sequence[Launch]) -> Iterator[tuple[int, int, Launch]]:
    """Yield each launch with the first and last index of its run of concurrent launches."""
    first = end = -1
    for at, launch in enumerate(launches):
        if at > end:
            first, end = at, at + launch.concurrent_loops - 1
        yield first, end, launch


def results_in_place(launch: Launch, body: Body) -> dict[Value, int]:
    """Return the results that a body's kernels write directly to their destination, with result index.

    Other results are copied: inputs, constants, and all but the first of several results of the same value.
    """
    skipped = 1 if launch.writes.op == "loop" else 0
    written = body.all_writes
    in_place: dict[Value, int] = {}
    for slot, value in enumerate(body.function.results[skipped:]):
        if value in written:
            in_place.setdefault(value, slot)
    return in_place


def _title(buffer: Hashable) -> str:
    """Describe a buffer for reports."""
    match buffer:
        case Value():
            return buffer.origin or buffer.op
        case Relaid() | Stage():
            return f"{buffer.source.origin or buffer.source.op}, in another form"
        case Count():
            return "number of results"
        case (int(at), Scratch()):
            return f"scratch of kernel {at}"
        case (int(at), StateBuffer(slot, half)):
            return f"state {slot} of kernel {at}, {('even', 'odd')[half]} iterations"
        case (int(at), int(number)):
            return f"body {number} of kernel {at}"
        case (int(at), _):
            return f"iteration number of kernel {at}"
    return str(buffer)


def _is_count(buffer: Hashable) -> bool:
    return isinstance(buffer, Count)
