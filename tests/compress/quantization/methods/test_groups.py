"""Rounding of many small groups at once agrees with the descent of single matrices."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compress.quantization.methods.gptq import descend, descend_groups
from sardonyx.compress.quantization.methods.grids import Grid, hessian_error
from sardonyx.compress.quantization.methods.objective import Objective
from sardonyx.errors import OptionError


@pytest.mark.parametrize("outputs", [1, 3])
def test_groups_are_rounded_as_single_matrices(outputs: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20, outputs, 9)).astype(np.float32)
    inputs = (rng.standard_normal((20, 64, 9)) @ rng.standard_normal((20, 9, 9))).astype(np.float32)
    hessians = inputs.transpose(0, 2, 1) @ inputs / 64
    hessians[0, 2], hessians[0, :, 2] = 0, 0
    grid = Grid(np.full(rows.shape, 0.2, np.float32), np.zeros(rows.shape, np.float32), -7, 7)
    integers = descend_groups(rows, hessians, grid)
    for number in range(20):
        own = Grid(grid.scales[number], grid.zeros[number], -7, 7)
        nearest = own.nearest(rows[number])
        objective = Objective(rows[number], hessians[number])
        single = descend(objective, objective.rounded(own), sweeps=3).integers
        errors = [
            hessian_error(rows[number] - own.values(one), hessians[number]).sum()
            for one in (nearest, single, integers[number])
        ]
        assert errors[2] <= errors[0] + 1e-5
        assert errors[2] == pytest.approx(errors[1], rel=0.05, abs=1e-5)


def test_groups_with_infinite_statistics_are_refused() -> None:
    grid = Grid(np.ones((2, 1, 3), np.float32), np.zeros((2, 1, 3), np.float32), -7, 7)
    with pytest.raises(OptionError, match="finite"):
        descend_groups(np.ones((2, 1, 3), np.float32), np.full((2, 3, 3), np.inf, np.float32), grid)
