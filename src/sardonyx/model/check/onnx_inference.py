"""Strict shape inference of onnx, with a location for each contradiction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.rephrasing import rephrase
from sardonyx.model.check.scopes import Scope, qualified, scopes
from sardonyx.model.check.skeleton import number_nodes, without_weights, write_defaults
from sardonyx.model.check.tensors import type_name
from sardonyx.model.check.untyped_operands import infer_typed

_ENTRY = re.compile(r"\(op_type:[^()]*?, node name: @@(\d+)@@\): ?")
_NUMBERED = re.compile(r"(node name: )?@@(\d+)@@")
_NOISE = re.compile(r"\[(?:Shape|Type)InferenceError\] ?|Inference error\(s\): ?")
_KINDS = (
    (r"elem type differs|inconsistent type|unsupported type|Element type", "type-mismatch"),
    (r"shape differ|merge shape info|Mismatch between number of|unification between", "shape-mismatch"),
    (r"[Oo]verflow|narrow: value", "dimension-overflow"),
    (r"input size .* not in range|output size .* not in range|is out of bounds", "arity"),
    (r"same name as both a subgraph initializer", "body-input-weight"),
    (r"Cannot find missing input", "value-undefined"),
    (r"No opset import", "opset-missing"),
    (r"opaque", "opaque-type"),
    (r"Cycle detected in model-local function", "function-recursive"),
)

_BREAKDOWNS = (IndexError, OverflowError, MemoryError)
"""Exceptions of C++ in onnx's inference, at operands that the inference does not expect."""

REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError, *_BREAKDOWNS)
"""Exceptions that onnx's inference raises."""

_NodeAt = tuple[Scope, onnx.NodeProto]


def check_types(model: onnx.ModelProto) -> Iterator[Finding]:
    """Infer all types and shapes strictly, and report contradictions to the declarations.

    Args:
        model: The message, with a sound structure: names defined, nodes sorted, no cycles.

    Yields:
        The findings.
    """
    numbered = without_weights(model, keep_shapes=True)
    number_nodes(numbered)
    write_defaults(numbered)
    message = _infer(numbered)
    if not message:
        return
    nodes = [(scope, node) for scope in scopes(model) for node in scope.graph.node]
    types = _known_types(model)
    located = list(_split(message, nodes, types))
    if "Inference error(s)" not in message:
        # A wrong signature aborts the inference; without the type check, inference continues and finds other errors.
        located += _split(_infer(numbered, check_type=False), nodes, types)
    if located:
        yield from located
        return
    mismatches = list(_compare_declarations(model))
    yield from mismatches
    if not mismatches:
        yield finding(_kind(message), _sentence(message, nodes), _find_refused_node(numbered, message, nodes))


def _infer(model: onnx.ModelProto, *, check_type: bool = True) -> str:
    """Return the error message of strict inference with data propagation; empty on success."""
    try:
        infer_typed(model, check_type=check_type, strict_mode=True, data_prop=True)
    except UnicodeDecodeError:
        return "onnx refuses the model, with a message that is not UTF-8 text."
    except _BREAKDOWNS as error:
        return f"onnx's inference does not expect these operands ({type(error).__name__})."
    except REFUSALS as error:
        return str(error) or type(error).__name__
    return ""


def infer(model: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto | None:
    """Return a copy with inferred types and shapes; None if inference, though not strict, fails."""
    try:
        return infer_typed(model, data_prop=data_prop)
    except REFUSALS:
        return None


def _known_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the declared types of the main graph by name, and those that inference that is not strict adds."""
    inferred = infer(without_weights(model, keep_shapes=True))
    types: dict[str, onnx.TypeProto] = {}
    for part in (model, *([] if inferred is None else [inferred])):
        values = (*part.graph.input, *part.graph.value_info)
        types |= {value.name: value.type for value in values if value.HasField("type")}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _split(message: str, nodes: list[_NodeAt], types: Mapping[str, onnx.TypeProto]) -> Iterator[Finding]:
    """Yield one finding for each innermost node that a message names."""
    marks = list(_ENTRY.finditer(message))
    reported: set[tuple[int, str]] = set()
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(message)
        reason = _sentence(message[mark.end() : end], nodes)
        number = int(mark.group(1))
        if not reason or number >= len(nodes) or (number, reason) in reported:
            continue
        reported.add((number, reason))
        scope, node = nodes[number]
        yield finding(_kind(reason), rephrase(reason, node, types), scope.at(node))


def _compare_declarations(model: onnx.ModelProto) -> Iterator[Finding]:
    """Compare declared types and shapes of the main graph with those inferred without the declarations."""
    bare = without_weights(model, keep_shapes=True)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.ClearField("type")
    inferred = infer(bare, data_prop=True)
    if inferred is None:
        return
    types = {value.name: value.type for value in (*inferred.graph.value_info, *inferred.graph.output)}
    for tensor in model.graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    producers = {name: node for node in model.graph.node for name in node.output}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = types.get(value.name)
        if kind is None or not kind.HasField("tensor_type") or not value.type.HasField("tensor_type"):
            continue
        code, reason = _contradiction(value.type.tensor_type, kind.tensor_type)
        if code:
            producer = producers.get(value.name)
            where = Location(tensor=value.name)
            if producer is not None:
                where = Location("", producer.name, qualified(producer.domain, producer.op_type), value.name)
            yield finding(code, reason, where)


def _contradiction(declared: onnx.TypeProto.Tensor, inferred: onnx.TypeProto.Tensor) -> tuple[str, str]:
    if declared.elem_type and inferred.elem_type and declared.elem_type != inferred.elem_type:
        names = type_name(declared.elem_type).lower(), type_name(inferred.elem_type).lower()
        return "type-mismatch", f"declared as {names[0]}, inferred as {names[1]}."
    if not declared.HasField("shape") or not inferred.HasField("shape"):
        return "", ""
    shapes = [
        [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
        for kind in (declared, inferred)
    ]
    differ = len(shapes[0]) != len(shapes[1]) or any(
        isinstance(one, int) and isinstance(other, int) and one != other for one, other in zip(*shapes, strict=True)
    )
    return ("shape-mismatch", f"declared with shape {shapes[0]}, inferred {shapes[1]}.") if differ else ("", "")


def _find_refused_node(model: onnx.ModelProto, message: str, nodes: list[_NodeAt]) -> Location:
    """Return the first node of the main graph that inference refuses, by bisection over the length."""
    count = len(model.graph.node)

    def refused(length: int) -> bool:
        part = onnx.ModelProto()
        part.CopyFrom(model)
        del part.graph.node[length:]
        del part.graph.output[:]
        return bool(_infer(part))

    if not refused(count):
        return Location(item="graph outputs")
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if refused(middle) else (middle + 1, high)
    if low == 0:
        return Location(item="graph inputs and weights")
    scope, node = nodes[low - 1]
    return scope.at(node)


def _kind(reason: str) -> str:
    return next((code for pattern, code in _KINDS if re.search(pattern, reason)), "inference")


def _sentence(text: str, nodes: list[_NodeAt]) -> str:
    """Return the text without C++ prefixes, with node numbers replaced by node names."""

    def name(match: re.Match[str]) -> str:
        number = int(match.group(2))
        return str(nodes[number][0].at(nodes[number][1])) if number < len(nodes) else ""

    words = " ".join(_NUMBERED.sub(name, _NOISE.sub("", text)).split())
    return words if not words or words.endswith(".") else f"{words}."
