"""Tree ensembles: all trees step down together, then the weights of the leaves reached are summed.

An ensemble has a million nodes as easily as ten, so what is told of nodes are arrays, and nothing goes node by node.

Source: ONNX-ML, *TreeEnsemble*, *TreeEnsembleRegressor*, *TreeEnsembleClassifier*. How one score of two classes becomes
a label and two scores is as ONNX Runtime has it: the standard leaves it open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.language import Tensor
from sardonyx.core.types import DType
from sardonyx.errors import InvalidModelError
from sardonyx.ops.definitions.ml.labels import class_labels
from sardonyx.ops.definitions.ml.post_transforms import NAMES, both_classes, transformed
from sardonyx.ops.registry import operator

DOMAIN = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEAF, MEMBER = MODES.index("LEAF"), MODES.index("BRANCH_MEMBER")
_CODES = {name: code for code, name in enumerate(MODES) if code != MEMBER}
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


class Trees(NamedTuple):
    """An ensemble as tables over nodes; a leaf is its own child.

    Attributes:
        roots: The first node of every tree; int64.
        features: Which feature a node looks at; int64.
        splits: What it compares the feature with; float64.
        modes: How, an index into ``MODES``; int64.
        yes: The node where the comparison holds; int64.
        no: The node where it does not; int64.
        missing: Whether a missing feature counts as holding; bool.
        weights: Any number a leaf.
        members: The set of every ``BRANCH_MEMBER`` node, by node.
    """

    roots: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: Weights
    members: dict[int, list[float]]


class Weights(NamedTuple):
    """What leaves give: an entry a weight.

    Attributes:
        nodes: The leaf; int64.
        targets: What it gives to; int64.
        values: How much; float64.
    """

    nodes: np.ndarray
    targets: np.ndarray
    values: np.ndarray


class Tables(NamedTuple):
    """The tables of an ensemble as tensors: one entry a node, but for ``roots`` and ``members``; see :class:`Trees`.

    ``members`` has a row for every ``BRANCH_MEMBER`` node, filled up with NaN; ``sets`` is the row of a node, and has
    one entry where there are no such nodes.
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
    """The aggregated weights [N, targets].

    A sum is a function by the name of ``tree_sum``, of the rows and :class:`Tables`.

    Raises:
        InvalidModelError: The trees are none: a child or a target that does not exist, a cycle.
    """
    steps = _depth(trees)
    table = _leaf_table(trees, targets, dtype)
    sets, members = _set_tables(trees)
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
        return _extreme(_leaves(x, trees, tables, steps), table, _given(trees, targets), aggregate == "MIN")

    def summed(x: Tensor, *tables: Tensor) -> list[Tensor]:
        columns = Tables(*tables)
        at = _leaves(x, trees, columns, steps)

        def tree(i: Tensor, total: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
            return None, [total + L.take(columns.weights, L.take(at, i, 1), 0)], []

        start = L.full((x.shape[0], targets), 0, dtype)
        (total,), _ = L.loop(L.constant(len(trees.roots), t.INT64), None, [start], tree)
        return [total]

    (total,) = L.call("tree_sum", summed, [x, *tables])
    assert isinstance(total, Tensor)
    return total / len(trees.roots) if aggregate == "AVERAGE" else total


def _extreme(at: Tensor, table: Tensor, given: Tensor, least: bool) -> Tensor:
    """The least or the greatest of the weights given to each target; 0 where none is."""

    def tree(i: Tensor, best: Tensor, count: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        leaf = L.take(at, i, 1)
        weight, there = L.take(table, leaf, 0), L.take(given, leaf, 0)
        joined = (L.minimum if least else L.maximum)(best, weight)
        return None, [L.where(there > 0, joined, best), count + there], []

    shape = (at.shape[0], table.shape[1])
    start = L.full(shape, L.constant(math.inf if least else -math.inf, table.dtype), table.dtype)
    (best, count), _ = L.loop(L.size_tensor([at.shape[1]], ()), None, [start, L.full(shape, 0, t.INT32)], tree)
    return L.where(count > 0, best, 0)


def _leaves(x: Tensor, trees: Trees, tables: Tables, steps: int) -> Tensor:
    """The leaf that every row reaches in every tree, [N, trees]."""

    def step(i: Tensor, node: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        value = L.gather_elements(x, L.take(tables.features, node, 0), 1)
        split, mode = L.take(tables.splits, node, 0), L.take(tables.modes, node, 0)
        holds = L.is_nan(value) & L.take(tables.missing, node, 0)
        for code in sorted({*np.unique(trees.modes).tolist()} - {LEAF}):
            found = _member(value, node, tables) if code == MEMBER else _compared(code, value, split)
            holds = holds | (L.equal(mode, code) & found)
        return None, [L.where(holds, L.take(tables.yes, node, 0), L.take(tables.no, node, 0))], []

    start = L.broadcast_to(tables.roots, (x.shape[0], len(trees.roots)))
    final, _ = L.loop(L.constant(steps, t.INT64), None, [start], step)
    at: Tensor = final[0]
    return at


def _compared(code: int, value: Tensor, split: Tensor) -> Tensor:
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


def _member(value: Tensor, node: Tensor, tables: Tables) -> Tensor:
    members = L.take(tables.members, L.take(tables.sets, node, 0), 0)
    return L.any_of(L.equal(L.unsqueeze(value, [-1]), members), [-1])


def _set_tables(trees: Trees) -> tuple[np.ndarray, np.ndarray]:
    """The row of every node, and the sets as rows of one length."""
    if not trees.members:
        return np.zeros(1, np.int64), np.full((1, 1), np.nan)
    longest = max(1, *map(len, trees.members.values()))
    rows = np.zeros(len(trees.modes), np.int64)
    rows[list(trees.members)] = np.arange(len(trees.members))
    return rows, np.array([[*members, *[math.nan] * (longest - len(members))] for members in trees.members.values()])


def _leaf_table(trees: Trees, targets: int, dtype: DType) -> Tensor:
    """The weights of every node, [nodes, targets]."""
    table = np.zeros((len(trees.modes), targets))
    np.add.at(table, (trees.weights.nodes, trees.weights.targets), trees.weights.values)
    return L.constant(table, dtype)


def _given(trees: Trees, targets: int) -> Tensor:
    """How many weights every node has, [nodes, targets]."""
    given = np.zeros((len(trees.modes), targets), np.int32)
    np.add.at(given, (trees.weights.nodes, trees.weights.targets), 1)
    return L.constant(given, t.INT32)


def _depth(trees: Trees) -> int:
    """The most steps from a root to a leaf, after checking that every path ends."""
    least = int(trees.features.min(initial=0))
    if least < 0:
        raise InvalidModelError(f"a node looks at the feature {least}, which is not there.")
    depth, level = 0, _nodes(trees.roots, trees, "a tree")
    reached = np.zeros(len(trees.modes), bool)
    while True:
        reached[level] = True
        inner = level[trees.modes[level] != LEAF]
        if not inner.size:
            break
        level = _nodes(np.concatenate([trees.yes[inner], trees.no[inner]]), trees, "a node")
        depth += 1
        if depth > len(trees.modes):
            raise InvalidModelError("a path through a tree does not end: nodes form a cycle.")
    lost = np.flatnonzero((trees.modes != LEAF) & ~reached)
    if lost.size:
        raise InvalidModelError(f"no root leads to node number {lost[0]}: nodes form a cycle, or a tree has two roots.")
    return depth


def _nodes(led_to: np.ndarray, trees: Trees, what: str) -> np.ndarray:
    """The nodes that something leads to, each once."""
    nodes = np.unique(led_to)
    for node in (nodes[:1], nodes[-1:]):
        if node.size and not 0 <= node[0] < len(trees.modes):
            raise InvalidModelError(f"{what} leads to the node {node[0]}, which is not there.")
    return nodes


# The encoding of versions 1 and 3.


class _Columns(NamedTuple):
    """Nodes as these versions have them, by tree and a number in it, and (tree, node, target, weight) of leaves."""

    treeids: np.ndarray
    nodeids: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _columns(
    treeids: Sequence[int], nodeids: Sequence[int], features: Sequence[int], splits: np.ndarray, modes: Sequence[str],
    yes: Sequence[int], no: Sequence[int], missing: Sequence[int],
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> _Columns:  # fmt: skip
    _require_one_length(
        nodes_treeids=treeids, nodes_nodeids=nodeids, nodes_featureids=features, nodes_values=splits,
        nodes_modes=modes, nodes_truenodeids=yes, nodes_falsenodeids=no,
        nodes_missing_value_tracks_true=missing or treeids,
    )  # fmt: skip
    codes = np.array([_CODES.get(mode, -1) for mode in modes], np.int64)
    if (codes < 0).any():
        raise InvalidModelError(f"there is no node mode {modes[int(codes.argmin())]!r}.")
    trees, nodes, looks, trues, falses = map(_ids, (treeids, nodeids, features, yes, no))
    holds = _ids(missing).astype(bool) if missing else np.zeros(len(trees), bool)
    return _Columns(trees, nodes, looks, splits, codes, trues, falses, holds, weights)


def _ids(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


class _Index:
    """Finds nodes by tree and number."""

    def __init__(self, treeids: np.ndarray, nodeids: np.ndarray) -> None:
        self._trees, self._nodes = np.unique(treeids), np.unique(nodeids)
        keys = self._keys(treeids, nodeids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        if (np.diff(self._sorted) == 0).any():
            raise InvalidModelError("two nodes of a tree have one id.")

    def __call__(self, treeids: np.ndarray, nodeids: np.ndarray) -> np.ndarray:
        """The places of nodes in the columns; -1 where there is none."""
        if not self._sorted.size:
            return np.full(len(treeids), -1, np.int64)
        keys = self._keys(treeids, nodeids)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[at] == keys, self._order[at], -1)

    def _keys(self, treeids: np.ndarray, nodeids: np.ndarray) -> np.ndarray:
        """One number for tree and node; -1 where no node has such a tree or number."""
        ranks = []
        for known, ids in ((self._trees, treeids), (self._nodes, nodeids)):
            rank = np.searchsorted(known, ids)
            found = known[np.minimum(rank, len(known) - 1)] == ids if known.size else np.zeros(len(ids), bool)
            ranks.append(np.where(found, rank, -1))
        tree, node = ranks
        return np.where((tree < 0) | (node < 0), -1, tree * len(self._nodes) + node)


def _trees_by_id(given: _Columns) -> Trees:
    """Trees whose nodes are named by tree and number."""
    index, inner = _Index(given.treeids, given.nodeids), given.modes != LEAF
    own = np.arange(len(inner))
    children = []
    for nodes in (given.yes, given.no):
        found = np.where(inner, index(given.treeids, nodes), own)
        if (found < 0).any():
            i = int(found.argmin())
            raise InvalidModelError(
                f"node {given.nodeids[i]} of tree {given.treeids[i]} leads to node {nodes[i]}, which is not there."
            )
        children.append(found)
    treeids, nodeids, targets, values = given.weights
    leaves = index(treeids, nodeids)
    if (leaves < 0).any():
        i = int(leaves.argmin())
        raise InvalidModelError(f"a weight is for node {nodeids[i]} of tree {treeids[i]}, which is not there.")
    return Trees(
        roots=_roots(given.treeids, np.concatenate([each[inner] for each in children])),
        features=np.where(inner, given.features, 0),
        splits=given.splits,
        modes=given.modes,
        yes=children[0],
        no=children[1],
        missing=given.missing,
        weights=Weights(leaves, targets, values),
        members={},
    )


def _roots(treeids: np.ndarray, led_to: np.ndarray) -> np.ndarray:
    """The first node of each tree that none leads to; trees are in the order of their first nodes."""
    is_led_to = np.zeros(len(treeids), bool)
    is_led_to[led_to] = True
    free = np.flatnonzero(~is_led_to)
    trees, first = np.unique(treeids, return_index=True)
    with_root, root = np.unique(treeids[free], return_index=True)
    if len(with_root) != len(trees):
        raise InvalidModelError("a tree has no root: its nodes form a cycle.")
    return free[root][np.argsort(first)]


def _require_one_length(**attributes: Sequence[object] | np.ndarray) -> None:
    """Attributes that are columns of one table are of one length."""
    (first, column), *others = attributes.items()
    for name, other in others:
        if len(other) != len(column):
            raise InvalidModelError(f"{first} has {len(column)} entries, and {name} {len(other)}.")


def _numbers(floats: Sequence[float], tensor: Tensor | None) -> np.ndarray:
    """The one of two attributes that is given; float64."""
    return np.array(floats if tensor is None else tensor.known.ravel(), np.float64)


def _features(x: Tensor) -> Tensor:
    """Rows of features, as floating-point numbers."""
    rows = x if x.rank > 1 else L.unsqueeze(x, [0])
    return rows if t.is_float(rows.dtype) else L.cast(rows, t.FLOAT)


def _require_targets(given: np.ndarray, targets: int) -> None:
    wrong = given[(given < 0) | (given >= targets)]
    if wrong.size:
        raise InvalidModelError(f"a leaf gives to target {wrong[0]}, and there are {targets}.")


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
    given = _numbers(target_weights, target_weights_as_tensor)
    _require_one_length(
        target_treeids=target_treeids, target_nodeids=target_nodeids, target_ids=target_ids, target_weights=given
    )
    weights = _ids(target_treeids), _ids(target_nodeids), _ids(target_ids), given
    _require_targets(weights[2], n_targets)
    columns = _columns(
        nodes_treeids, nodes_nodeids, nodes_featureids, _numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, _trees_by_id(columns), n_targets, _aggregate(aggregate_function), rows.dtype)
    base = _numbers(base_values, base_values_as_tensor)
    total = total + L.constant(base, rows.dtype) if base.size else total
    return transformed(L.cast(total, t.FLOAT), post_transform)


def _aggregate(name: str) -> str:
    if name not in AGGREGATES:
        raise InvalidModelError(
            f"there is no aggregate_function {name!r}.", remedy=f"There are {', '.join(AGGREGATES)}."
        )
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
    given = _numbers(class_weights, class_weights_as_tensor)
    _require_one_length(
        class_treeids=class_treeids, class_nodeids=class_nodeids, class_ids=class_ids, class_weights=given
    )
    weights = _ids(class_treeids), _ids(class_nodeids), _ids(class_ids), given
    _require_targets(weights[2], classes)
    columns = _columns(
        nodes_treeids, nodes_nodeids, nodes_featureids, _numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, _trees_by_id(columns), classes, "SUM", rows.dtype)
    base = _numbers(base_values, base_values_as_tensor)
    used = np.unique(weights[2])
    if classes == 2 and len(used) == 1:
        one = L.slice_(total, 1, int(used[0]), int(used[0]) + 1)
        one = one + L.constant(base[-1], rows.dtype) if base.size else one
        positive = bool((given >= 0).all() and (base >= 0).all())
        chosen = L.cast(L.squeeze(one, [1]) > (0.5 if positive else 0), t.INT64)
        both = both_classes(L.cast(one, t.FLOAT), post_transform, probability=positive)
        return L.take(labels, chosen, 0), both
    total = total + L.constant(base, rows.dtype) if base.size else total
    return L.take(labels, L.argmax(total, -1), 0), transformed(L.cast(total, t.FLOAT), post_transform)


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
    inner, leaves = len(nodes_featureids), len(leaf_targetids)
    modes, targets = nodes_modes.known.ravel().astype(np.int64), _ids(leaf_targetids)
    if ((targets < 0) | (targets >= n_targets)).any() or ((modes < 0) | (modes > MEMBER)).any():
        raise InvalidModelError("a leaf gives to a target, or a node has a mode, that there is not.")
    if not 0 <= aggregate_function < len(AGGREGATES) or not 0 <= post_transform < len(NAMES):
        raise InvalidModelError(f"there is no aggregate {aggregate_function} or post_transform {post_transform}.")
    splits, weights = (tensor.known.ravel().astype(np.float64) for tensor in (nodes_splits, leaf_weights))
    _require_one_length(
        nodes_featureids=nodes_featureids, nodes_modes=modes, nodes_splits=splits, nodes_truenodeids=nodes_truenodeids,
        nodes_trueleafs=nodes_trueleafs, nodes_falsenodeids=nodes_falsenodeids, nodes_falseleafs=nodes_falseleafs,
        nodes_missing_value_tracks_true=nodes_missing_value_tracks_true or modes,
    )  # fmt: skip
    _require_one_length(leaf_targetids=leaf_targetids, leaf_weights=weights)
    members = [] if membership_values is None else membership_values.known.ravel().tolist()
    missing = _ids(nodes_missing_value_tracks_true or [0] * inner).astype(bool)
    trees = Trees(
        roots=_ids(tree_roots),
        features=np.pad(_ids(nodes_featureids), (0, leaves)),
        splits=np.pad(splits, (0, leaves)),
        modes=np.pad(modes, (0, leaves), constant_values=LEAF),
        yes=_children(_ids(nodes_truenodeids), _ids(nodes_trueleafs), leaves),
        no=_children(_ids(nodes_falsenodeids), _ids(nodes_falseleafs), leaves),
        missing=np.pad(missing, (0, leaves)),
        weights=Weights(np.arange(inner, inner + leaves), targets, weights),
        members=_member_sets(np.flatnonzero(modes == MEMBER).tolist(), members),
    )
    total = scores(x, trees, n_targets, AGGREGATES[aggregate_function], x.dtype)
    return transformed(total, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[post_transform])


def _children(nodes: np.ndarray, leafs: np.ndarray, leaves: int) -> np.ndarray:
    """Children as positions in one list of inner nodes and leaves; a leaf is its own."""
    inner, is_leaf = len(nodes), leafs != 0
    wrong = np.flatnonzero((nodes < 0) | (nodes >= np.where(is_leaf, leaves, inner)))
    if wrong.size:
        kind = "leaf" if is_leaf[wrong[0]] else "node"
        raise InvalidModelError(f"a node leads to the {kind} {nodes[wrong[0]]}, which is not there.")
    return np.concatenate([np.where(is_leaf, nodes + inner, nodes), np.arange(inner, inner + leaves)])


def _member_sets(nodes: Sequence[int], values: Sequence[float]) -> dict[int, list[float]]:
    """The sets of nodes in order, each ended by NaN."""
    sets: list[list[float]] = [[]]
    for value in values:
        if math.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    if len(sets) - 1 < len(nodes):
        raise InvalidModelError(f"there are {len(sets) - 1} sets of members for {len(nodes)} nodes that look into one.")
    return dict(zip(nodes, sets, strict=False))
