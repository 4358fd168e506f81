"""Algorithms on directed graphs, without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def strongly_connected(needs: Sequence[Iterable[int]]) -> list[list[int]]:
    """The strongly connected parts of a graph given as successor lists (Tarjan 1972, with its own stack).

    Args:
        needs: The successors of each vertex.

    Returns:
        The parts, each a list of vertices.
    """
    index = [-1] * len(needs)
    low = [0] * len(needs)
    on_stack = [False] * len(needs)
    stack: list[int] = []
    parts: list[list[int]] = []
    counter = 0
    for root in range(len(needs)):
        if index[root] >= 0:
            continue
        calls: list[tuple[int, Iterator[int]]] = []
        vertex = root
        while True:
            if index[vertex] < 0:
                index[vertex] = low[vertex] = counter
                counter += 1
                stack.append(vertex)
                on_stack[vertex] = True
                calls.append((vertex, iter(needs[vertex])))
            vertex, successors = calls[-1]
            following = next(successors, None)
            if following is not None:
                if index[following] < 0:
                    vertex = following
                elif on_stack[following]:
                    low[vertex] = min(low[vertex], index[following])
                continue
            calls.pop()
            if low[vertex] == index[vertex]:
                part = []
                while True:
                    member = stack.pop()
                    on_stack[member] = False
                    part.append(member)
                    if member == vertex:
                        break
                parts.append(part)
            if not calls:
                break
            low[calls[-1][0]] = min(low[calls[-1][0]], low[vertex])
            vertex = calls[-1][0]
    return parts


def longest_chain(order: Sequence[int], needs: Sequence[Iterable[int]]) -> list[int]:
    """For each vertex of a graph without circles the number of vertices on the longest path from it.

    Args:
        order: The vertices, successors before predecessors.
        needs: The successors of each vertex.

    Returns:
        The lengths, by vertex.
    """
    length = [1] * len(needs)
    for vertex in order:
        length[vertex] = 1 + max((length[successor] for successor in needs[vertex]), default=0)
    return length
