"""A model taken apart: what depends on weights alone, to be run once, and what depends on the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.facts import captured_values
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.sweep import sweep


@dataclass(frozen=True)
class Halves:
    """Where the graph is cut.

    Attributes:
        predicted: Nodes that depend on inputs, draw at random, or hold bodies.
        prepared: The others.
        boundary: Values of weights and prepared nodes that predicted nodes or the model's outputs read, in order.
    """

    predicted: dict[ir.Node, None]
    prepared: dict[ir.Node, None]
    boundary: dict[ir.Value, None]


def _read(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    for body in facts.bodies(node):
        yield from captured_values(body)


def _halves(graph: ir.Graph) -> Halves:
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
    return Halves(predicted, prepared, {value: None for value in read if value not in changing})


@sweep("split_init", exactness=EXACT, default=False, late=True)
def keep_prepared(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """What depends on weights alone stays; what the rest would read of it are the outputs."""
    halves = _halves(graph)
    if graph is not engine.model.graph or not halves.predicted:
        return

    def keep() -> list[ir.Node]:
        kept = [value for value in graph.outputs if value in halves.boundary]
        graph.outputs.clear()
        graph.outputs.extend([*kept, *(value for value in halves.boundary if value not in kept)])
        for value in [value for value in graph.inputs if not value.is_initializer()]:
            graph.inputs.remove(value)
        return []

    def apart() -> Patch:
        dying = list(reversed(halves.predicted))
        for value in [v for v in graph.outputs if v.producer() in halves.predicted]:
            graph.outputs.remove(value)
        return Patch(remove=dying, edit=keep)

    yield next(iter(halves.predicted)), Patch(build=apart)


@sweep("split_predict", exactness=EXACT, default=False, late=True)
def keep_predicted(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """What depends on the inputs stays; what it reads of weights and of what they prepare are inputs more."""
    halves = _halves(graph)
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None or not halves.boundary:
        return
    unknown = next((value for value in halves.boundary if value.type is None), None)
    if unknown is not None:
        yield first, Refusal(f"the type of '{unknown.name}' is not known")
        return

    def keep() -> list[ir.Node]:
        for value in halves.boundary:
            _give(engine, graph, value)
        for node in reversed(halves.prepared):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            graph.remove(node)
        for value in [v for v in graph.initializers.values() if not v.uses()]:
            del graph.initializers[str(value.name)]
        for value in [v for v in graph.inputs if not v.uses() and not v.is_graph_output()]:
            graph.inputs.remove(value)
        return []

    yield first, Patch(edit=keep)


def _give(engine: Engine, graph: ir.Graph, value: ir.Value) -> None:
    """Make the value a graph input of its name."""
    if value.is_initializer():
        del graph.initializers[str(value.name)]
        value.const_value = None
        if not value.is_graph_input():
            graph.inputs.append(value)
        return
    given = ir.Value(name=value.name, type=value.type, shape=value.shape)
    graph.inputs.append(given)
    for use in tuple(value.uses()):
        use.node.replace_input_with(use.idx, given)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = given
    value.name = engine.names.fresh(f"{value.name}_prepared")
