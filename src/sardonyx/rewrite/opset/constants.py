"""Constant values: tensors of the model, and results of small subgraphs of constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.ops.evaluation import evaluate_nodes
from sardonyx.rewrite.opset.schemas import canonical

_NODES = 256
_ELEMENTS = 1 << 20
_RANDOM = ("Bernoulli", "Dropout", "Multinomial")


def tensor_of_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a ``Constant`` node; None if sparse or a parameter of a function."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        match name:
            case "value":
                return attribute.as_tensor()
            case "value_int":
                return ir.Tensor(np.asarray(attribute.as_int(), np.int64))
            case "value_ints":
                return ir.Tensor(np.asarray(attribute.as_ints(), np.int64))
            case "value_float":
                return ir.Tensor(np.asarray(attribute.as_float(), np.float32))
            case "value_floats":
                return ir.Tensor(np.asarray(attribute.as_floats(), np.float32))
            case "value_string":
                return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
            case "value_strings":
                texts = [text.encode() for text in attribute.as_strings()]
                return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
    return None


def constant_tensor(value: ir.Value, ir_version: int) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer that no caller can override, or of a ``Constant`` node."""
    if value.is_initializer() and (not value.is_graph_input() or ir_version < 4):
        return value.const_value
    node = value.producer()
    if node is None or node.op_type != "Constant" or canonical(node.domain):
        return None
    return tensor_of_constant(node)


def is_deterministic(node: ir.Node) -> bool:
    """Return True if a node's outputs depend on its inputs alone, without bodies or function parameters."""
    for attribute in node.attributes.values():
        if attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return False
    return not canonical(node.domain) and not node.op_type.startswith("Random") and node.op_type not in _RANDOM


def known_shape(node: ir.Node) -> np.ndarray | None:
    """Return the result of a ``Shape`` node whose input sizes are numbers."""
    source = node.inputs[0] if node.op_type == "Shape" and node.inputs else None
    if source is None or source.shape is None or not all(isinstance(dim, int) for dim in source.shape):
        return None
    bounds = [node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end")]
    return np.asarray([dim for dim in source.shape if isinstance(dim, int)], np.int64)[bounds[0] : bounds[1]]


class _NotConstant(Exception):
    """A subgraph with a dependence on a value that is not constant."""


def fold_subgraph(value: ir.Value, ir_version: int, imports: Mapping[str, int]) -> np.ndarray | None:
    """Compute ``value`` from a small subgraph of constants; None if the subgraph is not constant.

    Args:
        value: The result.
        ir_version: IR version of the model, which determines the constant initializers.
        imports: Operator set of every domain of the nodes that compute ``value``.
    """
    nodes: list[ir.Node] = []
    leaves: dict[ir.Value, np.ndarray] = {}
    try:
        _collect(value, ir_version, nodes, leaves, set())
    except _NotConstant:
        return None
    if not nodes:
        return leaves.get(value)
    try:
        array = evaluate_nodes(nodes, [value], leaves.get, imports)[value]
    except SardonyxError:
        return None
    return array if array.size <= _ELEMENTS else None


def _collect(
    value: ir.Value,
    ir_version: int,
    nodes: list[ir.Node],
    leaves: dict[ir.Value, np.ndarray],
    seen: set[ir.Node],
) -> None:
    if value in leaves:
        return
    tensor = constant_tensor(value, ir_version)
    node = value.producer()
    if tensor is None and node is not None and (shape := known_shape(node)) is not None:
        tensor = ir.Tensor(shape)
    if tensor is not None:
        if tensor.size > _ELEMENTS:
            raise _NotConstant
        leaves[value] = tensor.numpy()
        return
    if node is None or not is_deterministic(node) or len(nodes) >= _NODES:
        raise _NotConstant
    if node in seen:
        return
    seen.add(node)
    for source in node.inputs:
        if source is not None:
            _collect(source, ir_version, nodes, leaves, seen)
    nodes.append(node)
