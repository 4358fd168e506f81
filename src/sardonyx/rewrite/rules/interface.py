"""Passes that run only when they are named, and change what a model's users see: names, types, captures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.facts import captured_values
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.sweep import sweep

CAPTURES = "captures"
"""Key of a node's metadata under which ``lift_lexical_references`` lists what its bodies read from outside."""

_PATTERNS = {"OPTIMIZER_RENAME_INPUT_PATTERN": "input_%d", "OPTIMIZER_RENAME_OUTPUT_PATTERN": "output_%d"}


@sweep("nop", exactness=EXACT)
def nothing(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Does nothing: for comparing."""
    yield from ()


@sweep("set_unique_name_for_nodes", exactness=EXACT, default=False, late=True)
def name_nodes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Nodes without a name get one that no other node has."""
    unnamed = [node for node in facts.nodes_of(graph) if not node.name]

    def give() -> list[ir.Node]:
        for node in unnamed:
            node.name = engine.node_names.fresh(node_label(node))
        return []

    if unnamed:
        yield unnamed[0], Patch(edit=give)


@sweep("rename_input_output", exactness=EXACT, default=False, late=True)
def rename_interface(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Graph inputs become input_0, input_1, …, outputs output_0, …; environment variables give other patterns.

    ``OPTIMIZER_RENAME_INPUT_PATTERN`` and ``OPTIMIZER_RENAME_OUTPUT_PATTERN`` count where they hold ``%d``.
    """
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None:
        return
    wanted: dict[ir.Value, str] = {}
    for values, (variable, usual) in zip((graph.inputs, graph.outputs), _PATTERNS.items(), strict=True):
        pattern = os.environ.get(variable, usual)
        prefix, _, suffix = (pattern if "%d" in pattern else usual).partition("%d")
        wanted.update({v: f"{prefix}{i}{suffix}" for i, v in enumerate(values) if not v.is_initializer()})
    wanted = {value: name for value, name in wanted.items() if value.name != name}
    if not wanted:
        return
    others = {v.name for v in _values(graph) if v not in wanted}
    clash = next((name for name in wanted.values() if name in others), None)
    if clash is not None:
        yield first, Refusal(f"'{clash}' is the name of something else")
        return

    def rename() -> list[ir.Node]:
        for value, name in wanted.items():
            value.name = name
        return []

    yield first, Patch(edit=rename)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for inner in facts.graphs_of(graph):
        yield from inner.inputs
        yield from inner.initializers.values()
        for node in inner:
            yield from node.outputs


@sweep("rewrite_input_dtype", exactness=EXACT, default=False, late=True)
def narrow_inputs(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Graph inputs of int64 become int32, cast to int64 where they are read."""
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None:
        return
    for value in [v for v in graph.inputs if facts.dtype(v) == ir.DataType.INT64 and not v.is_initializer()]:
        if value.is_graph_output():
            yield first, Refusal(f"'{value.name}' is an output too")
        elif value.uses():
            yield first, Patch(edit=_narrowing(engine, graph, value))


def _narrowing(engine: Engine, graph: ir.Graph, value: ir.Value) -> Callable[[], list[ir.Node]]:
    def narrow() -> list[ir.Node]:
        readers = tuple(value.uses())
        cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(ir.DataType.INT64))])
        cast.name = engine.node_names.fresh(f"{value.name}_to_int64")
        wide = cast.outputs[0]
        wide.name, wide.type, wide.shape = engine.names.fresh(f"{value.name}_int64"), value.type, value.shape
        graph.insert_before(next(iter(graph)), cast)
        for use in readers:
            use.node.replace_input_with(use.idx, wide)
        value.type = ir.TensorType(ir.DataType.INT32)
        return [cast]

    return narrow


@sweep("lift_lexical_references", exactness=EXACT, default=False, late=True)
def list_captures(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Nodes with bodies list in their metadata, as JSON, which outer values the bodies read."""
    for node in facts.nodes_of(graph):
        held: Iterable[ir.Graph] = list(facts.bodies(node))
        names = sorted({str(v.name) for body in held for v in captured_values(body)})
        listed = json.dumps(names)
        if not names or node.metadata_props.get(CAPTURES) == listed:
            continue
        if (engine.model.ir_version or 0) < 10:
            yield node, Refusal("nodes have metadata from IR version 10 on")
            continue
        yield node, Patch(edit=lambda node=node, listed=listed: _note(node, listed))  # type: ignore[misc]


def _note(node: ir.Node, listed: str) -> list[ir.Node]:
    node.metadata_props[CAPTURES] = listed
    return []
