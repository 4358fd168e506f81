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
        self._changes = 0
        """How many changes there were."""
        # A dict and no set: nodes hash by their address, and the order of visits must not hang on that.
        self._changed: dict[ir.Node, int] = {}
        """What changed while the list is emptied, by which change last."""
        self._tried: dict[ir.Node, int] = {}
        """How many changes there had been when a node was last tried."""
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
        queued, queue = self._queued, self._queue
        for node in nodes:
            if node not in queued:
                queued.add(node)
                queue.append(node)

    def drain(self) -> Iterator[ir.Node]:
        """Take nodes from the front until none is left, and then those that a change since they were tried reaches."""
        while self._queue:
            while self._queue:
                node = self._queue.popleft()
                self._queued.discard(node)
                if self._alive(node):
                    self._tried[node] = self._changes
                    yield node
            self.add(self._outdated())
            self._changed.clear()
        self._tried.clear()

    def touch(self, touched: Iterable[ir.Node]) -> None:
        """Revisit the neighbourhood of a change: two steps down (patterns reach up), one step up (readers changed)."""
        front = [node for node in touched if self._alive(node)]
        self._changes += 1
        self._changed.update(dict.fromkeys(front, self._changes))
        self.add(front)
        # A producer that is no longer part of the model is let go when its turn comes.
        self.add([p for node in front for v in node.inputs if v is not None and (p := v.producer()) is not None])
        self.add(self._downstream(front[:MOST_AT_ONCE], NEAR))

    def _outdated(self) -> list[ir.Node]:
        """The nodes within reach of a change that were tried before it, and not since."""
        # What is no longer part of the model is let go when its turn comes; it reads nothing, and nobody reads it.
        last = dict(self._changed)
        front = list(last)
        for _ in range(REACH):
            reached: dict[ir.Node, None] = {}
            for node in front:
                change = last[node]
                for value in node.outputs:
                    for use in value.uses():
                        # What changed later than what it reads passes on its own change, as far.
                        reader = use[0]
                        if last.get(reader, 0) < change:
                            last[reader] = change
                            reached[reader] = None
            front = list(reached)
        return [node for node, change in last.items() if self._tried.get(node, -1) < change]

    def _downstream(self, nodes: list[ir.Node], steps: int) -> list[ir.Node]:
        """The nodes that read, over at most so many steps, what these produce; these first."""
        found = dict.fromkeys(nodes)
        front = nodes
        for _ in range(steps):
            readers = {use[0]: None for node in front for value in node.outputs for use in value.uses()}
            front = [node for node in readers if node not in found]
            if not front:
                break
            found.update(dict.fromkeys(front))
        return list(found)
