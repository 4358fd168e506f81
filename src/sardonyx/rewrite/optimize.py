"""``optimize``: rewrite to the fixed point, prove the result, drop unproved patches, and report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import OptionError
from sardonyx.model import Loadable
from sardonyx.model.copying import copy_model
from sardonyx.model.node_order import sort_nodes
from sardonyx.rewrite import pipeline, regression_gate, targets
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.loadable import describe_types, unloadable_nodes
from sardonyx.rewrite.analysis.structure import require_structure, require_valid
from sardonyx.rewrite.engine.engine import Applied, Engine, PatchFailed, RulesUndoEachOther
from sardonyx.rewrite.language import Rule
from sardonyx.rewrite.record import Dropped, Report
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.rules.common import lists_weights_by_habit, unlist_weights
from sardonyx.rewrite.verify import Verdict, Verifier
from sardonyx.rewrite.verify.inputs import require_fit
from sardonyx.rewrite.verify.random_nodes import number_random_nodes

MOST_DROPPED = 32
"""Patches dropped one by one before the original is returned."""


@dataclass(frozen=True)
class Optimized:
    """Result of ``optimize``.

    Attributes:
        model: The optimized model.
        report: Applied patches, the proof, and refusals.
    """

    model: ir.Model
    report: Report

    @property
    def proto(self) -> onnx.ModelProto:
        """The model as a protobuf message.

        Raises:
            ModelTooLargeError: the message would exceed 2 GB; ``save`` has no such bound.
        """
        return model_io.to_proto(self.model)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the model to a file; see ``sardonyx.save``.

        Raises:
            InvalidModelError: The full check of the model finds errors; nothing is written.
        """
        require_valid(self.model)
        model_io.save(self.model, path, **options)


def optimize(
    model: Loadable,
    *,
    target: str = "portable",
    passes: Sequence[str] | None = None,
    skip: Iterable[str] = (),
    skip_fuse_bn: bool = False,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    opset: int | None = None,
    verify: bool = True,
    gate: str = "counts",
    rules: Iterable[Rule] = (),
    freeze_defaults: bool = False,
    growth: int | None = None,
) -> Optimized:
    """Rewrite a model to fewer, cheaper nodes, and prove the equality of results.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model`` (left as it is).
        target: ``portable``, ``onnxruntime``, ``openvino``, ``tensorrt`` or ``native``. Passes by which its engine
            loses fusions are dropped; see ``gate``.
        passes: Names of the passes to run; those of the target when None.
        skip: Names of passes not to run.
        skip_fuse_bn: Keep BatchNormalization separate from convolutions (for later training or quantization).
        input_shapes: New shapes of graph inputs, by name; constants baked from the old ones are repaired.
        inputs: Real inputs to verify on, by name; drawn in the range admitted by the graph when None.
        opset: Raise or lower the default operator set first; never changed otherwise.
        verify: Prove the result (in a child process). Without verification nothing is guaranteed.
        gate: ``"counts"``: the fusions and nodes of the target's engine decide, with the same result on every run.
            ``"latency"``: measured latency decides, if the engine is installed; a busy machine may decide differently.
        rules: Further rules, made with ``sardonyx.rule``.
        freeze_defaults: Make inputs with a default value (initializers listed as inputs) constants, so that they can
            be folded. By default they remain inputs with their values, which callers may override.
        growth: Bytes of weights that one rewrite may add: a folded transpose of a weight that another node reads too.
            By default 64 KiB, and 4 MiB for the target ``native``; 0 keeps such weights shared.

    Returns:
        The model, at the lowest IR version with all its features, and the report. Rewrites that change an output
        are detected, dropped and reported.

    Raises:
        OptionError: an unknown target, gate or pass, or ``inputs`` do not fit the model's inputs.
        SardonyxError: the model cannot be read, or its shapes contradict ``input_shapes``.
    """
    started = time.perf_counter()
    profile = targets.profile(target)
    if gate not in regression_gate.GATES:
        raise OptionError(f"unknown gate '{gate}'", where="gate", remedy=f"Gates: {', '.join(regression_gate.GATES)}.")
    if growth is not None and growth < 0:
        raise OptionError(f"expected a number of bytes from 0 on, got {growth}.", where="growth")
    skipped = {*skip, *(("fuse_bn_into_conv",) if skip_fuse_bn else ())}
    selection = pipeline.select(profile.name, passes, skipped, rules)
    sweeps = {sweep.rule.name for sweep in selection.sweeps}
    unlists = "eliminate_initializer_from_inputs" in sweeps
    # The proof compares interfaces, so the original is frozen too.
    freezes = freeze_defaults or "freeze_initializers" in sweeps
    with collector_paused():
        original = _Original(model, input_shapes, opset, profile, unlists=unlists, freezes=freezes)
        if inputs is not None:
            require_fit(original.model, inputs)
        report = Report.begin(original.model, original.bytes, profile.name)
        settings = Settings(target=profile.name, operators=profile.operators, folding=profile.folding)
        if growth is not None:
            settings = replace(settings, growth=growth, folding=growth)
        attempt = _Attempt(original, selection, settings)
        attempt.transform()
    seconds = time.perf_counter() - started
    with Verifier(original.witness(), inputs=inputs) if verify else nullcontext() as verifier:
        verdict = attempt.prove(verifier)
        outcome = regression_gate.apply_gate(profile, original.witness, report.before, attempt, inputs, by=gate)
        if outcome.changed:
            verdict = attempt.prove(verifier)
    pipeline.finish(attempt.engine, selection)
    model_io.lower_ir_version(attempt.model)
    report.gate = "; ".join(filter(None, (original.sorted, original.frozen, original.converted, outcome.text)))
    report.finish(
        attempt.model,
        attempt.engine,
        verdict,
        attempt.all_dropped(),
        seconds=seconds,
        verify_seconds=time.perf_counter() - started - seconds,
    )
    return Optimized(attempt.model, report)


class _Attempt:
    """One optimization: the current model and the patches dropped so far."""

    def __init__(self, original: _Original, selection: pipeline.Selection, settings: Settings) -> None:
        self._original = original
        self._whole = self._selection = selection
        self._settings = settings
        self._dropped: list[Dropped] = []
        self.model: ir.Model
        self.engine: Engine

    def transform(self) -> None:
        """Rewrite to the fixed point; drop patches that fail, undo each other, or end where an engine cannot load."""
        self.model, self.engine = self._transformed(self._settings)
        engine = self._original.profile.loads
        while engine is not None and (nodes := list(unloadable_nodes(self.model, engine))):
            if not self._original.is_loadable(engine):
                return
            for patch, node in self._sources(nodes, engine):
                reason = f"{engine} loads the original, and no {describe_types(node)}"
                self._dropped.append(Dropped(patch.rule, patch.site, reason))
                self._ban(patch.rule, patch.site)
            self.model, self.engine = self._transformed(self._settings)

    def _sources(self, nodes: Sequence[ir.Node], engine: str) -> list[tuple[Applied, ir.Node]]:
        """Return the patches that added nodes; for nodes changed in their place, the first such patch."""
        adding = {name: patch for patch in self.engine.applied for name in patch.added}
        sources = {adding[node.name]: node for node in nodes if node.name in adding}
        if sources:
            return list(sources.items())

        def is_unloadable(model: ir.Model, applied: Sequence[Applied]) -> bool:
            return any(True for _ in unloadable_nodes(model, engine))

        return [(self._first_patch(is_unloadable), nodes[0])]

    def _transformed(self, settings: Settings) -> tuple[ir.Model, Engine]:
        while True:
            work = self._original.fresh()
            try:
                return work, pipeline.transform(work, self._selection, settings)
            except PatchFailed as error:
                self._dropped.append(Dropped(error.rule, error.site, str(error)))
                self._ban(error.rule, error.site)
                settings = replace(settings, banned=self._settings.banned)
            except RulesUndoEachOther as error:
                self._dropped += [Dropped(rule, error.site, error.problem) for rule in error.rules]
                self._settings = replace(self._settings, off=self._settings.off | set(error.rules))
                settings = replace(settings, off=self._settings.off)

    def _ban(self, rule: str, site: str) -> None:
        self._settings = replace(self._settings, banned=self._settings.banned | {(rule, site)})

    @property
    def applied(self) -> Sequence[Applied]:
        """The patches applied to the current model."""
        return self.engine.applied

    def retry_without(self, passes: frozenset[str]) -> None:
        """Rewrite the original again without some passes of the selection."""
        self._selection = self._whole.without(passes)
        self.transform()

    def give_up(self) -> None:
        """Return to the original model."""
        self.model = self._original.fresh()
        self.engine = Engine(self.model, self._settings)

    def prove(self, verifier: Verifier | None) -> Verdict:
        """Judge the model; while an output differs, find the responsible patch and rewrite without this patch."""
        if verifier is None:
            return Verdict("not proved", reason="verification was switched off")
        verdict = self._judge(verifier)
        for _ in range(MOST_DROPPED):
            if verdict.status != "different" or not self.engine.applied:
                break
            guilty = self._bisect(verifier)
            self._dropped.append(Dropped(guilty.rule, guilty.site, verdict.reason))
            self._ban(guilty.rule, guilty.site)
            self.transform()
            verdict = self._judge(verifier)
        if verdict.status != "different":
            return verdict
        self.give_up()
        return Verdict("not proved", reason=f"every attempt changed an output; original returned: {verdict.reason}")

    def _judge(self, verifier: Verifier) -> Verdict:
        if self.engine.interface_changed:
            return Verdict("not proved", reason="a requested pass changed inputs or outputs")
        return verifier.judge(self.model, exact=_exact(self.engine.applied))

    def _bisect(self, verifier: Verifier) -> Applied:
        """Return the first patch after which an output differs."""

        def differs(model: ir.Model, applied: Sequence[Applied]) -> bool:
            return verifier.judge(model, exact=_exact(applied)).status == "different"

        return self._first_patch(differs)

    def _first_patch(self, is_fault: Callable[[ir.Model, Sequence[Applied]], bool]) -> Applied:
        """Return the first patch after which a model is at fault; prefix ``good`` is harmless, ``bad`` is not."""
        applied = self.engine.applied
        good, bad = 0, len(applied)
        while bad - good > 1:
            middle = (good + bad) // 2
            work, engine = self._transformed(replace(self._settings, limit=middle))
            if is_fault(work, engine.applied):
                bad = middle
            else:
                good = middle
        return applied[bad - 1]

    def all_dropped(self) -> list[Dropped]:
        """Return the dropped patches and the sites at which a rule raised an exception."""
        failed = [Dropped(rule, site, reason) for (rule, site), reason in self.engine.failed.items()]
        return list(dict.fromkeys([*self._dropped, *failed]))


class _Original:
    """The model before any rewrite, and the source of fresh copies."""

    def __init__(
        self,
        source: Loadable,
        input_shapes: Mapping[str, Sequence[int | str | None]] | None,
        opset: int | None,
        profile: targets.Profile,
        *,
        unlists: bool,
        freezes: bool,
    ) -> None:
        self._source = source
        self._unlists = unlists
        self._freezes = freezes
        self._path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        self._changed = bool(input_shapes)
        self._input_shapes = input_shapes
        self._opset = opset
        self.profile = profile
        self._loadable: dict[str, bool] = {}
        self.sorted = ""
        self.frozen = ""
        self.converted = ""
        self._untouched = True
        self.model = self._prepare()
        self.bytes = self._path.stat().st_size if self._path is not None else _size(self.model)

    def _prepare(self) -> ir.Model:
        if isinstance(self._source, onnx.ModelProto):
            # A message in memory may be nested deeper than any file, deeper than recursive readers can follow.
            require_structure(self._source)
        model = model_io.load(self._source)
        if model is self._source:
            model = copy_model(model)
        if sort_nodes(model):
            self._changed = True
            self.sorted = "nodes sorted"
        defaults = [value for value in model.graph.inputs if value.is_initializer()]
        if self._freezes and defaults:
            pipeline.free_initializers(model)
            unlist_weights(model.graph)
            self._changed = True
            self.frozen = f"frozen defaults: {len(defaults)}"
        version = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
        target = self._opset if self._opset is not None or version is None else self.profile.opset(version)
        if target is not None and target != version:
            from sardonyx.rewrite.opset import convert_opset

            # Conversion adds weights that are not graph inputs, so the listing habit must be detected before.
            pipeline.free_initializers(model)
            if self._unlists and lists_weights_by_habit(model):
                unlist_weights(model.graph)
            model = convert_opset(model, target)
            self._changed = True
            self.converted = f"opset {version} → {target}"
        if self._input_shapes:
            from sardonyx.rewrite.reshape_inputs import set_input_shapes

            set_input_shapes(model, self._input_shapes)
        number_random_nodes(model)
        return model

    def is_loadable(self, engine: str) -> bool:
        """Return True if an engine has a kernel for each node before any rewrite."""
        if engine not in self._loadable:
            model = self._prepare()
            inference.infer_shapes(model, strict=False)
            self._loadable[engine] = next(unloadable_nodes(model, engine), None) is None
        return self._loadable[engine]

    def fresh(self) -> ir.Model:
        """Return an unmodified model: first the loaded one, then one read again (faster than a clone)."""
        if not self._untouched:
            self.model = self._prepare()
        self._untouched = False
        return self.model

    def witness(self) -> ir.Model | Path:
        """Return the reference for verification: the original file unless converted or reshaped."""
        binary = self._path is not None and not self._changed and self._path.suffix == ".onnx"
        return self._path if binary and self._path is not None else self._prepare()


def _size(model: ir.Model) -> int:
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    return weights + 100 * sum(1 for _ in model.graph.all_nodes())


def _exact(applied: Sequence[Applied]) -> bool:
    return all(patch.exactness == "exact" for patch in applied)
