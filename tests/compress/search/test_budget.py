"""Budgets are read from numbers and texts, and impossible ones are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx.compress.search import Budget
from sardonyx.errors import OptionError


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({"latency": "10ms", "size": "4MB"}, {"latency": 0.01, "size": 4e6}),
        ({"latency": 0.5, "memory": "64 MiB"}, {"latency": 0.5, "memory": 64 << 20}),
        ({"latency": "250us", "energy": "5 mJ"}, {"latency": 250e-6, "energy": 5e-3}),
        ({"latency": "250\N{MICRO SIGN}s", "size": "1.5e3"}, {"latency": 250e-6, "size": 1500}),
        ({"drop": 0.5, "sqnr": 20}, {}),
    ],
)
def test_limits_are_in_base_units(limits: dict[str, Any], expected: dict[str, float]) -> None:
    assert Budget(**limits).limits == pytest.approx(expected)


@pytest.mark.parametrize(
    "limits, message",
    [
        ({"size": "4 apples"}, "size: expected a number with a unit"),
        ({"size": "MB"}, "size: expected a number"),
        ({"size": "-4MB"}, "size: expected a number"),
        ({"size": 0}, "size: expected more than 0"),
        ({"latency": "10MB"}, "latency: expected a number with a unit"),
        ({"latency": "inf"}, "latency: expected a number"),
        ({"latency": float("nan")}, "latency: expected more than 0"),
        ({"energy": True}, "energy: expected a number"),
        ({"drop": -0.5}, "drop: expected a number of 0 or more"),
        ({"drop": float("inf")}, "drop: expected a number of 0 or more"),
        ({"sqnr": "20dB"}, "sqnr: expected a number of 0 or more"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Budget(**limits)
