"""Names: fresh ones that clash with none in the model, and how a node is called in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from sardonyx.rewrite import facts


class Names:
    """Gives names that are not taken; the same sequence on every run.

    Args:
        taken: Names in use, once for each thing that has the name (bodies may repeat each other's).
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken: Counter[str] = Counter(taken)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """``base`` if it is free, else ``base_1``, ``base_2``, …"""
        name, n = base, self._next.get(base, 0)
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._next[base] = n
        self._taken[name] += 1
        return name

    def adopt(self, name: str) -> str:
        """A name for what moves to another graph: its own unless something else has the same one."""
        if self._taken[name] <= 1:
            self._taken[name] = 1
            return name
        self._taken[name] -= 1
        return self.fresh(name)


def _levels(model: ir.Model) -> Iterator[tuple[ir.Graph, list[ir.Node]]]:
    for root in (model.graph, *(f.graph for f in model.functions.values())):
        yield from facts.levels(root)


def value_names(model: ir.Model) -> list[str]:
    """The name of every value of every graph; an initializer that is also an input counts once."""
    names: list[str] = []
    for graph, nodes in _levels(model):
        names += {v.name for v in (*graph.inputs, *graph.initializers.data.values()) if v.name}
        names += [v.name for node in nodes for v in node.outputs if v.name]
    return names


def node_names(model: ir.Model) -> list[str]:
    """The name of every node that has one."""
    return [node.name for _, nodes in _levels(model) for node in nodes if node.name]


def node_label(node: ir.Node) -> str:
    """How messages call a node: its name, else its operator and first output."""
    if name := node.name:
        return name
    output = next((v.name for v in node.outputs if v.name), "?")
    return f"{node.op_type}({output})"
