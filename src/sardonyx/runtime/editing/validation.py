"""What is checked of a model that was changed, and told of it anew, before it may run."""

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
from sardonyx.rewrite.inference import ir_type
from sardonyx.rewrite.structure import plainly_sound, require_structure
from sardonyx.runtime.node import read_by


def settle(model: ir.Model, touched: Collection[ir.Value], added: Collection[ir.Node]) -> None:
    """Order the nodes of a model, check it, and infer the types of what was changed.

    Args:
        model: Is changed in place.
        touched: Values whose types may be others than are declared.
        added: Nodes that are new.

    Raises:
        InvalidModelError: Nodes wait for each other, or something is read that nothing computes.
        UnsupportedError: An operator has no definition.
        SardonyxError: A node does not take its inputs.
    """
    _require_operators(model, added)
    if not plainly_sound(model):
        try:
            model.graph.sort()
        except ValueError as error:
            raise InvalidModelError("nodes wait for each other in a circle.", where=_circle(model.graph)) from error
        if not plainly_sound(model):
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


def _circle(graph: ir.Graph) -> str:
    """Some nodes of a circle, for a message."""
    waiting = {node: {value.producer() for value in read_by(node)} - {node} for node in graph}
    while done := [node for node, before in waiting.items() if not before & waiting.keys()]:
        for node in done:
            del waiting[node]
    return ", ".join(node_label(node) for node in list(waiting)[:4])


def _forget_types(graph: ir.Graph, touched: Collection[ir.Value]) -> dict[ir.Value, tuple[Any, Any]]:
    """Leave open what is declared of values that may be of other types now; what was declared of outputs among them."""
    changed = set(touched)
    for node in graph:
        if not changed.isdisjoint(read_by(node)):
            changed.update(node.outputs)
    ends = set(graph.outputs)
    declared = {}
    for value in changed:
        if value.producer() is None:
            continue
        if value in ends:
            declared[value] = (value.type, value.shape)
        value.type, value.shape = None, None
    return declared


def _declare(value: ir.Value, found: Type | None, declared: tuple[Any, Any]) -> None:
    """Declare an output as it was inferred, and as it was declared where inference cannot tell."""
    type, shape = declared
    if found is None:
        value.type, value.shape = type, shape
        return
    value.type = ir_type(found)
    if not isinstance(found, TensorType) or found.shape is None:
        value.shape = shape if value.type == type else None
        return
    sizes = [size if isinstance(size, int) else _told(size) for size in found.shape]
    if shape is not None and value.type == type and len(shape) == len(sizes):
        was = [size if isinstance(size, int) else size.value for size in shape]
        sizes = [a if b is None else b for a, b in zip(was, sizes, strict=True)]
    value.shape = ir.Shape(sizes)


def _told(size: Dim) -> str | None:
    """A size as a file says it: one that only the run tells has no name."""
    made_up = any(symbol.startswith((DEFINED, *inference.UNNAMED)) for symbol in size.symbols())
    return None if made_up else str(size)
