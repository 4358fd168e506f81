"""Differential tests: random models of one operator in the reference session, onnx's evaluator and ONNX Runtime.

``GENERATORS`` draws a legal case of every operator; ``check`` runs it. A difference is either an error of the
operator's definition, or recorded with its reason in ``tests.ops.disagreements``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from sardonyx.errors import SardonyxError
from sardonyx.runtime import Session
from tests.ops.disagreements import DISAGREEMENTS, EVALUATORS, ONNX, RUNTIME
from tests.ops.generators import GENERATORS
from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.retyped import retyped

RANDOM = "random results"

WITHOUT_GENERATOR: dict[str, str] = {
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), RANDOM
    ),
    **dict.fromkeys(
        ("Affine", "Crop", "GivenTensorFill", "ImageScaler", "ParametricSoftplus", "ScaledTanh"),
        "removed from the standard: no evaluator defines it",
    ),
    "SimplifiedLayerNormalization": "an operator of ONNX Runtime, compared among the contributed operators",
    "ImageDecoder": "random bytes are not images; tests/ops/test_images.py decodes real ones",
    **dict.fromkeys(
        ("Optional", "OptionalGetElement", "OptionalHasElement"),
        "an optional has few values, and tests/ops/test_sequences.py covers them all",
    ),
    "SequenceMap": "a function of the standard over loops, which have generators",
}
"""Operators of the standard's main domain without a generator, with the reason."""

EXACT_STEPS = {
    "QLinearConv": 1, "QLinearMatMul": 1, "DynamicQuantizeLinear": 1, "QuantizeLinear": 1, "Resize": 1, "Upsample": 1,
}  # fmt: skip
"""Tolerance, in steps, of integers rounded from floats: evaluators compute these floats in different orders."""

RETYPED = 0.3
"""Share of cases that get other element types than their generator draws."""

_RELATIVE = {2: 4e-3, 4: 1e-4, 8: 1e-7}
"""Tolerances by bytes of a float; relative, and of the greatest in the result."""


@dataclass
class Tally:
    """Results of the cases of an operator.

    Attributes:
        cases: Number of cases.
        compared: Number of comparisons with each evaluator.
        recorded: Number of differences for a recorded reason, by reason.
        failures: Differences without a recorded reason.
    """

    cases: int = 0
    compared: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVALUATORS, 0))
    recorded: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def run_many(operator: str, count: int, first_seed: int = 0) -> Tally:
    """Check ``count`` cases of an operator."""
    tally = Tally()
    for seed in range(first_seed, first_seed + count):
        check(case_of(operator, seed), tally, f"{operator} seed {seed}")
    return tally


def case_of(operator: str, seed: int) -> Case:
    """Return the case of an operator for a seed."""
    draw = Draw(f"{operator} {seed}")
    case = GENERATORS[operator](draw, operator)
    return retyped(draw, case) if draw.chance(RETYPED) else case


def check(case: Case, tally: Tally, label: str) -> None:
    """Run a case in all evaluators and tally the comparisons."""
    tally.cases += 1
    model, feeds = case.model(), case.feeds()
    try:
        ours: Any = Session(model).run(None, feeds)
    except SardonyxError as error:
        ours = error
    for evaluator in EVALUATORS:
        theirs = _by_runtime(model, feeds) if evaluator == RUNTIME else _by_onnx(model, feeds)
        if theirs is None:
            continue
        tally.compared[evaluator] += 1
        difference = str(ours) if isinstance(ours, SardonyxError) else _difference(case, ours, theirs)
        if difference is None:
            continue
        reason = next((d.reason for d in DISAGREEMENTS if d.covers(case, evaluator)), None)
        if reason is None:
            tally.failures.append(f"{label}, {evaluator}: {case}: {difference}")
        else:
            tally.recorded[reason] = tally.recorded.get(reason, 0) + 1


def _by_runtime(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any] | None:
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, feeds)  # type: ignore[no-any-return]
    except Exception:  # A refused case is not compared.
        return None


def _by_onnx(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any] | None:
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return ReferenceEvaluator(model).run(None, feeds)  # type: ignore[return-value]
        except Exception:  # A refused case is not compared.
            return None


def _difference(case: Case, ours: list[Any], theirs: list[Any]) -> str | None:
    """Return a description of the first difference; None if the results agree."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for x, y in _pairs(a, b):
            difference = _array_difference(np.asarray(x), np.asarray(y), EXACT_STEPS.get(case.name, 0))
            if difference is not None:
                return f"output {i}: {difference}"
        if isinstance(a, list) and len(a) != len(b):
            return f"output {i}: {len(a)} and {len(b)} elements"
    return None


def _pairs(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(a, list):
        yield from zip(a, b, strict=False)
    else:
        yield a, b


def _array_difference(a: np.ndarray, b: np.ndarray, steps: int) -> str | None:
    if a.dtype.kind in "OSU":
        return None if a.shape == b.shape and a.tolist() == b.tolist() else f"{a.tolist()} and {b.tolist()}"
    if a.dtype.name.startswith("float8") and b.dtype == np.uint8:
        b = b.view(a.dtype)  # ONNX Runtime gives the bits.
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
    bytes_, kind = a.dtype.itemsize, a.dtype.kind
    if kind not in "biufc":
        bytes_ = 2 if a.dtype.name == "bfloat16" else 0
        a, b = a.astype(np.float32), b.astype(np.float32)
    if kind in "biu":
        equal = np.abs(a.astype(object) - b.astype(object)) <= steps if kind != "b" and a.size else a == b
    else:
        tolerance = 16e-3 if kind not in "fc" and bytes_ == 2 else _RELATIVE.get(bytes_, 0.0)
        greatest = np.abs(b[np.isfinite(b)]).max(initial=1.0).astype(np.float64)
        with np.errstate(all="ignore"):
            wide = np.complex128 if kind == "c" else np.float64
            equal = np.isclose(a.astype(wide), b.astype(wide), tolerance, tolerance * greatest, equal_nan=True)
    if np.all(equal):
        return None
    at = tuple(np.argwhere(~np.asarray(equal, bool))[0])
    return f"at {[int(i) for i in at]} {a[at]} and {b[at]}"


__all__ = [
    "GENERATORS",
    "ONNX",
    "RUNTIME",
    "WITHOUT_GENERATOR",
    "Case",
    "Draw",
    "Tally",
    "case_of",
    "check",
    "run_many",
]
