"""Conditions: constants inside of the branches that a condition guards, and Ifs of one condition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD, captured_values
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Result
from sardonyx.rewrite.rules.bodies import branches, immovable_reason, pass_through, release_outputs, splice
from sardonyx.rewrite.sweep import sweep

FARTHEST = 256
"""Nodes between two Ifs up to which their fusion is tried."""


@sweep("propagate_if_condition", exactness=EXACT, on=("If",))
def known_inside(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace an If's condition, and the values implied, by constants inside of its branches."""
    if not engine.in_function:
        yield from _propagate(engine, graph, {})


def _propagate(
    engine: Engine, graph: ir.Graph, known: Mapping[ir.Value, np.ndarray]
) -> Iterator[tuple[ir.Node, Result]]:
    for node in list(graph):
        if known:
            indices = [i for i, value in enumerate(node.inputs) if value is not None and value in known]
            if indices:
                yield node, _with_constants(engine, node, indices, known)
        condition = node.inputs[0] if facts.is_op(node, "If") and engine.alive(node) else None
        both = None if condition is None else branches(node)
        if both is None or condition is None:
            for body in facts.bodies(node):
                yield from _propagate(engine, body, known)
            continue
        for body, truth in zip(both, (True, False), strict=True):
            yield from _propagate(engine, body, {**known, **infer_constants(condition, truth)})


def _with_constants(engine: Engine, node: ir.Node, indices: list[int], known: Mapping[ir.Value, np.ndarray]) -> Result:
    def rewire() -> Patch:
        for i in indices:
            value = node.inputs[i]
            assert value is not None and node.graph is not None
            constant = engine.new_constant(known[value], node.graph, f"{value.name}_known", [])
            node.replace_input_with(i, constant)
        return Patch(edit=lambda: [node])

    return Patch(build=rewire)


def infer_constants(condition: ir.Value, truth: bool) -> dict[ir.Value, np.ndarray]:
    """Return values certainly constant if ``condition`` is ``truth``: its operands and its readers."""
    truths: dict[ir.Value, bool] = {}
    numbers: dict[ir.Value, np.ndarray] = {}
    stack = [(condition, truth)]
    while stack:
        value, true = stack.pop()
        if value in truths or facts.is_constant(value):
            continue
        truths[value] = true
        stack.extend((use.node.outputs[0], not true) for use in value.uses() if facts.is_op(use.node, "Not"))
        node = value.producer()
        if node is None or node.domain not in STANDARD:
            continue
        match node.op_type, true:
            case "Not", _:
                stack.extend((v, not true) for v in node.inputs if v is not None)
            case ("Identity", _) | ("And", True) | ("Or", False):
                stack.extend((v, true) for v in node.inputs if v is not None and _one_element(v))
            case "Equal", True:
                numbers.update(_equality(node))
    constants = {v: np.full(shape, true) for v, true in truths.items() if (shape := facts.static_shape(v)) is not None}
    return {**constants, **numbers}


def _one_element(value: ir.Value) -> bool:
    shape = facts.static_shape(value)
    return shape is not None and all(size == 1 for size in shape)


def _equality(node: ir.Node) -> dict[ir.Value, np.ndarray]:
    """Return the operand of a true Equal that is thereby known: integers only, because −0.0 equals 0.0."""
    for value, other in (node.inputs, reversed(node.inputs)):
        kind, constant = facts.dtype(value), facts.small_constant(other)
        if value is None or constant is None or kind is None or not kind.is_integer() or facts.is_constant(value):
            continue
        shape = facts.static_shape(value)
        if shape is not None and constant.size == 1 and all(size == 1 for size in shape):
            return {value: constant.reshape(shape)}
    return {}


@sweep("fuse_ifs_with_same_condition", exactness=EXACT, on=("If",))
def same_condition(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Fuse Ifs of one graph on the same condition, or on its negation, into one If."""
    for inner in list(facts.graphs_of(graph)):
        groups: dict[ir.Value, list[tuple[ir.Node, bool]]] = {}
        for node in inner:
            if facts.is_op(node, "If") and branches(node) is not None and node.inputs[0] is not None:
                atom, straight = _atom(node.inputs[0])
                groups.setdefault(atom, []).append((node, straight))
        for group in groups.values():
            first, straight = group[0]
            for second, its in group[1:]:
                if not (engine.alive(first) and engine.alive(second)):
                    break
                before = len(engine.applied)
                yield second, _merged(engine, first, second, straight == its)
                if len(engine.applied) == before:
                    # The two stay separate: later Ifs are closer to the second.
                    first, straight = second, its


def _atom(condition: ir.Value) -> tuple[ir.Value, bool]:
    """Return the condition without its negations, and True if the negations cancel."""
    straight = True
    node = condition.producer()
    while node is not None and facts.is_op(node, "Not") and node.inputs[0] is not None:
        condition, straight = node.inputs[0], not straight
        node = condition.producer()
    return condition, straight


def _merged(engine: Engine, first: ir.Node, second: ir.Node, alike: bool) -> Result:
    mine, its = branches(first), branches(second)
    assert mine is not None and its is not None
    if any(immovable_reason(engine, body) is not None for body in its):
        return None
    between = _needed_between(first, second)
    if between is None:
        return None
    its = its if alike else (its[1], its[0])

    def merge() -> Patch:
        graph = first.graph
        assert graph is not None
        for node in between:
            graph.remove(node)
        graph.insert_before(first, between)
        for body, added in zip(mine, its, strict=True):
            _append(engine, first, body, added)
        old = len(first.outputs)
        first.resize_outputs(old + len(second.outputs))
        for value, output in zip(second.outputs, first.outputs[old:], strict=True):
            output.name = engine.names.fresh(value.name or "output")
            output.type, output.shape = value.type, value.shape
        return Patch(dict(zip(second.outputs, first.outputs[old:], strict=True)), edit=lambda: [first])

    return Patch(build=merge)


def _append(engine: Engine, first: ir.Node, mine: ir.Graph, its: ir.Graph) -> None:
    """Append the nodes and outputs of ``its`` to ``mine``, a branch of ``first``."""
    outputs = release_outputs(its)
    inside = set(facts.graphs_of(its))
    for value, produced in zip(first.outputs, mine.outputs, strict=True):
        for use in tuple(value.uses()):
            if use.node.graph in inside:
                use.node.replace_input_with(use.idx, produced)
        outputs = [produced if output is value else output for output in outputs]
    mine.extend(splice(engine, its, {}, mine))
    for output in outputs:
        foreign = output.is_graph_output() or output.graph is not mine
        mine.outputs.append(pass_through(engine, output, mine) if foreign else output)


def _needed_between(first: ir.Node, second: ir.Node) -> list[ir.Node] | None:
    """Return the nodes between the two that the second needs, in order; None if one needs the first."""
    graph = first.graph
    assert graph is not None
    between = itertools.takewhile(lambda n: n is not second, itertools.dropwhile(lambda n: n is not first, graph))
    distance = {node: i for i, node in enumerate(between) if node is not first}
    if len(distance) > FARTHEST:
        return None
    needed: set[ir.Node] = set()
    stack = [second]
    while stack:
        node = stack.pop()
        read = [*node.inputs, *(v for body in facts.bodies(node) for v in captured_values(body))]
        for value in read:
            producer = None if value is None else value.producer()
            if producer is first and node is not second:
                return None
            if producer is not None and producer in distance and producer not in needed:
                needed.add(producer)
                stack.append(producer)
    return sorted(needed, key=distance.__getitem__)
