"""A model split into the part that depends on weights alone, to run once, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import captured_values
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.sweep import sweep


@dataclass(frozen=True)
class Partition:
    """A partition of the nodes of a graph.

    Attributes:
        predicted: Nodes that depend on inputs, draw random numbers, or have bodies.
        prepared: The other nodes.
        boundary: Values of weights and prepared nodes read by predicted nodes or graph outputs, in order.
    """

    predicted: dict[ir.Node, None]
    prepared: dict[ir.Node, None]
    boundary: dict[ir.Value, None]


def _read(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    for body in facts.bodies(node):
        yield from captured_values(body)


def _partition(graph: ir.Graph) -> Partition:
    changing = {value for value in graph.inputs if not value.is_initializer()}
    predicted: dict[ir.Node, None] = {}
    prepared: dict[ir.Node, None] = {}
    for node in graph:
        pure = facts.is_pure(node) and not facts.bodies(node)
        if pure and not any(value in changing for value in _read(node)):
            prepared[node] = None
        else:
            predicted[node] = None
            changing.update(node.outputs)
    read = (*(value for node in predicted for value in _read(node)), *graph.outputs)
    return Partition(predicted, prepared, {value: None for value in read if value not in changing})


@sweep("split_init", exactness=EXACT, default=False, late=True)
def keep_prepared(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Keep the nodes that depend on weights alone; their values read by the rest become the outputs."""
    partition = _partition(graph)
    if graph is not engine.model.graph or not partition.predicted:
        return

    def keep() -> list[ir.Node]:
        remaining = [value for value in graph.outputs if value in partition.boundary]
        graph.outputs.clear()
        graph.outputs.extend([*remaining, *(value for value in partition.boundary if value not in remaining)])
        for value in [value for value in graph.inputs if not value.is_initializer()]:
            graph.inputs.remove(value)
        return []

    def remove_predicted() -> Patch:
        dying = list(reversed(partition.predicted))
        for value in [v for v in graph.outputs if v.producer() in partition.predicted]:
            graph.outputs.remove(value)
        return Patch(remove=dying, edit=keep)

    yield next(iter(partition.predicted)), Patch(build=remove_predicted)


@sweep("split_predict", exactness=EXACT, default=False, late=True)
def keep_predicted(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Keep the nodes that depend on the inputs; weights and prepared values become inputs."""
    partition = _partition(graph)
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None or not partition.boundary:
        return
    unknown = next((value for value in partition.boundary if value.type is None), None)
    if unknown is not None:
        yield first, Refusal(f"the type of '{unknown.name}' is not known")
        return

    def keep() -> list[ir.Node]:
        for value in partition.boundary:
            _make_input(engine, graph, value)
        for node in reversed(partition.prepared):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            graph.remove(node)
        for value in [v for v in graph.initializers.values() if not v.uses()]:
            del graph.initializers[str(value.name)]
        for value in [v for v in graph.inputs if not v.uses() and not v.is_graph_output()]:
            graph.inputs.remove(value)
        return []

    yield first, Patch(edit=keep)


def _make_input(engine: Engine, graph: ir.Graph, value: ir.Value) -> None:
    """Make the value a graph input under its name."""
    if value.is_initializer():
        del graph.initializers[str(value.name)]
        value.const_value = None
        if not value.is_graph_input():
            graph.inputs.append(value)
        return
    graph_input = ir.Value(name=value.name, type=value.type, shape=value.shape)
    graph.inputs.append(graph_input)
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, graph_input)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = graph_input
    value.name = engine.names.fresh(f"{value.name}_prepared")
