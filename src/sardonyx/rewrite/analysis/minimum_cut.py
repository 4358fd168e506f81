"""Minimum cut of a network between source and sink (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

NEVER = 1 << 100
"""The cost of an edge that must not be cut."""


class Network:
    """A network with a source (0), a sink (1) and the vertices of ``add_vertex``."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._left: list[int] = []

    def add_vertex(self) -> int:
        """Add a vertex and return its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def connect(self, tail: int, head: int, cost: int) -> None:
        """Charge ``cost`` if ``tail`` is on the source's side and ``head`` on the sink's."""
        for start, end, capacity in ((tail, head, cost), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(capacity)

    def cut(self) -> set[int]:
        """Return the source's side of a minimum cut; of several minimum cuts, the smallest side."""
        while True:
            levels = self._levels()
            if self.SINK not in levels:
                return set(levels)
            self._saturate(levels)

    def _levels(self) -> dict[int, int]:
        levels, waiting = {self.SOURCE: 0}, deque([self.SOURCE])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._left[edge] and head not in levels:
                    levels[head] = levels[vertex] + 1
                    waiting.append(head)
        return levels

    def _saturate(self, levels: dict[int, int]) -> None:
        """Push flow along shortest augmenting paths until there is none."""
        at = [0] * len(self._edges)
        path: list[int] = []
        while True:
            vertex = self._heads[path[-1]] if path else self.SOURCE
            edges = self._edges[vertex]
            if vertex == self.SINK:
                flow = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= flow
                    self._left[edge ^ 1] += flow
                del path[next(i for i, edge in enumerate(path) if not self._left[edge]) :]
                continue
            while at[vertex] < len(edges) and not self._forward(edges[at[vertex]], levels):
                at[vertex] += 1
            if at[vertex] < len(edges):
                path.append(edges[at[vertex]])
            elif path:
                at[self._heads[path.pop() ^ 1]] += 1
            else:
                return

    def _forward(self, edge: int, levels: dict[int, int]) -> bool:
        """Return True if the edge has residual capacity and leads to the next level."""
        tail, head = self._heads[edge ^ 1], self._heads[edge]
        return self._left[edge] > 0 and levels.get(head) == levels[tail] + 1
