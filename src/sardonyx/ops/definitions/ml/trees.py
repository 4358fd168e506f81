"""Tree ensembles: all trees step down together, then the weights of the leaves reached are summed.

Source: ONNX-ML, *TreeEnsemble*, *TreeEnsembleRegressor*, *TreeEnsembleClassifier*. How one score of two classes becomes
a label and two scores is as ONNX Runtime has it: the standard leaves it open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

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
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


class Trees(NamedTuple):
    """An ensemble as tables over nodes; a leaf is its own child.

    Attributes:
        roots: The first node of every tree.
        features: Which feature a node looks at.
        splits: What it compares the feature with.
        modes: How, an index into ``MODES``.
        yes: The node where the comparison holds.
        no: The node where it does not.
        missing: Whether a missing feature counts as holding.
        weights: (leaf, target, weight), any number a leaf.
        members: The set of every ``BRANCH_MEMBER`` node, by node.
    """

    roots: list[int]
    features: list[int]
    splits: list[float]
    modes: list[int]
    yes: list[int]
    no: list[int]
    missing: list[bool]
    weights: list[tuple[int, int, float]]
    members: dict[int, list[float]]


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
    table, given = _leaf_table(trees, targets, dtype)
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
        return _extreme(_leaves(x, trees, tables, steps), table, given, aggregate == "MIN")

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
        for code in sorted({*trees.modes} - {LEAF}):
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


def _set_tables(trees: Trees) -> tuple[list[int], list[list[float]]]:
    """The row of every node, and the sets as rows of one length."""
    if not trees.members:
        return [0], [[math.nan]]
    longest = max(1, *map(len, trees.members.values()))
    position = {node: row for row, node in enumerate(trees.members)}
    rows = [[*members, *[math.nan] * (longest - len(members))] for members in trees.members.values()]
    return [position.get(node, 0) for node in range(len(trees.modes))], rows


def _leaf_table(trees: Trees, targets: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """The weights of every node, [nodes, targets], and how many there are."""
    weights = [[0.0] * targets for _ in trees.modes]
    given = [[0] * targets for _ in trees.modes]
    for node, place, added in trees.weights:
        weights[node][place] += added
        given[node][place] += 1
    return L.constant(weights, dtype), L.constant(given, t.INT32)


def _depth(trees: Trees) -> int:
    """The most steps from a root to a leaf, after checking that every path ends."""
    depth, level = 0, set(trees.roots)
    if min(trees.features, default=0) < 0:
        raise InvalidModelError(f"a node looks at the feature {min(trees.features)}, which is not there.")
    for node in level:
        _check_node(node, trees, "a tree")
    reached = set(level)
    while level := {
        child for node in level if trees.modes[node] != LEAF for child in (trees.yes[node], trees.no[node])
    }:
        for node in level:
            _check_node(node, trees, "a node")
        reached |= level
        depth += 1
        if depth > len(trees.modes):
            raise InvalidModelError("a path through a tree does not end: nodes form a cycle.")
    lost = [node for node, mode in enumerate(trees.modes) if mode != LEAF and node not in reached]
    if lost:
        raise InvalidModelError(f"no root leads to node number {lost[0]}: nodes form a cycle, or a tree has two roots.")
    return depth


def _check_node(node: int, trees: Trees, what: str) -> None:
    if not 0 <= node < len(trees.modes):
        raise InvalidModelError(f"{what} leads to the node {node}, which is not there.")


# The encoding of versions 1 and 3.


def _trees_by_id(
    treeids: Sequence[int],
    nodeids: Sequence[int],
    featureids: Sequence[int],
    values: Sequence[float],
    modes: Sequence[str],
    yes: Sequence[int],
    no: Sequence[int],
    missing: Sequence[int],
    weights: Sequence[tuple[int, int, int, float]],
) -> Trees:
    """Trees whose nodes are named by tree and node; weights are (tree, node, target, weight)."""
    _require_one_length(
        nodes_treeids=treeids, nodes_nodeids=nodeids, nodes_featureids=featureids, nodes_values=values,
        nodes_modes=modes, nodes_truenodeids=yes, nodes_falsenodeids=no,
        nodes_missing_value_tracks_true=missing or treeids,
    )  # fmt: skip
    index = {place: i for i, place in enumerate(zip(treeids, nodeids, strict=True))}
    if len(index) != len(treeids):
        raise InvalidModelError("two nodes of a tree have one id.")
    codes = [_code(mode) for mode in modes]

    def child(i: int, node: int) -> int:
        found = i if codes[i] == LEAF else index.get((treeids[i], node))
        if found is None:
            raise InvalidModelError(f"node {nodeids[i]} of tree {treeids[i]} leads to node {node}, which is not there.")
        return found

    trues = [child(i, node) for i, node in enumerate(yes)]
    falses = [child(i, node) for i, node in enumerate(no)]
    leaves = []
    for tree, node, target, weight in weights:
        if (tree, node) not in index:
            raise InvalidModelError(f"a weight is for node {node} of tree {tree}, which is not there.")
        leaves.append((index[tree, node], target, weight))
    reached = {node for i in range(len(codes)) if codes[i] != LEAF for node in (trues[i], falses[i])}
    firsts = {tree: i for i, tree in reversed(list(enumerate(treeids))) if i not in reached}
    if set(firsts) != set(treeids):
        raise InvalidModelError("a tree has no root: its nodes form a cycle.")
    return Trees(
        roots=[firsts[tree] for tree in dict.fromkeys(treeids)],
        features=[0 if code == LEAF else feature for code, feature in zip(codes, featureids, strict=True)],
        splits=list(values),
        modes=codes,
        yes=trues,
        no=falses,
        missing=[bool(flag) for flag in missing] or [False] * len(treeids),
        weights=leaves,
        members={},
    )


def _require_one_length(**attributes: Sequence[object]) -> None:
    """Attributes that are columns of one table are of one length."""
    (first, column), *others = attributes.items()
    for name, other in others:
        if len(other) != len(column):
            raise InvalidModelError(f"{first} has {len(column)} entries, and {name} {len(other)}.")


def _code(mode: str) -> int:
    if mode not in MODES or mode == "BRANCH_MEMBER":
        raise InvalidModelError(f"there is no node mode {mode!r}.")
    return MODES.index(mode)


def _numbers(floats: Sequence[float], tensor: Tensor | None) -> list[float]:
    """The one of two attributes that is given."""
    return list(floats) if tensor is None else [float(item) for item in tensor.known.ravel().tolist()]


def _features(x: Tensor) -> Tensor:
    """Rows of features, as floating-point numbers."""
    rows = x if x.rank > 1 else L.unsqueeze(x, [0])
    return rows if t.is_float(rows.dtype) else L.cast(rows, t.FLOAT)


def _targets_checked(weights: Sequence[tuple[int, int, int, float]], targets: int) -> None:
    for _, _, target, _ in weights:
        if not 0 <= target < targets:
            raise InvalidModelError(f"a leaf gives to target {target}, and there are {targets}.")


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
    weights = list(zip(target_treeids, target_nodeids, target_ids, given, strict=True))
    _targets_checked(weights, n_targets)
    trees = _trees_by_id(
        nodes_treeids, nodes_nodeids, nodes_featureids, _numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, trees, n_targets, _aggregate(aggregate_function), rows.dtype)
    base = _numbers(base_values, base_values_as_tensor)
    total = total + L.constant(base, rows.dtype) if base else total
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
    weights = list(zip(class_treeids, class_nodeids, class_ids, given, strict=True))
    _targets_checked(weights, classes)
    trees = _trees_by_id(
        nodes_treeids, nodes_nodeids, nodes_featureids, _numbers(nodes_values, nodes_values_as_tensor), nodes_modes,
        nodes_truenodeids, nodes_falsenodeids, nodes_missing_value_tracks_true, weights,
    )  # fmt: skip
    total = scores(rows, trees, classes, "SUM", rows.dtype)
    base = _numbers(base_values, base_values_as_tensor)
    used = set(class_ids)
    if classes == 2 and len(used) == 1:
        one = L.slice_(total, 1, min(used), min(used) + 1)
        one = one + L.constant(base[-1], rows.dtype) if base else one
        positive = all(weight >= 0 for weight in given) and all(value >= 0 for value in base)
        chosen = L.cast(L.squeeze(one, [1]) > (0.5 if positive else 0), t.INT64)
        both = both_classes(L.cast(one, t.FLOAT), post_transform, probability=positive)
        return L.take(labels, chosen, 0), both
    total = total + L.constant(base, rows.dtype) if base else total
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
    modes = [int(mode) for mode in nodes_modes.known.ravel().tolist()]
    if any(not 0 <= target < n_targets for target in leaf_targetids) or any(not 0 <= mode <= MEMBER for mode in modes):
        raise InvalidModelError("a leaf gives to a target, or a node has a mode, that there is not.")
    if not 0 <= aggregate_function < len(AGGREGATES) or not 0 <= post_transform < len(NAMES):
        raise InvalidModelError(f"there is no aggregate {aggregate_function} or post_transform {post_transform}.")
    splits, weights = (tensor.known.ravel().tolist() for tensor in (nodes_splits, leaf_weights))
    _require_one_length(
        nodes_featureids=nodes_featureids, nodes_modes=modes, nodes_splits=splits, nodes_truenodeids=nodes_truenodeids,
        nodes_trueleafs=nodes_trueleafs, nodes_falsenodeids=nodes_falsenodeids, nodes_falseleafs=nodes_falseleafs,
        nodes_missing_value_tracks_true=nodes_missing_value_tracks_true or modes,
    )  # fmt: skip
    _require_one_length(leaf_targetids=leaf_targetids, leaf_weights=weights)
    members = [] if membership_values is None else membership_values.known.ravel().tolist()
    trees = Trees(
        roots=list(tree_roots),
        features=[*nodes_featureids, *[0] * leaves],
        splits=[*splits, *[0.0] * leaves],
        modes=[*modes, *[LEAF] * leaves],
        yes=_children(nodes_truenodeids, nodes_trueleafs, inner, leaves),
        no=_children(nodes_falsenodeids, nodes_falseleafs, inner, leaves),
        missing=[*map(bool, nodes_missing_value_tracks_true or [0] * inner), *[False] * leaves],
        weights=[
            (inner + i, target, weight) for i, (target, weight) in enumerate(zip(leaf_targetids, weights, strict=True))
        ],
        members=_member_sets([i for i, mode in enumerate(modes) if mode == MEMBER], members),
    )
    total = scores(x, trees, n_targets, AGGREGATES[aggregate_function], x.dtype)
    return transformed(total, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[post_transform])


def _children(nodes: Sequence[int], leafs: Sequence[int], inner: int, leaves: int) -> list[int]:
    """Children as positions in one list of inner nodes and leaves; a leaf is its own."""
    for node, leaf in zip(nodes, leafs, strict=True):
        if not 0 <= node < (leaves if leaf else inner):
            raise InvalidModelError(f"a node leads to the {'leaf' if leaf else 'node'} {node}, which is not there.")
    found = [node + inner if leaf else node for node, leaf in zip(nodes, leafs, strict=True)]
    return [*found, *range(inner, inner + leaves)]


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
