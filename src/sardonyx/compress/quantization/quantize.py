"""Quantization of float32 models to integers, with measured evidence."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

import onnx_ir as ir

from sardonyx.compress.evidence import OutputError, output_errors
from sardonyx.compress.quantization.calibration import Data, Observation
from sardonyx.compress.quantization.insertion import Writer, write_static
from sardonyx.compress.quantization.placement import FloatNode, find_placement
from sardonyx.compress.quantization.ranges import METHODS
from sardonyx.compress.quantization.scheme import Affine, Granularity, Scheme
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load, save
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize

Mode = Literal["static", "dynamic", "weights"]
"""Weights and activations with learned ranges, with ranges of each call, or weights alone."""

AUTO = ("mse", "minmax", "percentile")
"""Calibration methods that ``calibration="auto"`` compares on the judged samples."""


@dataclass(frozen=True)
class QuantizationReport:
    """The evidence of a quantization.

    Attributes:
        mode: The integers of the model.
        scheme: The scheme of weights.
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
    weights: Literal["int8", "int4"] = "int8",
    mode: Mode | None = None,
    granularity: Granularity | None = None,
    block: int = 32,
    symmetric: bool | None = None,
    calibration: str = "auto",
    bias_correction: bool = True,
    reduce_range: bool = False,
    exclude: Collection[str] = (),
) -> Quantized:
    """Quantize a float32 model to integers, in standard ONNX operators.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``, which is not changed.
        data: Samples of real inputs: feeds by name, an iterable of feeds (read once), or the path of an ``.npz`` file
            whose arrays hold samples in axis 0.
        weights: The type of weights. ``"int4"`` quantizes weights alone.
        mode: ``"static"`` (the default with data), ``"dynamic"`` (the default without) or ``"weights"``.
        granularity: The elements of a weight that share a scale; by default a channel for int8, a block for int4.
        block: Elements of a block.
        symmetric: If True, 0 is the middle of the integers of a weight; by default for int8 and not for int4.
        calibration: The choice of ranges: ``"minmax"``, ``"moving-average"``, ``"percentile"``, ``"mse"``,
            ``"entropy"``, or ``"auto"``, which compares several on the judged samples.
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
    mode = mode or ("weights" if weights == "int4" else "dynamic" if data is None else "static")
    granularity = granularity or ("block" if weights == "int4" else "channel")
    scheme = Scheme(weights, granularity, block, weights == "int8" if symmetric is None else symmetric, reduce_range)
    _require_possible(mode, scheme, data, calibration)
    source = load(model)
    notes: list[str] = []
    prepared = _prepared(source, scheme, notes)
    placement = find_placement(prepared, exclude)
    if not placement.sites and not (mode == "weights" and placement.tables):
        reasons = "; ".join(f"{node.name}: {node.reason}" for node in placement.floats[:3]) or "no node has a weight"
        raise UnsupportedError(f"no node can be quantized ({reasons}).", where=str(prepared.graph.name or "model"))
    names = [str(value.name) for value in placement.reads] if mode == "static" else []
    observation = None if data is None else Observation(prepared, names, data)
    method, result = "", prepared
    if mode == "static":
        assert observation is not None
        means = observation if bias_correction else None
        methods = AUTO if calibration == "auto" else (calibration,)
        trials = {one: _static(prepared, scheme, exclude, observation, one, means) for one in methods}
        errors = {one: output_errors(source, trial, observation.judged) for one, trial in trials.items()}
        method = max(trials, key=lambda one: min((error.sqnr for error in errors[one]), default=math.inf))
        result, outputs = trials[method], errors[method]
    else:
        result = _without_ranges(prepared, scheme, exclude, mode, notes)
        outputs = () if observation is None else output_errors(source, result, observation.judged)
    judged = "not judged (no data)"
    if observation is not None:
        judged = "held out" if observation.is_held_out else "calibration samples"
    report = QuantizationReport(
        mode, scheme, method, 0 if observation is None else observation.count, judged, outputs,
        len(placement.sites) + (len(placement.tables) if mode == "weights" else 0), tuple(placement.floats),
        (_weight_bytes(source), _weight_bytes(result)), (_opset(source), _opset(result)), tuple(notes),
    )  # fmt: skip
    result.metadata_props["sardonyx.quantization"] = json.dumps(asdict(report), default=str)
    return Quantized(result, report)


def _require_possible(mode: str, scheme: Scheme, data: Data | None, calibration: str) -> None:
    if mode not in ("static", "dynamic", "weights"):
        raise OptionError(f"expected 'static', 'dynamic' or 'weights', got {mode!r}.", where="mode")
    if mode == "static" and data is None:
        raise OptionError("static quantization requires data.", where="data", remedy="Give samples of real inputs.")
    if calibration != "auto" and calibration not in METHODS:
        raise OptionError(f"expected 'auto' or one of {', '.join(METHODS)}, got {calibration!r}.", where="calibration")
    if mode != "weights" and scheme.weights != "int8":
        raise OptionError("4-bit weights require mode 'weights'.", where="weights")
    if mode != "weights" and not scheme.symmetric:
        raise OptionError("asymmetric weights require mode 'weights'.", where="symmetric")
    if mode != "weights" and scheme.granularity == "block":
        raise OptionError("blocks require mode 'weights'.", where="granularity")


def _prepared(source: ir.Model, scheme: Scheme, notes: list[str]) -> ir.Model:
    """Return the model optimized, with inferred shapes, in the operator set that the scheme needs."""
    prepared = optimize(source, verify=False).model
    if _opset(prepared) < scheme.opset:
        notes.append(f"The operator set was raised from {_opset(prepared)} to {scheme.opset}, which the integers need.")
        prepared = convert_opset(prepared, scheme.opset)
    infer_shapes(prepared)
    return prepared


def _static(
    prepared: ir.Model, scheme: Scheme, exclude: Collection[str], observation: Observation, method: str,
    means: Observation | None,
) -> ir.Model:  # fmt: skip
    result = copy_model(prepared)
    placement = find_placement(result, exclude)
    statistics = {value: observation.statistics[str(value.name)] for value in placement.reads}
    maps = {value: Affine.of(*seen.interval(method)) for value, seen in statistics.items() if seen.count}
    unseen = [str(value.name) for value in placement.reads if value not in maps]
    if unseen:
        raise OptionError(f"the samples have no elements of {', '.join(unseen)}.", where="data")
    channel_means = {}
    if means is not None:
        for value, seen in statistics.items():
            if (mean := seen.channel_means) is not None:
                channel_means[value] = mean
    write_static(result, placement, scheme, maps, channel_means)
    return _finished(result)


def _without_ranges(
    prepared: ir.Model, scheme: Scheme, exclude: Collection[str], mode: Mode, notes: list[str]
) -> ir.Model:
    result = copy_model(prepared)
    placement = find_placement(result, exclude)
    writer = Writer(result, scheme)
    dynamic = 0
    for site in placement.sites:
        if mode == "dynamic" and site.node.op_type in ("MatMul", "Gemm"):
            writer.quantize_dynamically(site)
            dynamic += 1
        else:
            writer.quantize_weight(site)
    if mode == "weights":
        for site in placement.tables:
            writer.quantize_table(site)
    whole = [site for site in placement.sites if scheme.of_weight(site.sum_axis) != scheme]
    if whole:
        notes.append(f"The weights of {len(whole)} convolutions have 8 bits: 4 bits need blocks along one summed axis.")
    if mode == "dynamic":
        notes.append(
            f"Without ranges of activations, {dynamic} products are quantized in each call and "
            f"{len(placement.sites) - dynamic} nodes have integer weights alone, which saves memory and no time."
        )
    return _finished(result)


def _finished(model: ir.Model) -> ir.Model:
    model.graph.sort()
    return model


def _weight_bytes(model: ir.Model) -> int:
    tensors: list[Any] = [value.const_value for value in model.graph.initializers.values()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", 0)
