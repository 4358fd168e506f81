"""The order of nodes: a file may list a node before the producers of its inputs, and engines run such files.

ONNX requires sorted nodes. ONNX Runtime sorts those of the main graph, and refuses unsorted bodies and functions.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.errors import InvalidModelError
from sardonyx.model.copying import copy_model
from sardonyx.model.load import Loadable, load


def load_sorted(source: Loadable) -> ir.Model:
    """Load a model with sorted nodes; a Model that is passed unsorted is copied.

    Raises:
        SardonyxError: See :func:`sardonyx.model.load` and :func:`sort_nodes`.
    """
    model = load(source)
    if is_sorted(model):
        return model
    if model is source:
        model = copy_model(model)
    sort_nodes(model)
    return model


def sort_nodes(model: ir.Model) -> bool:
    """Sort the nodes of the graph, of functions and of bodies topologically, if they are unsorted.

    Nodes keep their order as far as possible. A name that nothing defines is left to later checks.

    Args:
        model: The model, changed in place.

    Returns:
        True if nodes were moved.

    Raises:
        InvalidModelError: A node depends on its own output.
    """
    moved = False
    for graph in _graphs(model):
        if not _is_sorted(graph):
            moved = True
            _sort(graph)
    return moved


def is_sorted(model: ir.Model) -> bool:
    """Return True if each node of a model follows the producers of its inputs."""
    return all(map(_is_sorted, _graphs(model)))


def _graphs(model: ir.Model) -> list[ir.Graph | ir.Function]:
    return [model.graph, *model.functions.values()]


def _is_sorted(graph: ir.Graph | ir.Function) -> bool:
    done: set[ir.Node | None] = {None}
    pending = [iter(graph)]
    holders: list[ir.Node] = []
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
            if holders:
                done.add(holders.pop())
            continue
        if not all(value is None or value.producer() in done for value in node.inputs):
            return False
        bodies = _bodies(node)
        if not bodies:
            done.add(node)
            continue
        # The node itself follows its bodies: a body cannot read the results.
        holders.append(node)
        pending.append(iter([inner for body in bodies for inner in body]))
    return True


def _bodies(node: ir.Node) -> list[ir.Graph]:
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            bodies += attribute.as_graphs()
    return bodies


def _sort(graph: ir.Graph | ir.Function) -> None:
    try:
        graph.sort()
    except ValueError as error:
        raise InvalidModelError(
            "the graph has a cycle: nodes depend on their own outputs.",
            where=graph.name or "the model",
            remedy="Run `sardonyx check`, which lists the nodes of the cycle.",
        ) from error
