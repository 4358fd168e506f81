"""Quantization of float32 models to integers, with measured evidence."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence import (
    HELD_OUT,
    ON_FITTED,
    WITHOUT_DATA,
    Evaluate,
    Evidence,
    OutputError,
    compare_metrics,
    output_errors,
    record_outputs,
    store,
)
from sardonyx.compress.evidence.change import MetricChange, metric_change
from sardonyx.compress.evidence.measurement import measure
from sardonyx.compress.quantization.automatic import (
    MOST_CANDIDATES,
    MOST_ELEMENTS,
    Selection,
    automatic_method,
    is_measurable,
    samples_to_probe,
)
from sardonyx.compress.quantization.bias_correction import mean_error
from sardonyx.compress.quantization.calibration import Observation, product_statistics
from sardonyx.compress.quantization.forms.integer_operators import write_integer_operators
from sardonyx.compress.quantization.insertion import (
    is_dynamic,
    sums_integers,
    write_bounds,
    write_static,
    write_without_ranges,
)
from sardonyx.compress.quantization.methods.balancing import find_balances, insert
from sardonyx.compress.quantization.methods.sequential import reconstruct
from sardonyx.compress.quantization.methods.table import METHODS as ROUNDING
from sardonyx.compress.quantization.placement import FloatNode, Placement, WeightSite, find_placement
from sardonyx.compress.quantization.plain_forms import write_plain_forms
from sardonyx.compress.quantization.ranges import METHODS
from sardonyx.compress.quantization.scheme import QDQ_OPSET, Affine, Granularity, Scheme
from sardonyx.compress.quantization.sensitivity import NodeError, Probe, multiplications
from sardonyx.compress.quantization.single_precision import in_single_precision, weights_of_other_floats
from sardonyx.compress.quantization.site_inputs import SiteInput
from sardonyx.compress.quantization.steps import Method, Preview
from sardonyx.compress.quantization.targets import (
    TARGETS,
    Form,
    QuantizationTarget,
    choose_scheme,
    quantization_target,
    refused_nodes,
    require_accepted,
)
from sardonyx.compress.quantization.weights import QuantizedWeight
from sardonyx.compress.samples import Data, Feeds, Preprocess, Split, read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load, save
from sardonyx.model.copying import copy_model
from sardonyx.rewrite import facts
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.runtime.session import Session

Mode = Literal["static", "dynamic", "weights"]
"""Weights and activations with learned ranges, with ranges of each call, or weights alone."""

_INTERPRETED_WORK = 1e8
"""Multiplications of all judged runs up to which the interpreter, about 5e8 a second, is faster than a compilation."""

_LEAST_GAIN, _LEAST_FREE_GAIN = 1.0, 0.2
"""dB of the worst output for which products per channel are worth their time; and factors in constants, more than
chance."""

_DEVIATIONS = 3.0
"""Standard errors from which the mean error of a quantized input is corrected: others are chance."""

_MOST_MEASURED_NODES = 8
"""Nodes whose loss of the metric is measured: each needs a model of its own."""

AUTO = ("mse", "minmax", "percentile")
"""Calibration methods that ``calibration="auto"`` compares; wider types have the first."""


@dataclass(frozen=True)
class QuantizationReport:
    """The evidence of a quantization.

    Attributes:
        mode: The integers of the model.
        scheme: The scheme.
        form: The form of quantized nodes.
        target: The engine that the model is for.
        method: The method of rounding.
        calibration: The calibration method; empty without data.
        evidence: The samples, the errors of the outputs, the metric and the verdict.
        quantized: The number of nodes with integer weights.
        floats: Nodes with weights that stay in float, and the reasons.
        weight_bytes: Bytes of weights, before and after.
        opset: The operator set, before and after.
        notes: Sentences for the user.
        nodes: The error that each node causes alone, the worst first; empty unless requested.
    """

    mode: Mode
    scheme: Scheme
    form: Form
    target: str
    method: str
    calibration: str
    evidence: Evidence
    quantized: int
    floats: tuple[FloatNode, ...]
    weight_bytes: tuple[int, int]
    opset: tuple[int, int]
    notes: tuple[str, ...]
    nodes: tuple[NodeError, ...] = ()

    @property
    def samples(self) -> int:
        """The number of samples."""
        return self.evidence.samples

    @property
    def judged(self) -> str:
        """The samples that the errors are of; see :class:`Evidence`."""
        return self.evidence.judged

    @property
    def outputs(self) -> tuple[OutputError, ...]:
        """The errors of the float outputs, of the judged samples."""
        return self.evidence.outputs


@dataclass(frozen=True)
class Quantized:
    """A quantized model.

    Attributes:
        model: The model, in standard operators.
        report: The evidence.
    """

    model: ir.Model
    report: QuantizationReport

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file; see :func:`sardonyx.save`."""
        save(self.model, path)


def quantize(
    model: Loadable,
    data: Data | None = None,
    *,
    scheme: str | Scheme = "int8",
    weights: str | None = None,
    activations: str | None = None,
    mode: Mode | None = None,
    granularity: Granularity | None = None,
    block: int = 32,
    symmetric: bool | None = None,
    form: Form = "qdq",
    target: str = "portable",
    opset: int | None = None,
    calibration: str = "auto",
    method: str | Method = "auto",
    preprocess: Preprocess | None = None,
    evaluate: Evaluate | None = None,
    drop: float | None = None,
    bias_correction: bool = True,
    reduce_range: bool | None = None,
    exclude: Collection[str] = (),
    sensitivity: bool = False,
) -> Quantized:
    """Quantize a float32 model to narrow numbers, in standard ONNX operators unless the target has others.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs: feeds by name, an iterable of feeds or arrays (read once), the path of an ``.npz``
            file whose arrays hold samples in axis 0, or the path of a folder of images, audio or arrays.
        scheme: The types: a name (``"int8"``, ``"int16"``, ``"int4"``, ``"int2"``, ``"float8"``, ``"float4"``, or bits
            of weights and activations as ``"w8a16"``), or a :class:`Scheme`.
        weights: The type of weights, in place of the scheme's. ``"int4"`` quantizes weights alone.
        activations: The type of activations, in place of the scheme's.
        mode: ``"static"`` (the default with data), ``"dynamic"`` (the default without) or ``"weights"``.
        granularity: The elements of a weight that share a scale; by default a channel for int8, a block for int4.
        block: Elements of a block.
        symmetric: If True, 0 is the middle of the integers of a weight; by default for 8 bits and more.
        form: ``"qdq"``, or ``"qoperator"`` for operators on integers, of static quantization to 8 bits.
        target: The engine that the model is for: ``"portable"``, ``"onnxruntime"``, ``"openvino"``, ``"tensorrt"`` or
            ``"native"``; decides the types of activations, and operators beyond the standard's.
        opset: The operator set of the result; raised only if the types need more, and the report says so.
        calibration: The choice of ranges: ``"minmax"``, ``"moving-average"``, ``"percentile"``, ``"mse"``,
            ``"entropy"``, or ``"auto"``, which compares several: with ``method="auto"`` on samples of the calibration,
            tensor by tensor, otherwise on the judged samples.
        method: The method of rounding, or ``"auto"``.
        preprocess: A function or a model that computes feeds from the items of the data.
        evaluate: A function of a session that returns the metric, higher is better; see ``compress.evidence``.
        drop: The largest permitted loss of the metric, for the verdict.
        bias_correction: If True, biases are corrected by the mean error of each channel.
        reduce_range: Weights for processors that add two products in saturating 16 bits: if None, scales are widened
            where a sum would saturate, unless the target is ``"native"`` or ``"tensorrt"``; if True, all weights use 7
            bits; if False, 8 bits.
        exclude: Names of nodes, or operators, that stay in float.
        sensitivity: If True, the report has the error that each node causes alone and, with `evaluate`, the loss of
            the metric by the worst nodes.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, or the data hold no sample or samples that do not fit.
        UnsupportedError: No node of the model can be quantized, or the target does not run the result.
        EvaluationError: An activation is NaN, or the evaluate function raised.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.quantize("model.onnx", data="calibration.npz")
        >>> result.save("small.onnx")
    """
    engine = quantization_target(target)
    chosen, default_mode = choose_scheme(
        scheme, engine, weights, activations, granularity, block, symmetric, reduce_range
    )
    without_data: Mode = "dynamic" if "dynamic" in engine.modes else "weights"
    mode = mode or default_mode or (without_data if data is None else "static")
    if mode == "weights":
        chosen = replace(chosen, exact_sums=False)
    _require_possible(mode, chosen, form, data, calibration, evaluate, drop)
    source = load(model)
    rounding = _method(method, chosen, mode, _weight_elements(source), has_data=data is not None)
    draft = Draft(source, chosen, mode, rounding, exclude, bias_correction, form, engine, opset)
    split = None if data is None else split_samples(read_samples(data, draft.source, preprocess))
    draft.learn(split)
    if method == "auto" and mode == "static":
        best, result, outputs, change = _best_nodes(draft, calibration, evaluate, drop)
    else:
        best, result, outputs = _best(draft, calibration)
        change = None if evaluate is None else compare_metrics(draft.source, result, evaluate, drop)
    judged = WITHOUT_DATA if split is None else HELD_OUT if split.is_held_out else ON_FITTED
    evidence = Evidence(0 if split is None else split.count, judged, outputs, change)
    nodes = draft.node_errors(best, evaluate) if sensitivity else ()
    report = replace(draft.report(result, best, evidence), nodes=nodes)
    store(result, "quantization", report)
    return Quantized(result, report)


def _best(draft: Draft, calibration: str) -> tuple[str, ir.Model, tuple[OutputError, ...]]:
    """Return the calibration with the best worst output on the judged samples, its model, and the errors."""
    if not draft.judged:
        return "", draft.write(""), ()
    original = record_outputs(_judged_session(draft, draft.source), draft.judged)
    if draft.mode != "static":
        result = draft.write("")
        return "", result, output_errors(original, result, draft.judged)
    best: tuple[float, str, ir.Model, tuple[OutputError, ...]] | None = None
    for one in draft.calibrations(calibration):
        result = draft.write(one)
        errors = output_errors(original, _judged_session(draft, result), draft.judged)
        worst = min((error.sqnr for error in errors), default=math.inf)
        if best is None or worst > best[0]:
            best = worst, one, result, errors
    assert best is not None
    return best[1:]


def _best_nodes(
    draft: Draft, calibration: str, evaluate: Evaluate | None, drop: float | None
) -> tuple[str, ir.Model, tuple[OutputError, ...], MetricChange | None]:
    """Return the calibration and the model with the nodes in float that measured errors, and a budget, ask for.

    Without an `evaluate` function one model is written. With a budget, models with less noise follow until the loss is
    within the budget.
    """
    session = _judged_session(draft, draft.source, evaluate)
    before = None if evaluate is None else measure(session, evaluate)
    original = record_outputs(session, draft.judged)
    del session
    selection = draft.selection(calibration)
    if selection is not None and not selection.is_excellent:
        selection = draft.balanced_selection(calibration, selection)
    choice = None if selection is None else selection.choose()
    if calibration == "auto":
        calibration = "mse" if selection is None else selection.ranges.method
    for count in range(1, MOST_CANDIDATES + 1):
        result = draft.write(calibration, None if choice is None else dict.fromkeys(choice.floats))
        session = _judged_session(draft, result, evaluate)
        change = None
        if before is not None and evaluate is not None:
            change = metric_change(before, measure(session, evaluate), drop, comparisons=count)
        if change is None or drop is None or change.loss <= drop or selection is None or choice is None:
            break
        if count < MOST_CANDIDATES and len(choice.floats) < len(selection.nodes):
            draft.notes.append(f"With {choice.after:.1f} dB the loss is {change.loss:.4g}, above {drop:g}.")
            choice = selection.choose(selection.next_level(choice))
    if choice is not None:
        draft.notes.append(choice.note)
    return calibration, result, output_errors(original, session, draft.judged), change


def _judged_session(draft: Draft, model: ir.Model, evaluate: Evaluate | None = None) -> Session:
    """Return a session for the judged samples alone: interpreted if that is less work than to compile."""
    sites = draft.placement.sites
    shapes = [site.node.outputs[0].shape for site in sites]
    # The first axis is often an open number of samples, which multiplications count as one.
    is_known = all(shape is not None and all(isinstance(size, int) for size in list(shape)[1:]) for shape in shapes)
    batch = max((np.shape(array)[0] for feeds in draft.judged for array in feeds.values() if np.ndim(array)), default=1)
    work = multiplications(sites) * len(draft.judged) * max(batch, 1)
    is_small = draft.mode == "static" and is_known and work <= _INTERPRETED_WORK
    return Session(model, compile="off" if is_small and evaluate is None else "wait")


class Draft:
    """One quantization in progress: the prepared model, its statistics, and the models written from these.

    Args:
        source: The float model.
        scheme: The scheme.
        mode: The mode.
        method: The method.
        exclude: Names of nodes, or operators, that stay in float.
        bias_correction: If True, biases are corrected by the mean error of each channel.
        form: The form of quantized nodes.
        target: The target.
        opset: The operator set of the result; None for the model's own, or the one that the types need.
        optimized: If False, the nodes of the model stay as they are, and their names.

    Attributes:
        source: The float model.
        prepared: The model optimized, in the operator set that the scheme needs, rescaled by the method.
        placement: The places of integers in the prepared model.
        observation: The statistics; None without data.
        judged: The samples that judge the result.
        notes: Sentences for the user.

    Raises:
        UnsupportedError: No node of the model can be quantized, or the target does not accept the types.
    """

    def __init__(
        self, source: ir.Model, scheme: Scheme, mode: Mode, method: Method, exclude: Collection[str] = (),
        bias_correction: bool = True, form: Form = "qdq", target: QuantizationTarget = TARGETS["portable"],
        opset: int | None = None, optimized: bool = True,
    ) -> None:  # fmt: skip
        self.source, self.scheme, self.mode, self.method, self.exclude = source, scheme, mode, method, exclude
        self._corrects, self._form, self._target = bias_correction, form, target
        self.notes: list[str] = []
        self.prepared = _prepared(source, scheme, mode, target, opset, self.notes, optimized=optimized)
        require_accepted(target, scheme, mode, _opset(self.prepared))
        self._known = [str(node.name) for node in self.prepared.graph.all_nodes()]
        self.placement = find_placement(self.prepared, exclude)
        self.observation: Observation | None = None
        self.judged: Sequence[Feeds] = ()
        self._unseen: frozenset[str] = frozenset()
        self._preview: Sequence[Feeds] = ()
        self._methods: Mapping[str, str] = {}
        self._rounded: dict[tuple[str, Scheme], QuantizedWeight] = {}
        if not self.placement.all_sites and not (mode == "weights" and self.placement.tables):
            floats = self.placement.floats
            reasons = "; ".join(f"{node.name}: {node.reason}" for node in floats[:3]) or "no node has a weight"
            raise UnsupportedError(f"no node can be quantized ({reasons}).", where=str(source.graph.name or "model"))

    def learn(self, split: Split | None) -> None:
        """Rescale the model, then read all samples once and collect the statistics that the method needs."""
        stream: Iterator[Feeds] = iter(()) if split is None else split.fitting()
        head = Preview(stream)
        if self.method.rescale is not None:
            self.notes += self.method.rescale(self.prepared, head)
            self.placement = find_placement(self.prepared, self.exclude)
        self._preview = head.samples
        if split is None:
            return
        needs = self.method.needs
        if self.mode == "static" and self._corrects:
            needs = replace(needs, row_means=True)
        names = [str(value.name) for value in self.placement.reads] if self.mode == "static" else []
        samples = itertools.chain(self._preview, stream)
        self.observation = Observation(self.prepared, names, samples, self.placement.sites, needs)
        self.observation.close()
        self.judged = split.judged
        self._leave_out_unusable()

    def _leave_out_unusable(self) -> None:
        """Leave activations in float that hold no elements, or numbers for minus infinity beside ordinary ones."""
        assert self.observation is not None
        statistics = self.observation.statistics
        empty = sorted(name for name, seen in statistics.items() if not seen.count)
        masks = sorted(name for name, seen in statistics.items() if seen.count and seen.has_sentinels)
        if empty:
            self.notes.append(f"The samples have no elements of {', '.join(empty[:5])}, which stay in float.")
        if masks:
            self.notes.append(
                f"{', '.join(masks[:5])} have elements that stand for infinity, like masks, and stay in float."
            )
        self._unseen = frozenset([*empty, *masks])
        if statistics and len(self._unseen) == len(statistics):
            raise OptionError("no activation of the samples has a range.", where="data")

    def calibrations(self, calibration: str) -> tuple[str, ...]:
        """Return the calibration methods that a choice compares; one if ranges do not differ."""
        if calibration != "auto":
            return (calibration,)
        kind = self.scheme.activation_type
        return AUTO if kind.bits <= 8 and not kind.is_float else AUTO[:1]

    def write(self, calibration: str, schemes: Mapping[str, Scheme | None] | None = None) -> ir.Model:
        """Return a quantized model.

        Args:
            calibration: The calibration method; empty without ranges.
            schemes: The schemes of sites that differ from the model's, by label; None leaves a site in float.

        Raises:
            UnsupportedError: The target does not run a node of the result.
        """
        schemes = schemes or {}
        result = copy_model(self.prepared)
        exclude = [*self.exclude, *(label for label, scheme in schemes.items() if scheme is None)]
        placement = find_placement(result, exclude)
        own = {label: scheme for label, scheme in schemes.items() if scheme is not None}
        chosen = {
            site: self._scheme_of(site, own.get(site.label, self.scheme))
            for site in placement.all_sites
            if self.mode != "dynamic" or not is_dynamic(site)
        }
        weights = {site: self._round(site, scheme) for site, scheme in chosen.items()}
        if self.method.is_sequential and self._preview:
            weights = self._sequential(placement, calibration, exclude, chosen, weights)
        if self.mode == "static":
            maps = self._maps(placement, calibration)
            shifts = self._shifts({str(value.name): affine for value, affine in maps.items()})
            self.notes += write_static(result, placement, self._target, maps, weights, self._means(), shifts)
        else:
            self.notes += write_without_ranges(result, placement, self._target, self.scheme, self.mode, weights)
        result.graph.sort()
        if self.method.reconstruct is not None and self.observation is not None:
            self.notes += self.method.reconstruct(result, self.prepared, self.judged)
        if self._form == "qoperator":
            count, others = write_integer_operators(result, self._target)
            shown = f" ({', '.join(others[:5])})" if others else ""
            self.notes.append(
                f"{count} nodes are operators on integers, {len(others)} stay between QuantizeLinear and "
                f"DequantizeLinear{shown}."
            )
        refused = refused_nodes(result, self._target, self._known)
        if refused:
            raise UnsupportedError(
                f"{self._target.name} does not run {', '.join(refused[:5])}.",
                where="target",
                remedy="Choose other types, or another target.",
            )
        return result

    def selection(self, calibration: str) -> Selection | None:
        """Return the search for nodes that return to float; None, and a note, if probing them is too much work."""
        sites = self.placement.sites
        if self.scheme.activation_type.is_float or not self._preview:
            return None
        if not is_measurable(sites):
            self.notes.append("Ranges and nodes were not measured: the model is too large for a copy with switches.")
            return None
        if not samples_to_probe(sites, len(sites), len(self._preview)):
            self.notes.append("Single nodes were not measured: the model is too large for a run per node.")
        weights, corrections = self._dequantized(self.calibrations(calibration)[0])
        ways = self.calibrations(calibration)
        candidates = {one: self._named_maps(self.placement, one) for one in ways}
        selection = Selection(
            self.prepared, self.placement, candidates, weights, self._preview, self.exclude, corrections
        )
        if len(ways) > 1:
            self._methods = selection.ranges.methods
            self.notes.append(selection.ranges.note)
        return selection

    def balanced_selection(self, calibration: str, plain: Selection) -> Selection:
        """Balance the channels of activations, and return the search over the result; `plain` if the error stays."""
        observation = self.observation
        assert observation is not None
        balances = [
            balance for balance in find_balances(self.prepared, self.placement, observation.inputs)
            if balance.value.name not in self._unseen
        ]  # fmt: skip
        if not balances:
            return plain
        names = {str(balance.value.name): balance.shaped for balance in balances}
        before, statistics, notes = copy_model(self.prepared), dict(observation.statistics), list(self.notes)
        products = product_statistics(before, names, self._preview)
        results = []
        for balance in balances:
            name = str(balance.value.name)
            results.append(insert(self.prepared, balance))
            observation.rescale(name, results[-1], balance.factors, products[name])
        self._changed()
        self.notes = [note for note in notes if note != plain.ranges.note]
        selection = self.selection(calibration)
        least = _LEAST_GAIN if any(balance.folded is None for balance in balances) else _LEAST_FREE_GAIN
        if selection is not None and selection.ranges.after >= plain.ranges.after + least:
            self.notes.append(
                f"The channels of {len(balances)} activations were brought to like ranges: the worst output rises from "
                f"{plain.ranges.after:.1f} to {selection.ranges.after:.1f} dB on samples of the calibration."
            )
            return selection
        for balance, result in zip(balances, results, strict=True):
            name = str(balance.value.name)
            observation.rescale(result, name, 1 / balance.factors, products[name])
        self.prepared, self.notes, observation.statistics = before, notes, statistics
        self._methods = plain.ranges.methods if len(self.calibrations(calibration)) > 1 else {}
        self._changed()
        return plain

    def _changed(self) -> None:
        """Update what follows from the prepared model."""
        self.placement = find_placement(self.prepared, self.exclude)
        self._rounded = {}

    def node_errors(self, calibration: str, evaluate: Evaluate | None) -> tuple[NodeError, ...]:
        """Return the error that each node causes alone, the worst first; the worst ones with the loss of the metric.

        Raises:
            OptionError: There are no samples, or ranges of each call.
            UnsupportedError: The model is too large for a copy with switches.
        """
        sites = self.placement.sites
        if self.mode == "dynamic" or not self._preview:
            raise OptionError(
                "the error of single nodes needs samples, and ranges or weights alone.", where="sensitivity",
                remedy="Give data, and mode 'static' or 'weights'.",
            )  # fmt: skip
        if not is_measurable(sites):
            raise UnsupportedError("the model is too large for the error of single nodes.", where="sensitivity")
        weights, corrections = self._dequantized(calibration)
        probe = Probe(self.prepared, self._named_maps(self.placement, calibration), weights, self.exclude, corrections)
        count = max(samples_to_probe(sites, len(probe.nodes), len(self._preview)), 1)
        samples = self._preview[:count]
        errors = probe.errors(samples, probe.references(samples))
        quantized = set(weights) | set(probe.nodes) if self.mode == "static" else set(weights)
        ranking = [error for error in probe.ranking(errors) if error.name in quantized]
        if evaluate is None:
            return tuple(ranking)
        before = measure(Session(self.source, compile="wait"), evaluate)
        worst = [error for error in ranking if error.name in weights][:_MOST_MEASURED_NODES]
        losses = {}
        for error in worst:
            notes = list(self.notes)
            others = dict.fromkeys(name for name in quantized if name != error.name)
            alone = self.write(calibration, others)
            self.notes = notes
            losses[error.name] = metric_change(before, measure(Session(alone, compile="wait"), evaluate)).loss
        return tuple(replace(error, metric=losses.get(error.name)) for error in ranking)

    def _shifts(self, maps: Mapping[str, Affine]) -> dict[str, np.ndarray]:
        """Return the mean of inputs minus quantized inputs, for each element of the rows of sites, by label."""
        shifts: dict[str, np.ndarray] = {}
        if self.observation is None or not self._corrects:
            return shifts
        for site in self.placement.sites:
            seen = self.observation.inputs.get(site.label)
            affine = None if site.input is None else maps.get(str(site.input.name))
            if seen is not None and seen.draws is not None and affine is not None and np.isfinite(seen.draws).all():
                errors = (seen.draws - affine.rounded(seen.draws)).astype(np.float64)
                mean, deviation = errors.mean(1), errors.std(1) / max(errors.shape[1], 1) ** 0.5
                shifts[site.label] = np.where(np.abs(mean) > _DEVIATIONS * deviation, mean, 0.0)
        return shifts

    def _dequantized(self, calibration: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the weights of sites that their integers mean, and the mean errors of their products, by label."""
        means = self._means()
        shifts = self._shifts(self._named_maps(self.placement, calibration))
        weights, corrections = {}, {}
        for site in self.placement.sites:
            weight = self._round(site, self._scheme_of(site, self.scheme))
            weights[site.label] = weight.dequantized()
            corrections[site.label] = mean_error(site, weight, means.get(site.label), shifts.get(site.label))
        return weights, corrections

    def _scheme_of(self, site: WeightSite, scheme: Scheme) -> Scheme:
        """Return the scheme of a site's weight, whose sums need not be exact if no engine adds them in 16 bits."""
        scheme = scheme.of_weight(site.sum_axis)
        if self.mode == "static" and site.is_batched and site.node.op_type == "MatMul":
            # ONNX Runtime fuses such a product, and then refuses a scale per column of several matrices.
            scheme = replace(scheme, granularity="tensor")
        if scheme.exact_sums and not sums_integers(site, self.mode):
            return replace(scheme, exact_sums=False)
        return scheme

    def _round(self, site: WeightSite, scheme: Scheme) -> QuantizedWeight:
        """Return a rounded weight; static models are written several times from the same weights."""
        if self.mode != "static":
            return self.method.round(site, scheme, self._input(site.label))
        key = site.label, scheme
        if key not in self._rounded:
            self._rounded[key] = self.method.round(site, scheme, self._input(site.label))
        return self._rounded[key]

    def _named_maps(self, placement: Placement, calibration: str) -> dict[str, Affine]:
        if self.mode != "static":
            return {}
        return {str(value.name): affine for value, affine in self._maps(placement, calibration).items()}

    def _sequential(
        self, placement: Placement, calibration: str, exclude: Sequence[str], schemes: Mapping[WeightSite, Scheme],
        weights: Mapping[WeightSite, QuantizedWeight],
    ) -> dict[WeightSite, QuantizedWeight]:  # fmt: skip
        """Return weights that are rounded in the order of execution, on the inputs of the quantized model."""
        if sum(math.prod(site.shape) for site in placement.sites) > MOST_ELEMENTS:
            self.notes.append("Weights were not rounded again in the order of execution: the model is too large.")
            return dict(weights)
        own = {site.label: site for site in placement.sites if site in weights}
        maps = self._named_maps(placement, calibration)
        probe = Probe(self.prepared, maps, {label: weights[site].dequantized() for label, site in own.items()}, exclude)
        changed = reconstruct(
            probe, list(own.values()), {label: weights[site] for label, site in own.items()},
            {label: schemes[site] for label, site in own.items()}, self._preview,
        )  # fmt: skip
        return {**weights, **{own[label]: weight for label, weight in changed.items()}}

    def report(self, result: ir.Model, calibration: str, evidence: Evidence) -> QuantizationReport:
        """Return the report of a written model."""
        tables = len(self.placement.tables) if self.mode == "weights" else 0
        return QuantizationReport(
            self.mode, self.scheme, self._form, self._target.name, self.method.name, calibration, evidence,
            len(self.placement.all_sites) + tables, tuple(self.placement.floats),
            (_weight_bytes(self.source), _weight_bytes(result)), (_opset(self.source), _opset(result)),
            tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip

    def _input(self, label: str) -> SiteInput | None:
        return None if self.observation is None else self.observation.inputs.get(label)

    def _means(self) -> dict[str, np.ndarray]:
        """Return the mean rows of the inputs of sites, by label; infinite ones are left out."""
        if self.observation is None or not self._corrects:
            return {}
        means = {label: seen.row_means for label, seen in self.observation.inputs.items()}
        return {label: mean for label, mean in means.items() if mean is not None and np.isfinite(mean).all()}

    def _maps(self, placement: Placement, calibration: str) -> dict[ir.Value, Affine]:
        assert self.observation is not None
        kind, symmetric = self.scheme.activation_type, self.scheme.symmetric_activations
        maps = {}
        for value in placement.reads:
            if value.name not in self._unseen:
                seen = self.observation.statistics[str(value.name)]
                own = self._methods.get(str(value.name), calibration)
                maps[value] = Affine.of(*seen.interval(own, kind, symmetric), kind, symmetric)
        return maps


def _method(method: str | Method, scheme: Scheme, mode: Mode, elements: int, *, has_data: bool) -> Method:
    if isinstance(method, Method):
        return method
    if method == "auto":
        return automatic_method(scheme, mode, elements, has_data=has_data)
    if method not in ROUNDING:
        raise OptionError(f"expected 'auto' or one of {', '.join(ROUNDING)}, got {method!r}.", where="method")
    return ROUNDING[method]


def _require_possible(
    mode: str, scheme: Scheme, form: str, data: Data | None, calibration: str, evaluate: Evaluate | None,
    drop: float | None,
) -> None:  # fmt: skip
    if mode not in ("static", "dynamic", "weights"):
        raise OptionError(f"expected 'static', 'dynamic' or 'weights', got {mode!r}.", where="mode")
    if mode == "static" and data is None:
        raise OptionError("static quantization requires data.", where="data", remedy="Give samples of real inputs.")
    if calibration != "auto" and calibration not in METHODS:
        raise OptionError(f"expected 'auto' or one of {', '.join(METHODS)}, got {calibration!r}.", where="calibration")
    if mode == "dynamic" and (scheme.weights != "int8" or scheme.granularity == "block"):
        raise OptionError(
            f"dynamic quantization has 8-bit weights per tensor or channel, got {scheme.weights} per "
            f"{scheme.granularity}.",
            where="weights",
            remedy="Choose mode 'weights', or give data.",
        )
    if form not in ("qdq", "qoperator"):
        raise OptionError(f"expected 'qdq' or 'qoperator', got {form!r}.", where="form")
    is_narrow = scheme.weights == "int8" and scheme.activations in ("int8", "uint8") and scheme.granularity != "block"
    if form == "qoperator" and (mode != "static" or not is_narrow):
        raise OptionError(
            "operators on integers need static quantization to 8 bits, per tensor or channel.", where="form"
        )
    if drop is not None and evaluate is None:
        raise OptionError("a permitted loss needs an evaluate function.", where="drop", remedy="Give `evaluate`.")


def _prepared(
    source: ir.Model, scheme: Scheme, mode: Mode, target: QuantizationTarget, opset: int | None, notes: list[str],
    *, optimized: bool,
) -> ir.Model:  # fmt: skip
    """Return the model optimized, with inferred shapes, in the operator set that the scheme needs."""
    if optimized:
        if source.functions:
            source = optimize(source, verify=False, passes=["inline_functions"]).model
        others = weights_of_other_floats(source)
        if others:
            source = in_single_precision(source)
            notes.append(f"Weights of {' and '.join(others)}: what is not quantized is computed in float32.")
        prepared = optimize(source, verify=False).model
    else:
        prepared = copy_model(source)
    needed = max(scheme.opset, scheme.activation_opset if mode == "static" else 0)
    if target.vendor and mode == "weights" and scheme.granularity == "block":
        needed = max(needed, QDQ_OPSET)
    if opset is not None and opset < needed:
        raise OptionError(f"the types need operator set {needed}, got {opset}.", where="opset")
    version = max(needed, _opset(prepared)) if opset is None else opset
    if version != _opset(prepared):
        if opset is None:
            notes.append(f"The operator set was raised from {_opset(prepared)} to {needed}, which the types need.")
        prepared = convert_opset(prepared, version)
    infer_shapes(prepared)
    if optimized:
        written = write_plain_forms(prepared)
        if written:
            notes += written
            infer_shapes(prepared)
    if mode == "static" and scheme.activation_type.is_float:
        write_bounds(prepared)
    return prepared


def _weight_bytes(model: ir.Model) -> int:
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _weight_elements(model: ir.Model) -> int:
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(facts.count(tensor) for tensor in tensors if tensor is not None)


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 0)
