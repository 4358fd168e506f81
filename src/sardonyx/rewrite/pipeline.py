"""Apply a selection of passes to a model until a fixed point."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import OptionError
from sardonyx.model.carry import list_only
from sardonyx.ops.registry import canonical, find
from sardonyx.rewrite import rules, targets
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.engine.engine import Engine, LimitReached
from sardonyx.rewrite.language import REGISTRY, Exactness, Rule
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.sweep import SWEEPS, Sweep

ROUNDS = 40
"""Maximum rounds of rules and sweeps; the model after the last is the result. Real models need 3 to 6."""

assert rules.__name__  # importing the package registers every rule


@dataclass(frozen=True)
class Selection:
    """The rules and sweeps of one run."""

    rules: tuple[Rule, ...]
    sweeps: tuple[Sweep, ...]

    def without(self, passes: Collection[str]) -> Selection:
        """Return the selection without some passes."""
        return Selection(
            tuple(r for r in self.rules if r.name not in passes),
            tuple(s for s in self.sweeps if s.rule.name not in passes),
        )


def available_passes() -> list[str]:
    """Names of all passes, sorted."""
    return sorted({*REGISTRY, *SWEEPS})


def exact_passes() -> list[str]:
    """Return the names of the passes run by default for every target that preserve results bit for bit."""
    names = []
    for name in available_passes():
        rules = _rules_of(name)
        runs = any(rule.default for rule in rules) and any(not rule.targets for rule in rules)
        if runs and all(rule.exactness is Exactness.EXACT for rule in rules):
            names.append(name)
    return names


def describe(name: str) -> str:
    """Return the description of a pass: the descriptions of its rules.

    Raises:
        OptionError: the pass is unknown.
    """
    rules = _rules_of(name)
    if not rules:
        raise OptionError("unknown pass", where=name, remedy="`sardonyx passes` lists them.")
    return " ".join(dict.fromkeys(rule.description for rule in rules))


def descriptions() -> dict[str, str]:
    """Return the one-line description of each rule, by label."""
    return {rule.label: rule.description for name in available_passes() for rule in _rules_of(name)}


def _rules_of(name: str) -> list[Rule]:
    return [*REGISTRY.get(name, ()), *([SWEEPS[name].rule] if name in SWEEPS else [])]


def select(
    target: str = "portable", passes: Sequence[str] | None = None, skip: Iterable[str] = (), extra: Iterable[Rule] = ()
) -> Selection:
    """Return the passes to run: the named ones, else the defaults of ``target``, less the skipped ones.

    Raises:
        OptionError: a pass name is unknown.
    """
    names = None if passes is None else frozenset(passes)
    return _selected(target, names, frozenset(skip), tuple(extra), _registered())


def _registered() -> tuple[Rule | Sweep, ...]:
    return (*itertools.chain.from_iterable(REGISTRY.values()), *SWEEPS.values())


@functools.lru_cache(maxsize=64)
def _selected(
    target: str,
    names: frozenset[str] | None,
    skipped: frozenset[str],
    extra: tuple[Rule, ...],
    registered: tuple[Rule | Sweep, ...],
) -> Selection:
    """Return the selection; ``registered`` is a key, so that a changed registry gives a new selection."""
    known = {*REGISTRY, *SWEEPS}
    for name in sorted({*(names or ()), *skipped} - known):
        raise OptionError("unknown pass", where=name, remedy="`sardonyx passes` lists them.")
    profile = targets.profile(target)

    def chosen(name: str, rules: Iterable[Rule]) -> list[Rule]:
        if name in skipped or (names is not None and name not in names):
            return []
        named = names is not None or name in profile.adds
        usual = named or name not in profile.without
        return [r for r in rules if usual and (named or r.default) and (not r.targets or target in r.targets)]

    picked = [rule for name, rules in REGISTRY.items() for rule in chosen(name, rules)]
    picked += [r for r in extra if r not in picked]
    return Selection(tuple(picked), tuple(s for name, s in SWEEPS.items() if chosen(name, [s.rule])))


def transform(model: ir.Model, selection: Selection, settings: Settings) -> Engine:
    """Rewrite ``model`` in place to the fixed point of the selection; the engine holds the record.

    Passes that change the interface are left to ``finish``.

    The result depends only on the arguments: running again with ``settings.limit`` returns the
    model after so many patches.
    """
    free_initializers(model)
    with collector_paused():
        interface = _Interface(model)
        open_negative_sizes(model)
        invalid = inference.infer_shapes(model, strict=False)
        engine = _to_fixed_point(Engine(model, settings, invalid), selection)
    inference.forget_generated_names(model)
    if not engine.interface_changed:
        interface.restore(model)
    return engine


def finish(engine: Engine, selection: Selection) -> None:
    """Run the late passes of a selection after the proof: they change the interface of the model."""
    for sweep in selection.sweeps:
        if sweep.late:
            sweep.run(engine)


def transform_in_order(model: ir.Model, passes: Sequence[str], settings: Settings, *, repeat: bool) -> Engine:
    """Rewrite ``model`` in place by one pass after another, each to its own fixed point.

    Args:
        model: The model.
        passes: Names of passes, in the order of running.
        settings: Target and bounds.
        repeat: Repeat the sequence until no pass changes the model.

    Returns:
        The engine, which holds the record.

    Raises:
        OptionError: a pass name is unknown.
    """
    steps = [select(settings.target, [name]) for name in passes]
    free_initializers(model)
    interface = _Interface(model)
    open_negative_sizes(model)
    with collector_paused():
        invalid = inference.infer_shapes(model, strict=False)
        engine = Engine(model, settings, invalid)
        for _ in range(ROUNDS if repeat else 1):
            before = len(engine.applied)
            for step in steps:
                _run_to_fixed_point(engine, step)
            if len(engine.applied) == before:
                break
    if not engine.interface_changed:
        interface.restore(model)
    for step in steps:
        finish(engine, step)
    return engine


def _run_to_fixed_point(engine: Engine, step: Selection) -> None:
    for _ in range(ROUNDS):
        before = len(engine.applied)
        engine.run(step.rules)
        for sweep in step.sweeps:
            if not sweep.late:
                sweep.run(engine)
        if len(engine.applied) == before:
            return
        engine.sizes.forget_unknown()


def free_initializers(model: ir.Model) -> None:
    """Make initializers constants in models before IR version 4, where each had to be a graph input.

    From version 4 on, an initializer that is also an input may be overridden by callers, and stays an input.
    """
    if model.ir_version >= 4:
        return
    for value in [v for v in model.graph.inputs if v.is_initializer()]:
        model.graph.inputs.remove(value)
    model.ir_version = 4


def open_negative_sizes(model: ir.Model) -> None:
    """Replace negative sizes in declared shapes by unknown ones: some exporters write an unknown size so."""
    plain: dict[int, ir.Shape] = {}
    for graph in _roots(model):
        values = [*graph.inputs, *[value for node in facts.nodes_of(graph) for value in node.outputs]]
        for value in values:
            shape = value.shape
            # Values of equal shape share one object in a loaded model.
            if shape is None or id(shape) in plain:
                continue
            if any(isinstance(dim, int) and dim < 0 for dim in shape):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in shape])
            else:
                plain[id(shape)] = shape


def _open_claims(model: ir.Model) -> list[tuple[ir.Value, ir.Shape]]:
    """Open the declared sizes of results of unknown operators, and return the declarations.

    Nothing here can test such a size, and exporters declare the sizes of one example: rules must not rely on one.
    """
    claims: list[tuple[ir.Value, ir.Shape]] = []
    for root in _roots(model):
        imports = {canonical(domain): version for domain, version in root.opset_imports.items()}
        known: dict[tuple[str, str], bool] = {}
        for node in facts.nodes_of(root):
            key = canonical(node.domain), node.op_type
            if key not in known:
                known[key] = find(*key, imports.get(key[0], 1)) is not None
            if known[key] or node.op_identifier() in model.functions:
                continue
            claims += [(value, value.shape) for value in node.outputs if value.shape is not None]
    for value, shape in claims:
        value.shape = ir.Shape([None] * len(shape))
    return claims


class _Interface:
    """Declared types and shapes of inputs and outputs, and the names of annotated intermediate values.

    Inference must neither refine the declared shapes nor add annotations: a pass changes only its own matches. Outputs
    without a declared shape are the exception.
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
        self._claims = _open_claims(model)

    def restore(self, model: ir.Model) -> None:
        """Restore the declared types and shapes."""
        for value, claim in self._claims:
            value.shape = claim
        for value, kind, shape in self._inputs:
            value.type, value.shape = kind, shape
        for value, (kind, shape) in zip(model.graph.outputs, self._outputs, strict=True):
            # The standard requires a shape, which exporters leave out: an inferred one completes the declaration.
            if shape is None and value.shape is not None and (kind is None or kind == value.type):
                continue
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


def _to_fixed_point(engine: Engine, selection: Selection) -> Engine:
    try:
        for sweep in selection.sweeps:
            if sweep.early:
                sweep.run(engine)
        engine.learned.clear()
        stable = False
        for _ in range(ROUNDS):
            fired = engine.run(selection.rules, on_changes=True)
            if stable and not fired:
                break
            swept = [sweep.run(engine) for sweep in selection.sweeps if not (sweep.early or sweep.late)]
            engine.sizes.forget_unknown()
            refined = inference.refine(engine.model, engine.sizes, engine.learned)
            engine.learned.clear()
            if refined:
                engine.sizes.forget_unknown()
                engine.tell(refined)
            stable = not refined and not any(swept)
            if stable and not fired:
                break
    except LimitReached:
        pass
    return engine
