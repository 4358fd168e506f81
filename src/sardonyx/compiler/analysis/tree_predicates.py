"""Comparisons of tree ensembles in one form: a node goes to its first child where a key is at most a limit.

Keys are unsigned 32-bit integers in the order of the float32 numbers, -0 and 0 being one. A missing feature (NaN) has
the key below all or above all others, as the node has it; so every ordered comparison is one of this form. Where nodes
ask whether a feature is equal to something, or one of a set, they and all such nodes below that look at the same
feature are a search among intervals of keys, halved at each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST, MOST = 0x00800000, 0xFF800000
"""The keys of minus and plus infinity."""

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER, _LEAF = range(8)


def keys(numbers: np.ndarray) -> np.ndarray:
    """The keys of float32 numbers, as int64."""
    bits = numbers.astype(np.float32).view(np.int32).astype(np.int64)
    size = bits & 0x7FFFFFFF
    return np.where(bits < 0, -size, size) + (1 << 31)


@dataclass(eq=False)
class Branches:
    """Nodes of an ensemble; those that other than a tree's leads to may be reached by several ways.

    Attributes:
        inner: Which have children; the other columns tell nothing of leaves.
        features: What each looks at.
        limits: Up to which key it goes to its first child; below that of minus infinity where only a missing feature
            does.
        firsts: The first child.
        others: The other one.
        low: Whether the key of a missing feature is below all others.
    """

    inner: np.ndarray
    features: np.ndarray
    limits: np.ndarray
    firsts: np.ndarray
    others: np.ndarray
    low: np.ndarray


def branches(
    roots: np.ndarray, features: np.ndarray, splits: np.ndarray, modes: np.ndarray, yes: np.ndarray, no: np.ndarray,
    missing: np.ndarray, sets: np.ndarray, members: np.ndarray,
) -> Branches:  # fmt: skip
    """The nodes of an ensemble, from the tables of its operator."""
    upward, before = (modes == _GTE) | (modes == _GT), (modes == _LT) | (modes == _GTE)
    limits = keys(splits) - before
    # Nothing compares with NaN: all go to `no`.
    limits[np.isnan(splits)] = LEAST - 1
    limits[np.isnan(splits) & upward] = MOST
    found = Branches(
        modes != _LEAF, features.copy(), limits, np.where(upward, no, yes), np.where(upward, yes, no), missing ^ upward
    )
    if np.isin(modes, (_EQ, _NEQ, _MEMBER)).any():
        _Searches(found, splits, modes, yes, no, missing, sets, members).put(roots.tolist())
    return found


class _Searches:
    """Replaces nodes that ask for equality by searches."""

    def __init__(
        self, found: Branches, splits: np.ndarray, modes: np.ndarray, yes: np.ndarray, no: np.ndarray,
        missing: np.ndarray, sets: np.ndarray, members: np.ndarray,
    ) -> None:  # fmt: skip
        self.found = found
        self.modes, self.yes, self.no, self.missing = (each.tolist() for each in (modes, yes, no, missing))
        self.features = found.features.tolist()
        self._asked = [frozenset[int]()] * len(modes)
        for node in np.flatnonzero(np.isin(modes, (_EQ, _NEQ, _MEMBER))).tolist():
            asked = members[sets[node]] if modes[node] == _MEMBER else splits[node : node + 1]
            self._asked[node] = frozenset(keys(asked[~np.isnan(asked)]).tolist())
        self._limits: dict[int, int] = {}
        self._children: dict[int, tuple[int, int]] = {}
        self._low: dict[int, bool] = {}
        self._made: list[int] = []

    def put(self, roots: Sequence[int]) -> None:
        """Replace all that roots lead to."""
        seen, waiting = set(roots), list(roots)
        while waiting:
            node = waiting.pop()
            if self.modes[node] == _LEAF:
                continue
            following = self._searched(node) if self._asks(node) else (self.yes[node], self.no[node])
            fresh = set(following) - seen
            seen |= fresh
            waiting += fresh
        self._write()

    def _asks(self, node: int) -> bool:
        return self.modes[node] in (_EQ, _NEQ, _MEMBER)

    def _searched(self, node: int) -> list[int]:
        """Make a node the first of a search; returns where it ends."""
        exits: dict[int, int] = {}
        general = self._followed(node, exits)
        missing = self._of_missing(node)
        # Up to which key, and where to.
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
        self._halved(node, self.features[node], merged, low)
        return [end for _, end in merged]

    def _followed(self, node: int, exits: dict[int, int]) -> int:
        """Where the keys that some node asks for go, and all the others (returned)."""
        feature = self.features[node]
        wanted: set[int] | None = None
        waiting: list[tuple[int, set[int] | None]] = [(node, wanted)]
        general, asked = node, set[int]()
        while waiting:
            at, wanted = waiting.pop()
            if not self._asks(at) or self.features[at] != feature:
                if wanted is None:
                    general = at
                else:
                    exits.update(dict.fromkeys(wanted, at))
                continue
            # Keys that went another way before are not here any more.
            hits = self._asked[at] - asked if wanted is None else self._asked[at] & wanted
            equal, other = (self.no, self.yes) if self.modes[at] == _NEQ else (self.yes, self.no)
            waiting.append((other[at], None if wanted is None else wanted - hits))
            waiting.append((equal[at], set(hits)))
            if wanted is None:
                asked |= hits
        return general

    def _of_missing(self, node: int) -> int:
        feature = self.features[node]
        while self._asks(node) and self.features[node] == feature:
            holds = self.missing[node] or self.modes[node] == _NEQ
            node = self.yes[node] if holds else self.no[node]
        return node

    def _halved(self, node: int, feature: int, ends: list[tuple[int, int]], low: bool) -> None:
        """Write the search among intervals of keys as ``node``, and new nodes below it."""
        half = max(1, len(ends) // 2)
        parts = ends[:half], ends[half:] or ends
        self._limits[node], self._low[node] = parts[0][-1][0], low
        children = []
        for part in parts:
            if len(part) == 1:
                children.append(part[0][1])
                continue
            fresh = len(self.modes) + len(self._made)
            self._made.append(feature)
            children.append(fresh)
            self._halved(fresh, feature, part, low)
        self._children[node] = children[0], children[1]

    def _write(self) -> None:
        found, more = self.found, len(self._made)
        found.inner = np.concatenate([found.inner, np.ones(more, bool)])
        found.features = np.concatenate([found.features, np.array(self._made, np.int64)])
        for name in ("limits", "firsts", "others", "low"):
            column = getattr(found, name)
            setattr(found, name, np.concatenate([column, np.zeros(more, column.dtype)]))
        nodes = np.array(list(self._limits), np.int64)
        found.limits[nodes] = list(self._limits.values())
        found.low[nodes] = [self._low[node] for node in self._limits]
        children = np.array([self._children[node] for node in self._limits], np.int64)
        found.firsts[nodes], found.others[nodes] = children[:, 0], children[:, 1]
