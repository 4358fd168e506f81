"""Attachments: a whole model that reads tensors of another, and can be taken away again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.rules.type_rules import same_type
from sardonyx.errors import EditError, ShapeError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.ops import inference
from sardonyx.ops.graph import declared_type, node_label
from sardonyx.rewrite.names import Names, node_names, value_names
from sardonyx.rewrite.opset.convert import convert_opset
from sardonyx.rewrite.surgery.interface import graphs_of, rename_values
from sardonyx.rewrite.surgery.merging import feed, take_functions, take_graph, tell_sizes_apart
from sardonyx.runtime.node import read_by

_KEY = "sardonyx.attachment"
"""Where a node, weight or input says in its ``meta`` to which attachment it belongs."""


def attach(
    model: ir.Model,
    other: Loadable,
    at: str | Mapping[str, str],
    name: str | None,
    find: Callable[[str], ir.Value],
) -> str:
    """Move another model's graph into a model; see :meth:`Draft.attach`.

    Args:
        model: Is changed.
        other: Is copied.
        at: A tensor, or tensors by input of the other.
        name: The attachment's.
        find: The model's tensor of a name.

    Returns:
        The attachment's name.
    """
    second = _aligned(copy_model(model_io.load(other)), model)
    taken = {node.meta.get(_KEY) for node in model.graph} - {None}
    if name in taken:
        raise EditError("there is an attachment of this name.", where=str(name))
    name = name or Names(map(str, taken)).fresh(second.graph.name or "attached")
    pairs = _pairs(second, at, find)
    _require_fit(model, pairs)
    _rename(model, second, name, {entry for entry, _ in pairs})
    mine = set(model.functions)
    take_functions(model, second)
    for identifier in set(model.functions) - mine:
        for domain, version in model.functions[identifier].opset_imports.items():
            model.graph.opset_imports.setdefault(domain, version)
    tell_sizes_apart(model, second, pairs)
    feed(second, pairs)
    for thing in (*second.graph, *second.graph.initializers.values(), *second.graph.inputs):
        thing.meta[_KEY] = name
    outputs = list(model.graph.outputs)
    take_graph(model.graph, second.graph, outputs)
    for domain, version in second.graph.opset_imports.items():
        model.graph.opset_imports.setdefault(domain, version)
    model.ir_version = max(model.ir_version, second.ir_version)
    return name


def nodes_of(graph: ir.Graph, name: str) -> Iterator[ir.Node]:
    """The nodes of an attachment."""
    return (node for node in graph if node.meta.get(_KEY) == name)


def detach(model: ir.Model, name: str, tensor: ir.Value | None) -> None:
    """Take away an attachment, or all that is computed from a tensor; see :meth:`Draft.detach`."""
    graph = model.graph
    nodes = list(nodes_of(graph, name))
    if not nodes:
        if tensor is None:
            raise EditError("there is no such attachment or tensor.", where=name)
        nodes = _beneath(graph, tensor)
    gone = set(nodes)
    made = {value for node in nodes for value in node.outputs}
    for node in graph:
        if node not in gone and (read := made.intersection(read_by(node))):
            raise EditError(f"its tensor {read.pop().name} is read by {node_label(node)}.", where=name)
    left = [value for value in graph.outputs if value not in made]
    graph.outputs.clear()
    graph.outputs.extend(left)
    read = {value for node in nodes for value in read_by(node)}
    graph.remove(nodes, safe=True)
    for value in read:
        if value.graph is graph and value.is_initializer() and not value.uses() and value not in (*left, *graph.inputs):
            del graph.initializers[str(value.name)]
    for value in [each for each in graph.inputs if each.meta.get(_KEY) == name and not each.uses()]:
        graph.inputs.remove(value)
        graph.initializers.pop(str(value.name), None)


def _beneath(graph: ir.Graph, tensor: ir.Value) -> list[ir.Node]:
    """The nodes that compute something from a tensor, in order."""
    reached, nodes = {tensor}, []
    for node in graph:
        if not reached.isdisjoint(read_by(node)):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _aligned(second: ir.Model, first: ir.Model) -> ir.Model:
    """The second model with the operator sets of the first."""
    for domain, version in list(second.graph.opset_imports.items()):
        wanted = first.graph.opset_imports.get(domain)
        if wanted is not None and wanted != version:
            second = convert_opset(second, wanted, domain=domain)
    return second


def _pairs(
    second: ir.Model, at: str | Mapping[str, str], find: Callable[[str], ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    """Inputs of the second model, and what feeds them."""
    inputs = {str(value.name): value for value in second.graph.inputs}
    needed = [name for name, value in inputs.items() if not value.is_initializer()]
    if isinstance(at, str):
        if len(needed) != 1:
            raise EditError(
                f"the model has {len(needed)} inputs: {', '.join(needed)}.",
                where=at,
                remedy="Say which tensor each reads: `at={input: tensor}`.",
            )
        at = {needed[0]: at}
    if unknown := [name for name in at if name not in inputs]:
        raise EditError(f"the model has no input {unknown[0]!r}.", where="at", remedy=f"It has: {', '.join(inputs)}.")
    return [(inputs[name], find(tensor)) for name, tensor in at.items()]


def _require_fit(model: ir.Model, pairs: Sequence[tuple[ir.Value, ir.Value]]) -> None:
    inferred = inference.infer(model)
    for entry, source in pairs:
        declared, found = declared_type(entry), inferred.type(source)
        if declared is not None and found is not None and not same_type(found, declared):
            raise ShapeError(
                f"the tensor is {found}, and the input declares {declared}.", where=f"{entry.name}={source.name}"
            )


def _rename(model: ir.Model, second: ir.Model, name: str, fed: set[ir.Value]) -> None:
    """Give new names to what is named in the second model like something of the first."""
    mine, theirs = set(value_names(model)), set(value_names(second))
    names = Names(iter(mine | theirs))
    inputs = {str(value.name) for value in fed}
    clashing = sorted(mine & (theirs - inputs))
    rename_values(second, {each: names.fresh(f"{name}/{each}") for each in clashing})
    taken = Names(node_names(model))
    for graph in graphs_of(second):
        for node in graph:
            if node.name:
                node.name = taken.fresh(node.name)
