"""Sums over tree ensembles: the calls that the tree kernel computes, and the tables of the kernel.

Operands of the call are the rows and tables over nodes, all constant (see the operators of ensembles): roots, features,
splits, modes, the children if a comparison is true and if it is false, whether a missing feature counts as true, the
weights of leaves for each target, and the sets for membership tests.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.tree_layout import (
    GROUP,
    arrival_shares,
    build_tops,
    column_bits,
    completion_tests,
    heights_of,
    nodes_by_level,
    place_nodes,
)
from sardonyx.compiler.analysis.tree_predicates import Branches, normalize_branches
from sardonyx.core.ir.graph import Value

NAME = "tree_sum"
_MOST_COLUMNS = 4000
"""Maximum number of columns: the keys of all columns are computed and stored for every row."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The tables of an ensemble.

    A node has 8 bytes. The low half is the limit; the high half has the node's column in the lower bits and the index
    of the first child in the upper bits. A leaf has an extra column after all others, with key 0, and is its own child.
    The limit of a leaf is the leaf's weight if there is one target, else the leaf's row in ``weights``, both as bits.

    Attributes:
        nodes: The nodes of all trees; int64.
        roots: Index of each tree's root.
        end: Index of a leaf without weight, after all other nodes.
        top_nodes: A row for each node of a top: the offset of the column in bytes, the smallest key above the limit as
            a signed number, and the mask of the ends that remain; int32.
        top_starts: Offset of each tree in ``top_nodes``, and the offset of the end.
        ends: The nodes below the tops, [trees, 32]; int32. Indices of nodes; in a *shallow* ensemble the limits of the
            leaves.
        columns: For each column, the feature, and the key of a missing value as a signed number; int32.
        weights: A row for each leaf, [leaves, targets]; float32.
        trees: Number of trees, without padding.
        features: Number of features of a row.
        shallow: True if all tops lead to leaves only.
        root_arrivals: Shares of the leaves within each number of steps from the root, [trees, steps].
        root_heights: The most steps from the root, [trees].
        end_arrivals: Shares of the leaves within each number of steps from the ends, [trees, steps].
        end_heights: The most steps from the ends, [trees].
    """

    nodes: np.ndarray
    roots: np.ndarray
    end: int
    top_nodes: np.ndarray
    top_starts: np.ndarray
    ends: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    trees: int
    features: int
    shallow: bool
    root_arrivals: np.ndarray
    root_heights: np.ndarray
    end_arrivals: np.ndarray
    end_heights: np.ndarray

    @property
    def targets(self) -> int:
        """Number of weights of a leaf."""
        return int(self.weights.shape[1])

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables that groups of rows read."""
        return self.top_nodes.nbytes + self.ends.nbytes + (0 if self.shallow else self.nodes.nbytes)

    def pad_roots(self, ways: int) -> np.ndarray:
        """Return the index of each tree's root, padded to a multiple of ``ways`` trees and one more.

        Trees of the padding have no nodes of their own.
        """
        padding = -self.trees % ways
        return np.pad(self.roots, (0, padding + 1), constant_values=self.end)

    def row_tests(self, ways: int, steps: int) -> np.ndarray:
        """Return the :func:`.completion_tests` of rows that traverse ``ways`` trees concurrently."""
        padding = -self.trees % ways
        arrivals = np.pad(self.root_arrivals, [(0, padding), (0, 0)], constant_values=1)
        heights = np.pad(self.root_heights, (0, padding)).reshape(-1, ways).max(1)
        return completion_tests(arrivals.reshape(-1, ways, arrivals.shape[1]).prod(1), heights, steps)

    def group_tests(self, ways: int, steps: int) -> np.ndarray:
        """Return the :func:`.completion_tests` of ``ways`` rows that traverse a tree concurrently."""
        return completion_tests(self.end_arrivals**ways, self.end_heights, steps)


TABLES = ("nodes", "top_nodes", "top_starts", "ends", "columns", "weights")
"""The attributes of :class:`Ensemble` that the kernel reads, whatever its schedule."""

_ensembles: weakref.WeakKeyDictionary[Value, Ensemble | str] = weakref.WeakKeyDictionary()


def tree_sum(call: Value) -> Ensemble | None:
    """Return the ensemble that a ``call`` sums over, or None.

    The result is None for a call of another function, and for an ensemble that the kernel cannot compute.
    """
    if call.params["function"].name != NAME:
        return None
    ensemble = _ensembles.get(call)
    if ensemble is None:
        ensemble = _ensembles[call] = _build(call) or "none"
    return None if isinstance(ensemble, str) else ensemble


def _build(call: Value) -> Ensemble | None:
    x, *tables = call.operands
    if len(tables) != 10 or not all(table.is_constant for table in tables):
        return None
    roots, features, splits, modes, yes, no, missing, weights, sets, members = (
        np.asarray(table.known) for table in tables
    )
    columns = shape_of(x)[1]
    if splits.dtype != np.float32 or weights.dtype != np.float32 or not isinstance(columns, int) or not len(roots):
        return None
    branches = normalize_branches(roots, features, splits, modes, yes, no, missing, sets, members)
    if (branches.features[branches.inner] >= columns).any():
        return None
    if shape_of(call.params["function"].results[0])[1] != weights.shape[1]:
        return None
    return _pack(roots, branches, weights, columns)


def _pack(roots: np.ndarray, branches: Branches, weights: np.ndarray, features: int) -> Ensemble | None:
    levels = nodes_by_level(roots, branches)
    heights, placement = heights_of(branches, levels), place_nodes(roots, branches, levels)
    inner = np.concatenate([np.zeros(0, np.int64), *levels])
    # A column is a feature whose key for a missing value is either above or below all others.
    columns, column = np.unique(2 * branches.features[inner] + branches.low[inner], return_inverse=True)
    bits = column_bits(len(columns))
    if len(columns) > _MOST_COLUMNS or placement.count >= 1 << 32 - bits:
        return None
    limits, weights = _with_leaves(branches, weights)
    column_of = np.full(len(limits), len(columns), np.int64)
    column_of[inner] = column
    # The extra last node, at the extra last index, is a leaf of weight 0.
    node = np.concatenate([roots, branches.firsts[inner], branches.others[inner], [-1]])
    index = np.concatenate([placement.roots, placement.pairs[inner], placement.pairs[inner] + 1, [placement.count]])
    pairs = np.append(placement.pairs, -1)[node]
    words = np.zeros((placement.count + 1, 2), np.uint32)
    words[index, 0] = limits[node]
    words[index, 1] = np.where(pairs < 0, index, pairs) << bits | column_of[node]
    index_of = np.zeros(len(limits), np.int64)
    index_of[node] = index
    tops = build_tops(roots.tolist(), branches, heights)
    heights = np.append(heights, 0)
    shallow = not heights[tops.ends].any()
    return Ensemble(
        nodes=words.reshape(-1).view(np.int64),
        roots=placement.roots,
        end=placement.count,
        top_nodes=np.stack(
            [column_of[tops.nodes] * (4 * GROUP), limits[tops.nodes] + 1 - (1 << 31), tops.masks], 1
        ).astype(np.int32),
        top_starts=3 * tops.starts,
        ends=(limits if shallow else index_of)[tops.ends].astype(np.uint32).view(np.int32),
        columns=np.stack([columns // 2, np.where(columns % 2, -1 << 31, (1 << 31) - 1)], 1).astype(np.int32),
        weights=weights,
        trees=len(roots),
        features=features,
        shallow=shallow,
        root_arrivals=arrival_shares(roots[:, None], branches, levels),
        root_heights=heights[roots],
        end_arrivals=arrival_shares(tops.ends, branches, levels),
        end_heights=heights[tops.ends].max(1),
    )


def _with_leaves(branches: Branches, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits, also of leaves and of an extra leaf of weight 0, and the weights of leaves."""
    leaves = np.append(~branches.inner, True)
    limits = np.append(branches.limits, 0)
    weights = np.concatenate([weights, np.zeros((len(leaves) - len(weights), weights.shape[1]), np.float32)])
    if weights.shape[1] == 1:
        limits[leaves] = weights[leaves, 0].view(np.uint32)
        return limits, weights[:1]
    limits[leaves] = np.arange(np.count_nonzero(leaves))
    return limits, np.ascontiguousarray(weights[leaves])
