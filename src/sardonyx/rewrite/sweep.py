"""Sweeps: passes that look at a whole graph at once rather than at one node.

A sweep is registered like a rule and yields ``(node, result)`` pairs; the engine applies each as
a patch of its own, so sweeps are numbered, explained and bisected as rules are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.language import Exactness, Result, Rule
from sardonyx.rewrite.site import Site

Finder = Callable[[Engine, ir.Graph], Iterator[tuple[ir.Node, Result]]]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A registered sweep: its contract as a ``Rule``, and the function that finds its patches."""

    rule: Rule
    find: Finder
    early: bool = False
    """Whether it runs once, before any rule, on the model as it came."""
    late: bool = False
    """Whether it runs once, after all others and their proof: it changes what callers see of the model."""

    def run(self, engine: Engine) -> bool:
        """Apply it once over the main graph and every function; returns whether anything changed."""
        before = len(engine.applied)
        if self.rule.label in engine.settings.off:
            return False
        if self.rule.roots and engine.operators.isdisjoint(self.rule.roots):
            return False
        # A sweep is a function of the model: where it found nothing, it finds nothing until something changes.
        state = (before, engine.refinements)
        if engine.memo.get(("searched", self.rule.label)) == state:
            return False
        for graph in engine.roots():
            found = self.find(engine, graph)
            while True:
                try:
                    node, result = next(found)
                except StopIteration:
                    break
                except Exception as error:  # what a sweep raises is told, and the others go on
                    engine.blame(self.rule, graph.name or "the graph", error)
                    break
                if engine.alive(node):
                    engine.apply(self.rule, Site(engine, node), result)
        if len(engine.applied) == before:
            engine.memo["searched", self.rule.label] = state
        return len(engine.applied) > before


SWEEPS: dict[str, Sweep] = {}
"""Every sweep loaded so far, by pass name, in order of definition."""


def sweep(
    name: str,
    *,
    exactness: Exactness,
    on: Iterable[str] = (),
    default: bool = True,
    emits: str = "ai.onnx",
    targets: Iterable[str] = (),
    early: bool = False,
    late: bool = False,
) -> Callable[[Finder], Sweep]:
    """Register a generator ``(engine, graph) -> (node, result)…`` as the pass ``name``.

    Args:
        name: The pass.
        exactness: What it promises of the outputs.
        on: Operators of which the model must have one for the sweep to find anything; none: it always looks.
        default: Whether it runs when no passes are named.
        emits: Domain of the operators it may make.
        targets: Targets it is restricted to.
        early: See ``Sweep``.
        late: See ``Sweep``.

    Raises:
        RuleError: the function has no docstring (it is the pass's description).
    """

    def register(function: Finder) -> Sweep:
        where = getattr(function, "__name__", "sweep")
        lines = (inspect.getdoc(function) or "").strip().splitlines()
        if not lines:
            raise RuleError("a sweep needs a docstring: it is its description", where=where)
        contract = Rule(
            name=name,
            function=where,
            roots=frozenset(on),
            apply=lambda site: None,
            exactness=exactness,
            emits=(emits,),
            opset=1,
            default=default,
            targets=frozenset(targets),
            description=lines[0],
            module=function.__module__,
        )
        SWEEPS[name] = Sweep(contract, function, early, late)
        return SWEEPS[name]

    return register
