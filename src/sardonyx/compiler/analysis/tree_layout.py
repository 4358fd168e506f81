"""Where the nodes of an ensemble lie, and the tops of its trees.

A node's children lie side by side, as a *pair* under the node's number. Pairs are put into cache lines with those of
their children: a way down a tree enters a new line every other step.

The top of a tree is the nodes from its root on that lead to at most 32 ends. Which end a row comes to is found without
walking: every node that sends it to its other child strikes out the ends below the first one, and the first end that
is left is the row's (Lucchese et al., *QuickScorer*, SIGIR 2015).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.tree_predicates import Branches

ENDS = 32
"""The most ends of a top: bits of a lane."""

LINE = 8
"""Nodes of a cache line."""

GROUP = 32
"""Rows that go together through the tops of trees."""

GROUP_WAYS = 8
"""Rows of a group that walk side by side through one tree, which is near."""

WAYS = 16
"""Trees that a single row goes through side by side: their nodes come from far."""

GROUP_STEPS, ROW_STEPS = 2, 4
"""Steps between two looks at whether all ways have arrived."""

_LONGEST = 255
"""Leaves that are further down are counted as if they were so many steps down."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where nodes lie.

    Attributes:
        roots: Of each tree.
        pairs: Of a node's first child, by node; -1 for leaves.
        count: Places, those that stay empty among them.
    """

    roots: np.ndarray
    pairs: np.ndarray
    count: int


def by_level(roots: np.ndarray, found: Branches) -> list[np.ndarray]:
    """The inner nodes that roots lead to, by the longest way to each."""
    level = np.full(len(found.inner), -1, np.int64)
    current, depth = np.unique(roots[found.inner[roots]]), 0
    while current.size:
        level[current] = depth
        below = np.concatenate([found.firsts[current], found.others[current]])
        current, depth = np.unique(below[found.inner[below]]), depth + 1
    reached = np.flatnonzero(level >= 0)
    order = reached[np.argsort(level[reached], kind="stable")]
    return np.split(order, np.searchsorted(level[order], np.arange(1, depth))) if depth else []


def heights_of(found: Branches, levels: Sequence[np.ndarray]) -> np.ndarray:
    """The longest way down from every node."""
    heights = np.zeros(len(found.inner), np.int64)
    for nodes in reversed(levels):
        heights[nodes] = 1 + np.maximum(heights[found.firsts[nodes]], heights[found.others[nodes]])
    return heights


def placed(roots: np.ndarray, found: Branches, levels: Sequence[np.ndarray]) -> Places:
    """Places for all nodes: a tree begins with a line, its root and the pairs of two levels in it."""
    number, count = np.arange(len(found.inner)), len(found.inner)
    tree, level = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    tree[roots[::-1]] = np.arange(len(roots))[::-1]
    # The pair that a pair is put into a line with: its own, or one of the even level above.
    block = number.copy()
    for depth, nodes in enumerate(levels):
        level[nodes] = depth
        for children in (found.firsts, found.others):
            below = children[nodes]
            fresh = tree[below] < 0
            tree[below[fresh]] = tree[nodes[fresh]]
            if depth % 2 == 0:
                block[below] = np.where(found.inner[below], nodes, below)
    for nodes in levels[::2]:
        block[nodes] = nodes
    order = np.concatenate([*levels, np.zeros(0, np.int64)]).astype(np.int64)
    order = order[np.lexsort((level[order], block[order], level[block[order]], tree[order]))]
    first = np.flatnonzero(np.diff(block[order], prepend=-1))
    sizes = np.diff(first, append=len(order))
    starts, begin = np.empty(len(roots), np.int64), np.empty(len(first), np.int64)
    at, next_block = 0, 0
    of_block = tree[order[first]].tolist()
    for root in range(len(roots)):
        at = -(-at // LINE) * LINE
        starts[root] = at + 1
        at += 2
        while next_block < len(of_block) and of_block[next_block] == root:
            nodes_in = 2 * int(sizes[next_block])
            if at % LINE + nodes_in > LINE >= nodes_in:
                at = -(-at // LINE) * LINE
            begin[next_block] = at
            at += nodes_in
            next_block += 1
    pairs = np.full(count, -1, np.int64)
    pairs[order] = np.repeat(begin - 2 * first, sizes) + 2 * np.arange(len(order))
    return Places(starts, pairs, at)


def column_bits(columns: int) -> int:
    """Bits of a node's column, leaves having one beyond all: as a rule a byte, which needs no instruction to mask."""
    return max(8, columns.bit_length())


def arrivals(starts: np.ndarray, found: Branches, levels: Sequence[np.ndarray]) -> np.ndarray:
    """Which part of the leaves below some nodes is at most so many steps down.

    Args:
        starts: Nodes, a row a tree; -1 for none.
        found: The nodes of the ensemble.
        levels: Those that have children.

    Returns:
        [trees, steps]; 0 throughout where a tree has no leaves of its own.
    """
    tree, steps = np.full(len(found.inner), -1, np.int64), np.zeros(len(found.inner), np.int64)
    number, place = np.nonzero(starts >= 0)
    tree[starts[number, place]] = number
    for nodes in levels:
        above = nodes[tree[nodes] >= 0]
        for children in (found.firsts, found.others):
            tree[children[above]] = tree[above]
            steps[children[above]] = np.minimum(steps[above] + 1, _LONGEST)
    leaves = np.flatnonzero(~found.inner & (tree >= 0))
    width = int(steps.max(initial=0)) + 1
    counts = np.bincount(tree[leaves] * width + steps[leaves], minlength=len(starts) * width)
    sums = np.cumsum(counts.reshape(len(starts), width), axis=1)
    return np.asarray(sums / np.maximum(sums[:, -1:], 1))


def looks(arrived: np.ndarray, most: np.ndarray, steps: int) -> np.ndarray:
    """The steps of some ways side by side before the first look at whether all have arrived, and the most steps.

    Args:
        arrived: How likely it is that all have arrived after so many steps, [n, steps].
        most: The most steps, [n].
        steps: Steps between two looks.

    Returns:
        [n, 2]: a look comes when it is more likely than not to find the way down at its end, if any does.
    """
    likely = np.argmax(arrived >= 0.5, axis=1)
    sure = np.where(likely + steps >= most, most, np.maximum(likely + 1 - steps, 0))
    return np.stack([sure, most], 1)


@dataclass(frozen=True, eq=False)
class Tops:
    """The tops of all trees.

    Attributes:
        nodes: Their nodes, tree by tree.
        masks: The ends that stay where a node sends a row to its other child; bit 31 is the first end.
        starts: Each tree's first in ``nodes``, and their number.
        ends: The nodes they lead to, [trees, ENDS]; -1 beyond the last.
    """

    nodes: np.ndarray
    masks: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def tops(roots: Sequence[int], found: Branches, heights: np.ndarray) -> Tops:
    """The tops: of each tree the nodes with the longest ways below them."""
    tall, firsts, others = heights.tolist(), found.firsts.tolist(), found.others.tolist()
    nodes, masks, starts = list[int](), list[int](), [0]
    ends = np.full((len(roots), ENDS), -1, np.int64)
    for tree, root in enumerate(roots):
        taken, children = [root], dict[int, int]()
        waiting = [(-tall[root], 0)] if tall[root] else []
        while waiting and len(children) < ENDS - 1:
            place = heapq.heappop(waiting)[1]
            children[place] = len(taken)
            for child in (firsts[taken[place]], others[taken[place]]):
                if tall[child]:
                    heapq.heappush(waiting, (-tall[child], len(taken)))
                taken.append(child)
        found_ends = list[int]()
        # From left to right; an inner node is met again when all ends below its first child are numbered.
        stack: list[tuple[int, int | None]] = [(0, None)]
        while stack:
            place, first = stack.pop()
            if first is not None:
                nodes.append(taken[place])
                count = len(found_ends)
                masks.append(~(((1 << count - first) - 1) << ENDS - count))
                stack.append((children[place] + 1, None))
            elif place in children:
                stack += [(place, len(found_ends)), (children[place], None)]
            else:
                found_ends.append(taken[place])
        ends[tree, : len(found_ends)] = found_ends
        starts.append(len(nodes))
    return Tops(np.array(nodes, np.int64), np.array(masks, np.int64).astype(np.int32), np.array(starts, np.int64), ends)
