"""Categories of catboost's models, as statistics of the target by category.

The model has a table from hashes of categories, and of combinations of these, to counts. The categories themselves
are those of the example rows: every combination is evaluated while the model is converted, and the graph looks the
results up. Source: catboost's ``static_ctr_provider.cpp`` and ``hash.h``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.convert.tabular.arrays import Array, concatenated
from sardonyx.convert.tabular.city_hash import city_hash
from sardonyx.convert.tabular.methods import Table
from sardonyx.convert.tabular.preprocessing import category_matches, column
from sardonyx.errors import UnsupportedError

MOST_COMBINATIONS = 1 << 20
"""Combinations of categories of one statistic."""

_MULTIPLIER = 0x4906BA494954CB65
_MASK = (1 << 64) - 1
_NO_KEY = _MASK
"""The key of an empty place in a table."""


def _hash_of(category: Any) -> int:
    """Return the hash of a category: 32 bits, extended by their sign."""
    value = city_hash(category_text(category).encode()) & 0xFFFFFFFF
    return value | (0xFFFFFFFF << 32) if value >> 31 else value


def category_text(category: Any) -> str:
    """Return a category as catboost reads it: whole numbers have no point."""
    return category if isinstance(category, str) else str(int(category))


def _combined(first: int, second: int) -> int:
    return _MULTIPLIER * (first + _MULTIPLIER * second) & _MASK


class Splits:
    """The conditions of a model's trees, over a matrix of numbers, truth values and statistics.

    Args:
        model: The model as JSON.
        x: The rows, with the categories of example rows.
        where: Name of the estimator.

    Attributes:
        features: The matrix, float32.

    Raises:
        UnsupportedError: Categories are not known, or combinations are too many.
    """

    def __init__(self, model: Mapping[str, Any], x: Array | Table, where: str) -> None:
        information = model["features_info"]
        if any(information.get(f"{kind}_features") for kind in ("text", "embedding")):
            raise UnsupportedError("features of texts and embeddings have no translation", where=where)
        self._where = where
        self._floats = information.get("float_features") or []
        self._categorical = information.get("categorical_features") or []
        self._statistics = information.get("ctrs") or []
        self._tables = model.get("ctr_data") or {}
        self._x = x
        self._numbers = {
            int(one["feature_index"]): column(x, int(one["flat_feature_index"])).cast(np.float32)
            for one in self._floats
        }
        self._known: dict[int, list[Any]] = {}
        self._matches: dict[int, Array] = {}
        for one in self._categorical:
            self._add_categories(int(one["feature_index"]), int(one["flat_feature_index"]))
        parts = list(self._numbers.values())
        self._columns: dict[tuple[Any, ...], int] = {("float", number): i for i, number in enumerate(self._numbers)}
        for one in self._categorical:
            number = int(one["feature_index"])
            for value in one.get("values") or ():
                self._columns["value", number, int(value)] = len(parts)
                parts.append(self._equals(number, int(value)).cast(np.float32))
        for number, statistic in enumerate(self._statistics):
            self._columns["statistic", number] = len(parts)
            parts.append(self._statistic(statistic))
        self.features: Array = concatenated(parts, axis=1)
        self._borders = [
            (number, float(border))
            for number, statistic in enumerate(self._statistics)
            for border in statistic["borders"]
        ]
        self._first = sum(len(one.get("borders") or ()) for one in self._floats)
        self._first += sum(len(one.get("values") or ()) for one in self._categorical)
        self._missing_is_true = {
            int(one["feature_index"]): one.get("nan_value_treatment") == "AsTrue" for one in self._floats
        }

    def locate(self, split: Mapping[str, Any]) -> tuple[int, float, bool]:
        """Return the column of a condition, the border above which it holds, and True if it holds for NaN."""
        kind = split.get("split_type", "FloatFeature")
        if kind == "FloatFeature":
            number = int(split["float_feature_index"])
            return self._columns["float", number], float(split["border"]), self._missing_is_true[number]
        if kind == "OneHotFeature":
            return self._columns["value", int(split["cat_feature_index"]), int(split["value"])], 0.5, False
        statistic, border = self._borders[int(split["split_index"]) - self._first]
        return self._columns["statistic", statistic], border, False

    def _add_categories(self, number: int, flat: int) -> None:
        if flat not in self._x.known:
            raise UnsupportedError(
                "categorical features, which the model knows by their hashes",
                where=self._where,
                remedy="Give rows with every category as example rows, such as those that the model was fitted on; or"
                " encode categories ahead of the model, for example by OneHotEncoder or TargetEncoder.",
            )
        self._known[number] = list(self._x.known[flat])
        part = column(self._x, flat)
        part = part if part.dtype == object else np.trunc(part.cast(np.float64))
        self._matches[number] = category_matches(part, np.array(self._known[number], part.dtype))

    def _equals(self, number: int, value: int) -> Array:
        """Return True where a category has a hash, [rows, 1]."""
        is_value = [_hash_of(one) & 0xFFFFFFFF == value & 0xFFFFFFFF for one in self._known[number]]
        if not any(is_value):
            raise self._unknown(number, 1)
        return self._matches[number].columns(np.flatnonzero(is_value)).any(1, keepdims=True)

    def _unknown(self, number: int, count: int) -> UnsupportedError:
        flat = next(int(one["flat_feature_index"]) for one in self._categorical if int(one["feature_index"]) == number)
        return UnsupportedError(
            f"the model knows {count} categories or combinations that the example rows lack (column {flat})",
            where=self._where,
            remedy="Give rows with every category as example rows, such as those that the model was fitted on.",
        )

    def _statistic(self, statistic: Mapping[str, Any]) -> Array:
        """Return a statistic of the target by categories, [rows, 1]."""
        digits: list[tuple[Array, list[int | None]]] = []
        elements = statistic["elements"]
        order = {"cat_feature_value": 0, "float_feature": 1, "cat_feature_exact_value": 2}
        for element in sorted(elements, key=lambda one: order[one["combination_element"]]):
            digits.append(self._digit(element))
        if math.prod(len(keys) for _, keys in digits) > MOST_COMBINATIONS:
            raise UnsupportedError(
                f"more than {MOST_COMBINATIONS} combinations of categories",
                where=self._where,
                remedy="Fit the model with max_ctr_complexity=1, or encode the categories ahead of the model.",
            )
        table = self._tables[statistic["identifier"]]
        counts = _counts(table)
        results, reached = [], set()
        for parts in itertools.product(*(keys for _, keys in digits)):
            key: int | None = 0
            for part in parts:
                key = None if key is None or part is None else _combined(key, part)
            if key is not None and key in counts:
                reached.add(key)
            results.append(_value(statistic, table, None if key is None else counts.get(key)))
        if len(reached) < len(counts):
            raise self._unknown(int(elements[0].get("cat_feature_index", 0)), len(counts) - len(reached))
        index: Any = None
        for digit, keys in digits:
            index = digit if index is None else index * np.int64(len(keys)) + digit
        return index.constant(np.array(results, np.float32), np.float32).rows(index)

    def _digit(self, element: Mapping[str, Any]) -> tuple[Array, list[int | None]]:
        """Return the position of an element of a combination [rows, 1], and the part of the key by position."""
        match element["combination_element"]:
            case "cat_feature_value":
                number = int(element["cat_feature_index"])
                matches = self._matches[number]
                keys: list[int | None] = [_hash_of(one) for one in self._known[number]]
                missing = np.logical_not(matches.any(1, keepdims=True)).cast(np.int64)
                return matches.argmax(1, keepdims=True) * (1 - missing) + missing * np.int64(len(keys)), [*keys, None]
            case "float_feature":
                feature = self._numbers[int(element["float_feature_index"])]
                is_above: Any = feature > np.float32(element["border"])
                return is_above.cast(np.int64), [0, 1]
            case _:
                number = int(element["cat_feature_index"])
                value = int(element.get("value", element.get("cat_feature_value", 0)))
                return self._equals(number, value).cast(np.int64), [0, 1]


def _counts(table: Mapping[str, Any]) -> dict[int, npt.NDArray[np.float64]]:
    """Return the numbers of a table by key."""
    entries, stride = table["hash_map"], int(table["hash_stride"])
    return {
        int(entries[i]): np.array(entries[i + 1 : i + stride], np.float64)
        for i in range(0, len(entries), stride)
        if int(entries[i]) != _NO_KEY
    }


def _value(statistic: Mapping[str, Any], table: Mapping[str, Any], counts: Any) -> np.float32:
    """Return a statistic from the counts of a key, None for a key that the table lacks; in float32 as catboost."""
    target = int(statistic.get("target_border_idx", 0))
    good, total = 0.0, 0.0
    match statistic["ctr_type"]:
        case "Counter" | "FeatureFreq":
            total = float(table["counter_denominator"])
            good = 0.0 if counts is None else float(counts[0])
        case "FloatTargetMeanValue" | "BinarizedTargetMeanValue":
            good, total = (0.0, 0.0) if counts is None else (float(counts[0]), float(counts[1]))
        case "Buckets":
            good, total = (0.0, 0.0) if counts is None else (float(counts[target]), float(counts.sum()))
        case _:
            good, total = (0.0, 0.0) if counts is None else (float(counts[target + 1 :].sum()), float(counts.sum()))
    numerator = np.float32(good) + np.float32(statistic["prior_numerator"])
    denominator = np.float32(total) + np.float32(statistic["prior_denomerator"])
    share = numerator / denominator
    return (share + np.float32(statistic["shift"])) * np.float32(statistic["scale"])
