"""Categories of data frames, which boosting packages know by their places in a list.

lightgbm and xgboost replace a category of a column of pandas' type `category` by its number: the model has these
lists, and columns of texts become numbers by them.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import Table, number_matrix
from sardonyx.convert.tabular.preprocessing import category_matches, column


def frame_categories(estimator: Any) -> dict[int, list[Any]]:
    """Return the categories of each column of a data frame that a booster was fitted on."""
    package = type(estimator).__module__.partition(".")[0]
    if package == "lightgbm":
        return _of_lightgbm(getattr(estimator, "booster_", estimator))
    if package == "xgboost" and hasattr(estimator, "get_booster") and estimator.__sklearn_is_fitted__():
        return _of_xgboost(estimator.get_booster())
    return {}


def _of_lightgbm(booster: Any) -> dict[int, list[Any]]:
    categories = getattr(booster, "pandas_categorical", None) or []
    if not categories:
        return {}
    lines = booster.model_to_string(num_iteration=1).splitlines()
    line = next((line for line in lines if line.startswith("[categorical_feature: ")), "")
    columns = [int(part) for part in line[len("[categorical_feature: ") : -1].split(",") if part]
    return dict(zip(columns, categories, strict=False))


def _of_xgboost(booster: Any) -> dict[int, list[Any]]:
    learner = json.loads(booster.save_raw("json"))["learner"]
    stored = learner["gradient_booster"].get("model", {}).get("cats", {}).get("enc", [])
    return {i: categories for i, entry in enumerate(stored) if (categories := _entries(entry))}


def _entries(entry: dict[str, Any]) -> list[Any]:
    """Return the categories of one column: numbers, or texts that are stored end to end."""
    if "offsets" not in entry:
        return list(entry.get("values", ()))
    text = bytes(value % 256 for value in entry["values"])
    bounds = entry["offsets"]
    return [text[low:high].decode() for low, high in itertools.pairwise(bounds)]


def coded_matrix(estimator: Any, x: Any) -> Array:
    """Return rows as numbers: the place of each category in the booster's list, NaN for others."""
    categories = frame_categories(estimator)
    if not categories:
        return number_matrix(x)
    width = sum(x.widths) if isinstance(x, Table) else x.sizes()[1]
    columns = []
    for i in range(int(width or 0)):
        part = column(x, i)
        if i in categories:
            is_category = category_matches(part, categories[i])
            part = where(is_category.any(1, keepdims=True), is_category.argmax(1, keepdims=True), np.nan)
        columns.append(part.cast(np.float64))
    return concatenated(columns, axis=1)
