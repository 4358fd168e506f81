"""Tree ensembles as tables over nodes, from the attributes of their operators.

An ensemble may have a million nodes: facts about nodes are arrays, and no Python loop visits each node.

Source: ONNX-ML, *TreeEnsemble*, *TreeEnsembleRegressor*, *TreeEnsembleClassifier*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, UnsupportedError

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEAF, MEMBER = MODES.index("LEAF"), MODES.index("BRANCH_MEMBER")
MAX_ENTRIES = 1 << 28
"""Most elements in the weight table of an ensemble."""

_CODES = {name: code for code, name in enumerate(MODES) if code != MEMBER}


class Trees(NamedTuple):
    """An ensemble as tables over nodes; a leaf is its own child.

    Attributes:
        roots: The first node of every tree; int64.
        features: Index of the feature that a node compares; int64.
        splits: Threshold of the comparison; float64.
        modes: Kind of comparison, an index into ``MODES``; int64.
        yes: The child if the comparison is true; int64.
        no: The child if the comparison is false; int64.
        missing: True if the comparison is true for a missing feature; bool.
        weights: Weights of leaves, any number for each.
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
    """Weights of leaves, one entry for each weight.

    Attributes:
        nodes: The leaf; int64.
        targets: The target to which the weight is added; int64.
        values: The weight; float64.
    """

    nodes: np.ndarray
    targets: np.ndarray
    values: np.ndarray


def set_tables(trees: Trees) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of every node's set, and the sets as rows of one length, padded with NaN."""
    if not trees.members:
        return np.zeros(1, np.int64), np.full((1, 1), np.nan)
    longest = max(1, *map(len, trees.members.values()))
    rows = np.zeros(len(trees.modes), np.int64)
    rows[list(trees.members)] = np.arange(len(trees.members))
    return rows, np.array([[*members, *[math.nan] * (longest - len(members))] for members in trees.members.values()])


def leaf_table(trees: Trees, targets: int) -> np.ndarray:
    """Return the weights of every node, [nodes, targets].

    Raises:
        UnsupportedError: The table would exceed ``MOST_ENTRIES`` elements.
    """
    nodes = len(trees.modes)
    if nodes * targets > MAX_ENTRIES:
        raise UnsupportedError(
            f"the weight table of {nodes} nodes and {targets} targets exceeds {MAX_ENTRIES} elements.",
            remedy="Split the ensemble by targets.",
        )
    table = np.zeros((nodes, targets))
    np.add.at(table, (trees.weights.nodes, trees.weights.targets), trees.weights.values)
    return table


def count_table(trees: Trees, targets: int) -> np.ndarray:
    """Return the number of weights of every node, [nodes, targets]; int32."""
    counts = np.zeros((len(trees.modes), targets), np.int32)
    np.add.at(counts, (trees.weights.nodes, trees.weights.targets), 1)
    return counts


def codes(trees: Trees) -> list[int]:
    """Return the distinct modes of inner nodes."""
    return sorted({*np.unique(trees.modes).tolist()} - {LEAF})


def depth_of(trees: Trees) -> int:
    """Return the maximum number of steps from a root to a leaf, after checking that every path ends."""
    least = int(trees.features.min(initial=0))
    if least < 0:
        raise InvalidModelError(f"expected non-negative feature indices of nodes, got {least}.")
    depth, level = 0, _checked_nodes(trees.roots, trees, "a tree")
    reached = np.zeros(len(trees.modes), bool)
    while True:
        reached[level] = True
        inner = level[trees.modes[level] != LEAF]
        if not inner.size:
            break
        level = _checked_nodes(np.concatenate([trees.yes[inner], trees.no[inner]]), trees, "a node")
        depth += 1
        if depth > len(trees.modes):
            raise InvalidModelError("the nodes of a tree form a cycle.")
    unreachable = np.flatnonzero((trees.modes != LEAF) & ~reached)
    if unreachable.size:
        raise InvalidModelError(
            f"node {unreachable[0]} is unreachable from the roots: nodes form a cycle, or a tree has two roots."
        )
    return depth


def _checked_nodes(targets: np.ndarray, trees: Trees, what: str) -> np.ndarray:
    """Return the distinct targets of edges, after a range check."""
    nodes = np.unique(targets)
    for node in (nodes[:1], nodes[-1:]):
        if node.size and not 0 <= node[0] < len(trees.modes):
            raise InvalidModelError(f"{what} refers to the missing node {node[0]}.")
    return nodes


# The encoding of versions 1 and 3.


class Columns(NamedTuple):
    """Node columns of versions 1 and 3, by tree id and node id, and the columns of leaf weights.

    ``weights`` are the columns tree id, node id, target and weight.
    """

    treeids: np.ndarray
    nodeids: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def columns_of(
    treeids: Sequence[int], nodeids: Sequence[int], features: Sequence[int], splits: np.ndarray, modes: Sequence[str],
    yes: Sequence[int], no: Sequence[int], missing: Sequence[int],
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> Columns:  # fmt: skip
    """Return the checked columns of the attributes ``nodes_*``."""
    require_one_length(
        nodes_treeids=treeids, nodes_nodeids=nodeids, nodes_featureids=features, nodes_values=splits,
        nodes_modes=modes, nodes_truenodeids=yes, nodes_falsenodeids=no,
        nodes_missing_value_tracks_true=missing or treeids,
    )  # fmt: skip
    codes = np.array([_CODES.get(mode, -1) for mode in modes], np.int64)
    if (codes < 0).any():
        raise InvalidModelError(
            f"unknown node mode {modes[int(codes.argmin())]!r}.", remedy=f"Use one of {', '.join(_CODES)}."
        )
    trees, nodes, feature_ids, trues, falses = map(ids, (treeids, nodeids, features, yes, no))
    missing_is_true = ids(missing).astype(bool) if missing else np.zeros(len(trees), bool)
    return Columns(trees, nodes, feature_ids, splits, codes, trues, falses, missing_is_true, weights)


def ids(numbers: Sequence[int]) -> np.ndarray:
    """Return integers as an int64 array."""
    return np.array(numbers, np.int64)


class _Index:
    """Lookup of nodes by tree id and node id."""

    def __init__(self, treeids: np.ndarray, nodeids: np.ndarray) -> None:
        self._trees, self._nodes = np.unique(treeids), np.unique(nodeids)
        keys = self._keys(treeids, nodeids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        if (np.diff(self._sorted) == 0).any():
            raise InvalidModelError("expected unique node ids within a tree, got a duplicate.")

    def __call__(self, treeids: np.ndarray, nodeids: np.ndarray) -> np.ndarray:
        """Return the positions of nodes in the columns; -1 for an unknown node."""
        if not self._sorted.size:
            return np.full(len(treeids), -1, np.int64)
        keys = self._keys(treeids, nodeids)
        at = np.minimum(np.searchsorted(self._sorted, keys), len(self._sorted) - 1)
        return np.where(self._sorted[at] == keys, self._order[at], -1)

    def _keys(self, treeids: np.ndarray, nodeids: np.ndarray) -> np.ndarray:
        """Return one number for tree and node; -1 if the tree id or the node id is unknown."""
        ranks = []
        for known, ids in ((self._trees, treeids), (self._nodes, nodeids)):
            rank = np.searchsorted(known, ids)
            is_known = known[np.minimum(rank, len(known) - 1)] == ids if known.size else np.zeros(len(ids), bool)
            ranks.append(np.where(is_known, rank, -1))
        tree, node = ranks
        return np.where((tree < 0) | (node < 0), -1, tree * len(self._nodes) + node)


def trees_by_id(columns: Columns) -> Trees:
    """Build the trees from nodes that are named by tree id and node id."""
    index, inner = _Index(columns.treeids, columns.nodeids), columns.modes != LEAF
    own = np.arange(len(inner))
    children = []
    for nodes in (columns.yes, columns.no):
        child = np.where(inner, index(columns.treeids, nodes), own)
        if (child < 0).any():
            i = int(child.argmin())
            raise InvalidModelError(
                f"node {columns.nodeids[i]} of tree {columns.treeids[i]} refers to the missing node {nodes[i]}."
            )
        children.append(child)
    treeids, nodeids, targets, values = columns.weights
    leaves = index(treeids, nodeids)
    if (leaves < 0).any():
        i = int(leaves.argmin())
        raise InvalidModelError(f"a weight refers to the missing node {nodeids[i]} of tree {treeids[i]}.")
    return Trees(
        roots=_roots(columns.treeids, np.concatenate([child[inner] for child in children])),
        features=np.where(inner, columns.features, 0),
        splits=columns.splits,
        modes=columns.modes,
        yes=children[0],
        no=children[1],
        missing=columns.missing,
        weights=Weights(leaves, targets, values),
        members={},
    )


def _roots(treeids: np.ndarray, children: np.ndarray) -> np.ndarray:
    """Return the first node of each tree without a parent; trees are in the order of their first nodes."""
    has_parent = np.zeros(len(treeids), bool)
    has_parent[children] = True
    candidates = np.flatnonzero(~has_parent)
    trees, first = np.unique(treeids, return_index=True)
    with_root, root = np.unique(treeids[candidates], return_index=True)
    if len(with_root) != len(trees):
        raise InvalidModelError("a tree has no root: its nodes form a cycle.")
    return candidates[root][np.argsort(first)]


def require_one_length(**attributes: Sequence[object] | np.ndarray) -> None:
    """Check that the columns of one table have one length."""
    (first, column), *others = attributes.items()
    for name, other in others:
        if len(other) != len(column):
            raise InvalidModelError(
                f"expected `{first}` and `{name}` of one length, got {len(column)} and {len(other)}."
            )


def numbers(floats: Sequence[float], tensor: Tensor | None) -> np.ndarray:
    """Return the attribute that is set, as float64: the tensor, or else the list.

    Raises:
        InvalidModelError: The tensor holds no numbers.
    """
    return np.asarray(floats, np.float64) if tensor is None else elements(tensor).astype(np.float64)


def elements(tensor: Tensor) -> np.ndarray:
    """Return the numbers of an attribute as a vector.

    Raises:
        InvalidModelError: The tensor holds no numbers.
    """
    values: np.ndarray = tensor.known.ravel()
    if values.dtype.kind not in "fiub":
        raise InvalidModelError(f"expected a tensor of numbers as an attribute of trees, got {tensor.dtype}.")
    return values


def require_targets(indices: np.ndarray, targets: int) -> None:
    """Check that target indices are in range."""
    wrong = indices[(indices < 0) | (indices >= targets)]
    if wrong.size:
        raise InvalidModelError(f"target {wrong[0]} of a leaf is out of range for {targets} targets.")


# The encoding of version 5.


def trees_by_position(
    roots: Sequence[int], modes: np.ndarray, splits: np.ndarray, features: Sequence[int], yes: Sequence[int],
    yes_leafs: Sequence[int], no: Sequence[int], no_leafs: Sequence[int], missing: Sequence[int],
    leaf_targets: Sequence[int], leaf_weights: np.ndarray, members: Sequence[float], count: int,
) -> Trees:  # fmt: skip
    """Build the trees from nodes that are named by position; leaves have positions of their own.

    The parameters are named after the attributes of ``TreeEnsemble``; ``count`` is the number of targets.

    Raises:
        InvalidModelError: The attributes do not fit each other, or refer to a missing node, leaf or target.
    """
    inner, leaves = len(features), len(leaf_targets)
    modes, targets = modes.astype(np.int64), ids(leaf_targets)
    if ((targets < 0) | (targets >= count)).any() or ((modes < 0) | (modes > MEMBER)).any():
        raise InvalidModelError("a leaf has an unknown target, or a node has an unknown mode.")
    require_one_length(
        nodes_featureids=features, nodes_modes=modes, nodes_splits=splits, nodes_truenodeids=yes,
        nodes_trueleafs=yes_leafs, nodes_falsenodeids=no, nodes_falseleafs=no_leafs,
        nodes_missing_value_tracks_true=missing or modes,
    )  # fmt: skip
    require_one_length(leaf_targetids=leaf_targets, leaf_weights=leaf_weights)
    return Trees(
        roots=ids(roots),
        features=np.pad(ids(features), (0, leaves)),
        splits=np.pad(splits.astype(np.float64), (0, leaves)),
        modes=np.pad(modes, (0, leaves), constant_values=LEAF),
        yes=_children(ids(yes), ids(yes_leafs), leaves),
        no=_children(ids(no), ids(no_leafs), leaves),
        missing=np.pad(ids(missing or [0] * inner).astype(bool), (0, leaves)),
        weights=Weights(np.arange(inner, inner + leaves), targets, leaf_weights.astype(np.float64)),
        members=_member_sets(np.flatnonzero(modes == MEMBER).tolist(), members),
    )


def _children(nodes: np.ndarray, leafs: np.ndarray, leaves: int) -> np.ndarray:
    """Return children as positions in one list of inner nodes and leaves; a leaf is its own child."""
    inner, is_leaf = len(nodes), leafs != 0
    wrong = np.flatnonzero((nodes < 0) | (nodes >= np.where(is_leaf, leaves, inner)))
    if wrong.size:
        kind = "leaf" if is_leaf[wrong[0]] else "node"
        raise InvalidModelError(f"a node refers to the missing {kind} {nodes[wrong[0]]}.")
    return np.concatenate([np.where(is_leaf, nodes + inner, nodes), np.arange(inner, inner + leaves)])


def _member_sets(nodes: Sequence[int], values: Sequence[float]) -> dict[int, list[float]]:
    """Return the sets of nodes in order; a NaN ends each set."""
    sets: list[list[float]] = [[]]
    for value in values:
        if math.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    if len(sets) - 1 < len(nodes):
        raise InvalidModelError(
            f"expected a member set for each of {len(nodes)} BRANCH_MEMBER nodes, got {len(sets) - 1}."
        )
    return dict(zip(nodes, sets, strict=False))
