"""Sums over tree ensembles: lanes are rows of one tree, or trees of one row.

The top levels of trees are evaluated for a group of rows without branches
(:mod:`sardonyx.compiler.analysis.tree_layout`): lanes are rows, and every node costs one comparison. Below the top,
each row is traversed on its own: a step loads a node, compares a key with its limit, and adds the outcome to the index
of the first child, without a branch. Several independent traversals hide the latency of each step. If the rows are too
few for a group, a row goes through several trees at a time; with many trees, a separate kernel shares this work among
all threads. Weights are always added tree by tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sardonyx.compiler.analysis.tree_layout import GROUP, LINE
from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.kernels.tree_traversal import MOST_VECTOR_TARGETS, Forest, Traversal
from sardonyx.compiler.llvm.ir_builder import suffix
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size, ceil_div, dim_max, dim_min


def block_rows(forest: Forest, rows: Size, threads: int) -> Size:
    """Return the rows of a work item."""
    return dim_max(dim_min(ceil_div(rows, threads), forest.schedule.item_groups * GROUP), 1)


def scratch_bytes(forest: Forest, rows: Size, threads: int) -> Size:
    """Return the bytes of scratch memory of a worker: the groups of a work item, and a row."""
    return ceil_div(block_rows(forest, rows, threads), GROUP) * forest.group_stride + forest.row_stride


def few_rows(forest: Forest, rows: Size) -> Size:
    """Return the number of rows if too few for a group, else 0."""
    return rows * dim_max(dim_min(forest.schedule.group_rows - rows, 1), 0)


def leaves_bytes(forest: Forest, rows: Size) -> Size:
    """Return the bytes of the limits of the leaves that few rows reach."""
    return 4 * forest.padded_trees * few_rows(forest, rows)


def leaves_of_few(kernel: Kernel, forest: Forest, x: str, leaves: str, scratch: str, rows: Size) -> Size:
    """Write the kernel of few rows and many trees: limits ``leaves[rows, trees]``; return the work items."""
    return _Writer(kernel, forest, x, "", scratch, leaves).write_leaves(rows)


def tree_sums(
    kernel: Kernel, forest: Forest, x: str, out: str, scratch: str, rows: Size, threads: int, leaves: str | None
) -> Size:
    """Write the kernel of ``out[rows, targets]`` from dense ``x[rows, features]``; return the work items.

    Args:
        kernel: The kernel.
        forest: The ensemble.
        x: Pointer to the rows.
        out: Pointer to the sums.
        scratch: Pointer to scratch memory, :func:`scratch_bytes` for each worker.
        rows: Number of rows.
        threads: Number of threads that share the work.
        leaves: Pointer to the result of :func:`leaves_of_few` if the forest is shared.
    """
    return _Writer(kernel, forest, x, out, scratch, leaves).write(rows, threads)


class _Writer:
    def __init__(self, kernel: Kernel, forest: Forest, x: str, out: str, scratch: str, leaves: str | None) -> None:
        self.e = kernel.emitter
        self.kernel = kernel
        self.forest = forest
        self.x = x
        self.out = out
        self.scratch = scratch
        self.leaves = leaves or "null"
        self.reached_ends = self.e.array("i32", GROUP)
        self.schedule = forest.schedule
        self.traversal = Traversal(self.e, forest)
        self.all_trees = forest.padded_trees

    def write_leaves(self, rows: Size) -> Size:
        e, forest, chunk = self.e, self.forest, self.schedule.item_trees
        chunks = -(-self.all_trees // chunk)
        keys = self._worker_scratch(forest.row_stride)
        with e.loop("%first", "%last") as item:
            row, first = e.div(item, chunks), e.mul(e.rem(item, chunks), chunk)
            last = e.least(e.add(first, chunk), self.all_trees)
            self._row_keys(e.address(self.x, "float", e.mul(row, forest.features)), keys)
            to = e.address(self.leaves, "i32", e.mul(row, self.all_trees))
            with e.loop(first, last, self.schedule.row_ways) as tree:
                for way, limit in enumerate(self._find_leaves(keys, tree)):
                    e.store("i32", limit, e.address(e.address(to, "i32", tree), "i32", way), 4)
        return few_rows(forest, rows) * chunks

    def _worker_scratch(self, bytes: str | int) -> str:
        """Return the scratch memory of the worker."""
        e = self.e
        return e.address(self.scratch, "i8", e.mul("%worker", e.mul(e.div(e.add(bytes, 63), 64), 64)))

    def write(self, rows: Size, threads: int) -> Size:
        e, forest = self.e, self.forest
        block, fewest = block_rows(forest, rows, threads), self.schedule.group_rows
        room = self._worker_scratch(self.kernel.size(scratch_bytes(forest, rows, threads)))
        total, size = self.kernel.size(rows), self.kernel.size(block)
        with e.loop("%first", "%last") as item:
            start = e.mul(item, size)
            count = e.least(e.sub(total, start), size)
            x = e.address(self.x, "float", e.mul(start, forest.features))
            out = e.address(self.out, "float", e.mul(start, forest.targets))
            groups = e.div(e.add(count, GROUP - fewest), GROUP)
            together = e.least(e.mul(groups, GROUP), count)
            with e.when(e.let(f"icmp sgt i64 {groups}, 0")):
                self._groups(x, out, room, groups, together)
            with e.loop(together, count) as row:
                values = e.address(x, "float", e.mul(row, forest.features))
                sums = e.address(out, "float", e.mul(row, forest.targets))
                few = e.let(f"icmp slt i64 {total}, {fewest}") if self.schedule.shares_trees else "false"
                with e.either(few) as branches:
                    next(branches)
                    self._row_of_leaves(e.add(start, row), sums)
                    next(branches)
                    self._row(values, room, sums)
                    next(branches, None)
        return ceil_div(rows, block)

    # Groups of rows.

    def _groups(self, x: str, out: str, room: str, groups: str | int, count: str | int) -> None:
        e, forest = self.e, self.forest
        with e.loop(0, groups) as group:
            self._keys(x, self._group_at(room, group), e.mul(group, GROUP), e.sub(count, 1))
        with e.loop(0, forest.trees, self.schedule.tile) as first:
            last = e.least(e.add(first, self.schedule.tile), forest.trees)
            following = None if forest.shallow else self._following(last, groups)
            with e.loop(0, groups) as group:
                if following is not None:
                    self._prefetch(*following, group)
                here, lanes = self._group_at(room, group), e.sub(count, e.mul(group, GROUP))
                with e.loop(first, last) as tree:
                    self._group_through(tree, here, e.least(lanes, GROUP))
        with e.loop(0, groups) as group:
            begin = e.mul(group, GROUP)
            numbers = e.mul(e.least(e.sub(count, begin), GROUP), forest.targets)
            sums = self._sums(self._group_at(room, group))
            to = e.address(out, "float", e.mul(begin, forest.targets))
            with e.loop(0, numbers) as at:
                e.store("float", e.load("float", e.address(sums, "float", at), 4), e.address(to, "float", at), 4)

    def _following(self, first: str | int, groups: str | int) -> tuple[str, str | int]:
        """Return the address of the trees after a tile, and the number of cache lines to prefetch per group."""
        e, forest = self.e, self.forest
        last = e.least(e.add(first, self.schedule.tile), forest.trees)
        begin, end = (e.load("i64", e.address(forest.roots, "i64", tree), 8) for tree in (first, last))
        lines = e.div(e.add(e.sub(end, begin), LINE - 1), LINE)
        share = e.div(e.add(lines, e.sub(groups, 1)), groups)
        return e.address(forest.nodes, "i64", begin), e.least(share, self.schedule.prefetch_lines * self.schedule.tile)

    def _prefetch(self, nodes: str, share: str | int, group: str) -> None:
        e, begin = self.e, self.e.mul(group, share)
        with e.loop(begin, e.add(begin, share)) as line:
            e.prefetch(e.address(nodes, "i64", e.mul(line, LINE)))

    def _group_at(self, room: str, group: str) -> str:
        return self.e.address(room, "i8", self.e.mul(group, self.forest.group_stride))

    def _rows_at(self, group: str) -> str:
        return self.e.address(group, "i8", GROUP * 4 * self.forest.column_count)

    def _sums(self, group: str) -> str:
        return self.e.address(self._rows_at(group), "i8", 0 if self.forest.shallow else GROUP * self.forest.row_stride)

    def _keys(self, x: str, group: str, start: str | int, last: str | int) -> None:
        """Emit the keys of a group's rows, by column and, for traversal, by row, and sums of 0.

        Rows past the last repeat the last row.
        """
        e, forest = self.e, self.forest
        with e.loop(0, GROUP) as lane:
            row = e.least(e.add(start, lane), last)
            source = e.address(x, "float", e.mul(row, forest.features))
            to = e.address(group, "float", lane)
            with e.loop(0, forest.column_count) as column:
                value = e.load("float", e.address(source, "float", self._feature(column)), 4)
                e.store("float", value, e.address(to, "float", e.mul(column, GROUP)), 4)
        with e.loop(0, forest.column_count) as column:
            at = e.address(group, "float", e.mul(column, GROUP))
            values = Vector(e, e.load(f"<{GROUP} x float>", at, 64), "float", GROUP)
            e.store(f"<{GROUP} x i32>", self._key(values, column).name, at, 64)
        sums = self._sums(group)
        with e.loop(0, GROUP * forest.targets, GROUP) as at:
            e.store(f"<{GROUP} x float>", "zeroinitializer", e.address(sums, "float", at), 4)
        if forest.shallow:
            return
        rows = self._rows_at(group)
        with e.loop(0, GROUP) as lane:
            to, source = e.address(rows, "i8", e.mul(lane, forest.row_stride)), e.address(group, "i32", lane)
            with e.loop(0, forest.column_count) as column:
                key = e.load("i32", e.address(source, "i32", e.mul(column, GROUP)), 4)
                e.store("i32", e.let(f"xor i32 {key}, {-1 << 31}"), e.address(to, "i32", column), 4)
            e.store("i32", "0", e.address(to, "i32", forest.column_count), 4)

    def _feature(self, column: str) -> str:
        e = self.e
        return e.let(f"zext i32 {e.load('i32', e.address(self.forest.columns, 'i64', column), 4)} to i64")

    def _key(self, value: Vector, column: str) -> Vector:
        """Return the keys of a column as signed integers."""
        e = self.e
        # Integer operations are exact for denormal numbers in any floating-point mode.
        bits = value.bits()
        sign = bits >> 31
        key = ((bits & 0x7FFFFFFF) ^ sign) - sign
        missing = e.load("i32", e.address(e.address(self.forest.columns, "i64", column), "i32", 1), 4)
        absent = Vector(e, e.spread(missing, value.lanes, "i32"), "i32", value.lanes)
        return value.is_nan().where(absent, key)

    def _group_through(self, tree: str, group: str, rows: str | int) -> None:
        ends = self.e.address(self.forest.ends, "i32", self.e.mul(tree, GROUP))
        end = self._end(tree, group)
        if self.forest.shallow and self.forest.targets == 1 and self.kernel.target.lanes(32) >= 8:
            self._add_from_table(end, ends, self._sums(group))
        else:
            self._traverse_rest(tree, group, rows, end, ends)

    def _end(self, tree: str, group: str) -> Vector:
        """Return the number of the end of the tree's top that each row of a group reaches."""
        e, forest = self.e, self.forest
        type = f"<{GROUP} x i32>"
        left = e.variable(type, "<" + ", ".join(["i32 -1"] * GROUP) + ">")
        first = e.load("i64", e.address(forest.top_starts, "i64", tree), 8)
        last = e.load("i64", e.address(e.address(forest.top_starts, "i64", tree), "i64", 1), 8)
        with e.loop(first, last, 3) as number:
            node = e.address(forest.top_nodes, "i32", number)
            column, limit, stay = (e.load("i32", e.address(node, "i32", at), 4) for at in range(3))
            key = e.load(type, e.address(group, "i8", e.let(f"zext i32 {column} to i64")), 64)
            limits, stays = (e.spread(scalar, GROUP, "i32") for scalar in (limit, stay))
            other = e.let(f"icmp sle {type} {limits}, {key}")
            all = "<" + ", ".join(["i32 -1"] * GROUP) + ">"
            struck = e.let(f"select <{GROUP} x i1> {other}, {type} {stays}, {type} {all}")
            left.set(e.let(f"and {type} {left.get()}, {struck}"))
        return self._leading_zeros(Vector(e, left.get(), "i32", GROUP))

    def _leading_zeros(self, bits: Vector) -> Vector:
        """Return the number of zeros before the first 1; there is at least one 1."""
        if self.kernel.target.counts_zeros:
            name = f"llvm.ctlz.{suffix(bits.type)}"
            return Vector(self.e, self.e.call(bits.type, name, [(bits.type, bits.name), ("i1", "true")]), "i32", GROUP)
        # The float exponent of a non-negative integer is the index of its first 1; clearing the bit after every 1
        # prevents the conversion from rounding up to the next power of two.
        half = bits.lshr(1)
        exponent = (half & ~half.lshr(1)).to("sitofp", "float").bits().lshr(23)
        return 157 - exponent.above(126)

    def _add_from_table(self, end: Vector, ends: str, sums: str) -> None:
        """Add the weights of ends from a table in a few vector registers."""
        e, lanes = self.e, self.kernel.target.lanes(32)
        type = f"<{lanes} x float>"
        parts = [e.load(type, e.address(ends, "float", at), 4) for at in range(0, GROUP, lanes)]
        for at in range(0, GROUP, lanes):
            order = ", ".join(f"i32 {at + lane}" for lane in range(lanes))
            which = e.let(f"shufflevector {end}, {end.type} poison, <{lanes} x i32> <{order}>")
            chosen = self._look_up(parts, Vector(e, which, "i32", lanes))
            to = e.address(sums, "float", at)
            e.store(type, e.let(f"fadd {type} {e.load(type, to, 4)}, {chosen}"), to, 4)

    def _look_up(self, parts: Sequence[str], which: Vector) -> str:
        """Return floats of a table of 32 in vector registers, by index."""
        e, floats, lanes = self.e, f"<{which.lanes} x float>", which.lanes
        if lanes == GROUP // 2:
            low, high = parts
            operands = [(floats, low), (which.type, which.name), (floats, high)]
            return e.call(floats, "llvm.x86.avx512.vpermi2var.ps.512", operands)
        candidates = [
            Vector(
                e, e.call(floats, "llvm.x86.avx2.permps", [(floats, part), (which.type, which.name)]), "float", lanes
            )
            for part in parts
        ]
        for bit in (28, 27):
            above = (which << bit) < 0
            candidates = [above.where(high, low) for low, high in zip(candidates[::2], candidates[1::2], strict=True)]
        return candidates[0].name

    def _traverse_rest(self, tree: str, group: str, count: str | int, end: Vector, ends: str) -> None:
        """Traverse from the ends of a top to leaves, and add the weights of the leaves."""
        e, forest = self.e, self.forest
        e.store(end.type, end.name, self.reached_ends, 64)
        rest = self.traversal.step_counts(forest.rests, tree)
        sums, rows = self._sums(group), self._rows_at(group)
        with e.loop(0, count, self.schedule.group_ways) as lane:
            starts, keys = [], []
            for way in range(self.schedule.group_ways):
                number = e.load("i32", e.address(e.address(self.reached_ends, "i32", lane), "i32", way), 4)
                starts.append(e.load("i32", e.address(ends, "i32", e.let(f"zext i32 {number} to i64")), 4))
                keys.append(
                    e.address(e.address(rows, "i8", e.mul(lane, forest.row_stride)), "i8", way * forest.row_stride)
                )
            if not forest.shallow:
                nodes = [e.let(f"zext i32 {start} to i64") for start in starts]
                starts = self.traversal.traverse(nodes, keys, *rest, self.schedule.group_steps)
            to = e.address(sums, "float", e.mul(lane, forest.targets))
            for way, limit in enumerate(starts):
                self.traversal.add_leaf(limit, e.address(to, "float", way * forest.targets))

    # One row.

    def _row(self, x: str, keys: str, sums: str) -> None:
        """Emit one row through trees in groups of ``row_ways``."""
        e = self.e
        self._row_keys(x, keys)
        with self._accumulate(sums) as add, e.loop(0, self.all_trees, self.schedule.row_ways) as tree:
            for limit in self._find_leaves(keys, tree):
                add(limit)

    def _row_of_leaves(self, row: str | int, sums: str) -> None:
        """Emit the sums of one row whose leaves are known."""
        e = self.e
        leaves = e.address(self.leaves, "i32", e.mul(row, self.all_trees))
        with self._accumulate(sums) as add, e.loop(0, self.forest.trees) as tree:
            add(e.load("i32", e.address(leaves, "i32", tree), 4))

    @contextmanager
    def _accumulate(self, sums: str) -> Iterator[Callable[[str], None]]:
        """Yield the addition of a leaf's weights by limit, in a register if possible.

        Sums in memory would wait for store forwarding.
        """
        e = self.e
        if self.forest.targets > MOST_VECTOR_TARGETS:
            with e.loop(0, self.forest.targets) as at:
                e.store("float", "0.0", e.address(sums, "float", at), 4)
            yield lambda limit: self.traversal.add_leaf(limit, sums)
            return
        zero = "0.0" if self.forest.targets == 1 else "zeroinitializer"
        total = e.variable(self.traversal.type, zero)
        yield lambda limit: total.set(
            e.let(f"fadd {self.traversal.type} {total.get()}, {self.traversal.leaf_weights(limit)}")
        )
        e.store(self.traversal.type, total.get(), sums, 4)

    def _row_keys(self, x: str, keys: str) -> None:
        """Emit the keys of a row, followed by a 0."""
        e, forest = self.e, self.forest
        with e.loop(0, forest.column_count) as column:
            value = Vector(e, e.load("float", e.address(x, "float", self._feature(column)), 4), "float", 1)
            e.store("i32", (self._key(value, column) ^ (-1 << 31)).name, e.address(keys, "i32", column), 4)
        e.store("i32", "0", e.address(keys, "i32", forest.column_count), 4)

    def _find_leaves(self, keys: str, tree: str) -> list[str]:
        """Return the limits of the leaves that a row reaches in ``row_ways`` trees from ``tree`` on."""
        e, forest, ways = self.e, self.forest, self.schedule.row_ways
        roots = [e.load("i64", e.address(forest.roots, "i64", e.add(tree, way)), 8) for way in range(ways)]
        counts = self.traversal.step_counts(forest.steps, e.div(tree, ways))
        return self.traversal.traverse(roots, [keys] * ways, *counts, self.schedule.row_steps)
