"""Boosted trees of xgboost and catboost, and the model files of these and of lightgbm.

The libraries' text and JSON forms are read, never their pickles. xgboost compares and adds in float32, lightgbm in
float64: thresholds and inputs are rounded as each library rounds them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, sigmoid, softmax, where
from sardonyx.convert.tabular.catboost_categories import Splits
from sardonyx.convert.tabular.categories import coded_matrix
from sardonyx.convert.tabular.linear import two_columns
from sardonyx.convert.tabular.methods import labels, method, number_matrix
from sardonyx.convert.tabular.trees import LESS, LESS_OR_EQUAL, MEMBER, Tree, ensemble, tree_of
from sardonyx.errors import MissingDependencyError, ModelFileError, UnsupportedError


def model_from_file(path: Path) -> Any:
    """Return the model of xgboost, lightgbm or catboost in a file.

    Raises:
        ModelFileError: The file is of none of these libraries.
        MissingDependencyError: The library is not installed.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error}", where=str(path)) from error
    if head.startswith(b"tree\n") and b"version=" in head:
        return _loaded("lightgbm", lambda library: library.Booster(model_file=str(path)), path)
    if head.startswith(b"CBM1") or b'"oblivious_trees"' in head or b'"ctr_data"' in head:
        return _loaded("catboost", lambda library: _catboost(library, path), path)
    if head[:1] == b"{":
        return _loaded("xgboost", lambda library: _xgboost(library, path), path)
    raise ModelFileError("expected a model of xgboost, lightgbm or catboost", where=str(path))


def _loaded(name: str, load: Any, path: Path) -> Any:
    if importlib.util.find_spec(name) is None:
        raise MissingDependencyError(f"the model needs {name}", where=str(path), remedy=f"pip install {name}")
    try:
        return load(importlib.import_module(name))
    except Exception as error:
        raise ModelFileError(f"{name} cannot read the file: {str(error)[:200]}", where=str(path)) from error


def _xgboost(library: Any, path: Path) -> Any:
    booster = library.Booster()
    booster.load_model(str(path))
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    kind = library.XGBClassifier if objective.startswith(("binary:", "multi:")) else library.XGBRegressor
    estimator = kind()
    estimator.load_model(str(path))
    return estimator


def _catboost(library: Any, path: Path) -> Any:
    model = library.CatBoost()
    model.load_model(str(path), format="json" if path.suffix.lower() == ".json" else "cbm")
    return model


# xgboost


def _xgboost_learner(estimator: Any) -> tuple[dict[str, Any], int]:
    """Return the learner of a booster as JSON, and the number of iterations that predictions use."""
    booster = estimator.get_booster() if hasattr(estimator, "get_booster") else estimator
    learner = json.loads(booster.save_raw("json"))["learner"]
    best = getattr(estimator, "best_iteration", None) if _has_best(estimator) else None
    return learner, (best + 1 if best is not None else 0)


def _has_best(estimator: Any) -> bool:
    try:
        return getattr(estimator, "best_iteration", None) is not None
    except AttributeError:
        return False


def _xgboost_tree(tree: dict[str, Any], weight: float) -> Tree:
    left, right = np.asarray(tree["left_children"]), np.asarray(tree["right_children"])
    is_leaf = left < 0
    number = np.where(is_leaf, np.negative(np.cumsum(is_leaf)), np.cumsum(~is_leaf) - 1)
    inner = np.flatnonzero(~is_leaf)
    conditions = np.asarray(tree["split_conditions"], np.float32)
    is_set = np.asarray(tree.get("split_type", np.zeros(len(left))), int)[inner] == 1
    members: dict[int, list[float]] = {}
    starts = {
        int(n): (int(s), int(k))
        for n, s, k in zip(
            tree.get("categories_nodes", ()),
            tree.get("categories_segments", ()),
            tree.get("categories_sizes", ()),
            strict=True,
        )
    }
    for i in np.flatnonzero(is_set):
        start, size = starts[int(inner[i])]
        members[int(i)] = [float(c) for c in tree["categories"][start : start + size]] or [-1.0]
    default_left = np.asarray(tree["default_left"], bool)[inner]
    go_left, go_right = number[left[inner]], number[right[inner]]
    # A category in the set goes right; membership is the true branch here.
    return Tree(
        np.asarray(tree["split_indices"], np.int64)[inner],
        np.where(is_set, 0.0, conditions[inner].astype(np.float64)),
        np.where(is_set, go_right, go_left),
        np.where(is_set, go_left, go_right),
        default_left ^ is_set,
        np.where(is_set, MEMBER, LESS).astype(np.uint8),
        _xgboost_leaves(tree, is_leaf) * weight,
        members,
    )


def _xgboost_leaves(tree: dict[str, Any], is_leaf: Any) -> Any:
    """Return the values of leaves in the order of nodes, [leaves] or [leaves, outputs]."""
    outputs = int(tree["tree_param"].get("size_leaf_vector", 1))
    if outputs <= 1:
        return np.asarray(tree["split_conditions"], np.float32)[is_leaf].astype(np.float64)
    if "leaf_weights" not in tree:
        raise UnsupportedError("trees with several outputs in the form of xgboost 2", where="xgboost")
    # The right child of a leaf is the leaf's row.
    rows = np.asarray(tree["right_children"], np.int64)[is_leaf]
    return np.asarray(tree["leaf_weights"], np.float32).reshape(-1, outputs)[rows].astype(np.float64)


def _xgboost_margin(estimator: Any, x: Any) -> tuple[Array, str, dict[str, Any]]:
    """Return raw predictions [rows, groups], the objective's name, and the learner."""
    learner, rounds = _xgboost_learner(estimator)
    booster = learner["gradient_booster"]
    weights: list[float] | None = None
    if "gbtree" in booster:
        weights = [float(w) for w in booster["weight_drop"]]
        booster = booster["gbtree"]
    if "model" not in booster or "trees" not in booster["model"]:
        return _xgboost_linear(booster, learner, x), learner["objective"]["name"], learner
    model = booster["model"]
    parameters = learner["learner_model_param"]
    groups = max(int(parameters["num_class"]), int(parameters.get("num_target", 1)), 1)
    trees, targets = [], []
    limit = len(model["trees"])
    pointer = model.get("iteration_indptr")
    if rounds and pointer:
        limit = int(pointer[min(rounds, len(pointer) - 1)])
    for i, (tree, group) in enumerate(zip(model["trees"], model["tree_info"], strict=True)):
        if i < limit:
            whole = _xgboost_tree(tree, 1.0 if weights is None else weights[i])
            if whole.values.ndim == 1:
                trees.append(whole)
                targets.append(int(group))
            else:
                trees += [replace(whole, values=whole.values[:, target]) for target in range(groups)]
                targets += range(groups)
    features = coded_matrix(estimator, x).cast(np.float32).cast(np.float64)
    missing = getattr(estimator, "missing", np.nan)
    if missing is not None and not np.isnan(missing):
        features = where(np.equal(features, float(np.float32(missing))), np.nan, features)
    margin = ensemble(features, trees, targets, groups)
    objective = learner["objective"]["name"]
    return margin + _base_margin(parameters["base_score"], objective), objective, learner


def _xgboost_linear(booster: dict[str, Any], learner: dict[str, Any], x: Any) -> Array:
    parameters = learner["learner_model_param"]
    groups = max(int(parameters["num_class"]), 1)
    weights = np.asarray(booster["model"]["weights"], np.float64).reshape(-1, groups)
    base = _base_margin(parameters["base_score"], learner["objective"]["name"])
    features = number_matrix(x)
    # A linear booster leaves missing values out.
    return where(np.isnan(features), 0.0, features) @ weights[:-1] + (weights[-1] + base)


def _base_margin(text: str, objective: str) -> Any:
    base = np.asarray(json.loads(text) if text.startswith("[") else [float(text)], np.float64)
    if objective in ("binary:logistic", "reg:logistic"):
        return np.log(base / (1 - base))
    if objective.startswith(("count:", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")):
        return np.log(base)
    return base


@method("predict", "XGBRegressor", "XGBRFRegressor", "XGBRanker")
def xgboost_regression(estimator: Any, x: Any) -> Array:
    """Translate the sum of trees under the objective's transformation."""
    margin, objective, _ = _xgboost_margin(estimator, x)
    if objective in ("reg:logistic", "binary:logistic"):
        margin = sigmoid(margin)
    elif objective.startswith(("count:", "reg:gamma", "reg:tweedie", "survival:")):
        margin = np.exp(margin)
    elif not objective.startswith(("reg:", "rank:", "binary:logitraw")):
        raise UnsupportedError(f"objective {objective} has no translation", where="XGBRegressor")
    result = margin.cast(np.float32)
    return result if _targets(estimator) > 1 else result.ravel()


def _targets(estimator: Any) -> int:
    learner, _ = _xgboost_learner(estimator)
    return int(learner["learner_model_param"].get("num_target", 1))


def _xgboost_proba(estimator: Any, x: Any) -> Array:
    margin, objective, _ = _xgboost_margin(estimator, x)
    if objective.startswith("multi:"):
        return softmax(margin)
    if _targets(estimator) > 1:
        return sigmoid(margin)
    if objective in ("binary:logistic", "reg:logistic"):
        return two_columns(sigmoid(margin))
    if objective == "binary:logitraw":
        return two_columns(margin)
    if objective == "binary:hinge":
        return two_columns(np.greater(margin, 0.0).cast(np.float64))
    raise UnsupportedError(f"probabilities of objective {objective}", where="XGBClassifier")


@method("predict_proba", "XGBClassifier", "XGBRFClassifier")
def xgboost_proba(estimator: Any, x: Any) -> Array:
    """Translate class probabilities, in float32 as the library gives them."""
    return _xgboost_proba(estimator, x).cast(np.float32)


@method("predict", "XGBClassifier", "XGBRFClassifier")
def xgboost_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class; several outputs are 0 or 1 each, in the type that the library gives."""
    share = _xgboost_proba(estimator, x)
    if _targets(estimator) > 1:
        row = np.zeros((1, int(_xgboost_learner(estimator)[0]["learner_model_param"]["num_feature"])))
        return (share > 0.5).cast(np.asarray(estimator.predict(row)).dtype)
    classes = np.asarray(estimator.classes_)
    if len(classes) == 2:
        return labels(classes, (share.columns(1) > 0.5).cast(np.int64))
    result = labels(classes, share.argmax(1))
    # The objective gives the class itself, which the library has in 32 bits.
    return result.cast(np.int32) if estimator.objective == "multi:softmax" else result


# catboost


def _catboost_model(estimator: Any) -> dict[str, Any]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sardonyx-catboost-") as folder:
        path = Path(folder) / "model.json"
        try:
            estimator.save_model(str(path), format="json")
        except Exception as error:  # catboost raises a class of its native module.
            raise UnsupportedError(
                f"catboost does not write the model's trees: {str(error).rpartition(': ')[2][:200]}",
                where=type(estimator).__name__,
                remedy="Use CountVectorizer or TfidfVectorizer for texts, ahead of the model.",
            ) from error
        result: dict[str, Any] = json.loads(path.read_text())
        return result


def _catboost_raw(estimator: Any, x: Any) -> Array:
    """Return raw predictions [rows, outputs]; a leaf's number in a symmetric tree is its conditions' bits."""
    model = _catboost_model(estimator)
    splits = Splits(model, x, type(estimator).__name__)
    scale, bias = model["scale_and_bias"]
    bias = np.asarray(bias, np.float64).reshape(-1)
    total: Any = None
    features = splits.features
    if "trees" in model:
        parts = [_catboost_tree(tree, splits) for tree in model["trees"]]
        count = parts[0].values.shape[1]
        trees = [replace(tree, values=tree.values[:, target]) for tree in parts for target in range(count)]
        raw = ensemble(features.cast(np.float64), trees, list(range(count)) * len(parts), count)
        return raw * float(scale) + bias
    for tree in model["oblivious_trees"]:
        outputs = len(tree["leaf_values"]) // len(tree["leaf_weights"] or [1] * (1 << len(tree["splits"] or [])))
        table = np.asarray(tree["leaf_values"], np.float64).reshape(-1, outputs)
        conditions = [splits.locate(split) for split in tree["splits"] or []]
        if not conditions:
            part = np.zeros_like(features.columns([0]), np.float64) + table[0]
        else:
            columns = features.columns([position for position, _, _ in conditions])
            bits = columns > np.array([border for _, border, _ in conditions], np.float32)
            treatment = np.array([holds for _, _, holds in conditions])
            bits = bits | (np.isnan(columns) & treatment) if treatment.any() else bits
            number = (bits.cast(np.int64) * (1 << np.arange(len(conditions), dtype=np.int64))).sum(1)
            part = number.constant(table, np.float64).rows(number)
        total = part if total is None else total + part
    return total * float(scale) + bias


def _catboost_tree(root: dict[str, Any], splits: Splits) -> Tree:
    """Return a tree of any shape; a feature above its border goes right."""
    columns: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "missing")}
    values: list[list[float]] = []
    pending: list[tuple[dict[str, Any], int, str]] = [(root, -1, "")]
    while pending:
        node, parent, side = pending.pop()
        if "split" in node:
            target = len(columns["feature"])
            position, border, holds_for_missing = splits.locate(node["split"])
            columns["feature"].append(position)
            columns["threshold"].append(float(np.float32(border)))
            columns["missing"].append(not holds_for_missing)
            columns["left"].append(0)
            columns["right"].append(0)
            pending += [(node["right"], target, "right"), (node["left"], target, "left")]
        else:
            values.append(np.atleast_1d(np.asarray(node["value"], np.float64)).tolist())
            target = ~(len(values) - 1)
        if parent >= 0:
            columns[side][parent] = target
    return tree_of(columns, np.full(len(columns["feature"]), LESS_OR_EQUAL, np.uint8), values)


def _loss(estimator: Any) -> str:
    parameters = estimator.get_all_params() if hasattr(estimator, "get_all_params") else {}
    return str(parameters.get("loss_function", "RMSE")).partition(":")[0]


@method("predict", "CatBoostRegressor", "CatBoost")
def catboost_regression(estimator: Any, x: Any) -> Array:
    """Translate the sum of trees; counts are exponentials."""
    raw, loss = _catboost_raw(estimator, x), _loss(estimator)
    if type(estimator).__name__ == "CatBoostRegressor" and loss in ("Poisson", "Tweedie"):
        raw = np.exp(raw)
    if type(estimator).__name__ == "CatBoostRegressor" and loss == "RMSEWithUncertainty":
        # The second output is the logarithm of the standard deviation, the prediction is the variance.
        return concatenated([raw.columns([0]), np.exp(raw.columns([1]) * 2.0)], axis=1)
    return raw.ravel() if len(_catboost_bias(estimator)) == 1 else raw


def _catboost_bias(estimator: Any) -> Any:
    return np.asarray(_catboost_model(estimator)["scale_and_bias"][1]).reshape(-1)


_LOSSES_OF_MARKS = ("MultiLogloss", "MultiCrossEntropy")
"""Losses of several outputs, each 0 or 1."""


@method("predict_proba", "CatBoostClassifier")
def catboost_proba(estimator: Any, x: Any) -> Array:
    """Translate class probabilities."""
    raw = _catboost_raw(estimator, x)
    if _loss(estimator) in _LOSSES_OF_MARKS:
        return sigmoid(raw)
    if len(estimator.classes_) == 2:
        return two_columns(sigmoid(raw))
    return softmax(raw) if _loss(estimator) == "MultiClass" else sigmoid(raw)


@method("predict", "CatBoostClassifier")
def catboost_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable class; several classes come as a column, several marks are 0 or 1 each."""
    if _loss(estimator) in _LOSSES_OF_MARKS:
        return np.greater(_catboost_raw(estimator, x), 0.0).cast(np.int64)
    result = labels(estimator.classes_, catboost_proba(estimator, x).argmax(1))
    return result.reshape(-1, 1) if len(estimator.classes_) > 2 else result
