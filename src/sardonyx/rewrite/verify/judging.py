"""One candidate against the reference: every output on every sample, decisions at what they compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import evaluate, inference
from sardonyx.rewrite.verify import parts
from sardonyx.rewrite.verify.compare import Difference, difference, tolerance
from sardonyx.rewrite.verify.reference import Reference
from sardonyx.rewrite.verify.search import Sample


@dataclass
class _Tally:
    """What has been found so far."""

    exact: bool
    worst: float = 0.0
    bitwise: bool = True
    notes: list[str] = field(default_factory=list)

    def fault(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Difference | None:
        """The first output that is not what it should be."""
        for name, want in expected.items():
            if name not in got:
                return Difference(name, float("inf"), False, "it is missing")
            found = difference(name, want, got[name])
            self.bitwise = self.bitwise and found.bitwise
            if not found.bitwise and (self.exact or found.error > tolerance(want)):
                return found
            self.worst = max(self.worst, found.error)
        return None


def judge(reference: Reference, candidate: Path, *, exact: bool) -> dict[str, Any]:
    """Run a candidate on the reference's samples and compare.

    Args:
        reference: The original and its answers.
        candidate: File of the candidate.
        exact: Whether equal bits are demanded.

    Returns:
        The verdict's fields.
    """
    path, wrong = reference.whole(candidate)
    if wrong:
        return {"status": "different", "reason": wrong, "worst": float("inf"), "exact": False}
    tally = _Tally(exact)
    try:
        fault = _first_fault(reference, path, tally)
    except EvaluationError as error:
        reason = f"the result does not run: {error}"
        return {"status": "different", "reason": reason, "worst": float("inf"), "exact": False}
    if fault is not None:
        return {"status": "different", "worst": fault[0].error, "exact": False, "reason": _tell(*fault)}
    hidden = [o.label for o in reference.opaque if o.bodies]
    if hidden:
        status, reason = "not proved", f"nothing here runs {', '.join(hidden)}, nor what is in it"
    else:
        status, reason = ("proved by parts" if reference.opaque else "proved"), ""
    return {
        "status": status,
        "reason": reason,
        "worst": tally.worst,
        "exact": tally.bitwise,
        "samples": len(reference.samples),
        "sizes": [dict(s.sizes) for s in reference.samples],
        "notes": list(dict.fromkeys([*reference.notes, *tally.notes])),
    }


def _first_fault(reference: Reference, path: Path, tally: _Tally) -> tuple[Difference, Sample] | None:
    runner = evaluate.runner(path)
    for number, sample in enumerate(reference.samples):
        fault = tally.fault(sample.answers, runner.run(sample.feeds))
        if fault is None:
            continue
        if tally.exact or not _agrees_at_comparisons(reference, path, number, tally):
            return fault, sample
        tally.notes.append(f"'{fault.output}' hangs on decisions; it was judged at the numbers compared")
    return None


def _agrees_at_comparisons(reference: Reference, path: Path, number: int, tally: _Tally) -> bool:
    """Whether the numbers compared agree, and everything else does when decisions are made on the original's."""
    names, values = reference.compared()
    model = model_io.load(path)
    inference.infer_shapes(model, strict=False)
    kept = parts.cut_comparisons(model, names)
    if not kept:
        return False
    cut = reference.folder / "candidate_compared.onnx"
    model_io.save(model, cut)
    sample, known = reference.samples[number], values[number]
    compared = {f"compared:{name}": known[f"compared:{name}"] for name in kept}
    feeds = {**sample.feeds, **{f"given:{name}": known[f"compared:{name}"] for name in kept}}
    # An input that only the cut-off side reads is an input no more to some engines; all are still declared.
    got = evaluate.runner(cut).run(feeds)
    return tally.fault({**sample.answers, **compared}, got) is None


def _tell(found: Difference, sample: Sample) -> str:
    at = f" at sizes {dict(sample.sizes)}" if sample.sizes else ""
    return f"output '{found.output}' differs by {found.error:.2e} of its largest element{at}" + (
        f" ({found.detail})" if found.detail else ""
    )
