"""Names: fresh ones that clash with none in the model, and how a node is called in messages."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts


class Names:
    """Gives names that no value, node or initializer of the model has; the same sequence on every run."""

    def __init__(self, model: ir.Model) -> None:
        self._taken: set[str] = set()
        for graph in (model.graph, *(f.graph for f in model.functions.values())):
            self._add_graph(graph)
        self._next: dict[str, int] = {}

    def _add_graph(self, graph: ir.Graph) -> None:
        self._taken.update(v.name for v in graph.inputs if v.name)
        self._taken.update(graph.initializers)
        for node in graph:
            if node.name:
                self._taken.add(node.name)
            self._taken.update(v.name for v in node.outputs if v.name)
            for body in facts.bodies(node):
                self._add_graph(body)

    def fresh(self, base: str) -> str:
        """``base`` if it is free, else ``base_1``, ``base_2``, …"""
        name, n = base, self._next.get(base, 0)
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._next[base] = n
        self._taken.add(name)
        return name


def node_label(node: ir.Node) -> str:
    """How messages call a node: its name, else its operator and first output."""
    if node.name:
        return node.name
    output = next((v.name for v in node.outputs if v.name), "?")
    return f"{node.op_type}({output})"
