"""Quantization of float32 models to integers, with measured evidence."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence import HELD_OUT, ON_FITTED, WITHOUT_DATA, OutputError, output_errors, store
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.insertion import write_static, write_without_ranges
from sardonyx.compress.quantization.methods.table import METHODS as ROUNDING
from sardonyx.compress.quantization.placement import FloatNode, Placement, find_placement
from sardonyx.compress.quantization.ranges import METHODS
from sardonyx.compress.quantization.scheme import Affine, Granularity, Scheme, named_scheme
from sardonyx.compress.quantization.steps import Method, Preview
from sardonyx.compress.samples import Data, Feeds, Preprocess, Split, read_samples, split_samples
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load, save
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.runtime.session import Session

Mode = Literal["static", "dynamic", "weights"]
"""Weights and activations with learned ranges, with ranges of each call, or weights alone."""

AUTO = ("mse", "minmax", "percentile")
"""Calibration methods that ``calibration="auto"`` compares on the judged samples."""


@dataclass(frozen=True)
class QuantizationReport:
    """The evidence of a quantization.

    Attributes:
        mode: The integers of the model.
        scheme: The scheme.
        method: The method of rounding.
        calibration: The calibration method; empty without data.
        samples: The number of samples.
        judged: ``"held out"``: the errors are of samples that no range was learned from; ``"calibration samples"``:
            there were fewer than four samples; ``"not judged (no data)"``.
        outputs: The errors of the outputs, of the judged samples.
        quantized: The number of nodes with integer weights.
        floats: Nodes with weights that stay in float, and the reasons.
        weight_bytes: Bytes of weights, before and after.
        opset: The operator set, before and after.
        notes: Sentences for the user.
    """

    mode: Mode
    scheme: Scheme
    method: str
    calibration: str
    samples: int
    judged: str
    outputs: tuple[OutputError, ...]
    quantized: int
    floats: tuple[FloatNode, ...]
    weight_bytes: tuple[int, int]
    opset: tuple[int, int]
    notes: tuple[str, ...]


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
    calibration: str = "auto",
    method: str | Method = "auto",
    preprocess: Preprocess | None = None,
    bias_correction: bool = True,
    reduce_range: bool = False,
    exclude: Collection[str] = (),
) -> Quantized:
    """Quantize a float32 model to integers, in standard ONNX operators.

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
        calibration: The choice of ranges: ``"minmax"``, ``"moving-average"``, ``"percentile"``, ``"mse"``,
            ``"entropy"``, or ``"auto"``, which compares several on the judged samples.
        method: The method of rounding, or ``"auto"``.
        preprocess: A function or a model that computes feeds from the items of the data.
        bias_correction: If True, biases are corrected by the mean error of each channel.
        reduce_range: If True, weights use 7 bits, for processors that add products in saturating 16 bits.
        exclude: Names of nodes, or operators, that stay in float.

    Returns:
        The model and the evidence.

    Raises:
        OptionError: An option is impossible, or the data hold no sample or samples that do not fit.
        UnsupportedError: No node of the model can be quantized.
        EvaluationError: An activation is not finite.
        SardonyxError: The model cannot be read or run.

    Example:
        >>> result = sardonyx.quantize("model.onnx", data="calibration.npz")
        >>> result.save("small.onnx")
    """
    chosen, default_mode = _scheme(scheme, weights, activations, granularity, block, symmetric, reduce_range)
    mode = mode or default_mode or ("dynamic" if data is None else "static")
    _require_possible(mode, chosen, data, calibration)
    draft = Draft(load(model), chosen, mode, _method(method), exclude, bias_correction)
    split = None if data is None else split_samples(read_samples(data, draft.source, preprocess))
    draft.learn(split)
    if mode == "static":
        methods = AUTO if calibration == "auto" else (calibration,)
        trials = {one: draft.write(one) for one in methods}
        session = Session(draft.source, compile="wait")
        errors = {one: output_errors(session, trial, draft.judged) for one, trial in trials.items()}
        best = max(trials, key=lambda one: min((error.sqnr for error in errors[one]), default=math.inf))
        result, outputs = trials[best], errors[best]
    else:
        best, result = "", draft.write("")
        outputs = () if split is None else output_errors(draft.source, result, draft.judged)
    report = draft.report(result, best, outputs, split)
    store(result, "quantization", report)
    return Quantized(result, report)


class Draft:
    """One quantization in progress: the prepared model, its statistics, and the models written from these.

    Args:
        source: The float model.
        scheme: The scheme.
        mode: The mode.
        method: The method.
        exclude: Names of nodes, or operators, that stay in float.
        bias_correction: If True, biases are corrected by the mean error of each channel.

    Attributes:
        source: The float model.
        prepared: The model optimized, in the operator set that the scheme needs, rescaled by the method.
        placement: The places of integers in the prepared model.
        observation: The statistics; None without data.
        judged: The samples that judge the result.
        notes: Sentences for the user.

    Raises:
        UnsupportedError: No node of the model can be quantized.
    """

    def __init__(
        self, source: ir.Model, scheme: Scheme, mode: Mode, method: Method, exclude: Collection[str],
        bias_correction: bool = True,
    ) -> None:  # fmt: skip
        self.source, self.scheme, self.mode, self.method, self.exclude = source, scheme, mode, method, exclude
        self._corrects = bias_correction
        self.notes: list[str] = []
        self.prepared = _prepared(source, scheme, mode, self.notes)
        self.placement = find_placement(self.prepared, exclude)
        self.observation: Observation | None = None
        self.judged: Sequence[Feeds] = ()
        if not self.placement.sites and not (mode == "weights" and self.placement.tables):
            floats = self.placement.floats
            reasons = "; ".join(f"{node.name}: {node.reason}" for node in floats[:3]) or "no node has a weight"
            raise UnsupportedError(f"no node can be quantized ({reasons}).", where=str(source.graph.name or "model"))

    def learn(self, split: Split | None) -> None:
        """Rescale the model, then read all samples once and collect the statistics that the method needs."""
        stream: Iterator[Feeds] = iter(()) if split is None else split.fitting()
        preview: list[Feeds] = []
        if self.method.rescale is not None:
            head = Preview(stream)
            preview = head.samples
            self.notes += self.method.rescale(self.prepared, head)
            self.placement = find_placement(self.prepared, self.exclude)
        if split is None:
            return
        needs = self.method.needs
        if self.mode == "static" and self._corrects:
            needs = replace(needs, maxima=True)
        names = [str(value.name) for value in self.placement.reads] if self.mode == "static" else []
        samples = _chained(preview, stream)
        self.observation = Observation(self.prepared, names, samples, self.placement.sites, needs)
        self.judged = split.judged

    def write(self, calibration: str, schemes: Mapping[str, Scheme | None] | None = None) -> ir.Model:
        """Return a quantized model.

        Args:
            calibration: The calibration method; empty without ranges.
            schemes: The schemes of sites that differ from the model's, by label; None leaves a site in float.

        Raises:
            OptionError: The samples have no elements of an activation.
        """
        schemes = schemes or {}
        result = copy_model(self.prepared)
        exclude = [*self.exclude, *(label for label, scheme in schemes.items() if scheme is None)]
        placement = find_placement(result, exclude)
        own = {label: scheme for label, scheme in schemes.items() if scheme is not None}
        weights = {}
        for site in placement.sites:
            if self.mode != "dynamic" or site.node.op_type not in ("MatMul", "Gemm"):
                scheme = own.get(site.label, self.scheme).of_weight(site.sum_axis)
                weights[site] = self.method.round(site, scheme, self._input(site.label))
        if self.mode == "static":
            write_static(result, placement, self.scheme, self._maps(placement, calibration), weights, self._means())
        else:
            self.notes += write_without_ranges(result, placement, self.scheme, self.mode, weights)
        result.graph.sort()
        if self.method.reconstruct is not None and self.observation is not None:
            self.notes += self.method.reconstruct(result, self.prepared, self.judged)
        return result

    def report(
        self, result: ir.Model, calibration: str, outputs: tuple[OutputError, ...], split: Split | None
    ) -> QuantizationReport:
        """Return the report of a written model."""
        judged = WITHOUT_DATA if split is None else HELD_OUT if split.is_held_out else ON_FITTED
        tables = len(self.placement.tables) if self.mode == "weights" else 0
        return QuantizationReport(
            self.mode, self.scheme, self.method.name, calibration, 0 if split is None else split.count, judged, outputs,
            len(self.placement.sites) + tables, tuple(self.placement.floats),
            (_weight_bytes(self.source), _weight_bytes(result)), (_opset(self.source), _opset(result)),
            tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip

    def _input(self, label: str) -> Any:
        return None if self.observation is None else self.observation.inputs.get(label)

    def _means(self) -> dict[str, np.ndarray]:
        """Return the means of the channels of the inputs of sites, by label."""
        if self.observation is None or not self._corrects:
            return {}
        return {label: seen.means for label, seen in self.observation.inputs.items() if seen.means is not None}

    def _maps(self, placement: Placement, calibration: str) -> dict[ir.Value, Affine]:
        assert self.observation is not None
        statistics = {value: self.observation.statistics[str(value.name)] for value in placement.reads}
        unseen = [str(value.name) for value, seen in statistics.items() if not seen.count]
        if unseen:
            raise OptionError(f"the samples have no elements of {', '.join(unseen)}.", where="data")
        kind, symmetric = self.scheme.activation_type, self.scheme.symmetric_activations
        return {value: Affine.of(*seen.interval(calibration), kind, symmetric) for value, seen in statistics.items()}


def _chained(head: Sequence[Feeds], rest: Iterator[Feeds]) -> Iterator[Feeds]:
    yield from head
    yield from rest


def _scheme(
    scheme: str | Scheme, weights: str | None, activations: str | None, granularity: Granularity | None, block: int,
    symmetric: bool | None, reduced: bool,
) -> tuple[Scheme, Mode | None]:  # fmt: skip
    """Return the scheme of the options, and the mode that follows from it."""
    if isinstance(scheme, Scheme):
        base, quantizes_activations = scheme, True
    else:
        base, quantizes_activations = named_scheme(scheme)
        if weights is not None:
            named, quantizes_activations = named_scheme(weights)
            base = replace(named, activations=base.activations)
    changes: dict[str, Any] = {"reduced": reduced or base.reduced}
    if activations is not None:
        changes["activations"], quantizes_activations = activations, True
    if granularity is not None:
        changes["granularity"] = granularity
    if symmetric is not None:
        changes["symmetric"] = symmetric
    if not isinstance(scheme, Scheme):
        changes["block"] = block
    return replace(base, **changes), None if quantizes_activations else "weights"


def _method(method: str | Method) -> Method:
    if isinstance(method, Method):
        return method
    if method == "auto":
        return ROUNDING["nearest"]
    if method not in ROUNDING:
        raise OptionError(f"expected 'auto' or one of {', '.join(ROUNDING)}, got {method!r}.", where="method")
    return ROUNDING[method]


def _require_possible(mode: str, scheme: Scheme, data: Data | None, calibration: str) -> None:
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


def _prepared(source: ir.Model, scheme: Scheme, mode: Mode, notes: list[str]) -> ir.Model:
    """Return the model optimized, with inferred shapes, in the operator set that the scheme needs."""
    prepared = optimize(source, verify=False).model
    needed = max(scheme.opset, scheme.activation_opset if mode == "static" else 0)
    if _opset(prepared) < needed:
        notes.append(f"The operator set was raised from {_opset(prepared)} to {needed}, which the types need.")
        prepared = convert_opset(prepared, needed)
    infer_shapes(prepared)
    return prepared


def _weight_bytes(model: ir.Model) -> int:
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 0)
