"""Quantization of float32 models to integers, with measured evidence."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import onnx_ir as ir

from sardonyx.base.blas_threads import small_work
from sardonyx.base.option_checks import require_names
from sardonyx.compress.evidence import (
    HELD_OUT,
    Evaluate,
    Evidence,
    OutputError,
    compare_metrics,
    judged_by,
    output_errors,
    record_outputs,
    record_stacked,
    require_metric,
    store,
)
from sardonyx.compress.evidence.change import MetricChange, metric_change
from sardonyx.compress.evidence.measurement import measure
from sardonyx.compress.evidence.outputs import RecordedOutputs
from sardonyx.compress.quantization.automatic import (
    MOST_CANDIDATES,
    automatic_method,
)
from sardonyx.compress.quantization.draft import Draft
from sardonyx.compress.quantization.interpretation import compilation_work
from sardonyx.compress.quantization.methods.table import METHODS as ROUNDING
from sardonyx.compress.quantization.preparation import weight_elements
from sardonyx.compress.quantization.ranges import METHODS
from sardonyx.compress.quantization.result import Mode, Quantized
from sardonyx.compress.quantization.scheme import Granularity, Scheme
from sardonyx.compress.quantization.steps import Method
from sardonyx.compress.quantization.targets import (
    Form,
    choose_scheme,
    quantization_target,
)
from sardonyx.compress.samples import Data, Feeds, Preprocess, read_samples, split_samples
from sardonyx.errors import OptionError
from sardonyx.model import Loadable, load
from sardonyx.runtime.session import Session

FEW_SAMPLES, OPTIMISM = 25.0, 6.0
"""dB of the worst output below which a difference of samples held out to those of the calibration is a note."""

USELESS = 10.0
"""dB of the worst output below which a result without a metric is not kept: the noise is a tenth of the signal."""

_FEW_ELEMENTS = 1 << 24
"""Elements of weights up to which products are computed by one thread: others would wait, and spin, more than help."""


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
    is_unsigned = mode == "static" and chosen.activations == "int8" and not engine.reads_joined_signed
    if is_unsigned:
        chosen = replace(chosen, activations="uint8")
    exclude = require_names(exclude, "exclude")
    source = load(model)
    rounding = _method(method, chosen, mode, weight_elements(source), has_data=data is not None)
    draft = Draft(source, chosen, mode, rounding, exclude, bias_correction, form, engine, opset)
    if is_unsigned:
        draft.notes.append(
            f"Activations are uint8, with zero points greater by 128 and equal values: {engine.name} computes other "
            "numbers for convolutions of joined int8."
        )
    with small_work(weight_elements(source) <= _FEW_ELEMENTS):
        split = None if data is None else split_samples(read_samples(data, draft.source, preprocess))
        draft.learn(split)
        if method == "auto" and mode == "static":
            best, result, outputs, change = _best_nodes(draft, calibration, evaluate, drop)
        else:
            best, result, outputs = _best(draft, calibration)
            change = None if evaluate is None else compare_metrics(draft.source, result, evaluate, drop)
    judged = judged_by(split)
    worst = min((error.sqnr for error in outputs), default=math.inf)
    if worst < FEW_SAMPLES and judged == HELD_OUT and draft.expected - worst > OPTIMISM:
        draft.notes.append(
            f"The worst output has {draft.expected:.1f} dB on samples of the calibration, and {worst:.1f} dB on those "
            "held out: the samples are too few for all inputs. Give more."
        )
    # Without a metric, an error of this size is all that is known, and enough to reject the result.
    least = USELESS if change is None and worst < USELESS else None
    evidence = Evidence(0 if split is None else split.count, judged, outputs, change, least)
    nodes = draft.node_errors(best, evaluate) if sensitivity else ()
    report = replace(draft.report(result, best, evidence), nodes=nodes)
    store(result, "quantization", report)
    return Quantized(result, report)


def _best(draft: Draft, calibration: str) -> tuple[str, ir.Model, tuple[OutputError, ...]]:
    """Return the calibration with the best worst output on the judged samples, its model, and the errors."""
    if not draft.judged:
        return "", draft.write(""), ()
    judged, original = _recorded(draft, _judged_session(draft, draft.source))
    if draft.mode != "static":
        result = draft.write("")
        return "", result, output_errors(original, result, judged)
    best: tuple[float, str, ir.Model, tuple[OutputError, ...]] | None = None
    for one in draft.calibrations(calibration):
        result = draft.write(one)
        errors = output_errors(original, _judged_session(draft, result), judged)
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
    judged, original = _recorded(draft, session, evaluate)
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
        draft.expected = choice.after
    return calibration, result, output_errors(original, session, judged), change


def _recorded(
    draft: Draft, session: Session, evaluate: Evaluate | None = None
) -> tuple[Sequence[Feeds], RecordedOutputs]:
    """Return the judged samples, stacked where these are interpreted, and the outputs of a session on these.

    The session is not held: its copy of the weights is free before the next model is written.
    """
    if _is_interpreted(draft, evaluate):
        return record_stacked(session, draft.judged)
    return draft.judged, record_outputs(session, draft.judged)


def _judged_session(draft: Draft, model: ir.Model, evaluate: Evaluate | None = None) -> Session:
    """Return a session for the judged samples alone."""
    return Session(model, compile="off" if _is_interpreted(draft, evaluate) else "wait")


def _is_interpreted(draft: Draft, evaluate: Evaluate | None = None) -> bool:
    """Return True if it is less work to interpret the judged samples than to compile."""
    if draft.mode != "static" or evaluate is not None or draft.observation is None:
        return False
    return draft.observation.sample_work * len(draft.judged) <= compilation_work(draft.prepared)


def _method(method: str | Method, scheme: Scheme, mode: Mode, elements: int, *, has_data: bool) -> Method:
    if isinstance(method, Method):
        return method
    if method == "auto":
        return automatic_method(scheme, mode, elements, has_data=has_data)
    if not isinstance(method, str) or method not in ROUNDING:
        raise OptionError(f"expected 'auto' or one of {', '.join(ROUNDING)}, got {method!r}.", where="method")
    if ROUNDING[method].requires_data and not has_data:
        raise OptionError(
            f"the method {method} learns from data; expected data, got none.", where="method",
            remedy="Give samples of real inputs, or choose 'nearest', 'hqq' or 'equalization'.",
        )  # fmt: skip
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
    require_metric(drop, evaluate)
