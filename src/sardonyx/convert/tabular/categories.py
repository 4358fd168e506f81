"""Categories of data frames, which boosting packages know by their places in a list.

lightgbm and xgboost replace a category of a column of pandas' type `category` by its number: the model has these
lists, and columns of texts become numbers by them.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import Table, number_matrix
from sardonyx.convert.tabular.preprocessing import category_matches, column
from sardonyx.errors import UnsupportedError

_MOST_ASSIGNMENTS = 100_000
"""Assignments of lists of categories to columns that are compared; with more, none is chosen."""


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
    unordered = _values(lines, "[categorical_feature: ", ",")
    columns = _columns_of_lists(_values(lines, "feature_infos=", " "), {int(part) for part in unordered}, categories)
    return dict(zip(columns, categories, strict=True))


def _values(lines: list[str], start: str, separator: str) -> list[str]:
    line = next((line for line in lines if line.startswith(start)), start)
    return [part for part in line[len(start) :].rstrip("]" if start[0] == "[" else None).split(separator) if part]


def _columns_of_lists(ranges: list[str], unordered: set[int], categories: list[list[Any]]) -> tuple[int, ...]:
    """Return the columns that lists of categories belong to; ordered ones are numbers of which the range is known."""
    missing = len(categories) - len(unordered)
    numbers = [i for i, text in enumerate(ranges) if i not in unordered and re.fullmatch(r"\[0:\d+\]|none", text)]
    count = max(missing, 0)
    fitting = []
    if math.comb(len(numbers), count) <= _MOST_ASSIGNMENTS:
        for ordered in itertools.combinations(numbers, count):
            columns = tuple(sorted(unordered.union(ordered)))
            lasts = {column: len(known) - 1 for column, known in zip(columns, categories, strict=True)}
            if all(ranges[i] == "none" or int(ranges[i][3:-1]) <= lasts[i] for i in ordered):
                fitting.append((sum(ranges[i] != f"[0:{lasts[i]}]" for i in ordered), columns))
    least = min((rest for rest, _ in fitting), default=0)
    best = [columns for rest, columns in fitting if rest == least]
    if len(best) != 1:
        raise UnsupportedError(
            f"{len(categories)} columns of categories, of which the model names {len(unordered)}: ordered categories"
            " are numbers for lightgbm, and several columns may be theirs",
            where="lightgbm",
            remedy="Fit the model with categories that are not ordered, or with their numbers.",
        )
    return best[0]


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
    try:
        return [text[low:high].decode() for low, high in itertools.pairwise(bounds)]
    except UnicodeDecodeError as error:
        # xgboost 3.2 cuts texts after as many bytes as they have characters.
        raise UnsupportedError(
            "xgboost stores categories with letters outside of ASCII incompletely",
            where="xgboost",
            remedy="Rename these categories, or encode them ahead of the model.",
        ) from error


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
