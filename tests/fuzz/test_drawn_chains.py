"""Drawn models of several nodes pass through the whole toolkit; ``tools/fuzz_native.py --chains`` is the long form."""

from __future__ import annotations

import pytest

from sardonyx import Session
from sardonyx.errors import SardonyxError
from tests.fuzz.drawn_chains import drawn_model
from tests.fuzz.toolkit_fuzzer import OPSETS, TARGETS, model_problems
from tests.random_cases import cases

FOUND = [5492]
"""Models that once had two answers: a wrong node that only a branch reads which no call takes."""


@pytest.mark.parametrize("seed", [*FOUND, *range(cases(20))])
def test_a_drawn_model_has_one_answer(seed: int) -> None:
    model, feeds = drawn_model(seed)
    target, opset = TARGETS[seed % len(TARGETS)], OPSETS[seed % len(OPSETS)]
    assert list(model_problems(model, feeds, target, opset)) == []


def test_most_drawn_models_have_an_answer() -> None:
    answered = 0
    for seed in range(12):
        model, feeds = drawn_model(seed)
        try:
            Session(model, compile="off", log_severity=4).run(None, feeds)
        except SardonyxError:
            continue
        answered += 1
    assert answered >= 9
