"""Nodes that branches of ``If`` alone read: they belong to these branches.

A node that no call needs neither runs nor fails, whether the condition is known before the call or in the call. A node
of a single branch is called in the branch, in a run and while tracing. A node of several branches is called in a run
when the first of them asks; compiled code computes it ahead, and leaves a call in which it fails to the interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

Branch = tuple[ir.Node, str]
"""An ``If`` and the name of one of its bodies."""

SEVERAL = "several"
"""Stands for more than one branch."""

Reader = Branch | str | None
"""The branch that reads a value, ``SEVERAL``, or None if anything else reads it."""

_MOST_NESTED = 16
"""Most conditionals of a chain, each of which only branches of the next one read, that wait for the branch."""

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def branches_of_nodes(
    nodes: Sequence[ir.Node], outputs: Iterable[ir.Value], conditionals: Collection[ir.Node]
) -> dict[ir.Node, Branch | str]:
    """Return the branch of each node that branches alone read, directly or through such nodes; ``SEVERAL`` for more.

    Args:
        nodes: The nodes of one graph, in sorted order.
        outputs: The results of the graph.
        conditionals: The nodes that are ``If``.
    """
    if not conditionals:
        return {}
    readers: dict[ir.Value, Reader] = dict.fromkeys(outputs)
    branches: dict[ir.Node, Branch | str] = {}
    nested: dict[ir.Value, int] = {}
    for node in reversed(nodes):
        its_readers = [readers[output] for output in node.outputs if output in readers]
        reader = functools.reduce(_united, its_readers) if its_readers else None
        depth = max((nested.get(output, 0) for output in node.outputs), default=0) + (node in conditionals)
        # Each conditional is called inside of the next one: a call of all would exceed Python's stack.
        if reader is not None and depth <= _MOST_NESTED:
            branches[node] = reader
            reads: Iterable[tuple[Reader, ir.Value]] = ((reader, value) for value in values_read_by(node))
        else:
            depth = int(node in conditionals)
            reads = _reads_of_if(node) if depth else ((None, value) for value in values_read_by(node))
        for other, value in reads:
            readers[value] = _united(readers.get(value, other), other)
            nested[value] = max(nested.get(value, 0), depth)
    return branches


def _united(one: Reader, other: Reader) -> Reader:
    return one if one == other else None if None in (one, other) else SEVERAL


def _reads_of_if(node: ir.Node) -> Iterator[tuple[Reader, ir.Value]]:
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
