"""Algorithms on directed graphs, without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def strongly_connected(successors: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph (Tarjan 1972, with an explicit stack).

    Args:
        successors: The successors of each vertex.

    Returns:
        The components, each a list of vertices, successors before predecessors.
    """
    index = [-1] * len(successors)
    low = [0] * len(successors)
    on_stack = [False] * len(successors)
    stack: list[int] = []
    parts: list[list[int]] = []
    counter = 0
    for root in range(len(successors)):
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
                calls.append((vertex, iter(successors[vertex])))
            vertex, remaining = calls[-1]
            neighbor = next(remaining, None)
            if neighbor is not None:
                if index[neighbor] < 0:
                    vertex = neighbor
                elif on_stack[neighbor]:
                    low[vertex] = min(low[vertex], index[neighbor])
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


def longest_chain(order: Sequence[int], successors: Sequence[Iterable[int]]) -> list[int]:
    """Return the number of vertices on the longest path from each vertex of an acyclic graph.

    Args:
        order: The vertices, successors before predecessors.
        successors: The successors of each vertex.

    Returns:
        The lengths, by vertex.
    """
    length = [1] * len(successors)
    for vertex in order:
        length[vertex] = 1 + max((length[successor] for successor in successors[vertex]), default=0)
    return length
