"""Fused attention, ``softmax(scale * Q K^T, masked) V`` over heads, without storing all scores.

A work item is a block of queries of one head, in register tiles. Keys are processed in blocks, each for all tiles of
the item, so that a block is in cache for all but the first tile: scores of a block, their exponentials relative to the
maximum so far, and the weighted values; sums of earlier blocks shrink as the maximum grows (Milakov and Gimelshein,
arXiv:1805.02867). The keys of a head are packed in panels once for all consecutive blocks of queries; a single query
reads keys in place.

The blocks do not depend on the split of the work, and neither do the results.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.gemm.gemv import Lines, dots, emit_lane_sum
from sardonyx.compiler.kernels.gemm.microkernel import accumulate, read
from sardonyx.compiler.kernels.gemm.operands import Matrix
from sardonyx.compiler.kernels.gemm.packing import fill
from sardonyx.compiler.llvm.ir_builder import Variable, float_literal, splat
from sardonyx.compiler.llvm.vector_value import Vector, polynomial
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.attention import AttentionSchedule
from sardonyx.compiler.tiling.gemm_schedule import DOT_ROWS
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir.types import FLOAT, DType

_LOWEST = float_literal(-math.inf, "float")

_POWER_OF_TWO = (
    1.0, 0.6931469775960118, 0.24022242081223405, 0.055507337463210404, 0.009671512897915225, 0.0013264726948841016,
)  # fmt: skip
"""Coefficients of ``2**f`` for ``|f| <= 1/2``, with a relative error of 9.1e-8."""

Score = Callable[[tuple[Index, ...], str, "str | None"], str]
"""A change of a vector of scores before the softmax.

By index (batch, head, query, key), along keys, value, and mask of the lanes that exist (None: all).
"""


@dataclass(frozen=True)
class Heads:
    """An operand of attention in memory: elements by batch, head, row (query or key) and column.

    Attributes:
        pointer: Address of the first element.
        dtype: The element type.
        batch: Stride of batches, in elements.
        head: Stride of heads.
        row: Stride of rows.
        column: Stride of columns; a known 1 makes loads of whole vectors possible.
    """

    pointer: str
    dtype: DType
    batch: str | int
    head: str | int
    row: str | int
    column: str | int


def scratch_bytes(schedule: AttentionSchedule, keys: Size, depth: Size, width: Size) -> Size:
    """Return the bytes of scratch memory of a worker.

    Packed keys and values of a head, scores, and weighted sums.

    Args:
        schedule: The schedule.
        keys: Keys of a head.
        depth: Columns of queries and keys.
        width: Columns of values.
    """
    tile = schedule.tile
    padded = ceil_div(width, tile.columns) * tile.columns
    packed = ceil_div(keys, tile.columns) * tile.columns * depth
    if schedule.values != "in place":
        packed = packed + keys * padded
    return 4 * (packed + tile.rows * (schedule.key_block + schedule.tiles_per_item * padded))


def attention(
    kernel: Kernel,
    *,
    schedule: AttentionSchedule,
    batch: Size,
    heads: Size,
    queries: Size,
    keys: Size,
    depth: Size,
    width: Size,
    q: Heads,
    k: Heads,
    v: Heads,
    epilogue: Epilogue,
    scratch: str,
    group: Size = 1,
    scale: float = 1.0,
    score: Score | None = None,
    causal: Size | None = None,
) -> Size:
    """Write attention into a kernel.

    A query that sees no key, or whose scores are all minus infinity, results in NaN (0 / 0).

    Args:
        kernel: The kernel; its work items become those of attention.
        schedule: The schedule.
        batch: Batches.
        heads: Heads of queries.
        queries: Queries of a head.
        keys: Keys of a head.
        depth: Columns of ``q`` and ``k``.
        width: Columns of ``v`` and of the result.
        q: Queries, [batch, heads, queries, depth].
        k: Keys, [batch, heads // group, keys, depth].
        v: Values, [batch, heads // group, keys, width].
        epilogue: Gets every vector of the result, along columns, with the indices (batch, head, query, column).
        scratch: Scratch memory, :func:`scratch_bytes` for each worker.
        group: Heads of queries that share one head of keys and values.
        scale: Factor of the scores.
        score: Elementwise operations on the scores before the softmax.
        causal: Query ``i`` sees the keys up to ``i + causal``; None: all.

    Returns:
        The number of work items.
    """
    sizes = {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "depth": depth, "width": width}
    return _Attention(kernel, schedule, sizes, q, k, v, epilogue, scratch, group, scale, score, causal).write()


@dataclass(frozen=True)
class _Head:
    """The addresses of the operands of one head, with the head's indices."""

    q: str
    k: str
    v: str
    at: tuple[Index, Index]


@dataclass(frozen=True)
class _Queries:
    """A tile of queries of a head.

    Attributes:
        row: The first query.
        number: Index of the first query in the work item.
        count: Number of queries.
    """

    row: str | int
    number: str | int
    count: str | int


class _Attention:
    """The emitter of attention."""

    def __init__(
        self,
        kernel: Kernel,
        schedule: AttentionSchedule,
        sizes: dict[str, Size],
        q: Heads,
        k: Heads,
        v: Heads,
        epilogue: Epilogue,
        scratch: str,
        group: Size,
        scale: float,
        score: Score | None,
        causal: Size | None,
    ) -> None:
        e = self.e = kernel.emitter
        self.schedule, tile = schedule, schedule.tile
        self.tile = tile
        key_block, tiles_per_item = schedule.key_block, schedule.tiles_per_item
        self.sizes = sizes
        self.heads, self.queries, self.keys, self.depth, self.width = (
            kernel.size(sizes[name]) for name in ("heads", "queries", "keys", "depth", "width")
        )
        self.group = kernel.size(group)
        self.causal = None if causal is None else kernel.size(causal)
        self.q, self.k, self.v = q, k, v
        self.epilogue, self.score, self.scale = epilogue, score, scale
        self.packed_head = e.variable("i64", "-1")
        self.greatest, self.total, self.shrink = (e.array("float", tile.rows * tiles_per_item) for _ in range(3))
        self.padded = e.mul(e.div(e.add(self.width, tile.columns - 1), tile.columns), tile.columns)
        panels = e.div(e.add(self.keys, tile.columns - 1), tile.columns)
        self.panel_size = e.mul(self.depth, tile.columns)
        packed, values = e.mul(panels, self.panel_size), e.mul(self.keys, self.padded)
        if schedule.values == "in place":
            values = 0
        rest = e.mul(tile.rows, e.add(key_block, e.mul(tiles_per_item, self.padded)))
        self.packed = e.address(scratch, "float", e.mul("%worker", e.add(e.add(packed, values), rest)))
        self.packed_values = e.address(self.packed, "float", packed)
        self.scores = e.address(self.packed_values, "float", values)
        self.sums = e.address(self.scores, "float", tile.rows * key_block)

    # The loops.

    def write(self) -> Size:
        """Write the loop over work items; return the number of items."""
        e, rows = self.e, self.tile.rows
        block_rows = rows * self.schedule.tiles_per_item
        blocks = e.div(e.add(self.queries, block_rows - 1), block_rows)
        with e.loop("%first", "%last") as item:
            number, block = e.div(item, blocks), e.rem(item, blocks)
            batch, head = e.div(number, self.heads), e.rem(number, self.heads)
            owner = e.div(head, self.group)
            owners = e.div(self.heads, self.group)
            owner_number = e.add(e.mul(batch, owners), owner)
            operands = _Head(
                self._begin(self.q, batch, head),
                self._begin(self.k, batch, owner),
                self._begin(self.v, batch, owner),
                (Index(batch), Index(head)),
            )
            new = e.let(f"icmp ne i64 {self.packed_head.get()}, {owner_number}")
            if self.k.column == 1:
                new = e.let(f"and i1 {new}, {e.let(f'icmp ne i64 {self.queries}, 1')}")
            with e.when(new):
                self.packed_head.set(str(owner_number))
                self._pack(operands.k)
                self._pack_values(operands.v)
            start = e.mul(block, block_rows)
            end = e.least(self.queries, e.add(start, block_rows))
            self._item(operands, start, end)
        sizes = self.sizes
        return sizes["batch"] * sizes["heads"] * ceil_div(sizes["queries"], block_rows)

    def _begin(self, operand: Heads, batch: str | int, head: str | int) -> str:
        e = self.e
        offset = e.add(e.mul(batch, operand.batch), e.mul(head, operand.head))
        return e.address(operand.pointer, load_store.memory_type(operand.dtype), offset)

    def _pack(self, start: str) -> None:
        """Pack all keys of a head: they are the columns of the product's second operand."""
        e, tile, k = self.e, self.tile, self.k
        transposed = Matrix(start, k.dtype, k.column, k.row)
        with e.loop(0, self.keys, tile.columns) as key:
            source = e.address(start, load_store.memory_type(k.dtype), e.mul(key, k.row))
            left = e.least(tile.columns, e.sub(self.keys, key))
            fill(e, tile, transposed, source, left, self.depth, e.address(self.packed, "float", e.mul(key, self.depth)))

    def _pack_values(self, start: str) -> None:
        """Pack the values of a head, which are the second operand of a product as well."""
        e, tile, v = self.e, self.tile, self.v
        packs = self._packs_values()
        if packs == "false":
            return
        with e.when(packs), e.loop(0, self.width, tile.columns) as column:
            source = e.address(start, load_store.memory_type(v.dtype), e.mul(column, v.column))
            left = e.least(tile.columns, e.sub(self.width, column))
            matrix = Matrix(start, v.dtype, v.row, v.column)
            fill(
                e,
                tile,
                matrix,
                source,
                left,
                self.keys,
                e.address(self.packed_values, "float", e.mul(column, self.keys)),
            )

    def _packs_values(self) -> str:
        """Return an i1: true if values are packed."""
        if self.schedule.values != "run time":
            return "true" if self.schedule.values == "packed" else "false"
        if self.v.dtype != FLOAT or self.v.column != 1:
            return "false"
        return self.e.let(f"icmp sge i64 {self.queries}, {costs.QUERIES_WORTH_PACKING}")

    def _values(self, head: _Head, key: str | int, column: str | int) -> Heads:
        """Return the address and strides of the values of a key from a column on, packed or in place."""
        e, tile, v = self.e, self.tile, self.v
        packs = self._packs_values()
        within = e.rem(column, tile.columns)
        panel = e.add(e.mul(e.sub(column, within), self.keys), within)
        packed = e.address(self.packed_values, "float", e.add(panel, e.mul(key, tile.columns)))
        if packs == "true":
            return Heads(packed, FLOAT, 0, 0, tile.columns, 1)
        there = e.address(head.v, load_store.memory_type(v.dtype), e.add(e.mul(key, v.row), e.mul(column, v.column)))
        if packs == "false":
            return dataclasses.replace(v, pointer=there)
        pointer = e.let(f"select i1 {packs}, ptr {packed}, ptr {there}")
        row = e.let(f"select i1 {packs}, i64 {tile.columns}, i64 {v.row}")
        return Heads(pointer, FLOAT, 0, 0, row, 1)

    def _item(self, head: _Head, start: str | int, end: str | int) -> None:
        """Emit the attention of the queries of a work item."""
        e, tile = self.e, self.tile
        count = e.sub(end, start)
        with e.loop(0, count) as number:
            for array, value in ((self.greatest, _LOWEST), (self.total, "0.0")):
                e.store("float", value, e.address(array, "float", number), 4)
            with e.loop(0, self.padded, tile.lanes) as column:
                at = e.add(e.mul(number, self.padded), column)
                e.store(tile.type, "zeroinitializer", e.address(self.sums, "float", at), 4)
        with e.loop(0, self._seen(end), self.schedule.key_block) as key, e.loop(start, end, tile.rows) as row:
            queries = _Queries(row, e.sub(row, start), e.least(tile.rows, e.sub(end, row)))
            size = e.least(self.schedule.key_block, e.sub(self._seen(e.add(row, queries.count)), key))
            with e.when(e.let(f"icmp sgt i64 {size}, 0")):
                self._block(head, queries, key, size)
        with e.loop(0, count) as number:
            self._finish(head, start, number)

    def _seen(self, end: str | int) -> str | int:
        """Return the number of keys visible to the queries before ``end``."""
        return self.keys if self.causal is None else self.e.least(self.keys, self.e.add(end, self.causal))

    def _block(self, head: _Head, queries: _Queries, key: str | int, size: str | int) -> None:
        """Emit the contribution of a block of keys to a tile of queries."""
        self._by_rows(queries.count, lambda rows: self._score_rows(head, queries, rows, key, size))
        with self.e.loop(0, queries.count) as number:
            self._weights(head, queries, number, key, size)
        self._by_rows(queries.count, lambda rows: self._weigh(head, queries, rows, key, size))

    def _by_rows(self, count: str | int, write: Callable[[int], None]) -> None:
        """Emit code for a whole tile of rows, for a single row, or both, depending on the number of queries."""
        if isinstance(self.queries, int) and (self.queries == 1 or self.queries % self.tile.rows != 1):
            write(1 if self.queries == 1 else self.tile.rows)
            return
        with self.e.either(self.e.let(f"icmp sgt i64 {count}, 1")) as branches:
            next(branches)
            write(self.tile.rows)
            next(branches)
            write(1)
            next(branches, None)

    # The steps.

    def _score_rows(self, head: _Head, queries: _Queries, rows: int, key: str | int, size: str | int) -> None:
        """Emit the scores of a tile of queries and a block of keys: packed, or in place for a single query."""
        if self.queries == 1 and self.k.column == 1:
            self._score_only(head, key, size)
        elif rows > 1 or self.k.column != 1 or isinstance(self.queries, int):
            self._scores(head, queries, rows, key, size)
        else:
            with self.e.either(self.e.let(f"icmp eq i64 {self.queries}, 1")) as branches:
                next(branches)
                self._score_only(head, key, size)
                next(branches)
                self._scores(head, queries, rows, key, size)
                next(branches, None)

    def _score_only(self, head: _Head, key: str | int, size: str | int) -> None:
        """Emit the dot products of the only query with a block of keys."""
        e, tile = self.e, self.tile
        first = Lines(head.k, self.k.dtype, self.k.row, 1)
        second = Lines(head.q, self.q.dtype, 0, self.q.column)
        last = e.sub(size, 1)
        with e.loop(0, size, DOT_ROWS) as position:
            numbers = [e.add(key, e.least(e.add(position, offset), last)) for offset in range(DOT_ROWS)]
            for offset, (value,) in enumerate(dots(e, tile, first, numbers, second, 1, self.depth)):
                e.store("float", value, e.address(self.scores, "float", e.add(position, offset)), 4)

    def _scores(self, head: _Head, queries: _Queries, rows: int, key: str | int, size: str | int) -> None:
        """Emit the products of a tile of queries with a block of packed keys."""
        e, tile, q = self.e, self.tile, self.q
        lines = []
        for offset in range(rows):
            there = e.add(queries.row, e.least(offset, e.sub(queries.count, 1)) if offset else 0)
            lines.append(e.address(head.q, load_store.memory_type(q.dtype), e.mul(there, q.row)))

        def load_q(number: int, step: str | int) -> str:
            return read(e, tile, q.dtype, lines[number], Index(e.mul(step, q.column)), tile.lanes)

        def multiply(first: str | int, vectors: int, unroll: int) -> None:
            panel = e.address(self.packed, "float", e.mul(e.add(key, first), self.depth))

            def load_k(step: str | int) -> list[str]:
                line = e.address(panel, "float", e.mul(step, tile.columns))
                return [e.load(tile.type, e.address(line, "float", i * tile.lanes), 4) for i in range(vectors)]

            sums = accumulate(e, tile, rows, vectors, self.depth, unroll, load_q, load_k)
            for number, values in enumerate(sums):
                for offset, value in enumerate(values):
                    at = e.add(first, number * self.schedule.key_block + offset * tile.lanes)
                    e.store(tile.type, value, e.address(self.scores, "float", at), 4)

        # For the last panel, half of the vectors suffice if they hold the remaining keys.
        narrow = tile.vectors // 2
        whole = e.mul(e.div(e.add(size, (tile.vectors - narrow) * tile.lanes - 1), tile.columns), tile.columns)
        with e.loop(0, whole, tile.columns) as first:
            multiply(first, tile.vectors, 2)
        with e.when(e.let(f"icmp slt i64 {whole}, {size}")):
            multiply(whole, narrow, 1)

    def _weights(self, head: _Head, queries: _Queries, number: str | int, key: str | int, size: str | int) -> None:
        """Replace the scores of a query and a block of keys by weights; store the factor of earlier sums."""
        e, tile = self.e, self.tile
        query = e.add(queries.row, number)
        line = e.address(self.scores, "float", e.mul(number, self.schedule.key_block))
        seen = size
        if self.causal is not None:
            seen = e.most(0, e.least(size, e.sub(e.add(e.add(query, self.causal), 1), key)))
        highest = e.variable(tile.type, splat(_LOWEST, tile.lanes, "float"))

        def rate(offset: str | int, mask: str | None) -> None:
            at = e.address(line, "float", offset)
            value = e.load(tile.type, at, 4)
            if self.scale != 1.0:
                factor = splat(float_literal(self.scale, "float"), tile.lanes, "float")
                value = e.let(f"fmul {tile.type} {value}, {factor}")
            if self.score is not None:
                value = self.score((*head.at, Index(query), Index(e.add(key, offset), 1)), value, mask)
            if mask is not None:
                lowest = splat(_LOWEST, tile.lanes, "float")
                value = e.let(f"select <{tile.lanes} x i1> {mask}, {tile.type} {value}, {tile.type} {lowest}")
            if mask is not None or self.score is not None or self.scale != 1.0:
                e.store(tile.type, value, at, 4)
            above = e.let(f"fcmp ogt {tile.type} {value}, {highest.get()}")
            highest.set(e.let(f"select <{tile.lanes} x i1> {above}, {tile.type} {value}, {tile.type} {highest.get()}"))

        whole = e.mul(e.div(seen, tile.lanes), tile.lanes)
        with e.loop(0, whole, tile.lanes) as offset:
            rate(offset, None)
        with e.when(e.let(f"icmp slt i64 {whole}, {seen}")):
            rate(whole, e.lanes_below(e.sub(seen, whole), tile.lanes))
        covered = e.mul(e.div(e.add(seen, tile.lanes - 1), tile.lanes), tile.lanes)
        if self.causal is not None:
            with e.loop(covered, size, tile.lanes) as offset:
                e.store(tile.type, "zeroinitializer", e.address(line, "float", offset), 4)
        self._exponentials(e.add(queries.number, number), line, covered, highest)

    def _exponentials(self, number: str | int, line: str, covered: str | int, highest: Variable) -> None:
        e, tile = self.e, self.tile
        addresses = [e.address(array, "float", number) for array in (self.greatest, self.total, self.shrink)]
        before = e.load("float", addresses[0], 4)
        block = e.call("float", f"llvm.vector.reduce.fmax.v{tile.lanes}f32", [(tile.type, highest.get())])
        now = e.let(f"select i1 {e.let(f'fcmp ogt float {block}, {before}')}, float {block}, float {before}")
        e.store("float", now, addresses[0], 4)
        # If all scores so far are minus infinity, the weights are 0, not the NaN of a difference of infinities.
        base = e.let(f"select i1 {e.let(f'fcmp oeq float {now}, {_LOWEST}')}, float 0.0, float {now}")
        shrink = _exponential(Vector(e, e.let(f"fsub float {before}, {base}"), "float", 1)).name
        e.store("float", shrink, addresses[2], 4)
        level, sums = e.spread(base, tile.lanes, "float"), e.variable(tile.type, "zeroinitializer")
        with e.loop(0, covered, tile.lanes) as offset:
            at = e.address(line, "float", offset)
            difference = e.let(f"fsub {tile.type} {e.load(tile.type, at, 4)}, {level}")
            weight = _exponential(Vector(e, difference, "float", tile.lanes)).name
            e.store(tile.type, weight, at, 4)
            sums.set(e.let(f"fadd {tile.type} {sums.get()}, {weight}"))
        part = emit_lane_sum(e, tile, sums.get())
        rescaled = e.let(f"fmul float {e.load('float', addresses[1], 4)}, {shrink}")
        e.store("float", e.let(f"fadd float {rescaled}, {part}"), addresses[1], 4)

    def _weigh(self, head: _Head, queries: _Queries, rows: int, key: str | int, size: str | int) -> None:
        """Add the contribution of a block of keys to the weighted sums of values."""
        e, tile = self.e, self.tile
        whole = e.mul(e.div(self.width, tile.columns), tile.columns)
        with e.loop(0, whole, tile.columns) as column:
            self._weigh_panel(head, queries, rows, column, tile.vectors, None, key, size)
        if isinstance(self.width, int):
            rest = self.width - int(whole)
            vectors = -(-rest // tile.lanes)
            if rest:
                mask = e.lanes_below(rest % tile.lanes, tile.lanes) if rest % tile.lanes else None
                self._weigh_panel(head, queries, rows, whole, vectors, mask, key, size)
            return
        with e.loop(whole, self.width, tile.lanes) as column:
            mask = e.lanes_below(e.sub(self.width, column), tile.lanes)
            self._weigh_panel(head, queries, rows, column, 1, mask, key, size)

    def _weigh_panel(
        self,
        head: _Head,
        queries: _Queries,
        rows: int,
        column: str | int,
        vectors: int,
        mask: str | None,
        key: str | int,
        size: str | int,
    ) -> None:
        """Emit the weighted sums of some vectors of columns; ``mask`` is the mask of the last vector."""
        e, tile = self.e, self.tile
        v = self._values(head, key, column)

        def load_weight(number: int, step: str | int) -> str:
            return read(e, tile, FLOAT, self.scores, Index(e.add(step, number * self.schedule.key_block)), tile.lanes)

        def load_v(step: str | int) -> list[str]:
            line = e.address(v.pointer, load_store.memory_type(v.dtype), e.mul(step, v.row))
            loaded = []
            for number in range(vectors):
                there = mask if number == vectors - 1 else None
                if v.column == 1:
                    loaded.append(read(e, tile, v.dtype, line, Index(number * tile.lanes, 1), tile.lanes, there))
                else:
                    loaded.append(self._load_strided(line, number * tile.lanes, there))
            return loaded

        # The buffers have all rows of a tile; rows past the last query are computed and never read.
        numbers = [e.add(queries.number, number) for number in range(rows)]

        def load_rescaled_sum(number: int, vector: int) -> str:
            at = e.add(e.add(e.mul(numbers[number], self.padded), column), vector * tile.lanes)
            value = e.load(tile.type, e.address(self.sums, "float", at), 4)
            shrink = e.load("float", e.address(self.shrink, "float", numbers[number]), 4)
            return e.let(f"fmul {tile.type} {value}, {e.spread(shrink, tile.lanes, 'float')}")

        narrow = dataclasses.replace(tile, vectors=vectors)
        sums = accumulate(e, narrow, rows, vectors, size, 2, load_weight, load_v, load_rescaled_sum)
        for number, values in enumerate(sums):
            for offset, value in enumerate(values):
                at = e.add(e.add(e.mul(numbers[number], self.padded), column), offset * tile.lanes)
                e.store(tile.type, value, e.address(self.sums, "float", at), 4)

    def _load_strided(self, line: str, first: int, mask: str | None) -> str:
        """Emit the load of a vector of values whose columns are not contiguous."""
        e, tile, v = self.e, self.tile, self.v
        values = e.variable(tile.type, "zeroinitializer")
        for lane in range(tile.lanes):
            there = "true" if mask is None else e.let(f"extractelement <{tile.lanes} x i1> {mask}, i64 {lane}")
            with e.when(there):
                one = read(e, tile, v.dtype, line, Index(e.mul(first + lane, v.column)), 1)
                values.set(e.let(f"insertelement {tile.type} {values.get()}, float {one}, i64 {lane}"))
        return values.get()

    def _finish(self, head: _Head, row: str | int, number: str | int) -> None:
        """Divide the weighted sums of a query by the sum of weights and call the epilogue."""
        e, tile = self.e, self.tile
        line = e.address(self.sums, "float", e.mul(number, self.padded))
        total = e.spread(e.load("float", e.address(self.total, "float", number), 4), tile.lanes, "float")

        def emit(offset: str | int, mask: str | None) -> None:
            sums = e.load(tile.type, e.address(line, "float", offset), 4)
            value = e.let(f"fdiv {tile.type} {sums}, {total}")
            self.epilogue((*head.at, Index(e.add(row, number)), Index(offset, 1)), value, mask)

        whole = e.mul(e.div(self.width, tile.lanes), tile.lanes)
        with e.loop(0, whole, tile.lanes) as offset:
            emit(offset, None)
        if not (isinstance(self.width, int) and self.width == whole):
            with e.when(e.let(f"icmp slt i64 {whole}, {self.width}")):
                emit(whole, e.lanes_below(e.sub(self.width, whole), tile.lanes))


def _exponential(x: Vector) -> Vector:
    """Return ``exp(x)`` for ``x <= 0`` with an absolute error of 2e-7; results below 2**-127 are 0.

    The rounding of the product with ``log2(e)`` matters only for small results, which add little to any sum.
    """
    exponent = (x * math.log2(math.e)).above(-127.0)
    # Adding 1.5 * 2^23 rounds a number to an integer in the lowest bits.
    shifter = 1.5 * 2.0**23 + 127.0
    shifted = exponent + shifter
    power = (shifted.bits() << 23).number()
    return polynomial(exponent - (shifted - shifter), _POWER_OF_TWO) * power
