"""Depthwise convolutions of bytes: lanes are channels, and an instruction adds the products of four taps of a row.

A load of 64 bytes has the 16 channels of a block at four adjacent positions; one permutation of bytes gives each lane
the four positions of its channel. These *words* begin at even distances from the first input of a tile: an output at
an odd distance multiplies them by weights that are shifted by one position, so that adjacent outputs share words.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.compiler.codegen.integer_dot import dot_add
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.kernels.conv.window_sweep import Image, Row, Sweep
from sardonyx.compiler.llvm.ir_builder import splat, vector
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.windows import Number, Windows, block_count
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType

_POSITIONS = 4
"""Positions of a word: the bytes of a lane."""

_FLIP = 128
"""Difference of the codes of int8, and of the same bytes as unsigned numbers with the first bit flipped."""


def pack_byte_weights(weights: np.ndarray, target: Target, stride: int, shift: int, dtype: DType) -> np.ndarray:
    """Return the weights in the order in which :func:`depthwise_bytes` reads them.

    Args:
        weights: [channels, 1, 1, *window], numbers of int8.
        target: The processor.
        stride: Inputs from output to output of a row.
        shift: Integer that is subtracted from each code of the image.
        dtype: The element type of the image.

    Returns:
        Words of int32: [channel block][rows of the window][vectors][channel of the block], where the vectors are those
        of outputs at even distances, of outputs at odd distances, and the sum of the row times ``-shift``.
    """
    channels, lanes = len(weights), target.lanes(32)
    rows = weights.reshape(channels, -1, weights.shape[-1])
    _, count, taps = rows.shape
    blocks = block_count(channels, lanes)
    padded = np.zeros((blocks * lanes, count, taps + 2 * _POSITIONS), np.int8)
    padded[:channels, :, _POSITIONS : _POSITIONS + taps] = rows
    vectors = []
    for parity, words in enumerate(_word_counts(taps, stride)):
        for word in range(words):
            begin = _POSITIONS + _POSITIONS * word - parity
            part = np.ascontiguousarray(padded[:, :, begin : begin + _POSITIONS])
            vectors.append(part.view(np.int32)[..., 0])
    vectors.append(padded.sum(-1, dtype=np.int32) * np.int32(-_unsigned(shift, dtype)))
    return np.stack(vectors, -1).reshape(blocks, lanes, count, len(vectors)).transpose(0, 2, 3, 1).ravel()


def _word_counts(taps: int, stride: int) -> tuple[int, int]:
    """Return the words of a row of taps of an output at an even and at an odd distance."""
    return -(-taps // _POSITIONS), -(-(taps + 1) // _POSITIONS) if stride % 2 else 0


def _unsigned(code: int, dtype: DType) -> int:
    """Return a code of the image as an unsigned byte."""
    return code + (_FLIP if dtype == t.INT8 else 0)


def depthwise_bytes(
    kernel: Kernel, *, x: Image, weights: str, batch: Size, windows: Windows, out: tuple[Size, ...], outputs: int,
    epilogue: Epilogue, shift: int = 0,
) -> Size:  # fmt: skip
    """Write a depthwise convolution of a blocked image of codes, without dilation along rows; see :func:`.depthwise`.

    The epilogue gets integers of 32 bits.

    Returns:
        The number of work items.
    """
    sweep = Sweep(kernel, x, windows, out, batch, block_count(x.channels, kernel.target.lanes(32)), outputs=outputs)
    code = _Bytes(sweep, x, weights, epilogue, shift)
    sweep.rows(code.row)
    return sweep.items


class _Bytes:
    """The emitter of the rows of one convolution."""

    def __init__(self, sweep: Sweep, x: Image, weights: str, epilogue: Epilogue, shift: int) -> None:
        self.sweep, self.x, self.weights, self.epilogue = sweep, x, weights, epilogue
        self.emitter = e = sweep.kernel.emitter
        self.lanes = sweep.kernel.target.lanes(32)
        self.type, self.bytes = vector(self.lanes, "i32"), vector(_POSITIONS * self.lanes, "i8")
        self.shift = shift
        self.zero = _unsigned(shift, x.dtype)
        self.window = sweep.window
        self.words = _word_counts(self.window[2], sweep.axes[2].phases[0].advance)
        depth, height, width = sweep.axes
        self.row_step = e.mul(width.size, self.lanes)
        self.slice_step = e.mul(self.row_step, height.size)
        self.block_step = e.mul(self.slice_step, depth.size)

    def row(self, row: Row) -> None:
        """Write a row of outputs of a channel block."""
        e = self.emitter
        block = e.add(e.mul(row.image, self.sweep.blocks), row.block)
        image = e.address(self.x.pointer, "i8", e.mul(block, self.block_step))
        begin = e.variable(self.type, "zeroinitializer")
        if self.zero:
            with self.sweep.lines(row, image, "i8", self.slice_step, self.row_step) as (_, tap):
                begin.set(e.let(f"add {self.type} {begin.get()}, {self._weights(row, tap)[-1]}"))
        start = begin.get()
        self.sweep.tiles(row, lambda first, size, guarded: self._tile(row, image, start, first, size, guarded))

    def _weights(self, row: Row, tap: Number) -> list[str]:
        """Load the vectors of a row of taps."""
        e, count = self.emitter, sum(self.words) + 1
        line = e.add(e.mul(row.block, math.prod(self.window[:2])), e.div(tap, self.window[2]))
        start = e.address(self.weights, "i32", e.mul(line, count * self.lanes))
        return [e.load(self.type, e.address(start, "i32", i * self.lanes), 4 * self.lanes) for i in range(count)]

    def _tile(self, row: Row, image: str, begin: str, first: Number, size: int, guarded: bool) -> None:
        e, width = self.emitter, row.phases[2]
        lowest = width.input_index(e, first)
        sums = [e.variable(self.type, begin) for _ in range(size)]
        readers: dict[int, list[tuple[int, int]]] = {}
        needed: dict[int, set[int]] = {}
        for i in range(size):
            distance = i * width.advance
            parity = distance % 2
            for word in range(self.words[parity]):
                at = distance - parity + _POSITIONS * word
                readers.setdefault(at, []).append((i, word + self.words[0] * parity))
                inside = range(distance, distance + self.window[2])
                needed.setdefault(at, set()).update(p for p in range(_POSITIONS) if at + p in inside)
        with self.sweep.lines(row, image, "i8", self.slice_step, self.row_step) as (line, tap):
            weights = self._weights(row, tap)
            values = [total.get() for total in sums]
            for at in sorted(readers):
                words = self._words(line, e.add(lowest, at), needed[at], guarded)
                for i, number in readers[at]:
                    values[i] = dot_add(e, self.lanes, 4, words, weights[number], values[i], saturates=False)
            for total, value in zip(sums, values, strict=True):
                total.set(value)
        with self.sweep.side_by_side(row):
            channel = e.mul(row.block, self.lanes)
            for i, total in enumerate(sums):
                self.epilogue(self.sweep.index(row, channel, e.add(first, i), self.lanes), total.get(), None)

    def _words(self, line: str, position: Number, needed: set[int], guarded: bool) -> str:
        """Return the words at a position of a row; positions that no output needs are not read."""
        e, count = self.emitter, _POSITIONS * self.lanes
        address = e.address(line, "i8", e.mul(position, self.lanes))
        mask = self._mask([p in needed for p in range(_POSITIONS)])
        if guarded:
            mask = self._inside(position, mask)
        if guarded or len(needed) < _POSITIONS:
            loaded = e.masked_load(self.bytes, address, 1, mask, count)
        else:
            loaded = e.load(self.bytes, address, 1)
        if guarded and self.shift:
            filling = splat(str(self.shift), count, "i8")
            loaded = e.let(f"select <{count} x i1> {mask}, {self.bytes} {loaded}, {self.bytes} {filling}")
        if self.x.dtype == t.INT8:
            loaded = e.let(f"xor {self.bytes} {loaded}, {splat(str(-_FLIP), count, 'i8')}")
        numbers = [f"i32 {p * self.lanes + lane}" for lane in range(self.lanes) for p in range(_POSITIONS)]
        indices = f"<{count} x i32> <{', '.join(numbers)}>"
        words = e.let(f"shufflevector {self.bytes} {loaded}, {self.bytes} poison, {indices}")
        return e.let(f"bitcast {self.bytes} {words} to {self.type}")

    def _mask(self, flags: list[bool]) -> str:
        """Return a constant mask of bytes of the positions with a flag."""
        return "<" + ", ".join(f"i1 {str(flag).lower()}" for flag in flags for _ in range(self.lanes)) + ">"

    def _inside(self, position: Number, mask: str) -> str:
        """Return the bytes of a mask whose positions are in the row."""
        e, count, size = self.emitter, _POSITIONS * self.lanes, self.sweep.axes[2].size
        if isinstance(position, int) and isinstance(size, int):
            inside = self._mask([0 <= position + p < size for p in range(_POSITIONS)])
        else:
            numbers = "<" + ", ".join(f"i8 {p}" for p in range(_POSITIONS) for _ in range(self.lanes)) + ">"
            ends = [e.most(0, e.least(_POSITIONS, e.sub(end, position))) for end in (0, size)]
            low, high = (e.spread(e.let(f"trunc i64 {end} to i8"), count, "i8") for end in ends)
            after = e.let(f"icmp sge {self.bytes} {numbers}, {low}")
            inside = e.let(f"and <{count} x i1> {after}, {e.let(f'icmp slt {self.bytes} {numbers}, {high}')}")
        return e.let(f"and <{count} x i1> {inside}, {mask}")
