"""The model around the nodes being converted: names, shared constants, and what constants alone decide."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.constants import constant_tensor, folded, is_deterministic

_NAME = re.compile(r"[^\W\d][\w.]*")


def name_of(node: ir.Node) -> str:
    """The node as a user would name it: its own name, else its operator and first output."""
    if node.name:
        return f"{node.op_type} node {node.name!r}"
    outputs = [value.name for value in node.outputs if value.name]
    return f"{node.op_type} node that makes {outputs[0]!r}" if outputs else f"{node.op_type} node"


def symbols_of(values: Iterable[ir.Value | None]) -> set[str]:
    """The names that the sizes of some values are written with."""
    shapes = (value.shape for value in values if value is not None and value.shape is not None)
    return {name for shape in shapes for dim in shape for name in _NAME.findall(str(dim))}


def forget_new_symbols(values: Iterable[ir.Value], known: set[str]) -> None:
    """Makes sizes unknown whose names inference made up: made up elsewhere too, they would claim equal sizes."""
    for value in values:
        if value.shape is not None and not symbols_of([value]) <= known:
            value.shape = ir.Shape([dim if set(_NAME.findall(str(dim))) <= known else None for dim in value.shape])


def is_read(value: ir.Value) -> bool:
    """Whether a node or the graph's caller reads a value."""
    return bool(value.uses()) or value.is_graph_output()


class Scope:
    """The model being converted, as adapters see it: fresh names, shared constants, imports.

    Args:
        model: The model being converted.
        graph: The main graph, or the graph of the model-local function being converted.
        in_function: Whether ``graph`` belongs to a function, which holds no initializers.
        imports: Operator set of every domain; the one being converted is kept current by the driver.
    """

    def __init__(self, model: ir.Model, graph: ir.Graph, *, in_function: bool, imports: dict[str, int]) -> None:
        self.model = model
        self.graph = graph
        self.in_function = in_function
        self.imports = imports
        self._constants: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._counts: Counter[str] = Counter()
        self._folded: dict[ir.Value, np.ndarray | None] = {}
        self._names = {value.name for value in graph.inputs} | set(graph.initializers)
        for node in ir.traversal.RecursiveGraphIterator(graph):
            self._names.update(value.name for value in node.outputs)
            for attribute in node.attributes.values():
                for body in bodies_of(attribute):
                    self._names.update(value.name for value in body.inputs)
                    self._names.update(body.initializers)

    def fresh(self, stem: str) -> str:
        """A value name that the model does not use yet."""
        name = stem
        while name in self._names:
            self._counts[stem] += 1
            name = f"{stem}_{self._counts[stem]}"
        self._names.add(name)
        return name

    def initializer(self, tensor: ir.TensorProtocol, stem: str) -> ir.Value:
        """The tensor as an initializer of the main graph; equal ones made here are shared."""
        key = (tensor.dtype, tuple(tensor.shape.numpy()), hashlib.sha256(tensor.tobytes()).digest())
        if key in self._constants:
            return self._constants[key]
        name = self.fresh(stem)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(key[1]), const_value=tensor)
        self.graph.register_initializer(value)
        if self.model.ir_version < 4:
            self.graph.inputs.append(value)
        self._constants[key] = value
        return value

    def remove(self, nodes: Sequence[ir.Node]) -> None:
        """Takes nodes that nothing reads out of their graph again."""
        for node in reversed(nodes):
            assert node.graph is not None
            node.graph.remove(node, safe=True)

    def drop_unused_constants(self) -> None:
        """Drops the constants made here that nothing reads any more."""
        for key, value in list(self._constants.items()):
            if not value.uses() and not value.is_graph_output():
                del self._constants[key]
                self.graph.initializers.pop(str(value.name))
                if value in self.graph.inputs:
                    self.graph.inputs.remove(value)

    def hide_constants(self) -> None:
        """Takes the constants made here out of the graph's inputs, where IR versions before 4 need them."""
        for value in self._constants.values():
            if value in self.graph.inputs:
                self.graph.inputs.remove(value)

    def is_foldable(self, node: ir.Node) -> bool:
        """Whether a node's value is determined by constants alone."""
        return is_deterministic(node) and all(
            value is None or constant_tensor(value, self.model.ir_version) is not None for value in node.inputs
        )

    def folded(self, value: ir.Value, domain: str, opset: int) -> np.ndarray | None:
        """What constants alone make of a value, whose makers are written in operator set ``opset`` of ``domain``."""
        if value not in self._folded:
            self._folded[value] = folded(value, self.model.ir_version, self.imports | {domain: opset})
        return self._folded[value]


def bodies_of(attribute: ir.Attr) -> Sequence[ir.Graph]:
    """The graphs an attribute holds."""
    if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
        return (attribute.as_graph(),)
    if attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
        return attribute.as_graphs()
    return ()
