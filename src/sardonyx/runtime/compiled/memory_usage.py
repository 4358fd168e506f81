"""Memory usage of a session: weights, arenas, and the offsets of values."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sardonyx.compiler.call.call_context import Context, Placed
from sardonyx.compiler.executor.arena import BLOCKS
from sardonyx.compiler.plan.segments import Segment
from sardonyx.compiler.program import Program


@dataclass(frozen=True)
class Buffer:
    """A value in an arena, in the last call.

    Attributes:
        name: The name of the tensor, or a title.
        offset: The offset in the arena, in bytes.
        bytes: The size in bytes.
        first: The index of the kernel that writes the buffer, among the kernels of the arena.
        last: The index of the last kernel that reads the buffer; the number of kernels if the buffer outlives all.
        shares_with: The buffers at the same offsets at other times.
        inside: The buffer that contains this one, for a value of a loop body or branch, whose kernels are the kernels
            of the body. Empty otherwise.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int
    shares_with: tuple[str, ...]
    inside: str = ""


@dataclass(frozen=True)
class Arena:
    """The memory layout of the kernels of one native call, in the last call.

    Attributes:
        where: The kernels, for a session with several native calls; empty otherwise.
        bytes: The size in bytes.
        kernels: The titles of the kernels, in order.
        buffers: The buffers.
    """

    where: str
    bytes: int
    kernels: tuple[str, ...]
    buffers: tuple[Buffer, ...]

    @property
    def alive(self) -> list[int]:
        """Bytes of live values at each kernel."""
        own = [buffer for buffer in self.buffers if not buffer.inside]
        return [sum(b.bytes for b in own if b.first <= k <= b.last) for k in range(len(self.kernels))]

    @property
    def busiest(self) -> int:
        """The index of the kernel with the most live bytes."""
        alive = self.alive
        return max(range(len(alive)), key=alive.__getitem__, default=0)


@dataclass(frozen=True)
class Memory:
    """The memory of a session.

    Attributes:
        weights: Bytes of weights as kernels read them; sessions share equal weights.
        arena: Bytes of arenas; concurrent calls have one each.
        arenas: Number of arenas.
        shared: Bytes of arenas that all sessions of the process share.
        peak: Most bytes of live values in a call, including results; ``max_memory`` limits these.
        plans: The memory layout of each native call of a run, in the order of their first use.
        unknown: The providers that use memory of their own, which is not included.
    """

    weights: int
    arena: int
    arenas: int
    shared: int
    peak: int
    plans: tuple[Arena, ...]
    unknown: tuple[str, ...] = ()

    @property
    def plan(self) -> tuple[Buffer, ...]:
        """The buffers of all arenas, including bodies and all native calls."""
        return tuple(buffer for arena in self.plans for buffer in arena.buffers)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        plain = asdict(self)
        for row, arena in zip(plain["plans"], self.plans, strict=True):
            row |= {"alive": arena.alive, "busiest": arena.busiest}
        return plain

    def __str__(self) -> str:
        arenas = "1 arena" if self.arenas == 1 else f"{self.arenas} arenas"
        shared = f" ({self.shared:,} B shared with other sessions)" if self.shared else ""
        lines = [f"weights {self.weights:,} B, {arenas} {self.arena:,} B{shared}, peak of a call {self.peak:,} B"]
        lines += [f"memory of the parts on {name} is not known" for name in self.unknown]
        for arena in self.plans:
            lines += [f"{arena.where}: {arena.bytes:,} B"] if arena.where else []
            lines += map(_line, arena.buffers)
        return "\n".join(lines)


def _line(buffer: Buffer) -> str:
    container = f" in {buffer.inside}" if buffer.inside else ""
    shared = f"  shared with {_some(buffer.shares_with)}" if buffer.shares_with else ""
    kernels = f"kernels {buffer.first}-{buffer.last}"
    return f"{buffer.offset:>12,} {buffer.bytes:>12,} B  {kernels}{container}  {buffer.name}{shared}"


def _some(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    listed = ", ".join(names[:most])
    return f"{listed} and {more} more" if more > 0 else listed


Programs = Sequence[tuple[str, Program, int]]
"""Programs, each with a label, and the most bytes that were alive outside of the program while it ran."""


def memory(programs: Programs, peak: int, unknown: Iterable[str] = ()) -> Memory:
    """Return the memory of programs.

    Args:
        programs: The programs of a session.
        peak: Most bytes of live values in a call, as far as runs counted.
        unknown: Providers of the other partitions.
    """
    every = [body for _, program, _ in programs for body in with_bodies(program)]
    contexts = [context for program in every for plan in program.plans.values() for context in plan.contexts()]
    blocks = {context.block for context in contexts if context.block is not None}
    own = [context.capacity for context in contexts if context.capacity]
    shared = sum(block.capacity for block in blocks)
    weights = {id(array): array.nbytes for program in every for array in program.weights}
    return Memory(
        sum(weights.values()),
        sum(own) + shared,
        len(own) + sum(1 for block in blocks if block.capacity),
        shared,
        max([peak, *(around + _peak(program) for _, program, around in programs)]),
        tuple(arena for where, program, _ in programs for arena in _arenas(program, where)),
        tuple(dict.fromkeys(unknown)),
    )


def shrink(program: Program) -> None:
    """Free arenas that no call uses."""
    for body in with_bodies(program):
        for plan in body.plans.values():
            blocks = {context.block for context in plan.contexts() if context.block is not None}
            plan.free.clear()
            BLOCKS.shrink(blocks, plan.player.seize)


def give_back() -> None:
    """Return free memory of the C library to the system (glibc only); this takes milliseconds.

    By itself, glibc keeps free memory below a used block of each thread's arena: tens of megabytes after compiling.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def with_bodies(program: Program) -> Iterator[Program]:
    """Yield a program, and the programs of the bodies of interpreted control flow."""
    yield program
    for bodies in program.bodies.values():
        for body in bodies:
            yield from with_bodies(body)


def _peak(program: Program) -> int:
    plans = [plan for body in with_bodies(program) for plan in body.plans.values()]
    return max([0, *(plan.peak for plan in plans), *(context.needed for plan in plans for context in plan.contexts())])


def _arenas(program: Program, where: str) -> Iterator[Arena]:
    """Yield the memory layout of each executed segment."""
    segments = {number: step for number, step in enumerate(program.steps) if isinstance(step, Segment)}
    first = 0
    for number, segment in segments.items():
        plan, kernels = program.plans.get(number), len(segment.launches)
        context = None if plan is None else max(plan.contexts(), key=lambda context: context.needed, default=None)
        if context is not None:
            range_text = f"kernels {first}-{first + kernels - 1}" if len(segments) > 1 else ""
            label = ", ".join(part for part in (where, range_text) if part)
            titles = tuple(launch.title for launch in segment.launches)
            yield Arena(label, context.arena, titles, tuple(_buffers(context)))
        first += kernels
    for control, bodies in program.bodies.items():
        for body in bodies:
            label = f"{body.function.name} of {control.origin or control.op}"
            yield from _arenas(body, ", ".join(part for part in (where, label) if part))


def _buffers(context: Context) -> Iterator[Buffer]:
    layouts: dict[str, list[Placed]] = {}
    for buffer in context.placed():
        layouts.setdefault(buffer.inside, []).append(buffer)
    for rows in layouts.values():
        for row in rows:
            others = (buffer.title for buffer in rows if buffer is not row and _overlap(row, buffer))
            yield Buffer(
                row.title, row.offset, row.bytes, row.first, row.last, tuple(dict.fromkeys(others)), row.inside
            )  # fmt: skip


def _overlap(a: Placed, b: Placed) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
