"""What tests of the rewriter share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import regression_gate
from sardonyx.rewrite.measure import Latency, pair_ratios
from sardonyx.rewrite.record import Count


@pytest.fixture(scope="session")
def suites() -> Path:
    folder = os.environ.get("SARDONYX_SUITES")
    if not folder:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    return Path(folder)


@dataclass
class Clock:
    """Stands for the child process that measures: what a model takes is said, not timed.

    Attributes:
        ratios: Those of the pairs of a measurement, from the numbers of nodes of original and result, and the seconds.
        asked: The requests, with the inputs in them.
    """

    ratios: Callable[[int, int, float], list[float]] = lambda before, after, _: [after / before] * 20
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As ``gate.ask``."""
        feeds = Path(request["feeds"])
        self.asked.append({**request, "inputs": pickle.loads(feeds.read_bytes()) if feeds.exists() else None})
        before, after = (Count.of(model_io.load(path)).nodes for path in request["paths"])
        ratios = self.ratios(before, after, request["budget"])
        times = ((1e-3,) * len(ratios), tuple(1e-3 * ratio for ratio in ratios))
        median = sorted(pair_ratios(times))[len(ratios) // 2]
        return asdict(Latency((1e-3, 1e-3 * median), median, len(ratios), "an engine", {}, times))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Measurements of the gate that know no noise: by default a model takes a time in proportion to its nodes."""
    made = Clock()
    monkeypatch.setattr(regression_gate, "ask", made.ask)
    return made
