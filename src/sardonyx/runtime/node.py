"""Nodes as they are given to an edit: an operator, names of tensors, attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.errors import EditError, SardonyxError
from sardonyx.model import from_proto
from sardonyx.rewrite import facts

_IR_VERSION = 10


class Node:
    """A node that is yet to stand in a graph.

    Args:
        op_type: The operator.
        inputs: Names of the tensors that it reads; empty for one that is left out. None for no inputs, or in
            ``replace_node`` for those of the node that is replaced.
        outputs: Names for what it computes; None for one name that is made up, or in ``replace_node`` for those of
            the node that is replaced.
        name: Its name; one is made up without.
        domain: The operator's domain.
        attributes: Numbers, texts, arrays, lists of these, and graphs (``onnx.GraphProto``), whose nodes may read the
            tensors around them by name.

    Raises:
        EditError: A text stands for a list of names.

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
            raise EditError("a list of names is needed, and a text is given.", where=f"Node({op_type!r})")
        self.op_type = op_type
        self.inputs = None if inputs is None else tuple(inputs)
        self.outputs = None if outputs is None else tuple(outputs)
        self.name = name
        self.domain = domain
        self.attributes = attributes

    def __repr__(self) -> str:
        given = [repr(self.op_type), f"inputs={self.inputs}", f"outputs={self.outputs}"]
        given += [f"name={self.name!r}"] * (self.name is not None) + [f"domain={self.domain!r}"] * bool(self.domain)
        return f"Node({', '.join([*given, *(f'{key}={value!r}' for key, value in self.attributes.items())])})"


def built(node: Node, inputs: Sequence[str], outputs: Sequence[str], name: str, imports: Mapping[str, int]) -> ir.Node:
    """A node of ``onnx_ir``, in no graph, and reading values that are of no graph: placeholders by name.

    Args:
        node: Its operator and attributes.
        inputs: What it reads, by name.
        outputs: What it computes, by name.
        name: Its name.
        imports: Versions of operator sets by domain.

    Raises:
        EditError: An attribute has no form in the standard.
    """
    try:
        attributes = {key: _attribute(value) for key, value in node.attributes.items()}
        written = onnx.helper.make_node(node.op_type, inputs, outputs, name, domain=node.domain, **attributes)
    except (TypeError, ValueError) as error:
        raise EditError(f"an attribute cannot be written: {error}.", where=f"node {name} ({node.op_type})") from error
    around = [onnx.ValueInfoProto(name=each) for each in dict.fromkeys((*filter(None, inputs), *_captured(written)))]
    graph = onnx.helper.make_graph([written], "node", around, [])
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in imports.items()]
    try:
        model = from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION))
    except SardonyxError as error:
        raise EditError(f"the node is none: {error}", where=f"node {name} ({node.op_type})") from error
    (made,) = list(model.graph)
    model.graph.remove(made)
    model.graph.inputs.clear()
    return made


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs in a node, at any depth."""
    for body in facts.bodies(node):
        yield body
        yield from body.subgraphs()


def within(node: ir.Node) -> Iterator[ir.Node]:
    """A node, and those of its graphs."""
    yield node
    for body in bodies_of(node):
        yield from body


def read_by(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads, and those that its graphs do."""
    # Edits ask this of every node: most have no graphs.
    if not facts.bodies(node):
        return [value for value in node.inputs if value is not None]
    found = [value for each in within(node) for value in each.inputs if value is not None]
    found.extend(value for body in bodies_of(node) for value in body.outputs)
    return found


def _attribute(value: Any) -> Any:
    """An attribute as ``onnx.helper`` takes it."""
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_attribute(each) for each in value]
    return value


def _captured(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the node's graphs read from around them."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {each.name for each in (*graph.input, *graph.initializer)}
            own.update(name for each in graph.node for name in each.output)
            yield from _unless(own, (value.name for value in graph.output))
            for each in graph.node:
                yield from _unless(own, (*each.input, *_captured(each)))


def _unless(own: set[str], names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if name and name not in own)
