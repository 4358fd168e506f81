"""Results that may be written over an input of the function: the new state over the old one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, dtype_of
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.compiler.lower.launch import FAULT, Launch
from sardonyx.core.ir.graph import Value

_IN_ORDER = frozenset({"reshape", "broadcast", "stop_gradient"})
"""Movements that leave the order of elements, or repeat them."""


def overwritable(launches: Sequence[Launch], pairs: Iterable[tuple[Value, Value]], in_place: Set[Value]) -> list[bool]:
    """Return for each input and result whether both may be in the same memory.

    The kernel of the result must be a map that reads the input at the indices that it writes alone, and the last one
    that reads the input. The map must compute each position once, and read all operands of a position before it writes
    a result (:func:`.maps.lower_map`). A call that may fail or end early, after a kernel has written, must leave its
    inputs: none of its results may be in the memory of an input.

    Args:
        launches: The kernels of the only native call of a program, in order.
        pairs: An input and a result each.
        in_place: Inputs and results that were stated when the kernels were emitted.
    """
    pairs = list(pairs)
    if any(launch.bodies or FAULT in launch.buffers for launch in launches):
        return [False] * len(pairs)
    reads: dict[Value, list[int]] = {}
    writes: dict[Value, list[int]] = {}
    for i, launch in enumerate(launches):
        for buffer in launch.buffers:
            source = buffer if isinstance(buffer, Value) else getattr(buffer, "source", None)
            if source is not None:
                reads.setdefault(source, []).append(i)
        for value in launch.all_writes:
            writes.setdefault(value, []).append(i)
    answers = []
    for old, new in pairs:
        (writer, *others) = writes.get(new, [-1])
        last = max(reads.get(old, [-1]))
        is_last = writer >= 0 and not others and last <= writer
        answers.append(is_last and {old, new} <= in_place and _maps(launches[writer], old))
    return answers


def _maps(launch: Launch, old: Value) -> bool:
    """Return True if a kernel is a map of tensors of one shape that reads an input at the indices that it writes."""
    group = launch.group
    if group.kind != "map":
        return False
    if any(shape_of(value) != shape_of(old) or dtype_of(value) != dtype_of(old) for value in launch.all_writes):
        return False
    pending, seen = list(group.roots), set(group.roots)
    while pending:
        value = pending.pop()
        if value is old or (value not in group.members and value.op not in MOVEMENTS):
            continue
        if all(size == 1 for size in shape_of(value)) and not _depends(value, old):
            continue  # One element, as a rate in a vector of numbers, has no order.
        if value.op not in ELEMENTWISE and (value.op not in _IN_ORDER or _depends(value, old)):
            return False  # A kernel that reads in another order may pass over its results one after the other.
        for operand in value.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return True


def _depends(value: Value, old: Value) -> bool:
    """Return True if an input is among the operands of a value, or of its operands, and so on."""
    pending, seen = [value], {value}
    while pending:
        for operand in pending.pop().operands:
            if operand is old:
                return True
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return False
