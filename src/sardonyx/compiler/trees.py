"""Sums over tree ensembles: which of them the kernel of trees can compute, and their nodes as it reads them.

The function is called with the rows and with tables over nodes, all of them constants (see the operators of ensembles):
roots, features, splits, modes, children where a comparison holds and where it does not, whether a missing feature
counts as holding, and the weights of leaves for each target.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.kernels.trees import WAYS
from sardonyx.compiler.views import shape_of
from sardonyx.core.graph import Value

NAME = "tree_sum"
_LESS_OR_EQUAL, _LESS, _LEAF = 0, 1, 7
_MOST_FEATURES = 4000
"""More of them are not copied for every row."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Nodes of 8 bytes, the children of one side by side: the one where its comparison holds first.

    The low half of a node is its split, a float32; the high half has the feature in its lower bits and the number of
    the first child above them. A leaf looks at a feature beyond all others, which is 0, and is its own next: its split
    is its weight where there is one target, else the number of its row in ``weights``, as bits.

    Attributes:
        nodes: All trees, one after the other; int64.
        roots: The first node of each tree; trees without nodes of their own fill the last group of ways.
        depths: The most steps of each tree.
        weights: A row a leaf, [leaves, targets]; float32.
        trees: How many there are, without those that fill up.
        features: Columns of the rows.
        feature_bits: Bits of a feature.
        missing: Whether the bit above marks nodes at which a missing feature counts as holding.
    """

    nodes: np.ndarray
    roots: np.ndarray
    depths: np.ndarray
    weights: np.ndarray
    trees: int
    features: int
    feature_bits: int
    missing: bool

    @property
    def targets(self) -> int:
        """Numbers that a leaf gives."""
        return int(self.weights.shape[1])


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
    if len(tables) != 8 or not all(table.is_constant for table in tables):
        return None
    roots, features, splits, modes, yes, no, missing, weights = (np.asarray(table.known) for table in tables)
    columns = shape_of(x)[1]
    if splits.dtype != np.float32 or weights.dtype != np.float32 or not isinstance(columns, int) or not len(roots):
        return None
    inner = modes != _LEAF
    if not set(np.unique(modes)) <= {_LESS_OR_EQUAL, _LESS, _LEAF} or columns > _MOST_FEATURES:
        return None
    if (features[inner] >= columns).any() or shape_of(call.params["function"].results[0])[1] != weights.shape[1]:
        return None
    # ``x < s`` is ``x <= s'`` with the next lower number.
    below = np.where(modes == _LESS, np.nextafter(splits, np.float32(-np.inf)), splits)
    below[(modes == _LESS) & np.isneginf(splits)] = np.nan
    return _packed(roots, features, below, inner, yes, no, missing & inner, weights, columns)


def _packed(
    roots: np.ndarray, features: np.ndarray, splits: np.ndarray, inner: np.ndarray, yes: np.ndarray, no: np.ndarray,
    missing: np.ndarray, weights: np.ndarray, columns: int,
) -> Ensemble | None:  # fmt: skip
    """The nodes in the order in which they are reached, level by level."""
    feature_bits = int(columns).bit_length()
    shift = feature_bits + int(missing.any())
    order, firsts, starts, depths = _by_level(roots.tolist(), inner.tolist(), yes.tolist(), no.tolist())
    filling = -len(starts) % WAYS
    if len(order) >= 1 << 31 - shift:
        return None
    # A tree of one leaf without weight, at the end.
    starts += [len(order)] * filling
    depths += [0] * filling
    node, first = np.array([*order, -1]), np.array([*firsts, 0], np.int64)
    real = node >= 0
    is_leaf = ~(real & inner[node])
    places = np.arange(len(node))
    single = weights.shape[1] == 1
    weights = np.concatenate([weights, np.zeros_like(weights[:1])])
    if single:
        of_leaf = weights[np.where(real, node, -1), 0]
        first[is_leaf] = np.where(of_leaf >= 0, places, places - 1)[is_leaf]
        weights = weights[:1]
    else:
        leaves, row = np.unique(np.where(is_leaf & real, node, len(weights) - 1), return_inverse=True)
        of_leaf, weights = row.astype(np.int32).view(np.float32), weights[leaves]
        first[is_leaf] = places[is_leaf]
    words = np.empty((len(node), 2), np.uint32)
    words[:, 0] = np.where(is_leaf, of_leaf, splits[node]).astype(np.float32).view(np.uint32)
    feature = np.where(is_leaf, columns, features[node])
    words[:, 1] = first << shift | np.where(is_leaf, 0, missing[node]).astype(np.int64) << feature_bits | feature
    return Ensemble(
        words.reshape(-1).view(np.int64), np.array(starts, np.int64), np.array(depths, np.int64),
        np.ascontiguousarray(weights), len(roots), columns, feature_bits, bool(missing.any()),
    )  # fmt: skip


def _by_level(
    roots: list[int], inner: list[bool], yes: list[int], no: list[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """The nodes of all trees in their new order, the place of each one's first child, and the trees' places and depths.

    A place is kept free before each tree, -1: its root may speak of it.
    """
    order: list[int] = []
    firsts: list[int] = []
    starts, depths = [], []
    for root in roots:
        order.append(-1)
        firsts.append(0)
        starts.append(len(order))
        level, depth = [root], -1
        while level:
            child = len(order) + len(level)
            order += level
            following: list[int] = []
            for node in level:
                firsts.append(child + len(following))
                if inner[node]:
                    following += (yes[node], no[node])
            level, depth = following, depth + 1
        depths.append(depth)
    return order, firsts, starts, depths
