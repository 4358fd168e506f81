"""Sweeps: passes that examine a whole graph at once instead of one node.

A sweep is registered like a rule and yields ``(node, result)`` pairs; the engine applies each as one patch, so that
sweeps are numbered, explained and bisected like rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.errors import RuleError
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import Exactness, Result, Rule
from sardonyx.rewrite.site import Site

Finder = Callable[[Engine, ir.Graph], Iterator[tuple[ir.Node, Result]]]


@dataclass(frozen=True, eq=False)
class Sweep:
    """A registered sweep: its contract as a ``Rule``, and the function that yields its patches."""

    rule: Rule
    find: Finder
    early: bool = False
    """True if the sweep runs once, before any rule, on the unchanged model."""
    late: bool = False
    """True if the sweep runs once, after the proof, because it changes the interface of the model."""

    def run(self, engine: Engine) -> bool:
        """Apply the sweep once to the main graph and every function; return True if the model changed."""
        before = len(engine.applied)
        if self.rule.label in engine.settings.off:
            return False
        if self.rule.roots and engine.operators.isdisjoint(self.rule.roots):
            return False
        # A sweep is a function of the model: without a change, it yields nothing again.
        state = (before, engine.refinements)
        if engine.memo.get(("searched", self.rule.label)) == state:
            return False
        for graph in engine.roots():
            results = self.find(engine, graph)
            while True:
                try:
                    node, result = next(results)
                except StopIteration:
                    break
                except Exception as error:  # a sweep's error is recorded, and the other sweeps run
                    engine.blame(self.rule, graph.name or "the graph", error)
                    break
                if engine.alive(node):
                    engine.apply(self.rule, Site(engine, node), result)
        if len(engine.applied) == before:
            engine.memo["searched", self.rule.label] = state
        return len(engine.applied) > before


SWEEPS: dict[str, Sweep] = {}
"""All sweeps loaded so far, by pass name, in order of definition."""


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
        name: Name of the pass.
        exactness: The promise about the outputs.
        on: Operators of which the model must have one for the sweep to run; none: the sweep always runs.
        default: True if the sweep runs when no passes are named.
        emits: Domain of the operators that the sweep may emit.
        targets: Targets of the sweep; none for all.
        early: See ``Sweep``.
        late: See ``Sweep``.

    Raises:
        RuleError: the function has no docstring (the description of the pass).
    """

    def register(function: Finder) -> Sweep:
        where = getattr(function, "__name__", "sweep")
        lines = (inspect.getdoc(function) or "").strip().splitlines()
        if not lines:
            raise RuleError("expected a docstring, which is the sweep's description", where=where)
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
