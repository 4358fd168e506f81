"""Extraction of the part of a model between named tensors into a model of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, lower_ir_version
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.surgery.interface import (
    annotated,
    bodies_within,
    drop_unused_functions,
    keep_annotations,
    shown,
    values_of,
)


def extract(model: Loadable, outputs: Sequence[str], inputs: Sequence[str] | None = None) -> ir.Model:
    """Extract the part that computes ``outputs`` from ``inputs``.

    Args:
        model: A Model, which is not changed, or anything accepted by ``sardonyx.load``.
        outputs: Tensors of the main graph to become the outputs, in this order.
        inputs: Tensors of the main graph, weights included, to become the inputs, in this order. None means the graph
            inputs on which the outputs depend.

    Returns:
        A new Model, sharing its tensors with ``model``, with the nodes, weights and functions needed for the
        outputs.

    Raises:
        OptionError: A name is unknown in the main graph or listed twice, the outputs depend on a graph input
            outside ``inputs``, or the type of a new input or output is unknown.
    """
    for option, names in (("outputs", outputs), ("inputs", inputs or ())):
        if isinstance(names, str):
            raise OptionError(f"expected a list of names, got the string '{names}' (not a list)", where=option)
        if repeated := sorted({name for name in names if list(names).count(name) > 1}):
            raise OptionError(f"repeated names: {shown(repeated)}", where=option, remedy="Name each tensor once.")
    if not outputs:
        raise OptionError("expected at least one tensor name, got none", where="outputs")
    part = copy_model(model_io.load(model))
    typed = annotated(part)
    infer_shapes(part, strict=False)
    graph = part.graph
    results = [_find(graph, name, "outputs") for name in outputs]
    entries = None if inputs is None else [_find(graph, name, "inputs") for name in inputs]
    _require_types([value for value in (*results, *(entries or ())) if value.producer() is not None])
    if entries is not None:
        entries = [_as_input(graph, value, results) for value in entries]
    graph.outputs.clear()
    graph.outputs.extend(results)
    _prune(graph, results, entries)
    drop_unused_functions(part)
    keep_annotations(part, typed)
    lower_ir_version(part)
    return part


def _find(graph: ir.Graph, name: str, option: str) -> ir.Value:
    values = values_of(graph)
    if name in values:
        return values[name]
    for body in bodies_within(graph):
        if name in values_of(body):
            raise OptionError(
                f"expected a tensor of the main graph, got '{name}' of a body",
                where=option,
                remedy="Name tensors of the main graph.",
            )
    near = difflib.get_close_matches(name, values, n=3)
    remedy = f"Did you mean {' or '.join(near)}?" if near else "Run `sardonyx info`, which lists the interface."
    raise OptionError(f"unknown tensor '{name}' of the main graph", where=option, remedy=remedy)


def _require_types(values: Iterable[ir.Value]) -> None:
    """Refuse results of operators unknown to inference: an engine needs the type of each input and output."""
    untyped = [value for value in values if value.type is None and not value.is_graph_output()]
    if untyped:
        node = untyped[0].producer()
        assert node is not None
        raise OptionError(
            f"the type of {shown(repr(v.name) for v in untyped)} is not known: inference does not know the operator of "
            f"{node_label(node)} ({node.domain or 'ai.onnx'})",
            where="extract",
            remedy="Cut elsewhere, list its type in the model's value_info, or define the operator.",
        )


def _as_input(graph: ir.Graph, value: ir.Value, results: list[ir.Value]) -> ir.Value:
    """Return a graph input for the value: the value itself if already one, else a replacement."""
    if value.is_graph_input():
        return value
    assert value.name is not None
    if value.is_initializer():
        tensor = value.const_value
        del graph.initializers[value.name]
        if tensor is not None and value.type is None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape([int(dim) for dim in tensor.numpy().shape])
        graph.inputs.append(value)
        value.const_value = None
        return value
    entry = ir.Value(name=value.name, type=value.type, shape=value.shape, doc_string=value.doc_string)
    entry.meta.update(value.meta)
    value.replace_all_uses_with(entry, replace_graph_outputs=True)
    value.name = None
    results[:] = [entry if other is value else other for other in results]
    graph.inputs.append(entry)
    return entry


def _prune(graph: ir.Graph, results: Iterable[ir.Value], entries: list[ir.Value] | None) -> None:
    """Remove everything unneeded for the results; ``entries`` or the required inputs become the inputs."""
    needed, nodes = _ancestors(graph, results)
    required = [value for value in graph.inputs if value in needed]
    if entries is None:
        entries = required
    missing = [value for value in required if value not in entries and not value.is_initializer()]
    if missing:
        raise OptionError(
            f"the outputs also depend on {shown(repr(v.name) for v in missing)}",
            where="inputs",
            remedy="Name these inputs too, or tensors between these inputs and the outputs.",
        )
    defaults = [value for value in required if value.is_initializer() and value not in entries]
    graph.remove([node for node in graph if node not in nodes])
    for name in [name for name, value in graph.initializers.items() if value not in needed]:
        del graph.initializers[name]
    graph.inputs.clear()
    graph.inputs.extend([*entries, *defaults])


def _ancestors(graph: ir.Graph, results: Iterable[ir.Value]) -> tuple[set[ir.Value], set[ir.Node]]:
    """Return the values and nodes of the graph on which the results depend, captures of bodies included."""
    values: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    pending = list(results)
    while pending:
        value = pending.pop()
        if value in values:
            continue
        values.add(value)
        node = value.producer()
        if node is None or node in nodes or node.graph is not graph:
            continue
        nodes.add(node)
        pending.extend(v for v in node.inputs if v is not None)
        for body in facts.bodies(node):
            for inner in facts.nodes_of(body):
                pending.extend(v for v in inner.inputs if v is not None)
            for graph_ in (body, *bodies_within(body)):
                pending.extend(graph_.outputs)
    return values, nodes
