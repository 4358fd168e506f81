"""The topological order of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.ir.graph import Value, dependencies


def sort_groups(
    order: Sequence[Value], groups: Mapping[Value, Group], level: int
) -> tuple[list[Group], tuple[Value, ...]]:
    """Return groups, and values, in topological order: all results of a group precede their readers.

    Args:
        order: The values, operands first.
        groups: The groups by member; a value without a group is computed by the interpreter, or is not computed.
        level: The level of the function; see :func:`.dependencies`.
    """
    sorted_groups: list[Group] = []
    values: dict[Value, None] = {}
    position = {value: i for i, value in enumerate(order)}
    begun: set[Group | Value] = set()
    for first in order:
        group = groups.get(first)
        if group is not None and first not in group.roots:
            continue
        stack: list[tuple[Value, bool]] = [(first, False)]
        while stack:
            value, is_ready = stack.pop()
            group = groups.get(value)
            members = [value] if group is None else sorted(group.members | {value}, key=position.__getitem__)
            if is_ready:
                values.update(dict.fromkeys(members))
                sorted_groups += [] if group is None else [group]
            elif (group or value) not in begun:
                begun.add(group or value)
                stack.append((value, True))
                inside = set(members)
                needed = [
                    dependency
                    for member in members
                    for dependency in dependencies(member, level)
                    if dependency not in inside
                ]
                needed.sort(key=position.__getitem__, reverse=True)
                stack += [(dependency, False) for dependency in needed]
    return sorted_groups, tuple(values)
