"""Weights of bodies: one copy for all bodies, or a copy in the only body with a reader."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Result
from sardonyx.rewrite.rules.bodies import substitute
from sardonyx.rewrite.sweep import sweep
from sardonyx.rewrite.weight_digest import contents_in


@sweep("hoist_body_initializers", exactness=EXACT)
def weights_of_several_bodies(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Store a weight of several bodies once, in the outer graph."""
    if engine.in_function:
        return
    bodies = engine.graphs(graph)[1:]
    equal: dict[Hashable, list[ir.Value]] = defaultdict(list)
    by_shape: dict[Hashable, list[tuple[ir.Value, ir.TensorProtocol]]] = defaultdict(list)
    for body in bodies:
        for value in body.initializers.values():
            tensor = facts.constant_tensor(value)
            if tensor is not None and value.uses() and not value.is_graph_output():
                by_shape[(tensor.dtype, tuple(tensor.shape))].append((value, tensor))
    contents = contents_in(engine)
    for form, met in by_shape.items():
        if len(met) < 2:
            continue
        glimpses = Counter(contents.glimpse(tensor) for _, tensor in met)
        for value, tensor in met:
            if glimpses[contents.glimpse(tensor)] > 1:
                equal[form, contents.digest(tensor)].append(value)
    for values in equal.values():
        if len(values) > 1:
            reader = next(iter(values[0].uses())).node
            yield reader, Patch(build=lambda values=values: _hoisted(engine, graph, values))  # type: ignore[misc]


def _hoisted(engine: Engine, graph: ir.Graph, values: list[ir.Value]) -> Patch:
    first = values[0]
    _moved(engine, first, graph)
    readers = [node for value in values[1:] for node in substitute(value, first)]
    for value in values[1:]:
        assert value.graph is not None
        del value.graph.initializers[str(value.name)]
    return Patch(edit=lambda: readers)


@sweep("push_initializers_into_bodies", exactness=EXACT, default=False)
def weights_of_one_body(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Store a weight that a single body reads in this body."""
    if engine.in_function:
        return
    for value in list(graph.initializers.values()):
        readers_graphs = {use.node.graph for use in value.uses()}
        if not facts.is_constant(value) or value.is_graph_output() or len(readers_graphs) != 1:
            continue
        (body,) = readers_graphs
        if body is not graph and isinstance(body, ir.Graph):
            reader = next(iter(value.uses())).node
            yield reader, Patch(build=lambda value=value, body=body: _pushed(engine, value, body))  # type: ignore[misc]


def _pushed(engine: Engine, value: ir.Value, body: ir.Graph) -> Patch:
    _moved(engine, value, body)
    return Patch(edit=lambda: [use.node for use in value.uses()])


def _moved(engine: Engine, value: ir.Value, into: ir.Graph) -> None:
    assert value.graph is not None
    name = str(value.name)
    del value.graph.initializers[name]
    value.name = engine.names.adopt(name)
    into.register_initializer(value)
