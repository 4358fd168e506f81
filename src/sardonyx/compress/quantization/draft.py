"""One quantization in progress: several models from one observation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence import (
    Evaluate,
    Evidence,
)
from sardonyx.compress.evidence.change import metric_change
from sardonyx.compress.evidence.measurement import measure
from sardonyx.compress.quantization.automatic import (
    MOST_ELEMENTS,
    Selection,
    is_measurable,
    samples_to_probe,
)
from sardonyx.compress.quantization.bias_correction import mean_error
from sardonyx.compress.quantization.calibration import Observation, product_statistics
from sardonyx.compress.quantization.dynamic_products import dynamic_sites
from sardonyx.compress.quantization.forms.integer_operators import write_integer_operators
from sardonyx.compress.quantization.insertion import (
    sums_integers,
    tables_of,
    write_static,
    write_without_ranges,
)
from sardonyx.compress.quantization.methods.balancing import find_balances, insert
from sardonyx.compress.quantization.methods.sequential import reconstruct
from sardonyx.compress.quantization.placement import (
    QUANTIZED,
    Placement,
    WeightSite,
    find_placement,
    quantized_nodes,
    recurrent_notes,
    recurrent_operators,
)
from sardonyx.compress.quantization.preparation import opset_of, prepare, weight_bytes
from sardonyx.compress.quantization.result import Mode, QuantizationReport
from sardonyx.compress.quantization.scheme import Affine, Scheme
from sardonyx.compress.quantization.sensitivity import NodeError, Probe
from sardonyx.compress.quantization.site_inputs import SiteInput
from sardonyx.compress.quantization.steps import Method, Preview
from sardonyx.compress.quantization.targets import (
    TARGETS,
    Form,
    QuantizationTarget,
    refused_nodes,
    require_accepted,
)
from sardonyx.compress.quantization.weights import QuantizedWeight
from sardonyx.compress.samples import Feeds, Split
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model.copying import copy_model
from sardonyx.runtime.session import Session

_LEAST_GAIN, _LEAST_FREE_GAIN = 1.0, 0.2
"""dB of the worst output for which products per channel are worth their time; and factors in constants, more than
chance."""

_DEVIATIONS = 3.0
"""Standard errors from which the mean error of a quantized input is corrected: others are chance."""

_MOST_PRODUCTS = 32
"""Samples that the histograms of activations with balanced channels are of; their extremes are of all samples."""

_MOST_MEASURED_NODES = 8
"""Nodes whose loss of the metric is measured: each needs a model of its own."""

AUTO = ("mse", "minmax", "percentile")
"""Calibration methods that ``calibration="auto"`` compares; wider types have the first."""


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
        expected: The ratio of the worst output in dB on samples of the calibration; -inf if not measured.

    Raises:
        UnsupportedError: No node of the model can be quantized, or the target does not accept the types.
    """

    def __init__(
        self, source: ir.Model, scheme: Scheme, mode: Mode, method: Method, exclude: Collection[str] = (),
        bias_correction: bool = True, form: Form = "qdq", target: QuantizationTarget = TARGETS["portable"],
        opset: int | None = None, optimized: bool = True,
    ) -> None:  # fmt: skip
        self.source, self.scheme, self.mode, self.method, self.exclude = source, scheme, mode, method, exclude
        # Weights that are rounded again in the order of execution correct the means of the layers ahead themselves.
        self._corrects = bias_correction and (mode == "static" or not method.is_sequential)
        self._form, self._target = form, target
        self.notes: list[str] = []
        self.expected = -math.inf
        self.prepared = prepare(source, scheme, mode, target, opset, self.notes, optimized=optimized)
        self._known = [str(node.name) for node in self.prepared.graph.all_nodes()]
        if mode == "static" and scheme.activation_type.bits == 8 and not target.folds_recurrent_weights:
            self.exclude = exclude = [*exclude, *recurrent_operators(self.prepared)]
            self.notes += recurrent_notes(
                self.prepared, f"{target.name} reads no integers as weights of recurrent layers beside static ranges"
            )
        self.placement = find_placement(self.prepared, exclude)
        self.observation: Observation | None = None
        self.judged: Sequence[Feeds] = ()
        self._unseen: frozenset[str] = frozenset()
        self._preview: Sequence[Feeds] = ()
        self._methods: Mapping[str, str] = {}
        self._rounded: dict[tuple[str, Scheme], QuantizedWeight] = {}
        if not self.placement.all_sites and not tables_of(self.placement, scheme, mode):
            floats = sorted(
                [*quantized_nodes(self.prepared), *self.placement.floats], key=lambda node: node.reason != QUANTIZED
            )
            reasons = "; ".join(f"{node.name}: {node.reason}" for node in floats[:3]) or "no node has a weight"
            raise UnsupportedError(
                f"no node can be quantized ({reasons}).", where=str(source.graph.name or "model"),
                remedy="Quantize the float32 model." if floats and floats[0].reason == QUANTIZED else "",
            )  # fmt: skip
        require_accepted(target, scheme, mode, opset_of(self.prepared))

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
        # A model whose activations no method needs is not run for its biases alone.
        if self._corrects and (self.mode == "static" or (self.mode == "weights" and not needs.is_empty)):
            needs = replace(needs, row_means=True)
        names = [str(value.name) for value in self.placement.reads] if self.mode == "static" else []
        samples = itertools.chain(self._preview, stream)
        self.observation = Observation(self.prepared, names, samples, self.placement.sites, needs, len(self._preview))
        self.observation.close()
        self.judged = split.judged
        self.observation.require_numbers(self.judged)
        self._leave_out_unusable()

    def _leave_out_unusable(self) -> None:
        """Leave activations in float that hold no elements, one value, or numbers for infinity beside ordinary ones."""
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
        read = {str(site.input.name) for site in self.placement.sites if site.input is not None}
        constant = sorted(name for name, seen in statistics.items() if name in read and seen.is_constant)
        if constant:
            self.notes.append(
                f"{', '.join(constant[:5])} have one value in all samples, which is no range, and stay in float."
            )
        self._unseen = frozenset([*empty, *masks, *constant])
        mapped = statistics.keys() - self._unseen
        for site in self.placement.sites if self.mode == "static" else ():
            # Only biases beside maps are corrected, and rounding relies on the correction.
            seen = self.observation.inputs.get(site.label)
            if seen is not None and (site.input is None or site.input.name not in mapped):
                seen.leave_means()
        if statistics and len(self._unseen) == len(statistics):
            causes = {"no elements": empty, "numbers of 10^8 or more, as for infinity": masks, "one value": constant}
            reasons = "; ".join(f"{', '.join(names[:3])}: {cause}" for cause, names in causes.items() if names)
            raise OptionError(
                f"no activation of the samples has a range ({reasons}).", where="data",
                remedy="Give samples of real inputs: without elements, or of one value, they tell nothing.",
            )  # fmt: skip

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
        dynamic: Collection[WeightSite] = ()
        if self.mode == "dynamic":
            dynamic = dynamic_sites(placement.all_sites, self._target, opset_of(result))
        chosen = {
            site: self._scheme_of(site, own.get(site.label, self.scheme))
            for site in placement.all_sites
            if site not in dynamic
        }
        weights = {site: self._round(site, scheme) for site, scheme in chosen.items()}
        if self.method.is_sequential and self._preview:
            weights = self._sequential(placement, calibration, exclude, chosen, weights)
        if self.mode == "static":
            maps = self._maps(placement, calibration)
            shifts = self._shifts({str(value.name): affine for value, affine in maps.items()})
            self.notes += write_static(
                result, placement, self._target, self.scheme, maps, weights, self._means(), shifts
            )
        else:
            means = self._means() if self.mode == "weights" else {}
            self.notes += write_without_ranges(result, placement, self._target, self.scheme, self.mode, weights, means)
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

    def selection(
        self, calibration: str, least: float = -math.inf, first: str | None = None
    ) -> Selection | None:  # fmt: skip
        """Return the search for nodes that return to float; None, and a note, if probing them is too much work.

        Args:
            calibration: The calibration method, or ``"auto"``.
            least: The ratio of the worst output in dB without which the ranges are of no use.
            first: The calibration method that is measured first.
        """
        sites = self.placement.all_sites
        if not self._preview:
            return None
        if not is_measurable(sites):
            self.notes.append("Ranges and nodes were not measured: the model is too large for a copy with switches.")
            return None
        if not samples_to_probe(sites, len(sites), len(self._preview)):
            self.notes.append("Single nodes were not measured: the model is too large for a run per node.")
        weights, corrections = self._dequantized(self.calibrations(calibration)[0])
        ways = sorted(self.calibrations(calibration), key=lambda way: way != first)
        candidates = {one: self._named_maps(self.placement, one) for one in ways}
        selection = Selection(
            self.prepared, self.placement, candidates, weights, self._preview, self.exclude, corrections, least
        )
        if len(ways) > 1:
            self._methods = selection.ranges.methods
            self.notes.append(selection.ranges.note)
        return selection

    def balanced_selection(self, calibration: str, plain: Selection) -> Selection:
        """Balance the channels of activations, and return the search over the result; `plain` if the error stays.

        The steps of narrow floats are relative, so that small channels lose nothing.
        """
        observation = self.observation
        assert observation is not None
        if self.scheme.activation_type.is_float:
            return plain
        balances = [
            balance for balance in find_balances(self.prepared, self.placement, observation.inputs)
            if balance.value.name not in self._unseen
        ]  # fmt: skip
        free = all(balance.folded is not None for balance in balances)
        least = _LEAST_FREE_GAIN if free else _LEAST_GAIN
        changed = {label for balance in balances for label in balance.requantized(self.scheme.granularity)}
        # A balance removes a part of the noise of the integers that it changes: without all of it the gain would be
        # larger.
        if not balances or plain.ratio_without(changed) < plain.ranges.after + least:
            return plain
        names = {str(balance.value.name): balance.shaped for balance in balances}
        before, statistics, notes = copy_model(self.prepared), dict(observation.statistics), list(self.notes)
        rounded, rewritten = dict(self._rounded), {label for balance in balances for label in balance.changed_weights}
        products = product_statistics(before, names, self._preview[:_MOST_PRODUCTS])
        results = []
        for balance in balances:
            name = str(balance.value.name)
            results.append(insert(self.prepared, balance))
            observation.rescale(name, results[-1], balance.factors, products[name])
        self.placement = find_placement(self.prepared, self.exclude)
        self._rounded = {key: weight for key, weight in rounded.items() if key[0] not in rewritten}
        self.notes = [note for note in notes if note != plain.ranges.note]
        selection = self.selection(calibration, plain.ranges.after + least, plain.ranges.method)
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
        self.placement, self._rounded = find_placement(self.prepared, self.exclude), rounded
        return plain

    def node_errors(self, calibration: str, evaluate: Evaluate | None) -> tuple[NodeError, ...]:
        """Return the error that each node causes alone, the worst first; the worst ones with the loss of the metric.

        Raises:
            OptionError: There are no samples, or ranges of each call.
            UnsupportedError: The model is too large for a copy with switches.
        """
        sites = self.placement.all_sites
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
                count = max(errors.shape[1], 1)
                mean = errors.sum(1) / count
                # The errors are of one size, so that the difference of squares is exact enough.
                variance = np.einsum("grk,grk->gk", errors, errors) / count - np.square(mean)
                deviation = np.sqrt(np.maximum(variance, 0.0) / count)
                shifts[site.label] = np.where(np.abs(mean) > _DEVIATIONS * deviation, mean, 0.0)
        return shifts

    def _dequantized(self, calibration: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the weights of sites that their integers mean, and the mean errors of their products, by label."""
        means = self._means()
        shifts = self._shifts(self._named_maps(self.placement, calibration))
        weights, corrections = {}, {}
        for site in self.placement.all_sites:
            weight = self._round(site, self._scheme_of(site, self.scheme))
            weights[site.label] = weight.dequantized()
            if site in self.placement.sites:
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
        tables = len(tables_of(self.placement, self.scheme, self.mode))
        return QuantizationReport(
            self.mode, self.scheme, self._form, self._target.name, self.method.name, calibration, evidence,
            len(self.placement.all_sites) + tables, tuple(self.placement.floats),
            (weight_bytes(self.source), weight_bytes(result)), (opset_of(self.source), opset_of(result)),
            tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip

    def _input(self, label: str) -> SiteInput | None:
        return None if self.observation is None else self.observation.inputs.get(label)

    def _means(self) -> dict[str, np.ndarray]:
        """Return the mean rows of the inputs of sites, by label, by which biases are corrected."""
        if self.observation is None or not self._corrects:
            return {}
        means = {label: seen.row_means for label, seen in self.observation.inputs.items()}
        return {label: mean for label, mean in means.items() if mean is not None}

    def _maps(self, placement: Placement, calibration: str) -> dict[ir.Value, Affine]:
        assert self.observation is not None
        kind, symmetric = self.scheme.activation_type, self.scheme.symmetric_activations
        maps: dict[ir.Value, Affine] = {}
        known = self.observation.statistics.keys() - self._unseen
        for value in placement.reads:
            if value.name in known:
                source = placement.source(value, known)
                if source not in maps:
                    seen = self.observation.statistics[str(source.name)]
                    own = self._methods.get(str(source.name), calibration)
                    maps[source] = Affine.of(*seen.interval(own, kind, symmetric), kind, symmetric)
                maps[value] = maps[source]
        return maps
