"""Nodes that a single branch of one ``If`` reads: they belong to this branch.

A node that no call needs neither runs nor fails, whether the condition is known before the call or in the call.
Interpreter and compiler agree on it, because both call nodes in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

Branch = tuple[ir.Node, str]
"""An ``If`` and the name of one of its bodies."""

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def branches_of_nodes(
    nodes: Sequence[ir.Node], outputs: Iterable[ir.Value], conditionals: Collection[ir.Node]
) -> dict[ir.Node, Branch]:
    """Return the branch of each node that only one branch reads, directly or through other such nodes.

    Args:
        nodes: The nodes of one graph, in sorted order.
        outputs: The results of the graph.
        conditionals: The nodes that are ``If``.
    """
    if not conditionals:
        return {}
    readers: dict[ir.Value, set[Branch | None]] = {output: {None} for output in outputs}
    branches: dict[ir.Node, Branch] = {}
    for node in reversed(nodes):
        reading_branches = set().union(*(readers.get(output, ()) for output in node.outputs))
        branch = next(iter(reading_branches)) if len(reading_branches) == 1 else None
        if branch is not None:
            branches[node] = branch
        if branch is None and node in conditionals:
            reads = _reads_of_if(node)
        else:
            reads = ((branch, value) for value in values_read_by(node))
        for reader, value in reads:
            readers.setdefault(value, set()).add(reader)
    return branches


def _reads_of_if(node: ir.Node) -> Iterator[tuple[Branch | None, ir.Value]]:
    """Yield the values that an ``If`` reads, each with the branch that reads it; None for the condition."""
    yield from ((None, value) for value in node.inputs if value is not None)
    for name, attribute in node.attributes.items():
        if attribute.type is _GRAPH and not attribute.is_ref():
            yield from (((node, name), value) for value in _values_read_in(attribute.as_graph()))


def values_read_by(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node reads, including reads in its bodies."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type is _GRAPH:
            yield from _values_read_in(attribute.as_graph())
        elif attribute.type is _GRAPHS:
            for graph in attribute.as_graphs():
                yield from _values_read_in(graph)


def _values_read_in(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.outputs
    for node in graph:
        yield from values_read_by(node)
