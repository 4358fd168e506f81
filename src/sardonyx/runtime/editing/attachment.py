"""Attachments: whole models that read tensors of another, and can be detached again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.rules.assumed_sizes import same_type
from sardonyx.errors import EditError, ShapeError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.model.tensors import attach as map_external
from sardonyx.ops import inference
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.analysis.names import Names, node_names, value_names
from sardonyx.rewrite.opset.convert import convert_opset
from sardonyx.rewrite.surgery.interface import graphs_of, rename_values
from sardonyx.rewrite.surgery.merging import feed, separate_sizes, take_functions, take_graph
from sardonyx.runtime.node import read_by

_KEY = "sardonyx.attachment"
"""The key in the ``meta`` of a node, weight or input that names its attachment."""


def attach(
    model: ir.Model,
    other: Loadable,
    at: str | Mapping[str, str],
    name: str | None,
    find: Callable[[str], ir.Value],
) -> str:
    """Move the graph of another model into a model; see :meth:`Draft.attach`.

    Args:
        model: The model to change.
        other: The other model, which is copied.
        at: A tensor, or tensors by input of the other model.
        name: The name of the attachment.
        find: Returns the tensor of a name in the model.

    Returns:
        The name of the attachment.
    """
    second = _aligned(copy_model(model_io.load(other)), model)
    _require_data(second)
    names = {node.meta.get(_KEY) for node in model.graph} - {None}
    if name in names:
        raise EditError("the name belongs to another attachment.", where=str(name))
    name = name or Names(map(str, names)).fresh(second.graph.name or "attached")
    pairs = _pairs(second, at, find)
    _require_fit(model, pairs)
    _rename(model, second, name, {entry for entry, _ in pairs})
    functions = set(model.functions)
    take_functions(model, second)
    for identifier in set(model.functions) - functions:
        for domain, version in model.functions[identifier].opset_imports.items():
            model.graph.opset_imports.setdefault(domain, version)
    separate_sizes(model, second, pairs)
    feed(second, pairs)
    for member in (*second.graph, *second.graph.initializers.values(), *second.graph.inputs):
        member.meta[_KEY] = name
    outputs = list(model.graph.outputs)
    take_graph(model.graph, second.graph, outputs)
    for domain, version in second.graph.opset_imports.items():
        model.graph.opset_imports.setdefault(domain, version)
    model.ir_version = max(model.ir_version, second.ir_version)
    return name


def _require_data(model: ir.Model) -> None:
    """Refuse a model whose external data cannot be read, before the edit is committed.

    Raises:
        ExternalDataError: A data file is missing or outside of the model's folder, or the model has no folder.
    """
    for graph in graphs_of(model):
        values = [value.const_value for value in graph.initializers.values()]
        values += [attribute.value for node in graph for attribute in node.attributes.values()]
        for tensor in values:
            if isinstance(tensor, ir.ExternalTensor):
                map_external(tensor)


def nodes_of(graph: ir.Graph, name: str) -> Iterator[ir.Node]:
    """Yield the nodes of an attachment."""
    return (node for node in graph if node.meta.get(_KEY) == name)


def detach(model: ir.Model, name: str, tensor: ir.Value | None) -> None:
    """Remove an attachment, or everything computed from a tensor; see :meth:`Draft.detach`."""
    graph = model.graph
    nodes = list(nodes_of(graph, name))
    if not nodes:
        if tensor is None:
            raise EditError("unknown attachment or tensor.", where=name)
        nodes = _dependents(graph, tensor)
    removed = set(nodes)
    computed = {value for node in nodes for value in node.outputs}
    for node in graph:
        if node not in removed and (read := computed.intersection(read_by(node))):
            raise EditError(f"its tensor {read.pop().name} is read by {node_label(node)}.", where=name)
    outputs = [value for value in graph.outputs if value not in computed]
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    read = {value for node in nodes for value in read_by(node)}
    graph.remove(nodes, safe=True)
    for value in read:
        if (
            value.graph is graph
            and value.is_initializer()
            and not value.uses()
            and value not in (*outputs, *graph.inputs)
        ):
            del graph.initializers[str(value.name)]
    for value in [entry for entry in graph.inputs if entry.meta.get(_KEY) == name and not entry.uses()]:
        graph.inputs.remove(value)
        graph.initializers.pop(str(value.name), None)


def _dependents(graph: ir.Graph, tensor: ir.Value) -> list[ir.Node]:
    """Return the nodes that depend on a tensor, in order."""
    reached, nodes = {tensor}, []
    for node in graph:
        if not reached.isdisjoint(read_by(node)):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _aligned(second: ir.Model, first: ir.Model) -> ir.Model:
    """Return the second model with the operator sets of the first."""
    for domain, version in list(second.graph.opset_imports.items()):
        target = first.graph.opset_imports.get(domain)
        if target is not None and target != version:
            second = convert_opset(second, target, domain=domain)
    return second


def _pairs(
    second: ir.Model, at: str | Mapping[str, str], find: Callable[[str], ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    """Return inputs of the second model with the tensors that they read."""
    inputs = {str(value.name): value for value in second.graph.inputs}
    needed = [name for name, value in inputs.items() if not value.is_initializer()]
    if isinstance(at, str):
        if len(needed) != 1:
            raise EditError(
                f"the model has {len(needed)} inputs: {', '.join(needed)}.",
                where=at,
                remedy="Name a tensor for each input: `at={input: tensor}`.",
            )
        at = {needed[0]: at}
    if unknown := [name for name in at if name not in inputs]:
        raise EditError(f"the model has no input {unknown[0]!r}.", where="at", remedy=f"It has: {', '.join(inputs)}.")
    return [(inputs[name], find(tensor)) for name, tensor in at.items()]


def _require_fit(model: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    inferred = inference.infer(model)
    for entry, source in pairs:
        declared, actual = declared_type(entry), inferred.type(source)
        if declared is not None and actual is not None and not same_type(actual, declared):
            raise ShapeError(
                f"expected a tensor of type {declared}, got {actual}.", where=f"{entry.name}={source.name}"
            )


def _rename(model: ir.Model, second: ir.Model, name: str, fed: set[ir.Value]) -> None:
    """Rename names of the second model that exist in the first."""
    first_names, second_names = set(value_names(model)), set(value_names(second))
    names = Names(iter(first_names | second_names))
    inputs = {str(value.name) for value in fed}
    clashing = sorted(first_names & (second_names - inputs))
    rename_values(second, {clash: names.fresh(f"{name}/{clash}") for clash in clashing})
    unused_nodes = Names(node_names(model))
    for graph in graphs_of(second):
        for node in graph:
            if node.name:
                node.name = unused_nodes.fresh(node.name)
