"""Weights in narrower types and without denormals: optional passes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.model.schemas import get_schema, has_schema
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import APPROXIMATES, EXACT, Patch, Refusal, Result
from sardonyx.rewrite.sweep import sweep

_FLUSHED = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "stash_type"})
"""Attributes of standard operators that name an element type."""


@sweep("narrow_int64_weights", exactness=EXACT, default=False)
def narrow_weights(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Store weights of int64 that fit int32 as int32, if all readers accept both types."""
    opset = engine.opset_imports.get("", 1)
    for inner in facts.graphs_of(graph):
        for value in list(inner.initializers.values()):
            readers = tuple(value.uses())
            if value.dtype != ir.DataType.INT64 or not readers or value.is_graph_input() or value.is_graph_output():
                continue
            if not all(use.node.domain in STANDARD and _accepts_int32(use.node, use.idx, opset) for use in readers):
                continue
            array = facts.constant(value)
            if array is None or not array.size or (array.astype(np.int32) != array).any():
                continue
            yield readers[0].node, Patch(edit=_make_store(value, array.astype(np.int32)))


def _accepts_int32(node: ir.Node, index: int, opset: int) -> bool:
    return index in _inputs_of_either_type(node.op_type, opset)


@functools.lru_cache(maxsize=1024)
def _inputs_of_either_type(op_type: str, opset: int) -> frozenset[int]:
    """Return the inputs of a standard operator that accept int32 and int64, for any type of the others."""
    if not has_schema(op_type, opset, ""):
        return frozenset()
    schema = get_schema(op_type, opset, "")
    indices = set()
    for index, formal in enumerate(schema.inputs):
        others = [other.type_str for other in (*schema.inputs, *schema.outputs) if other is not formal]
        alone = (
            formal.option != onnx.defs.OpSchema.FormalParameterOption.Variadic and others.count(formal.type_str) == 0
        )
        if alone and {"tensor(int32)", "tensor(int64)"} <= set(formal.types):
            indices.add(index)
    return frozenset(indices)


def _make_store(value: ir.Value, array: np.ndarray) -> Callable[[], list[ir.Node]]:
    def store() -> list[ir.Node]:
        tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)
        value.const_value = tensor
        value.type = ir.TensorType(tensor.dtype)
        return [use.node for use in value.uses()]

    return store


@sweep("flush_denormal_weights", exactness=APPROXIMATES, default=False)
def flush_weights(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace denormal numbers in float32 and float64 weights by zeros of the same sign."""
    for inner in facts.graphs_of(graph):
        for value in list(inner.initializers.values()):
            readers = tuple(value.uses())
            tensor = value.const_value
            if tensor is None or not readers or tensor.dtype not in _FLUSHED:
                continue
            array = tensor.numpy()
            denormal = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
            if denormal.any():
                flushed = np.where(denormal, np.copysign(np.zeros((), array.dtype), array), array)
                yield readers[0].node, Patch(edit=_make_store(value, flushed))


@sweep("rewrite_float64_to_float32", exactness=APPROXIMATES, default=False)
def single_precision(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Convert float64 to float32: weights, inputs and outputs, and attributes that name a type."""
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None:
        return
    graphs = [g for root in (graph, *(f.graph for f in engine.model.functions.values())) for g in facts.graphs_of(root)]
    if not any(_is_double(value.type) for inner in graphs for value in _values(inner)):
        return
    reason = next((text for inner in graphs if (text := _objection(inner))), "")
    yield first, Refusal(reason) if reason else Patch(edit=lambda: _narrow(engine, graphs))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from {*graph.inputs, *graph.initializers.values()}
    for node in graph:
        yield from node.outputs


def _is_double(kind: ir.TypeProtocol | None) -> bool:
    return kind is not None and _to_single(kind) is not kind


def _to_single(kind: ir.TypeProtocol) -> ir.TypeProtocol:
    """Return the type with float32 for float64, in sequences and optionals too; itself if unchanged."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        inner = _to_single(kind.elem_type)
        return kind if inner is kind.elem_type else type(kind)(inner)
    if isinstance(kind, ir.TensorType) and kind.dtype == ir.DataType.DOUBLE:
        return ir.TensorType(ir.DataType.FLOAT)
    return kind


def _objection(graph: ir.Graph) -> str:
    """Return the reason why a graph needs float64, or an empty string."""
    for node in graph:
        touched = (*node.inputs, *node.outputs)
        if node.domain not in STANDARD and any(v is not None and _is_double(v.type) for v in touched):
            return f"'{node.name}' ({node.op_type}) is not a standard operator and may need float64"
    for tensor in (*(v.const_value for v in graph.initializers.values()), *_attribute_tensors(graph)):
        if tensor is not None and tensor.dtype == ir.DataType.DOUBLE:
            array = tensor.numpy()
            if (np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)).any():
                return f"'{tensor.name}' has elements beyond the range of float32"
    return ""


def _attribute_tensors(graph: ir.Graph) -> Iterator[ir.TensorProtocol]:
    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.as_tensor()


def _narrow(engine: Engine, graphs: list[ir.Graph]) -> list[ir.Node]:
    interface = (*engine.model.graph.inputs, *engine.model.graph.outputs)
    engine.interface_changed = engine.interface_changed or any(_is_double(value.type) for value in interface)
    touched: list[ir.Node] = []
    for graph in graphs:
        for value in _values(graph):
            tensor = value.const_value
            if tensor is not None and tensor.dtype == ir.DataType.DOUBLE:
                value.const_value = _round_to_single(tensor) if value.is_initializer() else None
            if value.type is not None:
                value.type = _to_single(value.type)
        for node in graph:
            _narrow_attributes(node)
            touched.append(node)
    return touched


def _round_to_single(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(np.asarray(tensor.numpy(), np.float32), name=tensor.name)


def _narrow_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.DOUBLE:
            node.attributes[name] = ir.AttrTensor(name, _round_to_single(attribute.as_tensor()))
        elif name in _TYPE_ATTRIBUTES and attribute.value == int(ir.DataType.DOUBLE) and node.domain in STANDARD:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
