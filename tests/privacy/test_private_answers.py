"""Noise with the stated distribution, budgets that composition never exceeds, and a ledger that survives."""

from __future__ import annotations

import functools
import json
import math
import sqlite3
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.errors import OptionError, PrivacyBudgetError, ResourceError, UnsupportedError
from sardonyx.privacy import Budget, Ledger, Noise, PrivateAnswers, read_policies
from sardonyx.privacy.accounting import epsilon_of
from sardonyx.privacy.sampling import discrete_gaussian, discrete_laplace


def test_discrete_laplace_has_its_distribution() -> None:
    drawn = np.array([discrete_laplace(3) for _ in range(20_000)])
    ratio = math.exp(-1 / 3)
    for value in range(-4, 5):
        probability = (1 - ratio) / (1 + ratio) * ratio ** abs(value)
        assert abs((drawn == value).mean() - probability) < 5 * math.sqrt(probability / len(drawn))


def test_discrete_gaussian_has_its_distribution() -> None:
    variance = Fraction(25, 4)
    drawn = np.array([discrete_gaussian(variance) for _ in range(20_000)])
    weights = {value: math.exp(-value * value / (2 * float(variance))) for value in range(-40, 41)}
    for value in range(-5, 6):
        probability = weights[value] / sum(weights.values())
        assert abs((drawn == value).mean() - probability) < 5 * math.sqrt(probability / len(drawn))


@pytest.mark.parametrize("mechanism, delta", [("laplace", 0.0), ("gaussian", 1e-6)])
def test_noise_has_the_scale_of_the_sensitivity(mechanism: str, delta: float) -> None:
    noise = Noise(0.0, 2.0, 0.5, delta, mechanism)  # type: ignore[arg-type]
    values = np.full((1000, 2), 1.0, np.float32)
    noisy = noise.add(values, 1000, "y")
    assert noisy.dtype == np.float32 and noisy.shape == values.shape
    if mechanism == "laplace":
        deviation = math.sqrt(2) * 2 * 2.0 / 0.5
    else:
        deviation = math.sqrt(2) * 2.0 / math.sqrt(2 * noise.rho)
    assert abs(noisy.mean() - 1.0) < 5 * deviation / math.sqrt(values.size)
    assert 0.9 < noisy.std() / deviation < 1.1


def test_a_smaller_stated_sensitivity_makes_less_noise() -> None:
    noise = Noise(0.0, 1000.0, 1.0, sensitivity=1.0)
    noisy = noise.add(np.full(1000, 500.0), 1000, "y")
    assert 1.2 < noisy.std() < 1.7


def test_values_are_clipped_and_no_special_value_passes() -> None:
    noise = Noise(-1.0, 1.0, 100.0)
    noisy = noise.add(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30]), 5, "y")
    assert np.isfinite(noisy).all()
    assert np.abs(noisy - np.array([-1.0, 1.0, -1.0, 1.0, -1.0])).max() < 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 10.0), st.integers(1, 64),
    st.sampled_from(["laplace", "gaussian"]),
)  # fmt: skip
def test_noise_covers_neighbours_after_rounding(
    low: float, width: float, epsilon: float, elements: int, mechanism: str
) -> None:
    noise = Noise(low, low + width, epsilon, 1e-6 if mechanism == "gaussian" else 0.0, mechanism)  # type: ignore[arg-type]
    grid, scale = noise.scale(elements)
    ends = [round(Fraction(end) / Fraction(grid)) for end in (noise.low, noise.high)]
    distance = ends[1] - ends[0]
    if isinstance(scale, int):
        assert Fraction(distance * elements, scale) <= Fraction(epsilon)
    else:
        assert Fraction(distance * distance * elements) / (2 * scale) <= Fraction(noise.rho)


def test_epsilons_of_laplace_add_up_and_compose_better_with_a_delta() -> None:
    events = {Noise(0, 1, 0.1).event: 100}
    assert epsilon_of(events, 0.0) == pytest.approx(10.0)
    assert epsilon_of(events, 1e-6) == pytest.approx(0.5 + 2 * math.sqrt(0.5 * math.log(1e6)))
    assert epsilon_of({Noise(0, 1, 0.5, 1e-6, "gaussian").event: 1}, 0.0) == math.inf


def test_one_gaussian_answer_uses_the_epsilon_it_states() -> None:
    noise = Noise(0, 1, 0.5, 1e-6, "gaussian")
    assert epsilon_of({noise.event: 1}, 1e-6) <= 0.5 * (1 + 1e-9)


def test_dp_accounting_gives_a_smaller_epsilon_for_gaussian_answers() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed (extra: privacy)")
    noise = Noise(0, 1, 0.5, 1e-6, "gaussian")
    rho = 50 * noise.rho
    bound = rho + 2 * math.sqrt(rho * math.log(1e6))
    assert 0.7 * bound < epsilon_of({noise.event: 50}, 1e-6) < bound


def test_a_charge_over_the_budget_is_refused_and_not_recorded(tmp_path: Path) -> None:
    ledger, budget = Ledger(tmp_path / "ledger"), Budget(1.0)
    event = Noise(0, 1, 0.25).event
    for count in (1, 2):
        ledger.charge("a", "m", {event: count}, budget)
    with pytest.raises(PrivacyBudgetError, match="would exceed 1 at delta 0"):
        ledger.charge("a", "m", {event: 2}, budget)
    assert ledger.spent("a", "m", 0.0) == pytest.approx(0.75)
    assert Ledger(tmp_path / "ledger").charge("a", "m", {event: 1}, budget) == pytest.approx(1.0)
    assert ledger.spent("b", "m", 0.0) == ledger.spent("a", "other", 0.0) == 0.0


def test_concurrent_charges_never_exceed_the_budget(tmp_path: Path) -> None:
    event, refused = Noise(0, 1, 0.125).event, []

    def charge() -> None:
        ledger = Ledger(tmp_path / "ledger")
        for _ in range(4):
            try:
                ledger.charge("a", "m", {event: 1}, Budget(1.0))
            except PrivacyBudgetError:
                refused.append(1)

    threads = [threading.Thread(target=charge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 8
    assert Ledger(tmp_path / "ledger").spent("a", "m", 0.0) == pytest.approx(1.0)


def test_a_killed_process_loses_no_charge_that_returned(tmp_path: Path) -> None:
    script = (
        "import os, sys; from sardonyx.privacy import Budget, Ledger, Noise\n"
        "ledger = Ledger(sys.argv[1])\n"
        "for _ in range(3): ledger.charge('a', 'm', {Noise(0, 1, 0.25).event: 1}, Budget(10.0))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path / "ledger")], check=False)
    assert result.returncode == -9
    assert Ledger(tmp_path / "ledger").spent("a", "m", 0.0) == pytest.approx(0.75)


def test_a_charge_is_on_the_disk_with_the_deletion_of_its_journal(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    statements: list[str] = []

    class Connection(sqlite3.Connection):
        def execute(self, *values: Any) -> sqlite3.Cursor:
            statements.append(values[0])
            return super().execute(*values)

    with mock.patch.object(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Connection)):
        ledger.charge("a", "m", {"laplace 0.5": 1}, Budget(1.0))
    assert statements.index("PRAGMA synchronous = EXTRA") < statements.index("BEGIN IMMEDIATE")


def test_the_ledger_belongs_to_its_owner_and_names_what_is_wrong(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger")
    assert (tmp_path / "ledger").stat().st_mode & 0o077 == 0
    (tmp_path / "other").write_bytes(b"no database" * 100)
    with pytest.raises(ResourceError, match="the ledger cannot be used"):
        Ledger(tmp_path / "other")
    with pytest.raises(ResourceError, match="the ledger cannot be opened"):
        Ledger(tmp_path / "missing" / "ledger")


@pytest.mark.parametrize(
    "fields",
    [
        {"low": 1.0, "high": 1.0, "epsilon": 1.0}, {"low": 0.0, "high": math.inf, "epsilon": 1.0},
        {"low": 0.0, "high": 1.0, "epsilon": 0.0}, {"low": 0.0, "high": 1.0, "epsilon": 1.0, "delta": 0.1},
        {"low": 0.0, "high": 1.0, "epsilon": 1.0, "mechanism": "gaussian"},
        {"low": 0.0, "high": 1.0, "epsilon": 1.0, "mechanism": "none"},
        {"low": 0.0, "high": 1.0, "epsilon": 1.0, "sensitivity": -1.0},
    ],
)  # fmt: skip
def test_impossible_noise_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        Noise(**fields)  # type: ignore[arg-type]


def test_outputs_without_a_noisy_form_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="floating-point"):
        Noise(0, 1, 1.0).add(np.zeros(3, np.int64), 1, "y")
    with pytest.raises(UnsupportedError, match="1 to 4096 elements"):
        Noise(0, 1, 1.0).add(np.zeros(5000), 1, "y")


def test_an_output_with_other_rows_than_charged_has_no_noisy_form() -> None:
    with pytest.raises(UnsupportedError, match="in 2 equal rows"):
        Noise(0.0, 1.0, 1.0).add(np.zeros((4, 1), np.float32), 2, "y")


def test_policies_are_read_from_a_file(tmp_path: Path) -> None:
    ledger, path = Ledger(tmp_path / "ledger"), tmp_path / "privacy.json"
    policy = {"budget": {"epsilon": 1.0}, "outputs": {"y": {"low": 0, "high": 1, "epsilon": 0.5}}}
    path.write_text(json.dumps({"net": policy}))
    assert read_policies(path, ledger)["net"] == PrivateAnswers({"y": Noise(0, 1, 0.5)}, Budget(1.0), ledger)
    for changed in ({**policy, "x": 1}, {"budget": {}}, {"budget": {"epsilon": 0.1}, "outputs": policy["outputs"]}, []):
        path.write_text(json.dumps({"net": changed}))
        with pytest.raises(OptionError):
            read_policies(path, ledger)
