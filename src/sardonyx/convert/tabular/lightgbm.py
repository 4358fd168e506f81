"""Boosted trees of lightgbm.

The library's JSON form is read, never its pickles. lightgbm compares and adds in float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, sigmoid, softmax, where
from sardonyx.convert.tabular.categories import coded_matrix
from sardonyx.convert.tabular.linear import two_columns
from sardonyx.convert.tabular.methods import labels, method
from sardonyx.convert.tabular.trees import LESS_OR_EQUAL, MEMBER, Tree, ensemble, leaf_values, tree_of
from sardonyx.errors import UnsupportedError


def _lightgbm_model(estimator: Any) -> dict[str, Any]:
    booster = getattr(estimator, "booster_", estimator)
    best = getattr(estimator, "best_iteration_", None) or getattr(booster, "best_iteration", None) or None
    result: dict[str, Any] = booster.dump_model(num_iteration=best if best and best > 0 else None)
    return result


def _lightgbm_tree(structure: dict[str, Any]) -> Tree:
    columns: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "missing", "mode")}
    members: dict[int, list[float]] = {}
    values: list[float] = []

    def leaf(node: dict[str, Any]) -> int:
        values.append(float(node["leaf_value"]))
        return ~(len(values) - 1)

    if "split_index" not in structure:
        empty = np.zeros(0, np.int64)
        values.append(float(structure["leaf_value"]))
        return Tree(empty, np.zeros(0), empty, empty, empty > 0, empty.astype(np.uint8), np.array(values))
    pending = [(structure, -1, "")]
    while pending:
        node, parent, side = pending.pop()
        if "split_index" in node:
            index = len(columns["feature"])
            kind = node["decision_type"]
            columns["feature"].append(int(node["split_feature"]))
            columns["left"].append(0)
            columns["right"].append(0)
            if kind == "==":
                members[index] = [float(c) for c in str(node["threshold"]).split("||")]
                columns["threshold"].append(0.0)
                columns["mode"].append(MEMBER)
                columns["missing"].append(False)
            elif kind == "<=":
                columns["threshold"].append(float(node["threshold"]))
                columns["mode"].append(LESS_OR_EQUAL)
                columns["missing"].append(_lightgbm_missing_left(node))
            else:
                raise UnsupportedError(f"decision type {kind}", where="lightgbm")
            pending += [(node["right_child"], index, "right"), (node["left_child"], index, "left")]
            target = index
        else:
            target = leaf(node)
        if parent >= 0:
            columns[side][parent] = target
    return tree_of(columns, np.array(columns["mode"], np.uint8), values, members)


def _lightgbm_missing_left(node: dict[str, Any]) -> bool:
    """Return True if NaN goes left: by default, or as 0 where the file has no missing values."""
    return float(node["threshold"]) >= 0 if node["missing_type"] == "None" else bool(node["default_left"])


def _lightgbm_zero_is_missing(node: dict[str, Any]) -> bool:
    """Return True if a comparison takes zeros for missing values."""
    if "split_index" not in node:
        return False
    children = (node["left_child"], node["right_child"])
    return node.get("missing_type") == "Zero" or any(_lightgbm_zero_is_missing(child) for child in children)


def _lightgbm_is_linear(node: dict[str, Any]) -> bool:
    """Return True if a leaf holds a function of features."""
    if "split_index" not in node:
        return bool(node.get("leaf_features"))
    return _lightgbm_is_linear(node["left_child"]) or _lightgbm_is_linear(node["right_child"])


def _linear_leaves(x: Array, entries: Any, trees: list[Tree], groups: int) -> Array:
    """Return sums of the leaves' linear functions; a leaf of which a feature is missing has its constant value."""
    width = x.sizes()[1]
    tables = []
    for entry, tree in zip(entries, trees, strict=True):
        rows = np.zeros((len(tree.values), 2 + 2 * int(width or 0)))
        rows[:, 0] = rows[:, 1] = tree.values
        for row, leaf in zip(rows, _leaves(entry["tree_structure"]), strict=True):
            if leaf.get("leaf_features"):
                row[1] = leaf["leaf_const"]
                row[2 + np.asarray(leaf["leaf_features"])] = leaf["leaf_coeff"]
                row[2 + int(width or 0) + np.asarray(leaf["leaf_features"])] = 1.0
        tables.append(replace(tree, values=rows))
    chosen = leaf_values(x, tables)
    is_missing, numbers = np.isnan(x), where(np.isnan(x), 0.0, x)
    weights, uses = chosen[:, :, 2 : 2 + int(width or 0)], chosen[:, :, 2 + int(width or 0) :]
    linear = (weights * numbers[:, None, :]).sum(2) + chosen[:, :, 1]
    lacks = np.greater((uses * is_missing[:, None, :].astype(np.float64)).sum(2), 0.0)
    by_tree = where(lacks, chosen[:, :, 0], linear)
    return concatenated([by_tree[:, group::groups].sum(1, keepdims=True) for group in range(groups)], axis=1)


def _leaves(structure: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the leaves in the order of :func:`_lightgbm_tree`."""
    result, pending = [], [structure]
    while pending:
        node = pending.pop()
        if "split_index" in node:
            pending += [node["right_child"], node["left_child"]]
        else:
            result.append(node)
    return result


_LIGHTGBM_ZERO = float(np.float32(1e-35))
"""The largest number that LightGBM takes for 0 (`kZeroThreshold`)."""


def _lightgbm_raw(estimator: Any, x: Any) -> tuple[Array, str, int]:
    """Return raw predictions [rows, groups], the objective, and the number of groups."""
    model = _lightgbm_model(estimator)
    groups = int(model["num_tree_per_iteration"])
    trees = [_lightgbm_tree(entry["tree_structure"]) for entry in model["tree_info"]]
    targets = [i % groups for i in range(len(trees))]
    features = coded_matrix(estimator, x)
    used = {int(f) for tree in trees for f in tree.features[tree.mode == MEMBER]}
    is_category = np.zeros(len(model["feature_names"]), bool)
    is_category[sorted(used)] = True
    if any(_lightgbm_zero_is_missing(entry["tree_structure"]) for entry in model["tree_info"]):
        # A category 0 is a category.
        is_missing = np.less_equal(np.absolute(features), _LIGHTGBM_ZERO) & ~is_category
        features = where(is_missing, np.nan, features)
    if used:
        # Categories are integers: the library truncates values, and NaN is in no set.
        features = where(is_category, np.sign(features) * np.floor(np.absolute(features)), features)
    if any(_lightgbm_is_linear(entry["tree_structure"]) for entry in model["tree_info"]):
        raw = _linear_leaves(features, model["tree_info"], trees, groups)
    else:
        raw = ensemble(features, trees, targets, groups)
    if model.get("average_output"):
        raw = raw / float(len(trees) // groups)
    return raw, str(model.get("objective", "")), groups


def _option(objective: str, name: str, default: float) -> float:
    for word in objective.split():
        key, _, value = word.partition(":")
        if key == name:
            return float(value)
    return default


def _answer(raw: Array, objective: str) -> Array:
    """Return raw predictions under the transformation of an objective of one number for each row."""
    name, *options = objective.split(" ")
    if name in ("poisson", "gamma", "tweedie"):
        return np.exp(raw)
    if "sqrt" in options:
        return np.sign(raw) * raw * raw
    if name == "binary":
        return sigmoid(raw * _option(objective, "sigmoid", 1.0))
    if name == "cross_entropy":
        return sigmoid(raw)
    if name == "cross_entropy_lambda":
        return np.log1p(np.exp(raw))
    return raw


@method("predict", "LGBMRegressor", "LGBMRanker")
def lightgbm_regression(estimator: Any, x: Any) -> Array:
    """Translate the sum of trees under the objective's transformation."""
    raw, objective, _ = _lightgbm_raw(estimator, x)
    return _answer(raw.ravel(), objective)


@method("predict_proba", "LGBMClassifier")
def lightgbm_proba(estimator: Any, x: Any) -> Array:
    """Translate class probabilities."""
    raw, objective, _ = _lightgbm_raw(estimator, x)
    name = objective.split(" ")[0]
    if name == "binary":
        return two_columns(sigmoid(raw * _option(objective, "sigmoid", 1.0)))
    if name == "multiclass":
        return softmax(raw)
    if name == "multiclassova":
        return sigmoid(raw * _option(objective, "sigmoid", 1.0))
    raise UnsupportedError(f"objective {objective} has no translation", where="LGBMClassifier")


@method("predict", "LGBMClassifier")
def lightgbm_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class."""
    return labels(estimator.classes_, lightgbm_proba(estimator, x).argmax(1))


@method("predict", "Booster")
def booster_prediction(estimator: Any, x: Any) -> Array:
    """Translate the predictions of a model of lightgbm without an estimator."""
    if type(estimator).__module__.partition(".")[0] != "lightgbm":
        raise UnsupportedError("a Booster of xgboost", where="xgboost", remedy="Give the estimator or the file.")
    raw, objective, groups = _lightgbm_raw(estimator, x)
    name = objective.split(" ")[0]
    if name == "multiclass":
        return softmax(raw)
    if name == "multiclassova":
        return sigmoid(raw * _option(objective, "sigmoid", 1.0))
    return _answer(raw.ravel() if groups == 1 else raw, objective)
