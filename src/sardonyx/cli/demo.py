"""``sardonyx demo``: the optimizer and its proof on the two models that ship with the package."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from sardonyx import demo
from sardonyx.cli.output import AsJson, console, print_json, progress
from sardonyx.errors import EvaluationError, MissingDependencyError
from sardonyx.report import latency, optimization_tables
from sardonyx.report.quantities import print_all
from sardonyx.report.summary import Summary, summary
from sardonyx.report.terminal_picture import Box, draw
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Report
from sardonyx.rewrite.verify.child import IsolatedRunner

EXAMPLE = "sardonyx demo"

SCENE = 2
"""Index of the detector's held-out scene that is shown."""

LEAST_OVERLAP = 0.5
"""Intersection over union from which a detected box matches a true one."""


@dataclass(frozen=True)
class _Run:
    """One model, before and after."""

    name: str
    report: Report
    before: Summary
    after: Summary
    latency: latency.Latency | str
    answers: dict[str, Any]


def command(as_json: AsJson = False) -> None:
    """Optimize the two shipped models with proof, and detect handwritten digits with them."""
    runs = {}
    for name in demo.names():
        with progress(f"optimizing {name}", quiet=as_json):
            runs[name] = _run(name)
    classifier, detector = runs["digits_classifier"], runs["digits_detector"]
    accuracy = _accuracy(classifier.answers)
    detected, right, true = _matches(detector.answers)
    if as_json:
        print_json(
            {
                "classifier": {**_plain(classifier), "accuracy": accuracy},
                "detector": {**_plain(detector), "found": detected, "right": right, "digits": true},
            }
        )
        return
    images, pixels = demo.inputs("digits_classifier")["image"], demo.inputs("digits_detector")["image"]
    console.print(
        "Two small models ship with Sardonyx, trained on real handwritten digits, as PyTorch exported them.\n"
        f"After optimization, the classifier recognizes {accuracy:.1%} of {len(images)} held-out digits. The detector "
        f"finds {right} of the {true} digits\nin {len(pixels)} scenes, with {detected - right} false alarms. One of "
        "the scenes, with its detections:",
        soft_wrap=True,
    )
    console.print(draw(pixels[SCENE, 0], _boxes(detector.answers, SCENE)))
    for run in (classifier, detector):
        print_all(
            console,
            optimization_tables.before_and_after(run.before, run.after, run.latency, title=f"{run.name}.onnx"),
            optimization_tables.verdict_line(run.report),
            Text(),
        )


def _run(name: str) -> _Run:
    result = optimize(demo.path(name))
    with tempfile.TemporaryDirectory(prefix="sardonyx-demo-") as folder:
        path = Path(folder) / f"{name}.onnx"
        result.save(path)
        feeds = demo.inputs(name)
        timing = _latency([demo.path(name), path], feeds)
        sizes = None if isinstance(timing, str) else timing.sizes
        before, after = (summary(file, sizes=sizes) for file in (demo.path(name), path))
        with IsolatedRunner() as apart:
            answers = apart.run(path, feeds)
        return _Run(name, result.report, before, after, timing, answers)


def _latency(paths: list[Path], feeds: dict[str, Any]) -> latency.Latency | str:
    try:
        return latency.measure_in_child(paths, feeds=feeds)
    except (EvaluationError, MissingDependencyError) as error:
        return str(error)


def _plain(run: _Run) -> dict[str, Any]:
    return {
        "nodes": [run.before.nodes, run.after.nodes],
        "file_bytes": [run.before.file_bytes, run.after.file_bytes],
        "latency": run.latency if isinstance(run.latency, str) else run.latency.as_dict(),
        "verdict": run.report.verdict.as_dict(),
    }


def _accuracy(answers: dict[str, Any]) -> float:
    return float(np.mean(answers["probabilities"].argmax(axis=1) == demo.truth("digits_classifier")["labels"]))


def _matches(answers: dict[str, Any]) -> tuple[int, int, int]:
    """Return the numbers of detected boxes, of correct boxes (each digit once), and of true digits."""
    truth = demo.truth("digits_detector")
    open_digits = set(range(len(truth["labels"])))
    right = 0
    for box in np.argsort(-answers["scores"], kind="stable"):
        hits = [
            digit
            for digit in open_digits
            if truth["image_index"][digit] == answers["image_index"][box]
            and truth["labels"][digit] == answers["labels"][box]
            and _overlap(truth["boxes"][digit], answers["boxes"][box]) >= LEAST_OVERLAP
        ]
        if hits:
            right += 1
            open_digits.discard(hits[0])
    return len(answers["labels"]), right, len(truth["labels"])


def _overlap(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the intersection over union of two boxes (x1, y1, x2, y2)."""
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    shared = max(width, 0.0) * max(height, 0.0)
    return float(shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared))


def _boxes(answers: dict[str, Any], scene: int) -> list[Box]:
    here = np.nonzero(answers["image_index"] == scene)[0]
    corners = [tuple(map(float, answers["boxes"][box])) for box in here]
    return [Box(x1, y1, x2, y2, str(answers["labels"][i])) for (x1, y1, x2, y2), i in zip(corners, here, strict=True)]
