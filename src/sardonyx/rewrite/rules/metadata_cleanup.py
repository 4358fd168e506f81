"""Optional removal of metadata: descriptions, inferred shapes, unused inputs."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.model.carry import list_only
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Result
from sardonyx.rewrite.sweep import sweep


@sweep("eliminate_unused_input", exactness=EXACT, default=False, late=True)
def unused_inputs(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove graph inputs without readers."""
    if not engine.in_function:
        for value in [v for v in graph.inputs if facts.unused(v)]:
            graph.inputs.remove(value)
    yield from ()


@sweep("clear_value_info", exactness=EXACT, default=False, late=True)
def no_value_info(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Leave types and shapes of intermediate values out of the file."""
    for inner in facts.graphs_of(graph):
        list_only(inner, frozenset())
    yield from ()


@sweep("clear_doc_strings", exactness=EXACT, default=False, late=True)
def no_doc_strings(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove the descriptions of the model, and of its graphs, nodes and values."""
    if not engine.in_function:
        engine.model.doc_string = None
    for described in _iterate_described(graph):
        described.doc_string = None
    yield from ()


@sweep("clear_metadata", exactness=EXACT, default=False, late=True)
def no_metadata(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Remove the metadata of the model, and of its graphs, nodes and values."""
    if not engine.in_function:
        engine.model.metadata_props.clear()
    for described in _iterate_described(graph):
        described.metadata_props.clear()
    yield from ()


def _iterate_described(graph: ir.Graph) -> Iterator[ir.Graph | ir.Node | ir.Value]:
    for inner in facts.graphs_of(graph):
        yield inner
        yield from inner.inputs
        yield from inner.initializers.values()
        for node in inner:
            yield node
            yield from node.outputs
