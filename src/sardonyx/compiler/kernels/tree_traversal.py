"""Traversal of tree ensembles: the buffers of an ensemble, steps to the leaves, and weights of leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.tree_layout import column_bits
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.trees import TreeProblem, TreeSchedule

MOST_VECTOR_TARGETS = 16
"""Most targets whose weights are added as one vector."""


@dataclass(frozen=True)
class Forest:
    """The buffers and sizes of a :class:`sardonyx.compiler.analysis.tree_ensembles.Ensemble` in a kernel.

    Attributes:
        nodes: Pointer to the nodes.
        roots: Pointer to the index of the first node of each tree, and of the end, i64.
        steps: For every ``row_ways`` trees, pointer to the steps before the first test for completion, and the most
            steps, i64.
        top_nodes: Pointer to the nodes of tops, three i32 each.
        top_starts: Pointer to the index of the first top node of each tree, and of the end, i64.
        ends: Pointer to the nodes or leaves below tops, i32.
        rests: For each tree below its top, pointer to the steps before the first test for completion, and the most,
            i64.
        columns: Pointer to the feature of each column and the key of a missing value, i32.
        weights: Pointer to the weights of leaves, float.
        trees: Number of trees.
        features: Features of a row.
        column_count: Number of columns.
        targets: Weights of a leaf.
        shallow: True if all tops lead to leaves only.
        problem: The sizes that the schedule was chosen for.
        schedule: Groups of rows, tiles of trees and concurrent traversals.
    """

    nodes: str
    roots: str
    steps: str
    top_nodes: str
    top_starts: str
    ends: str
    rests: str
    columns: str
    weights: str
    trees: int
    features: int
    column_count: int
    targets: int
    shallow: bool
    problem: TreeProblem
    schedule: TreeSchedule

    @property
    def row_stride(self) -> int:
        """Bytes of the keys of a row, followed by a 0."""
        return self.problem.row_bytes

    @property
    def group_stride(self) -> int:
        """Bytes of the scratch memory of a group: keys by column, keys by row, sums."""
        return self.problem.group_bytes

    @property
    def padded_trees(self) -> int:
        """Number of trees, with padding to a multiple of the trees that a row traverses concurrently."""
        ways = self.schedule.row_ways
        return -(-self.trees // ways) * ways


class Traversal:
    """Concurrent traversals from nodes to leaves.

    Args:
        e: The emitter of the kernel.
        forest: The ensemble.
    """

    def __init__(self, e: Emitter, forest: Forest) -> None:
        self.e, self.forest = e, forest

    def step_counts(self, steps: str, number: str | int) -> tuple[str, str]:
        """Return the steps before the first test for completion, and the most steps, of an entry."""
        e = self.e
        pair = e.address(steps, "i64", e.mul(number, 2))
        return e.load("i64", pair, 8), e.load("i64", e.address(pair, "i64", 1), 8)

    def traverse(self, starts: Sequence[str], keys: Sequence[str], sure: str, most: str, steps: int) -> list[str]:
        """Return the limits of the leaves at the ends of several traversals.

        Args:
            starts: The first nodes.
            keys: Pointers to the keys of the rows.
            sure: Steps before the first test for completion: a test costs as much as a step and a mispredicted branch.
            most: The most steps.
            steps: Steps between two tests.
        """
        e = self.e
        at = [e.variable("i64", start) for start in starts]
        with e.loop(0, sure):
            for way, row in zip(at, keys, strict=True):
                way.set(self._next(way.get(), row))
        left = e.variable("i64", e.let(f"sub i64 {most}, {sure}"))
        moving = e.variable("i1", "true")
        with e.repeat(lambda: e.let(f"and i1 {moving.get()}, {e.let(f'icmp sgt i64 {left.get()}, 0')}")):
            nodes = [way.get() for way in at]
            for _ in range(steps):
                before = nodes
                nodes = [self._next(node, row) for node, row in zip(nodes, keys, strict=True)]
            changed = "0"
            for old, new in zip(before, nodes, strict=True):
                changed = e.let(f"or i64 {changed}, {e.let(f'xor i64 {old}, {new}')}")
            for way, node in zip(at, nodes, strict=True):
                way.set(node)
            left.set(e.let(f"sub i64 {left.get()}, {steps}"))
            moving.set(e.let(f"icmp ne i64 {changed}, 0"))
        return [e.load("i32", e.address(self.forest.nodes, "i64", way.get()), 4) for way in at]

    def _next(self, index: str, keys: str) -> str:
        """Return the index of the child for a row's key."""
        e, bits = self.e, column_bits(self.forest.column_count)
        node = e.address(self.forest.nodes, "i64", index)
        info = e.load("i32", e.address(node, "i32", 1), 4)
        column = e.let(f"zext i32 {e.let(f'and i32 {info}, {(1 << bits) - 1}')} to i64")
        first = e.let(f"zext i32 {e.let(f'lshr i32 {info}, {bits}')} to i64")
        key = e.load("i32", e.address(keys, "i32", column), 4)
        other = e.let(f"icmp ult i32 {e.load('i32', node, 4)}, {key}")
        return e.let(f"add i64 {first}, {e.let(f'zext i1 {other} to i64')}")

    @property
    def type(self) -> str:
        """The LLVM type of the weights of a leaf, for targets of a vector."""
        return "float" if self.forest.targets == 1 else f"<{self.forest.targets} x float>"

    def leaf_weights(self, limit: str) -> str:
        """Return the weights of a leaf, by its limit, for targets of a vector."""
        e = self.e
        return (
            e.let(f"bitcast i32 {limit} to float")
            if self.forest.targets == 1
            else e.load(self.type, self.weights_at(limit), 4)
        )

    def weights_at(self, limit: str) -> str:
        """Return a pointer to the weights of a leaf, by its limit."""
        e, targets = self.e, self.forest.targets
        return e.address(self.forest.weights, "float", e.mul(e.let(f"zext i32 {limit} to i64"), targets))

    def add_leaf(self, limit: str, sums: str) -> None:
        """Add the weights of a leaf, by its limit."""
        e = self.e
        if self.forest.targets <= MOST_VECTOR_TARGETS:
            self._add(self.type, sums, self.leaf_weights(limit))
            return
        weights = self.weights_at(limit)
        with e.loop(0, self.forest.targets) as at:
            self._add("float", e.address(sums, "float", at), e.load("float", e.address(weights, "float", at), 4))

    def _add(self, type: str, to: str, amount: str) -> None:
        e = self.e
        e.store(type, e.let(f"fadd {type} {e.load(type, to, 4)}, {amount}"), to, 4)
