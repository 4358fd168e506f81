"""Descriptions of nodes for edits: an operator, names of tensors, attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import EditError, SardonyxError
from sardonyx.model import from_proto
from sardonyx.rewrite.analysis import facts

_IR_VERSION = 10


class Node:
    """A description of a node to be added to a graph.

    Args:
        op_type: The operator.
        inputs: Names of the tensors to read; an empty name omits an optional input. None for no inputs, or in
            ``replace_node`` for the inputs of the replaced node.
        outputs: Names of the results; None for one generated name, or in ``replace_node`` for the outputs of the
            replaced node.
        name: The name of the node; generated if None.
        domain: The domain of the operator.
        attributes: Numbers, texts, arrays, lists of these, and graphs (``onnx.GraphProto``), whose nodes may read the
            tensors of the surrounding graphs by name.

    Raises:
        EditError: `inputs` or `outputs` is a text instead of a list of names.

    Example:
        >>> Node("Clip", inputs=["h", "", "most"], outputs=["clipped"])
        >>> Node("Softmax", inputs=["logits"], outputs=["probabilities"], axis=-1)
    """

    __slots__ = ("attributes", "domain", "inputs", "name", "op_type", "outputs")

    def __init__(
        self,
        op_type: str,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        if isinstance(inputs, str) or isinstance(outputs, str):
            raise EditError("expected a list of names, got a text.", where=f"Node({op_type!r})")
        self.op_type = op_type
        self.inputs = None if inputs is None else tuple(inputs)
        self.outputs = None if outputs is None else tuple(outputs)
        self.name = name
        self.domain = domain
        self.attributes = attributes

    def __repr__(self) -> str:
        parts = [repr(self.op_type), f"inputs={self.inputs}", f"outputs={self.outputs}"]
        parts += [f"name={self.name!r}"] * (self.name is not None) + [f"domain={self.domain!r}"] * bool(self.domain)
        return f"Node({', '.join([*parts, *(f'{key}={value!r}' for key, value in self.attributes.items())])})"


def built(node: Node, inputs: Sequence[str], outputs: Sequence[str], name: str, imports: Mapping[str, int]) -> ir.Node:
    """Return a node of ``onnx_ir`` outside of any graph; its inputs are placeholder values, by name.

    Args:
        node: The operator and attributes.
        inputs: Names of the inputs.
        outputs: Names of the outputs.
        name: The name of the node.
        imports: Versions of operator sets by domain.

    Raises:
        EditError: An attribute has no representation in the standard.
    """
    try:
        attributes = {key: _attribute(value) for key, value in node.attributes.items()}
        written = onnx.helper.make_node(node.op_type, inputs, outputs, name, domain=node.domain, **attributes)
    except (TypeError, ValueError) as error:
        raise EditError(
            f"an attribute has no representation in the standard: {error}.", where=f"node {name} ({node.op_type})"
        ) from error
    around = [onnx.ValueInfoProto(name=read) for read in dict.fromkeys((*filter(None, inputs), *_captured(written)))]
    graph = onnx.helper.make_graph([written], "node", around, [])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    try:
        model = from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION))
    except SardonyxError as error:
        raise EditError(f"invalid node: {error}", where=f"node {name} ({node.op_type})") from error
    (result,) = list(model.graph)
    model.graph.remove(result)
    model.graph.inputs.clear()
    return result


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in a node, at any depth."""
    for body in facts.bodies(node):
        yield body
        yield from body.subgraphs()


def within(node: ir.Node) -> Iterator[ir.Node]:
    """Yield a node and the nodes of its graphs, at any depth."""
    yield node
    for body in bodies_of(node):
        yield from body


def read_by(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node and its graphs read."""
    # Edits call this for every node; most nodes have no graphs.
    if not facts.bodies(node):
        return [value for value in node.inputs if value is not None]
    values = [value for inner in within(node) for value in inner.inputs if value is not None]
    values.extend(value for body in bodies_of(node) for value in body.outputs)
    return values


def _attribute(value: Any) -> Any:
    """Convert a value to a type that ``onnx.helper`` accepts."""
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_attribute(item) for item in value]
    return value


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the node's graphs read from surrounding graphs."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own.update(name for inner in graph.node for name in inner.output)
            yield from _unless(own, (value.name for value in graph.output))
            for inner in graph.node:
                yield from _unless(own, (*inner.input, *_captured(inner)))


def _unless(own: set[str], names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name and name not in own)
