"""Products by weights of few bits: packing, products of few rows, and conversion of a part of a panel to floats.

A word holds adjacent codes of one column along K, as signed integers; the lanes of a vector are columns. For few rows
codes are converted in registers, and a block's sum of products is multiplied by its scale: the memory holds the codes
alone. For more rows a part of a panel is converted in the scratch memory of the thread, ``(code - zero) * scale`` as in
the reference, and multiplied as any panel of floats.

Sums of codes are larger than sums of weights. If a sum is not finite, the rows are computed again by weights, in the
order of K, so that results are infinite or NaN as those of the reference are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.compiler.analysis.low_bit_weights import WORD_BITS, LowBits
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.kernels.gemm.microkernel import read
from sardonyx.compiler.kernels.gemm.operands import LowBitPanels, Matrix
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable, float_literal, splat, vector
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm import Tile

_SIGNS = {2: 0xAA, 4: 0x88, 8: 0x80}
"""The bits of a byte to flip, so that codes become signed integers."""

_MOST_SUMS = {False: 12, True: 16}
"""Vectors of sums of a block that are in registers at a time, with 16 registers and with 32."""


def pack_codes(
    packed: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, form: LowBits, columns: int
) -> np.ndarray:
    """Return weights of few bits in panels of words, [panels, blocks, words of a block].

    A block is its codes, [words, columns], its scales, [columns], and its zero points less the middle of the range, as
    bytes or floats, [columns].

    Args:
        packed: Unsigned codes in bytes along K, lowest bits first, [blocks, bytes, N].
        scale: [blocks, N].
        zero: [blocks, N]; None if all are the middle.
        form: The storage.
        columns: Columns of a panel.
    """
    blocks, size, width = packed.shape
    panels = -(-width // columns)

    def paneled(array: np.ndarray) -> np.ndarray:
        """Return [blocks, rows, N] as [panels, blocks, rows, columns], zeros past N."""
        padded = np.zeros((*array.shape[:2], panels * columns), array.dtype)
        padded[..., :width] = array
        return padded.reshape(*array.shape[:2], panels, columns).transpose(2, 0, 1, 3)

    codes = np.zeros((blocks, form.code_words * 4, width), np.uint8)
    codes[:, :size] = packed ^ np.uint8(_SIGNS[form.bits])
    quads = np.ascontiguousarray(codes.reshape(blocks, form.code_words, 4, width).swapaxes(2, 3))
    rows = [paneled(quads.view(np.int32)[..., 0]), paneled(scale[:, None].astype(np.float32)).view(np.int32)]
    parts = [np.ascontiguousarray(part).reshape(panels, blocks, -1) for part in rows]
    if zero is not None:
        shifted = paneled(zero[:, None] - np.float32(1 << (form.bits - 1)))
        if form.zeros == "bytes":
            bytes = np.zeros((panels, blocks, -(-columns // 32) * 32), np.int8)
            bytes[..., :columns] = shifted[:, :, 0]
            parts.append(bytes.view(np.int32))
        else:
            parts.append(np.ascontiguousarray(shifted[:, :, 0]).view(np.int32))
    return np.concatenate(parts, axis=2)


def _assign(variables: Sequence[Variable], values: Sequence[str]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.set(value)


class LowBitPanel:
    """Emitter of the codes of one panel.

    Args:
        e: The IR builder.
        target: The processor.
        tile: The tile.
        panels: The weights.
        pointer: Address of the panel.
        depth: K.
        chunk: Steps of K that are converted at a time.
    """

    def __init__(
        self, e: Emitter, target: Target, tile: Tile, panels: LowBitPanels, pointer: str, depth: int, chunk: int
    ) -> None:
        self.e, self.tile, self.form, self.chunk = e, tile, panels.form, chunk
        self.pointer, self.depth = pointer, depth
        self.words, self.registers = vector(tile.lanes, "i32"), target.vector_registers
        self.whole, self.rest = divmod(depth, self.form.block)
        self.table: str | None = None
        if target.vector_bits == 512 and self.form.bits < 8:
            # One permutation converts a code: it reads the lowest four bits of a lane.
            half = 1 << (self.form.bits - 1)
            values = [((code & (2 * half - 1)) ^ half) - half for code in range(tile.lanes)]
            self.table = "<" + ", ".join(f"float {float_literal(value, 'float')}" for value in values) + ">"

    # Parts of a block.

    def block(self, number: str | int) -> str:
        """Return the address of a block."""
        return self.e.address(self.pointer, "i32", self.e.mul(number, self.form.block_words(self.tile.columns)))

    def _word(self, block: str, row: str | int, number: int) -> str:
        """Load the words of a vector of columns."""
        e, tile = self.e, self.tile
        at = e.address(block, "i32", e.add(e.mul(row, tile.columns), number * tile.lanes))
        return e.load(self.words, at, 4)

    def _scale(self, block: str, number: int) -> str:
        e, tile = self.e, self.tile
        at = e.address(block, "i32", self.form.code_words * tile.columns + number * tile.lanes)
        return e.load(tile.type, at, 4)

    def _zero(self, block: str, number: int) -> str | None:
        e, tile = self.e, self.tile
        after = e.address(block, "i32", (self.form.code_words + 1) * tile.columns)
        if self.form.zeros == "none":
            return None
        if self.form.zeros == "floats":
            return e.load(tile.type, e.address(after, "float", number * tile.lanes), 4)
        bytes = vector(tile.lanes, "i8")
        loaded = e.load(bytes, e.address(after, "i8", number * tile.lanes), 1)
        return e.let(f"sitofp {bytes} {loaded} to {tile.type}")

    def _code(self, word: str, step: int) -> str:
        """Return the code of a step in a word as floats."""
        e, tile, bits = self.e, self.tile, self.form.bits
        if self.table is not None:
            if step:
                word = e.let(f"lshr {self.words} {word}, {splat(str(step * bits), tile.lanes, 'i32')}")
            operands = [(tile.type, self.table), (self.words, word)]
            return e.call(tile.type, "llvm.x86.avx512.permvar.sf.512", operands)
        left = WORD_BITS - bits * (step + 1)
        if left:
            word = e.let(f"shl {self.words} {word}, {splat(str(left), tile.lanes, 'i32')}")
        return self._signed(word)

    def _signed(self, word: str) -> str:
        """Return the code in the highest bits of a word as floats."""
        e, tile = self.e, self.tile
        right = splat(str(WORD_BITS - self.form.bits), tile.lanes, "i32")
        number = e.let(f"ashr {self.words} {word}, {right}")
        return e.let(f"sitofp {self.words} {number} to {tile.type}")

    def _weight(self, code: str, scale: str, zero: str | None) -> str:
        """Return ``(code - zero) * scale``, rounded as by the reference."""
        e, type = self.e, self.tile.type
        units = code if zero is None else e.let(f"fsub {type} {code}, {zero}")
        return e.let(f"fmul {type} {units}, {scale}")

    # Products of few rows.

    def multiply_rows(self, a: Matrix, lines: Sequence[str], sums: str) -> None:
        """Emit the product of some rows by the panel.

        Args:
            a: The first operand.
            lines: Addresses of the rows.
            sums: Address of the results, [rows, columns].
        """
        e, tile = self.e, self.tile
        with e.loop(0, len(lines) * tile.columns, tile.lanes) as offset:
            at = e.address(sums, tile.element, offset)
            e.store(tile.type, "zeroinitializer", at, tile.bytes * tile.lanes)
        with e.loop(0, self.whole) as number:
            self._add_block(a, lines, sums, self.block(number), e.mul(number, self.form.block), self.form.block)
        if self.rest:
            self._add_block(a, lines, sums, self.block(self.whole), self.whole * self.form.block, self.rest)

    def _add_block(self, a: Matrix, lines: Sequence[str], sums: str, block: str, first: str | int, steps: int) -> None:
        """Emit the addition of a block's products, some vectors of columns at a time."""
        vectors = self.tile.vectors
        most = max(1, _MOST_SUMS[self.registers >= 32] // len(lines))
        group = max(count for count in range(1, vectors + 1) if vectors % count == 0 and count <= most)
        for start in range(0, self.tile.vectors, group):
            numbers = range(start, min(start + group, self.tile.vectors))
            self._add_columns(a, lines, sums, block, first, steps, numbers)

    def _add_columns(
        self, a: Matrix, lines: Sequence[str], sums: str, block: str, first: str | int, steps: int, numbers: range
    ) -> None:
        e, tile, form = self.e, self.tile, self.form
        chains = 1
        while len(lines) * len(numbers) * chains < costs.FMAS_IN_FLIGHT and chains < form.codes_per_word:
            chains *= 2
        partial = [[[e.variable(tile.type, "zeroinitializer") for _ in numbers] for _ in lines] for _ in range(chains)]
        totals = [e.variable(tile.type, "zeroinitializer") for _ in lines] if form.zeros != "none" else []

        def add_word(row: str | int, count: int) -> None:
            words = [self._word(block, row, number) for number in numbers]
            if numbers.start == 0:
                self._prefetch(block, row, costs.LOW_BIT_PREFETCH_BYTES)
            current = [[[variable.get() for variable in line] for line in chain] for chain in partial]
            inputs = [variable.get() for variable in totals]
            for step in range(count):
                codes = [self._code(word, step) for word in words]
                at = e.add(first, e.add(e.mul(row, form.codes_per_word), step))
                for line, pointer in enumerate(lines):
                    x = read(e, tile, a.dtype, pointer, Index(e.mul(at, a.column)), tile.lanes)
                    chain = current[step % chains][line]
                    chain[:] = [e.multiply_add(tile.type, x, code, sum) for code, sum in zip(codes, chain, strict=True)]
                    if inputs:
                        inputs[line] = e.let(f"fadd {tile.type} {inputs[line]}, {x}")
            for variables, values in zip(partial, current, strict=True):
                for line_variables, line_values in zip(variables, values, strict=True):
                    _assign(line_variables, line_values)
            _assign(totals, inputs)

        whole, rest = divmod(steps, form.codes_per_word)
        with e.loop(0, whole) as row:
            add_word(row, form.codes_per_word)
        if rest:
            add_word(whole, rest)
        for index, number in enumerate(numbers):
            scale, zero = self._scale(block, number), self._zero(block, number)
            for line in range(len(lines)):
                value = partial[0][line][index].get()
                for chain in partial[1:]:
                    value = e.let(f"fadd {tile.type} {value}, {chain[line][index].get()}")
                if zero is not None:
                    negated = e.let(f"fneg {tile.type} {zero}")
                    value = e.multiply_add(tile.type, negated, totals[line].get(), value)
                at = e.address(sums, tile.element, line * tile.columns + number * tile.lanes)
                before = e.load(tile.type, at, tile.bytes * tile.lanes)
                e.store(tile.type, e.multiply_add(tile.type, scale, value, before), at, tile.bytes * tile.lanes)

    def _prefetch(self, block: str, row: str | int, ahead: int) -> None:
        """Emit the prefetches of a row of words that is read later."""
        e, columns = self.e, self.tile.columns
        line = e.address(block, "i8", e.add(e.mul(row, 4 * columns), ahead))
        for offset in range(0, 4 * columns, costs.CACHE_LINE):
            e.prefetch(e.address(line, "i8", offset), level=2)

    def has_infinite(self, rows: str | int, sums: str) -> str:
        """Return an ``i1``: true if a sum of some rows is infinite or NaN."""
        e, tile = self.e, self.tile
        zeros = splat(float_literal(0.0, "float"), tile.lanes, "float")
        total = e.variable(tile.type, "zeroinitializer")
        with e.loop(0, e.mul(rows, tile.columns), tile.lanes) as offset:
            value = e.load(tile.type, e.address(sums, tile.element, offset), tile.bytes * tile.lanes)
            # 0 for a finite number, else NaN.
            total.set(e.let(f"fadd {tile.type} {total.get()}, {e.let(f'fmul {tile.type} {value}, {zeros}')}"))
        mask, bits = e.let(f"fcmp uno {tile.type} {total.get()}, {zeros}"), vector(tile.lanes, "i1")
        return e.call("i1", f"llvm.vector.reduce.or.v{tile.lanes}i1", [(bits, mask)])

    def multiply_weights(self, a: Matrix, line: str, sums: str) -> None:
        """Emit the product of one row by weights, in the order of K: small code for rare cases."""
        e, tile, form = self.e, self.tile, self.form
        with e.loop(0, tile.columns, tile.lanes) as offset:
            at = e.address(sums, tile.element, offset)
            e.store(tile.type, "zeroinitializer", at, tile.bytes * tile.lanes)
        with e.loop(0, form.blocks(self.depth)) as number:
            block, first = self.block(number), e.mul(number, form.block)
            steps = e.least(form.block, e.sub(self.depth, first))
            with e.loop(0, steps) as step:
                row, within = e.div(step, form.codes_per_word), e.rem(step, form.codes_per_word)
                left = e.sub(WORD_BITS - form.bits, e.mul(within, form.bits))
                shift = e.spread(e.let(f"trunc i64 {left} to i32"), tile.lanes, "i32")
                x = read(e, tile, a.dtype, line, Index(e.mul(e.add(first, step), a.column)), tile.lanes)
                for vector_number in range(tile.vectors):
                    word = self._word(block, row, vector_number)
                    code = self._signed(e.let(f"shl {self.words} {word}, {shift}"))
                    weight = self._weight(code, self._scale(block, vector_number), self._zero(block, vector_number))
                    at = e.address(sums, tile.element, vector_number * tile.lanes)
                    before = e.load(tile.type, at, tile.bytes * tile.lanes)
                    e.store(tile.type, e.multiply_add(tile.type, x, weight, before), at, tile.bytes * tile.lanes)

    # Conversion for many rows.

    def convert(self, begin: str | int, length: str | int, target: str) -> None:
        """Emit the conversion of some steps of K, whole blocks or up to the last step, to floats [steps, columns]."""
        e, block = self.e, self.form.block
        first, tile = e.div(begin, block), self.tile
        with e.loop(0, e.div(length, block)) as number:
            at = e.address(target, tile.element, e.mul(number, block * tile.columns))
            self._convert_block(self.block(e.add(first, number)), at, block)
        if self.rest:
            whole = e.div(length, block)
            with e.when(e.let(f"icmp slt i64 {e.mul(whole, block)}, {length}")):
                at = e.address(target, tile.element, e.mul(whole, block * tile.columns))
                self._convert_block(self.block(self.whole), at, self.rest)

    def _convert_block(self, block: str, target: str, steps: int) -> None:
        e, tile, form = self.e, self.tile, self.form
        scales = [self._scale(block, number) for number in range(tile.vectors)]
        zeros = [self._zero(block, number) for number in range(tile.vectors)]

        def convert_word(row: str | int, count: int) -> None:
            first = e.mul(row, form.codes_per_word)
            # The next part of the panel: hardware prefetchers do not follow a stream that pauses.
            self._prefetch(block, row, 4 * form.block_words(tile.columns) * (self.chunk // form.block))
            for number, (scale, zero) in enumerate(zip(scales, zeros, strict=True)):
                word = self._word(block, row, number)
                for step in range(count):
                    weight = self._weight(self._code(word, step), scale, zero)
                    offset = e.add(e.mul(e.add(first, step), tile.columns), number * tile.lanes)
                    e.store(tile.type, weight, e.address(target, tile.element, offset), tile.bytes * tile.lanes)

        whole, rest = divmod(steps, form.codes_per_word)
        with e.loop(0, whole) as row:
            convert_word(row, form.codes_per_word)
        if rest:
            convert_word(whole, rest)
