"""Comparison of one candidate with the reference: every output on every sample, cut at comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import parts
from sardonyx.rewrite.verify.compare import Difference, difference, tolerance
from sardonyx.rewrite.verify.reference import Reference
from sardonyx.rewrite.verify.search import Sample


@dataclass
class _Tally:
    """Errors observed so far."""

    exact: bool
    worst: float = 0.0
    bitwise: bool = True
    notes: list[str] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)

    def fault(self, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Difference | None:
        """Return the first output outside its tolerance."""
        for name, value in expected.items():
            if name not in actual:
                return Difference(name, float("inf"), False, "missing")
            deviation = difference(name, value, actual[name])
            self.bitwise = self.bitwise and deviation.bitwise
            if not deviation.bitwise and (self.exact or deviation.error > tolerance(value)):
                return deviation
            self.worst = max(self.worst, deviation.error)
        return None


def judge(reference: Reference, candidate: Path, *, exact: bool) -> dict[str, Any]:
    """Run a candidate on the reference's samples and compare.

    Args:
        reference: The original and its answers.
        candidate: File of the candidate.
        exact: Require equal bits.

    Returns:
        The verdict's fields.
    """
    path, problem = reference.whole(candidate)
    if problem:
        return {"status": "different", "reason": problem, "worst": float("inf"), "exact": False}
    tally = _Tally(exact)
    try:
        fault = _first_fault(reference, path, tally)
    except EvaluationError as error:
        reason = f"the result does not run: {error}"
        return {"status": "different", "reason": reason, "worst": float("inf"), "exact": False}
    if fault is not None:
        return {"status": "different", "worst": fault[0].error, "exact": False, "reason": _describe(*fault)}
    samples = [sample for number, sample in enumerate(reference.samples) if number not in tally.refused]
    hidden = [o.label for o in reference.opaque if o.bodies]
    if not samples:
        status, reason = "not proved", tally.notes[-1]
    elif hidden:
        status, reason = "not proved", f"no evaluator runs {', '.join(hidden)} and its bodies"
    else:
        status, reason = ("proved by parts" if reference.opaque else "proved"), ""
    return {
        "status": status,
        "reason": reason,
        "worst": tally.worst,
        "exact": tally.bitwise,
        "samples": len(samples),
        "sizes": [dict(s.sizes) for s in samples],
        "notes": list(dict.fromkeys([*reference.notes, *tally.notes])),
    }


def _first_fault(reference: Reference, path: Path, tally: _Tally) -> tuple[Difference, Sample] | None:
    runner = reference.runner(path)
    for number, sample in enumerate(reference.samples):
        was_bitwise = tally.bitwise
        try:
            fault = tally.fault(sample.answers, runner.run(sample.feeds))
        except EvaluationError:
            if not _is_refused(reference, number, tally):
                raise
            continue
        if fault is None:
            continue
        if _is_refused(reference, number, tally):
            tally.bitwise = was_bitwise
            continue
        if tally.exact or not _agrees_at_comparisons(reference, path, number, tally):
            return fault, sample
        tally.notes.append(f"'{fault.output}' depends on decisions; compared at their operands")
    return None


def _is_refused(reference: Reference, number: int, tally: _Tally) -> bool:
    """Return True, with a note, if the original's answer to a sample is no answer of the model."""
    sample = reference.samples[number]
    refusal = reference.refusal(sample)
    if refusal:
        tally.refused.add(number)
        tally.notes.append(f"not counted: sizes {dict(sample.sizes)}: {refusal}")
    return bool(refusal)


def _agrees_at_comparisons(reference: Reference, path: Path, number: int, tally: _Tally) -> bool:
    """Return True if the operands of comparisons agree, and all outputs given the original's operands."""
    names, values = reference.compared()
    model = model_io.load(path)
    inference.infer_shapes(model, strict=False)
    present = parts.cut_comparisons(model, names)
    if not present:
        return False
    cut = reference.folder / "candidate_compared.onnx"
    model_io.save(model, cut)
    sample, known = reference.samples[number], values[number]
    compared = {f"compared:{name}": known[f"compared:{name}"] for name in present}
    feeds = {**sample.feeds, **{f"given:{name}": known[f"compared:{name}"] for name in present}}
    # Inputs read only by the removed part stay declared, so feeding these remains valid in every engine.
    actual = reference.runner(cut).run(feeds)
    return tally.fault({**sample.answers, **compared}, actual) is None


def _describe(deviation: Difference, sample: Sample) -> str:
    location = f" at sizes {dict(sample.sizes)}" if sample.sizes else ""
    return f"output '{deviation.output}' differs by {deviation.error:.2e} of its largest element{location}" + (
        f" ({deviation.detail})" if deviation.detail else ""
    )
