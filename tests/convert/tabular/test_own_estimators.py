"""Estimators of users: their methods are called with arrays of the graph, their parts are translated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import SardonyxError

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor, VotingClassifier  # noqa: E402
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (80, 4))
Y = X @ [1.0, 0.1, 3.0, -1.0]
WORDS = np.array(["no", "yes"])[(Y > 0).astype(int)]


class Rule(ClassifierMixin, BaseEstimator):
    """A classifier by numpy alone."""

    def fit(self, X: Any, y: Any) -> Rule:
        self.classes_ = np.unique(y)
        self.w_ = np.asarray(X).T @ (y == self.classes_[1]) / len(X)
        self.n_features_in_ = X.shape[1]
        return self

    def predict_proba(self, X: Any) -> Any:
        p = 1 / (1 + np.exp(-(X @ self.w_)))
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: Any) -> Any:
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Gated(RegressorMixin, BaseEstimator):
    """Two regressors weighted by a classifier."""

    def fit(self, X: Any, y: Any) -> Gated:
        self.gate_ = DecisionTreeClassifier(max_depth=2).fit(X, y > y.mean())
        self.parts_ = [Ridge().fit(X, y), RandomForestRegressor(3).fit(X, y)]
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: Any) -> Any:
        share = self.gate_.predict_proba(X)[:, 1]
        return share * self.parts_[0].predict(X) + (1 - share) * np.mean([p.predict(X) for p in self.parts_], axis=0)


class Clustered(TransformerMixin, BaseEstimator):
    """Components beside marks of clusters."""

    def fit(self, X: Any, y: Any = None) -> Clustered:
        self.components_, self.clusters_ = PCA(2).fit(X), KMeans(3, n_init=1, random_state=0).fit(X)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Any:
        return np.hstack([self.components_.transform(X), np.eye(3)[self.clusters_.predict(X)]])


class Calm(LogisticRegression):
    """A classifier of scikit-learn with probabilities of its own."""

    def predict_proba(self, X: Any) -> Any:
        p = 1 / (1 + np.exp((X @ self.coef_.T + self.intercept_) * -0.5))
        return np.hstack([1 - p, p])


@pytest.mark.parametrize(
    ("estimator", "target"),
    [
        (Rule(), WORDS),
        (make_pipeline(StandardScaler(), Rule()), WORDS),
        (VotingClassifier([("rule", Rule()), ("line", LogisticRegression())], voting="soft"), WORDS),
        (Gated(), Y),
        (BaggingRegressor(Gated(), n_estimators=2, random_state=0), Y),
        (make_pipeline(Clustered(), LogisticRegression()), WORDS),
        (Calm(), WORDS),
    ],
    ids=["classifier", "pipeline", "voting", "parts", "bagging", "transformer", "replaced method"],
)
def test_an_estimator_of_the_user_is_traced(estimator: Any, target: Any) -> None:
    result = sardonyx.convert(estimator.fit(X, target))
    assert result.report.verdict.status == "proved", result.report.verdict.reason


def test_a_replaced_method_is_not_that_of_the_ancestor() -> None:
    estimator = Calm().fit(X, WORDS)
    answer = sardonyx.Session(sardonyx.convert(estimator).model).run(["probabilities"], {"X": X})[0]
    np.testing.assert_allclose(answer, estimator.predict_proba(X), rtol=1e-9)


def test_a_gaussian_process_of_pairs_of_classes_has_labels_alone() -> None:
    target = np.digitize(Y, [-1.0, 1.0])
    result = sardonyx.convert(GaussianProcessClassifier(multi_class="one_vs_one").fit(X, target))
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    assert [value.name for value in result.model.graph.outputs] == ["label"]


class Branching(Rule):
    """A classifier that decides by a value."""

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(X) if X.sum() > 0 else super().predict_proba(-X)


def test_a_branch_on_values_is_named_with_its_line() -> None:
    with pytest.raises(SardonyxError, match=r"no numbers before|no translation") as caught:
        sardonyx.convert(Branching().fit(X, WORDS))
    assert "test_own_estimators.py" in caught.value.where


class Cautious(RegressorMixin, BaseEstimator):
    """A prediction less its deviation."""

    def fit(self, X: Any, y: Any) -> Cautious:
        self.process_ = GaussianProcessRegressor().fit(X, y)
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: Any) -> Any:
        mean, deviation = self.process_.predict(X, return_std=True)
        return mean - deviation


class Repeated(Cautious):
    """A prediction with a second argument by position."""

    def predict(self, X: Any) -> Any:
        return self.process_.predict(X, False)


@pytest.mark.parametrize(("kind", "text"), [(Cautious, "return_std"), (Repeated, "argument 1")])
def test_arguments_of_a_parts_method_are_refused_by_name(kind: type, text: str) -> None:
    with pytest.raises(SardonyxError, match=f"GaussianProcessRegressor.predict with {text} has no translation"):
        sardonyx.convert(kind().fit(X, Y))
