"""Loops side by side: such as do the same, with other numbers, are played at the same time, by a thread each.

The two directions of a recurrent layer are such loops. A thread that has all of one shares no step of it: nothing is
forked and joined, what a step leaves stays in the caches of its core, and so do the weights of one direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.lower.launch import Body, Buffer, Launch, Prepared, Scratch, every
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Value
from sardonyx.core.transform.cost import nbytes


def order_concurrent_loops(launches: Sequence[Launch], target: Target, threads: int) -> list[Launch]:
    """Reorder launches so that identical loops are adjacent, and store the length of each run in its first launch.

    Args:
        launches: The launches, in order.
        target: What they are for.
        threads: How many threads share the work.
    """
    found, at = list(launches), 0
    while at < len(found):
        count = 1
        if threads > 1 and _is_loop(found[at]) and _fits(found[at], target):
            at, count = _gathered(found, at)
            if not all(map(_is_small, found[at].bodies)):
                # Where steps are worth sharing, no thread may be without a loop.
                count -= count % threads
        found[at].beside = max(count, 1)
        at += found[at].beside
    return found


def _gathered(launches: list[Launch], at: int) -> tuple[int, int]:
    """Bring the loops together that are like the one at a place; returns where they are then, and how many.

    What stands between them goes before them, or behind them where it waits for one.
    """
    group, before, after = [launches[at]], list[Launch](), list[Launch]()
    held = _Held(launches[at])
    first, count = at, 1
    for behind, other in enumerate(launches[at + 1 :], at + 1):
        if held.touches(other):
            after.append(other)
            held.take(other)
        elif _is_like(group[0], other):
            group.append(other)
            held.take(other)
            launches[at : behind + 1] = [*before, *group, *after]
            first, count = at + len(before), len(group)
        else:
            before.append(other)
    return first, count


def _is_loop(launch: Launch) -> bool:
    """Whether a launch is a loop of which the count tells how many iterations there are."""
    return launch.writes.op == "loop" and all(body.function.results[0].is_constant for body in launch.bodies)


def _fits(loop: Launch, target: Target) -> bool:
    """Whether a core keeps what a step reads of weights: where two have half of it each, more is kept."""
    weights = {buffer.source for each in every([loop]) for buffer in each.buffers if isinstance(buffer, Prepared)}
    found = sum(nbytes(weight.type) for weight in weights)
    return isinstance(found, int) and 4 * found <= 3 * target.l2


def _is_like(a: Launch, b: Launch) -> bool:
    """Whether two loops do the same as often."""
    if not (_is_loop(a) and _is_loop(b)):
        return False
    counts = a.writes.operands[0], b.writes.operands[0]
    same = counts[0] is counts[1] or _told(counts[0]) == _told(counts[1]) is not None
    return same and all(map(_does_the_same, a.bodies, b.bodies))


def _told(count: Value) -> object:
    """What tells the same number wherever it stands; None of what only itself is."""
    if count.is_constant:
        return int(count.known)
    return count.params["sizes"] if count.op == "dims" else None


def _does_the_same(a: Body, b: Body) -> bool:
    return len(a.launches) == len(b.launches) and all(
        (x.text, x.items, x.sizes, len(x.bodies)) == (y.text, y.items, y.sizes, len(y.bodies))
        and all(map(_does_the_same, x.bodies, y.bodies))
        for x, y in zip(a.launches, b.launches, strict=True)
    )


def _is_small(body: Body) -> bool:
    """Whether no kernel of a body is worth sharing among threads."""
    return all(all(map(_is_small, each.bodies)) and (each.items == 1 or each.worth in (0, 1)) for each in body.launches)


class _Held:
    """Memory that launches read and write.

    Args:
        launch: The first of them.
    """

    def __init__(self, launch: Launch) -> None:
        self._memory = _memory(launch)
        self._made = set(launch.makes)

    def take(self, launch: Launch) -> None:
        """Add a launch."""
        self._memory |= _memory(launch)
        self._made.update(launch.makes)

    def touches(self, launch: Launch) -> bool:
        """Whether a launch reads or writes what one of them writes, or writes what one reads."""
        # What is no value is there for a kernel to leave and another to take.
        return any(
            not isinstance(buffer, Value) or buffer in self._made or buffer in launch.makes
            for buffer in _memory(launch) & self._memory
        )


def _memory(launch: Launch) -> set[Buffer]:
    return {buffer for buffer in launch.buffers if not isinstance(buffer, (Prepared, Scratch, str))}
