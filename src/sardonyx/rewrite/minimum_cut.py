"""The cheapest way to cut a network between its two ends (Dinic's algorithm)."""

from __future__ import annotations

from collections import deque

NEVER = 1 << 100
"""The cost of what must not be cut."""


class Network:
    """Places 0 (the source), 1 (the sink) and what ``place`` adds, with costs of cutting between them."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._heads: list[int] = []
        self._left: list[int] = []

    def place(self) -> int:
        """A new place."""
        self._edges.append([])
        return len(self._edges) - 1

    def connect(self, tail: int, head: int, cost: int) -> None:
        """It costs so much to have ``tail`` on the source's side and ``head`` on the sink's."""
        for start, end, capacity in ((tail, head, cost), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(capacity)

    def cut(self) -> set[int]:
        """The places on the source's side of a cheapest cut; of several, the one with the fewest there."""
        while True:
            levels = self._levels()
            if self.SINK not in levels:
                return set(levels)
            self._saturate(levels)

    def _levels(self) -> dict[int, int]:
        levels, waiting = {self.SOURCE: 0}, deque([self.SOURCE])
        while waiting:
            place = waiting.popleft()
            for edge in self._edges[place]:
                head = self._heads[edge]
                if self._left[edge] and head not in levels:
                    levels[head] = levels[place] + 1
                    waiting.append(head)
        return levels

    def _saturate(self, levels: dict[int, int]) -> None:
        """Push flow along shortest ways until none is left."""
        at = [0] * len(self._edges)
        path: list[int] = []
        while True:
            place = self._heads[path[-1]] if path else self.SOURCE
            edges = self._edges[place]
            if place == self.SINK:
                flow = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= flow
                    self._left[edge ^ 1] += flow
                del path[next(i for i, edge in enumerate(path) if not self._left[edge]) :]
                continue
            while at[place] < len(edges) and not self._forward(edges[at[place]], levels):
                at[place] += 1
            if at[place] < len(edges):
                path.append(edges[at[place]])
            elif path:
                at[self._heads[path.pop() ^ 1]] += 1
            else:
                return

    def _forward(self, edge: int, levels: dict[int, int]) -> bool:
        """Whether flow may be pushed along this edge, one level on."""
        tail, head = self._heads[edge ^ 1], self._heads[edge]
        return self._left[edge] > 0 and levels.get(head) == levels[tail] + 1
