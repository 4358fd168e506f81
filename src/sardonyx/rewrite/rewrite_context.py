"""The model during rewriting: operator sets in force, free names, new constants, removed nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.model.tensors import tensor_from
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, value_names
from sardonyx.rewrite.analysis.sizes import Sizes


@dataclass
class Settings:
    """The bounds of a run of the engine.

    Attributes:
        target: The target whose profile selected the rules.
        limit: Number of patches after which the run stops (for bisection); None for no limit.
        banned: ``(rule label, site)`` pairs that must not fire.
        off: Labels of rules that must not fire anywhere.
        growth: Bytes of new weights that one patch may add, less the bytes that the patch frees. A bound per patch and
            none in total, so that a second run decides as the first did.
        folding: Bytes that one folding of costly nodes may add, if more than ``growth``.
        protected: Values whose names must survive although they are not graph outputs.
        operators: Operators of the default domain that may be emitted; None for all.
    """

    target: str = "portable"
    limit: int | None = None
    banned: frozenset[tuple[str, str]] = frozenset()
    off: frozenset[str] = frozenset()
    growth: int = 64 << 10
    folding: int = 0
    protected: frozenset[str] = frozenset()
    operators: frozenset[str] | None = None


class Workspace:
    """A model that is rewritten in place, with cached facts.

    Args:
        model: The model.
        settings: The bounds of the rewriting.
    """

    def __init__(self, model: ir.Model, settings: Settings | None = None) -> None:
        self.model = model
        self.settings = settings or Settings()
        self.names = Names(value_names(model))
        self.root: ir.Graph
        """The main graph, or the body of a function, of which the rest is told."""
        self.opset_imports: dict[str, int]
        self._imports: MutableMapping[str, int]
        self.in_function: bool
        self.opset: int
        """Version of the default operator set in force."""
        self.sizes: Sizes
        """Value propagation at that operator set."""
        self.memo: dict[Any, Any] = {}
        """For rules: facts worth computing once. A fact about a value object stays true."""
        self.refinements = 0
        """Number of refinements of types and shapes by inference, apart from patches."""
        self.learned: set[ir.Value] = set()
        """Values with more precise shapes than the replaced ones: inference may refine their readers."""
        self.interface_changed = False
        """True once a pass has deliberately changed the declared types of inputs or outputs."""
        self._sizes: dict[int, Sizes] = {}
        self._dead_graphs: set[ir.Graph] = set()
        self._unread: list[ir.Value] = []
        nodes = [node for root in self.roots() for node in facts.nodes_of(root)]
        self.nodes_given = len(nodes)
        """Number of nodes of the unchanged model."""
        self.node_names = Names([node.name for node in nodes if node.name])
        self.operators = {node.op_type for node in nodes}
        """Superset of the operator types in the model."""
        self.flat = not any(facts.bodies(node) for node in nodes if facts.may_hold_bodies(node))
        """True if no node has a body, so that searches for bodies can be skipped."""

    def roots(self) -> Iterator[ir.Graph]:
        """Yield the main graph, then each model-local function's body, with its operator sets in force."""
        yield self._enter(self.model.graph, self.model.graph.opset_imports, in_function=False)
        if self.model.functions:
            for function in self.model.functions.values():
                yield self._enter(function.graph, function.opset_imports, in_function=True)
            self._enter(self.model.graph, self.model.graph.opset_imports, in_function=False)

    def _enter(self, graph: ir.Graph, imports: MutableMapping[str, int], *, in_function: bool) -> ir.Graph:
        self.root = graph
        self._imports, self.opset_imports, self.in_function = imports, _normal_imports(imports), in_function
        self.opset = self.opset_imports.get("", 1)
        if self.opset not in self._sizes:
            self._sizes[self.opset] = Sizes(self.opset)
        self.sizes = self._sizes[self.opset]
        return graph

    def graphs(self, root: ir.Graph) -> list[ir.Graph]:
        """Return a graph and all bodies in it, outer before inner."""
        return [root] if self.flat else list(facts.graphs_of(root))

    def note_operators(self, nodes: Iterable[ir.Node]) -> None:
        """Add the operators of nodes, and of bodies in them, to ``operators``."""
        for node in nodes:
            self.operators.add(node.op_type)
            if facts.may_hold_bodies(node):
                for body in facts.bodies(node):
                    self.flat = False
                    self.operators.update(inner.op_type for inner in facts.nodes_of(body))

    def alive(self, node: ir.Node) -> bool:
        """Return True if the node is still part of the model."""
        graph = node.graph
        return graph is not None and graph not in self._dead_graphs

    def imports_domain(self, domain: str) -> None:
        """Add a domain to the operator sets in force."""
        if domain and domain not in self.opset_imports:
            self._imports[domain] = self.opset_imports[domain] = 1

    def new_constant(
        self, array: np.ndarray | ir.TensorProtocol, graph: ir.Graph, base: str, nodes: list[ir.Node]
    ) -> ir.Value:
        """Make a constant value for ``graph``: an initializer; in a function a ``Constant`` in ``nodes``."""
        name = self.names.fresh(base)
        tensor = (
            tensor_from(np.ascontiguousarray(array).reshape(array.shape), name)
            if isinstance(array, np.ndarray)
            else array
        )
        if self.in_function:
            attribute = ir.AttrTensor("value", tensor)
            node = ir.Node("", "Constant", [], [attribute], name=self.node_names.fresh(name))
            node.outputs[0].name = name
            node.outputs[0].type = ir.TensorType(tensor.dtype)
            node.outputs[0].shape = ir.Shape([int(dim) for dim in tensor.shape.numpy()])
            nodes.append(node)
            return node.outputs[0]
        # A tensor's shape is frozen and can be shared.
        shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        graph.register_initializer(value)
        return value

    def discard(self, node: ir.Node) -> ir.Node:
        """Remove a node with its bodies, and disconnect its inputs."""
        graph = node.graph
        assert graph is not None
        self._detach(node)
        graph.remove(node)
        return node

    def _detach(self, node: ir.Node) -> None:
        self._unread += [v for v in node.inputs if v is not None]
        if not self.flat:
            for body in facts.bodies(node):
                self.discard_body(body)
        _read_nothing(node)

    def discard_body(self, body: ir.Graph) -> None:
        """Discard a body: disconnect the inputs of its nodes, which are never visited again."""
        self._dead_graphs.add(body)
        for inner in body:
            for nested in facts.bodies(inner):
                self.discard_body(nested)
            _read_nothing(inner)

    def remove_dead(self, candidates: Iterable[ir.Node | None]) -> list[ir.Node]:
        """Remove the candidates without readers, then the producers that only these read."""
        removed: dict[ir.Node, None] = {}
        graphs: dict[ir.Graph, list[ir.Node]] = {}
        stack = [n for n in candidates if n is not None]
        while stack:
            node = stack.pop()
            graph = node.graph
            if graph is None or node in removed or not all(map(facts.unused, node.outputs)):
                continue
            read = [v for v in node.inputs if v is not None]
            if not self.flat:
                read += [v for body in facts.bodies(node) for v in facts.captured_values(body)]
            self._detach(node)
            removed[node] = None
            graphs.setdefault(graph, []).append(node)
            stack += [p for v in read if (p := v.producer()) is not None]
        for graph, nodes in graphs.items():
            graph.remove(nodes)
        return list(removed)

    def unread(self) -> list[ir.Node]:
        """Return the nodes that lost a reader since the last call."""
        producers = [producer for value in self._unread if (producer := value.producer()) is not None]
        self._unread.clear()
        return producers


def _read_nothing(node: ir.Node) -> None:
    for i, value in enumerate(node.inputs):
        if value is not None:
            node.replace_input_with(i, None)


def _normal_imports(imports: Mapping[str, int]) -> dict[str, int]:
    versions = dict(imports)
    if "ai.onnx" in versions:
        return {("" if domain == "ai.onnx" else domain): version for domain, version in versions.items()}
    return versions
