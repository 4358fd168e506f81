"""Models of boosting packages with options beyond the defaults agree with their libraries, or are refused by name."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.convert.tabular.city_hash import city_hash
from sardonyx.errors import UnsupportedError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((80, 4))
Y = X @ [1.0, -2.0, 0.5, 0.1] + np.sin(3 * X[:, 0])
CLASSES = np.digitize(Y, [-1, 1])
MARKS = np.stack([Y > 0, X[:, 0] > 0, X[:, 1] > 1], axis=1).astype(int)
LETTERS = "".join(chr(97 + (i * 7) % 26) for i in range(130))
HASHES = {
    1: 3489901818,
    3: 3737006197,
    8: 2389139913,
    9: 2714124570,
    16: 3990375950,
    17: 3001428668,
    32: 1223678864,
    65: 1231215894,
    130: 4136618106,
}
"""Hashes of the first letters by their number."""

HOLES = np.where(X > 1, np.nan, X)


def catboost(kind: str, **options: Any) -> Any:
    package = pytest.importorskip("catboost", reason="catboost is not installed")
    return getattr(package, kind)(iterations=6, depth=3, verbose=0, allow_writing_files=False, **options)


def xgboost(kind: str, **options: Any) -> Any:
    package = pytest.importorskip("xgboost", reason="xgboost is not installed")
    return getattr(package, kind)(n_estimators=6, **options)


def lightgbm(kind: str, **options: Any) -> Any:
    package = pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    return getattr(package, kind)(n_estimators=6, verbose=-1, **options)


CASES: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "catboost of one side": (lambda: catboost("CatBoostRegressor", grow_policy="Lossguide"), X, Y),
    "catboost by depth": (lambda: catboost("CatBoostClassifier", grow_policy="Depthwise"), HOLES, CLASSES),
    "catboost with variances": (lambda: catboost("CatBoostRegressor", loss_function="RMSEWithUncertainty"), X, Y),
    "catboost of marks": (lambda: catboost("CatBoostClassifier", loss_function="MultiLogloss"), X, MARKS),
    "catboost of missing values as the largest": (lambda: catboost("CatBoostRegressor", nan_mode="Max"), HOLES, Y),
    "xgboost with zeros missing": (lambda: xgboost("XGBRegressor", missing=0.0), np.round(X), Y),
    "xgboost of marks": (lambda: xgboost("XGBClassifier"), X, MARKS),
    "xgboost of a hinge": (lambda: xgboost("XGBClassifier", objective="binary:hinge"), X, MARKS[:, 0]),
    "lightgbm with zeros missing": (lambda: lightgbm("LGBMRegressor", zero_as_missing=True), np.round(HOLES), Y),
    "lightgbm of codes": (
        lambda: lightgbm("LGBMClassifier", min_child_samples=3, cat_smooth=1),
        np.hstack([X, np.arange(80)[:, None] % 5]),
        CLASSES,
    ),
    "lightgbm of linear leaves": (lambda: lightgbm("LGBMRegressor", linear_tree=True), HOLES, Y),
    "lightgbm of linear leaves by class": (lambda: lightgbm("LGBMClassifier", linear_tree=True), X, CLASSES),
    "xgboost of margins": (lambda: xgboost("XGBClassifier", objective="binary:logitraw"), X, MARKS[:, 0]),
    "xgboost of hazards": (lambda: xgboost("XGBRegressor", objective="survival:cox"), X, np.exp(Y / 20)),
    "xgboost of classes alone": (
        lambda: xgboost("XGBClassifier", objective="multi:softmax"),
        X,
        np.digitize(Y, [-2, 2]),
    ),
    "lightgbm of intensities": (
        lambda: lightgbm("LGBMRegressor", objective="cross_entropy_lambda"),
        X,
        0.1 + 0.8 * MARKS[:, 0],
    ),
    "xgboost of leaves with several values": (
        lambda: xgboost("XGBRegressor", multi_strategy="multi_output_tree", tree_method="hist"),
        X,
        np.stack([Y, -X[:, 0]], axis=1),
    ),
    "lightgbm of codes with zeros missing": (
        lambda: lightgbm("LGBMClassifier", min_child_samples=3, cat_smooth=1, zero_as_missing=True),
        np.hstack([np.round(X), np.arange(80)[:, None] % 5]),
        CLASSES,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_proved(name: str) -> None:
    build, x, y = CASES[name]
    options = {"categorical_feature": [4]} if name.startswith("lightgbm of codes") else {}
    report = sardonyx.convert(build().fit(x, y, **options)).report
    assert report.verdict.status == "proved", report.verdict.reason


def test_categories_that_catboost_knows_by_hashes_are_refused() -> None:
    table = np.hstack([X, np.array(["red", "blue"], object)[(X[:, :1] > 0).astype(int)]])
    model = catboost("CatBoostRegressor", cat_features=[4]).fit(table, Y)
    with pytest.raises(UnsupportedError, match="which the model knows by their hashes"):
        sardonyx.convert(model)


CATEGORIES = np.array(["red", "blue", "a rare colour", "Łódź"], object)[(X[:, :1] * 1.5).astype(int) % 4]
TABLE = np.hstack([X, CATEGORIES, (X[:, 1:2] // 1).astype(int).astype(object)])
STATISTICS: dict[str, tuple[str, dict[str, Any]]] = {
    "one column each": ("CatBoostClassifier", {"max_ctr_complexity": 1}),
    "combinations": ("CatBoostClassifier", {"max_ctr_complexity": 4, "one_hot_max_size": 1, "depth": 6}),
    "categories alone": ("CatBoostRegressor", {"one_hot_max_size": 30}),
    "counts": ("CatBoostRegressor", {"simple_ctr": ["Counter:Prior=0.1"]}),
    "means": ("CatBoostRegressor", {"simple_ctr": ["BinarizedTargetMeanValue:Prior=0.2"]}),
    "buckets": ("CatBoostClassifier", {"simple_ctr": ["Buckets:Prior=0.5"]}),
    "borders": ("CatBoostRegressor", {"simple_ctr": ["Borders:TargetBorderCount=3"]}),
    "trees of one side": ("CatBoostRegressor", {"grow_policy": "Lossguide"}),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_categories_are_looked_up(name: str) -> None:
    kind, options = STATISTICS[name]
    package = pytest.importorskip("catboost", reason="catboost is not installed")
    settings = {"iterations": 12, "depth": 3, "verbose": 0, "allow_writing_files": False, **options}
    model = getattr(package, kind)(cat_features=[4, 5], **settings)
    target = CATEGORIES[:, 0] if kind.endswith("Classifier") else Y + 3 * (CATEGORIES[:, 0] == "red")
    report = sardonyx.convert(model.fit(TABLE, target), TABLE).report
    assert report.verdict.status == "proved", report.verdict.reason


def test_categories_that_the_example_rows_lack_are_counted() -> None:
    model = catboost("CatBoostRegressor", cat_features=[4, 5]).fit(TABLE, CATEGORIES[:, 0] == "red")
    with pytest.raises(UnsupportedError, match="categories or combinations that the example rows lack"):
        sardonyx.convert(model, TABLE[:3])


def test_the_hash_of_categories_is_that_of_catboost() -> None:
    # Written by catboost 1.2.10 for a feature of one text of this length.
    for length, expected in HASHES.items():
        assert city_hash(LETTERS[:length].encode()) & 0xFFFFFFFF == expected


def test_categories_of_a_frame_are_texts() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    names = np.array(["red", "blue", "a rare colour"], object)[np.digitize(X[:, 1], [0, 1.2])]
    frame = pandas.DataFrame(
        {"x": X[:, 0], "colour": pandas.Categorical(names), "size": pandas.Categorical((X[:, 2] // 1).astype(int))}
    )
    models = [lightgbm("LGBMRegressor", min_child_samples=3, cat_smooth=1)]
    if importlib.util.find_spec("xgboost"):
        models.append(xgboost("XGBRegressor", enable_categorical=True))
    for model in models:
        result = sardonyx.convert(model.fit(frame, Y + (names == "red")))
        assert result.report.verdict.status == "proved", result.report.verdict.reason
        assert [value.name for value in result.model.graph.inputs] == ["x", "colour", "size"]
