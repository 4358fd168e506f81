"""Tree ensembles as tables over nodes, from the attributes of their operators.

An ensemble has a million nodes as easily as ten, so what is told of nodes are arrays, and nothing goes node by node.

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
MOST_ENTRIES = 1 << 28
"""Numbers in the table of the weights of an ensemble."""

_CODES = {name: code for code, name in enumerate(MODES) if code != MEMBER}


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


def set_tables(trees: Trees) -> tuple[np.ndarray, np.ndarray]:
    """The row of every node, and the sets as rows of one length."""
    if not trees.members:
        return np.zeros(1, np.int64), np.full((1, 1), np.nan)
    longest = max(1, *map(len, trees.members.values()))
    rows = np.zeros(len(trees.modes), np.int64)
    rows[list(trees.members)] = np.arange(len(trees.members))
    return rows, np.array([[*members, *[math.nan] * (longest - len(members))] for members in trees.members.values()])


def leaf_table(trees: Trees, targets: int) -> np.ndarray:
    """The weights of every node, [nodes, targets].

    Raises:
        UnsupportedError: There are so many targets that the table would take gigabytes.
    """
    nodes = len(trees.modes)
    if nodes * targets > MOST_ENTRIES:
        raise UnsupportedError(
            f"the weights of {nodes} nodes for {targets} targets are more than {MOST_ENTRIES} numbers.",
            remedy="Split the ensemble by targets.",
        )
    table = np.zeros((nodes, targets))
    np.add.at(table, (trees.weights.nodes, trees.weights.targets), trees.weights.values)
    return table


def given_table(trees: Trees, targets: int) -> np.ndarray:
    """How many weights every node has, [nodes, targets]; int32."""
    given = np.zeros((len(trees.modes), targets), np.int32)
    np.add.at(given, (trees.weights.nodes, trees.weights.targets), 1)
    return given


def codes(trees: Trees) -> list[int]:
    """The modes of nodes that are no leaves, each once."""
    return sorted({*np.unique(trees.modes).tolist()} - {LEAF})


def depth_of(trees: Trees) -> int:
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


class Columns(NamedTuple):
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


def columns_of(
    treeids: Sequence[int], nodeids: Sequence[int], features: Sequence[int], splits: np.ndarray, modes: Sequence[str],
    yes: Sequence[int], no: Sequence[int], missing: Sequence[int],
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> Columns:  # fmt: skip
    require_one_length(
        nodes_treeids=treeids, nodes_nodeids=nodeids, nodes_featureids=features, nodes_values=splits,
        nodes_modes=modes, nodes_truenodeids=yes, nodes_falsenodeids=no,
        nodes_missing_value_tracks_true=missing or treeids,
    )  # fmt: skip
    codes = np.array([_CODES.get(mode, -1) for mode in modes], np.int64)
    if (codes < 0).any():
        raise InvalidModelError(f"there is no node mode {modes[int(codes.argmin())]!r}.")
    trees, nodes, looks, trues, falses = map(ids, (treeids, nodeids, features, yes, no))
    holds = ids(missing).astype(bool) if missing else np.zeros(len(trees), bool)
    return Columns(trees, nodes, looks, splits, codes, trues, falses, holds, weights)


def ids(numbers: Sequence[int]) -> np.ndarray:
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


def trees_by_id(given: Columns) -> Trees:
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


def require_one_length(**attributes: Sequence[object] | np.ndarray) -> None:
    """Attributes that are columns of one table are of one length."""
    (first, column), *others = attributes.items()
    for name, other in others:
        if len(other) != len(column):
            raise InvalidModelError(f"{first} has {len(column)} entries, and {name} {len(other)}.")


def numbers(floats: Sequence[float], tensor: Tensor | None) -> np.ndarray:
    """The one of two attributes that is given; float64."""
    return np.array(floats if tensor is None else tensor.known.ravel(), np.float64)


def require_targets(given: np.ndarray, targets: int) -> None:
    wrong = given[(given < 0) | (given >= targets)]
    if wrong.size:
        raise InvalidModelError(f"a leaf gives to target {wrong[0]}, and there are {targets}.")


# The encoding of version 5.


def trees_by_place(
    roots: Sequence[int], modes: np.ndarray, splits: np.ndarray, features: Sequence[int], yes: Sequence[int],
    yes_leafs: Sequence[int], no: Sequence[int], no_leafs: Sequence[int], missing: Sequence[int],
    leaf_targets: Sequence[int], leaf_weights: np.ndarray, members: Sequence[float], count: int,
) -> Trees:  # fmt: skip
    """Trees whose nodes are named by their places; leaves have places of their own.

    What is given is named after the attributes of ``TreeEnsemble``; ``count`` is how many targets there are.

    Raises:
        InvalidModelError: The attributes do not fit each other, or lead to what is not there.
    """
    inner, leaves = len(features), len(leaf_targets)
    modes, targets = modes.astype(np.int64), ids(leaf_targets)
    if ((targets < 0) | (targets >= count)).any() or ((modes < 0) | (modes > MEMBER)).any():
        raise InvalidModelError("a leaf gives to a target, or a node has a mode, that there is not.")
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
