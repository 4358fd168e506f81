"""If: decided conditions, equal branches, and outputs that no branch decides."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import Sizes
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Operand, Patch, Refusal, Replacement, Result, rule
from sardonyx.rewrite.notation import Where
from sardonyx.rewrite.rewrite_context import Workspace
from sardonyx.rewrite.rules.bodies import (
    Numbers,
    branches,
    immovable_reason,
    move_node,
    rebuild_node,
    release_outputs,
    splice,
    substitute,
)
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sweep import sweep


def decided_condition(sizes: Sizes, value: ir.Value | None) -> bool | None:
    """Return the truth of a condition that constants or sizes decide, else None."""
    truth = facts.scalar(value)
    if truth is None:
        elements = sizes.constant(value)
        truth = elements[0] if elements is not None and len(elements) == 1 else None
    return None if truth is None else bool(truth)


def _is_one_truth(condition: ir.Value | None) -> bool:
    """Return True for a condition of one element; an If refuses others, and nothing else of the graph would."""
    shape = facts.static_shape(condition)
    return shape is not None and math.prod(shape) == 1


def inline_branch(workspace: Workspace, node: ir.Node, truth: bool) -> Result:
    """Replace the If by its branch for ``truth``."""
    both = branches(node)
    if both is None:
        return Refusal("its branches are given by the function's caller, or do not give its outputs")
    body = both[0] if truth else both[1]
    if (reason := immovable_reason(workspace, body)) is not None:
        return Refusal(reason)

    def inline() -> Patch:
        outputs = release_outputs(body)
        assert node.graph is not None
        nodes = splice(workspace, body, {}, node.graph)
        return Patch(dict(zip(node.outputs, outputs, strict=True)), nodes=nodes)

    return Patch(build=inline)


@rule("eliminate_if_with_const_cond", on="If", exactness=EXACT)
def decided_branch(s: Site) -> Result:
    """Replace an If whose condition is known by the branch for this condition."""
    condition = decided_condition(s.sizes, s.input(0))
    return None if condition is None else inline_branch(s.workspace, s.node, condition)


@rule("eliminate_unused_if_outputs", on="If", exactness=EXACT)
def unused_outputs(s: Site) -> Result:
    """Drop outputs of an If that nothing reads from its branches."""
    retained = [i for i, value in enumerate(s.node.outputs) if not facts.unused(value)]
    both = branches(s.node)
    if both is None or len(retained) == len(s.node.outputs) or not retained:
        return None

    def rebuild() -> Patch:
        for body in both:
            outputs = release_outputs(body)
            body.outputs.extend(outputs[i] for i in retained)
        node, pairs = rebuild_node(s.workspace, s.node, list(s.node.inputs), retained)
        return Patch(pairs, nodes=[node], edit=lambda: [n for body in both for n in body])

    return Patch(build=rebuild)


INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Element types for which every engine has Where."""


@rule("rewrite_if_to_where", on="If", exactness=EXACT, opset=9)
def choice_of_integers(s: Site) -> Result:
    """Rewrite an If that only chooses between values of one shape as Where."""
    return _choice(s, INTEGERS)


@rule("rewrite_if_to_where", on="If", exactness=REASSOCIATES, opset=9)
def choice_of_floats(s: Site) -> Result:
    """Rewrite an If that only chooses between floats as Where; some engines add, so that −0.0 becomes 0.0."""
    return _choice(s, INTEGERS | FLOATS)


def _choice(s: Site, selectable: frozenset[ir.DataType]) -> Result:
    both = branches(s.node)
    if both is None:
        return None
    if not _is_one_truth(s.input(0)):
        return Refusal("its condition is not known to have one element")
    sources = [[_source(value, body) for value in body.outputs] for body in both]
    if any(source is None for branch in sources for source in branch):
        return None
    pairs = list(zip(*sources, strict=True))
    if len(pairs) > 1 + sum(len(body) for body in both):
        return Refusal("it chooses more values than it has nodes")
    condition, rank = s.input(0), s.rank(0)
    results: list[Replacement | None] = []
    for output, (yes, no) in zip(s.node.outputs, pairs, strict=True):
        assert yes is not None and no is not None and condition is not None
        if yes is no:
            results.append(yes)
            continue
        if facts.dtype(output) not in selectable or facts.dtype(yes) != facts.dtype(no):
            return Refusal(f"it chooses between values of type {facts.dtype(output)}")
        if not facts.same_shape(yes, no):
            return Refusal("the values that it chooses between may differ in shape")
        if rank is None or rank > (facts.rank(yes) or 0):
            return Refusal("the rank of its condition is too high")
        results.append(Where(condition, _outside(yes, both[0]), _outside(no, both[1])))
    return tuple(results)


def _source(value: ir.Value, body: ir.Graph) -> ir.Value | None:
    """Return the constant or outer value that a body's output is, through Identity nodes."""
    node = value.producer()
    while node is not None and node.graph is body:
        if not facts.is_op(node, "Identity") or node.inputs[0] is None:
            return None
        value = node.inputs[0]
        node = value.producer()
    if value.is_initializer() and facts.small_constant(value) is None:
        return None
    return value


def _outside(value: ir.Value, body: ir.Graph) -> Operand:
    if value.is_initializer() and value.graph is body:
        return facts.constant(value)
    return value


@sweep("eliminate_if_with_equal_branches", exactness=EXACT, on=("If",))
def equal_branches(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace an If with equal branches by one of them; move computations common to both before the If."""
    for inner in list(facts.graphs_of(graph)):
        for node in [n for n in inner if facts.is_op(n, "If")]:
            both = branches(node) if engine.alive(node) and _is_one_truth(node.inputs[0]) else None
            if both is None:
                continue
            numbers = Numbers()
            for body in both:
                numbers.enter(body)
            outputs = [[numbers.of(value) for value in body.outputs] for body in both]
            if outputs[0] == outputs[1]:
                yield node, inline_branch(engine, node, True)
            else:
                yield node, _common_code(engine, node, both, numbers)


def _common_code(engine: Engine, node: ir.Node, both: tuple[ir.Graph, ir.Graph], numbers: Numbers) -> Result:
    """Move nodes that both branches have before the If; equal outputs leave the If."""
    yes, no = both
    if immovable_reason(engine, yes) is not None:
        return None
    equal = {i for i, (a, b) in enumerate(zip(yes.outputs, no.outputs, strict=True)) if numbers.of(a) == numbers.of(b)}
    pairs = _shared_nodes(both, numbers, equal)
    moved = {value for first, _ in pairs for value in first.outputs}
    # An output that is the same either way can be read from outside once it is computed outside.
    sources = {i: _through_identities(yes.outputs[i], yes) for i in sorted(equal)}
    leaving = {i: value for i, value in sources.items() if value in moved or value.graph is not yes}
    if not pairs and not any(not facts.unused(node.outputs[i]) for i in leaving):
        return None

    def hoist() -> Patch:
        retained = [i for i in range(len(node.outputs)) if i not in leaving]
        for body in both:
            outputs = release_outputs(body)
            body.outputs.extend(outputs[i] for i in retained)
        nodes: list[ir.Node] = []
        for first, second in pairs:
            for a, b in zip(first.outputs, second.outputs, strict=True):
                substitute(b, a)
            nodes.append(move_node(engine, first, node.graph))  # type: ignore[arg-type]
            no.remove(second, safe=True)
        replaced = {node.outputs[i]: value for i, value in leaving.items()}
        if retained:
            node_without, others = rebuild_node(engine, node, list(node.inputs), retained)
            nodes.append(node_without)
            replaced.update(others)
        return Patch(replaced, nodes=nodes, edit=lambda: [*yes, *no])

    return Patch(build=hoist)


def _shared_nodes(both: tuple[ir.Graph, ir.Graph], numbers: Numbers, equal: set[int]) -> list[tuple[ir.Node, ir.Node]]:
    """Return pairs of nodes of the two bodies that compute the same, in order; body outputs stay."""
    yes, no = both
    bound = {v for body in both for i, v in enumerate(body.outputs) if i not in equal}
    bound |= {v for body in both for v in body.outputs if v.is_initializer()}
    others = {numbers.of(n.outputs[0]): n for n in no if _may_move(n, bound)}
    pairs: list[tuple[ir.Node, ir.Node]] = []
    free = {value for value in yes.initializers.values() if value not in bound}
    for node in yes:
        other = others.get(numbers.of(node.outputs[0])) if _may_move(node, bound) else None
        if other is None or other.op_type != node.op_type or len(other.outputs) != len(node.outputs):
            continue
        if all(v is None or v in free or v.graph is not yes for v in node.inputs):
            pairs.append((node, other))
            free.update(node.outputs)
            del others[numbers.of(node.outputs[0])]
    return pairs


def _may_move(node: ir.Node, bound: set[ir.Value]) -> bool:
    return (
        bool(node.outputs)
        and not facts.is_op(node, "Identity", "Constant")
        and facts.is_pure(node)
        and not facts.bodies(node)
        and not any(value in bound for value in node.outputs)
    )


def _through_identities(value: ir.Value, body: ir.Graph) -> ir.Value:
    node = value.producer()
    while node is not None and node.graph is body and facts.is_op(node, "Identity") and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value
