"""Functions of numpy over an array of a graph answer as numpy does, for infinite numbers and NaN too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sardonyx.convert.tabular.arrays import where
from sardonyx.errors import UnsupportedError
from tests.convert.tabular.traced_functions import answer

X = np.random.default_rng(0).standard_normal((6, 4)) * 3
EXTREMES = np.array(
    [
        [np.nan, np.inf, -np.inf, 0.0],
        [-0.0, 1.0, -1.0, 2.5],
        [np.inf, np.inf, -np.inf, -np.inf],
        [1e300, -1e300, 1e-300, 3.0],
        [0.5, 1.5, -0.5, -1.5],
    ]
)
POINTS = np.array([-1.0, 0.0, 2.0])


def whole(x: Any) -> Any:
    """Return small integers."""
    return np.rint(np.clip(np.nan_to_num(x), -9, 9)).astype(np.int64)


def assigned(x: Any) -> Any:
    x = x.copy()
    x[:, 0] = x[:, 1] * 2
    x[x < 0] = 0.5
    x[:, 2] *= 3
    x[x[:, 0] > 1, 3] = -9
    x[:, [1, 2]] = x[:, [2, 1]]
    return x


def shared(x: Any) -> Any:
    column = x[:, 1]
    x[:, 1] = 7.0
    next_one = column + 1
    column *= 2
    return np.c_[x, next_one, column]


def filled(x: Any) -> Any:
    result = np.zeros((x.shape[0], 3))
    result[:, 0] = x[:, 0]
    result[:, 1:] = x[:, 2:4]
    return result


def by_column(x: Any) -> Any:
    x = np.asarray(x).copy()
    for i in range(x.shape[1]):
        x[:, i] -= i
    return x / np.array([1, 2, 3, 4.0])


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a new axis after an index": lambda x: x[:, 0, None] + x,
    "a new axis before indices": lambda x: x[:, None, [0, 2]].sum(1),
    "columns beyond the last": lambda x: x[:, 1:10],
    "columns backwards": lambda x: x[:, ::-1],
    "columns by truth": lambda x: x[:, np.array([True, False, True, False])],
    "columns by a comparison": lambda x: x[:, np.arange(4) > 1],
    "an ellipsis": lambda x: x[:, ..., None][..., 0] + x[..., 1, None],
    "norm 1": lambda x: np.linalg.norm(x, 1, axis=1),
    "greatest norm": lambda x: np.linalg.norm(x, np.inf, axis=1, keepdims=True),
    "least norm": lambda x: np.linalg.norm(x, -np.inf, 1),
    "norm 0": lambda x: np.linalg.norm(x, 0, axis=1),
    "norm 3": lambda x: np.linalg.norm(x, ord=3, axis=1),
    "second differences": lambda x: np.diff(x, 2, axis=1),
    "third differences": lambda x: np.diff(x, n=3),
    "variance of a sample": lambda x: np.var(x, 1, ddof=1),
    "correction": lambda x: np.std(x, axis=1, correction=1),
    "deviation over rows": lambda x: x - x.mean(0) + np.std(x, axis=0, ddof=1),
    "bins": lambda x: np.digitize(x, POINTS),
    "bins with their right edges": lambda x: np.digitize(x, POINTS, right=True),
    "descending bins": lambda x: np.digitize(x, -POINTS),
    "descending bins with their right edges": lambda x: np.digitize(x, -POINTS, True),
    "places among points": lambda x: np.searchsorted(POINTS, x) + np.searchsorted(POINTS, x, side="right"),
    "a constant": lambda x: np.full_like(x, 3.0) + np.zeros_like(x) + np.ones_like(x),
    "sums of exponentials": lambda x: np.logaddexp(x, x[:, ::-1]) + np.logaddexp2(x, x),
    "small logarithms": lambda x: np.hstack([np.log1p(x), np.expm1(x), np.log2(np.abs(x))]),
    "hypot": lambda x: np.hypot(x, x[:, ::-1]),
    "angles": lambda x: np.hstack([np.arctan2(x, x[:, ::-1]), np.arctan2(x * 0.0, x)]),
    "arcs": lambda x: np.hstack([np.arctan(x), np.arcsin(np.tanh(x)), np.arccos(np.tanh(x)), np.tan(x)]),
    "hyperbolas": lambda x: np.hstack([np.sinh(x), np.cosh(x), np.arcsinh(x), np.arccosh(1 + np.abs(x))]),
    "the inverse of tanh": lambda x: np.arctanh(np.clip(x, -0.99, 0.99)),
    "signs": lambda x: np.hstack([np.copysign(2.0, x), np.sign(x), np.heaviside(x, 0.5)]),
    "remainders": lambda x: np.hstack([np.remainder(x, 0.1), np.remainder(x, -0.3), x // 0.7, np.fmod(x, 0.7)]),
    "remainders of integers": lambda x: np.hstack([whole(x) % 3, whole(x) // -3, np.round(whole(x), 1)]),
    "numbers for infinities": lambda x: np.hstack([np.nan_to_num(x), np.nan_to_num(x, nan=1.0, posinf=5.0, neginf=-5)]),
    "limits": lambda x: np.hstack([np.clip(x, min=0.0), np.clip(x, -1, 1), np.clip(x, None, 1.0), x.clip(max=0.0)]),
    "means of integers": lambda x: whole(x).mean(axis=1) + (x > 0).mean(1) + (x > 0).sum(1),
    "quantiles": lambda x: np.stack(
        [np.median(x, axis=1), np.quantile(x, 0.3, axis=1), np.percentile(x, 75, axis=1)], 1
    ),
    "order": lambda x: np.hstack([np.sort(x, axis=1), np.sort(np.nan_to_num(x), axis=-1)]),
    "without NaN": lambda x: np.stack([np.nansum(x, axis=1), np.nanmax(x, axis=1), np.nanmean(x, axis=1)], 1),
    "weighted means": lambda x: np.average(x, axis=1, weights=[1, 2, 3, 4.0]),
    "counts": lambda x: np.count_nonzero(x, axis=1) + np.any(np.isnan(x), axis=1),
    "interpolation": lambda x: np.interp(x, POINTS, [3.0, 1.0, 5.0]),
    "membership": lambda x: np.isin(np.rint(x), [1, 2, -3]),
    "closeness": lambda x: np.isclose(x, x[:, ::-1]),
    "a polynomial": lambda x: np.polyval([1, 2.0, 3], x),
    "pieces": lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda part: -part, lambda part: part * 2]),
    "repetition": lambda x: np.hstack([np.tile(x, (1, 2)), np.repeat(x, 2, axis=1)]),
    "removal": lambda x: np.hstack([np.roll(x, 1, axis=1), np.delete(x, [0], axis=1)]),
    "rows of columns": lambda x: np.vstack([x[:, 0], x[:, 1]]).T + np.array([x[:, 0], x[:, 1]]).T,
    "columns of vectors": lambda x: np.c_[np.ones(x.shape[0]), x, x[:, 0], np.full((x.shape[0], 2), 5)],
    "assignments": assigned,
    "assignments to shared elements": shared,
    "a result filled column by column": filled,
    "a loop over columns": by_column,
    "products of columns": lambda x: (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1),
    "a number of rows": lambda x: x.sum(axis=0) / x.shape[0] + x / x.size,
    "a quotient of truth values": lambda x: (x > 0) / 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("rows", [X, EXTREMES], ids=["plain", "extremes"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_answers_as_numpy_does(name: str, rows: Any) -> None:
    expected = np.asarray(FUNCTIONS[name](rows.copy()))
    result = answer(FUNCTIONS[name], rows)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


REFUSALS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a branch": (lambda x: x if x.any() else -x, "a branch on values"),
    "a loop over rows": (lambda x: list(x), "a loop over rows"),
    "rows by truth": (lambda x: x[x[:, 0] > 0], "a selection of rows by values"),
    "numbers": (lambda x: np.linalg.inv(x), "numpy.inv has no translation"),
    "an option": (lambda x: np.sum(x, axis=1, where=x > 0), "numpy.sum with where"),
    "all axes": (lambda x: np.argmax(x), "expected axis=1"),
    "the norm of a matrix": (lambda x: np.linalg.norm(x, "nuc"), "of matrices with ord='nuc'"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_function_without_translation_is_named(name: str) -> None:
    function, text = REFUSALS[name]
    with pytest.raises(UnsupportedError, match=text):
        answer(function, X)


def test_where_of_numbers_alone_is_numpys() -> None:
    assert where(np.array([True, False]), 1, 2).tolist() == [1, 2]
