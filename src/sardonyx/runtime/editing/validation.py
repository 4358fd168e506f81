"""Validation of an edited model: node order, structure and types."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_ir as ir

from sardonyx.core.dim import Dim
from sardonyx.core.ir.graph import DEFINED
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import InvalidModelError, UnsupportedError
from sardonyx.model import to_proto
from sardonyx.ops import inference, registry
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.analysis.inference import ir_type
from sardonyx.rewrite.analysis.structure import is_evidently_sound, require_structure
from sardonyx.runtime.node import read_by


def validate(model: ir.Model, touched: Collection[ir.Value], added: Collection[ir.Node]) -> None:
    """Sort the nodes of a model, validate its structure, and infer the types of changed values.

    Args:
        model: The model, changed in place.
        touched: Values whose types may differ from their declarations.
        added: New nodes.

    Raises:
        InvalidModelError: The graph has a cycle, or a node reads an undefined value.
        UnsupportedError: An operator has no definition.
        SardonyxError: A node does not accept its inputs.
    """
    _require_operators(model, added)
    if not is_evidently_sound(model):
        try:
            model.graph.sort()
        except ValueError as error:
            raise InvalidModelError("the graph has a cycle.", where=_cycle(model.graph)) from error
        if not is_evidently_sound(model):
            require_structure(to_proto(model, weights=False))
    outputs = _forget_types(model.graph, touched)
    inferred = inference.infer(model)
    inferred.require_consistency(model.graph)
    for value, declared in outputs.items():
        _declare(value, inferred.type(value), declared)


def _require_operators(model: ir.Model, added: Collection[ir.Node]) -> None:
    for node in added:
        version = model.graph.opset_imports.get(node.domain, 1)
        known = registry.find(registry.canonical(node.domain), node.op_type, version)
        if known is None and node.op_identifier() not in model.functions:
            raise UnsupportedError(
                f"{node.domain + '.' if node.domain else ''}{node.op_type} has no definition in version {version}.",
                where=node_label(node),
                remedy="Define it with `@sardonyx.operator`.",
            )


def _cycle(graph: ir.Graph) -> str:
    """Return the labels of some nodes of a cycle, for a message."""
    pending = {node: {value.producer() for value in read_by(node)} - {node} for node in graph}
    while ready := [node for node, producers in pending.items() if not producers & pending.keys()]:
        for node in ready:
            del pending[node]
    return ", ".join(node_label(node) for node in list(pending)[:4])


def _forget_types(graph: ir.Graph, touched: Collection[ir.Value]) -> dict[ir.Value, tuple[Any, Any]]:
    """Clear the types of values that may have changed; return the former declarations of outputs among these values."""
    changed = set(touched)
    for node in graph:
        if not changed.isdisjoint(read_by(node)):
            changed.update(node.outputs)
    outputs = set(graph.outputs)
    declared = {}
    for value in changed:
        if value.producer() is None:
            continue
        if value in outputs:
            declared[value] = (value.type, value.shape)
        value.type, value.shape = None, None
    return declared


def _declare(value: ir.Value, inferred: Type | None, declared: tuple[Any, Any]) -> None:
    """Set the type of an output to the inferred type, completed by the former declaration."""
    type, shape = declared
    if inferred is None:
        value.type, value.shape = type, shape
        return
    value.type = ir_type(inferred)
    if not isinstance(inferred, TensorType) or inferred.shape is None:
        value.shape = shape if value.type == type else None
        return
    sizes = [size if isinstance(size, int) else _size_text(size) for size in inferred.shape]
    if shape is not None and value.type == type and len(shape) == len(sizes):
        before = [size if isinstance(size, int) else size.value for size in shape]
        sizes = [a if b is None else b for a, b in zip(before, sizes, strict=True)]
    value.shape = ir.Shape(sizes)


def _size_text(size: Dim) -> str | None:
    """Return a size as text for a file; None for a size with a generated symbol."""
    is_generated = any(symbol.startswith((DEFINED, *inference.UNNAMED)) for symbol in size.symbols())
    return None if is_generated else str(size)
