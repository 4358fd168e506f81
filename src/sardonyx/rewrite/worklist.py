"""The worklist: nodes at which rules are to be tried, each once, and the neighbourhood of what changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

REACH = 10
"""Steps downstream of a change at which rules are tried again: the deepest pattern reaches up so far."""

NEAR = 2
"""Steps downstream that are tried again right away; those farther off once the worklist is empty."""

MOST_AT_ONCE = 64
"""Nodes of one change whose readers are followed right away."""


class Worklist:
    """Nodes of one graph (bodies included), in the order in which they are to be tried.

    Args:
        alive: Whether a node is still part of the model.
    """

    def __init__(self, alive: Callable[[ir.Node], bool]) -> None:
        self._alive = alive
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        # A dict and no set: nodes hash by their address, and the order of visits must not hang on that.
        self._changed: dict[ir.Node, None] = {}
        self.complete = False
        """Whether every node has been on the list once."""

    def restart(self, nodes: Iterable[ir.Node]) -> None:
        """Put every node of the graph on the list, in order, whatever was there."""
        self._queue.clear()
        self._queued.clear()
        self._changed.clear()
        self.add(nodes)
        self.complete = True

    def add(self, nodes: Iterable[ir.Node]) -> None:
        """Put nodes at the end; those that wait already keep their place."""
        for node in nodes:
            if node not in self._queued:
                self._queued.add(node)
                self._queue.append(node)

    def drain(self) -> Iterator[ir.Node]:
        """Take nodes from the front until none is left, what changed in the meantime and what it reaches included."""
        while self._queue:
            while self._queue:
                node = self._queue.popleft()
                self._queued.discard(node)
                if self._alive(node):
                    yield node
            self.add(self._downstream(list(self._changed), REACH))
            self._changed.clear()

    def touch(self, touched: Iterable[ir.Node]) -> None:
        """Revisit the neighbourhood of a change: two steps down (patterns reach up), one step up (readers changed)."""
        front = [node for node in touched if self._alive(node)]
        self._changed.update(dict.fromkeys(front))
        self.add(front)
        for node in front:
            self.add(p for v in node.inputs if v is not None and (p := v.producer()) is not None and self._alive(p))
        self.add(self._downstream(front[:MOST_AT_ONCE], NEAR))

    def _downstream(self, nodes: list[ir.Node], steps: int) -> list[ir.Node]:
        """The nodes that read, over at most so many steps, what these produce; these first."""
        found = {node: None for node in nodes if self._alive(node)}
        front = list(found)
        for _ in range(steps):
            readers = {use.node: None for n in front for v in n.outputs for use in v.uses() if use.node not in found}
            front = [node for node in readers if self._alive(node)]
            if not front:
                break
            found.update(dict.fromkeys(front))
        return list(found)
