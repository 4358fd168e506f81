"""Tree ensembles: all trees step down together, then the weights of the leaves reached are summed.

Facts about nodes are arrays (:mod:`.tree_tables`), and no Python loop visits each node.

Source: ONNX-ML, *TreeEnsemble*, *TreeEnsembleRegressor*, *TreeEnsembleClassifier*. The label and the two scores of a
binary classifier with one score follow ONNX Runtime: the standard leaves them open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.definitions.ml.labels import class_labels
from sardonyx.ops.definitions.ml.post_transforms import NAMES, apply_post_transform, expand_binary_score
from sardonyx.ops.definitions.ml.tree_tables import (
    MEMBER,
    MODES,
    Trees,
    codes,
    columns_of,
    count_table,
    depth_of,
    elements,
    ids,
    leaf_table,
    numbers,
    require_one_length,
    require_targets,
    set_tables,
    trees_by_id,
    trees_by_position,
)
from sardonyx.ops.registry import operator

DOMAIN = "ai.onnx.ml"
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


class Tables(NamedTuple):
    """Tables of an ensemble as tensors, one entry per node but for ``roots`` and ``members``.

    The fields are those of :class:`Trees`.

    ``members`` has a row for every ``BRANCH_MEMBER`` node, padded with NaN; ``sets`` is the row of a node, and has one
    entry if no such node exists.
    """

    roots: Tensor
    features: Tensor
    splits: Tensor
    modes: Tensor
    yes: Tensor
    no: Tensor
    missing: Tensor
    weights: Tensor
    sets: Tensor
    members: Tensor


def scores(x: Tensor, trees: Trees, targets: int, aggregate: str, dtype: DType) -> Tensor:
    """Return the aggregated weights [N, targets].

    A sum is a call of a function named ``tree_sum`` of the rows and :class:`Tables`, which the compiler recognizes.

    Raises:
        InvalidModelError: The trees are invalid: a missing child or target, or a cycle.
    """
    x = L.of_rank(x, 2, "the rows")
    steps = depth_of(trees)
    table = L.constant(leaf_table(trees, targets), dtype)
    sets, members = set_tables(trees)
    tables = Tables(
        roots=L.constant(trees.roots, t.INT64),
        features=L.constant(trees.features, t.INT64),
        splits=L.constant(trees.splits, x.dtype),
        modes=L.constant(trees.modes, t.INT64),
        yes=L.constant(trees.yes, t.INT64),
        no=L.constant(trees.no, t.INT64),
        missing=L.constant(trees.missing, t.BOOL),
        weights=table,
        sets=L.constant(sets, t.INT64),
        members=L.constant(members, x.dtype),
    )
    if aggregate in ("MIN", "MAX"):
        return _extreme(
            _leaves(x, trees, tables, steps),
            table,
            L.constant(count_table(trees, targets), t.INT32),
            aggregate == "MIN",
        )

    def sum_trees(x: Tensor, *tables: Tensor) -> list[Tensor]:
        columns = Tables(*tables)
        leaves = _leaves(x, trees, columns, steps)

        def tree(i: Tensor, total: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
            return None, [total + L.take(columns.weights, L.take(leaves, i, 1), 0)], []

        start = L.full((x.shape[0], targets), 0, dtype)
        (total,), _ = L.loop(L.constant(len(trees.roots), t.INT64), None, [start], tree)
        return [total]

    (total,) = L.call("tree_sum", sum_trees, [x, *tables])
    assert isinstance(total, Tensor)
    return total / len(trees.roots) if aggregate == "AVERAGE" else total


def _extreme(at: Tensor, table: Tensor, counts: Tensor, least: bool) -> Tensor:
    """Return the minimum or maximum of the weights of each target; 0 for a target without weights."""

    def tree(i: Tensor, best: Tensor, count: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        leaf = L.take(at, i, 1)
        weight, present = L.take(table, leaf, 0), L.take(counts, leaf, 0)
        extreme = (L.minimum if least else L.maximum)(best, weight)
        return None, [L.where(present > 0, extreme, best), count + present], []

    shape = (at.shape[0], table.shape[1])
    start = L.full(shape, L.constant(math.inf if least else -math.inf, table.dtype), table.dtype)
    (best, count), _ = L.loop(L.size_tensor([at.shape[1]], ()), None, [start, L.full(shape, 0, t.INT32)], tree)
    return L.where(count > 0, best, 0)


def _leaves(x: Tensor, trees: Trees, tables: Tables, steps: int) -> Tensor:
    """Return the leaf that every row reaches in every tree, [N, trees]."""

    def step(i: Tensor, node: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        value = L.gather_elements(x, L.take(tables.features, node, 0), 1)
        split, mode = L.take(tables.splits, node, 0), L.take(tables.modes, node, 0)
        goes_yes = L.is_nan(value) & L.take(tables.missing, node, 0)
        for code in codes(trees):
            is_true = _is_member(value, node, tables) if code == MEMBER else _compare(code, value, split)
            goes_yes = goes_yes | (L.equal(mode, code) & is_true)
        return None, [L.where(goes_yes, L.take(tables.yes, node, 0), L.take(tables.no, node, 0))], []

    start = L.broadcast_to(tables.roots, (x.shape[0], len(trees.roots)))
    final, _ = L.loop(L.constant(steps, t.INT64), None, [start], step)
    leaves: Tensor = final[0]
    return leaves


def _compare(code: int, value: Tensor, split: Tensor) -> Tensor:
    match MODES[code]:
        case "BRANCH_LEQ":
            return value <= split
        case "BRANCH_LT":
            return value < split
        case "BRANCH_GTE":
            return value >= split
        case "BRANCH_GT":
            return value > split
        case "BRANCH_EQ":
            return L.equal(value, split)
    return L.not_equal(value, split)


def _is_member(value: Tensor, node: Tensor, tables: Tables) -> Tensor:
    members = L.take(tables.members, L.take(tables.sets, node, 0), 0)
    return L.any_of(L.equal(L.unsqueeze(value, [-1]), members), [-1])


# The encoding of versions 1 and 3.


def _features(x: Tensor) -> Tensor:
    """Return rows of features as floating-point numbers."""
    rows = x if x.rank > 1 else L.unsqueeze(x, [0])
    return rows if t.is_float(rows.dtype) else L.cast(rows, t.FLOAT)


@operator("TreeEnsembleRegressor", since=1, domain=DOMAIN)
def tree_ensemble_regressor(
    x: Tensor,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] = (),
    base_values_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    nodes_treeids: Sequence[int] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Tensor | None = None,
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_modes: Sequence[str] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_missing_value_tracks_true: Sequence[int] = (),
    post_transform: str = "NONE",
    target_treeids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_ids: Sequence[int] = (),
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: Tensor | None = None,
) -> Tensor:
    rows = _features(x)
    values = numbers(target_weights, target_weights_as_tensor)
    require_one_length(
        target_treeids=target_treeids, target_nodeids=target_nodeids, target_ids=target_ids, target_weights=values
    )
    weights = ids(target_treeids), ids(target_nodeids), ids(target_ids), values
    require_targets(weights[2], n_targets)
    columns = columns_of(
        nodes_treeids, nodes_nodeids, nodes_featureids, numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, trees_by_id(columns), n_targets, _aggregate(aggregate_function), rows.dtype)
    base = numbers(base_values, base_values_as_tensor)
    total = total + L.constant(base, rows.dtype) if base.size else total
    return apply_post_transform(L.cast(total, t.FLOAT), post_transform)


def _aggregate(name: str) -> str:
    if name not in AGGREGATES:
        raise InvalidModelError(f"unknown aggregate_function {name!r}.", remedy=f"Use one of {', '.join(AGGREGATES)}.")
    return name


@operator("TreeEnsembleClassifier", since=1, domain=DOMAIN)
def tree_ensemble_classifier(
    x: Tensor,
    *,
    base_values: Sequence[float] = (),
    base_values_as_tensor: Tensor | None = None,
    class_treeids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_ids: Sequence[int] = (),
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Tensor | None = None,
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_modes: Sequence[str] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_missing_value_tracks_true: Sequence[int] = (),
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    rows, labels = _features(x), class_labels(classlabels_int64s, classlabels_strings)
    classes = len(classlabels_int64s) or len(classlabels_strings)
    values = numbers(class_weights, class_weights_as_tensor)
    require_one_length(
        class_treeids=class_treeids, class_nodeids=class_nodeids, class_ids=class_ids, class_weights=values
    )
    weights = ids(class_treeids), ids(class_nodeids), ids(class_ids), values
    require_targets(weights[2], classes)
    columns = columns_of(
        nodes_treeids, nodes_nodeids, nodes_featureids, numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, trees_by_id(columns), classes, "SUM", rows.dtype)
    base = numbers(base_values, base_values_as_tensor)
    used = sorted({*class_ids})
    if classes == 2 and len(used) == 1:
        one = L.slice_(total, 1, used[0], used[0] + 1)
        one = one + L.constant(base[-1], rows.dtype) if base.size else one
        positive = bool((values >= 0).all() and (base >= 0).all())
        chosen = L.cast(L.squeeze(one, [1]) > (0.5 if positive else 0), t.INT64)
        both = expand_binary_score(L.cast(one, t.FLOAT), post_transform, probability=positive)
        return L.take(labels, chosen, 0), both
    total = total + L.constant(base, rows.dtype) if base.size else total
    return L.take(labels, L.argmax(total, -1), 0), apply_post_transform(L.cast(total, t.FLOAT), post_transform)


# The encoding of version 5.


@operator("TreeEnsemble", since=5, domain=DOMAIN)
def tree_ensemble(
    x: Tensor,
    *,
    tree_roots: Sequence[int],
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_featureids: Sequence[int],
    nodes_truenodeids: Sequence[int],
    nodes_trueleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_falseleafs: Sequence[int],
    leaf_targetids: Sequence[int],
    leaf_weights: Tensor,
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    membership_values: Tensor | None = None,
    n_targets: int = 1,
    aggregate_function: int = 1,
    post_transform: int = 0,
) -> Tensor:
    if not 0 <= aggregate_function < len(AGGREGATES) or not 0 <= post_transform < len(NAMES):
        raise InvalidModelError(f"unknown aggregate_function {aggregate_function} or post_transform {post_transform}.")
    trees = trees_by_position(
        tree_roots, elements(nodes_modes), elements(nodes_splits), nodes_featureids, nodes_truenodeids,
        nodes_trueleafs, nodes_falsenodeids, nodes_falseleafs, nodes_missing_value_tracks_true, leaf_targetids,
        elements(leaf_weights), () if membership_values is None else elements(membership_values).tolist(),
        n_targets,
    )  # fmt: skip
    total = scores(x, trees, n_targets, AGGREGATES[aggregate_function], x.dtype)
    return apply_post_transform(total, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[post_transform])
