"""Sums over tree ensembles: which of them the kernel of trees can compute, and their tables as it reads them.

The function is called with the rows and with tables over nodes, all of them constants (see the operators of ensembles):
roots, features, splits, modes, children where a comparison holds and where it does not, whether a missing feature
counts as holding, the weights of leaves for each target, and the sets that nodes ask for.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.analysis.tree_layout import (
    GROUP,
    GROUP_STEPS,
    GROUP_WAYS,
    ROW_STEPS,
    WAYS,
    arrivals,
    by_level,
    column_bits,
    heights_of,
    looks,
    placed,
    tops,
)
from sardonyx.compiler.analysis.tree_predicates import Branches, branches
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir.graph import Value

NAME = "tree_sum"
_MOST_COLUMNS = 4000
"""More of them are not copied for every row."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What the kernel reads of an ensemble.

    A node has 8 bytes: the low half is its limit; the high half has the column that it looks at in its lower bits and
    the place of its first child above them. A leaf looks at a column beyond all others, which is 0, and is its own
    next: its limit is its weight where there is one target, else the number of its row in ``weights``, as bits.

    Attributes:
        nodes: Of all trees; int64.
        roots: The place of each tree's root; trees without nodes of their own fill the last group of ways, and one
            more is behind all.
        steps: Of every ``WAYS`` trees the steps before the first look at whether a row has come to leaves, and at most.
        top_nodes: A row a node of a top: how far the column is, in bytes, the key above its limit as a signed number,
            and the ends that stay; int32.
        top_starts: Where each tree's begin in it, and where the last ends.
        ends: What the tops lead to: places of nodes; of a *shallow* ensemble what its leaves have as limit.
            [trees, 32]; int32.
        rests: The steps from there, by tree: before the first look at whether rows have arrived, and at most.
        columns: The feature of each column, and the key of a missing one, signed; int32.
        weights: A row a leaf, [leaves, targets]; float32.
        trees: How many there are, without those that fill up.
        features: Numbers of a row.
        shallow: Whether all tops lead to leaves alone.
    """

    nodes: np.ndarray
    roots: np.ndarray
    steps: np.ndarray
    top_nodes: np.ndarray
    top_starts: np.ndarray
    ends: np.ndarray
    rests: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    trees: int
    features: int
    shallow: bool

    @property
    def targets(self) -> int:
        """Numbers that a leaf gives."""
        return int(self.weights.shape[1])

    def tile(self, target: Target) -> int:
        """Trees that the first-level cache holds beside keys: groups of rows go through them one after the other."""
        size = self.top_nodes.nbytes + self.ends.nbytes + (0 if self.shallow else self.nodes.nbytes)
        return max(1, target.l1 // 2 * self.trees // size)


TABLES = ("nodes", "roots", "steps", "top_nodes", "top_starts", "ends", "rests", "columns", "weights")
"""The names of those that the kernel reads."""

_known: weakref.WeakKeyDictionary[Value, Ensemble | str] = weakref.WeakKeyDictionary()


def tree_sum(call: Value) -> Ensemble | None:
    """The ensemble that a ``call`` sums over; None for other functions, and for those that the kernel cannot."""
    if call.params["function"].name != NAME:
        return None
    found = _known.get(call)
    if found is None:
        found = _known[call] = _ensemble(call) or "none"
    return None if isinstance(found, str) else found


def _ensemble(call: Value) -> Ensemble | None:
    x, *tables = call.operands
    if len(tables) != 10 or not all(table.is_constant for table in tables):
        return None
    roots, features, splits, modes, yes, no, missing, weights, sets, members = (
        np.asarray(table.known) for table in tables
    )
    columns = shape_of(x)[1]
    if splits.dtype != np.float32 or weights.dtype != np.float32 or not isinstance(columns, int) or not len(roots):
        return None
    found = branches(roots, features, splits, modes, yes, no, missing, sets, members)
    if (found.features[found.inner] >= columns).any():
        return None
    if shape_of(call.params["function"].results[0])[1] != weights.shape[1]:
        return None
    return _packed(roots, found, weights, columns)


def _packed(roots: np.ndarray, found: Branches, weights: np.ndarray, features: int) -> Ensemble | None:
    levels = by_level(roots, found)
    heights, places = heights_of(found, levels), placed(roots, found, levels)
    inner = np.concatenate([np.zeros(0, np.int64), *levels])
    # A column is a feature, with the key of a missing one above or below all others.
    columns, column = np.unique(2 * found.features[inner] + found.low[inner], return_inverse=True)
    bits = column_bits(len(columns))
    if len(columns) > _MOST_COLUMNS or places.count >= 1 << 32 - bits:
        return None
    limits, weights = _with_leaves(found, weights)
    column_of = np.full(len(limits), len(columns), np.int64)
    column_of[inner] = column
    # The node after all others, and the place after all others, are a leaf without weight.
    node = np.concatenate([roots, found.firsts[inner], found.others[inner], [-1]])
    place = np.concatenate([places.roots, places.pairs[inner], places.pairs[inner] + 1, [places.count]])
    pairs = np.append(places.pairs, -1)[node]
    words = np.zeros((places.count + 1, 2), np.uint32)
    words[place, 0] = limits[node]
    words[place, 1] = np.where(pairs < 0, place, pairs) << bits | column_of[node]
    where = np.zeros(len(limits), np.int64)
    where[node] = place
    top = tops(roots.tolist(), found, heights)
    heights = np.append(heights, 0)
    shallow = not heights[top.ends].any()
    filling = -len(roots) % WAYS
    whole = np.pad(arrivals(roots[:, None], found, levels), [(0, filling), (0, 0)], constant_values=1)
    depths = np.pad(heights[roots], (0, filling)).reshape(-1, WAYS).max(1)
    below = arrivals(top.ends, found, levels) ** GROUP_WAYS
    return Ensemble(
        nodes=words.reshape(-1).view(np.int64),
        roots=np.pad(places.roots, (0, filling + 1), constant_values=places.count),
        steps=looks(whole.reshape(-1, WAYS, whole.shape[1]).prod(1), depths, ROW_STEPS),
        top_nodes=np.stack(
            [column_of[top.nodes] * (4 * GROUP), limits[top.nodes] + 1 - (1 << 31), top.masks], 1
        ).astype(np.int32),
        top_starts=3 * top.starts,
        ends=(limits if shallow else where)[top.ends].astype(np.uint32).view(np.int32),
        rests=looks(below, heights[top.ends].max(1), GROUP_STEPS),
        columns=np.stack([columns // 2, np.where(columns % 2, -1 << 31, (1 << 31) - 1)], 1).astype(np.int32),
        weights=weights,
        trees=len(roots),
        features=features,
        shallow=shallow,
    )


def _with_leaves(found: Branches, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limits, also of leaves and of a leaf without weight after them, and a row a leaf of the weights."""
    leaves = np.append(~found.inner, True)
    limits = np.append(found.limits, 0)
    weights = np.concatenate([weights, np.zeros((len(leaves) - len(weights), weights.shape[1]), np.float32)])
    if weights.shape[1] == 1:
        limits[leaves] = weights[leaves, 0].view(np.uint32)
        return limits, weights[:1]
    limits[leaves] = np.arange(np.count_nonzero(leaves))
    return limits, np.ascontiguousarray(weights[leaves])
