"""Fixtures shared by the tests of the rewriter."""

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
    """Substitute for the measuring child process: latencies are prescribed instead of timed.

    Attributes:
        ratios: Returns the ratios of the pairs of a measurement, given the node counts of original and result, and the
            seconds.
        requests: The requests, with their inputs.
    """

    ratios: Callable[[int, int, float], list[float]] = lambda before, after, _: [after / before] * 20
    requests: list[Mapping[str, Any]] = field(default_factory=list)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer like ``regression_gate.ask``."""
        feeds = Path(request["feeds"])
        self.requests.append({**request, "inputs": pickle.loads(feeds.read_bytes()) if feeds.exists() else None})
        before, after = (Count.of(model_io.load(path)).nodes for path in request["paths"])
        ratios = self.ratios(before, after, request["budget"])
        times = ((1e-3,) * len(ratios), tuple(1e-3 * ratio for ratio in ratios))
        median = sorted(pair_ratios(times))[len(ratios) // 2]
        return asdict(Latency((1e-3, 1e-3 * median), median, len(ratios), "an engine", {}, times))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace measurements of the gate by noiseless ones; by default the time is proportional to the nodes."""
    clock_ = Clock()
    monkeypatch.setattr(regression_gate, "ask", clock_.ask)
    return clock_
