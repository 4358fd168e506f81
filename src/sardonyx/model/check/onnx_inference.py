"""Strict shape inference of onnx, with every contradiction put at its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Place
from sardonyx.model.check.scopes import Scope, qualified, scopes
from sardonyx.model.check.skeleton import number_nodes, without_weights, write_defaults
from sardonyx.model.check.tensors import type_name

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

REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError)
"""What the inference of onnx raises."""

_NodeAt = tuple[Scope, onnx.NodeProto]


def check_types(model: onnx.ModelProto) -> Iterator[Finding]:
    """Infers all types and shapes, strictly, and finds what contradicts what is declared.

    Args:
        model: The message, of which the structure is sound: names defined, nodes sorted, no circles.

    Yields:
        The findings.
    """
    numbered = without_weights(model, keep_shapes=True)
    number_nodes(numbered)
    write_defaults(numbered)
    complaint = _infer(numbered)
    if not complaint:
        return
    nodes = [(scope, node) for scope in scopes(model) for node in scope.graph.node]
    placed = list(_split(complaint, nodes))
    if "Inference error(s)" not in complaint:
        # A wrong signature ends the inference at once; without that check it goes on and finds the others.
        placed += _split(_infer(numbered, check_type=False), nodes)
    if placed:
        yield from placed
        return
    contradictions = list(_declared_against_inferred(model))
    yield from contradictions
    if not contradictions:
        yield finding(_kind(complaint), _sentence(complaint, nodes), _first_refused(numbered, complaint, nodes))


def _infer(model: onnx.ModelProto, *, check_type: bool = True) -> str:
    """The complaint of strict inference with data propagation; empty where it has none."""
    try:
        onnx.shape_inference.infer_shapes(model, check_type=check_type, strict_mode=True, data_prop=True)
    except UnicodeDecodeError:
        return "onnx refuses the model, with a message that is not UTF-8 text."
    except REFUSALS as error:
        return str(error) or type(error).__name__
    return ""


def infer(model: onnx.ModelProto, *, data_prop: bool = False) -> onnx.ModelProto | None:
    """A copy with the types and shapes that follow; None where inference, though not strict, refuses the model."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except REFUSALS:
        return None


def _split(complaint: str, nodes: list[_NodeAt]) -> Iterator[Finding]:
    """One finding for each innermost node that a complaint names."""
    marks = list(_ENTRY.finditer(complaint))
    said: set[tuple[int, str]] = set()
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(complaint)
        reason = _sentence(complaint[mark.end() : end], nodes)
        number = int(mark.group(1))
        if not reason or number >= len(nodes) or (number, reason) in said:
            continue
        said.add((number, reason))
        scope, node = nodes[number]
        yield finding(_kind(reason), reason, scope.at(node))


def _declared_against_inferred(model: onnx.ModelProto) -> Iterator[Finding]:
    """Compares declared element types and shapes of the main graph with what follows without the declarations."""
    bare = without_weights(model, keep_shapes=True)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.ClearField("type")
    inferred = infer(bare, data_prop=True)
    if inferred is None:
        return
    follows = {value.name: value.type for value in (*inferred.graph.value_info, *inferred.graph.output)}
    for tensor in model.graph.initializer:
        follows[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    makers = {name: node for node in model.graph.node for name in node.output}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = follows.get(value.name)
        if kind is None or not kind.HasField("tensor_type") or not value.type.HasField("tensor_type"):
            continue
        code, reason = _contradiction(value.type.tensor_type, kind.tensor_type)
        if code:
            maker = makers.get(value.name)
            where = Place(tensor=value.name)
            if maker is not None:
                where = Place("", maker.name, qualified(maker.domain, maker.op_type), value.name)
            yield finding(code, reason, where)


def _contradiction(declared: onnx.TypeProto.Tensor, inferred: onnx.TypeProto.Tensor) -> tuple[str, str]:
    if declared.elem_type and inferred.elem_type and declared.elem_type != inferred.elem_type:
        names = type_name(declared.elem_type).lower(), type_name(inferred.elem_type).lower()
        return "type-mismatch", f"declared as {names[0]}, and it is {names[1]}."
    if not declared.HasField("shape") or not inferred.HasField("shape"):
        return "", ""
    shapes = [
        [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.shape.dim]
        for kind in (declared, inferred)
    ]
    differ = len(shapes[0]) != len(shapes[1]) or any(
        isinstance(one, int) and isinstance(other, int) and one != other for one, other in zip(*shapes, strict=True)
    )
    return ("shape-mismatch", f"declared with shape {shapes[0]}, and it has {shapes[1]}.") if differ else ("", "")


def _first_refused(model: onnx.ModelProto, complaint: str, nodes: list[_NodeAt]) -> Place:
    """The node of the main graph up to which inference goes well, by bisection over the length of the graph."""
    count = len(model.graph.node)

    def refused(length: int) -> bool:
        part = onnx.ModelProto()
        part.CopyFrom(model)
        del part.graph.node[length:]
        del part.graph.output[:]
        return bool(_infer(part))

    if not refused(count):
        return Place(item="graph outputs")
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if refused(middle) else (middle + 1, high)
    if low == 0:
        return Place(item="graph inputs and weights")
    scope, node = nodes[low - 1]
    return scope.at(node)


def _kind(reason: str) -> str:
    return next((code for pattern, code in _KINDS if re.search(pattern, reason)), "inference")


def _sentence(text: str, nodes: list[_NodeAt]) -> str:
    """The text without the marks of C++, its numbers replaced by the nodes' names."""

    def name(match: re.Match[str]) -> str:
        number = int(match.group(2))
        return str(nodes[number][0].at(nodes[number][1])) if number < len(nodes) else ""

    words = " ".join(_NUMBERED.sub(name, _NOISE.sub("", text)).split())
    return words if not words or words.endswith(".") else f"{words}."
