"""Facts about values and nodes: constants, ranks, dimensions, attributes with their defaults.

Rules call these functions and never touch protobufs. A fact about a value stays true under every rewrite, because a
rewrite replaces values only by equal ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.model.schemas import get_schema
from sardonyx.ops.registry import user_operators

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS

STANDARD = ("", "ai.onnx")
"""The names of the default domain."""

SMALL = 4096
"""Elements up to which a constant is cheap to read."""

_TYPE_READERS = frozenset({
    ("CastLike", 1), ("EyeLike", 0), ("RandomNormalLike", 0), ("RandomUniformLike", 0), ("Shape", 0),
    ("Size", 0),
})  # fmt: skip
"""Operators and inputs of which the type or the sizes are read, and no element."""

TEXT_BYTES = 64
"""Estimated bytes of a text in memory."""


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a non-overridable initializer or a ``Constant`` node, else None."""
    if value is None:
        return None
    node = value.producer()
    if node is None:
        tensor = value.const_value
        if tensor is None:
            return None
        return tensor if value.is_initializer() and not value.is_graph_input() else None
    if node.op_type != "Constant" or node.domain not in STANDARD:
        return None
    return _constant_node_tensor(node)


_CONSTANT_KINDS = {
    "value": ir.AttributeType.TENSOR, "value_int": ir.AttributeType.INT, "value_ints": ir.AttributeType.INTS,
    "value_float": ir.AttributeType.FLOAT, "value_floats": ir.AttributeType.FLOATS,
    "value_string": ir.AttributeType.STRING, "value_strings": ir.AttributeType.STRINGS,
}  # fmt: skip
"""The kinds of the attributes of ``Constant``."""


def _encoded(text: str | bytes) -> bytes:
    """Return a string of an attribute, which is bytes if the string is not UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def _constant_node_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    cached: ir.TensorProtocol | None = node.outputs[0].const_value
    if cached is not None:
        return cached
    attribute = next(iter(node.attributes.values()), None)
    if attribute is None or attribute.is_ref() or attribute.type is not _CONSTANT_KINDS.get(attribute.name):
        return None
    match attribute.name:
        case "value":
            # Not `as_tensor`, which checks a protocol member by member at every call.
            tensor: ir.TensorProtocol = attribute.value
        case "value_int" | "value_ints":
            tensor = ir.Tensor(np.array(attribute.value, np.int64))
        case "value_float" | "value_floats":
            tensor = ir.Tensor(np.array(attribute.value, np.float32))
        case "value_string":
            tensor = ir.StringTensor([_encoded(attribute.value)], shape=ir.Shape([]))
        case "value_strings":
            strings = [_encoded(text) for text in attribute.value]
            tensor = ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
        case _:
            return None
    node.outputs[0].const_value = tensor
    return tensor


def count(tensor: ir.TensorProtocol) -> int:
    """Return the number of elements of a tensor.

    Several times as fast as the tensor's ``size``, which rules would read at every node.
    """
    return math.prod(cast("Iterable[int]", tensor.shape))


def is_constant(value: ir.Value | None) -> bool:
    """Return True if ``constant`` would give an array; materializes nothing."""
    return constant_tensor(value) is not None


def constant(value: ir.Value | None) -> np.ndarray | None:
    """Return the numpy array of a constant value, else None.

    Materializes the array: test ``is_constant`` and the shape first.
    """
    tensor = constant_tensor(value)
    return None if tensor is None else tensor.numpy()


def small_constant(value: ir.Value | None) -> np.ndarray | None:
    """Return ``constant`` for at most ``SMALL`` elements, else None."""
    tensor = constant_tensor(value)
    return None if tensor is None or count(tensor) > SMALL else tensor.numpy()


def scalar(value: ir.Value | None) -> Any:
    """Return the Python number of a one-element constant (of any rank), else None."""
    tensor = constant_tensor(value)
    if tensor is None or count(tensor) != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy().reshape(()).item()


def constant_ints(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the elements of a small constant integer tensor of rank 0 or 1, else None."""
    array = small_constant(value)
    if array is None or array.ndim > 1 or array.dtype.kind not in "iu":
        return None
    return tuple(int(x) for x in array.reshape(-1))


def rank(value: ir.Value | None) -> int | None:
    """Return the rank, or None if unknown."""
    if value is None:
        return None
    shape = value.shape
    if shape is not None:
        return len(shape)
    tensor = constant_tensor(value)
    return None if tensor is None else len(tensor.shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape if every dimension is a number, else None."""
    if value is None:
        return None
    shape: ir.ShapeProtocol | None = value.shape
    if shape is None:
        tensor = constant_tensor(value)
        if tensor is None:
            return None
        shape = tensor.shape
    dims = tuple(shape)
    return dims if all(type(dim) is int for dim in dims) else None  # type: ignore[return-value]


def dim_at(value: ir.Value | None, axis: int) -> int | None:
    """Return the size of one axis (may be negative) if it is a number, else None."""
    shape = None if value is None else value.shape
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    return dim if isinstance(dim, int) else None


def element_bytes(kind: ir.DataType | None) -> float:
    """Return the bytes of an element; an estimate for texts, and 4 for an unknown type."""
    if kind is None:
        return 4
    return TEXT_BYTES if kind == ir.DataType.STRING else kind.itemsize


def element_type(number: int | None) -> ir.DataType | None:
    """Return the element type that a number in a file names; None if it names none."""
    return None if number is None or number not in ir.DataType._value2member_map_ else ir.DataType(number)


def dtype(value: ir.Value | None) -> ir.DataType | None:
    """Return the element type, or None if unknown or not a tensor."""
    if value is None:
        return None
    kind = value.type
    if kind is None:
        tensor = constant_tensor(value)
        return None if tensor is None else tensor.dtype
    # A sequence or an optional has the element type of its tensors, but is not a tensor.
    return kind.dtype if isinstance(kind, ir.TensorType) else None


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Return True if two shapes are provably equal: equal numbers, or the same named dimension."""
    left, right = a.shape, b.shape
    if left is None or right is None or len(left) != len(right):
        return False
    return all(_same_dim(x, y) for x, y in zip(left, right, strict=True))


def _same_dim(x: int | ir.SymbolicDim, y: int | ir.SymbolicDim) -> bool:
    if isinstance(x, int) or isinstance(y, int):
        return x == y
    return x.value is not None and x.value == y.value


def used_once(value: ir.Value) -> bool:
    """Return True if exactly one node input reads ``value`` and ``value`` is not a graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def reads_elements(node: ir.Node, index: int) -> bool:
    """Return False if the node reads the type or the sizes of an input alone."""
    return (node.op_type, index) not in _TYPE_READERS or node.domain not in STANDARD


def unused(value: ir.Value) -> bool:
    """Return True if nothing reads ``value`` and ``value`` is not a graph output."""
    return not value.uses() and not value.is_graph_output()


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Return True if ``node`` is one of these standard operators."""
    return node is not None and node.op_type in op_types and node.domain in STANDARD


@functools.cache
def _defaults(op_type: str, domain: str, opset: int) -> dict[str, Any]:
    try:
        schema = get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    values: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        proto = attribute.default_value
        if proto is not None and proto.name:
            values[name] = onnx.helper.get_attribute_value(proto)
            if isinstance(values[name], bytes):
                values[name] = values[name].decode()
    return values


class UnknownAttribute(Exception):
    """An attribute refers to one of the enclosing function, unknown before a call: no rule fires."""


def attribute(node: ir.Node, name: str, opset: int, default: Any = None) -> Any:
    """Return an attribute's value: as written, else the schema's default at ``opset``, else ``default``.

    Raises:
        UnknownAttribute: the attribute refers to one of the enclosing function.
    """
    written = node.attributes.data.get(name)
    if written is not None:
        if written.is_ref():
            raise UnknownAttribute(name)
        return written.value
    return _defaults(node.op_type, node.domain, opset).get(name, default)


def refers_to_function_attribute(node: ir.Node) -> bool:
    """Return True if an attribute of the node refers to an attribute of the enclosing function."""
    return any(a.is_ref() for a in node.attributes.data.values())


@functools.cache
def _never_holds_bodies(op_type: str) -> bool:
    return op_type not in ("If", "Loop", "Scan", "SequenceMap") and bool(onnx.defs.has(op_type))


def may_hold_bodies(node: ir.Node) -> bool:
    """Return True unless the node's operator is a standard one that never has a graph attribute."""
    return bool(node.domain) or not _never_holds_bodies(node.op_type)


def bodies(node: ir.Node) -> Sequence[ir.Graph]:
    """Return the graphs in a node's attributes (If, Loop, Scan, SequenceMap, custom operators)."""
    # This runs several times per node: a standard operator without graph attributes returns at once.
    if not node.domain and _never_holds_bodies(node.op_type):
        return ()
    held: list[ir.Graph] = []
    for attr in node.attributes.data.values():
        if attr.is_ref():
            continue
        if attr.type is _GRAPH:
            held.append(attr.as_graph())
        elif attr.type is _GRAPHS:
            held.extend(attr.as_graphs())
    return held


def nodes_of(graph: ir.Graph) -> list[ir.Node]:
    """Return all nodes of a graph in order, each before the nodes of its bodies."""
    nodes = list(graph)
    # One comprehension with a cheap test first: every pass over a model begins here.
    holders = [node for node in nodes if (node.domain or not _never_holds_bodies(node.op_type)) and bodies(node)]
    if not holders:
        return nodes
    ordered: list[ir.Node] = []
    begin = 0
    for holder in holders:
        end = nodes.index(holder, begin) + 1
        ordered += nodes[begin:end]
        for body in bodies(holder):
            ordered += nodes_of(body)
        begin = end
    return ordered + nodes[begin:]


def graphs_of(graph: ir.Graph) -> list[ir.Graph]:
    """Return a graph and all bodies in it, outer before inner."""
    return [inner for inner, _ in levels(graph)]


def levels(graph: ir.Graph) -> list[tuple[ir.Graph, list[ir.Node]]]:
    """Return a graph and all bodies in it, outer before inner, each with its own nodes."""
    nodes = list(graph)
    pairs = [(graph, nodes)]
    for node in nodes:
        if node.domain or not _never_holds_bodies(node.op_type):
            for body in bodies(node):
                pairs += levels(body)
    return pairs


RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators that draw random numbers: never folded, merged or run twice."""


def is_users(node: ir.Node) -> bool:
    """Return True if a user defined the node's operator, in a domain other than the standard's."""
    return node.domain not in STANDARD and (node.domain, node.op_type) in user_operators()


def is_random(node: ir.Node, opset: int | None) -> bool:
    """Return True if the node may draw random numbers, at a version of the default operator set."""
    if node.domain not in STANDARD:
        return is_users(node) and any(operator.is_random for operator in user_operators()[node.domain, node.op_type])
    if node.op_type != "Dropout":
        return node.op_type in RANDOM
    if opset is not None and opset < 7:
        is_test = node.attributes.get("is_test")
        return is_test is None or not is_test.value
    return not is_pure(node)


def is_pure(node: ir.Node) -> bool:
    """Return True if equal inputs give equal outputs: a known operator that draws no random numbers."""
    if node.domain not in ("", "ai.onnx", "ai.onnx.ml") or node.op_type in RANDOM:
        return is_users(node) and not any(
            operator.is_random for operator in user_operators()[node.domain, node.op_type]
        )
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        return training is None or scalar(training) is False or scalar(training) == 0
    if node.op_type == "BatchNormalization" and node.attributes.get("training_mode") is not None:
        return not node.attributes["training_mode"].value
    return all(is_pure(inner) for body in bodies(node) for inner in body)


def captured_values(body: ir.Graph) -> list[ir.Value]:
    """Return the values of outer graphs that a body, or a body in it, reads."""
    inside: set[ir.Value] = set(body.inputs) | set(body.initializers.values())
    nodes = list(nodes_of(body))
    for node in nodes:
        inside.update(node.outputs)
        for nested in bodies(node):
            inside.update(nested.inputs)
            inside.update(nested.initializers.values())
    captured: dict[ir.Value, None] = {}
    for node in nodes:
        captured.update((v, None) for v in node.inputs if v is not None and v not in inside)
    return list(captured)
