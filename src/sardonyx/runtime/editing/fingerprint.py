"""Fingerprints of models: the structure and the weights, which determine the compiled code.

Only nodes that an output needs count, and names of inner tensors do not. A model with an additional unused node, or a
model whose latest edit was undone, therefore has the fingerprint of a compiled model.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import onnx_ir as ir

from sardonyx.ops import registry
from sardonyx.rewrite.analysis import facts
from sardonyx.runtime.node import read_by


class Structure(NamedTuple):
    """A model without names of inner tensors.

    Attributes:
        form: Equal for models that differ in the elements of weights only.
        weights: The weights, in order. Models with equal form and weights compute the same function.
    """

    form: Hashable
    weights: tuple[ir.TensorProtocol, ...]

    def same_weights(self, other: Structure) -> bool:
        """Return True if the weights are the same objects."""
        return all(a is b for a, b in zip(self.weights, other.weights, strict=True))


def structure(model: ir.Model) -> Structure | None:
    """Return the structure of a model; None if it has functions, or nodes that depend on more than their inputs."""
    graph = model.graph
    if model.functions:
        return None
    needed = _needed(graph)
    numbers: dict[ir.Value | None, int] = {None: -1}
    count = itertools.count()
    opsets = dict(graph.opset_imports)
    operators: dict[tuple[str, str], registry.Operator | None] = {}
    # The producer and IR version decide which inputs are weights.
    form: list[Hashable] = [(tuple(sorted(opsets.items())), model.ir_version, model.producer_name)]
    weights: list[ir.TensorProtocol] = []
    for value in graph.inputs:
        numbers[value] = next(count)
        form.append((value.name, str(value.type), str(value.shape), value.is_initializer()))
    for value in _initializers(graph, needed):
        assert value.const_value is not None
        numbers.setdefault(value, next(count))
        weights.append(value.const_value)
        form.append((numbers[value], value.const_value.dtype, tuple(value.const_value.shape.numpy())))
    for node in needed:
        kind = node.domain, node.op_type
        if kind not in operators:
            operators[kind] = registry.find(registry.canonical(node.domain), node.op_type, opsets.get(node.domain, 1))
        operator = operators[kind]
        if operator is None or "between" in operator.context_parameters or facts.bodies(node):
            return None
        attributes = _attributes(node, weights)
        # The name of a random node selects its random numbers.
        name = (node.name or node.outputs[0].name) if operator.is_random else None
        reads = tuple([numbers[value] for value in node.inputs])
        form.append((node.domain, node.op_type, name, reads, attributes, tuple([bool(o.name) for o in node.outputs])))
        for output in node.outputs:
            numbers[output] = next(count)
    form.append(tuple([(value.name, numbers[value], str(value.type), str(value.shape)) for value in graph.outputs]))
    return Structure(tuple(form), tuple(weights))


def _needed(graph: ir.Graph) -> list[ir.Node]:
    reached: set[ir.Value] = set(graph.outputs)
    nodes = []
    for node in reversed(graph):
        if not reached.isdisjoint(node.outputs):
            reached.update(read_by(node))
            nodes.append(node)
    nodes.reverse()
    return nodes


def _initializers(graph: ir.Graph, nodes: list[ir.Node]) -> Iterator[ir.Value]:
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    read.update(dict.fromkeys(graph.outputs))
    return (value for value in read if value.is_initializer())


def _attributes(node: ir.Node, weights: list[ir.TensorProtocol]) -> Hashable:
    """Return a node's attributes by name; tensors among them are appended to the weights."""
    attributes = node.attributes.data
    if not attributes:
        return ()
    entries: list[Any] = []
    for name, attribute in sorted(attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            weights.append(tensor)
            entries.append((name, tensor.dtype, tuple(tensor.shape.numpy())))
        else:
            value = attribute.value
            entries.append((name, attribute.type, repr(value)))
    return tuple(entries)
