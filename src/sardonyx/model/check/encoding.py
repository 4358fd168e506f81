"""Detection of names that are not UTF-8: protobuf returns bytes, which other checks cannot process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import bodies
from sardonyx.model.check.skeleton import tensors_of

_SHOWN = 40


def check_encoding(model: onnx.ModelProto) -> Iterator[Finding]:
    """Report names, domains and operator types that are not UTF-8.

    Args:
        model: The message.

    Yields:
        One finding for each graph or function with such texts, and one for the header of the model.
    """
    heads = [model.producer_name, model.producer_version, model.domain, model.doc_string]
    imports = [entry.domain for entry in model.opset_import]
    yield from _report([*heads, *imports, *_pairs(model.metadata_props)], "model header")
    pending: list[tuple[onnx.GraphProto | onnx.FunctionProto, str]] = [(model.graph, "main graph")]
    for number, function in enumerate(model.functions):
        signature = [function.name, function.domain, function.overload, *function.input, *function.output]
        imports = [entry.domain for entry in function.opset_import]
        attributes = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
        yield from _report([*signature, *imports, *attributes], f"function {number}")
        pending.append((function, f"function {number}"))
    while pending:
        graph, label = pending.pop()
        yield from _report(_texts(graph), label)
        for number, node in enumerate(graph.node):
            pending.extend((body, f"body in node {number} of the {label}"[:200]) for _, body in bodies(node))


def _texts(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str | bytes]:
    yield from (graph.name, graph.doc_string)
    values = list(graph.value_info)
    if isinstance(graph, onnx.GraphProto):
        values += [*graph.input, *graph.output]
    for value in values:
        yield value.name
        for kind in (value.type.tensor_type, value.type.sparse_tensor_type):
            yield from (dim.dim_param for dim in kind.shape.dim)
    for tensor in tensors_of(graph):
        yield tensor.name
        yield from _pairs(tensor.external_data)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from node.input
        yield from node.output
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)


def _pairs(entries: Iterable[onnx.StringStringEntryProto]) -> Iterator[str | bytes]:
    for entry in entries:
        yield from (entry.key, entry.value)


def _report(texts: Iterable[str | bytes], label: str) -> Iterator[Finding]:
    for text in texts:
        if isinstance(text, bytes):
            shown = text[:_SHOWN].decode("utf-8", "backslashreplace")
            yield finding("text-encoding", f"the text {shown!r} is not UTF-8.", Location(item=label))
            return
