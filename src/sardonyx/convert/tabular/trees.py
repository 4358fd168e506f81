"""Trees and ensembles of trees as one ``TreeEnsemble`` node, with thresholds in float64.

Every tree gives the number of its leaf, and leaves are rows of a table: values of several outputs or classes cost one
pass over the trees. Trees of one output give the leaf's value at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from sardonyx.convert.tabular.arrays import Array
from sardonyx.convert.tabular.methods import labels, method, number_matrix
from sardonyx.errors import InvalidModelError

LESS_OR_EQUAL, LESS, GREATER_OR_EQUAL, GREATER, EQUAL, NOT_EQUAL, MEMBER = range(7)
"""Modes of nodes."""

SUM = 1
"""Aggregation of the leaves of a row."""


@dataclass
class Tree:
    """One binary tree; children below 0 are leaves.

    Attributes:
        features: Feature of each node.
        thresholds: Value that the feature is compared with.
        left: Child where the comparison holds, `~leaf` for a leaf.
        right: Child where the comparison fails, `~leaf` for a leaf.
        missing_left: True where NaN goes left.
        mode: Comparison of each node.
        members: For nodes of mode MEMBER, the values of the set.
        values: Values of leaves, [leaves] or [leaves, outputs].
    """

    features: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    missing_left: npt.NDArray[np.bool_]
    mode: npt.NDArray[np.uint8]
    values: npt.NDArray[np.float64]
    members: dict[int, list[float]] = field(default_factory=dict)


def tree_of(
    columns: Mapping[str, Sequence[Any]],
    mode: npt.NDArray[Any],
    values: Sequence[Any],
    members: dict[int, list[float]] | None = None,
) -> Tree:
    """Return the tree whose nodes are lists of one entry a node."""
    return Tree(
        np.array(columns["feature"], np.int64),
        np.array(columns["threshold"], np.float64),
        np.array(columns["left"], np.int64),
        np.array(columns["right"], np.int64),
        np.array(columns["missing"], bool),
        mode,
        np.array(values),
        members or {},
    )


def ensemble(x: Array, trees: Sequence[Tree], targets: Sequence[int], count: int) -> Array:
    """Return sums of the trees' leaf values, [rows, count].

    Args:
        x: Features as float64.
        trees: Trees with values [leaves].
        targets: Output to which each tree adds.
        count: Number of outputs.

    Raises:
        InvalidModelError: A tree is malformed.
    """
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "nodes_featureids",
            "nodes_truenodeids",
            "nodes_falsenodeids",
            "nodes_trueleafs",
            "nodes_falseleafs",
            "nodes_missing_value_tracks_true",
        )
    }
    splits, modes, weights, owners, roots, members = [], [], [], [], [], []
    node_base = leaf_base = 0
    for tree, target in zip(trees, targets, strict=True):
        tree = _with_a_node(tree)
        _require_valid(tree)
        roots.append(node_base)
        for name, child in (("true", tree.left), ("false", tree.right)):
            is_leaf = child < 0
            columns[f"nodes_{name}leafs"] += is_leaf.astype(int).tolist()
            columns[f"nodes_{name}nodeids"] += np.where(is_leaf, ~child + leaf_base, child + node_base).tolist()
        columns["nodes_featureids"] += tree.features.tolist()
        columns["nodes_missing_value_tracks_true"] += tree.missing_left.astype(int).tolist()
        splits.append(tree.thresholds)
        modes.append(tree.mode)
        for node in np.flatnonzero(tree.mode == MEMBER):
            members += [*tree.members[int(node)], np.nan]
        weights.append(np.asarray(tree.values, np.float64).reshape(-1))
        owners += [target] * len(weights[-1])
        node_base += len(tree.features)
        leaf_base += len(weights[-1])
    attributes: dict[str, Any] = dict(columns)
    if members:
        attributes["membership_values"] = ir.tensor(np.array(members, np.float64))
    return x.node(
        "TreeEnsemble",
        domain="ai.onnx.ml",
        tree_roots=roots,
        nodes_splits=ir.tensor(np.concatenate(splits).astype(np.float64)),
        nodes_modes=ir.tensor(np.concatenate(modes).astype(np.uint8)),
        leaf_weights=ir.tensor(np.concatenate(weights)),
        leaf_targetids=owners,
        n_targets=count,
        aggregate_function=SUM,
        **attributes,
    )


def leaf_values(x: Array, trees: Sequence[Tree]) -> Array:
    """Return the leaves' values of every tree, [rows, trees, outputs]."""
    numbered, base = [], 0
    for tree in trees:
        leaves = len(tree.values)
        numbered.append(_replaced_values(tree, np.arange(base, base + leaves, dtype=np.float64)))
        base += leaves
    index = ensemble(x, numbered, range(len(trees)), len(trees)).cast(np.int64)
    table = np.concatenate([np.asarray(tree.values, np.float64).reshape(len(tree.values), -1) for tree in trees])
    return x.constant(table, np.float64).rows(index)


def _replaced_values(tree: Tree, values: npt.NDArray[np.float64]) -> Tree:
    return Tree(
        tree.features, tree.thresholds, tree.left, tree.right, tree.missing_left, tree.mode, values, tree.members
    )


def _with_a_node(tree: Tree) -> Tree:
    """Return a tree of one leaf as a node whose branches both end in the leaf."""
    if len(tree.features):
        return tree
    zero = np.zeros(1, np.int64)
    return Tree(zero, np.zeros(1), zero - 1, zero - 1, zero > 1, np.zeros(1, np.uint8), tree.values)


def _require_valid(tree: Tree) -> None:
    count, leaves = len(tree.features), len(tree.values)
    children = np.concatenate([tree.left, tree.right])
    inner = children[children >= 0]
    if (~children[children < 0] >= leaves).any() or len(np.unique(inner)) != len(inner) or (inner >= count).any():
        raise InvalidModelError(
            f"a tree of {count} nodes and {leaves} leaves: a child is out of range or has two parents"
        )
    # Parents are stored ahead of children in every library; a child that is not is a cycle.
    parents = np.concatenate([np.arange(count), np.arange(count)])[children >= 0]
    if (inner <= parents).any():
        raise InvalidModelError("a tree whose child precedes its parent")


def scikit_tree(estimator: Any, values: npt.NDArray[np.float64] | None = None) -> Tree:
    """Return a tree of scikit-learn; `values` by node are by default those of the tree [nodes, outputs]."""
    inner = estimator.tree_
    is_leaf = inner.children_left < 0
    number = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    nodes = np.flatnonzero(~is_leaf)
    missing = getattr(inner, "missing_go_to_left", None)
    if values is None:
        values = inner.value.reshape(len(is_leaf), -1)
    return Tree(
        inner.feature[nodes].astype(np.int64),
        inner.threshold[nodes],
        number[inner.children_left[nodes]],
        number[inner.children_right[nodes]],
        np.zeros(len(nodes), bool) if missing is None else np.asarray(missing[nodes], bool),
        np.full(len(nodes), LESS_OR_EQUAL, np.uint8),
        np.asarray(values[is_leaf], np.float64),
    )


def single_precision(x: Any) -> Array:
    """Return features as scikit-learn's trees see them: rounded to float32."""
    return number_matrix(x).cast(np.float32).cast(np.float64)


def _class_counts(estimator: Any) -> list[int]:
    return [int(n) for n in np.atleast_1d(estimator.n_classes_)]


def _probabilities(estimator: Any, trees: Sequence[Any], x: Any) -> Any:
    """Return the mean over trees of class shares; a list of matrices for several outputs."""
    counts = _class_counts(estimator)
    widest = max(counts)
    shares = []
    for tree in trees:
        value = tree.tree_.value
        shares.append(scikit_tree(tree, (value / value.sum(axis=2, keepdims=True)).reshape(len(value), -1)))
    mean = leaf_values(single_precision(x), shares).mean(1)
    outputs = [mean.columns(list(range(i * widest, i * widest + n))) for i, n in enumerate(counts)]
    return outputs[0] if estimator.n_outputs_ == 1 else outputs


@method("predict_proba", "DecisionTreeClassifier")
def tree_proba(estimator: Any, x: Any) -> Any:
    """Translate class shares of the leaf."""
    return _probabilities(estimator, [estimator], x)


@method("predict_proba", "ForestClassifier")
def forest_proba(estimator: Any, x: Any) -> Any:
    """Translate the mean of the trees' class shares."""
    return _probabilities(estimator, estimator.estimators_, x)


@method("predict", "DecisionTreeClassifier", "ForestClassifier")
def tree_labels(estimator: Any, x: Any) -> Any:
    """Translate the most probable class of every output."""
    trees = getattr(estimator, "estimators_", [estimator])
    result = _probabilities(estimator, trees, x)
    if estimator.n_outputs_ == 1:
        return labels(estimator.classes_, result.argmax(1))
    from sardonyx.convert.tabular.arrays import concatenated

    pairs = zip(estimator.classes_, result, strict=True)
    return concatenated([labels(classes, part.argmax(1)).reshape(-1, 1) for classes, part in pairs], axis=1)


@method("predict", "DecisionTreeRegressor")
def tree_regression(estimator: Any, x: Any) -> Any:
    """Translate the leaf's value."""
    return _regression(estimator, [estimator], x)


@method("predict", "ForestRegressor")
def forest_regression(estimator: Any, x: Any) -> Any:
    """Translate the mean of the trees' values."""
    return _regression(estimator, estimator.estimators_, x)


def _regression(estimator: Any, trees: Sequence[Any], x: Any) -> Array:
    mean = leaf_values(single_precision(x), [scikit_tree(tree) for tree in trees]).mean(1)
    return mean.ravel() if estimator.n_outputs_ == 1 else mean
