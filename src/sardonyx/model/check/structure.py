"""Checks of names, order and cycles, which must pass before any other tool processes the model.

All functions are iterative, so that no nesting, chain or cycle in a hostile model can exhaust the stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.digraph import strongly_connected
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.scopes import MAX_DEPTH, Scope, bodies, function_scopes, main_scope, node_label

_SHOWN = 6


def check_values(model: onnx.ModelProto) -> Iterator[Finding]:
    """Report undefined, duplicate and shadowed names, unsorted nodes and cycles, in every graph.

    Args:
        model: The message.

    Yields:
        The findings.
    """
    for root in [main_scope(model), *function_scopes(model)]:
        yield from _check_root(root, model.ir_version)


@dataclass(slots=True, eq=False)
class _Frame:
    """A graph whose nodes are being visited in order."""

    scope: Scope
    producer_of: dict[str, int]
    defined: set[str]
    position: int = 0
    pending: list[Scope] = field(default_factory=list)
    forward_reads: dict[int, set[int]] = field(default_factory=dict)
    first_forward_read: tuple[onnx.NodeProto, str] | None = None


def _check_root(root: Scope, ir_version: int) -> Iterator[Finding]:
    frames: list[_Frame] = []
    yield from _enter(root, frames, ir_version)
    while frames:
        frame = frames[-1]
        if frame.pending:
            yield from _enter(frame.pending.pop(), frames, ir_version)
            continue
        nodes = frame.scope.graph.node
        if frame.position > 0:
            yield from _define_outputs(frames, nodes[frame.position - 1])
        if frame.position == len(nodes):
            yield from _leave(frames)
            continue
        node = nodes[frame.position]
        frame.position += 1
        for name in node.input:
            if name:
                yield from _read(frames, name, node)
        if node.attribute:
            yield from _queue_bodies(frame, node)


def _queue_bodies(frame: _Frame, node: onnx.NodeProto) -> Iterator[Finding]:
    inner = [frame.scope.body(node, name, graph) for name, graph in bodies(node)]
    if inner and frame.scope.depth >= MAX_DEPTH:
        yield finding(
            "nesting-too-deep",
            f"its bodies are nested more than {MAX_DEPTH} deep; nothing below was checked.",
            frame.scope.at(node),
        )
        return
    frame.pending.extend(reversed(inner))


def _enter(scope: Scope, frames: list[_Frame], ir_version: int) -> Iterator[Finding]:
    graph = scope.graph
    inputs = list(graph.input) if isinstance(graph, onnx.FunctionProto) else [value.name for value in graph.input]
    weights = weight_names(graph)
    for name in _repeated(inputs):
        yield finding("value-duplicate", "the input is listed more than once.", scope.at(tensor=name))
    for name in _repeated(weights):
        yield finding("value-duplicate", "two weights have this name.", scope.at(tensor=name))
    yield from _check_weights_against_inputs(scope, inputs, weights, ir_version)
    producer_of: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name:
                producer_of.setdefault(name, index)
    own = set(inputs) | set(weights)
    for name in sorted(own):
        if _visible(frames, name):
            yield finding("name-shadowed", "an enclosing graph defines the same name.", scope.at(tensor=name))
    frames.append(_Frame(scope, producer_of, own))


def _check_weights_against_inputs(
    scope: Scope, inputs: Sequence[str], weights: Sequence[str], ir_version: int
) -> Iterator[Finding]:
    listed = set(inputs)
    if scope.is_main and ir_version < 4:
        for name in weights:
            if name not in listed:
                yield finding(
                    "initializer-not-input",
                    f"the weight is not a graph input, as IR version {ir_version} requires.",
                    scope.at(tensor=name),
                )
    if not scope.is_main:
        for name in weights:
            if name in listed:
                yield finding(
                    "body-input-weight", "the name is both a weight and an input of the body.", scope.at(tensor=name)
                )


def _define_outputs(frames: list[_Frame], node: onnx.NodeProto) -> Iterator[Finding]:
    frame = frames[-1]
    for name in node.output:
        if not name:
            continue
        if name in frame.defined:
            yield finding(
                "value-duplicate",
                "the name is already defined (the graph is not in SSA form).",
                frame.scope.at(node, tensor=name),
            )
        elif _visible(frames[:-1], name):
            yield finding(
                "value-duplicate",
                "an enclosing graph defines the same name (names must be unique across bodies).",
                frame.scope.at(node, tensor=name),
            )
        frame.defined.add(name)


def _visible(frames: list[_Frame], name: str) -> bool:
    return any(name in frame.defined for frame in frames)


def _read(frames: list[_Frame], name: str, node: onnx.NodeProto) -> Iterator[Finding]:
    for frame in reversed(frames):
        if name in frame.defined:
            return
        producer = frame.producer_of.get(name)
        if producer is not None:
            reader = frame.position - 1
            frame.forward_reads.setdefault(reader, set()).add(producer)
            if frame.first_forward_read is None:
                frame.first_forward_read = (frame.scope.graph.node[reader], name)
            return
    scope = frames[-1].scope
    yield finding("value-undefined", "the node reads an undefined name.", scope.at(node, tensor=name))


def _leave(frames: list[_Frame]) -> Iterator[Finding]:
    frame = frames.pop()
    if frame.forward_reads:
        yield from _report_forward_reads(frame)
    scope = frame.scope
    graph = scope.graph
    if isinstance(graph, onnx.FunctionProto):
        outputs = list(graph.output)
    else:
        outputs = [value.name for value in graph.output]
    for name in _repeated(outputs):
        yield finding("output-duplicate", "the output is listed more than once.", scope.at(tensor=name))
    for name in outputs:
        if name in frame.defined or not name:
            continue
        reason = (
            "the output is a value of an enclosing graph, which a body may return only through a node (Identity)."
            if _visible(frames, name)
            else "no node, input or weight of the graph defines the output."
        )
        yield finding("output-undefined", reason, scope.at(tensor=name))


def _report_forward_reads(frame: _Frame) -> Iterator[Finding]:
    """Distinguish unsorted nodes from nodes that depend on their own results."""
    nodes = frame.scope.graph.node
    dependencies = _dependencies(frame)
    cycles = [part for part in strongly_connected(dependencies) if len(part) > 1 or part[0] in dependencies[part[0]]]
    for cycle in cycles:
        shown = [node_label(nodes[index]) for index in sorted(cycle)[:_SHOWN]]
        rest = f" and {len(cycle) - _SHOWN} more" if len(cycle) > _SHOWN else ""
        first = nodes[min(cycle)]
        reason = (
            f"the nodes {', '.join(shown)}{rest} depend on their own outputs."
            if len(cycle) > 1
            else "the node depends on its own output."
        )
        yield finding("graph-cycle", reason, frame.scope.at(first))
    if not cycles and frame.first_forward_read is not None:
        node, name = frame.first_forward_read
        others = len(frame.forward_reads) - 1
        more = f" ({others} more nodes are out of order)" if others else ""
        yield finding(
            "graph-unsorted",
            f"the node reads the output of a later node{more}.",
            frame.scope.at(node, tensor=name),
        )


def _dependencies(frame: _Frame) -> list[set[int]]:
    """Return for each node the nodes whose outputs are read by the node or by a body in the node."""
    dependencies: list[set[int]] = []
    for node in frame.scope.graph.node:
        dependencies.append({frame.producer_of[name] for name in names_read(node) if name in frame.producer_of})
    for consumer, producers in frame.forward_reads.items():
        dependencies[consumer] |= producers
    return dependencies


def names_read(node: onnx.NodeProto) -> set[str]:
    """Return the outer names that a node reads: its inputs, and free names of its bodies."""
    read = set(node.input)
    no_names: frozenset[str] = frozenset()
    pending = [(graph, no_names, 1) for _, graph in bodies(node)] if node.attribute else []
    while pending:
        graph, outer, depth = pending.pop()
        own = outer | {value.name for value in graph.input} | set(weight_names(graph))
        own |= {name for inner in graph.node for name in inner.output}
        for inner in graph.node:
            read.update(name for name in inner.input if name not in own)
            if inner.attribute and depth < MAX_DEPTH:
                pending.extend((body, own, depth + 1) for _, body in bodies(inner))
        read.update(value.name for value in graph.output if value.name not in own)
    read.discard("")
    return read


def output_names(graph: onnx.GraphProto | onnx.FunctionProto) -> list[str]:
    """Return the names of the outputs of a graph or function."""
    if isinstance(graph, onnx.FunctionProto):
        return list(graph.output)
    return [value.name for value in graph.output]


def names_used(graph: onnx.GraphProto | onnx.FunctionProto) -> set[str]:
    """Return the names that are read by a graph's nodes, or are its outputs."""
    return set(output_names(graph)).union(*(names_read(node) for node in graph.node))


def weight_names(graph: onnx.GraphProto | onnx.FunctionProto) -> list[str]:
    """Return the names of a graph's weights, dense and sparse, in order; empty for a function."""
    if isinstance(graph, onnx.FunctionProto):
        return []
    return [tensor.name for tensor in graph.initializer] + [tensor.values.name for tensor in graph.sparse_initializer]


def _repeated(names: Sequence[str]) -> list[str]:
    if len(set(names)) == len(names):
        return []
    return [name for name, count in Counter(names).items() if count > 1 and name]
