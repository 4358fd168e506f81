"""Sums over tree ensembles: several ways through trees at a time, side by side.

A step loads a node, compares a feature with its split, and adds the outcome to the place of the first child: nothing
jumps. Sixteen ways at once hide that each step waits for the one before. Rows go together through one tree after the
other, which then is in the cache; what is left of a block, or a single row, goes through sixteen trees at a time.
Weights are added tree by tree in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sardonyx.compiler.emitter import Variable
from sardonyx.compiler.kernels.kernel import Kernel
from sardonyx.core.dim import Size, ceil_div

WAYS = 16
"""Ways that are walked side by side."""

_STEPS = 3
"""Steps between two looks at whether all have arrived."""

_BLOCK_BYTES = 16384


@dataclass(frozen=True)
class Forest:
    """An ensemble as the kernel sees it (see :class:`sardonyx.compiler.trees.Ensemble`).

    Attributes:
        nodes: Pointer to the nodes.
        roots: Pointer to the first node of each tree, i64.
        depths: Pointer to the most steps of each tree, i64.
        weights: Pointer to the weights of leaves, float.
        trees: How many trees.
        features: Columns of the rows.
        feature_bits: Bits of a node's feature.
        missing: Whether the bit above says what a missing feature counts as.
        targets: Numbers that a leaf gives.
    """

    nodes: str
    roots: str
    depths: str
    weights: str
    trees: int
    features: int
    feature_bits: int
    missing: bool
    targets: int


def block_rows(features: int) -> int:
    """Rows of a work item: as many as the first-level cache holds, beside a tree."""
    return max(WAYS, min(128, _BLOCK_BYTES // (4 * (features + 1)) // WAYS * WAYS))


def scratch_bytes(features: int) -> int:
    """What a worker needs for its rows, each with a 0 behind it."""
    return block_rows(features) * (features + 1) * 4


def tree_sums(kernel: Kernel, forest: Forest, x: str, out: str, scratch: str, rows: Size) -> Size:
    """Write the kernel: ``out[rows, targets]`` from ``x[rows, features]``, both dense; returns the work items."""
    return _Writer(kernel, forest, x, out, scratch).write(rows)


class _Writer:
    def __init__(self, kernel: Kernel, forest: Forest, x: str, out: str, scratch: str) -> None:
        self.e = kernel.emitter
        self.kernel = kernel
        self.forest = forest
        self.x = x
        self.out = out
        self.scratch = scratch
        self.stride = 4 * (forest.features + 1)

    def write(self, rows: Size) -> Size:
        e, block = self.e, block_rows(self.forest.features)
        total = self.kernel.size(rows)
        room = e.address(self.scratch, "i8", e.mul("%worker", -(-scratch_bytes(self.forest.features) // 64) * 64))
        with e.loop("%first", "%last") as item:
            start = e.mul(item, block)
            count = e.least(e.sub(total, start), block)
            targets = self.forest.targets
            sums = e.address(self.out, "float", e.mul(start, targets))
            self._copied(e.address(self.x, "float", e.mul(start, self.forest.features)), room, count)
            with e.loop(0, e.mul(count, targets)) as at:
                e.store("float", "0.0", e.address(sums, "float", at), 4)
            whole = e.let(f"and i64 {count}, {-WAYS}")
            with e.when(e.let(f"icmp sgt i64 {whole}, 0")), e.loop(0, self.forest.trees) as tree:
                self._rows_through(tree, room, sums, whole)
            with e.loop(whole, count) as row:
                self._row_through_all(
                    e.address(room, "i8", e.mul(row, self.stride)), e.address(sums, "float", e.mul(row, targets))
                )
        return ceil_div(rows, block)

    def _copied(self, source: str, room: str, count: str | int) -> None:
        e, features = self.e, self.forest.features
        with e.loop(0, count) as row:
            to, since = e.address(room, "i8", e.mul(row, self.stride)), e.address(source, "float", e.mul(row, features))
            with e.loop(0, features) as at:
                e.store("float", e.load("float", e.address(since, "float", at), 4), e.address(to, "float", at), 4)
            e.store("float", "0.0", e.address(to, "float", features), 4)

    def _rows_through(self, tree: str, room: str, sums: str, count: str) -> None:
        """Rows in groups of ``WAYS`` through one tree."""
        e, targets = self.e, self.forest.targets
        root = e.load("i64", e.address(self.forest.roots, "i64", tree), 8)
        depth = e.load("i64", e.address(self.forest.depths, "i64", tree), 8)
        with e.loop(0, count, WAYS) as row:
            first = e.address(room, "i8", e.mul(row, self.stride))
            rows = [e.address(first, "i8", way * self.stride) for way in range(WAYS)]
            leaves = self._walked([root] * WAYS, rows, depth)
            here = e.address(sums, "float", e.mul(row, targets))
            for way, leaf in enumerate(leaves):
                self._added(leaf, e.address(here, "float", way * targets))

    def _row_through_all(self, row: str, sums: str) -> None:
        """One row through trees in groups of ``WAYS``."""
        e, trees = self.e, self.forest.trees
        with e.loop(0, -(-trees // WAYS) * WAYS, WAYS) as group:
            roots, depth = [], "0"
            for way in range(WAYS):
                tree = e.add(group, way)
                roots.append(e.load("i64", e.address(self.forest.roots, "i64", tree), 8))
                depth = str(e.most(depth, e.load("i64", e.address(self.forest.depths, "i64", tree), 8)))
            for leaf in self._walked(roots, [row] * WAYS, depth):
                self._added(leaf, sums)

    def _walked(self, roots: Sequence[str], rows: Sequence[str], depth: str) -> list[str]:
        """The leaves that ways end at, as places of nodes."""
        e = self.e
        at = [e.variable("i64", root) for root in roots]
        left = e.variable("i64", depth)
        moving = e.variable("i1", "true")
        self._while(lambda: self._goes_on(left, moving), lambda: self._steps(at, rows, left, moving))
        return [way.get() for way in at]

    def _while(self, condition: Callable[[], str], body: Callable[[], None]) -> None:
        e = self.e
        head, inside, done = (e.fresh(stem) for stem in ("head", "body", "done"))
        e.line(f"br label %{head}")
        e.label(head)
        e.line(f"br i1 {condition()}, label %{inside}, label %{done}")
        e.label(inside)
        body()
        e.line(f"br label %{head}")
        e.label(done)

    def _goes_on(self, left: Variable, moving: Variable) -> str:
        e = self.e
        return e.let(f"and i1 {moving.get()}, {e.let(f'icmp sgt i64 {left.get()}, 0')}")

    def _steps(self, at: Sequence[Variable], rows: Sequence[str], left: Variable, moving: Variable) -> None:
        e = self.e
        places = [way.get() for way in at]
        for _ in range(_STEPS):
            before = places
            places = [self._next(place, row) for place, row in zip(places, rows, strict=True)]
        changed = "0"
        for old, new in zip(before, places, strict=True):
            changed = e.let(f"or i64 {changed}, {e.let(f'xor i64 {old}, {new}')}")
        for way, place in zip(at, places, strict=True):
            way.set(place)
        left.set(e.let(f"sub i64 {left.get()}, {_STEPS}"))
        moving.set(e.let(f"icmp ne i64 {changed}, 0"))

    def _next(self, place: str, row: str) -> str:
        """The child that a row goes to."""
        e, forest = self.e, self.forest
        node = e.address(forest.nodes, "i64", place)
        info = e.load("i32", e.address(node, "i32", 1), 4)
        feature = e.let(f"zext i32 {e.let(f'and i32 {info}, {(1 << forest.feature_bits) - 1}')} to i64")
        shift = forest.feature_bits + int(forest.missing)
        first = e.let(f"zext i32 {e.let(f'lshr i32 {info}, {shift}')} to i64")
        value = e.load("float", e.address(row, "float", feature), 4)
        other = e.let(f"fcmp ugt float {value}, {e.load('float', node, 4)}")
        if forest.missing:
            marked = e.let(f"icmp ne i32 {e.let(f'and i32 {info}, {1 << forest.feature_bits}')}, 0")
            absent = e.let(f"fcmp uno float {value}, 0.0")
            counts = e.let(f"and i1 {marked}, {absent}")
            other = e.let(f"and i1 {other}, {e.let(f'xor i1 {counts}, true')}")
        return e.let(f"add i64 {first}, {e.let(f'zext i1 {other} to i64')}")

    def _added(self, leaf: str, sums: str) -> None:
        e, targets = self.e, self.forest.targets
        node = e.address(self.forest.nodes, "i64", leaf)
        if targets == 1:
            self._add(sums, e.load("float", node, 4))
            return
        number = e.let(f"zext i32 {e.load('i32', node, 4)} to i64")
        weights = e.address(self.forest.weights, "float", e.mul(number, targets))
        if targets <= WAYS:
            for target in range(targets):
                self._add(e.address(sums, "float", target), e.load("float", e.address(weights, "float", target), 4))
            return
        with e.loop(0, targets) as at:
            self._add(e.address(sums, "float", at), e.load("float", e.address(weights, "float", at), 4))

    def _add(self, to: str, amount: str) -> None:
        e = self.e
        e.store("float", e.let(f"fadd float {e.load('float', to, 4)}, {amount}"), to, 4)
