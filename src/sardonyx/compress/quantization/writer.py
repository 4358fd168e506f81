"""Nodes and initializers added to a model, with fresh names, in the main graph and in bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis.names import Names, node_names, value_names


class Writer:
    """Adds nodes and initializers to a model.

    Args:
        model: The model, which is changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._first: ir.Node | None = next(iter(model.graph), None)
        self._names, self._node_names = Names(value_names(model)), Names(node_names(model))

    @property
    def opset(self) -> int:
        """The operator set of the model."""
        return self._model.opset_imports.get("", 0)

    def initializer(self, name: str, array: np.ndarray, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a new initializer of the main graph, which bodies see too."""
        name = self._names.fresh(name)
        tensor = ir.Tensor(array, dtype=dtype, name=name) if dtype is not None else ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def input(self, name: str, shape: Sequence[int], dtype: ir.DataType) -> ir.Value:
        """Return a new input of the main graph."""
        value = ir.Value(name=self._names.fresh(name), type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def node(
        self, op_type: str, inputs: Sequence[ir.Value | None], name: str, dtype: ir.DataType, domain: str = "",
        outputs: Sequence[tuple[str, ir.DataType]] = (), **attributes: Any,
    ) -> ir.Node:  # fmt: skip
        """Return a new node outside of the graph.

        Args:
            op_type: The operator.
            inputs: The inputs.
            name: The beginning of the names of the node and of its output.
            dtype: The element type of the output.
            domain: The domain of the operator.
            outputs: Endings of names and element types, for several outputs.
            attributes: The attributes.
        """
        if domain and domain not in self._model.opset_imports:
            self._model.opset_imports[domain] = 1
        kinds = outputs or [(op_type, dtype)]
        node = ir.node(
            op_type, inputs, attributes=attributes, domain=domain, num_outputs=len(kinds),
            name=self._node_names.fresh(f"{name}_{op_type}"),
        )  # fmt: skip
        for value, (ending, kind) in zip(node.outputs, kinds, strict=True):
            value.name = self._names.fresh(f"{name}_{ending}")
            value.type = ir.TensorType(kind)
        return node

    def insert_constants(self, nodes: Sequence[ir.Node]) -> None:
        """Insert nodes that read initializers alone at the begin of the main graph: bodies see their results."""
        if self._first is None:
            self._graph.extend(nodes)
        else:
            self._graph.insert_before(self._first, nodes)

    def insert_after(self, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
        """Insert nodes after the producer of a value."""
        producer = value.producer()
        if producer is None:
            self.insert_constants(nodes)
        else:
            _graph_of(producer).insert_after(producer, nodes)

    def replace(self, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
        """Replace a node by nodes, of which the last computes the result under the same name."""
        result, new = node.outputs[0], nodes[-1].outputs[0]
        name = result.name
        new.shape, new.type = result.shape, result.type
        inputs = [value for value in node.inputs if value is not None]
        if node is self._first:
            self._first = nodes[0]
        graph = _graph_of(node)
        graph.insert_before(node, nodes)
        result.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        new.name = name
        for value in inputs:
            self.drop(value)

    def remove(self, node: ir.Node) -> None:
        """Remove a node whose results nothing reads."""
        if node is self._first:
            self._first = next((other for other in self._graph if other is not node), None)
        _graph_of(node).remove(node, safe=True)

    def drop(self, value: ir.Value) -> None:
        """Remove a constant that nothing reads any more."""
        if value.uses() or value.is_graph_output():
            return
        producer = value.producer()
        if producer is not None:
            if producer.op_type != "Constant":
                return
            self.remove(producer)
        elif value.is_initializer() and not value.is_graph_input() and value.graph is not None:
            del value.graph.initializers[str(value.name)]


def _graph_of(node: ir.Node) -> Any:
    graph = node.graph
    assert graph is not None
    return graph
