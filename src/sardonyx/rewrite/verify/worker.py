"""The child process of verification: runs models on inputs and says whether their outputs agree.

One JSON object a line on standard input is a request, one a line on standard output the answer.
It is a process of its own so that an engine that crashes or eats memory takes nothing with it.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx import model as model_io
from sardonyx.errors import SardonyxError
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.compare import TOLERANCE, Difference, difference, tells_something

SAMPLES = 3
ATTEMPTS = 24


class Reference:
    """The original model, the samples on which it runs, and its answers."""

    def __init__(self, path: str, given: str | None, seed: int) -> None:
        self.runner = evaluate.runner(path)
        self.samples: list[tuple[Mapping[str, int], dict[str, Any], dict[str, Any]]] = []
        self.reasons: list[str] = []
        if given is not None:
            with np.load(given, allow_pickle=False) as stored:
                feeds = {name: stored[name] for name in stored.files}
            self.samples.append(({}, feeds, self.runner.run(feeds)))
        else:
            self._draw(path, seed)

    def _draw(self, path: str, seed: int) -> None:
        model = model_io.load(path)
        dull: tuple[Mapping[str, int], dict[str, Any], dict[str, Any]] | None = None
        open_sizes = bool(inputs.symbolic_dimensions(model))
        attempts = list(inputs.sizes_to_try(model)) if open_sizes else [{}] * 8
        for number, sizes in enumerate(attempts[:ATTEMPTS]):
            try:
                feeds = inputs.draw(model, sizes, seed + number)
                answers = self.runner.run(feeds)
            except SardonyxError as error:
                self.reasons.append(str(error).splitlines()[0][:300])
                continue
            if not tells_something(answers):
                dull = dull or (sizes, feeds, answers)
                self.reasons.append("every output is NaN or one repeated number")
                continue
            self.samples.append((sizes, feeds, answers))
            if len(self.samples) == SAMPLES:
                return
        if not self.samples and dull is not None:
            self.samples.append(dull)


def judge(reference: Reference, path: str, exact: bool, decided: Mapping[str, list[str]]) -> dict[str, Any]:
    """Run a candidate on the reference's samples and compare."""
    runner = evaluate.runner(path)
    worst, bitwise, notes = 0.0, True, []
    for sizes, feeds, expected in reference.samples:
        got = runner.run(feeds)
        for name, want in expected.items():
            found = difference(name, want, got[name])
            bitwise = bitwise and found.bitwise
            if found.bitwise or (not exact and found.error <= TOLERANCE):
                worst = max(worst, found.error)
                continue
            note = None if exact else _judged_at_comparison(name, decided, expected, got)
            if note is None:
                return {
                    "status": "different",
                    "worst": found.error,
                    "exact": False,
                    "samples": len(reference.samples),
                    "reason": _tell(found, sizes),
                }
            notes.append(note)
    return {
        "status": "proved",
        "worst": worst,
        "exact": bitwise,
        "samples": len(reference.samples),
        "sizes": [dict(s) for s, _, _ in reference.samples],
        "notes": sorted(set(notes)),
    }


def _judged_at_comparison(
    name: str, decided: Mapping[str, list[str]], expected: Mapping[str, Any], got: Mapping[str, Any]
) -> str | None:
    """For an output decided by comparisons: whether what was compared agrees, so that only a tie can have turned it."""
    compared = decided.get(name)
    if not compared or not all(c in expected and c in got for c in compared):
        return None
    if all(difference(c, expected[c], got[c]).error <= TOLERANCE for c in compared):
        return f"'{name}' holds decisions; they were judged at what is compared: {', '.join(compared)}"
    return None


def _tell(found: Difference, sizes: Mapping[str, int]) -> str:
    at = f" at sizes {dict(sizes)}" if sizes else ""
    return f"output '{found.output}' differs by {found.error:.2e} of its largest element{at}" + (
        f" ({found.detail})" if found.detail else ""
    )


def main() -> None:
    """Answer requests until standard input ends."""
    reference: Reference | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "reference":
                reference = Reference(request["path"], request.get("inputs"), request["seed"])
                answer: dict[str, Any] = {"samples": len(reference.samples), "reasons": reference.reasons}
            else:
                assert reference is not None
                answer = judge(reference, request["path"], request["exact"], request["decided"])
        except SardonyxError as error:
            answer = {"status": "error", "reason": str(error)}
        answer["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
