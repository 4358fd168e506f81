"""Convolutions of bytes on the matrix unit: the copy to lines, packed weights, and the products.

See :mod:`sardonyx.compiler.tiling.matrix_convolution` for the geometry.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Index, Kernel
from sardonyx.compiler.kernels.conv.window_sweep import Image, steps
from sardonyx.compiler.kernels.matrix_tiles import COLUMNS, MatrixUnit
from sardonyx.compiler.llvm.ir_builder import Emitter, splat
from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.tiling.matrix_convolution import PANEL, TILE_DEPTH, TILE_ROWS, MatrixConvolution
from sardonyx.compiler.tiling.windows import Number
from sardonyx.core.dim import Size

_BLOCK = 16
"""Channels of a block of an image."""

_ADJACENT = 4
"""Adjacent results that an epilogue may store at once."""


def pack_matrix_weights(weights: np.ndarray, plan: MatrixConvolution) -> np.ndarray:
    """Return weights [1, filters, channels, height, width] as [panel][step][16][filter of the panel][4]."""
    filters, channels = weights.shape[1:3]
    taps = weights.reshape(filters, channels, *plan.window)
    down, along = plan.runs
    pixels = np.zeros((plan.panels * PANEL, *plan.window, plan.pixel), weights.dtype)
    pixels[:filters, ..., :channels] = taps.transpose(0, 2, 3, 1)
    of_runs = pixels.reshape(len(pixels), down * along, plan.run_bytes)
    padded = np.zeros((len(pixels), down * along, plan.chunks * TILE_DEPTH), weights.dtype)
    padded[..., : plan.run_bytes] = of_runs
    parts = padded.reshape(plan.panels, PANEL, plan.steps, TILE_DEPTH // 4, 4).transpose(0, 2, 3, 1, 4)
    packed = aligned_zeros((parts.size,), weights.dtype)
    packed[:] = parts.reshape(-1)
    return packed


def interleave(
    kernel: Kernel,
    plan: MatrixConvolution,
    x: Image,
    lines: str,
    batch: Size,
    *,
    filling: int = 0,
    flips: bool = False,
) -> Size:
    """Write the copy of an image to lines; return the work items, a line each.

    Args:
        kernel: The kernel.
        plan: The geometry.
        x: The image.
        lines: The lines.
        batch: Number of images.
        filling: The byte around the image.
        flips: True if the signs of the image's bytes are flipped: int8 becomes uint8, greater by 128.
    """
    e = kernel.emitter
    height, width = plan.image
    above, left = plan.padding
    last = min(plan.columns - left, width)
    kernel.work = plan.line_bytes // 8
    with e.loop("%first", "%last") as item:
        image, line = e.div(item, plan.lines), e.rem(item, plan.lines)
        target = e.address(lines, "i8", e.mul(item, plan.line_bytes))
        y = e.sub(line, above)
        with e.either(e.let(f"icmp ult i64 {y}, {height}")) as branches:
            next(branches)
            _fill(e, plan, target, 0, max(left, 0), filling)
            begin = max(-left, 0)
            inside = e.address(target, "i8", (begin + left) * plan.pixel)
            copy = _copy_planes if plan.planes else _copy_blocks
            copy(e, plan, x.pointer, image, y, begin, last, inside, flips)
            _fill(e, plan, target, max(last + left, 0), plan.columns, filling)
            next(branches)
            _fill(e, plan, target, 0, plan.columns, filling)
            next(branches, None)
    return batch * plan.lines


def _fill(e: Emitter, plan: MatrixConvolution, line: str, first: int, end: int, filling: int) -> None:
    """Write a value to the pixels of a line from ``first`` on."""
    part = min(plan.pixel, TILE_DEPTH) if plan.pixel % TILE_DEPTH == 0 else min(plan.pixel, _BLOCK)
    with e.loop(first * plan.pixel, end * plan.pixel, part) as at:
        e.store(f"<{part} x i8>", splat(str(filling), part, "i8"), e.address(line, "i8", at), 4)


def _copy_planes(
    e: Emitter,
    plan: MatrixConvolution,
    source: str,
    image: Number,
    y: Number,
    begin: int,
    end: int,
    target: str,
    flips: bool,
) -> None:
    """Interleave the planes of a row, 16 pixels at a time."""
    height, width = plan.image
    plane = e.add(e.mul(image, plan.channels * height * width), e.mul(y, width))
    bytes = f"<{TILE_ROWS} x i8>"

    def copy(x: Number, mask: str | None) -> None:
        rows = []
        for channel in range(4):
            if channel >= plan.channels:
                rows.append("zeroinitializer")
                continue
            at = e.address(source, "i8", e.add(e.add(plane, channel * height * width), x))
            rows.append(e.load(bytes, at, 1) if mask is None else e.masked_load(bytes, at, 1, mask, TILE_ROWS))
        pairs = [e.let(f"bitcast <32 x i8> {_interleave(e, 'i8', *rows[i : i + 2])} to <16 x i16>") for i in (0, 2)]
        pixels = _flipped(e, e.let(f"bitcast <32 x i16> {_interleave(e, 'i16', *pairs)} to <16 x i32>"), flips)
        there = e.address(target, "i8", e.mul(e.sub(x, begin), plan.pixel))
        if mask is None:
            e.store("<16 x i32>", pixels, there, 4)
        else:
            e.masked_store("<16 x i32>", pixels, there, 4, mask, TILE_ROWS)

    whole = begin + (end - begin) // TILE_ROWS * TILE_ROWS
    with e.loop(begin, whole, TILE_ROWS) as x:
        copy(x, None)
    if whole < end:
        copy(whole, e.lanes_below(end - whole, TILE_ROWS))


def _interleave(e: Emitter, element: str, first: str, second: str) -> str:
    """Return the elements of two vectors of 16, alternating."""
    order = ", ".join(f"i32 {index}" for lane in range(16) for index in (lane, 16 + lane))
    type = f"<16 x {element}>"
    return e.let(f"shufflevector {type} {first}, {type} {second}, <32 x i32> <{order}>")


def _copy_blocks(
    e: Emitter,
    plan: MatrixConvolution,
    source: str,
    image: Number,
    y: Number,
    begin: int,
    end: int,
    target: str,
    flips: bool,
) -> None:
    """Join the blocks of a row: 4 pixels of 4 blocks at a time are a transposition of 16 bytes each."""
    height, width = plan.image
    blocks = plan.pixel // _BLOCK
    block_step = height * width * _BLOCK
    row = e.add(e.mul(image, blocks * block_step), e.mul(y, width * _BLOCK))
    some = 4 if blocks % 4 == 0 else 1
    whole = begin + (end - begin) // 4 * 4 if some == 4 else begin
    with steps(e, 0, blocks, some) as block:
        of_block = e.address(source, "i8", e.add(row, e.mul(block, block_step)))
        there = e.address(target, "i8", e.mul(block, _BLOCK))
        with e.loop(begin, whole, 4) as x:
            start = e.address(of_block, "i8", e.mul(x, _BLOCK))
            square = [e.load("<16 x i32>", e.address(start, "i8", i * block_step), 16) for i in range(4)]
            goal = e.address(there, "i8", e.mul(e.sub(x, begin), plan.pixel))
            for i, pixel in enumerate(_transpose_quarters(e, square)):
                e.store("<16 x i32>", _flipped(e, pixel, flips), e.address(goal, "i8", i * plan.pixel), 16)
        with e.loop(whole, end) as x:
            start = e.address(of_block, "i8", e.mul(x, _BLOCK))
            goal = e.address(there, "i8", e.mul(e.sub(x, begin), plan.pixel))
            for i in range(some):
                part = e.load("<16 x i8>", e.address(start, "i8", i * block_step), 16)
                part = e.let(f"xor <16 x i8> {part}, {splat('-128', 16, 'i8')}") if flips else part
                e.store("<16 x i8>", part, e.address(goal, "i8", i * _BLOCK), 16)


def _flipped(e: Emitter, words: str, flips: bool) -> str:
    """Return words of bytes, with flipped signs if ``flips``."""
    return e.let(f"xor <16 x i32> {words}, {splat('-2139062144', 16, 'i32')}") if flips else words


def _transpose_quarters(e: Emitter, rows: list[str]) -> list[str]:
    """Transpose a square of four vectors of four parts of 16 bytes."""

    def pick(first: str, second: str, parts: tuple[int, int, int, int]) -> str:
        order = ", ".join(
            f"i32 {16 * (i >= 2) + 4 * part + k}" for i, part in enumerate(parts) for k in range(4)
        )  # fmt: skip
        return e.let(f"shufflevector <16 x i32> {first}, <16 x i32> {second}, <16 x i32> <{order}>")

    a, b, c, d = rows
    low, high = (0, 1, 0, 1), (2, 3, 2, 3)
    halves = [(pick(a, b, parts), pick(c, d, parts)) for parts in (low, high)]
    even, odd = (0, 2, 0, 2), (1, 3, 1, 3)
    return [pick(first, second, parts) for first, second in halves for parts in (even, odd)]


def multiply(
    kernel: Kernel, plan: MatrixConvolution, lines: str, weights: str, batch: Size, spatial: int, epilogue: Epilogue
) -> Size:
    """Write the products of lines and weights; return the work items.

    Args:
        kernel: The kernel.
        plan: The geometry.
        lines: The lines of :func:`interleave`.
        weights: The weights of :func:`pack_matrix_weights`.
        batch: Number of images.
        spatial: Spatial axes of the result, 1 or 2; with one axis, an image has one row.
        epilogue: Gets vectors of 16 output channels at one position.
    """
    return _Products(kernel, plan, lines, weights, spatial, epilogue).write(batch)


class _Products:
    """The emitter of :func:`multiply`."""

    def __init__(
        self, kernel: Kernel, plan: MatrixConvolution, lines: str, weights: str, spatial: int, epilogue: Epilogue
    ) -> None:
        self.kernel, self.plan, self.lines, self.weights = kernel, plan, lines, weights
        self.spatial, self.epilogue = spatial, epilogue
        self.e = kernel.emitter
        self.unit = MatrixUnit(self.e)
        self.tiles = plan.tiles(plan.rows)
        self.sums = self.e.array("i32", self.tiles * TILE_ROWS * PANEL)

    def write(self, batch: Size) -> Size:
        plan, e = self.plan, self.e
        groups = -(-plan.out[0] // plan.rows)
        shared = min(groups, max(1, self.kernel.target.l2 // 2 // (plan.rows * plan.strides[0] * plan.line_bytes)))
        with self.unit.configured(), e.loop("%first", "%last") as item:
            image, rest = e.div(item, plan.panels * groups), e.rem(item, plan.panels * groups)
            before = e.mul(e.div(rest, shared * plan.panels), shared)
            within, here = e.rem(rest, shared * plan.panels), e.least(shared, e.sub(groups, before))
            panel, group = e.div(within, here), e.add(before, e.rem(within, here))
            last = plan.panels - 1
            wide = 1 if plan.filters - last * PANEL <= COLUMNS else 2
            if wide == 2 or last == 0:
                self._panel(image, panel, group, wide)
            else:
                with e.either(e.let(f"icmp slt i64 {panel}, {last}")) as branches:
                    for columns, _ in zip((2, 1), branches, strict=True):
                        self._panel(image, panel, group, columns)
        self.kernel.work = self.tiles * plan.steps * 2 * 2 * TILE_ROWS
        return batch * (plan.panels * groups)

    def _panel(self, image: Number, panel: Number, group: Number, columns: int) -> None:
        """Emit the products of some rows with up to two tiles of filters, then the epilogue."""
        plan, e = self.plan, self.e
        first = e.mul(group, plan.rows)
        # The last rows are computed with some before, whose results are stored already.
        start = e.least(first, plan.out[0] - plan.rows)
        line = e.add(e.mul(image, plan.lines), e.mul(start, plan.strides[0]))
        base = e.address(self.lines, "i8", e.mul(line, plan.line_bytes))
        weights = e.address(self.weights, "i8", e.mul(panel, plan.steps * TILE_DEPTH * PANEL))
        with e.loop(0, self.tiles // 2 * 2, 2) as tile:
            self._tiles(base, weights, [tile, e.add(tile, 1)], columns)
        if self.tiles % 2:
            self._tiles(base, weights, [self.tiles - 1], columns)
        with e.loop(e.sub(first, start), plan.rows) as y:
            for column in range(columns):
                channel = e.add(e.mul(panel, PANEL), column * COLUMNS)
                self._finish(image, channel, e.add(start, y), e.mul(y, plan.pitch), column)

    def _tiles(self, base: str, weights: str, tiles: list[Number], columns: int) -> None:
        """Emit the products of one or two tiles of outputs, and store the sums."""
        plan, e, unit = self.plan, self.e, self.unit
        starts = [e.address(base, "i8", self._offset(tile)) for tile in tiles]
        unit.clear(len(tiles), columns)
        down, along = plan.runs
        with steps(e, 0, down) as ky, steps(e, 0, along) as kx:
            run = e.add(e.mul(ky, plan.dilations[0] * plan.line_bytes), e.mul(kx, plan.dilations[1] * plan.pixel))
            with steps(e, 0, plan.chunks) as chunk:
                offset = e.add(run, e.mul(chunk, TILE_DEPTH))
                number = e.add(e.mul(e.add(e.mul(ky, along), kx), plan.chunks), chunk)
                packed = e.address(weights, "i8", e.mul(number, TILE_DEPTH * PANEL))
                unit.step(
                    [e.address(start, "i8", offset) for start in starts], plan.strides[1] * plan.pixel,
                    [e.address(packed, "i8", 4 * COLUMNS * column) for column in range(columns)], 4 * PANEL,
                )  # fmt: skip
        for i, tile in enumerate(tiles):
            for column in range(columns):
                at = e.add(e.mul(tile, TILE_ROWS * PANEL), column * COLUMNS)
                unit.store(i, column, e.address(self.sums, "i32", at), 4 * PANEL)

    def _offset(self, tile: Number) -> Number:
        """Return the bytes from the first window of a work item to the first window of a tile."""
        plan, e = self.plan, self.e
        along = TILE_ROWS * plan.strides[1] * plan.pixel
        if plan.is_flat:
            return e.mul(tile, along)
        row, part = e.div(tile, plan.tiles_of_row), e.rem(tile, plan.tiles_of_row)
        return e.add(e.mul(row, plan.strides[0] * plan.line_bytes), e.mul(part, along))

    def _finish(self, image: Number, channel: Number, y: Number, position: Number, column: int) -> None:
        """Emit the epilogue for a row of outputs of 16 filters."""
        e, width = self.e, self.plan.out[1]

        def emit(x: Number, count: int) -> None:
            with self.kernel.side_by_side():
                for i in range(count):
                    at = e.add(e.mul(e.add(e.add(position, x), i), PANEL), column * COLUMNS)
                    value = e.load("<16 x i32>", e.address(self.sums, "i32", at), 64)
                    where = [Index(y), Index(e.add(x, i))][2 - self.spatial :]
                    self.epilogue((Index(image), Index(channel, 1), *where), value, None)

        whole = width // _ADJACENT * _ADJACENT
        with e.loop(0, whole, _ADJACENT) as x:
            emit(x, _ADJACENT)
        if whole < width:
            emit(whole, width - whole)
