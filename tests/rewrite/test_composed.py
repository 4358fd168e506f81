"""Graphs of several generators in one model, under the default passes: correct rules stay correct combined."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tests.random_cases import cases
from tests.rewrite import generators
from tests.rewrite.fuzz import GENERATORS, Generator, Unsuitable, check_composed


def compose(models: int, *, connected: bool, first_seed: int = 0) -> int:
    """Check so many models of two to five generators; returns how many patches were applied."""
    generators.load()
    makes: list[Generator] = list(dict.fromkeys(make for family in GENERATORS.values() for make in family))
    checked = applied = 0
    seed = first_seed
    while checked < models:
        rng = np.random.default_rng(seed)
        picked = [makes[i] for i in rng.integers(0, len(makes), rng.integers(2, 6))]
        with contextlib.suppress(Unsuitable):
            applied += check_composed(picked, seed, connected=connected)
            checked += 1
        seed += 1
        assert seed - first_seed < 20 * models, "generators hardly ever fit together"
    return applied


@pytest.mark.parametrize("connected", [True, False], ids=["one reads the other", "side by side"])
def test_outputs_stay_equal(connected: bool) -> None:
    models = cases(300)
    assert compose(models, connected=connected) > models


@pytest.mark.long
@pytest.mark.parametrize("connected", [True, False], ids=["one reads the other", "side by side"])
def test_outputs_stay_equal_over_many_models(connected: bool) -> None:
    assert compose(20_000, connected=connected, first_seed=1_000_000) > 20_000
