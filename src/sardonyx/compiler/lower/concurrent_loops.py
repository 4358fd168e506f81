"""Concurrent loops: structurally identical loops run at the same time, one per thread.

The two directions of a bidirectional LSTM are such loops. A thread that executes a whole loop neither forks nor joins
in a step; the state of the loop and the weights of one direction stay in the caches of one core.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.lower.launch import Body, Buffer, Launch, Prepared, Scratch, all_launches
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Value
from sardonyx.core.transform.cost import nbytes


def order_concurrent_loops(launches: Sequence[Launch], target: Target, threads: int) -> list[Launch]:
    """Make identical loops adjacent, and store the length of each run in its first launch.

    Args:
        launches: The launches, in order.
        target: The processor.
        threads: Number of threads that share the work.
    """
    ordered, at = list(launches), 0
    while at < len(ordered):
        count = 1
        if threads > 1 and _is_counted_loop(ordered[at]) and _fits_in_cache(ordered[at], target):
            at, count = _gather_identical(ordered, at)
            if not all(map(_is_small, ordered[at].bodies)):
                # Steps are worth sharing: a thread without a loop would be idle.
                count -= count % threads
        ordered[at].concurrent_loops = max(count, 1)
        at += ordered[at].concurrent_loops
    return ordered


def _gather_identical(launches: list[Launch], at: int) -> tuple[int, int]:
    """Make the loops identical to the loop ``at`` adjacent; return the index of the first, and the count.

    Launches between the loops move before the first, or after the last if dependent on one of the loops.
    """
    group, before, after = [launches[at]], list[Launch](), list[Launch]()
    accesses = _Accesses(launches[at])
    first, count = at, 1
    for number, other in enumerate(launches[at + 1 :], at + 1):
        if accesses.conflicts_with(other):
            after.append(other)
            accesses.add(other)
        elif _is_identical(group[0], other):
            group.append(other)
            accesses.add(other)
            launches[at : number + 1] = [*before, *group, *after]
            first, count = at + len(before), len(group)
        else:
            before.append(other)
    return first, count


def _is_counted_loop(launch: Launch) -> bool:
    """Return True if a launch is a loop whose count alone determines the number of iterations."""
    return launch.writes.op == "loop" and all(body.function.results[0].is_constant for body in launch.bodies)


def _fits_in_cache(loop: Launch, target: Target) -> bool:
    """Return True if the weights of a loop stay in the L2 cache of one core.

    Otherwise two threads that share the steps are faster: each reads half of the weights.
    """
    weights = {
        buffer.source for launch in all_launches([loop]) for buffer in launch.buffers if isinstance(buffer, Prepared)
    }
    size = sum(nbytes(weight.type) for weight in weights)
    return isinstance(size, int) and 4 * size <= 3 * target.l2


def _is_identical(a: Launch, b: Launch) -> bool:
    """Return True if two loops have the same kernels and the same number of iterations."""
    if not (_is_counted_loop(a) and _is_counted_loop(b)):
        return False
    counts = a.writes.operands[0], b.writes.operands[0]
    same = counts[0] is counts[1] or _count_key(counts[0]) == _count_key(counts[1]) is not None
    return same and all(map(_has_same_kernels, a.bodies, b.bodies))


def _count_key(count: Value) -> object:
    """Return a key equal for equal counts; None if only the value itself identifies the count."""
    if count.is_constant:
        return int(count.known)
    return count.params["sizes"] if count.op == "dims" else None


def _has_same_kernels(a: Body, b: Body) -> bool:
    return len(a.launches) == len(b.launches) and all(
        (x.text, x.items, x.sizes, len(x.bodies)) == (y.text, y.items, y.sizes, len(y.bodies))
        and all(map(_has_same_kernels, x.bodies, y.bodies))
        for x, y in zip(a.launches, b.launches, strict=True)
    )


def _is_small(body: Body) -> bool:
    """Return True if no kernel of a body is worth sharing among threads."""
    return all(
        all(map(_is_small, launch.bodies)) and (launch.items == 1 or launch.useful_chunks in (0, 1))
        for launch in body.launches
    )


class _Accesses:
    """Memory that launches read and write.

    Args:
        launch: The first launch.
    """

    def __init__(self, launch: Launch) -> None:
        self._memory = _memory(launch)
        self._written = set(launch.all_writes)

    def add(self, launch: Launch) -> None:
        """Add a launch."""
        self._memory |= _memory(launch)
        self._written.update(launch.all_writes)

    def conflicts_with(self, launch: Launch) -> bool:
        """Return True if the launch shares written memory with a recorded launch."""
        # A buffer other than a value, e.g. a stage, exists for one kernel to write and another to read.
        return any(
            not isinstance(buffer, Value) or buffer in self._written or buffer in launch.all_writes
            for buffer in _memory(launch) & self._memory
        )


def _memory(launch: Launch) -> set[Buffer]:
    return {buffer for buffer in launch.buffers if not isinstance(buffer, (Prepared, Scratch, str))}
