"""Winograd convolution: windows of 3x3, 3x1 or 1x3, stride 1, float32 or 8-bit integers, over blocked images.

The plan is chosen by :mod:`~sardonyx.compiler.tiling.winograd`. Either :func:`convolve` is the whole convolution: a
work item computes a block of tiles and all filters, and transforms its inputs into the scratch memory of its worker,
where they stay cached while the weights are streamed. Or :func:`transform` and :func:`multiply` compute it in two
stages.

Epilogues get whole vectors of ``lanes`` filters at (image, filter, row, column), the filter a multiple of the lanes,
without a mask. Lanes past the last filter are zero, and must be zero again in a blocked image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.integer_dot import dot_add
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.window_sweep import Image
from sardonyx.compiler.kernels.conv.winograd_overflow import Line, Overflow
from sardonyx.compiler.llvm.ir_builder import splat, vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.toom_cook import transform_input, transform_output, transform_weight
from sardonyx.compiler.tiling.windows import Number
from sardonyx.compiler.tiling.winograd import Winograd
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t

_UNROLL = 4


def convolve(kernel: Kernel, plan: Winograd, x: Image, weights: str, scratch: str, epilogue: Epilogue) -> Size:
    """Write a whole convolution, for a plan that is not staged.

    Args:
        kernel: The kernel.
        plan: The plan.
        x: The image, blocked.
        weights: The weights of :func:`~sardonyx.compiler.tiling.winograd.transform_weights`.
        scratch: ``plan.scratch`` bytes for every worker.
        epilogue: Consumes the results.

    Returns:
        The number of work items.
    """
    code = _Code(kernel, plan)
    e = code.e
    planes = e.address(scratch, "i8", e.mul("%worker", plan.scratch))
    own = code.at(planes, plan.points * plan.input_plane)
    with e.loop("%first", "%last") as item, code.tiles_of(item) as (start, count):
        with e.loop(0, plan.channel_blocks) as channels:
            code.transform_inputs(x, planes, channels, start, count)
        with e.loop(0, plan.groups) as group:
            code.multiply(planes, weights, own, group, count)
            code.transform_outputs(own, group, start, count, code.overflow(x, weights), epilogue)
    return plan.blocks


Weights = Callable[[Index, Number, int, int, str], str]
"""Emit the load of some weights: filters in the lanes, a channel, row and column of the window, a mask of lanes."""


def prepare_weights(kernel: Kernel, plan: Winograd, weights: Weights, prepared: str) -> int:
    """Write a kernel that transforms weights computed in the same call, or packs them if the plan's are fresh.

    Args:
        kernel: The kernel.
        plan: The plan.
        weights: The weights; lanes outside of the mask are not used.
        prepared: Address of ``plan.weight_bytes`` bytes, in the order of
            :func:`~sardonyx.compiler.tiling.winograd.transform_weights` or :func:`.pack_weights`.

    Returns:
        The number of work items.
    """
    code = _Code(kernel, plan)
    e, lanes = code.e, plan.lanes
    width, depth = plan.vectors * lanes, plan.channel_blocks * lanes
    rows, columns = code.down.taps, code.across.taps
    with e.loop("%first", "%last") as item:
        group, first_channel = e.div(item, plan.channel_blocks), e.mul(e.rem(item, plan.channel_blocks), lanes)
        with e.loop(first_channel, e.add(first_channel, lanes)) as channel:
            known = e.spread(e.let(f"icmp slt i64 {channel}, {plan.channels}"), lanes, "i1")
            inside = e.least(channel, plan.channels - 1)
            for member in range(plan.vectors):
                first = e.add(e.mul(group, width), member * lanes)
                below = e.lanes_below(e.most(0, e.sub(plan.filters, first)), lanes)
                mask = e.let(f"and <{lanes} x i1> {below}, {known}")
                taps = []
                for i in range(rows):
                    loaded = [weights(Index(first, 1), inside, i, j, mask) for j in range(columns)]
                    zero = f"{code.type} zeroinitializer"
                    taps.append([e.let(f"select <{lanes} x i1> {mask}, {code.type} {x}, {zero}") for x in loaded])
                if plan.fresh:
                    start = e.mul(e.add(e.mul(group, depth), channel), rows * columns * width)
                    for number, value in enumerate(value for row in taps for value in row):
                        code.store(value, prepared, e.add(start, number * width + member * lanes))
                    continue
                start = e.mul(e.add(e.mul(group, plan.points * depth), channel), width)
                for number, value in enumerate(code.transformed_weights(taps)):
                    code.store(value, prepared, e.add(start, number * depth * width + member * lanes))
    return plan.groups * plan.channel_blocks


def transform(kernel: Kernel, plan: Winograd, x: Image, transformed: str) -> Size:
    """Write the first stage of a staged plan: the transformation of all inputs.

    Args:
        kernel: The kernel.
        plan: The plan.
        x: The image, blocked.
        transformed: Address of ``plan.transformed`` bytes.

    Returns:
        The number of work items.
    """
    code = _Code(kernel, plan)
    e = code.e
    with e.loop("%first", "%last") as item:
        block = e.div(item, plan.channel_blocks)
        with code.tiles_of(block) as (start, count):
            planes = code.at(transformed, e.mul(block, plan.points * plan.input_plane))
            code.transform_inputs(x, planes, e.rem(item, plan.channel_blocks), start, count)
    return plan.blocks * plan.channel_blocks


def multiply(
    kernel: Kernel, plan: Winograd, x: Image, transformed: str, weights: str, scratch: str, epilogue: Epilogue
) -> Size:
    """Write the second stage of a staged plan; a work item is a group of filters on a block of tiles.

    Args:
        kernel: The kernel.
        plan: The plan.
        x: The image, blocked.
        transformed: The transformed inputs of the first stage.
        weights: The weights of :func:`~sardonyx.compiler.tiling.winograd.transform_weights`.
        scratch: ``plan.scratch`` bytes for every worker.
        epilogue: Consumes the results.

    Returns:
        The number of work items.
    """
    code = _Code(kernel, plan)
    e = code.e
    own = e.address(scratch, "i8", e.mul("%worker", plan.scratch))
    with e.loop("%first", "%last") as item:
        group, block = e.div(item, code.blocks), e.rem(item, code.blocks)
        with code.tiles_of(block) as (start, count):
            planes = code.at(transformed, e.mul(block, plan.points * plan.input_plane))
            code.multiply(planes, weights, own, group, count)
            code.transform_outputs(own, group, start, count, code.overflow(x, weights), epilogue)
    return plan.blocks * plan.groups


class _Code:
    """The emitter of the stages of one convolution."""

    def __init__(self, kernel: Kernel, plan: Winograd) -> None:
        self.kernel = kernel
        self.e = kernel.emitter
        self.plan = plan
        self.lanes = plan.lanes
        self.word = "i32" if plan.integer else "float"
        self.type = vector(plan.lanes, self.word)
        self.input_type = vector(plan.lanes, "i16") if plan.integer else self.type
        self.down, self.across = plan.algorithms
        self.tiles = kernel.size(plan.tiles)
        self.blocks = kernel.size(plan.blocks)
        self.tile_rows = kernel.size(ceil_div(plan.out[0], plan.tile[0]))
        self.tile_columns = kernel.size(ceil_div(plan.out[1], plan.tile[1]))

    def at(self, pointer: str, index: Number) -> str:
        """Return the address of an element of an array of floats."""
        return self.e.address(pointer, "float", index)

    def load(self, pointer: str, index: Number = 0) -> str:
        """Load a vector; the alignment of images and weights is unknown."""
        return self.e.load(self.type, self.at(pointer, index), 4)

    def store(self, value: str, pointer: str, index: Number = 0) -> None:
        """Store a vector."""
        self.e.store(self.type, value, self.at(pointer, index), 4)

    # Tiles.

    @contextmanager
    def tiles_of(self, block: Number) -> Iterator[tuple[Number, Number]]:
        """Yield the first tile of a block and the number of tiles.

        Block sizes differ by at most 1, and a block may be empty: the enclosed code then does not run.
        """
        e = self.e
        start = e.div(e.mul(self.tiles, block), self.blocks)
        count = e.sub(e.div(e.mul(self.tiles, e.add(block, 1)), self.blocks), start)
        with e.when(e.let(f"icmp sgt i64 {count}, 0")):
            yield start, count

    @contextmanager
    def tile_loop(self, start: Number, count: Number) -> Iterator[tuple[str, str, str, str]]:
        """Emit a loop over tiles from ``start`` on.

        Yields:
            The tile's number in the block, and its image, row and column.
        """
        e = self.e
        per_image = e.mul(self.tile_rows, self.tile_columns)
        within = e.rem(start, per_image)
        image = e.variable("i64", str(e.div(start, per_image)))
        row = e.variable("i64", str(e.div(within, self.tile_columns)))
        column = e.variable("i64", str(e.rem(within, self.tile_columns)))
        with e.loop(0, count) as number:
            at = image.get(), row.get(), column.get()
            yield number, *at
            next_column = str(e.add(at[2], 1))
            ends_row = e.let(f"icmp eq i64 {next_column}, {self.tile_columns}")
            column.set(e.let(f"select i1 {ends_row}, i64 0, i64 {next_column}"))
            next_row = str(e.add(at[1], e.let(f"zext i1 {ends_row} to i64")))
            ends_image = e.let(f"icmp eq i64 {next_row}, {self.tile_rows}")
            row.set(e.let(f"select i1 {ends_image}, i64 0, i64 {next_row}"))
            image.set(str(e.add(at[0], e.let(f"zext i1 {ends_image} to i64"))))

    # Inputs.

    def transform_inputs(self, x: Image, planes: str, channels: Number, start: Number, count: Number) -> None:
        """Transform one vector of channels of a block of tiles."""
        e, plan, lanes = self.e, self.plan, self.lanes
        top, left = (self.kernel.size(size) for size in plan.padding)
        of_channels = self.at(planes, e.mul(channels, plan.block * plan.input_lanes))
        patch = e.array(load_store.memory_type(x.dtype), plan.points * lanes)
        with self.tile_loop(start, count) as (number, image, row, column):
            image_plane = e.add(e.mul(image, plan.channel_blocks), channels)
            y, x_ = e.sub(e.mul(row, plan.tile[0]), top), e.sub(e.mul(column, plan.tile[1]), left)
            source, stride = self.inputs_of(x, patch, image_plane, y, x_)
            columns = []
            for j in range(self.across.n):
                values = [self.input(x, source, e.add(e.mul(stride, i), j * lanes)) for i in range(self.down.n)]
                columns.append(transform_input(e, self.input_type, self.down, values))
            target = self.at(of_channels, e.mul(number, plan.input_lanes))
            for i in range(self.down.n):
                of_row = [column_values[i] for column_values in columns]
                for j, value in enumerate(transform_input(e, self.input_type, self.across, of_row)):
                    point = self.at(target, (i * self.across.n + j) * plan.input_plane)
                    e.store(self.input_type, value, point, 4)

    def input(self, x: Image, pointer: str, index: Number) -> str:
        """Load the channels of an element of the image, as numbers that are transformed."""
        e, element = self.e, load_store.memory_type(x.dtype)
        loaded = self.copied(x, pointer, index)
        if element != "i8":
            return loaded
        extension = "zext" if t.kind(x.dtype) == "uint" else "sext"
        return e.let(f"{extension} {vector(self.lanes, element)} {loaded} to {self.input_type}")

    def copied(self, x: Image, pointer: str, index: Number) -> str:
        """Load the channels of an element of the image."""
        element = load_store.memory_type(x.dtype)
        return self.e.load(vector(self.lanes, element), self.e.address(pointer, element, index), BITS[element] // 8)

    def inputs_of(self, x: Image, patch: str, plane: Number, y: Number, left: Number) -> tuple[str, str]:
        """Return the address of a tile's inputs and the stride of rows, in elements.

        If the tile crosses the edges of the image, the inputs are copied to ``patch`` and padded with zeros.
        """
        e, lanes, element = self.e, self.lanes, load_store.memory_type(x.dtype)
        type, alignment = vector(lanes, element), BITS[element] // 8
        rows, columns = self.down.n, self.across.n
        height, width = (self.kernel.size(size) for size in x.sizes)
        row_size = e.mul(width, lanes)
        corner = e.mul(e.add(e.mul(e.add(e.mul(plane, height), y), width), left), lanes)
        direct = e.address(x.pointer, element, corner)
        source, stride = e.variable("ptr", direct), e.variable("i64", str(row_size))
        row_begin, row_end = e.most(0, e.sub(0, y)), e.least(rows, e.sub(height, y))
        begin, end = e.most(0, e.sub(0, left)), e.least(columns, e.sub(width, left))
        outside = e.add(e.sub(rows, e.sub(row_end, row_begin)), e.sub(columns, e.sub(end, begin)))
        with e.when(e.let(f"icmp sgt i64 {outside}, 0")):
            for i in range(rows * columns):
                e.store(type, "zeroinitializer", e.address(patch, element, i * lanes), alignment)
            with e.loop(row_begin, row_end) as row:
                from_row = e.address(direct, element, e.mul(row, row_size))
                to_row = e.address(patch, element, e.mul(row, columns * lanes))
                with e.loop(begin, end) as column:
                    offset = e.mul(column, lanes)
                    e.store(type, self.copied(x, from_row, offset), e.address(to_row, element, offset), alignment)
            source.set(patch)
            stride.set(str(columns * lanes))
        return source.get(), stride.get()

    # Weights.

    def transform_weights(self, source: str, fresh: str, channels: Number) -> None:
        """Transform the weights of a group of filters for some channels."""
        e, plan, lanes = self.e, self.plan, self.lanes
        width = plan.vectors * lanes
        taps = self.down.taps, self.across.taps
        with e.loop(0, channels) as channel:
            of_channel = self.at(source, e.mul(channel, math.prod(taps) * width))
            to_channel = self.at(fresh, e.mul(channel, width))
            for member in range(plan.vectors):
                loaded = [
                    [self.load(of_channel, (i * taps[1] + j) * width + member * lanes) for j in range(taps[1])]
                    for i in range(taps[0])
                ]
                for point, value in enumerate(self.transformed_weights(loaded)):
                    self.store(value, to_channel, point * plan.weight_plane + member * lanes)

    def transformed_weights(self, taps: Sequence[Sequence[str]]) -> list[str]:
        """Return the weights of some filters at all points, from those at the rows and columns of the window."""
        columns = [
            transform_weight(self.e, self.type, self.down, [row[j] for row in taps]) for j in range(self.across.taps)
        ]
        return [
            value
            for i in range(self.down.n)
            for value in transform_weight(self.e, self.type, self.across, [column[i] for column in columns])
        ]

    # Products.

    def multiply(self, planes: str, weights: str, own: str, group: Number, count: Number) -> None:
        """Emit the sums over the channels of a block of tiles, at all points, for a group of filters.

        Args:
            planes: The transformed inputs.
            weights: All weights.
            own: The scratch memory of the worker: the sums, then weights transformed at run time.
            group: The group of filters.
            count: Number of tiles.
        """
        e, plan = self.e, self.plan
        width = plan.vectors * self.lanes
        if not plan.fresh:
            of_point = plan.channel_blocks * plan.input_lanes * width
            of_group = self.at(weights, e.mul(group, plan.points * of_point))
            self.add_products(planes, of_group, of_point, own, plan.channel_blocks, count)
            return
        with e.loop(0, plan.points) as point, e.loop(0, e.mul(count, plan.vectors)) as number:
            self.store("zeroinitializer", own, e.add(e.mul(point, plan.sum_plane), e.mul(number, self.lanes)))
        of_block = self.down.taps * self.across.taps * self.lanes * width
        of_group = self.at(weights, e.mul(group, plan.channel_blocks * of_block))
        fresh = self.at(own, plan.points * plan.sum_plane)
        with e.loop(0, plan.channel_blocks, plan.slice_blocks) as first:
            blocks = e.least(plan.slice_blocks, e.sub(plan.channel_blocks, first))
            self.transform_weights(self.at(of_group, e.mul(first, of_block)), fresh, e.mul(blocks, self.lanes))
            of_slice = self.at(planes, e.mul(first, plan.block * self.lanes))
            self.add_products(of_slice, fresh, plan.weight_plane, own, blocks, count)

    def add_products(
        self, planes: str, weights: str, weight_plane: int, sums: str, blocks: Number, count: Number
    ) -> None:
        """Emit the sums over some blocks of channels, added to the stored sums if ``plan.fresh``.

        The tiles are split evenly into passes of at most the register tile's rows. Every known row count of a pass has
        code of its own. If the counts are unknown, every even count has code, and an odd row is computed on its own.
        """
        e, plan = self.e, self.plan
        width = plan.vectors * self.lanes
        passes = e.div(e.add(count, plan.rows - 1), plan.rows)
        rows, longer = e.div(count, passes), e.rem(count, passes)
        with e.loop(0, plan.points) as point:
            plane = self.at(planes, e.mul(point, plan.input_plane))
            factors = self.at(weights, e.mul(point, weight_plane))
            results = self.at(sums, e.mul(point, plan.sum_plane))
            with e.loop(0, passes) as number:
                first = e.add(e.mul(number, rows), e.least(number, longer))
                here = e.add(rows, e.let(f"zext i1 {e.let(f'icmp slt i64 {number}, {longer}')} to i64"))
                left = self.at(plane, e.mul(first, plan.input_lanes))
                right = self.at(results, e.mul(first, width))
                known = self.known_rows()
                even = here if known else e.sub(here, e.rem(here, 2))
                for rows_of_pass in known or range(plan.rows - plan.rows % 2, 0, -2):
                    with e.when(e.let(f"icmp eq i64 {even}, {rows_of_pass}")):
                        self.register_tile(left, factors, right, rows_of_pass, blocks)
                if not known:
                    with e.when(e.let(f"icmp slt i64 {even}, {here}")):
                        left = self.at(left, e.mul(even, plan.input_lanes))
                        right = self.at(right, e.mul(even, width))
                        self.register_tile(left, factors, right, 1, blocks)

    def known_rows(self) -> list[int]:
        """Return the possible row counts of passes, descending, or nothing if the sizes are not constants."""
        tiles, blocks = self.plan.tiles, self.plan.blocks
        if not isinstance(tiles, int) or not isinstance(blocks, int) or not tiles:
            return []
        counts = set()
        for count in {tiles // blocks, -(-tiles // blocks)} - {0}:
            passes = -(-count // self.plan.rows)
            counts |= {count // passes, -(-count // passes)}
        return sorted(counts, reverse=True)

    def register_tile(self, left: str, factors: str, right: str, rows: int, blocks: Number) -> None:
        """Emit the sums over the channels of some tiles, all sums in registers."""
        e, plan, lanes = self.e, self.plan, self.lanes

        def before(row: int, member: int) -> str:
            return self.load(right, (row * plan.vectors + member) * lanes) if plan.fresh else "zeroinitializer"

        sums = [[e.variable(self.type, before(i, v)) for v in range(plan.vectors)] for i in range(rows)]
        factor, unroll = e.variable("ptr", factors), min(_UNROLL, plan.input_lanes)
        with e.loop(0, blocks) as block:
            of_block = self.at(left, e.mul(block, plan.block * plan.input_lanes))
            with e.loop(0, plan.input_lanes, unroll) as channel:
                values = self.at(of_block, channel)
                here = factor.get()
                for step in range(unroll):
                    loaded = [self.load(here, (step * plan.vectors + v) * lanes) for v in range(plan.vectors)]
                    if plan.integer:
                        for v in range(plan.vectors):
                            ahead = (step * plan.vectors + v) * lanes + costs.WINOGRAD_PREFETCH_WORDS
                            e.prefetch(self.at(here, ahead), level=2)
                    for i, row in enumerate(sums):
                        value = e.load(self.word, self.at(values, i * plan.input_lanes + step), 4)
                        spread = e.spread(value, lanes, self.word)
                        for total, weight in zip(row, loaded, strict=True):
                            total.set(self.multiply_add(spread, weight, total.get()))
                factor.set(self.at(here, unroll * plan.vectors * lanes))
        for i, row in enumerate(sums):
            for v, total in enumerate(row):
                self.store(total.get(), right, (i * plan.vectors + v) * lanes)

    def multiply_add(self, a: str, b: str, c: str) -> str:
        """Return ``c`` plus the product of two vectors."""
        if self.plan.integer:
            saturates = self.plan.target.saturates
            return dot_add(self.e, self.lanes, 2, a, b, c, saturates=saturates, adds_pairs=not saturates)
        return self.e.multiply_add(self.type, a, b, c)

    # Results.

    def overflow(self, x: Image, weights: str) -> Overflow | None:
        """Return the repetition of lines of floats that are not finite."""
        if self.plan.integer:
            return None
        top, left = (self.kernel.size(size) for size in self.plan.padding)
        return Overflow(self.kernel, self.plan, x, (top, left), weights)

    def transform_outputs(
        self, sums: str, group: Number, start: Number, count: Number, overflow: Overflow | None, epilogue: Epilogue
    ) -> None:
        """Transform the sums of a block of tiles and call the epilogue for the results of a group of filters."""
        e, plan, lanes = self.e, self.plan, self.lanes
        height, width = (self.kernel.size(size) for size in plan.out)
        rows, columns = plan.tile
        partial = e.array("float", rows * self.across.n * lanes)
        line_results = e.array("float", columns * lanes)
        first_block = e.mul(group, plan.vectors)
        with e.loop(0, e.least(plan.vectors, e.sub(plan.filter_blocks, first_block))) as member:
            of_member = self.at(sums, e.mul(member, lanes))
            filter = e.mul(e.add(first_block, member), lanes)
            with self.tile_loop(start, count) as (number, image, row, column):
                y, x = e.mul(row, rows), e.mul(column, columns)
                of_tile = self.at(of_member, e.mul(number, plan.vectors * lanes))
                for j in range(self.across.n):
                    values = [self.load(of_tile, (i * self.across.n + j) * plan.sum_plane) for i in range(self.down.n)]
                    for i, value in enumerate(transform_output(e, self.type, self.down, values)):
                        self.store(value, partial, (i * self.across.n + j) * lanes)
                with e.loop(0, e.least(rows, e.sub(height, y))) as line:
                    of_line = self.at(partial, e.mul(line, self.across.n * lanes))
                    values = [self.load(of_line, j * lanes) for j in range(self.across.n)]
                    results = self.divided(line, transform_output(e, self.type, self.across, values))
                    at = Index(image), Index(filter, 1), Index(e.add(y, line)), Index(x)
                    inside, position = e.least(columns, e.sub(width, x)), Line(image, e.add(y, line), x, group, member)
                    self.emit_results(at, results, line_results, inside, position, overflow, epilogue)

    def divided(self, line: Number, results: Sequence[str]) -> Sequence[str]:
        """Divide a line of a tile's results by the factors of integers: an odd one, modulo 2^32, and powers of 2."""
        if not self.plan.integer:
            return results
        e, (down, across) = self.e, self.plan.integers
        inverse = splat(str(pow(down.factor * across.factor, -1, 1 << 32)), self.lanes, "i32")
        # The bits of a word hold the shifts of all lines.
        word = sum(shift << 8 * i for i, shift in enumerate(down.shifts))
        of_line = e.let(f"and i64 {e.let(f'lshr i64 {word}, {e.mul(line, 8)}')}, 255")
        amounts = e.spread(e.let(f"trunc i64 {of_line} to i32"), self.lanes, "i32")
        divided = []
        for result, shift in zip(results, across.shifts, strict=True):
            if down.factor * across.factor > 1:
                result = e.let(f"mul {self.type} {result}, {inverse}")
            by = e.let(f"add {self.type} {amounts}, {splat(str(shift), self.lanes, 'i32')}")
            divided.append(e.let(f"ashr exact {self.type} {result}, {by}"))
        return divided

    def emit_results(
        self, at: tuple[Index, ...], results: Sequence[str], room: str, count: Number, position: Line,
        overflow: Overflow | None, epilogue: Epilogue,
    ) -> None:  # fmt: skip
        """Call the epilogue for the first ``count`` results of a line; ``at`` is the index of the first."""
        e = self.e
        *line, x = at
        usual = e.let(f"icmp eq i64 {count}, {len(results)}")
        finite = overflow and overflow.is_finite(results)
        if finite:
            usual = e.let(f"and i1 {usual}, {finite}")
        with e.either(usual) as branches:
            next(branches)
            with self.kernel.side_by_side():
                for j, value in enumerate(results):
                    epilogue((*line, Index(e.add(x.base, j))), value, None)
            next(branches)
            for j, value in enumerate(results):
                self.store(value, room, j * self.lanes)
            if overflow and finite:
                with e.when(e.let(f"xor i1 {finite}, true")):
                    overflow.repeat(position, room, count)
            with e.loop(0, count) as column:
                value = self.load(room, e.mul(column, self.lanes))
                with self.kernel.side_by_side():
                    epilogue((*line, Index(e.add(x.base, column))), value, None)
            next(branches, None)
