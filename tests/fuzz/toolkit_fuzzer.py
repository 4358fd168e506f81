"""Fuzzer of the whole toolkit: nodes with hostile attributes through check, inference, optimization and sessions.

A finding is an exception that is no :class:`.SardonyxError`, one that was caught and made a general error or a note in
a report, and a difference between the interpreter, compiled code and the interpreter of an optimized model.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from sardonyx import Session, check, convert_opset, load, optimize, to_proto
from sardonyx.errors import InvalidModelError, ResourceError, SardonyxError, SizeLimitError
from sardonyx.ops.inference import infer
from sardonyx.rewrite import regression_gate
from tests.fuzz.answers import EXTREME, difference
from tests.fuzz.hostile_cases import declared_model
from tests.fuzz.hostile_nodes import draw_node, sources
from tests.fuzz.native_fuzzer import Finding, StorePosition, Tally, compiler_defects, limit_time
from tests.ops.generators.draw import Draw

TARGETS = ("portable", "onnxruntime", "native", "openvino", "tensorrt")
OPSETS = (7, 9, 11, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25)
LIMITS: Mapping[str, Any] = {"max_memory": 1 << 26, "timeout": 20, "max_loop_iterations": 1000}

ENGINE_SECONDS = 30
"""Most seconds in which an engine may load a model; the gate of ``optimize`` continues without its answer."""

_LIMIT_ERRORS = ResourceError, SizeLimitError

_UNFORESEEN = "has no result for these inputs", " raised "
"""Parts of messages of errors that replace an exception which no definition expects."""


def run_label(label: str, seed: int, runs: int, store_position: StorePosition) -> Tally:
    """Run nodes of one operator and return the counts; see :data:`.native_fuzzer.RunVariant`."""
    return run_drawn(
        lambda one: (Finding(f"{label} seed {one}", problem) for problem in problems(label, one)),
        seed, runs, store_position,
    )  # fmt: skip


def run_drawn(
    findings: Callable[[int], Iterable[Finding]], seed: int, runs: int, store_position: StorePosition
) -> Tally:
    """Run models by their seeds, ``runs`` from ``runs * seed`` on, and return the counts."""
    tally = Tally()
    logging.disable(logging.CRITICAL)
    regression_gate.TIMEOUT = ENGINE_SECONDS
    for number in range(runs):
        limit_time()
        store_position(number, tally.runs)
        tally.findings += findings(runs * seed + number)
        tally.runs += 1
        tally.variants += 1
    limit_time(0, 0)
    return tally


def problems(label: str, seed: int) -> Iterator[str]:
    """Yield the problems of one drawn node.

    Args:
        label: A key of :func:`.sources`.
        seed: Decides everything else.
    """
    draw = Draw(f"attributes {label} {seed}")
    case = draw_node(draw, sources()[label])
    try:
        model, feeds, _ = declared_model(draw, case)
    except (TypeError, ValueError, OverflowError):
        return  # onnx cannot write this attribute.
    yield from model_problems(model, feeds, draw.pick(*TARGETS), draw.pick(*OPSETS))


def model_problems(model: onnx.ModelProto, feeds: dict[str, Any], target: str, opset: int) -> Iterator[str]:
    stages: dict[str, Callable[[], Any]] = {
        "check": lambda: check(model),
        "infer": lambda: infer(load(model)),
        "optimize": lambda: optimize(model, target=target, verify=False),
        "convert": lambda: convert_opset(load(model), opset),
        "reference": lambda: Session(model, compile="off", log_severity=4, **LIMITS),
        "native": lambda: Session(model, compile="wait", threads=1, log_severity=4, **LIMITS),
    }
    results = {}
    for stage, compute in stages.items():
        results[stage] = _outcome(compute)
        if not isinstance(results[stage], SardonyxError) and isinstance(results[stage], Exception):
            yield f"{stage} raises {_text(results[stage])}"
    if not isinstance(results["infer"], Exception):
        yield from (f"infer: {_text(error)}" for error in results["infer"].refusals.values() if is_unforeseen(error))
    optimized = results["optimize"]
    if not isinstance(optimized, Exception):
        yield from (f"the rule {drop.rule} failed: {drop.reason}" for drop in optimized.report.dropped)
    native = results["native"]
    if isinstance(native, Session):
        yield from (f"native: {reason}" for reason in compiler_defects(native))
    is_valid = not isinstance(results["check"], Exception) and not any(f.severity == "error" for f in results["check"])
    answers = {stage: _answer(results[stage], feeds) for stage in ("reference", "native")}
    if not isinstance(optimized, Exception):
        answers[f"optimized for {target}"] = _answer(_interpreted(optimized.proto), feeds)
    if is_valid and not isinstance(results["convert"], Exception):
        answers[f"converted to opset {opset}"] = _answer(_interpreted(to_proto(results["convert"])), feeds)
    elif isinstance(results["convert"], Exception) and is_unforeseen(results["convert"]):
        yield f"convert: {_text(results['convert'])}"
    precise = _in_single_precision(model)
    is_narrow = precise is not None or _passes_on_narrow_floats(model)
    coefficients, width = _extreme_attributes(model), 2 if is_narrow else 8
    for stage, answer in answers.items():
        if stage not in ("reference", "native") and not is_valid and isinstance(answer, SardonyxError):
            continue  # An invalid model that the interpreter answers all the same.
        if isinstance(answer, Exception) and is_unforeseen(answer):
            yield f"{stage}: {_text(answer)}"
        elif problem := _mismatch(
            {**feeds, **coefficients}, answer, answers["reference"], stage != "native" or answer is native, width
        ):
            if precise is not None and _agrees_with_wider(feeds, answer, _answer(_interpreted(precise), feeds)):
                continue
            yield f"{stage}: {problem}"


def _interpreted(model: onnx.ModelProto) -> Any:
    return _outcome(lambda: Session(model, compile="off", log_severity=4, **LIMITS))


def _outcome(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:  # The fuzzer judges every exception.
        return error


def _answer(session: Any, feeds: dict[str, Any]) -> Any:
    return session if isinstance(session, Exception) else _outcome(lambda: session.run(None, feeds))


def is_unforeseen(error: Exception) -> bool:
    if not isinstance(error, SardonyxError):
        return True
    cause = error.__cause__
    if not isinstance(cause, Exception) or isinstance(cause, SardonyxError):
        return False
    return isinstance(error, InvalidModelError) or any(part in error.problem for part in _UNFORESEEN)


def _mismatch(feeds: dict[str, Any], actual: Any, expected: Any, is_whole: bool, width: int) -> str:
    """Describe the difference of an outcome; ``is_whole`` if a model is refused as a whole, for any of its errors."""
    if isinstance(actual, _LIMIT_ERRORS) or isinstance(expected, _LIMIT_ERRORS):
        return ""
    if isinstance(actual, Exception) or isinstance(expected, Exception):
        same = isinstance(expected, Exception) if is_whole else type(actual) is type(expected)
        return "" if same else f"{_text(actual)}; reference {_text(expected)}"
    return difference(feeds, actual, expected, width=width)


def _extreme_attributes(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the finite float attributes from :data:`.EXTREME` on; sums of products with them depend on the order."""
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    values = {attribute.name: np.array([attribute.f, *attribute.floats], np.float32) for attribute in attributes}
    return {name: x for name, x in values.items() if (np.isfinite(x) & (np.abs(x) >= EXTREME)).any()}


def _passes_on_narrow_floats(model: onnx.ModelProto) -> bool:
    """Return True if floats of 16 bits may be between nodes, where compiled code may hold them in 32 bits."""
    kinds = [value.type.tensor_type.elem_type for value in model.graph.input]
    kinds += [tensor.data_type for tensor in model.graph.initializer]
    kinds += [attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "to"]
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    return len(model.graph.node) > 1 and any(kind in narrow for kind in kinds)


def _in_single_precision(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the model with 32-bit intermediates; None if no attribute of a node asks for 16 bits.

    Compiled code may hold these intermediates in 32 bits. A difference of nearly equal numbers shows it.
    """
    precise, narrow = onnx.ModelProto(), (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    precise.CopyFrom(model)
    attributes = (attribute for node in precise.graph.node for attribute in node.attribute)
    halves = [x for x in attributes if x.name in ("stash_type", "softmax_precision") and x.i in narrow]
    for attribute in halves:
        attribute.i = onnx.TensorProto.FLOAT
    return precise if halves else None


def _agrees_with_wider(feeds: dict[str, Any], actual: Any, wider: Any) -> bool:
    """Return True if an answer equals one with 32-bit intermediates, which may also have 32-bit results."""
    if isinstance(actual, Exception) or isinstance(wider, Exception):
        return False
    return not difference(feeds, actual, [y.astype(x.dtype) for x, y in zip(actual, wider, strict=True)], width=2)


def _text(outcome: Any) -> str:
    if not isinstance(outcome, Exception):
        return "answers " + " ".join(f"{getattr(x, 'dtype', type(x))}{getattr(x, 'shape', '')}" for x in outcome)
    error: BaseException = outcome
    while error.__cause__ is not None:
        error = error.__cause__
    lines = traceback.format_exception_only(error)
    frames = traceback.extract_tb(error.__traceback__)
    at = "" if isinstance(error, SardonyxError) or not frames else f" at {frames[-1].filename}:{frames[-1].lineno}"
    return f"{type(outcome).__name__}: {lines[-1].strip()}{at}"
