"""``compress``: the smallest and fastest model that keeps a budget, with the evidence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from sardonyx.compress.evidence import (
    HELD_OUT,
    ON_FITTED,
    WITHOUT_DATA,
    CompressionResult,
    Evaluate,
    Evidence,
    LayerError,
    MetricChange,
    Verdict,
    measure,
    metric_change,
    store,
)
from sardonyx.compress.quantization.single_precision import in_single_precision, weights_of_other_floats
from sardonyx.compress.samples import Data, Preprocess
from sardonyx.compress.search.budget import SECONDS, Budget, Quantity, quantity
from sardonyx.compress.search.figures import Figures, Target, file_bytes, measure_beside
from sardonyx.compress.search.moves import BY_NAME, MOVES, Fitting, Plan, without_reports
from sardonyx.compress.search.sample_source import SampleSource
from sardonyx.compress.search.search import SPEED, Search, metric_comparisons
from sardonyx.compress.search.time_limit import TimeLimit
from sardonyx.compress.search.trial import State, Trial, front
from sardonyx.compress.search.workbench import GATE_SECONDS, Workbench
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, load
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.optimize import optimize
from sardonyx.runtime.profiling.profile import drawn_feeds
from sardonyx.runtime.session import Session

LEAST_SQNR = 20.0
"""SQNR in dB of every output without another budget of accuracy: an error of a tenth of the signal."""

_PERMIT = "Accept a slower result with `allow_slower=True` (`--allow-slower`)."

PROVED_SAVING = 0.5
"""The least saving of a proved result, in powers of that of the best result: 0.25 of size and time gives way to 0.5."""


@dataclass(frozen=True)
class Layer:
    """A layer with weights.

    Attributes:
        node: The name of the node.
        op_type: The operator.
        move: The move that changed the layer; empty if none did.
        reason: The reason why the layer stayed.
    """

    node: str
    op_type: str
    move: str
    reason: str


@dataclass(frozen=True)
class CompressionReport:
    """The evidence of a compression.

    Attributes:
        plan: The steps of the result, in words; ``"original"`` if none keeps the budget, or none is better.
        verdict: ``"kept"``, ``"not kept"`` or ``"not judged"``, for the whole budget.
        reason: The verdict in words.
        budget: The budget.
        target: The engine.
        seed: The seed.
        original: The figures of the original.
        result: The figures of the result.
        evidence: The accuracy of the result.
        trials: The outcomes of all plans.
        front: The plans that no other plan beats in accuracy, size and time, in words.
        stopped: The reason for the end of the search.
        notes: Sentences for the user.
        layers: The layers of the optimized original with weights, in the order of the graph.
        hurting: The layers of the result at which the error grows most on a judged sample.
    """

    plan: str
    verdict: Verdict
    reason: str
    budget: Budget
    target: str
    seed: int
    original: Figures
    result: Figures
    evidence: Evidence
    trials: tuple[Trial, ...]
    front: tuple[str, ...]
    stopped: str
    notes: tuple[str, ...]
    layers: tuple[Layer, ...] = ()
    hurting: tuple[LayerError, ...] = ()

    def shown(self, metric: float) -> float:
        """Return the metric of a trial, which is higher if better, with the metric's usual sign."""
        first, change = self.trials[0].metric, self.evidence.metric
        return -metric if first is not None and change is not None and change.before == -first else metric


class Compressed(CompressionResult[CompressionReport]):
    """A compressed model; the original if no other keeps the budget."""


def compress(
    model: Loadable,
    data: Data | None = None,
    *,
    evaluate: Evaluate | None = None,
    budget: Budget | None = None,
    target: Target = "native",
    preprocess: Preprocess | None = None,
    measured: bool | None = None,
    allow_slower: bool = False,
    seed: int = 0,
    trials: int = 60,
    time: Quantity | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Compressed:
    """Return the smallest and fastest model that keeps a budget, with the evidence.

    Precision per layer, pruning with fine-tuning, factorization and shared weights are tried alone and combined. Of the
    results that keep the budget the one with the smallest product of file size and time is returned; if there is none,
    the original.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs to learn from; see :func:`sardonyx.quantize`. A part is held back to judge.
        evaluate: A function of a session that returns a metric, or a metric and scores per sample, higher is better;
            run on data other than `data`.
        budget: The limits. Without `drop` or `sqnr` every output keeps 20 dB.
        target: The engine on which models are judged: ``"native"`` or ``"onnxruntime"``.
        preprocess: A function or a model that computes feeds from the items of the data.
        measured: If True, times are measured on this machine; if False, nothing is measured and times are those of the
            cost model; by default times are measured if the budget limits them, and else only the result is compared
            with the original once.
        allow_slower: If True, a result may be slower than the original.
        seed: The seed of bootstrap intervals, and of draws and orders in moves.
        trials: The most plans to try.
        time: The time of the search: ``"10m"``, or seconds. The trial in progress is stopped.
        state: A folder for the outcomes of trials, from which the same search resumes. A search by a function of
            another name, or with another number on the original, is refused; other metrics that agree in both are not
            noticed.
        progress: A function that is called with the name of each plan before its trial.

    Returns:
        The model and the evidence. ``report.verdict`` is ``"not kept"`` if the model is the original because no result
        keeps the budget.

    Raises:
        OptionError: An option or the budget is impossible, or the data do not fit.
        EvaluationError: The function raised or returned a number that is not finite, for the original.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.compress("model.onnx", data="train/", evaluate=fn, budget=Budget(drop=0.5, size="4MB"))
    """
    budget = Budget() if budget is None else budget
    limit = TimeLimit(None if time is None else quantity(time, SECONDS, "time"))
    _require_possible(budget, data, evaluate, target, trials)
    source = load(model)
    samples = None if data is None else SampleSource(data, source, preprocess)
    base = optimize(copy_model(source), verify=False).model
    if not base.functions and weights_of_other_floats(base):
        base = in_single_precision(base)
    infer_shapes(base)
    _require_reachable(budget, source)
    limited = not {"latency", "energy"}.isdisjoint(budget.limits)
    bench = Workbench(
        source, base, Fitting(samples, target, seed=seed), () if samples is None else samples.judged,
        _feeds(source, samples), evaluate, target, bool(measured or (measured is None and limited)),
        energy="energy" in budget.limits and measured is not False,
    )  # fmt: skip
    least = budget.sqnr if budget.sqnr is not None or budget.drop is not None else LEAST_SQNR
    outcomes = State(state, "" if state is None else _identity(source, target, seed, samples, bench))
    search = Search(
        bench, budget, least, outcomes, allow_slower, trials, limit, progress or (lambda label: None)
    )  # fmt: skip
    _require_meaning(budget, search.original_trial())
    search.run()
    return _Choice(search, samples, seed, measured).result()


def _require_possible(budget: Budget, data: Data | None, evaluate: Evaluate | None, target: str, trials: int) -> None:
    if target not in ("native", "onnxruntime"):
        raise OptionError(f"expected 'native' or 'onnxruntime', got {target!r}.", where="target")
    if trials < 1:
        raise OptionError(f"expected at least 1, got {trials}.", where="trials")
    if data is None and evaluate is None:
        raise OptionError(
            "expected `data` or `evaluate`, got neither: nothing could be judged.",
            where="data",
            remedy="Give samples of real inputs.",
        )
    if evaluate is not None and not callable(evaluate):
        raise OptionError(f"expected a function, got {type(evaluate).__name__}.", where="evaluate")
    if budget.drop is not None and evaluate is None:
        raise OptionError(
            "a permitted loss needs a metric.", where="drop",
            remedy="Give `evaluate`, or limit the error of outputs by `sqnr`.",
        )  # fmt: skip
    if evaluate is not None and budget.drop is None:
        raise OptionError(
            "a metric needs the largest permitted loss.", where="drop", remedy="Set `drop` in the units of the metric."
        )
    if data is None and budget.sqnr is not None:
        raise OptionError("a limit of SQNR needs data.", where="sqnr", remedy="Give samples of real inputs.")


def _require_reachable(budget: Budget, source: ir.Model) -> None:
    """Refuse a size below that of the graph without its weights.

    Raises:
        OptionError: The size cannot be reached.
    """
    limit = budget.limits.get("size")
    if limit is None:
        return
    tensors = [value.const_value for value in source.graph.initializers.values()]
    weights = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    inputs = [*source.graph.inputs, *source.graph.outputs]
    least = 16 * sum(1 for _ in source.graph.inputs) + sum(len(str(value.name)) for value in inputs)
    if limit < least or (not weights and limit < file_bytes(source) / 4):
        raise OptionError(
            f"the interface of the model alone takes {least:,} bytes, got a limit of {limit:,.0f}.", where="size",
            remedy="Set a larger size.",
        )  # fmt: skip


def _require_meaning(budget: Budget, reference: Trial) -> None:
    """Refuse a drop that permits the loss of half of the metric.

    Raises:
        OptionError: The drop is that large.
    """
    value = reference.metric
    if budget.drop is not None and value is not None and 0 < value <= 2 * budget.drop:
        raise OptionError(
            f"a drop of {budget.drop:g} permits the loss of half of the metric, which is {value:.4g}.", where="drop",
            remedy="State the drop in the units of the metric.",
        )  # fmt: skip


def _feeds(source: ir.Model, samples: SampleSource | None) -> Mapping[str, Any]:
    if samples is not None:
        return samples.judged[0]
    return drawn_feeds(source, Session(source, compile="wait"))[0]


def _identity(source: ir.Model, target: str, seed: int, samples: SampleSource | None, bench: Workbench) -> str:
    """Return a text that identifies a search: the model, the samples, and the options that change a trial.

    A metric is identified by its name, and by its number on the original when it is measured.
    """
    digest = hashlib.sha256()
    for node in source.graph:
        digest.update(ir.serde.serialize_node(node).SerializeToString(deterministic=True))
    for name, value in source.graph.initializers.items():
        digest.update(str(name).encode())
        if value.const_value is not None:
            digest.update(value.const_value.tobytes())
    seen = "" if samples is None else samples.digest
    evaluate = bench.evaluate
    metric = "" if evaluate is None else getattr(evaluate, "__name__", type(evaluate).__name__)
    return repr((digest.hexdigest(), target, seed, seen, metric, bench.measured, [move.name for move in MOVES]))


class _Choice:
    """The choice of the result, and its evidence."""

    def __init__(self, search: Search, samples: SampleSource | None, seed: int, measured: bool | None) -> None:
        self._search, self._samples, self._seed, self._measured = search, samples, seed, measured
        self._notes: list[str] = []

    def result(self) -> Compressed:
        """Return the best result whose loss is proved, else the best one measured inside the budget."""
        search = self._search
        unproved: tuple[Trial, ir.Model] | None = None
        for trial in search.ranked():
            if unproved is not None:
                if not (self._saves_enough(trial, unproved[0]) and self._is_proved(trial)):
                    continue
                if search.is_behind_static(trial) and not search.is_behind_static(unproved[0]):
                    self._notes.append(f"{trial.label} is proved, but is larger or slower than static int8.")
                    break
            if not trial.plan:
                self._notes.append("No result that keeps the budget is smaller or faster than the original.")
                return self._compressed(trial, [])
            trial = search.with_lossless_moves(trial)
            model = self._final(trial.plan)
            figures = self._gated(trial, model)
            if figures is None:
                continue
            self._store(trial, model)
            trial = replace(trial, figures=replace(figures, size=file_bytes(model)))
            if search.broken_limits(trial):
                continue
            if self._is_proved(trial):
                if unproved is not None:
                    self._notes.append(f"{unproved[0].label} is better, but its loss is not proved on these samples.")
                return self._compressed(trial, [], model)
            unproved = trial, model
        if unproved is not None:
            return self._compressed(unproved[0], [], unproved[1])
        original = search.original
        broken = search.broken_limits(original)
        if not broken:
            self._notes.append("The original is returned: no result keeps the budget and is at least as fast.")
        else:
            self._note_closest()
        return self._compressed(original, broken)

    def _saves_enough(self, trial: Trial, best: Trial) -> bool:
        """Return True if a trial saves a fair part of what a better one saves, so that a proof outweighs the rest."""
        shares = [self._search.objective(one)[1] for one in (trial, best)]
        return bool(trial.plan) and shares[0] <= max(shares[1], 0.0) ** PROVED_SAVING

    def _is_proved(self, trial: Trial) -> bool:
        """Return True unless the interval of the metric's loss reaches beyond the budget."""
        change = self._change(trial)
        return change is None or change.drop is None or change.verdict == "kept"

    def _final(self, plan: Plan) -> ir.Model:
        return without_reports(copy_model(self._search.bench.model(plan)))

    def _gated(self, trial: Trial, model: ir.Model) -> Figures | None:
        """Return the figures after the last measurement against the original; None if the result is slower."""
        search, figures = self._search, trial.figures
        assert figures is not None
        if self._measured is False or search.allows_slower:
            return figures
        bench = search.bench
        times = measure_beside(
            bench.session(bench.source), bench.session(model), (bench.source, model), bench.feeds, bench.target,
            GATE_SECONDS,
        )  # fmt: skip
        if times.interval[0] <= 1.0:
            if bench.measured:
                return replace(figures, seconds=times.seconds[1], slower=times.interval)
            return figures
        share = times.seconds[1] / times.seconds[0]
        self._notes.append(
            f"{trial.label} is rejected: {share:.2f} x the time of the original on {bench.target}. {_PERMIT}"
        )
        return None

    def _note_closest(self) -> None:
        search = self._search
        accurate = search.best(1)
        if accurate:
            self._notes.append(closest_note(accurate[0].label, search.broken_limits(accurate[0])))

    def _compressed(self, trial: Trial, broken: list[str], model: ir.Model | None = None) -> Compressed:
        search = self._search
        evidence = self._evidence(trial)
        verdict, reason = self._verdict(trial, broken, evidence)
        tried = tuple(search.trials.values())
        best = front(tried, search.original.metric)
        assert trial.figures is not None and search.original.figures is not None
        layers, hurting = self._of_layers(trial)
        report = CompressionReport(
            trial.label, verdict, reason, search.budget, search.bench.target, self._seed, search.original.figures,
            trial.figures, evidence, tried, tuple(one.label for one in best), search.stopped, tuple(self._notes),
            layers, hurting,
        )  # fmt: skip
        return Compressed(copy_model(search.bench.source) if model is None else model, report)

    def _store(self, trial: Trial, model: ir.Model) -> None:
        """Store the report of a result that keeps the budget in the model, whose file it is a part of."""
        search, evidence = self._search, self._evidence(trial)
        verdict, reason = self._verdict(trial, [], evidence)
        brief = {
            "plan": trial.label, "verdict": verdict, "reason": reason, "target": search.bench.target,
            "seed": self._seed, "trials": len(search.trials), "evidence": evidence,
        }  # fmt: skip
        store(model, "compress", brief)

    def _evidence(self, trial: Trial) -> Evidence:
        count = 0 if self._samples is None else self._samples.count
        least = self._search.least_sqnr if trial.plan else None
        return Evidence(count, self._judged(), trial.outputs, self._change(trial), least)

    def _of_layers(self, trial: Trial) -> tuple[tuple[Layer, ...], tuple[LayerError, ...]]:
        """Return the moves of layers and the layers that hurt, as far as the time of the search permits."""
        limit = self._search.time
        layers = limit.evidence(lambda: self._layers(trial))
        hurting = None if layers is None else limit.evidence(lambda: self._hurting(trial))
        if hurting is None:
            self._notes.append("The layers that hurt are not named: the time budget was over before their comparison.")
        return layers or (), hurting or ()

    def _layers(self, trial: Trial) -> tuple[Layer, ...]:
        bench = self._search.bench
        changed = bench.changed(trial.plan)
        is_partial = any(step.strength < 1 for step in trial.plan)
        reason = "given back: the accuracy did not hold" if is_partial else "no move of the plan changes it"
        names = set(bench.weighted())
        return tuple(
            Layer(name, node.op_type, changed.get(name, ""), "" if name in changed else reason)
            for node in bench.base.graph
            if (name := node_label(node)) in names
        )

    def _hurting(self, trial: Trial) -> tuple[LayerError, ...]:
        bench = self._search.bench
        lossy = tuple(step for step in trial.plan if not BY_NAME[step.move].is_lossless)
        if not lossy or not bench.judged:
            return ()
        return bench.layers_that_hurt(bench.base, bench.model(lossy))

    def _judged(self) -> str:
        if self._samples is None:
            return WITHOUT_DATA
        return HELD_OUT if self._samples.is_held_out else ON_FITTED

    def _change(self, trial: Trial) -> MetricChange | None:
        bench = self._search.bench
        if bench.evaluate is None:
            return None
        if trial.plan not in bench.measurements:
            # The trial is of an earlier run, which stored no scores.
            bench.measurements[trial.plan] = measure(bench.session(bench.model(trial.plan)), bench.evaluate)
        before, after = bench.measurements[()], bench.measurements[trial.plan]
        comparisons = metric_comparisons(list(self._search.trials.values()))
        return metric_change(before, after, self._search.budget.drop, comparisons=comparisons, seed=self._seed)

    def _verdict(self, trial: Trial, broken: list[str], evidence: Evidence) -> tuple[Verdict, str]:
        if broken:
            return "not kept", f"no result keeps the budget; the original breaks: {', '.join(broken)}"
        if not trial.plan:
            return "kept", "the model is the original"
        return evidence.verdict, evidence.reason


def closest_note(label: str, broken: Sequence[str]) -> str:
    """Return the note about the result that is closest to the budget.

    Args:
        label: The plan of the result.
        broken: The limits that it breaks.
    """
    note = f"The closest result, {label}, breaks these limits: {', '.join(broken) or 'none'}."
    return f"{note} {_PERMIT}" if list(broken) == [SPEED] else note
