"""IR versions: the features added by each, and lowering of a model."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from sardonyx.errors import OpsetConversionError, OptionError
from sardonyx.rewrite.opset.scope import bodies_of, name_of

_T = ir.DataType
_OLDEST = 3

TYPE_SINCE: dict[ir.DataType, int] = {
    _T.BFLOAT16: 4,
    _T.FLOAT8E4M3FN: 9,
    _T.FLOAT8E4M3FNUZ: 9,
    _T.FLOAT8E5M2: 9,
    _T.FLOAT8E5M2FNUZ: 9,
    _T.UINT4: 10,
    _T.INT4: 10,
    _T.FLOAT4E2M1: 11,
    _T.FLOAT8E8M0: 12,
    _T.UINT2: 13,
    _T.INT2: 13,
    _T.FLOAT6E2M3: 14,
    _T.FLOAT6E3M2: 14,
}
"""The IR version of each newer element type; others are as old as ONNX (``onnx.proto``, Version)."""


def at_least(domain: str, opset: int) -> int:
    """Return the IR version of the release that introduced an operator set."""
    version: int = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid(domain, opset)], ignore_unknown=True)
    return version


def set_ir_version(model: ir.Model, ir_version: int) -> None:
    """Set another IR version, in place.

    Before IR 4 every initializer has to be a graph input too, so missing inputs are added. A newer IR version has all
    features of an older one.

    Args:
        model: The Model to change.
        ir_version: The IR version.

    Raises:
        OptionError: The IR version is unknown, or has no operator sets (1 and 2).
        OpsetConversionError: The version lacks a feature of the model; names the feature.
    """
    if not _OLDEST <= ir_version <= onnx.IR_VERSION:
        raise OptionError(
            f"expected an IR version from {_OLDEST} to {onnx.IR_VERSION}, got {ir_version}",
            where="ir_version",
            remedy="Choose a version in this range.",
        )
    if ir_version < model.ir_version:
        _require_holds(model, ir_version)
    if ir_version < 4:
        _initializers_to_inputs(model.graph)
    model.ir_version = ir_version


def _require_holds(model: ir.Model, ir_version: int) -> None:
    for where, since, problem in _needs(model):
        if since > ir_version:
            raise OpsetConversionError(f"IR version {ir_version} lacks {problem} (needs {since})", where=where)


def _needs(model: ir.Model) -> list[tuple[str, int, str]]:
    """Return every feature of the model newer than IR 3: location, version, and feature."""
    needs: list[tuple[str, int, str]] = []
    for identifier, function in model.functions.items():
        where = f"function {identifier[0]}::{identifier[1]}"
        needs.append((where, 8, "model-local functions"))
        if identifier[2]:
            needs.append((where, 10, "overloads of functions"))
        if any(not attribute.is_ref() and attribute.value is not None for attribute in function.attributes.values()):
            needs.append((where, 9, "default attribute values of functions"))
    if model.device_configurations:
        needs.append(("the model", 11, "device configurations"))
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for value in (*graph.inputs, *graph.initializers.values()):
            needs.extend(_needs_of_value(value))
        for node in ir.traversal.RecursiveGraphIterator(graph):
            needs.extend(_needs_of_node(node))
    return needs


def _needs_of_node(node: ir.Node) -> list[tuple[str, int, str]]:
    needs = [need for value in node.outputs for need in _needs_of_value(value)]
    where = name_of(node)
    if node.device_configurations:
        needs.append((where, 11, "device configurations"))
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            needs.append((where, TYPE_SINCE.get(attribute.as_tensor().dtype, 1), "tensors of this element type"))
        elif attribute.type in (ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS):
            needs.append((where, 6, "sparse tensors"))
        for body in bodies_of(attribute):
            for value in (*body.inputs, *body.initializers.values()):
                needs.extend(_needs_of_value(value))
            if body.initializers:
                needs.append((where, 4, "initializers of bodies outside the inputs"))
    return needs


def _needs_of_value(value: ir.Value) -> list[tuple[str, int, str]]:
    where = f"tensor {value.name!r}"
    needs: list[tuple[str, int, str]] = []
    if value.dtype is not None:
        needs.append((where, TYPE_SINCE.get(value.dtype, 1), f"{value.dtype.name} tensors"))
    if isinstance(value.type, ir.OptionalType):
        needs.append((where, 8, "optional types"))
    if isinstance(value.type, ir.SparseTensorType):
        needs.append((where, 8, "sparse tensor types"))
    return needs


def _initializers_to_inputs(graph: ir.Graph) -> None:
    present = set(graph.inputs)
    graph.inputs.extend(value for value in graph.initializers.values() if value not in present)
