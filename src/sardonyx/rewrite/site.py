"""A node at which a rule is tried."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import Sizes
from sardonyx.rewrite.rewrite_context import Workspace


class Site:
    """A node at which a rule is tried, with the facts that rules query."""

    __slots__ = ("node", "workspace")

    def __init__(self, workspace: Workspace, node: ir.Node) -> None:
        self.workspace = workspace
        self.node = node

    @property
    def opset(self) -> int:
        """Version of the default operator set in force at the node (a function has its own)."""
        return self.workspace.opset

    @property
    def target(self) -> str:
        """Name of the target in force."""
        return self.workspace.settings.target

    @property
    def graph(self) -> ir.Graph:
        """The graph (or body, or function body) that holds the node."""
        graph = self.node.graph
        assert graph is not None
        return graph

    @property
    def output(self) -> ir.Value:
        """The first output."""
        return self.node.outputs[0]

    def input(self, index: int) -> ir.Value | None:
        """Return input ``index``, or None if absent."""
        inputs = self.node.inputs
        return inputs[index] if index < len(inputs) else None

    def attr(self, name: str, default: Any = None, *, node: ir.Node | None = None) -> Any:
        """Return the attribute's value as written, else the schema's default at this opset, else ``default``."""
        return facts.attribute(node or self.node, name, self.opset, default)

    def producer(self, index: int, *op_types: str) -> ir.Node | None:
        """Return the producer of input ``index`` if it is one of these standard operators, in the same graph."""
        value = self.input(index)
        node = None if value is None else value.producer()
        if node is None or node.graph is not self.node.graph or not facts.is_op(node, *op_types):
            return None
        return node

    def rank(self, index: int) -> int | None:
        """Return the rank of input ``index``, or None if unknown."""
        return facts.rank(self.input(index))

    @property
    def sizes(self) -> Sizes:
        """Shapes and shape arithmetic, as expressions of the size symbols."""
        return self.workspace.sizes

    def unused_outputs_from(self, first: int) -> bool:
        """Return True if nothing reads the outputs from ``first`` on."""
        return all(facts.unused(v) for v in self.node.outputs[first:])

    def in_function(self) -> bool:
        """Return True if the node is in a model-local function (whose attributes may refer to the caller's)."""
        return self.workspace.in_function
