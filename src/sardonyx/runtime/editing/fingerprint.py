"""What of a model decides what it is compiled to: its structure, and its weights.

Only what the outputs need counts, and names of tensors inside do not. So a model to which a node was added that no
output needs, or whose last edit was taken back, is known to be compiled already.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import onnx_ir as ir

from sardonyx.ops import registry
from sardonyx.rewrite import facts
from sardonyx.runtime.node import read_by


class Structure(NamedTuple):
    """A model without names.

    Attributes:
        form: Equal for models that differ in the elements of weights alone.
        weights: The weights, in order. Models of one form with the same ones compute the same.
    """

    form: Hashable
    weights: tuple[ir.TensorProtocol, ...]

    def same_weights(self, other: Structure) -> bool:
        """Whether the weights are the very same."""
        return all(a is b for a, b in zip(self.weights, other.weights, strict=True))


def structure(model: ir.Model) -> Structure | None:
    """The structure of a model; None where it has functions, or nodes that look at more than inputs."""
    graph = model.graph
    if model.functions:
        return None
    needed = _needed(graph)
    numbers: dict[ir.Value | None, int] = {None: -1}
    count = itertools.count()
    opsets = dict(graph.opset_imports)
    operators: dict[tuple[str, str], registry.Operator | None] = {}
    # Which inputs are weights hangs on who wrote the file, and in which version.
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
        # Of operators that draw numbers the name says which.
        name = (node.name or node.outputs[0].name) if operator.is_random else None
        reads = tuple([numbers[value] for value in node.inputs])
        form.append((node.domain, node.op_type, name, reads, attributes, tuple([bool(o.name) for o in node.outputs])))
        for output in node.outputs:
            numbers[output] = next(count)
    form.append(tuple([(value.name, numbers[value], str(value.type), str(value.shape)) for value in graph.outputs]))
    return Structure(tuple(form), tuple(weights))


def _needed(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that outputs need, in order."""
    reached: set[ir.Value] = set(graph.outputs)
    found = []
    for node in reversed(graph):
        if not reached.isdisjoint(node.outputs):
            reached.update(read_by(node))
            found.append(node)
    found.reverse()
    return found


def _initializers(graph: ir.Graph, nodes: list[ir.Node]) -> Iterator[ir.Value]:
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    read.update(dict.fromkeys(graph.outputs))
    return (value for value in read if value.is_initializer())


def _attributes(node: ir.Node, weights: list[ir.TensorProtocol]) -> Hashable:
    """A node's attributes; tensors among them are weights."""
    written = node.attributes.data
    if not written:
        return ()
    found: list[Any] = []
    for name, attribute in sorted(written.items()):
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            weights.append(tensor)
            found.append((name, tensor.dtype, tuple(tensor.shape.numpy())))
        else:
            value = attribute.value
            found.append((name, attribute.type, repr(value)))
    return tuple(found)
