"""Copies of models that share their tensors.

Every edit of a live model copies the model and waits for the copy. These functions take two thirds of the time of
``onnx_ir``'s own ``clone``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir


def copy_model(model: ir.Model) -> ir.Model:
    """Return a copy of a Model that shares the tensors of ``model``."""
    twin = ir.Model(
        _Copy().graph(model.graph),
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[function.clone() for function in model.functions.values()],
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )
    twin.meta.update(model.meta)
    return twin


def copy_nodes(nodes: Sequence[ir.Node]) -> tuple[list[ir.Node], Mapping[ir.Value, ir.Value]]:
    """Copy nodes into no graph.

    Returns:
        The copies, which read and produce values of their own, and a map from each original value to its copy.
    """
    return (copy := _Copy()).nodes(nodes), copy.values


class _Copy:
    """Copies of nested graphs; nodes may be in any order."""

    def __init__(self) -> None:
        self.values: dict[ir.Value, ir.Value] = {}

    def graph(self, graph: ir.Graph) -> ir.Graph:
        """Copy a graph; values of outer graphs are replaced by their copies if there are any."""
        inputs, initializers = self._all(graph.inputs), self._all(graph.initializers.values())
        outputs = [self._all(node.outputs) for node in graph]
        twin = ir.Graph(
            inputs,
            self._all(graph.outputs),
            nodes=[self._node(node, values) for node, values in zip(graph, outputs, strict=True)],
            initializers=initializers,
            doc_string=graph.doc_string,
            opset_imports=dict(graph.opset_imports),
            name=graph.name,
        )
        twin.metadata_props.update(graph.metadata_props)
        twin.meta.update(graph.meta)
        return twin

    def nodes(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """Copy nodes and all values that the nodes read."""
        outputs = [self._all(node.outputs) for node in nodes]
        for node in nodes:
            self._all([value for value in node.inputs if value is not None])
        return [self._node(node, values) for node, values in zip(nodes, outputs, strict=True)]

    def _node(self, node: ir.Node, outputs: list[ir.Value]) -> ir.Node:
        values = self.values
        twin = ir.Node(
            node.domain,
            node.op_type,
            [None if value is None else values.get(value, value) for value in node.inputs],
            [self._attribute(attribute) for attribute in node.attributes.data.values()],
            outputs=outputs,
            overload=node.overload,
            version=node.version,
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )
        if node.meta:
            twin.meta.update(node.meta)
        if node.device_configurations:
            twin.device_configurations = tuple(map(self._configuration, node.device_configurations))
        return twin

    def _attribute(self, attribute: ir.Attr) -> ir.Attr:
        kind = attribute.type
        if attribute.is_ref() or kind not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return attribute
        bodies = attribute.value
        copied = self.graph(bodies) if kind == ir.AttributeType.GRAPH else [self.graph(body) for body in bodies]
        return ir.Attr(attribute.name, kind, copied, doc_string=attribute.doc_string)

    def _configuration(self, configuration: ir.NodeDeviceConfiguration) -> ir.NodeDeviceConfiguration:
        specs = [
            spec if spec.value is None else dataclasses.replace(spec, value=self.values.get(spec.value, spec.value))
            for spec in configuration.sharding_specs
        ]
        return dataclasses.replace(configuration, sharding_specs=tuple(specs))

    def _all(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        return [self.values.get(value) or self._value(value) for value in values]

    def _value(self, value: ir.Value) -> ir.Value:
        shape = value.shape
        twin = self.values[value] = ir.Value(
            name=value.name,
            type=value.type,
            shape=None if shape is None else shape.copy(),
            doc_string=value.doc_string,
            const_value=value.const_value,
        )
        if value.metadata_props:
            twin.metadata_props.update(value.metadata_props)
        if value.meta:
            twin.meta.update(value.meta)
        return twin
