"""Checks of declared types and shapes of values, and of names and attributes of nodes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.scopes import Scope, scopes
from sardonyx.model.check.tensors import content_bytes, elements, type_name
from sardonyx.model.contributed_attributes import CONTRIBUTED_ATTRIBUTES
from sardonyx.model.unchecked_attributes import UNCHECKED

_TERABYTE = 2**40
_LARGEST = 2**63 - 1
_MAX_TYPE_DEPTH = 20


def check_declarations(model: onnx.ModelProto, commands: Commands) -> Iterator[Finding]:
    """Report impossible declared types and sizes, duplicate node names, and ignored attributes.

    Args:
        model: The message.
        commands: Builds the command lines of the remedies.

    Yields:
        The findings.
    """
    for scope in scopes(model):
        yield from _check_nodes(scope)
        graph = scope.graph
        if isinstance(graph, onnx.FunctionProto):
            values = list(graph.value_info)
            interface: set[str] = set()
        else:
            values = [*graph.input, *graph.output, *graph.value_info]
            interface = {value.name for value in graph.input}
        for value in values:
            yield from _check_value(scope, value, commands if value.name in interface and scope.is_main else None)
        yield from _check_filled_constants(scope)


def _check_nodes(scope: Scope) -> Iterator[Finding]:
    seen: set[str] = set()
    reported: set[str] = set()
    for node in scope.graph.node:
        if node.name in seen and node.name not in reported:
            reported.add(node.name)
            yield finding("node-duplicate", "another node of the graph has this name.", scope.at(node))
        yield from _ignored_attributes(scope, node)
        yield from _unknown_attributes(scope, node)
        if node.name:
            seen.add(node.name)


def _ignored_attributes(scope: Scope, node: onnx.NodeProto) -> Iterator[Finding]:
    known = UNCHECKED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    for item in node.attribute if known else ():
        if known and item.name not in known:
            problem = f"engines ignore the attribute {item.name!r}; known are {', '.join(sorted(known))}."
            yield finding("attribute-ignored", problem, scope.at(node))


def _unknown_attributes(scope: Scope, node: onnx.NodeProto) -> Iterator[Finding]:
    listed = CONTRIBUTED_ATTRIBUTES.get(node.op_type) if node.domain == "com.microsoft" else None
    known = None if listed is None else listed.split()
    for item in node.attribute if known is not None else ():
        if known is not None and item.name not in known:
            problem = f"{node.op_type} has no attribute {item.name!r}; known are {', '.join(known) or 'none'}."
            yield finding("attribute-unknown", problem, scope.at(node))


def _check_value(scope: Scope, value: onnx.ValueInfoProto, commands: Commands | None) -> Iterator[Finding]:
    kind = value.type
    where = scope.at(tensor=value.name)
    for _ in range(_MAX_TYPE_DEPTH):
        which = kind.WhichOneof("value")
        if which == "sequence_type":
            kind = kind.sequence_type.elem_type
        elif which == "optional_type":
            kind = kind.optional_type.elem_type
        elif which == "map_type":
            kind = kind.map_type.value_type
        else:
            break
    else:
        yield finding("nesting-too-deep", f"the type has more than {_MAX_TYPE_DEPTH} levels.", where)
        return
    if which == "opaque_type" and not kind.opaque_type.name:
        yield finding("opaque-type", "the opaque type has no name.", where)
    if which not in ("tensor_type", "sparse_tensor_type"):
        return
    tensor = kind.tensor_type if which == "tensor_type" else kind.sparse_tensor_type
    if tensor.elem_type == TensorProto.UNDEFINED or tensor.elem_type not in TensorProto.DataType.values():
        yield finding("value-type", f"the element type is {type_name(tensor.elem_type).lower()}.", where)
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    if any(size is not None and size < 0 for size in sizes):
        shape = ["?" if size is None else size for size in sizes]
        names = [f"d{axis}" if size is None or size < 0 else str(size) for axis, size in enumerate(sizes)]
        command = commands.set_shape({value.name: ",".join(names)}) if commands else ""
        yield finding("dimension-invalid", f"the declared shape is {shape}.", where, command=command)
        return
    known = [size for size in sizes if size is not None]
    if 0 in known:
        return
    if elements(known) > _LARGEST:
        yield finding(
            "dimension-overflow", f"the number of elements of the declared shape {known} exceeds 64 bits.", where
        )
    elif content_bytes(tensor.elem_type, elements(known)) >= _TERABYTE:
        size = content_bytes(tensor.elem_type, elements(known)) / _TERABYTE
        yield finding("tensor-too-large", f"the declared shape {known} takes {size:,.0f} TB.", where)


def _check_filled_constants(scope: Scope) -> Iterator[Finding]:
    """Report huge constants in compact form: ``ConstantOfShape``, ``Expand``, ``Tile`` of a known shape."""
    shape_inputs = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1}
    nodes = [node for node in scope.graph.node if node.op_type in shape_inputs and not node.domain]
    if not nodes:
        return
    known = _small_integers(scope)
    for node in nodes:
        position = shape_inputs[node.op_type]
        shape = known.get(node.input[position]) if len(node.input) > position else None
        if shape and all(size > 0 for size in shape) and elements(shape) >= _TERABYTE:
            yield finding("tensor-too-large", f"the output has at least {elements(shape):,} elements.", scope.at(node))


def _small_integers(scope: Scope) -> dict[str, list[int]]:
    known: dict[str, list[int]] = {}
    tensors: list[tuple[str, onnx.TensorProto]] = []
    if isinstance(scope.graph, onnx.GraphProto):
        tensors += [(tensor.name, tensor) for tensor in scope.graph.initializer]
    for node in scope.graph.node:
        if node.op_type == "Constant" and node.output:
            tensors += [(node.output[0], item.t) for item in node.attribute if item.name == "value"]
            known.update((node.output[0], list(item.ints)) for item in node.attribute if item.name == "value_ints")
    for name, tensor in tensors:
        if tensor.data_type != TensorProto.INT64 or len(tensor.dims) != 1 or not 0 < tensor.dims[0] <= 16:
            continue
        if len(tensor.raw_data) == 8 * tensor.dims[0] or len(tensor.int64_data) == tensor.dims[0]:
            known[name] = onnx.numpy_helper.to_array(tensor).tolist()
    return known
