"""Laws of rounding methods: no method has a larger error, in its own norm, than the nearest integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.compress.quantization.methods.adaquant import adaquant
from sardonyx.compress.quantization.methods.adaround import adaround
from sardonyx.compress.quantization.methods.gptq import descend, gptq, refit_scales
from sardonyx.compress.quantization.methods.grids import Grid, hessian_error
from sardonyx.compress.quantization.methods.objective import Objective, Rounded
from sardonyx.compress.quantization.methods.scale_fitting import fit_half_quadratic, fit_scales
from sardonyx.compress.quantization.site_inputs import shrunk, trust_of
from sardonyx.errors import OptionError

INT4 = (-7, 7)


def layer(seed: int, rows: int = 12, k: int = 16, samples: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and a Hessian of correlated inputs, some of which are always 0."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((k, k)) * np.exp(rng.standard_normal(k))
    x = rng.standard_normal((samples, k)) @ mixing
    x[:, rng.random(k) < 0.1] = 0
    return rng.standard_normal((rows, k)).astype(np.float32), (x.T @ x / samples).astype(np.float32)


def grid_of(rows: np.ndarray) -> Grid:
    return fit_scales(rows, INT4, symmetric=True)


def by_gptq(rows: np.ndarray, hessian: np.ndarray, grid: Grid, *, by_activation: bool = True) -> np.ndarray:
    objective = Objective(rows, hessian)
    return gptq(objective, objective.rounded(grid), by_activation=by_activation).integers


def by_descent(rows: np.ndarray, hessian: np.ndarray, grid: Grid) -> np.ndarray:
    objective = Objective(rows, hessian)
    return descend(objective, objective.rounded(grid)).integers


ROUNDINGS: dict[str, Callable[[np.ndarray, np.ndarray, Grid], np.ndarray]] = {
    "gptq": by_gptq,
    "gptq in the order of columns": lambda rows, hessian, grid: by_gptq(rows, hessian, grid, by_activation=False),
    "descent": by_descent,
    "adaround": lambda rows, hessian, grid: adaround(rows, hessian, grid, steps=60),
    "adaquant": lambda rows, hessian, grid: adaquant(rows, hessian, grid, steps=100),
}


@pytest.mark.parametrize("name", ROUNDINGS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 8), k=st.integers(1, 20), samples=st.integers(1, 30))
def test_no_row_has_a_larger_error_than_the_nearest_integers(
    name: str, seed: int, rows: int, k: int, samples: int
) -> None:
    weights, hessian = layer(seed, rows, k, samples)
    grid = grid_of(weights)
    integers = ROUNDINGS[name](weights, hessian, grid)
    assert np.array_equal(integers, np.rint(integers)) and np.abs(integers).max() <= 7
    before = hessian_error(weights - grid.values(grid.nearest(weights)), hessian)
    after = hessian_error(weights - grid.values(integers), hessian)
    assert (after <= before * (1 + 1e-4) + 1e-6 * np.abs(hessian).max()).all()


@pytest.mark.parametrize("name", ROUNDINGS)
def test_correlated_inputs_lower_the_error_and_results_repeat(name: str) -> None:
    weights, hessian = layer(5, rows=32, k=64, samples=300)
    grid = grid_of(weights)
    integers = ROUNDINGS[name](weights, hessian, grid)
    nearest = hessian_error(weights - grid.values(grid.nearest(weights)), hessian).sum()
    assert hessian_error(weights - grid.values(integers), hessian).sum() < 0.8 * nearest
    assert np.array_equal(integers, ROUNDINGS[name](weights, hessian, grid))


@pytest.mark.parametrize("block", [8, 20, 64])
def test_descent_and_scales_lower_the_error_of_gptq(block: int) -> None:
    weights, hessian = layer(7, rows=16, k=64, samples=300)
    pieces = [fit_scales(weights[:, first : first + block], INT4, symmetric=True) for first in range(0, 64, block)]
    widths = [min(block, 64 - first) for first in range(0, 64, block)]
    scales = np.concatenate([np.repeat(p.scales, n, 1) for p, n in zip(pieces, widths, strict=True)], 1)
    objective = Objective(weights, hessian)
    results = [gptq(objective, objective.rounded(Grid(scales, np.zeros_like(scales), *INT4)))]
    for _ in range(3):
        results.append(descend(objective, results[-1]))
        results.append(refit_scales(objective, results[-1], block))
    errors = [hessian_error(weights - result.values, hessian).sum() for result in results]
    for result in results:
        assert_consistent(objective, result, hessian, weights @ hessian)
    assert all(after <= before * (1 + 1e-5) for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.95 * errors[0]
    for first in range(0, 64, block):
        assert np.ptp(results[-1].grid.scales[:, first : first + block], axis=1).max() == 0


def assert_consistent(objective: Objective, result: Rounded, hessian: np.ndarray, target: np.ndarray) -> None:
    """Assert that the gradient that methods pass on is that of the integers and scales."""
    gradient = target - result.values @ hessian
    assert np.abs(result.gradient - gradient).max() < 1e-4 * np.abs(target).max()


@pytest.mark.parametrize("rows, k", [(1, 1), (3, 16), (5, 17), (2, 33), (9, 100)])
def test_gradients_follow_integers_of_any_sizes_and_targets(rows: int, k: int) -> None:
    weights, hessian = layer(9, rows, k, 3 * k)
    target = (weights + 0.1) @ hessian
    objective = Objective(weights, hessian, target)
    start = objective.rounded(grid_of(weights))
    results = [start, gptq(objective, start), descend(objective, start, sweeps=1), refit_scales(objective, start, k)]

    def loss(result: Rounded) -> np.ndarray:
        values = result.values.astype(np.float64)
        return np.asarray((values @ hessian * values - 2 * target * values).sum(1))

    for result in results:
        assert_consistent(objective, result, hessian, target)
        assert (loss(result) <= loss(start) + 1e-4 * np.abs(loss(start))).all()
        assert np.allclose(objective.errors(result), loss(result), rtol=1e-3, atol=1e-3 * np.abs(loss(start)).max())


@pytest.mark.parametrize("symmetric", [True, False])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), magnitude=st.sampled_from([1e-30, 1e-6, 1.0, 1e6, 1e30]))
def test_fitted_scales_have_at_most_the_error_of_the_whole_range(seed: int, symmetric: bool, magnitude: float) -> None:
    rng = np.random.default_rng(seed)
    blocks = (rng.standard_t(3, (6, 32)) * magnitude).astype(np.float32)
    importance = rng.random((6, 32))
    levels = INT4 if symmetric else (0, 15)
    grid = fit_scales(blocks, levels, symmetric=symmetric, importance=importance)
    whole = whole_range(blocks, levels, symmetric)
    unit = np.abs(blocks).max(1, keepdims=True)

    def errors(candidate: Grid) -> np.ndarray:
        difference = (blocks - candidate.values(candidate.nearest(blocks))) / unit
        return np.asarray((importance * np.square(difference.astype(np.float64))).sum(1))

    assert (grid.scales > 0).all() and np.isfinite(grid.scales).all()
    assert errors(grid).sum() <= errors(whole).sum() * 1.01
    assert np.array_equal(grid.scales, fit_scales(blocks, levels, symmetric=symmetric, importance=importance).scales)


def whole_range(blocks: np.ndarray, levels: tuple[int, int], symmetric: bool) -> Grid:
    low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    if symmetric:
        scales = np.maximum(high, -low) / levels[1]
        return Grid(scales, np.zeros_like(scales), *levels)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = (high - low) / (levels[1] - levels[0])
    return Grid(scales, np.rint(-low / scales), *levels)


@pytest.mark.parametrize("symmetric", [True, False])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_half_quadratic_fit_has_at_most_the_error_of_the_whole_range_in_its_norm(seed: int, symmetric: bool) -> None:
    blocks = np.random.default_rng(seed).standard_t(3, (6, 32)).astype(np.float32)
    levels = INT4 if symmetric else (0, 15)
    unit = np.abs(blocks).max(1)

    def loss(grid: Grid) -> np.ndarray:
        return np.asarray((np.abs(blocks - grid.values(grid.nearest(blocks))) ** 0.7).sum(1) / unit**0.7)

    fitted = fit_half_quadratic(blocks, levels, symmetric=symmetric)
    assert (loss(fitted) <= loss(whole_range(blocks, levels, symmetric)) * 1.001).all()


def test_weights_and_inputs_of_zeros_are_legal() -> None:
    zeros = np.zeros((3, 8), np.float32)
    grid = fit_scales(zeros, INT4, symmetric=True)
    assert (grid.scales > 0).all()
    for rounding in ROUNDINGS.values():
        assert not rounding(zeros, np.eye(8, dtype=np.float32), grid).any()
        weights = np.ones((3, 8), np.float32)
        assert np.isfinite(rounding(weights, np.zeros((8, 8), np.float32), grid_of(weights))).all()


@pytest.mark.parametrize("name", ROUNDINGS)
def test_bad_hessians_are_refused(name: str) -> None:
    weights, hessian = layer(3)
    with pytest.raises(OptionError, match=r"expected weights \[rows, k\] and a Hessian"):
        ROUNDINGS[name](weights, hessian[:5, :5], grid_of(weights))
    hessian[2, 2] = np.nan
    with pytest.raises(OptionError, match="finite"):
        ROUNDINGS[name](weights, hessian, grid_of(weights))


def test_bad_options_are_refused() -> None:
    weights, hessian = layer(3)
    with pytest.raises(OptionError, match="at least 1 step"):
        adaround(weights, hessian, grid_of(weights), steps=0)
    with pytest.raises(OptionError, match="at least 1 step"):
        adaquant(weights, hessian, grid_of(weights), steps=0)
    with pytest.raises(OptionError, match="norm above 0"):
        fit_half_quadratic(weights, INT4, symmetric=True, norm=0)
    with pytest.raises(OptionError, match="importances"):
        fit_scales(weights, INT4, symmetric=True, importance=-np.ones_like(weights))
    with pytest.raises(OptionError, match="finite weights"):
        fit_scales(weights * np.inf, INT4, symmetric=True)


def test_few_rows_do_not_spoil_the_integers_for_other_inputs() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((32, 64)).astype(np.float32)
    errors = []
    for _ in range(5):
        x = rng.standard_normal((12, 64)).astype(np.float32)
        grid = grid_of(weights)
        for trust in (1.0, trust_of(12, 64)):
            integers = by_gptq(weights, shrunk(x.T @ x / 12, trust), grid)
            errors.append(np.square(weights - grid.values(integers)).sum())
        errors.append(np.square(weights - grid.values(grid.nearest(weights))).sum())
    whole, trusted, nearest = np.reshape(errors, (5, 3)).sum(0)
    assert whole > 1.5 * nearest and trusted < 1.25 * nearest
    assert trust_of(10**6, 64) > 0.999 and trust_of(0, 64) == 0 and trust_of(0, 0) == 0


def test_hessians_without_a_positive_trace_or_factor_leave_the_nearest_integers() -> None:
    weights, _ = layer(3)
    grid, k = grid_of(weights), weights.shape[1]
    noise = np.diag(np.where(np.arange(k) % 2, 1e-7, -2e-7))
    indefinite = np.eye(k) + 1e14 * (np.eye(k, k, 1) + np.eye(k, k, -1))
    for hessian in (noise, indefinite, np.zeros((k, k)), -np.eye(k)):
        assert np.array_equal(by_gptq(weights, hessian, grid), grid.nearest(weights))
