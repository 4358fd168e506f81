"""Functions of numpy in transformers of users are translated, new axes and forms of indices included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import UnsupportedError

preprocessing = pytest.importorskip("sklearn.preprocessing", reason="scikit-learn is not installed")
base = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
pipelines = pytest.importorskip("sklearn.pipeline", reason="scikit-learn is not installed")
validation = pytest.importorskip("sklearn.utils.validation", reason="scikit-learn is not installed")
check_array, check_is_fitted, validate_data = (
    validation.check_array,
    validation.check_is_fitted,
    validation.validate_data,
)
X = np.random.default_rng(0).standard_normal((60, 4)) * [1, 5, 0.1, 2]

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "a new axis": lambda x: (x[:, 0] * 2)[:, None] + x[:, 1:2],
    "a new last axis": lambda x: x[..., 0][..., None] * x,
    "the last column": lambda x: np.column_stack([x[..., -1], x[:, 0], x[:, 1:3]]),
    "lengths and angles": lambda x: np.hstack([np.hypot(x[:, :1], x[:, 1:2]), np.arctan2(x[:, 2:3], x[:, 3:])]),
    "extremes": lambda x: np.hstack([np.fmax(x, 0.5), np.fmin(x, x[:, :1]), np.heaviside(x, 0.5), np.copysign(2.0, x)]),
    "moments": lambda x: np.stack([np.var(x, axis=1), np.std(x, 1), np.prod(x, 1), np.linalg.norm(x, axis=1)], 1),
    "sums so far": lambda x: np.hstack([np.cumsum(x, 1), np.diff(x, axis=1), np.flip(x, axis=1)]),
    "logic": lambda x: np.stack([np.any(x > 1, axis=1), np.all(x > -3, axis=1)], 1).astype(np.float64),
    "logic of numbers": lambda x: np.stack([np.any(x * 0.01, 1), np.all(x * 0, 1), np.logical_or(x, x)[:, 0]], 1) * 1,
    "choices": lambda x: np.select([x > 1, x > 0], [x * 2, x * 3], default=-1.0),
    "bins": lambda x: np.digitize(x, [-1.0, 0.0, 1.0]) + np.digitize(x, [0.5], right=True),
    "sums of exponentials": lambda x: np.logaddexp(x, x[:, ::-1] if isinstance(x, np.ndarray) else np.flip(x, axis=1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_translated(name: str) -> None:
    estimator = preprocessing.FunctionTransformer(FUNCTIONS[name]).fit(X)
    report = sardonyx.convert(estimator).report
    assert report.verdict.status == "proved", report.verdict.reason


def test_rows_cannot_be_chosen() -> None:
    with pytest.raises(UnsupportedError, match=r"expected x\[:, columns\]"):
        sardonyx.convert(preprocessing.FunctionTransformer(lambda x: x[1:]).fit(X), exporter="sardonyx")


def test_where_of_one_argument_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"numpy\.where of one argument"):
        sardonyx.convert(preprocessing.FunctionTransformer(lambda x: np.where(x > 0)).fit(X), exporter="sardonyx")


class Checked(base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc]
    """A transformer as scikit-learn's template has it: the input is checked."""

    def fit(self, x: Any, y: Any = None) -> Checked:
        self.n_features_in_ = x.shape[1]
        return self

    def transform(self, x: Any) -> Any:
        check_is_fitted(self)
        x = validate_data(self, x, reset=False, dtype=np.float64)
        rows = np.zeros((x.shape[0], 2))
        rows[:, 0] = check_array(np.asarray(x, dtype=float))[:, 0]
        return np.hstack([rows, x])


def test_a_checked_input_is_translated() -> None:
    report = sardonyx.convert(Checked().fit(X)).report
    assert report.verdict.status == "proved", report.verdict.reason
    assert check_array(X).shape == X.shape and np.asarray([1]).tolist() == [1]


class Sampler(base.BaseEstimator):  # type: ignore[misc]
    """A step that draws other rows while a pipeline is fitted, as those of imblearn do."""

    def fit_resample(self, x: Any, y: Any) -> Any:
        return x, y


class Resampled(pipelines.Pipeline):  # type: ignore[misc]
    """A pipeline that leaves such steps out of predictions."""

    def predict(self, x: Any) -> Any:
        for _, step in self.steps[:-1]:
            x = step.transform(x) if hasattr(step, "transform") else x
        return self.steps[-1][1].predict(x)


def test_steps_that_draw_rows_are_left_out() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    scaler = preprocessing.StandardScaler().fit(X)
    model = linear.Ridge().fit(scaler.transform(X), X[:, 0])
    whole = Resampled([("scale", scaler), ("draw", Sampler()), ("model", model)])
    assert sardonyx.convert(whole).report.verdict.status == "proved"
