"""Optional passes that change a model's interface: names, input types, metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import captured_values
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Refusal, Result
from sardonyx.rewrite.sweep import sweep

CAPTURES = "captures"
"""Metadata key under which ``lift_lexical_references`` lists the outer values read by a node's bodies."""

_PATTERNS = {"OPTIMIZER_RENAME_INPUT_PATTERN": "input_%d", "OPTIMIZER_RENAME_OUTPUT_PATTERN": "output_%d"}


@sweep("nop", exactness=EXACT)
def nothing(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Change nothing, for comparison."""
    yield from ()


@sweep("set_unique_name_for_nodes", exactness=EXACT, default=False, late=True)
def name_nodes(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Give each unnamed node a unique name."""
    unnamed = [node for node in facts.nodes_of(graph) if not node.name]

    def give() -> list[ir.Node]:
        for unnamed_node in unnamed:
            unnamed_node.name = engine.node_names.fresh(node_label(unnamed_node))
        return []

    if unnamed:
        yield unnamed[0], Patch(edit=give)


@sweep("rename_input_output", exactness=EXACT, default=False, late=True)
def rename_interface(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Rename graph inputs to input_0, input_1, … and outputs to output_0, …

    The environment variables ``OPTIMIZER_RENAME_INPUT_PATTERN`` and ``OPTIMIZER_RENAME_OUTPUT_PATTERN`` give other
    patterns, in which ``%d`` is the index.
    """
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None:
        return
    new_names: dict[ir.Value, str] = {}
    for values, (variable, usual) in zip((graph.inputs, graph.outputs), _PATTERNS.items(), strict=True):
        pattern = os.environ.get(variable, usual)
        prefix, _, suffix = (pattern if "%d" in pattern else usual).partition("%d")
        new_names.update({v: f"{prefix}{i}{suffix}" for i, v in enumerate(values) if not v.is_initializer()})
    new_names = {value: name for value, name in new_names.items() if value.name != name}
    if not new_names:
        return
    others = {v.name for v in _values(graph) if v not in new_names}
    clash = next((name for name in new_names.values() if name in others), None)
    if clash is not None:
        yield first, Refusal(f"'{clash}' already names another value")
        return

    def rename() -> list[ir.Node]:
        for value, name in new_names.items():
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
    """Change graph inputs of int64 to int32, with a Cast to int64 before their readers."""
    first = next(iter(graph), None)
    if graph is not engine.model.graph or first is None:
        return
    for value in [v for v in graph.inputs if facts.dtype(v) == ir.DataType.INT64 and not v.is_initializer()]:
        if value.is_graph_output():
            yield first, Refusal(f"'{value.name}' is also a graph output")
        elif value.uses():
            yield first, Patch(edit=_make_narrow_input(engine, graph, value))


def _make_narrow_input(engine: Engine, graph: ir.Graph, value: ir.Value) -> Callable[[], list[ir.Node]]:
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
    """List the outer values read by a node's bodies, as JSON in the metadata of the node."""
    for node in facts.nodes_of(graph):
        bodies: Iterable[ir.Graph] = list(facts.bodies(node))
        names = sorted({str(v.name) for body in bodies for v in captured_values(body)})
        listed = json.dumps(names)
        if not names or node.metadata_props.get(CAPTURES) == listed:
            continue
        if (engine.model.ir_version or 0) < 10:
            yield node, Refusal("node metadata needs IR version 10")
            continue
        yield node, Patch(edit=lambda node=node, listed=listed: _store_captures(node, listed))  # type: ignore[misc]


def _store_captures(node: ir.Node, listed: str) -> list[ir.Node]:
    node.metadata_props[CAPTURES] = listed
    return []
