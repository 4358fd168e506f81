"""Normalization of tree comparisons: a node goes to the first child if a key is at most a limit.

Keys are unsigned 32-bit integers in the order of the float32 numbers, with equal keys for -0 and 0. A missing feature
(NaN) has a key below or above all others, as the node demands: every ordered comparison has this form. Nodes that test
for equality or set membership become a binary search among intervals of keys, together with all such descendants on
the same feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST, MOST = 0x00800000, 0xFF800000
"""The keys of minus and plus infinity."""

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(8)


def keys(numbers: np.ndarray) -> np.ndarray:
    """Return the keys of float32 numbers, as int64."""
    bits = numbers.astype(np.float32).view(np.int32).astype(np.int64)
    size = bits & 0x7FFFFFFF
    return np.where(bits < 0, -size, size) + (1 << 31)


@dataclass(eq=False)
class Branches:
    """The nodes of an ensemble.

    A node other than a root may have several parents.

    Attributes:
        inner: True for a node with children; the other attributes are undefined for leaves.
        features: The compared feature.
        limits: The largest key for the first child; one less than the key of minus infinity if only a missing feature
            goes there.
        firsts: The first child.
        others: The second child.
        low: True if the key of a missing feature is below all others.
    """

    inner: np.ndarray
    features: np.ndarray
    limits: np.ndarray
    firsts: np.ndarray
    others: np.ndarray
    low: np.ndarray


def normalize_branches(
    roots: np.ndarray, features: np.ndarray, splits: np.ndarray, modes: np.ndarray, yes: np.ndarray, no: np.ndarray,
    missing: np.ndarray, sets: np.ndarray, members: np.ndarray,
) -> Branches:  # fmt: skip
    """Return the nodes of an ensemble from the tables of its operator."""
    upward, before = (modes == _GTE) | (modes == _GT), (modes == _LT) | (modes == _GTE)
    limits = keys(splits) - before
    # Comparisons with a NaN split are false: all keys go to `no`.
    limits[np.isnan(splits)] = LEAST - 1
    limits[np.isnan(splits) & upward] = MOST
    branches = Branches(
        modes != _LEAF, features.copy(), limits, np.where(upward, no, yes), np.where(upward, yes, no), missing ^ upward
    )
    if np.isin(modes, (_EQ, _NEQ, _MEMBER)).any():
        _Searches(branches, splits, modes, yes, no, missing, sets, members).insert(roots.tolist())
    return branches


class _Searches:
    """Replaces equality and membership tests by binary searches."""

    def __init__(
        self, branches: Branches, splits: np.ndarray, modes: np.ndarray, yes: np.ndarray, no: np.ndarray,
        missing: np.ndarray, sets: np.ndarray, members: np.ndarray,
    ) -> None:  # fmt: skip
        self.branches = branches
        self.modes, self.yes, self.no, self.missing = (table.tolist() for table in (modes, yes, no, missing))
        self.features = branches.features.tolist()
        self._accepted = [frozenset[int]()] * len(modes)
        for node in np.flatnonzero(np.isin(modes, (_EQ, _NEQ, _MEMBER))).tolist():
            numbers = members[sets[node]] if modes[node] == _MEMBER else splits[node : node + 1]
            self._accepted[node] = frozenset(keys(numbers[~np.isnan(numbers)]).tolist())
        self._limits: dict[int, int] = {}
        self._children: dict[int, tuple[int, int]] = {}
        self._low: dict[int, bool] = {}
        self._new_features: list[int] = []

    def insert(self, roots: Sequence[int]) -> None:
        """Replace all equality and membership tests below the roots."""
        seen, waiting = set(roots), list(roots)
        while waiting:
            node = waiting.pop()
            if self.modes[node] == _LEAF:
                continue
            following = self._build_search(node) if self._tests_equality(node) else (self.yes[node], self.no[node])
            fresh = set(following) - seen
            seen |= fresh
            waiting += fresh
        self._write()

    def _tests_equality(self, node: int) -> bool:
        return self.modes[node] in (_EQ, _NEQ, _MEMBER)

    def _build_search(self, node: int) -> list[int]:
        """Make a node the root of a search; return the nodes to which the search leads."""
        exits: dict[int, int] = {}
        general = self._trace_keys(node, exits)
        missing = self._trace_missing(node)
        # Pairs of the largest key of an interval and its target node.
        ends: list[tuple[int, int]] = []
        for key in sorted(exits):
            ends += [(key - 1, general), (key, exits[key])]
        ends.append((MOST, general))
        above, merged = LEAST - 1, list[tuple[int, int]]()
        for key, end in ends:
            if key <= above:
                continue
            if merged and merged[-1][1] == end:
                merged.pop()
            merged.append((key, end))
            above = key
        low = missing == merged[0][1]
        if not low and missing != merged[-1][1]:
            merged.append((MOST + 1, missing))
        self._write_search(node, self.features[node], merged, low)
        return [end for _, end in merged]

    def _trace_keys(self, node: int, exits: dict[int, int]) -> int:
        """Store the target of each key that a test names in ``exits``; return the target of all other keys."""
        feature = self.features[node]
        # Keys that reach a node; None for all keys that no earlier test has accepted.
        reaching: set[int] | None = None
        waiting: list[tuple[int, set[int] | None]] = [(node, reaching)]
        general, accepted = node, set[int]()
        while waiting:
            current, reaching = waiting.pop()
            if not self._tests_equality(current) or self.features[current] != feature:
                if reaching is None:
                    general = current
                else:
                    exits.update(dict.fromkeys(reaching, current))
                continue
            hits = self._accepted[current] - accepted if reaching is None else self._accepted[current] & reaching
            equal, other = (self.no, self.yes) if self.modes[current] == _NEQ else (self.yes, self.no)
            waiting.append((other[current], None if reaching is None else reaching - hits))
            waiting.append((equal[current], set(hits)))
            if reaching is None:
                accepted |= hits
        return general

    def _trace_missing(self, node: int) -> int:
        feature = self.features[node]
        while self._tests_equality(node) and self.features[node] == feature:
            holds = self.missing[node] or self.modes[node] == _NEQ
            node = self.yes[node] if holds else self.no[node]
        return node

    def _write_search(self, node: int, feature: int, ends: list[tuple[int, int]], low: bool) -> None:
        """Write a binary search among intervals of keys, with ``node`` as its root and new nodes below."""
        half = max(1, len(ends) // 2)
        parts = ends[:half], ends[half:] or ends
        self._limits[node], self._low[node] = parts[0][-1][0], low
        children = []
        for part in parts:
            if len(part) == 1:
                children.append(part[0][1])
                continue
            fresh = len(self.modes) + len(self._new_features)
            self._new_features.append(feature)
            children.append(fresh)
            self._write_search(fresh, feature, part, low)
        self._children[node] = children[0], children[1]

    def _write(self) -> None:
        branches, more = self.branches, len(self._new_features)
        branches.inner = np.concatenate([branches.inner, np.ones(more, bool)])
        branches.features = np.concatenate([branches.features, np.array(self._new_features, np.int64)])
        for name in ("limits", "firsts", "others", "low"):
            column = getattr(branches, name)
            setattr(branches, name, np.concatenate([column, np.zeros(more, column.dtype)]))
        nodes = np.array(list(self._limits), np.int64)
        branches.limits[nodes] = list(self._limits.values())
        branches.low[nodes] = [self._low[node] for node in self._limits]
        children = np.array([self._children[node] for node in self._limits], np.int64)
        branches.firsts[nodes], branches.others[nodes] = children[:, 0], children[:, 1]
