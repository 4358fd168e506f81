"""Cuts the part of a model between named tensors out into a model of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, lower_ir_version
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import facts
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.surgery.interface import (
    annotated,
    bodies_within,
    drop_unused_functions,
    keep_annotations,
    shown,
    values_of,
)


def extract(model: Loadable, outputs: Sequence[str], inputs: Sequence[str] | None = None) -> ir.Model:
    """Cuts out what computes ``outputs`` from ``inputs``.

    Args:
        model: A Model, which is not changed, or anything that ``sardonyx.load`` takes.
        outputs: Tensors of the main graph that the part gives, in this order.
        inputs: Tensors of the main graph that it is given, in this order; a weight may be one. None takes the graph
            inputs that the outputs depend on.

    Returns:
        A new Model that shares its tensors with ``model``: its nodes, weights and functions are those that the outputs
        need.

    Raises:
        OptionError: A name is no tensor of the main graph or is given twice, the outputs depend on a graph input
            that is not among ``inputs``, or the type of a tensor that becomes an input or output is not known.
    """
    for option, names in (("outputs", outputs), ("inputs", inputs or ())):
        if isinstance(names, str):
            raise OptionError(f"'{names}' is one text, not a list of names", where=option)
        if twice := sorted({name for name in names if list(names).count(name) > 1}):
            raise OptionError(f"named twice: {shown(twice)}", where=option)
    if not outputs:
        raise OptionError("names no tensor", where="outputs")
    part = copy_model(model_io.load(model))
    listed = annotated(part)
    infer_shapes(part, strict=False)
    graph = part.graph
    wanted = [_find(graph, name, "outputs") for name in outputs]
    given = None if inputs is None else [_find(graph, name, "inputs") for name in inputs]
    _require_types([value for value in (*wanted, *(given or ())) if value.producer() is not None])
    if given is not None:
        given = [_as_input(graph, value, wanted) for value in given]
    graph.outputs.clear()
    graph.outputs.extend(wanted)
    _keep(graph, wanted, given)
    drop_unused_functions(part)
    keep_annotations(part, listed)
    lower_ir_version(part)
    return part


def _find(graph: ir.Graph, name: str, option: str) -> ir.Value:
    values = values_of(graph)
    if name in values:
        return values[name]
    for body in bodies_within(graph):
        if name in values_of(body):
            raise OptionError(
                f"'{name}' lies in a body, which cannot be cut", where=option, remedy="Name tensors of the main graph."
            )
    near = difflib.get_close_matches(name, values, n=3)
    remedy = f"Did you mean {' or '.join(near)}?" if near else "`sardonyx info` lists the interface."
    raise OptionError(f"'{name}' is no tensor of the main graph", where=option, remedy=remedy)


def _require_types(values: Iterable[ir.Value]) -> None:
    """Refuses what no engine could be told the type of: results of operators that inference does not know."""
    untyped = [value for value in values if value.type is None and not value.is_graph_output()]
    if untyped:
        node = untyped[0].producer()
        assert node is not None
        raise OptionError(
            f"the type of {shown(repr(v.name) for v in untyped)} is not known: it comes from {node_label(node)} "
            f"({node.domain or 'ai.onnx'}), which inference does not know",
            where="extract",
            remedy="Cut elsewhere, list its type in the model's value_info, or define the operator.",
        )


def _as_input(graph: ir.Graph, value: ir.Value, wanted: list[ir.Value]) -> ir.Value:
    """The value as a graph input of its name: itself where it is one already, else one that takes its place."""
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
    wanted[:] = [entry if other is value else other for other in wanted]
    graph.inputs.append(entry)
    return entry


def _keep(graph: ir.Graph, wanted: Iterable[ir.Value], given: list[ir.Value] | None) -> None:
    """Removes all that the wanted values do not need, and makes ``given`` (or what is needed) the inputs."""
    needed, nodes = _ancestors(graph, wanted)
    required = [value for value in graph.inputs if value in needed]
    if given is None:
        given = required
    missing = [value for value in required if value not in given and not value.is_initializer()]
    if missing:
        raise OptionError(
            f"the outputs also depend on {shown(repr(v.name) for v in missing)}",
            where="inputs",
            remedy="Name these too, or tensors between them and the outputs.",
        )
    defaults = [value for value in required if value.is_initializer() and value not in given]
    graph.remove([node for node in graph if node not in nodes])
    for name in [name for name, value in graph.initializers.items() if value not in needed]:
        del graph.initializers[name]
    graph.inputs.clear()
    graph.inputs.extend([*given, *defaults])


def _ancestors(graph: ir.Graph, wanted: Iterable[ir.Value]) -> tuple[set[ir.Value], set[ir.Node]]:
    """The values and the nodes of the graph that the wanted values are computed from, bodies' captures included."""
    values: set[ir.Value] = set()
    nodes: set[ir.Node] = set()
    pending = list(wanted)
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
            for each in (body, *bodies_within(body)):
                pending.extend(each.outputs)
    return values, nodes
