"""The gradient of a convolution's weights, summed over samples and positions in registers.

``dW[m, c, tap] = sum over n, p of dY[n, m, p] * X[n, c, p * stride + tap]``. Lanes are filters: rows of dY are
transposed to ``[position][filter]``, elements of X are broadcast. A register tile holds some taps of a channel (or
several channels, if there are few taps) by two vectors of filters; the addresses of its elements of X differ by
constants. Rows of X are copied with their padding, so that the inner loop has no edge. Images in blocked layout are
read as they are: rows of dY in place, elements of X a block apart.

A work item is a panel of filters by some channels. Sums of an item stay in scratch memory between samples, and every
sum is in the order of samples and positions, for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sardonyx.compiler.codegen.kernel_builder import Index, Kernel
from sardonyx.compiler.kernels.gemm.operands import Matrix
from sardonyx.compiler.kernels.gemm.packing import fill
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.gemm_schedule import Tile, default_tile
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t

_SUMS = {True: 27, False: 12}
"""Vectors of sums of a tile, with 32 registers and with 16."""

_FEWEST_ITEMS = 8
"""Work items that share a gradient among threads, if there are enough channels."""

_FEWEST_SUMS = 64
"""Fewest taps of all channels of an item: each item transposes rows of dY again."""

_UNROLL = 4


class Operand(NamedTuple):
    """An operand in memory, ``[groups, channels, samples, rows, columns]``.

    Attributes:
        pointer: Address of the first element.
        strides: Distances of neighbours along each axis, in elements, if the image is row-major.
        block: Channels of a block; 0 for a row-major image. Groups of a blocked image are whole blocks.
    """

    pointer: str
    strides: tuple[Size, Size, Size, Size, int]
    block: int = 0


@dataclass(frozen=True)
class Geometry:
    """The sizes of a gradient; one spatial axis has one row.

    Attributes:
        groups: Groups.
        channels: Channels of a group.
        filters: Filters of a group.
        samples: The batch.
        image: Rows and columns of X.
        positions: Rows and columns of dY.
        taps: Rows and columns of taps.
        strides: Strides.
        dilation: Distances of the taps.
        low: Padding before the first row and column of X.
    """

    groups: int
    channels: int
    filters: int
    samples: Size
    image: tuple[int, int]
    positions: tuple[int, int]
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    low: tuple[int, int]


class _Tiling:
    """The register tile, the blocks of rows and the work items of a gradient."""

    def __init__(self, g: Geometry, target: Target, block: int) -> None:
        base = default_tile(target, t.FLOAT)
        self.vectors = 1 if g.filters <= base.lanes else 2
        self.tile = Tile(base.result, base.lanes, 1, self.vectors, _UNROLL)
        most = _SUMS[target.vector_registers >= 32] // self.vectors
        taps = [(a, b) for a in range(g.taps[0]) for b in range(g.taps[1])]
        parts = -(-len(taps) // most)
        size = -(-len(taps) // parts)
        self.tap_groups = [taps[at : at + size] for at in range(0, len(taps), size)]
        self.channels = max(1, min(most // len(taps), g.channels)) if parts == 1 else 1
        if block:  # The channels of a tile are in one block.
            self.channels = max(count for count in (1, 2, 4, 8, 16) if count <= self.channels and block % count == 0)
        unit = block or self.channels
        self.panels = -(-g.filters // self.tile.columns)
        blocks = -(-g.channels // unit)
        least_splits = -(-_FEWEST_ITEMS // (g.groups * self.panels))
        fewest = max(1, -(-_FEWEST_SUMS // (len(taps) * unit)))
        splits = max(1, min(least_splits, blocks // fewest))
        self.item_channels = -(-blocks // splits) * unit
        self.splits = -(-g.channels // self.item_channels)
        # Rows of dY in blocks of an eighth of L2.
        row_bytes = g.positions[1] * self.tile.columns * 4
        self.rows = max(1, min(g.positions[0], target.l2 // 8 // row_bytes))
        self.image_rows = (self.rows - 1) * g.strides[0] + (g.taps[0] - 1) * g.dilation[0] + 1
        width = (g.positions[1] - 1) * g.strides[1] + (g.taps[1] - 1) * g.dilation[1] + 1
        self.width = width if block else -(-width // base.lanes) * base.lanes

    @property
    def sums(self) -> int:
        """Elements of the sums of an item."""
        return self.item_channels * sum(map(len, self.tap_groups)) * self.tile.columns


def scratch_bytes(g: Geometry, target: Target, block: int) -> int:
    """Return the bytes of scratch memory of a worker: sums, rows of dY, rows of X in blocks of channels."""
    return 4 * sum(_offsets(g, _Tiling(g, target, block)))


def _offsets(g: Geometry, tiling: _Tiling) -> tuple[int, int, int]:
    """Return the elements of the three parts of scratch memory."""
    image = tiling.item_channels * tiling.image_rows * tiling.width
    return tiling.sums, tiling.rows * g.positions[1] * tiling.tile.columns, image


Store = Callable[[tuple[Index, ...], str, "str | None"], None]


def write_gradient(kernel: Kernel, g: Geometry, x: Operand, dy: Operand, scratch: str, store: Store) -> int:
    """Emit a gradient of weights; return the number of work items.

    Args:
        kernel: The kernel.
        g: The sizes.
        x: The input, channels are those of the input.
        dy: The gradient of the result, channels are filters; rows are contiguous.
        scratch: :func:`scratch_bytes` for each worker.
        store: Stores a vector of filters at (group, filter, channel, row of taps, column of taps), with a mask.
    """
    return _WeightGradient(kernel, g, x, dy, scratch, store).write()


class _WeightGradient:
    def __init__(self, kernel: Kernel, g: Geometry, x: Operand, dy: Operand, scratch: str, store: Store) -> None:
        self.kernel, self.g, self.x, self.dy, self.store = kernel, g, x, dy, store
        self.e: Emitter = kernel.emitter
        self.tiling = _Tiling(g, kernel.target, x.block)
        self.step = x.block or 1
        self.tile = self.tiling.tile
        sums, rows, image = _offsets(g, self.tiling)
        start = self.e.address(scratch, "float", self.e.mul("%worker", sums + rows + image))
        self.sums = start
        self.rows = self.e.address(start, "float", sums)
        self.image = self.e.address(start, "float", sums + rows)

    def write(self) -> int:
        """Emit the loop over work items."""
        e, g, tiling = self.e, self.g, self.tiling
        items = g.groups * tiling.panels * tiling.splits
        with e.loop("%first", "%last") as item:
            panel, rest = e.rem(item, tiling.panels), e.div(item, tiling.panels)
            split, group = e.rem(rest, tiling.splits), e.div(rest, tiling.splits)
            first_filter, first_channel = e.mul(panel, self.tile.columns), e.mul(split, tiling.item_channels)
            channels = e.least(tiling.item_channels, e.sub(g.channels, first_channel))
            filters = e.least(self.tile.columns, e.sub(g.filters, first_filter))
            self._clear(self.sums, tiling.sums)
            with e.loop(0, self.kernel.size(g.samples)) as sample:
                self._add_sample(group, first_channel, channels, first_filter, filters, sample)
            self._finish(group, first_channel, channels, first_filter, filters)
        taps = math.prod(g.taps)
        positions = math.prod(g.positions)
        if isinstance(g.samples, int):
            self.kernel.work = g.samples * positions * tiling.item_channels * taps * tiling.vectors
        else:
            self.kernel.work = positions * tiling.item_channels * taps * tiling.vectors
        return items

    def _clear(self, pointer: str, count: int) -> None:
        e, tile = self.e, self.tile
        with e.loop(0, count, tile.lanes) as offset:
            e.store(tile.type, "zeroinitializer", e.address(pointer, "float", offset), 4)

    def _add_sample(
        self, group: str | int, first_channel: str | int, channels: str | int, first_filter: str | int,
        filters: str | int, sample: str,
    ) -> None:  # fmt: skip
        e, g, tiling = self.e, self.g, self.tiling
        with e.loop(0, g.positions[0], tiling.rows) as row:
            rows: str | int = tiling.rows
            if g.positions[0] % tiling.rows:
                rows = e.least(tiling.rows, e.sub(g.positions[0], row))
            if self.dy.block:
                vectors = self._blocks_of_filters(group, first_filter, sample, row)
            else:
                self._transpose(self._at(self.dy, group, first_filter, sample, row), filters, rows)
                vectors = [self.e.address(self.rows, "float", v * self.tile.lanes) for v in range(self.tile.vectors)]
            if self.x.block:
                self._copy_blocks(group, first_channel, channels, sample, row)
            else:
                self._copy_image(group, first_channel, channels, sample, row)
            whole = e.mul(e.div(channels, tiling.channels), tiling.channels)
            with e.loop(0, whole, tiling.channels) as channel:
                self._multiply(channel, tiling.channels, rows, vectors)
            if tiling.channels > 1 and g.channels % tiling.channels:
                with e.loop(whole, channels) as channel:
                    self._multiply(channel, 1, rows, vectors)

    def _at(self, operand: Operand, group: str | int, channel: str | int, sample: str | int, row: str | int) -> str:
        e = self.e
        total: str | int = 0
        for index, stride in zip((group, channel, sample, row), operand.strides, strict=False):
            total = e.add(total, e.mul(index, self.kernel.size(stride)))
        return e.address(operand.pointer, "float", total)

    def _blocks_of_filters(self, group: str | int, first_filter: str | int, sample: str, row: str) -> list[str]:
        """Return the addresses of a row of dY in each block of filters of a panel; the last block may repeat."""
        e, g, block = self.e, self.g, self.dy.block
        blocks = -(-g.filters // block)
        positions = math.prod(g.positions)
        addresses = []
        for v in range(self.tile.vectors):
            number = e.least(e.add(e.div(first_filter, block), v), blocks - 1)
            index = e.add(e.mul(e.add(e.mul(sample, g.groups), group), blocks), number)
            at = e.add(e.mul(index, positions), e.mul(row, g.positions[1]))
            addresses.append(e.address(self.dy.pointer, "float", e.mul(at, block)))
        return addresses

    def _copy_blocks(
        self, group: str | int, first_channel: str | int, channels: str | int, sample: str, row: str
    ) -> None:
        """Emit the copy of rows of X in blocks of channels, with their padding."""
        e, g, tiling, tile, block = self.e, self.g, self.tiling, self.tile, self.x.block
        low = g.low[1]
        count = max(0, min(g.image[1], tiling.width - low)) * block
        first = e.sub(e.mul(row, g.strides[0]), g.low[0])
        blocks = e.div(e.add(channels, block - 1), block)
        all_blocks = -(-g.channels // block)
        with e.loop(0, blocks) as number, e.loop(0, tiling.image_rows) as line:
            there = e.add(first, line)
            at = e.mul(e.add(e.mul(number, tiling.image_rows), line), tiling.width * block)
            target = e.address(self.image, "float", at)
            inside = e.let(f"icmp ult i64 {there}, {g.image[0]}")
            with e.either(inside) as branches:
                next(branches)
                index = e.add(e.mul(e.add(e.mul(sample, g.groups), group), all_blocks), e.div(first_channel, block))
                index = e.add(e.mul(e.add(index, number), g.image[0]), there)
                source = e.address(self.x.pointer, "float", e.mul(index, g.image[1] * block))
                self._clear(target, low * block)
                into = e.address(target, "float", low * block)
                with e.loop(0, count, tile.lanes) as offset:
                    value = e.load(tile.type, e.address(source, "float", offset), 4)
                    e.store(tile.type, value, e.address(into, "float", offset), 4)
                self._clear(e.address(into, "float", count), (tiling.width - low) * block - count)
                next(branches)
                self._clear(target, tiling.width * block)
                next(branches, None)

    def _transpose(self, source: str, filters: str | int, rows: str | int) -> None:
        """Emit the transposition of rows of dY, ``[position][filter]``."""
        matrix = Matrix(source, t.FLOAT, self.dy.strides[4], self.kernel.size(self.dy.strides[1]))
        fill(self.e, self.tile, matrix, source, filters, self.e.mul(rows, self.g.positions[1]), self.rows)

    def _copy_image(
        self, group: str | int, first_channel: str | int, channels: str | int, sample: str, row: str
    ) -> None:
        """Emit the copy of rows of X with their padding."""
        e, g, tiling, tile = self.e, self.g, self.tiling, self.tile
        low = g.low[1]
        # Columns that windows reach; those past the image are zero.
        count = max(0, min(g.image[1], tiling.width - low))
        first = e.sub(e.mul(row, g.strides[0]), g.low[0])
        with e.loop(0, channels) as channel, e.loop(0, tiling.image_rows) as number:
            there = e.add(first, number)
            target = e.address(
                self.image, "float", e.mul(e.add(e.mul(channel, tiling.image_rows), number), tiling.width)
            )
            inside = e.let(f"icmp ult i64 {there}, {g.image[0]}")
            padded = low > 0 or count < tiling.width
            if padded:
                self._clear(target, tiling.width)
            with e.either(inside) as branches:
                next(branches)
                source = self._at(self.x, group, e.add(first_channel, channel), sample, there)
                into = e.address(target, "float", low)
                if self.x.strides[4] == 1:
                    whole = count // tile.lanes * tile.lanes
                    with e.loop(0, whole, tile.lanes) as at:
                        value = e.load(tile.type, e.address(source, "float", at), 4)
                        e.store(tile.type, value, e.address(into, "float", at), 4)
                    start = whole
                else:
                    start = 0
                with e.loop(start, count) as at:
                    one = e.load("float", e.address(source, "float", e.mul(at, self.x.strides[4])), 4)
                    e.store("float", one, e.address(into, "float", at), 4)
                next(branches)
                if not padded:
                    self._clear(target, tiling.width)
                next(branches, None)

    def _multiply(self, channel: str | int, channels: int, rows: str | int, vectors: list[str]) -> None:
        """Emit the sums of some channels over rows of a sample."""
        e, g, tiling = self.e, self.g, self.tiling
        plane = tiling.image_rows * tiling.width
        taps = math.prod(g.taps)
        step = self.step
        start = e.add(e.mul(e.div(channel, step), plane * step), e.rem(channel, step)) if step > 1 else channel
        base = e.address(self.image, "float", start if step > 1 else e.mul(channel, plane))
        number = 0
        for group in tiling.tap_groups:
            offsets = [
                (c if step > 1 else c * plane) + (a * g.dilation[0] * tiling.width + b * g.dilation[1]) * step
                for c in range(channels)
                for a, b in group
            ]
            first = e.add(e.mul(channel, taps), number)
            sums = e.address(self.sums, "float", e.mul(first, self.tile.columns))
            self._accumulate(base, offsets, sums, rows, vectors)
            number += len(group)

    def _accumulate(self, base: str, offsets: list[int], sums: str, rows: str | int, vectors: list[str]) -> None:
        """Emit the sums of a register tile over rows of positions."""
        e, g, tile = self.e, self.g, self.tile

        def address_of(number: int, vector: int) -> str:
            return e.address(sums, "float", number * tile.columns + vector * tile.lanes)

        totals = [
            [e.variable(tile.type, e.load(tile.type, address_of(i, v), 4)) for v in range(tile.vectors)]
            for i in range(len(offsets))
        ]
        columns, stride = g.positions[1], g.strides[1] * self.step
        y_step = self.dy.block or tile.columns

        def steps(x: str, ys: list[str], count: int) -> None:
            current = [[total.get() for total in line] for line in totals]
            for step in range(count):
                values = [e.load(tile.type, e.address(y, "float", step * y_step), 4) for y in ys]
                for line, offset in zip(current, offsets, strict=True):
                    one = e.load("float", e.address(x, "float", step * stride + offset), 4)
                    factor = e.spread(one, tile.lanes, "float")
                    line[:] = [
                        e.multiply_add(tile.type, factor, value, total)
                        for value, total in zip(values, line, strict=True)
                    ]
            for variables, results in zip(totals, current, strict=True):
                for variable, result in zip(variables, results, strict=True):
                    variable.set(result)

        with e.loop(0, rows) as row:
            x_row = e.address(base, "float", e.mul(row, g.strides[0] * self.tiling.width * self.step))
            y_rows = [e.address(y, "float", e.mul(row, columns * y_step)) for y in vectors]
            whole = columns // _UNROLL * _UNROLL

            def at(column: str | int, count: int, x_row: str = x_row, y_rows: list[str] = y_rows) -> None:
                x = e.address(x_row, "float", e.mul(column, stride))
                steps(x, [e.address(y, "float", e.mul(column, y_step)) for y in y_rows], count)

            with e.loop(0, whole, _UNROLL) as column:
                at(column, _UNROLL)
            if columns % _UNROLL:
                at(whole, columns % _UNROLL)
        for i, line in enumerate(totals):
            for v, total in enumerate(line):
                e.store(tile.type, total.get(), address_of(i, v), 4)

    def _finish(
        self, group: str | int, first_channel: str | int, channels: str | int, first_filter: str | int,
        filters: str | int,
    ) -> None:  # fmt: skip
        """Emit the epilogue of an item's sums."""
        e, g, tile = self.e, self.g, self.tile
        taps = math.prod(g.taps)
        with e.loop(0, channels) as channel, e.loop(0, g.taps[0]) as a, e.loop(0, g.taps[1]) as b:
            number = e.add(e.mul(channel, taps), e.add(e.mul(a, g.taps[1]), b))
            line = e.address(self.sums, "float", e.mul(number, tile.columns))
            position = e.add(first_channel, channel)
            with e.loop(0, filters, tile.lanes) as offset:
                value = e.load(tile.type, e.address(line, "float", offset), 4)
                mask = None
                if g.filters % tile.lanes:
                    mask = e.lanes_below(e.least(tile.lanes, e.sub(filters, offset)), tile.lanes)
                index = Index(e.add(first_filter, offset), 1)
                self.store((Index(group), index, Index(position), Index(a), Index(b)), value, mask)
