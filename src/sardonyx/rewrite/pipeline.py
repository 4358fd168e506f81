"""From a model and a choice of passes to the rewritten model: the order of things, to the fixed point."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import OptionError
from sardonyx.model.carry import list_only
from sardonyx.rewrite import facts, inference, rules, targets
from sardonyx.rewrite.engine import Engine, LimitReached
from sardonyx.rewrite.language import REGISTRY, Exactness, Rule
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.sweep import SWEEPS, Sweep

ROUNDS = 40
"""Rounds of rules and sweeps after which a model is taken as it is; real models need three to six."""

assert rules.__name__  # importing the package registers every rule


@dataclass(frozen=True)
class Selection:
    """The rules and sweeps of one run."""

    rules: tuple[Rule, ...]
    sweeps: tuple[Sweep, ...]

    def without(self, passes: Collection[str]) -> Selection:
        """The same, less some passes."""
        return Selection(
            tuple(r for r in self.rules if r.name not in passes),
            tuple(s for s in self.sweeps if s.rule.name not in passes),
        )


def available_passes() -> list[str]:
    """Names of all passes, sorted."""
    return sorted({*REGISTRY, *SWEEPS})


def exact_passes() -> list[str]:
    """Names of the passes that run by default, for any target, and promise equal bits."""
    found = []
    for name in available_passes():
        rules = _rules_of(name)
        runs = any(rule.default for rule in rules) and any(not rule.targets for rule in rules)
        if runs and all(rule.exactness is Exactness.EXACT for rule in rules):
            found.append(name)
    return found


def describe(name: str) -> str:
    """What a pass does: what each of its rules does.

    Raises:
        OptionError: no such pass.
    """
    found = _rules_of(name)
    if not found:
        raise OptionError("no such pass", where=name, remedy="`sardonyx passes` lists them.")
    return " ".join(dict.fromkeys(rule.description for rule in found))


def descriptions() -> dict[str, str]:
    """What each rule does, in a line, by its label."""
    return {rule.label: rule.description for name in available_passes() for rule in _rules_of(name)}


def _rules_of(name: str) -> list[Rule]:
    return [*REGISTRY.get(name, ()), *([SWEEPS[name].rule] if name in SWEEPS else [])]


def select(
    target: str = "portable", passes: Sequence[str] | None = None, skip: Iterable[str] = (), extra: Iterable[Rule] = ()
) -> Selection:
    """The passes to run: those named, else the default ones of ``target``; without those to skip.

    Raises:
        OptionError: a name is no pass.
    """
    wanted = None if passes is None else frozenset(passes)
    return _selected(target, wanted, frozenset(skip), tuple(extra), _registered())


def _registered() -> tuple[Rule | Sweep, ...]:
    return (*itertools.chain.from_iterable(REGISTRY.values()), *SWEEPS.values())


@functools.lru_cache(maxsize=64)
def _selected(
    target: str,
    wanted: frozenset[str] | None,
    skipped: frozenset[str],
    extra: tuple[Rule, ...],
    registered: tuple[Rule | Sweep, ...],
) -> Selection:
    """See ``select``; what is registered is named, so that a selection is made anew when that changes."""
    known = {*REGISTRY, *SWEEPS}
    for name in sorted({*(wanted or ()), *skipped} - known):
        raise OptionError("no such pass", where=name, remedy="`sardonyx passes` lists them.")
    profile = targets.profile(target)

    def chosen(name: str, rules: Iterable[Rule]) -> list[Rule]:
        if name in skipped or (wanted is not None and name not in wanted):
            return []
        named = wanted is not None or name in profile.adds
        usual = named or name not in profile.without
        return [r for r in rules if usual and (named or r.default) and (not r.targets or target in r.targets)]

    picked = [rule for name, rules in REGISTRY.items() for rule in chosen(name, rules)]
    picked += [r for r in extra if r not in picked]
    return Selection(tuple(picked), tuple(s for name, s in SWEEPS.items() if chosen(name, [s.rule])))


def transform(model: ir.Model, selection: Selection, settings: Settings) -> Engine:
    """Rewrite ``model`` in place to the fixed point of the selection; the engine returned holds the record.

    Passes that change what callers see are left to ``finish``.
    The result depends only on the arguments: running again with ``settings.limit`` gives the
    model as it was after that many patches.
    """
    free_initializers(model)
    with collector_paused():
        interface = _Interface(model)
        open_negative_sizes(model)
        inference.infer_shapes(model, strict=False)
        engine = _to_fixed_point(model, selection, settings)
    inference.forget_made_up(model)
    if not engine.interface_changed:
        interface.restore(model)
    return engine


def finish(engine: Engine, selection: Selection) -> None:
    """Run the late passes of a selection over the engine's model: they change what callers see, after the proof."""
    for each in selection.sweeps:
        if each.late:
            each.run(engine)


def transform_in_order(model: ir.Model, passes: Sequence[str], settings: Settings, *, repeat: bool) -> Engine:
    """Rewrite ``model`` in place by one pass after another, each to a fixed point of its own.

    Args:
        model: The model.
        passes: Names of passes, in the order of running.
        settings: Target and bounds.
        repeat: Whether to begin again until no pass changes anything.

    Returns:
        The engine, which holds the record.

    Raises:
        OptionError: a name is no pass.
    """
    steps = [select(settings.target, [name]) for name in passes]
    free_initializers(model)
    interface = _Interface(model)
    open_negative_sizes(model)
    with collector_paused():
        inference.infer_shapes(model, strict=False)
        engine = Engine(model, settings)
        for _ in range(ROUNDS if repeat else 1):
            before = len(engine.applied)
            for step in steps:
                _settle(engine, step)
            if len(engine.applied) == before:
                break
    if not engine.interface_changed:
        interface.restore(model)
    for step in steps:
        finish(engine, step)
    return engine


def _settle(engine: Engine, step: Selection) -> None:
    for _ in range(ROUNDS):
        before = len(engine.applied)
        engine.run(step.rules)
        for each in step.sweeps:
            if not each.late:
                each.run(engine)
        if len(engine.applied) == before:
            return
        engine.sizes.forget_unknown()


def free_initializers(model: ir.Model) -> None:
    """Before IR version 4 every initializer had to be a graph input, which says nothing of it: they become constants.

    From version 4 on, an initializer that is also an input is one that callers may override, and stays so.
    """
    if model.ir_version >= 4:
        return
    for value in [v for v in model.graph.inputs if v.is_initializer()]:
        model.graph.inputs.remove(value)
    model.ir_version = 4


def open_negative_sizes(model: ir.Model) -> None:
    """A negative size in a declared shape, as some exporters write an unknown one, tells nothing."""
    plain: dict[int, ir.Shape] = {}
    for graph in _roots(model):
        values = [*graph.inputs, *[value for node in facts.nodes_of(graph) for value in node.outputs]]
        for value in values:
            shape = value.shape
            # Values of one shape share it as they come from a file.
            if shape is None or id(shape) in plain:
                continue
            if any(isinstance(dim, int) and dim < 0 for dim in shape):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in shape])
            else:
                plain[id(shape)] = shape


class _Interface:
    """What the file declares: types and shapes of inputs and outputs, and the values it lists between them.

    Inference must neither refine the former nor add to the latter: a pass changes nothing that it does not name.
    """

    def __init__(self, model: ir.Model) -> None:
        nodes = [node for root in _roots(model) for node in facts.nodes_of(root)]
        values = [value for node in nodes for value in node.outputs]
        self._listed = frozenset(
            [value.name for value in values if value.name and (value.type is not None or value.shape is not None)]
        )
        self._inputs = [(v, v.type, v.shape) for v in model.graph.inputs]
        bodies = [body for node in nodes if facts.may_hold_bodies(node) for body in facts.bodies(node)]
        self._of_bodies = [(body, v, v.type, v.shape) for body in bodies for v in body.outputs]
        self._outputs = [(v.type, v.shape) for v in model.graph.outputs]

    def restore(self, model: ir.Model) -> None:
        """Put back what was declared."""
        for value, kind, shape in self._inputs:
            value.type, value.shape = kind, shape
        for value, (kind, shape) in zip(model.graph.outputs, self._outputs, strict=True):
            value.type, value.shape = kind, shape
        for body, value, kind, shape in self._of_bodies:
            if value.graph is body and value in body.outputs:
                value.type, value.shape = kind, shape
        for root in _roots(model):
            for graph in facts.graphs_of(root):
                list_only(graph, self._listed)


def _roots(model: ir.Model) -> Iterator[ir.Graph]:
    yield model.graph
    yield from (function.graph for function in model.functions.values())


def _to_fixed_point(model: ir.Model, selection: Selection, settings: Settings) -> Engine:
    engine = Engine(model, settings)
    try:
        for each in selection.sweeps:
            if each.early:
                each.run(engine)
        engine.learned.clear()
        stable = False
        for _ in range(ROUNDS):
            fired = engine.run(selection.rules, on_changes=True)
            if stable and not fired:
                break
            swept = [each.run(engine) for each in selection.sweeps if not (each.early or each.late)]
            engine.sizes.forget_unknown()
            told = inference.refine(model, engine.sizes, engine.learned)
            engine.learned.clear()
            if told:
                engine.sizes.forget_unknown()
                engine.tell(told)
            stable = not told and not any(swept)
            if stable and not fired:
                break
    except LimitReached:
        pass
    return engine
