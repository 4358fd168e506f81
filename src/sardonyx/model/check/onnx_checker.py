"""onnx.checker, with a location for each error.

The C++ checker stops at the first error and names its node only if the node has a name. So a refused model is taken
apart, and each node, value and tensor is checked separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
import onnx.onnx_cpp2py_export.checker as cpp

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.functions import called_function
from sardonyx.model.check.rephrasing import rephrase
from sardonyx.model.check.scopes import Scope, canonical_domain, function_key, scopes
from sardonyx.model.check.skeleton import without_weights
from sardonyx.model.schemas import representable

_KINDS = (
    (r"No Op registered", "operator-unknown"),
    (r"is deprecated in", "operator-deprecated"),
    (r"Unrecognized attribute", "attribute-unknown"),
    (r"Mismatched attribute type|type field and data field mismatch|Invalid attribute type", "attribute-type"),
    (r"Required attribute", "attribute-missing"),
    (r"appeared multiple times", "attribute-duplicate"),
    (r"has (in|out)put size|has zero inputs and zero outputs", "arity"),
    (r"has an empty string in the graph", "input-missing"),
    (r"No opset import|No Opset registered", "opset-missing"),
    (r"Cycle detected in model-local function", "function-recursive"),
    (r"Function call chain depth", "function-depth"),
    (r"metadata", "metadata-duplicate"),
    (r"Field 'op_type'", "node-operator"),
    (r"Field 'name' of 'graph'", "graph-name"),
    (r"Field 'name' of 'type'", "opaque-type"),
    (r"Field '(type|shape|elem_type|value_case)' of", "value-type"),
    (r"opset", "opset-missing"),
    (r"ir_version", "ir-version"),
)
_CONTEXT = re.compile(r"\n*==> Context:.*", re.DOTALL)
_NOT_TEXT = "onnx.checker refuses the model, with a message that is not UTF-8 text."
_STUB = onnx.GraphProto(name="body")


def check_with_onnx(model: onnx.ModelProto, reported: frozenset[str]) -> Iterator[Finding]:
    """Run onnx.checker and locate its errors.

    Args:
        model: The message, with a structure sound enough for C++.
        reported: The codes of errors reported by other checks; an error without a location is not reported again.

    Yields:
        The findings.
    """
    try:
        onnx.checker.check_model(without_weights(model, keep_shapes=False))
    except UnicodeDecodeError:
        message = _NOT_TEXT
    except (onnx.checker.ValidationError, ValueError) as error:
        message = str(error)
    else:
        return
    located = list(_check_parts(model))
    yield from located
    if located or reported - {"external-file", "external-range"}:
        return
    reason = _sentence(message)
    yield finding(_kind(message), reason, Location(tensor=_quoted_name(message)))


def _check_parts(model: onnx.ModelProto) -> Iterator[Finding]:
    functions = {function_key(function): index for index, function in enumerate(model.functions)}
    for scope in scopes(model):
        context = cpp.CheckerContext()
        context.ir_version = model.ir_version
        imports = scope.opsets if model.ir_version >= 3 else {"": 1}
        context.opset_imports = {domain: representable(version) for domain, version in imports.items()}
        if isinstance(scope.graph, onnx.GraphProto):
            yield from _check_values(scope, scope.graph, context)
        for node in scope.graph.node:
            if called_function(node, functions) is None and canonical_domain(node.domain) in context.opset_imports:
                yield from _check_node(scope, node, context)


def _check_values(scope: Scope, graph: onnx.GraphProto, context: cpp.CheckerContext) -> Iterator[Finding]:
    if not graph.name:
        yield finding("graph-name", "the graph has no name.", scope.at())
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            reason = _refusal(lambda value=value: cpp.check_value_info(value.SerializeToString(), context))
            if reason:
                yield finding(_kind(reason), f"{kind}: {_sentence(reason)}", scope.at(tensor=value.name))
    for sparse in graph.sparse_initializer:
        reason = _refusal(lambda sparse=sparse: cpp.check_sparse_tensor(sparse.SerializeToString(), context))
        if reason:
            yield finding("sparse-tensor", _sentence(reason), scope.at(tensor=sparse.values.name))


def _check_node(scope: Scope, node: onnx.NodeProto, context: cpp.CheckerContext) -> Iterator[Finding]:
    """Check a single node; its bodies, which are scopes of their own, are replaced by empty ones."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            attribute.g.CopyFrom(_STUB)
        for graph in attribute.graphs:
            graph.CopyFrom(_STUB)
        for tensor in (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors:
            _empty(tensor)
    serialized = copy.SerializeToString()
    reason = _refusal(lambda: cpp.check_node(serialized, context, cpp.LexicalScopeContext()))
    if reason:
        yield finding(_kind(reason), rephrase(_sentence(reason), node), scope.at(node))


def _empty(tensor: onnx.TensorProto) -> None:
    """Clear all but name and type: contents are checked separately, so C++ need not compute their sizes."""
    kind, name = tensor.data_type, tensor.name
    tensor.Clear()
    tensor.data_type, tensor.name = kind, name
    tensor.dims.append(0)


def _refusal(check: object) -> str:
    try:
        check()  # type: ignore[operator]
    except UnicodeDecodeError:
        return _NOT_TEXT
    except (onnx.checker.ValidationError, ValueError) as error:
        return str(error)
    return ""


def _kind(reason: str) -> str:
    return next((code for pattern, code in _KINDS if re.search(pattern, reason)), "checker")


def _sentence(reason: str) -> str:
    text = " ".join(_CONTEXT.sub("", reason).split())
    return text if text.endswith(".") else f"{text}."


def _quoted_name(reason: str) -> str:
    match = re.search(r"(?:tensor name: |however '|output ')([^')]+)", reason)
    return match.group(1) if match else ""
