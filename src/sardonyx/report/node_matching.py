"""Correspondence of the nodes of two models: by output tensors, by name, then by structure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

MOST_BYTES_COMPARED = 1 << 16
"""Largest constant whose contents are compared if its names in the two models differ."""


CHUNK = 1 << 20
"""Elements of a weight that are compared at a time."""


@dataclass(frozen=True)
class Located:
    """A node and the path of its graph, empty for the main graph."""

    node: ir.Node
    path: str

    @property
    def label(self) -> str:
        """Name of the node in messages."""
        return f"{self.path}/{node_label(self.node)}" if self.path else node_label(self.node)

    @property
    def operator(self) -> str:
        """Operator of the node, with the domain unless the domain is the standard one."""
        return operator(self.node)

    @property
    def description(self) -> str:
        """Operator and name of the node; the name alone if the name begins with the operator."""
        return named_operator(self.operator, self.label)


def named_operator(operator: str, label: str) -> str:
    """Return ``operator label``, or the label alone if the label begins with the operator."""
    return label if label.startswith(operator) else f"{operator} {label}"


def operator(node: ir.Node) -> str:
    """Return a node's operator, with the domain unless the domain is the standard one."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def locate_nodes(model: ir.Model) -> Iterator[Located]:
    """Yield every node of a model, in order, with the path of its graph."""
    for path, graph in graphs(model):
        yield from (Located(node, path) for node in graph)


def graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph]]:
    """Yield every graph of a model with its path, empty for the main graph: functions and bodies included."""
    roots = [("", model.graph)]
    roots += [(f"function {f.domain}.{f.name}", f.graph) for f in model.functions.values()]
    for root in roots:
        pending = [root]
        while pending:
            outer, graph = pending.pop()
            yield outer, graph
            for node in graph:
                for attribute in node.attributes.values():
                    for body in bodies_of(attribute):
                        name = f"{node_label(node)}.{attribute.name}"
                        pending.append((f"{outer}/{name}" if outer else name, body))


def bodies_of(attribute: ir.Attr) -> list[ir.Graph]:
    """Return the graphs that an attribute holds."""
    if attribute.is_ref():
        return []
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


class Matching:
    """Pairs of corresponding nodes of two models.

    Args:
        a: The first model.
        b: The second model.
    """

    def __init__(self, a: ir.Model, b: ir.Model) -> None:
        self.a, self.b = list(locate_nodes(a)), list(locate_nodes(b))
        self.pairs: dict[Located, Located] = {}
        self._partner: dict[ir.Node, ir.Node] = {}
        self._paired: set[ir.Node] = set()
        self._matched_b: set[Located] = set()
        self._by_tensor()
        self._by_name()
        self._by_structure()
        self.only_a = [node for node in self.a if node not in self.pairs]
        self.only_b = [node for node in self.b if node not in self._matched_b]

    def _pair(self, a: Located, b: Located) -> None:
        self.pairs[a] = b
        self._partner[a.node] = b.node
        self._paired |= {a.node, b.node}
        self._matched_b.add(b)

    def _by_tensor(self) -> None:
        makers: dict[tuple[str, str], Located] = {}
        for b in self.b:
            for value in b.node.outputs:
                if value.name:
                    makers.setdefault((b.path, value.name), b)
        for a in self.a:
            other = next((makers[key] for v in a.node.outputs if (key := (a.path, v.name or "")) in makers), None)
            if other is not None and other.operator == a.operator and other not in self._matched_b:
                self._pair(a, other)

    def _by_name(self) -> None:
        named = {(b.path, b.node.name): b for b in self.b if b.node.name and b not in self._matched_b}
        for a in self.a:
            other = named.get((a.path, a.node.name)) if a.node.name and a not in self.pairs else None
            if other is not None and other.operator == a.operator and other not in self._matched_b:
                self._pair(a, other)

    def _by_structure(self) -> None:
        """Pair nodes in topological order: equal operator, attributes and inputs, and a single candidate."""
        candidates: dict[tuple[str, str], list[Located]] = {}
        for b in self.b:
            if b not in self._matched_b:
                candidates.setdefault((b.path, b.operator), []).append(b)
        for a in self.a:
            if a in self.pairs:
                continue
            fits = [
                b
                for b in candidates.get((a.path, a.operator), ())
                if b not in self._matched_b
                and len(b.node.inputs) == len(a.node.inputs)
                and all(self.corresponds(x, y) for x, y in zip(a.node.inputs, b.node.inputs, strict=True))
                and equal_attributes(a.node, b.node)
            ]
            if len(fits) == 1:
                self._pair(a, fits[0])

    def is_lone(self, node: ir.Node) -> bool:
        """Return True if a node of either model has no partner in the other."""
        return node not in self._paired

    def corresponds(self, x: ir.Value | None, y: ir.Value | None) -> bool:
        """Return True if two values come from paired nodes, or are sources of one name.

        Constants that are not weights of one name correspond if their contents are equal.
        """
        if x is None or y is None:
            return x is y
        left, right = x.producer(), y.producer()
        if left is not None and right is not None and self._partner.get(left) is right:
            return x.index() == y.index()
        if left is None and right is None and x.name == y.name:
            return True
        return _equal_constants(x, y)


def _equal_constants(x: ir.Value, y: ir.Value) -> bool:
    left, right = facts.constant_tensor(x), facts.constant_tensor(y)
    if left is None or right is None or left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        return False
    if left.dtype != ir.DataType.STRING and left.nbytes > MOST_BYTES_COMPARED:
        return False
    return same_contents(left, right)


def same_contents(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    """Return True if two tensors of one type and shape have equal bits."""
    if left.dtype == ir.DataType.STRING:
        return bool(np.array_equal(left.numpy(), right.numpy()))
    return all(np.array_equal(_bits(x), _bits(y)) for x, y in chunks(left, right))


def chunks(*tensors: ir.TensorProtocol) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the elements of tensors of one shape in chunks, so that file-backed weights stay on disk."""
    flat = [tensor.numpy().reshape(-1) for tensor in tensors]
    for start in range(0, flat[0].size, CHUNK):
        yield tuple(array[start : start + CHUNK] for array in flat)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


def equal_attributes(a: ir.Node, b: ir.Node) -> bool:
    """Return True if two nodes have equal attributes; bodies are compared node by node elsewhere."""
    return not list(changed_attributes(a, b))


def changed_attributes(a: ir.Node, b: ir.Node) -> Iterator[str]:
    """Yield a line for each attribute that differs."""
    for name in dict.fromkeys([*a.attributes, *b.attributes]):
        left, right = a.attributes.get(name), b.attributes.get(name)
        if left is None or right is None:
            yield f"{name}: {_format_attribute(left)} → {_format_attribute(right)}"
        elif bodies_of(left) or bodies_of(right):
            continue
        elif not _equal(left, right):
            yield f"{name}: {_format_attribute(left)} → {_format_attribute(right)}"


def _equal(left: ir.Attr, right: ir.Attr) -> bool:
    if left.is_ref() or right.is_ref():
        return left.is_ref() and right.is_ref() and left.ref_attr_name == right.ref_attr_name
    if left.type != right.type:
        return False
    if left.type in (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR):
        x, y = left.value, right.value
        return x.dtype == y.dtype and tuple(x.shape) == tuple(y.shape) and same_contents(x, y)
    return bool(left.value == right.value) or repr(left.value) == repr(right.value)


def _format_attribute(attribute: ir.Attr | None) -> str:
    if attribute is None:
        return "unset"
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.size > 8:
            return f"{tensor.dtype.name.lower()} tensor {list(tensor.shape)}"
        return str(tensor.numpy().tolist())
    if bodies_of(attribute):
        return "a body"
    text = str(list(attribute.value) if isinstance(attribute.value, tuple) else attribute.value)
    return text if len(text) <= 60 else text[:57] + "…"
