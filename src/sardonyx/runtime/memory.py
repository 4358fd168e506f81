"""What a session holds of memory, and where its values lie in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sardonyx.compiler.context import Context
from sardonyx.compiler.program import Program


@dataclass(frozen=True)
class Buffer:
    """A value in the arena, as the last call had it.

    Attributes:
        name: The tensor, or what else it is.
        offset: Where it begins, in bytes.
        bytes: How much it is.
        first: The kernel that writes it, by its number.
        last: The last kernel that reads it.
        shares_with: The buffers that lie in the same memory at other times.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int
    shares_with: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """What a session holds.

    Attributes:
        weights: Bytes of weights as kernels read them; sessions that read the same have them together.
        arena: Bytes of arenas, of which calls at the same time have one each.
        arenas: How many there are.
        peak: Most bytes that the values of one call took, results among them; ``max_memory`` limits these.
        plan: Where values lie, in the largest arena; those of loops' bodies are not told apart.
    """

    weights: int
    arena: int
    arenas: int
    peak: int
    plan: tuple[Buffer, ...]

    def __str__(self) -> str:
        lines = [
            f"weights {self.weights:,} B, {self.arenas} arenas {self.arena:,} B, peak of a call {self.peak:,} B",
            *(
                f"{each.offset:>12,} {each.bytes:>12,} B  kernels {each.first}-{each.last}  {each.name}"
                + (f"  where {', '.join(each.shares_with)} is before or after" if each.shares_with else "")
                for each in self.plan
            ),
        ]
        return "\n".join(lines)


def memory(program: Program | None, peak: int) -> Memory:
    """What a program holds.

    Args:
        program: The program; None where numpy computes.
        peak: Most bytes that the values of one call took on numpy.
    """
    if program is None:
        return Memory(0, 0, 0, peak, ())
    programs = list(_with_loops(program))
    plans = [plan for each in programs for plan in each.plans]
    contexts = [context for plan in plans for context in plan.contexts()]
    weights = {id(array): array.nbytes for each in programs for array in each.weights}
    last = max(contexts, key=lambda each: each.needed, default=None)
    return Memory(
        sum(weights.values()),
        sum(each.capacity for each in contexts),
        sum(1 for each in contexts if each.capacity),
        max([peak, *(plan.peak for plan in plans), *(each.needed for each in contexts)]),
        () if last is None else _plan(last),
    )


def shrink(program: Program) -> None:
    """Let go of arenas that no call uses."""
    for each in _with_loops(program):
        for plan in each.plans:
            plan.free.clear()


def _with_loops(program: Program) -> Iterator[Program]:
    """A program, and those of loops that the interpreter repeats."""
    yield program
    for each in program.loops.values():
        yield from _with_loops(each)


def _plan(context: Context) -> tuple[Buffer, ...]:
    rows = context.placed()
    return tuple(
        Buffer(
            name, offset, size, first, last,
            tuple(dict.fromkeys(
                other for other, at, length, *_ in rows
                if other != name and at < offset + size and offset < at + length
            )),
        )
        for name, offset, size, first, last in rows
    )  # fmt: skip
