"""Every estimator of scikit-learn that fits one of a few small data sets with its default parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

RNG = np.random.default_rng(0)
NUMBERS = RNG.standard_normal((120, 5)) * [1, 10, 0.1, 3, 1]
TARGET = NUMBERS @ [1.0, 0.1, 3.0, -1.0, 0.5] + np.sin(3 * NUMBERS[:, 0])
LABELS = np.array(["no", "maybe", "yes"], object)[np.digitize(TARGET, [-2, 2])]
COLOURS = np.array(["red", "green", "blue"], object)[RNG.integers(0, 3, (120, 2))]
TEXTS = np.array([" ".join(RNG.choice(["a", "cat", "sat", "on", "the", "mat"], 5)) for _ in range(120)], object)

NO_MODEL = (
    "GridSearch",
    "Halving",
    "RandomizedSearch",
    "SkewedChi2",
    "AdditiveChi2",
    "FeatureHasher",
    "DictVectorizer",
)
"""Beginnings of names of classes without a model of one array: searches, and features of dictionaries."""


def datasets(estimator: Any) -> Iterator[tuple[Any, Any]]:
    """Yield data sets to try, the likeliest first."""
    from sklearn.base import is_classifier

    y = LABELS if is_classifier(estimator) else TARGET
    positive = np.abs(NUMBERS)
    yield from ((NUMBERS, y), (NUMBERS, np.stack([TARGET, -TARGET], axis=1)), (positive, np.exp(TARGET / 20)))
    yield from ((positive, LABELS), (COLOURS, TARGET), (TEXTS, LABELS), (NUMBERS[:, 0], TARGET), (LABELS, None))


def fitted(build: Callable[[], Any]) -> tuple[Any, None]:
    """Return an estimator fitted on the first data set that it accepts.

    Raises:
        ValueError: It accepts none.
    """
    reason = ""
    for x, y in datasets(build()):
        estimator = build()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.fit(x, y) if y is not None else estimator.fit(x)
            return estimator, None
        except Exception as error:
            reason = reason or str(error)
    raise ValueError(reason)


def builder(kind: Any) -> Callable[[], Any]:
    """Return a function that builds an estimator, with members where the class needs some."""
    from sklearn import ensemble, linear_model, preprocessing, tree

    def build() -> Any:
        is_regressor = "Regress" in kind.__name__
        simple = linear_model.Ridge() if is_regressor else linear_model.LogisticRegression()
        members = [
            ("a", simple),
            ("b", (tree.DecisionTreeRegressor if is_regressor else tree.DecisionTreeClassifier)()),
        ]
        scaler = preprocessing.StandardScaler()
        options = {
            "steps": [("scale", scaler), ("model", simple)],
            "transformers": [("scale", scaler, [0, 1])],
            "transformer_list": [("scale", scaler)],
            "estimators": members,
            "estimator": simple,
            "base_estimator": simple,
            "n_estimators": 5,
            "max_iter": 20,
        }
        known = kind._get_param_names()
        required = ("steps", "transformers", "transformer_list", "estimators", "estimator", "base_estimator")
        use = {name: options[name] for name in required if name in known and needs(kind, name)}
        if issubclass(kind, ensemble.BaseEnsemble) and "n_estimators" in known:
            use["n_estimators"] = 5
        return kind(**use)

    return build


def needs(kind: Any, name: str) -> bool:
    """Return True if the constructor's parameter has no default."""
    import inspect

    return inspect.signature(kind).parameters[name].default is inspect.Parameter.empty


def cases() -> dict[str, Callable[[], tuple[Any, None]]]:
    """Return fitted estimators by class name."""
    from sklearn.utils import all_estimators

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classes = all_estimators()
    kinds = {
        name: kind
        for name, kind in classes
        if not name.startswith(NO_MODEL) and (hasattr(kind, "predict") or hasattr(kind, "transform"))
    }
    return {name: (lambda kind=kind: fitted(builder(kind))) for name, kind in kinds.items()}
