"""Fresh names that do not clash with names of the model, and the labels of nodes in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts


class Names:
    """A source of unused names; the sequence is the same on every run.

    Args:
        used: Names in use, once for each thing that has the name (bodies may repeat each other's).
    """

    def __init__(self, used: Iterable[str]) -> None:
        self._used: Counter[str] = Counter(used)
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """Return ``base`` if unused, else ``base_1``, ``base_2``, …"""
        name, n = base, self._next.get(base, 0)
        while name in self._used:
            n += 1
            name = f"{base}_{n}"
        self._next[base] = n
        self._used[name] += 1
        return name

    def adopt(self, name: str) -> str:
        """Return the name of a thing moved to another graph: unchanged unless another thing has it."""
        if self._used[name] <= 1:
            self._used[name] = 1
            return name
        self._used[name] -= 1
        return self.fresh(name)


def _levels(model: ir.Model) -> Iterator[tuple[ir.Graph, list[ir.Node]]]:
    for root in (model.graph, *(f.graph for f in model.functions.values())):
        yield from facts.levels(root)


def value_names(model: ir.Model) -> list[str]:
    """Return the name of every value of every graph; an initializer that is also an input counts once."""
    names: list[str] = []
    for graph, nodes in _levels(model):
        names += {v.name for v in (*graph.inputs, *graph.initializers.data.values()) if v.name}
        names += [v.name for node in nodes for v in node.outputs if v.name]
    return names


def node_names(model: ir.Model) -> list[str]:
    """Return the names of all named nodes."""
    return [node.name for _, nodes in _levels(model) for node in nodes if node.name]


def node_label(node: ir.Node) -> str:
    """Return the label of a node in messages: its name, else its operator and first output."""
    if name := node.name:
        return name
    output = next((v.name for v in node.outputs if v.name), "?")
    return f"{node.op_type}({output})"
