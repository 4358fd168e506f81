"""The worklist: the nodes at which rules are due, each once, and the neighbourhood of changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

REACH = 10
"""Steps downstream of a change at which rules are tried again: the depth of the deepest pattern."""

NEAR = 2
"""Steps downstream that are tried again at once; farther nodes once the worklist is empty."""

MOST_AT_ONCE = 64
"""Nodes of one change whose readers are followed at once."""


class Worklist:
    """Nodes of one graph (bodies included), in the order of visits.

    Args:
        alive: Predicate: True while a node is part of the model.
    """

    def __init__(self, alive: Callable[[ir.Node], bool]) -> None:
        self._alive = alive
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self._changes = 0
        """Number of changes so far."""
        # A dict, not a set: nodes hash by address, and the order of visits must not depend on addresses.
        self._changed: dict[ir.Node, int] = {}
        """Nodes that changed since the list was last empty → number of their last change."""
        self._tried: dict[ir.Node, int] = {}
        """Node → number of changes at its last visit."""
        self.complete = False
        """True once every node has been on the list."""

    def restart(self, nodes: Iterable[ir.Node]) -> None:
        """Replace the list by every node of the graph, in order."""
        self._queue.clear()
        self._queued.clear()
        self._changed.clear()
        self.add(nodes)
        self.complete = True

    def add(self, nodes: Iterable[ir.Node]) -> None:
        """Append nodes; a node on the list keeps its position."""
        queued, queue = self._queued, self._queue
        for node in nodes:
            if node not in queued:
                queued.add(node)
                queue.append(node)

    def drain(self) -> Iterator[ir.Node]:
        """Take nodes from the front until the list is empty, then the nodes that a later change reaches."""
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
        """Revisit the neighbourhood of a change: two steps down (patterns reach up), one step up.

        The step up is for rules that depend on the readers of a value.
        """
        front = [node for node in touched if self._alive(node)]
        self._changes += 1
        self._changed.update(dict.fromkeys(front, self._changes))
        self.add(front)
        # A producer that is no longer part of the model is skipped by `drain`.
        self.add([p for node in front for v in node.inputs if v is not None and (p := v.producer()) is not None])
        self.add(self._downstream(front[:MOST_AT_ONCE], NEAR))

    def _outdated(self) -> list[ir.Node]:
        """Return the nodes within reach of a change that were last visited before the change."""
        # Nodes that are no longer part of the model have no readers, and `drain` skips them.
        last = dict(self._changed)
        front = list(last)
        for _ in range(REACH):
            reached: dict[ir.Node, None] = {}
            for node in front:
                change = last[node]
                for value in node.outputs:
                    for use in value.uses():
                        # A reader with a later change of its own passes that one on.
                        reader = use[0]
                        if last.get(reader, 0) < change:
                            last[reader] = change
                            reached[reader] = None
            front = list(reached)
        return [node for node, change in last.items() if self._tried.get(node, -1) < change]

    def _downstream(self, nodes: list[ir.Node], steps: int) -> list[ir.Node]:
        """Return the nodes and their readers over at most ``steps`` steps, the nodes first."""
        reached = dict.fromkeys(nodes)
        front = nodes
        for _ in range(steps):
            readers = {use[0]: None for node in front for value in node.outputs for use in value.uses()}
            front = [node for node in readers if node not in reached]
            if not front:
                break
            reached.update(dict.fromkeys(front))
        return list(reached)
