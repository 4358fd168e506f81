"""Answers that differ by a step of a quantization are compared with other roundings, and wrong ones stay findings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from tests.fuzz import native_fuzzer
from tests.fuzz.native_fuzzer import fuzz
from tests.fuzz.other_roundings import ULPS, other_roundings

LSTM = "com.microsoft.DynamicQuantizeLSTM"


def test_functions_differ_by_units_of_the_last_place() -> None:
    rule, x = NUMPY_RULES["tanh"], np.linspace(-3, 3, 1000, dtype=np.float32)
    expected = rule(None, x)
    with other_roundings(0):
        actual = NUMPY_RULES["tanh"](None, x)
    steps = np.abs(actual - expected) / np.spacing(np.abs(expected))
    assert NUMPY_RULES["tanh"] is rule and 0 < steps.max() <= 2 * ULPS and (steps > 0).mean() > 0.5


def test_a_state_between_two_codes_may_become_either() -> None:
    assert [str(finding) for finding in fuzz([LSTM], 32, 200011, 32).findings] == []


def test_another_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_of: Callable[[Any, Any], Any] = native_fuzzer.answer_of

    def moved(session: Any, feeds: Any) -> Any:
        result = answer_of(session, feeds)
        compiled = getattr(session, "native", None) is not None
        return [x + np.float32(0.01) for x in result] if compiled and isinstance(result, list) else result

    monkeypatch.setattr(native_fuzzer, "answer_of", moved)
    assert fuzz([LSTM], 4, 200011, 4).findings
