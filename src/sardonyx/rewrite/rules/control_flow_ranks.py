"""Ifs whose branches differ in rank: the consequences of each branch for the nodes after the If."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from sardonyx.core.dim import Dim, Size
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.analysis.sizes import Sizes
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import EXACT, Patch, Result
from sardonyx.rewrite.rules.bodies import branches
from sardonyx.rewrite.rules.control_flow_if import decided_condition, inline_branch
from sardonyx.rewrite.rules.ranks import is_certain_to_fail, output_rank
from sardonyx.rewrite.sweep import sweep

FOLLOWED = 512
"""Nodes after an If through which one supposition is followed."""


class Supposition(Sizes):
    """Sizes and ranks under the supposition that some conditions are known.

    Args:
        opset: Version of the default operator set.
        truths: Supposed truths, by condition.
    """

    def __init__(self, opset: int, truths: Mapping[ir.Value, bool]) -> None:
        super().__init__(opset)
        self.truths = dict(truths)
        self.contradicted = False
        self.conditions: dict[ir.Node, bool] = {}
        """Visited If nodes whose branch the supposition decides."""
        self._ranks: dict[ir.Value, int] = {}

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the rank of a value under the supposition."""
        known = None if value is None else self._ranks.get(value)
        return facts.rank(value) if known is None else known

    def dims(self, value: ir.Value | None) -> tuple[Size, ...] | None:
        """Return the shape, as far as the model and the supposed rank decide it."""
        known = super().dims(value)
        if value is None or self._ranks.get(value) in (None, None if known is None else len(known)):
            return known
        return tuple(Dim.symbol(f"?{value.name}.{axis}") for axis in range(self._ranks[value]))

    def follow(self, node: ir.Node) -> None:
        """Draw the consequences of one node, after all nodes before it."""
        if facts.is_op(node, "If"):
            self._follow_if(node)
            return
        if node.domain not in STANDARD:
            return
        self.contradicted = self.contradicted or is_certain_to_fail(node, self.rank, self)
        for index, output in enumerate(node.outputs):
            # A shape in the file may hold for the other branch only: the consequences take precedence.
            rank = output_rank(node, index, self.rank, self)
            if rank is not None:
                self._ranks[output] = rank

    def _follow_if(self, node: ir.Node) -> None:
        condition, both = node.inputs[0], branches(node)
        if both is None or condition is None:
            return
        truth = self.truths.get(condition)
        if truth is None:
            truth = decided_condition(self, condition)
        if truth is None:
            ranks = [[self.rank(value) for value in body.outputs] for body in both]
            output_ranks = [a if a == b else None for a, b in zip(*ranks, strict=True)]
        else:
            self.conditions[node] = truth
            body = both[0] if truth else both[1]
            for inner in body:
                self.follow(inner)
            output_ranks = [self.rank(value) for value in body.outputs]
        for output, rank in zip(node.outputs, output_ranks, strict=True):
            if rank is not None:
                self._ranks[output] = rank


@sweep("eliminate_impossible_branch", exactness=EXACT, on=("If",))
def impossible_branches(engine: Engine, graph: ir.Graph) -> Iterator[tuple[ir.Node, Result]]:
    """Replace an If by one branch if the other leads to a rank with which no run succeeds."""
    for inner in list(facts.graphs_of(graph)):
        order: _Order | None = None
        for node in [n for n in inner if facts.is_op(n, "If")]:
            if not engine.alive(node) or node.inputs[0] is None or not _open(node):
                continue
            if order is None:
                order = _Order(inner)
            applied = len(engine.applied)
            yield from _consequences(engine, node, order)
            if len(engine.applied) > applied:
                order = None


def _open(node: ir.Node) -> bool:
    """Return True if the branches may differ in the rank of an output."""
    both = branches(node)
    if both is None:
        return False
    ranks = [(facts.rank(a), facts.rank(b)) for a, b in zip(both[0].outputs, both[1].outputs, strict=True)]
    return any(a is None or a != b for a, b in ranks)


def _consequences(engine: Engine, node: ir.Node, order: _Order) -> Iterator[tuple[ir.Node, Result]]:
    condition = node.inputs[0]
    assert condition is not None
    dependents = order.dependents_of(node)
    either = [Supposition(engine.opset_imports.get("", 1), {condition: truth}) for truth in (True, False)]
    for supposed in either:
        for other in dependents:
            supposed.follow(other)
            if supposed.contradicted:
                break
    yes, no = either
    if yes.contradicted != no.contradicted:
        yield node, inline_branch(engine, node, no.contradicted)
        return
    if yes.contradicted:
        return
    for other in dependents:
        if other is node or other not in yes.conditions or other not in no.conditions:
            continue
        a, b = yes.conditions[other], no.conditions[other]
        if a == b:
            yield other, inline_branch(engine, other, a)
        elif other.inputs[0] is not condition:
            yield other, _on_condition(engine, other, condition, straight=a)


def _on_condition(engine: Engine, node: ir.Node, condition: ir.Value, *, straight: bool) -> Result:
    """Make the If read this condition (or its negation) instead of its own."""
    own = node.inputs[0]
    if own is not None and not straight:
        producer = own.producer()
        if producer is not None and facts.is_op(producer, "Not") and producer.inputs[0] is condition:
            return None

    def rewire() -> Patch:
        if straight:
            node.replace_input_with(0, condition)
            return Patch(edit=lambda: [node])
        negation = ir.Node("", "Not", [condition], name=engine.node_names.fresh(f"{condition.name}_not"))
        value = negation.outputs[0]
        value.name = engine.names.fresh(f"{condition.name}_not")
        value.type, value.shape = condition.type, condition.shape
        node.replace_input_with(0, value)
        return Patch(nodes=[negation], edit=lambda: [node])

    return Patch(build=rewire)


class _Order:
    """The nodes of a graph in order, with the index of each, and of each node in its bodies."""

    def __init__(self, graph: ir.Graph) -> None:
        self.nodes = list(graph)
        self._indices: dict[ir.Node, int] = {}
        for index, node in enumerate(self.nodes):
            self._indices[node] = index
            for body in facts.bodies(node):
                self._indices.update((inner, index) for inner in facts.nodes_of(body))

    def dependents_of(self, node: ir.Node) -> list[ir.Node]:
        """Return the node and its dependents in the graph, in order, up to ``FOLLOWED``."""
        dependents: list[ir.Node] = []
        heap = [self._indices[node]]
        seen = set(heap)
        while heap and len(dependents) < FOLLOWED:
            dependents.append(self.nodes[heapq.heappop(heap)])
            for output in dependents[-1].outputs:
                for use in output.uses():
                    index = self._indices.get(use.node)
                    if index is not None and index not in seen:
                        seen.add(index)
                        heapq.heappush(heap, index)
        return dependents
