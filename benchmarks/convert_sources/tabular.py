"""Estimators of scikit-learn fitted on small data sets, and those of gradient boosting packages."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
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
    "LocalOutlierFactor",
)
"""Beginnings of names of classes without a model of one array.

These are searches, features of dictionaries, and detectors that only know the rows they were fitted on.
"""


def datasets(estimator: Any) -> Iterator[tuple[Any, Any]]:
    """Yield data sets to try, the likeliest first."""
    from sklearn.base import is_classifier

    is_of_labels = is_classifier(estimator) or type(estimator).__name__.startswith(("Select", "GenericUnivariate"))
    y = LABELS if is_of_labels else TARGET
    if type(estimator).__name__ == "MissingIndicator":
        yield np.where(NUMBERS > 1, np.nan, NUMBERS), None
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


Builder = tuple[Callable[[], Any], Any, Any]
"""A function that returns an estimator, with rows and targets; None for estimators without targets."""


def fitted_later(members: Mapping[str, Builder]) -> dict[str, Callable[[], tuple[Any, tuple[Any] | None]]]:
    """Return functions that fit estimators, by name."""
    return {name: (lambda parts=parts: _fitted(*parts)) for name, parts in members.items()}


def _fitted(build: Callable[[], Any], x: Any, y: Any) -> tuple[Any, tuple[Any] | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = build()
        # The types of a frame's columns, catboost's categories, and keys that are hashed, are known from rows alone.
        examples = (x,) if hasattr(x, "columns") or type(estimator).__name__ == "FeatureHasher" else None
        return (estimator.fit(x) if y is None else estimator.fit(x, y)), examples


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
    result = {name: (lambda kind=kind: fitted(builder(kind))) for name, kind in kinds.items()}
    return {**result, **_boosted()}


def _boosted() -> dict[str, Callable[[], tuple[Any, None]]]:
    """Return fitted estimators of the installed packages of gradient boosting, by package and class."""
    numbers, rank = np.where(NUMBERS > 2, np.nan, NUMBERS), np.repeat(20, 6)
    classes, two = np.digitize(TARGET, [-2, 2]), (TARGET > 0).astype(int)
    few = {"n_estimators": 8}
    options_of = {
        "xgboost": {
            **{f"XGBRegressor.{kind}": few | {"booster": kind} for kind in ("gbtree", "dart", "gblinear")},
            **{f"XGBRegressor.{loss}": few | {"objective": loss} for loss in ("count:poisson", "reg:gamma")},
            **{f"XGB{kind}": few for kind in ("Classifier", "Classifier.two", "RFRegressor", "RFClassifier", "Ranker")},
        },
        "lightgbm": {
            **{f"LGBMRegressor.{kind}": few | {"boosting_type": kind} for kind in ("gbdt", "dart")},
            **{f"LGBMRegressor.{loss}": few | {"objective": loss} for loss in ("poisson", "quantile", "tweedie")},
            **{f"LGBM{kind}": few for kind in ("Classifier", "Classifier.two", "Ranker")},
        },
        "catboost": {f"CatBoost{kind}": {"iterations": 8} for kind in ("Regressor", "Classifier", "Classifier.two")},
    }

    def build(package: str, name: str, options: dict[str, Any]) -> Callable[[], tuple[Any, None]]:
        def make() -> tuple[Any, None]:
            kind, _, part = name.partition(".")
            quiet = {"lightgbm": {"verbose": -1}, "catboost": {"verbose": 0, "allow_writing_files": False}}
            estimator = getattr(importlib.import_module(package), kind)(**options, **quiet.get(package, {}))
            targets = {"two": two, "count:poisson": np.exp(TARGET / 20), "reg:gamma": np.exp(TARGET / 20)}
            targets |= {"poisson": np.exp(TARGET / 20), "tweedie": np.exp(TARGET / 20)}
            y = targets.get(part, classes if "Classifier" in kind or "Ranker" in kind else TARGET)
            estimator.fit(numbers, y, **({"group": rank} if "Ranker" in kind else {}))
            return estimator, None

        return make

    return {
        f"{package}.{name}": build(package, name, options)
        for package, cases_of in options_of.items()
        if importlib.util.find_spec(package) is not None
        for name, options in cases_of.items()
    }
