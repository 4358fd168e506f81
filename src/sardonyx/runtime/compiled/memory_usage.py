"""What a session holds of memory, and where its values lie in it."""

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
    """A value in an arena, as the last call had it.

    Attributes:
        name: The tensor, or what else it is.
        offset: Where in the arena it begins, in bytes.
        bytes: How much it is.
        first: The kernel that writes it, by its number among those that the arena is for.
        last: The last kernel that reads it; one past the last kernel where it outlives them all.
        shares_with: The buffers that lie in the same memory at other times.
        inside: The buffer that it is a part of, for what the body of a loop or of a choice computes; kernels are then
            those of the body. Empty otherwise.
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
    """Where the values lie of kernels that run in one native call, as the last call had it.

    Attributes:
        where: Which kernels, of a session that has several such calls; empty for the only one.
        bytes: What they need.
        kernels: Their titles, in order.
        buffers: What lies in it.
    """

    where: str
    bytes: int
    kernels: tuple[str, ...]
    buffers: tuple[Buffer, ...]

    @property
    def alive(self) -> list[int]:
        """Bytes of the values that are alive at each kernel."""
        own = [each for each in self.buffers if not each.inside]
        return [sum(b.bytes for b in own if b.first <= k <= b.last) for k in range(len(self.kernels))]

    @property
    def busiest(self) -> int:
        """The kernel at which most bytes are alive."""
        alive = self.alive
        return max(range(len(alive)), key=alive.__getitem__, default=0)


@dataclass(frozen=True)
class Memory:
    """What a session holds.

    Attributes:
        weights: Bytes of weights as kernels read them; sessions that read the same have them together.
        arena: Bytes of arenas, of which calls at the same time have one each.
        arenas: How many there are.
        shared: Bytes of arenas that are the process's: other sessions use the same, at other times.
        peak: Most bytes that the values of one call took, results among them; ``max_memory`` limits these.
        plans: Where values lie, for each native call of a run, in the order in which they were first made.
        unknown: The providers that compute parts in memory of their own, of which nothing is known here.
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
        """What lies in the arenas, those of bodies and of all native calls among them."""
        return tuple(buffer for arena in self.plans for buffer in arena.buffers)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        plain = asdict(self)
        for row, arena in zip(plain["plans"], self.plans, strict=True):
            row |= {"alive": arena.alive, "busiest": arena.busiest}
        return plain

    def __str__(self) -> str:
        arenas = "1 arena" if self.arenas == 1 else f"{self.arenas} arenas"
        shared = f" ({self.shared:,} B shared with other sessions)" if self.shared else ""
        lines = [f"weights {self.weights:,} B, {arenas} {self.arena:,} B{shared}, peak of a call {self.peak:,} B"]
        lines += [f"parts computed by {name} are not known" for name in self.unknown]
        for arena in self.plans:
            lines += [f"{arena.where}: {arena.bytes:,} B"] if arena.where else []
            lines += map(_line, arena.buffers)
        return "\n".join(lines)


def _line(buffer: Buffer) -> str:
    place = f" in {buffer.inside}" if buffer.inside else ""
    shared = f"  where {_some(buffer.shares_with)} before or after" if buffer.shares_with else ""
    kernels = f"kernels {buffer.first}-{buffer.last}"
    return f"{buffer.offset:>12,} {buffer.bytes:>12,} B  {kernels}{place}  {buffer.name}{shared}"


def _some(names: Sequence[str], most: int = 3) -> str:
    """A few of the names."""
    left = len(names) - most
    listed = ", ".join(names[:most])
    return f"{listed} and {left} more are" if left > 0 else f"{listed} {'is' if len(names) == 1 else 'are'}"


Programs = Sequence[tuple[str, Program, int]]
"""Programs, what each computes in words, and the most bytes that were alive around it when it ran."""


def memory(programs: Programs, peak: int, unknown: Iterable[str] = ()) -> Memory:
    """What programs hold.

    Args:
        programs: Those of a session.
        peak: Most bytes that the values of one call took, as far as runs counted.
        unknown: Providers that compute the rest.
    """
    every = [each for _, program, _ in programs for each in with_bodies(program)]
    contexts = [context for each in every for plan in each.plans.values() for context in plan.contexts()]
    blocks = {context.block for context in contexts if context.block is not None}
    own = [context.capacity for context in contexts if context.capacity]
    shared = sum(block.capacity for block in blocks)
    weights = {id(array): array.nbytes for each in every for array in each.weights}
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
    """Let go of arenas that no call uses."""
    for each in with_bodies(program):
        for plan in each.plans.values():
            blocks = {context.block for context in plan.contexts() if context.block is not None}
            plan.free.clear()
            BLOCKS.shrink(blocks, plan.player.seize)


def give_back() -> None:
    """Have the C library give free memory back to the system, where it knows how (glibc); some milliseconds.

    By itself it keeps what lies below a block in use, of each thread's arena: after compiling, tens of megabytes.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def with_bodies(program: Program) -> Iterator[Program]:
    """A program, and those of the bodies of control flow that the interpreter has."""
    yield program
    for bodies in program.bodies.values():
        for each in bodies:
            yield from with_bodies(each)


def _peak(program: Program) -> int:
    plans = [plan for each in with_bodies(program) for plan in each.plans.values()]
    return max([0, *(plan.peak for plan in plans), *(each.needed for plan in plans for each in plan.contexts())])


def _arenas(program: Program, where: str) -> Iterator[Arena]:
    """Where values lie, for each segment that was played."""
    segments = {number: step for number, step in enumerate(program.steps) if isinstance(step, Segment)}
    first = 0
    for number, segment in segments.items():
        plan, kernels = program.plans.get(number), len(segment.launches)
        context = None if plan is None else max(plan.contexts(), key=lambda each: each.needed, default=None)
        if context is not None:
            which = f"kernels {first}-{first + kernels - 1}" if len(segments) > 1 else ""
            told = ", ".join(part for part in (where, which) if part)
            titles = tuple(launch.title for launch in segment.launches)
            yield Arena(told, context.arena, titles, tuple(_buffers(context)))
        first += kernels
    for control, bodies in program.bodies.items():
        for body in bodies:
            told = f"{body.function.name} of {control.origin or control.op}"
            yield from _arenas(body, ", ".join(part for part in (where, told) if part))


def _buffers(context: Context) -> Iterator[Buffer]:
    layouts: dict[str, list[Placed]] = {}
    for each in context.placed():
        layouts.setdefault(each.inside, []).append(each)
    for rows in layouts.values():
        for row in rows:
            others = (each.title for each in rows if each is not row and _overlap(row, each))
            yield Buffer(
                row.title, row.offset, row.bytes, row.first, row.last, tuple(dict.fromkeys(others)), row.inside
            )  # fmt: skip


def _overlap(a: Placed, b: Placed) -> bool:
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
