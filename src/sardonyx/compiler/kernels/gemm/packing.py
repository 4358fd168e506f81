"""Panels of B, ``[panel][K][columns]``: the inner loop reads them in order."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.load_store import load, memory_type
from sardonyx.compiler.kernels.gemm.microkernel import read
from sardonyx.compiler.kernels.gemm.operands import Matrix
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.tiling.gemm_schedule import PackedLayout, Tile
from sardonyx.core.ir.types import UINT8, UINT16


def pack(array: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """Return a matrix [..., K, N] in panels [..., ceil(N / columns), K, columns], zeros past N.

    Without panels the matrix is transposed: [..., N, K]. Columns of gates, [gates * units], alternate: a vector of
    units of each gate in turn, so that a panel holds all gates of the same units.

    Args:
        array: The matrix, or a batch of matrices.
        layout: The order of packed weights, :attr:`~sardonyx.compiler.tiling.gemm_schedule.GemmSchedule.packed_layout`.
    """
    if layout.gates > 1:
        array = _interleave_gates(array, layout)
    *batch, k, width = array.shape
    columns = layout.columns
    if not columns:
        return np.ascontiguousarray(array.swapaxes(-1, -2))
    panels = -(-width // columns)
    padded = np.zeros((*batch, k, panels * columns), array.dtype)
    padded[..., :width] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, k, panels, columns), -2, -3))


def _interleave_gates(array: np.ndarray, layout: PackedLayout) -> np.ndarray:
    """Return a matrix [K, gates * units] as [K, blocks * gates * lanes], zeros past the last unit."""
    gates, lanes = layout.gates, layout.lanes
    k, width = array.shape
    units = width // gates
    blocks = -(-units // lanes)
    padded = np.zeros((k, gates, blocks * lanes), array.dtype)
    padded[..., :units] = array.reshape(k, gates, units)
    return padded.reshape(k, gates, blocks, lanes).swapaxes(1, 2).reshape(k, blocks * gates * lanes)


def fill(e: Emitter, tile: Tile, b: Matrix, source: str, left: str | int, depth: str | int, panel: str) -> None:
    """Emit the packing of one panel, as the element type of the sums.

    Elements past the last column are undefined: sums of these columns are never stored.

    Args:
        e: The IR builder.
        tile: The tile.
        b: The matrix.
        source: Address of the panel's first column.
        left: Columns from there to the last, at most a panel's.
        depth: K.
        panel: Address of the packed panel.
    """
    if tile.dot_width > 1 and b.column == 1 and b.dtype != tile.result:
        _fill_by_words(e, tile, b, source, left, depth, panel)
        return
    if b.column == 1:
        _fill_by_rows(e, tile, b, source, left, depth, panel)
        return
    vectors = e.div(e.add(left, tile.lanes - 1), tile.lanes)
    with e.loop(0, vectors) as number:
        first = e.mul(number, tile.lanes)
        last = e.sub(left, 1)
        lines = []
        for lane in range(tile.lanes):
            column = e.least(e.add(first, lane), last)
            lines.append(e.address(source, memory_type(b.dtype), e.mul(column, b.column)))
        _fill_by_columns(e, tile, b, lines, depth, e.address(panel, tile.element, first))


def _fill_by_rows(
    e: Emitter, tile: Tile, b: Matrix, source: str, left: str | int, depth: str | int, panel: str
) -> None:
    """Emit copies of vectors of contiguous columns."""
    whole = e.mul(e.div(left, tile.lanes), tile.lanes)
    with e.loop(0, depth) as step:
        line = e.address(source, memory_type(b.dtype), e.mul(step, b.row))
        target = e.address(panel, tile.element, e.mul(step, tile.columns))

        def copy(offset: str | int, mask: str | None) -> None:
            value = read(e, tile, b.dtype, line, Index(offset, 1), tile.lanes, mask)
            e.store(tile.type, value, e.address(target, tile.element, offset), tile.bytes)

        with e.loop(0, whole, tile.lanes) as offset:
            copy(offset, None)
        if not (isinstance(left, int) and left == whole):
            with e.when(e.let(f"icmp slt i64 {whole}, {left}")):
                copy(whole, e.lanes_below(e.sub(left, whole), tile.lanes))


def _fill_by_words(
    e: Emitter, tile: Tile, b: Matrix, source: str, left: str | int, depth: str | int, panel: str
) -> None:
    """Emit words of two 16-bit numbers or four bytes each, from as many adjacent rows of contiguous columns."""
    lanes, width = tile.lanes, tile.dot_width
    dtype, element = (UINT16, "i16") if width == 2 else (UINT8, "i8")
    whole = e.mul(e.div(left, lanes), lanes)

    def joined(rows: list[str]) -> str:
        """Emit the rows as one vector, in which their elements alternate."""
        if len(rows) == 1:
            return rows[0]
        half = len(rows) // 2
        first, second = joined(rows[::2]), joined(rows[1::2])
        count = half * lanes
        order = ", ".join(f"i32 {index}" for at in range(count) for index in (at, count + at))
        type = vector(count, element)
        return e.let(f"shufflevector {type} {first}, {type} {second}, <{2 * count} x i32> <{order}>")

    with e.loop(0, depth) as step:
        lines = [
            e.address(source, memory_type(b.dtype), e.mul(e.add(e.mul(step, width), number), b.row))
            for number in range(width)
        ]
        target = e.address(panel, tile.element, e.mul(step, tile.columns))

        def copy(offset: str | int, mask: str | None) -> None:
            rows = [load(e, dtype, line, Index(offset, 1), lanes, mask) for line in lines]
            words = e.let(f"bitcast {vector(width * lanes, element)} {joined(rows)} to {tile.type}")
            e.store(tile.type, words, e.address(target, tile.element, offset), tile.bytes)

        with e.loop(0, whole, lanes) as offset:
            copy(offset, None)
        if not (isinstance(left, int) and left == whole):
            with e.when(e.let(f"icmp slt i64 {whole}, {left}")):
                copy(whole, e.lanes_below(e.sub(left, whole), lanes))


def _fill_by_columns(e: Emitter, tile: Tile, b: Matrix, lines: list[str], depth: str | int, panel: str) -> None:
    """Emit the copy of a vector of strided columns: contiguous ones are transposed in registers."""
    lanes = tile.lanes
    whole: str | int = 0
    if b.row == 1:
        whole = e.mul(e.div(depth, lanes), lanes)
        with e.loop(0, whole, lanes) as step:
            square = [read(e, tile, b.dtype, line, Index(step, 1), lanes) for line in lines]
            for offset, value in enumerate(transpose_square(e, square, tile.element)):
                at = e.address(panel, tile.element, e.mul(e.add(step, offset), tile.columns))
                e.store(tile.type, value, at, tile.bytes)
    with e.loop(whole, depth) as step:
        value = "poison"
        for lane, line in enumerate(lines):
            one = read(e, tile, b.dtype, line, Index(e.mul(step, b.row)), 1)
            value = e.let(f"insertelement {tile.type} {value}, {tile.element} {one}, i64 {lane}")
        e.store(tile.type, value, e.address(panel, tile.element, e.mul(step, tile.columns)), tile.bytes)


def transpose_square(e: Emitter, rows: list[str], element: str) -> list[str]:
    """Emit the transposition of a square of vectors; the number of lanes is a power of two.

    Each step interleaves the upper half of the vectors with the lower: the bits of row and column numbers, as one word,
    rotate by one position, and have changed sides at the end.
    """
    lanes = len(rows)
    type, indices = f"<{lanes} x {element}>", f"<{lanes} x i32>"
    both = [index for lane in range(lanes) for index in (lane, lanes + lane)]
    low, high = (", ".join(f"i32 {index}" for index in part) for part in (both[:lanes], both[lanes:]))
    for _ in range(lanes.bit_length() - 1):
        pairs = zip(rows[: lanes // 2], rows[lanes // 2 :], strict=True)
        rows = [
            e.let(f"shufflevector {type} {first}, {type} {second}, {indices} <{order}>")
            for first, second in pairs
            for order in (low, high)
        ]
    return rows
