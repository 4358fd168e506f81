"""Trials of plans: the figures, the accuracy and the place on the Pareto front of each."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sardonyx.base.artifact_store import write_whole
from sardonyx.compress.evidence import OutputError
from sardonyx.compress.search.figures import Figures
from sardonyx.compress.search.moves import Plan, Step
from sardonyx.errors import ModelFileError, OptionError

STATE_FORMAT = 2


@dataclass(frozen=True)
class Trial:
    """The outcome of a plan.

    Attributes:
        plan: The steps; none for the original.
        figures: The figures; None if the plan failed.
        outputs: The errors of the outputs on judged samples.
        metric: The metric, higher is better; None if it was not measured.
        uncertainty: The standard error of the loss of the metric against the original; 0 if unknown.
        failure: The reason why the plan has no result; empty otherwise.
    """

    plan: Plan
    figures: Figures | None
    outputs: tuple[OutputError, ...] = ()
    metric: float | None = None
    uncertainty: float = 0.0
    failure: str = ""

    @property
    def label(self) -> str:
        """The steps in words."""
        return " + ".join(str(step) for step in self.plan) or "original"

    @property
    def sqnr(self) -> float | None:
        """The SQNR of the worst output in dB; None if no output was judged."""
        return min((error.sqnr for error in self.outputs), default=None)


def front(trials: Sequence[Trial], reference: float | None) -> list[Trial]:
    """Return the trials that no other trial beats: a smaller loss, a smaller file or a shorter run.

    Args:
        trials: The trials; failed ones do not count.
        reference: The metric of the original; None compares the worst SQNR.
    """
    points = [(trial, _point(trial, reference)) for trial in trials if trial.figures is not None]
    return [
        trial
        for number, (trial, point) in enumerate(points)
        if not any(
            all(a <= b for a, b in zip(other, point, strict=True)) and (other != point or index < number)
            for index, (_, other) in enumerate(points)
            if index != number
        )
    ]


def _point(trial: Trial, reference: float | None) -> tuple[float, float, float]:
    assert trial.figures is not None
    if reference is None:
        loss = float("-inf") if trial.sqnr is None else -trial.sqnr
    else:
        loss = float("inf") if trial.metric is None else reference - trial.metric
    return loss, trial.figures.size, trial.figures.seconds


class State:
    """Outcomes of trials in a folder, so that a search can resume.

    Args:
        folder: The folder, created if missing; None stores nothing.
        identity: Text that identifies model, data, options and evaluation.

    Raises:
        OptionError: The folder holds another search.
        ModelFileError: The folder cannot be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, identity: str) -> None:
        self._folder = None if folder is None else Path(folder)
        if self._folder is None:
            return
        head = {"format": STATE_FORMAT, "search": hashlib.sha256(identity.encode()).hexdigest()}
        path = self._folder / "search.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                write_whole(path, json.dumps(head).encode())
                return
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelFileError(f"the state cannot be read or written: {error}", where=str(path)) from error
        if stored != head:
            raise OptionError(
                "the folder holds the state of another search: another model, data, metric, target, seed or version.",
                where=str(self._folder),
                remedy="Name another folder, or remove this one.",
            )

    def get(self, plan: Plan) -> Trial | None:
        """Return the stored outcome of a plan; None if there is none, or its file is damaged."""
        if self._folder is None:
            return None
        try:
            return _trial(json.loads(self._path(plan).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # A missing or damaged file costs one more trial, and is replaced.
            return None

    def require_same_metric(self, original: Trial) -> None:
        """Check that the metric of the original is the one of the stored outcomes, but for the last digits.

        Raises:
            OptionError: The metric of the stored original is another.
        """
        stored = self.get(())
        if stored is None:
            return
        before, now = stored.metric, original.metric
        if not _is_same(before, now):
            shown = ("no metric" if one is None else f"{abs(one):.6g}" for one in (before, now))
            raise OptionError(
                "the folder holds the state of another search: the metric of the original is not the same "
                f"({' then, '.join(shown)} now).",
                where=str(self._folder),
                remedy="Name another folder, or evaluate by the same metric on the same samples. A search by a metric "
                "that differs between runs cannot resume.",
            )

    def put(self, trial: Trial) -> None:
        """Store an outcome; a reader sees the whole file or none.

        Raises:
            ModelFileError: The file cannot be written.
        """
        if self._folder is None:
            return
        try:
            write_whole(self._path(trial.plan), json.dumps(asdict(trial)).encode())
        except OSError as error:
            raise ModelFileError(f"cannot be written: {error.strerror}", where=str(self._folder)) from error

    def _path(self, plan: Plan) -> Path:
        assert self._folder is not None
        text = json.dumps([asdict(step) for step in plan])
        return self._folder / f"trial-{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _is_same(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return math.isclose(before, now, rel_tol=1e-6) or (math.isnan(before) and math.isnan(now))


def _trial(data: Mapping[str, Any]) -> Trial:
    figures = data["figures"]
    if figures is not None:
        slower = figures["slower"]
        figures = Figures(**{**figures, "slower": None if slower is None else (float(slower[0]), float(slower[1]))})
    return Trial(
        tuple(Step(str(step["move"]), float(step["strength"])) for step in data["plan"]),
        figures,
        tuple(OutputError(str(error["name"]), float(error["sqnr"])) for error in data["outputs"]),
        None if data["metric"] is None else float(data["metric"]),
        float(data["uncertainty"]),
        str(data["failure"]),
    )
