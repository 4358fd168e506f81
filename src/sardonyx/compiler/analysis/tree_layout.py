"""Memory layout of tree ensembles: the index of each node, and the tops of trees.

The children of a node are adjacent, as a *pair* under the node's number. A pair shares a cache line with the pairs of
its two nodes: a traversal enters a new line every other step.

The *top* of a tree is the nodes from the root to at most 32 *ends*. The end of a row is computed without a traversal:
every node that sends the row to the second child clears the ends below the first child, and the first remaining end is
the row's (Lucchese et al., *QuickScorer*, SIGIR 2015).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.tree_predicates import Branches

ENDS = 32
"""Maximum number of ends of a top: bits of a lane."""

LINE = 8
"""Nodes of a cache line."""

GROUP = 32
"""Rows that are evaluated concurrently in the tops of trees."""

_LONGEST = 255
"""Maximum depth in statistics: deeper leaves are counted at this depth."""


@dataclass(frozen=True, eq=False)
class Placement:
    """The indices of nodes in the table.

    Attributes:
        roots: Index of each tree's root.
        pairs: For each node, the index of the first child; -1 for leaves.
        count: Number of indices, including unused ones.
    """

    roots: np.ndarray
    pairs: np.ndarray
    count: int


def nodes_by_level(roots: np.ndarray, branches: Branches) -> list[np.ndarray]:
    """Return the inner nodes below the roots, grouped by the longest path from a root."""
    level = np.full(len(branches.inner), -1, np.int64)
    current, depth = np.unique(roots[branches.inner[roots]]), 0
    while current.size:
        level[current] = depth
        below = np.concatenate([branches.firsts[current], branches.others[current]])
        current, depth = np.unique(below[branches.inner[below]]), depth + 1
    reached = np.flatnonzero(level >= 0)
    order = reached[np.argsort(level[reached], kind="stable")]
    return np.split(order, np.searchsorted(level[order], np.arange(1, depth))) if depth else []


def heights_of(branches: Branches, levels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the length of the longest path below each node."""
    heights = np.zeros(len(branches.inner), np.int64)
    for nodes in reversed(levels):
        heights[nodes] = 1 + np.maximum(heights[branches.firsts[nodes]], heights[branches.others[nodes]])
    return heights


def place_nodes(roots: np.ndarray, branches: Branches, levels: Sequence[np.ndarray]) -> Placement:
    """Assign indices: a tree starts with a cache line that holds the root and the pairs of two levels."""
    number, count = np.arange(len(branches.inner)), len(branches.inner)
    tree, level = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    tree[roots[::-1]] = np.arange(len(roots))[::-1]
    # The first pair of the cache line of each pair: the pair itself, or its parent on an even level.
    block = number.copy()
    for depth, nodes in enumerate(levels):
        level[nodes] = depth
        for children in (branches.firsts, branches.others):
            below = children[nodes]
            fresh = tree[below] < 0
            tree[below[fresh]] = tree[nodes[fresh]]
            if depth % 2 == 0:
                block[below] = np.where(branches.inner[below], nodes, below)
    for nodes in levels[::2]:
        block[nodes] = nodes
    order = np.concatenate([*levels, np.zeros(0, np.int64)]).astype(np.int64)
    order = order[np.lexsort((level[order], block[order], level[block[order]], tree[order]))]
    first = np.flatnonzero(np.diff(block[order], prepend=-1))
    sizes = np.diff(first, append=len(order))
    starts, begin = np.empty(len(roots), np.int64), np.empty(len(first), np.int64)
    index, next_block = 0, 0
    of_block = tree[order[first]].tolist()
    for root in range(len(roots)):
        index = -(-index // LINE) * LINE
        starts[root] = index + 1
        index += 2
        while next_block < len(of_block) and of_block[next_block] == root:
            block_nodes = 2 * int(sizes[next_block])
            if index % LINE + block_nodes > LINE >= block_nodes:
                index = -(-index // LINE) * LINE
            begin[next_block] = index
            index += block_nodes
            next_block += 1
    pairs = np.full(count, -1, np.int64)
    pairs[order] = np.repeat(begin - 2 * first, sizes) + 2 * np.arange(len(order))
    return Placement(starts, pairs, index)


def column_bits(columns: int) -> int:
    """Return the bits of a node's column, with one extra column for leaves.

    At least a byte, which most columns fit and which needs no instruction to mask.
    """
    return max(8, columns.bit_length())


def arrival_shares(starts: np.ndarray, branches: Branches, levels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the share of the leaves below some nodes that are reached within each number of steps.

    Args:
        starts: A row of nodes for each tree; -1 for none.
        branches: The nodes of the ensemble.
        levels: The inner nodes by level.

    Returns:
        [trees, steps]; 0 throughout if a tree has no leaves of its own.
    """
    tree, steps = np.full(len(branches.inner), -1, np.int64), np.zeros(len(branches.inner), np.int64)
    number, column = np.nonzero(starts >= 0)
    tree[starts[number, column]] = number
    for nodes in levels:
        above = nodes[tree[nodes] >= 0]
        for children in (branches.firsts, branches.others):
            tree[children[above]] = tree[above]
            steps[children[above]] = np.minimum(steps[above] + 1, _LONGEST)
    leaves = np.flatnonzero(~branches.inner & (tree >= 0))
    width = int(steps.max(initial=0)) + 1
    counts = np.bincount(tree[leaves] * width + steps[leaves], minlength=len(starts) * width)
    sums = np.cumsum(counts.reshape(len(starts), width), axis=1)
    return np.asarray(sums / np.maximum(sums[:, -1:], 1))


def completion_tests(arrived: np.ndarray, most: np.ndarray, steps: int) -> np.ndarray:
    """Return the steps of concurrent traversals before the first test for completion, and the most steps.

    Args:
        arrived: Probability that all traversals are complete after each number of steps, [n, steps].
        most: The most steps, [n].
        steps: Steps between two tests.

    Returns:
        [n, 2]: the first test is placed where completion is at least as likely as not, or is omitted if no such step
        precedes the end.
    """
    likely = np.argmax(arrived >= 0.5, axis=1)
    sure = np.where(likely + steps >= most, most, np.maximum(likely + 1 - steps, 0))
    return np.stack([sure, most], 1)


@dataclass(frozen=True, eq=False)
class Tops:
    """The tops of all trees.

    Attributes:
        nodes: The inner nodes of the tops, tree by tree.
        masks: For each node, the ends that remain if a row goes to the second child; bit 31 is the first end.
        starts: Offset of each tree in ``nodes``, and the number of nodes.
        ends: The nodes below each top, [trees, ENDS]; -1 after the last.
    """

    nodes: np.ndarray
    masks: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def build_tops(roots: Sequence[int], branches: Branches, heights: np.ndarray) -> Tops:
    """Select the top of each tree: the nodes with the longest paths below."""
    tall, firsts, others = heights.tolist(), branches.firsts.tolist(), branches.others.tolist()
    nodes, masks, starts = list[int](), list[int](), [0]
    ends = np.full((len(roots), ENDS), -1, np.int64)
    for tree, root in enumerate(roots):
        members, children = [root], dict[int, int]()
        waiting = [(-tall[root], 0)] if tall[root] else []
        while waiting and len(children) < ENDS - 1:
            member = heapq.heappop(waiting)[1]
            children[member] = len(members)
            for child in (firsts[members[member]], others[members[member]]):
                if tall[child]:
                    heapq.heappush(waiting, (-tall[child], len(members)))
                members.append(child)
        tree_ends = list[int]()
        # From left to right; an inner node is visited again when all ends below its first child are numbered.
        stack: list[tuple[int, int | None]] = [(0, None)]
        while stack:
            member, first = stack.pop()
            if first is not None:
                nodes.append(members[member])
                count = len(tree_ends)
                masks.append(~(((1 << count - first) - 1) << ENDS - count))
                stack.append((children[member] + 1, None))
            elif member in children:
                stack += [(member, len(tree_ends)), (children[member], None)]
            else:
                tree_ends.append(members[member])
        ends[tree, : len(tree_ends)] = tree_ends
        starts.append(len(nodes))
    return Tops(np.array(nodes, np.int64), np.array(masks, np.int64).astype(np.int32), np.array(starts, np.int64), ends)
