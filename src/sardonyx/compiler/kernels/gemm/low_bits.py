"""Products by weights of few bits: packing, products of few rows, and conversion of a part of a panel to floats.

A word holds adjacent codes of one column along K, as unsigned integers; the lanes of a vector are columns. For few rows
codes are converted in registers, and a block's sum of products is multiplied by its scale: the memory holds the codes
alone. For more rows a part of a panel is converted in the scratch memory of the thread, ``(code - zero) * scale`` as in
the reference, and multiplied as any panel of floats.

Where four products of bytes are added in a lane (VNNI), any number of rows is multiplied as integers of three bytes
(:mod:`.input_digits`), and masks alone convert codes. Without these, and without a permutation that looks up codes, a
single row reads codes that are masked, not shifted: a float is the code times a power of two, and inputs are multiplied
by its complement before. The sum of inputs times the middle of the range of codes is added up in the order of the
products: a column of codes of this value gives exactly 0.

Sums of codes are larger than sums of weights. If a sum is not finite, the rows are computed again by weights, in the
order of K, so that results are infinite or NaN as those of the reference are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.low_bit_weights import WORD_BITS, LowBits
from sardonyx.compiler.codegen.integer_dot import dot_add
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.kernels.gemm.input_digits import DIGITS, REMAINDER_UNIT, InputDigits, Part, each_part
from sardonyx.compiler.kernels.gemm.microkernel import read
from sardonyx.compiler.kernels.gemm.operands import LowBitPanels, Matrix
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable, float_literal, splat, vector
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm_schedule import Tile
from sardonyx.compiler.tiling.low_bits import PART, looks_up, parts_of
from sardonyx.core.ir.types import FLOAT

_SIGNS = {2: 0xAAAAAAAA, 4: 0x88888888, 8: 0x80808080}
"""The bits of a word to flip, so that codes become signed integers."""

_MOST_SUMS = {False: 12, True: 16}
"""Vectors of sums of a block that are in registers at a time, with 16 registers and with 32."""

_MOST_SUMS_OF_DIGITS = 24
"""Vectors of sums of digits that are in registers at a time, of 32."""

_MOST_VECTORS_OF_ROWS = {False: 2, True: 4}
"""Vectors of columns that several rows multiply at a time: words, masks and inputs need registers, too."""


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
    codes[:, :size] = packed
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


@dataclass(frozen=True)
class _Rows:
    """Some rows of the first operand.

    Attributes:
        a: The operand.
        lines: Addresses of the rows.
        scaled: Room for a block of the only row times powers of two, for masked codes; None for codes without powers.
    """

    a: Matrix
    lines: Sequence[str]
    scaled: str | None


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
    ) -> None:  # fmt: skip
        self.e, self.tile, self.form, self.chunk = e, tile, panels.form, chunk
        self.pointer, self.depth = pointer, depth
        self.words, self.registers = vector(tile.lanes, "i32"), target.vector_registers
        self.whole, self.rest = divmod(depth, self.form.block)
        self.middle = 1 << (self.form.bits - 1)
        self.table: str | None = None
        if looks_up(self.form, target):
            # One permutation converts a code: it reads the lowest four bits of a lane.
            values = [(code & (2 * self.middle - 1)) - self.middle for code in range(tile.lanes)]
            self.table = "<" + ", ".join(f"float {float_literal(value, 'float')}" for value in values) + ">"

    # Parts of a block.

    def block(self, number: str | int) -> str:
        """Return the address of a block."""
        return self.e.address(self.pointer, "i32", self.e.mul(number, self.form.block_words(self.tile.columns)))

    def _word(self, block: str, row: str | int, number: str | int) -> str:
        """Load the words of a vector of columns."""
        e, tile = self.e, self.tile
        at = e.address(block, "i32", e.add(e.mul(row, tile.columns), e.mul(number, tile.lanes)))
        return e.load(self.words, at, 4)

    def _scale(self, block: str, number: str | int) -> str:
        e, tile = self.e, self.tile
        at = e.address(block, "i32", e.add(self.form.code_words * tile.columns, e.mul(number, tile.lanes)))
        return e.load(tile.type, at, 4)

    def _zero(self, block: str, number: str | int) -> str | None:
        e, tile = self.e, self.tile
        after = e.address(block, "i32", (self.form.code_words + 1) * tile.columns)
        if self.form.zeros == "none":
            return None
        if self.form.zeros == "floats":
            return e.load(tile.type, e.address(after, "float", e.mul(number, tile.lanes)), 4)
        bytes = vector(tile.lanes, "i8")
        loaded = e.load(bytes, e.address(after, "i8", e.mul(number, tile.lanes)), 1)
        return e.let(f"sitofp {bytes} {loaded} to {tile.type}")

    def _code(self, word: str, step: int) -> str:
        """Return the code of a step in a word as floats, less the middle of the range; see :meth:`_flipped`."""
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

    def _flipped(self, word: str) -> str:
        """Return a word of codes less the middle of the range."""
        return self.e.let(f"xor {self.words} {word}, {splat(str(_SIGNS[self.form.bits]), self.tile.lanes, 'i32')}")

    def _signed(self, word: str) -> str:
        """Return the signed code in the highest bits of a word as floats."""
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
        e, tile, block = self.e, self.tile, self.form.block
        with e.loop(0, len(lines) * tile.columns, tile.lanes) as offset:
            at = e.address(sums, tile.element, offset)
            e.store(tile.type, "zeroinitializer", at, tile.bytes * tile.lanes)
        is_masked = self.table is None and len(lines) == 1
        rows = _Rows(a, lines, e.array(tile.element, block) if is_masked else None)
        with e.loop(0, self.whole) as number:
            self._add_block(rows, sums, number, block)
        if self.rest:
            self._add_block(rows, sums, self.whole, self.rest)

    def _add_block(self, rows: _Rows, sums: str, number: str | int, steps: int) -> None:
        """Emit the addition of a block's products, some vectors of columns at a time."""
        vectors, block, first = self.tile.vectors, self.block(number), self.e.mul(number, self.form.block)
        most = max(1, _MOST_SUMS[self.registers >= 32] // len(rows.lines))
        if len(rows.lines) > 1:
            most = min(most, _MOST_VECTORS_OF_ROWS[self.registers >= 32])
        group = max(count for count in range(1, vectors + 1) if vectors % count == 0 and count <= most)
        if rows.scaled is not None:
            self._scale_inputs(rows, rows.scaled, first, steps)
        for start in range(0, self.tile.vectors, group):
            self._add_columns(rows, sums, block, first, steps, range(start, min(start + group, self.tile.vectors)))

    @property
    def _shifts(self) -> list[int]:
        """The exponents of the powers of two by which masked codes of a word are multiplied."""
        # The last code is shifted to the right: masked, it would be a negative number.
        return [*range(0, WORD_BITS - self.form.bits, self.form.bits), 0]

    def _scale_inputs(self, rows: _Rows, scaled: str, first: str | int, steps: int) -> None:
        """Emit the copy of a block of the only row, times powers of two that complement those of masked codes."""
        e, tile, words = self.e, self.tile, self.form.codes_per_word
        factors = [math.ldexp(1.0, max(self._shifts) - shift) for shift in self._shifts]
        (line,) = rows.lines

        def copy(start: str | int, part: int, lanes: int) -> None:
            at = Index(e.mul(e.add(first, e.add(start, part)), rows.a.column), 0 if lanes == 1 else rows.a.column)
            x = read(e, tile, rows.a.dtype, line, at, lanes)
            some = [float_literal(factor, tile.element) for factor in factors[part : part + lanes]]
            type = vector(lanes, tile.element)
            literal = some[0] if lanes == 1 else f"<{', '.join(f'{tile.element} {one}' for one in some)}>"
            to = e.address(scaled, tile.element, e.add(part, start))
            e.store(type, e.let(f"fmul {type} {x}, {literal}"), to, tile.bytes)

        whole, rest = divmod(steps, words)
        lanes = min(tile.lanes, words)
        with e.loop(0, whole * words, words) as start:
            for part in range(0, words, lanes):
                copy(start, part, lanes)
        for part in range(rest):
            copy(whole * words, part, 1)

    def _unit(self, step: int) -> str:
        """Return the float of a masked code of the middle of the range."""
        tile = self.tile
        return splat(float_literal(math.ldexp(self.middle, self._shifts[step]), tile.element), tile.lanes, tile.element)

    def _masked(self, word: str, step: int) -> str:
        """Return the code of a step in a word as floats, times the step's power of two."""
        e, tile, bits = self.e, self.tile, self.form.bits
        if step == self.form.codes_per_word - 1:
            code = e.let(f"lshr {self.words} {word}, {splat(str(WORD_BITS - bits), tile.lanes, 'i32')}")
        else:
            mask = ((1 << bits) - 1) << (step * bits)
            code = e.let(f"and {self.words} {word}, {splat(str(mask), tile.lanes, 'i32')}")
        return e.let(f"sitofp {self.words} {code} to {tile.type}")

    def _add_columns(self, rows: _Rows, sums: str, block: str, first: str | int, steps: int, numbers: range) -> None:
        e, tile, form = self.e, self.tile, self.form
        lines, scaled = rows.lines, rows.scaled
        chains = 1
        while len(lines) * len(numbers) * chains < costs.FMAS_IN_FLIGHT and chains < form.codes_per_word:
            chains *= 2
        partial = [[[e.variable(tile.type, "zeroinitializer") for _ in numbers] for _ in lines] for _ in range(chains)]
        sums_inputs = form.zeros != "none" or scaled is not None
        totals = [[e.variable(tile.type, "zeroinitializer") for _ in lines] for _ in range(chains) if sums_inputs]
        one = splat(float_literal(1.0, tile.element), tile.lanes, tile.element)

        def load_x(line: int, row: str | int, step: int) -> str:
            at = e.add(e.mul(row, form.codes_per_word), step)
            if scaled is None:
                position = Index(e.mul(e.add(first, at), rows.a.column))
                return read(e, tile, rows.a.dtype, lines[line], position, tile.lanes)
            return read(e, tile, FLOAT, scaled, Index(at), tile.lanes)

        def add_word(row: str | int, count: int) -> None:
            words = [self._word(block, row, number) for number in numbers]
            if scaled is None and self.table is None:
                words = [self._flipped(word) for word in words]
            if numbers.start == 0:
                self._prefetch(block, row, costs.LOW_BIT_PREFETCH_BYTES, 0, tile.vectors)
            current = [[[variable.get() for variable in line] for line in chain] for chain in partial]
            inputs = [[variable.get() for variable in chain] for chain in totals]
            for step in range(count):
                codes = [self._code(word, step) if scaled is None else self._masked(word, step) for word in words]
                for line in range(len(lines)):
                    x = load_x(line, row, step)
                    chain = current[step % chains][line]
                    chain[:] = [e.multiply_add(tile.type, x, code, sum) for code, sum in zip(codes, chain, strict=True)]
                    if inputs:
                        part, unit = inputs[step % chains], one if scaled is None else self._unit(step)
                        part[line] = e.multiply_add(tile.type, x, unit, part[line])
            for variables, values in zip(partial, current, strict=True):
                for line_variables, line_values in zip(variables, values, strict=True):
                    _assign(line_variables, line_values)
            for line_variables, line_values in zip(totals, inputs, strict=True):
                _assign(line_variables, line_values)

        whole, rest = divmod(steps, form.codes_per_word)
        with e.loop(0, whole) as row:
            add_word(row, form.codes_per_word)
        if rest:
            add_word(whole, rest)
        all_inputs = [self._added([chain[line].get() for chain in totals]) for line in range(len(lines)) if totals]
        for index, number in enumerate(numbers):
            scale, zero = self._scale(block, number), self._zero(block, number)
            for line in range(len(lines)):
                value = self._added([chain[line][index].get() for chain in partial])
                value = self._less_zero(value, all_inputs[line] if totals else "", zero, scaled is not None)
                at = e.address(sums, tile.element, line * tile.columns + number * tile.lanes)
                before = e.load(tile.type, at, tile.bytes * tile.lanes)
                e.store(tile.type, e.multiply_add(tile.type, scale, value, before), at, tile.bytes * tile.lanes)

    def _added(self, parts: Sequence[str]) -> str:
        value, *others = parts
        for part in others:
            value = self.e.let(f"fadd {self.tile.type} {value}, {part}")
        return value

    def _less_zero(self, value: str, total: str, zero: str | None, is_masked: bool) -> str:
        """Return a block's sum of products, without powers of two, less the zero point times the sum of inputs."""
        e, tile = self.e, self.tile

        def number(value: float) -> str:
            return splat(float_literal(value, tile.element), tile.lanes, tile.element)

        if is_masked:
            value = e.let(f"fsub {tile.type} {value}, {total}")
        if zero is not None:
            unit = e.let(f"fneg {tile.type} {zero}")
            if is_masked:
                unit = e.let(f"fmul {tile.type} {unit}, {number(1 / self.middle)}")
            value = e.multiply_add(tile.type, unit, total, value)
        if is_masked:
            value = e.let(f"fmul {tile.type} {value}, {number(math.ldexp(1.0, -max(self._shifts)))}")
        return value

    def _prefetch(self, block: str, row: str | int, ahead: int, start: str | int, vectors: int) -> None:
        """Emit the prefetches of some vectors of a row of words that is read later."""
        e, tile = self.e, self.tile
        word = e.add(e.mul(row, tile.columns), e.mul(start, tile.lanes))
        line = e.address(block, "i8", e.add(e.mul(word, 4), ahead))
        for offset in range(0, 4 * vectors * tile.lanes, costs.CACHE_LINE):
            e.prefetch(e.address(line, "i8", offset), level=2)

    def _prefetch_numbers(self, block: str, ahead: int) -> None:
        """Emit the prefetches of as many lines as a block's scales and zero points."""
        e, words = self.e, self.form.code_words * self.tile.columns
        for offset in range(words * 4, self.form.block_words(self.tile.columns) * 4, costs.CACHE_LINE):
            e.prefetch(e.address(block, "i8", offset + ahead), level=2)

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
                    word = self._flipped(self._word(block, row, vector_number))
                    code = self._signed(e.let(f"shl {self.words} {word}, {shift}"))
                    weight = self._weight(code, self._scale(block, vector_number), self._zero(block, vector_number))
                    at = e.address(sums, tile.element, vector_number * tile.lanes)
                    before = e.load(tile.type, at, tile.bytes * tile.lanes)
                    e.store(tile.type, e.multiply_add(tile.type, x, weight, before), at, tile.bytes * tile.lanes)

    # Products of digits.

    def multiply_digits(self, digits: InputDigits, tiles: str | int, rows: int, sums: str) -> None:
        """Emit the product of register tiles of rows, as digits, by the panel.

        All tiles multiply a part of a block, which is then in L1, before the next.

        Args:
            digits: The digits.
            tiles: The number of tiles.
            rows: Rows of a tile.
            sums: Address of the results, [tiles * rows, columns].
        """
        e, tile, size = self.e, self.tile, self.form.block
        with e.loop(0, e.mul(tiles, rows * tile.columns), tile.lanes) as offset:
            e.store(tile.type, "zeroinitializer", e.address(sums, tile.element, offset), tile.bytes * tile.lanes)
        parts = parts_of(self.form, size)

        def add_block(number: str | int, steps: int) -> None:
            block = self.block(number)
            for begin, length in each_part(e, steps):
                at = e.add(e.mul(number, parts), begin)
                first_word = e.mul(begin, PART // self.form.codes_per_word)
                with e.loop(0, tiles) as index:
                    inputs = [digits.part(at, tiles, index, rows, row) for row in range(rows)]
                    there = e.address(sums, tile.element, e.mul(index, rows * tile.columns))
                    self._add_part(inputs, there, block, first_word, -(-length // self.form.codes_per_word))

        with e.loop(0, self.whole) as number:
            add_block(number, size)
        if self.rest:
            add_block(self.whole, self.rest)

    def _add_part(self, inputs: Sequence[Part], sums: str, block: str, first_word: str | int, words: int) -> None:
        """Emit the addition of the products of a part of a block, some vectors of columns at a time."""
        e, tile = self.e, self.tile
        most = max(1, _MOST_SUMS_OF_DIGITS // (DIGITS * len(inputs)))
        group = max(count for count in range(1, most + 1) if tile.vectors % count == 0)
        for start in range(0, tile.vectors, group):
            numbers = range(start, start + group)
            partial = self._dot_digits(inputs, block, first_word, words, numbers, range(DIGITS))
            values = [[e.variable(tile.type, self._joined(part, line)) for line in zip(*some, strict=True)]
                      for part, some in zip(inputs, partial, strict=True)]  # fmt: skip
            uneven = inputs[0].uneven
            for part in inputs[1:]:
                uneven = e.let(f"or i32 {uneven}, {part.uneven}")
            with e.when(e.let(f"icmp ne i32 {uneven}, 0")):
                rests = self._dot_digits(inputs, block, first_word, words, numbers, range(DIGITS, DIGITS + 1))
                for part, line, (rest,) in zip(inputs, values, rests, strict=True):
                    for variable, sum in zip(line, rest, strict=True):
                        variable.set(self._with_rest(variable.get(), part, sum))
            for index, number in enumerate(numbers):
                scale, zero = self._scale(block, number), self._zero(block, number)
                for row, (part, line) in enumerate(zip(inputs, values, strict=True)):
                    value = line[index].get()
                    if zero is not None:
                        value = e.multiply_add(tile.type, e.let(f"fneg {tile.type} {zero}"), part.total, value)
                    first, second = part.factors
                    value = e.let(f"fmul {tile.type} {value}, {first}")
                    scaled = e.let(f"fmul {tile.type} {scale}, {second}")
                    at = e.address(sums, tile.element, row * tile.columns + number * tile.lanes)
                    before = e.load(tile.type, at, tile.bytes * tile.lanes)
                    e.store(tile.type, e.multiply_add(tile.type, scaled, value, before), at, tile.bytes * tile.lanes)

    def _dot_digits(
        self, inputs: Sequence[Part], block: str, first_word: str | int, words: int, numbers: range, digits: range
    ) -> list[list[list[str]]]:
        """Return the sums of some digits' products by codes, by row, digit and vector of columns."""
        e, bits = self.e, self.form.bits
        mask = splat(str(((1 << bits) - 1) * 0x01010101), self.tile.lanes, "i32")
        sums = [[["zeroinitializer" for _ in numbers] for _ in digits] for _ in inputs]
        for row in range(words):
            line = e.add(first_word, row)
            if numbers.start == 0 and DIGITS not in digits:
                # Prefetches are spread: a burst of a block's takes 1.2 times as long for one row.
                self._prefetch(block, line, costs.LOW_BIT_PREFETCH_BYTES, 0, self.tile.vectors)
                if row == 0:
                    self._prefetch_numbers(block, costs.LOW_BIT_PREFETCH_BYTES)
            loaded = [self._word(block, line, number) for number in numbers]
            for shift in range(8 // bits):
                codes = loaded
                if shift:
                    amount = splat(str(shift * bits), self.tile.lanes, "i32")
                    codes = [e.let(f"lshr {self.words} {word}, {amount}") for word in codes]
                if bits < 8:
                    codes = [e.let(f"and {self.words} {word}, {mask}") for word in codes]
                for part, some in zip(inputs, sums, strict=True):
                    for digit, line_of_digit in zip(digits, some, strict=True):
                        x = part.digit(digit, row, shift)
                        line_of_digit[:] = [
                            dot_add(e, self.tile.lanes, 4, code, x, sum, saturates=False)
                            for code, sum in zip(codes, line_of_digit, strict=True)
                        ]
        return sums

    def _joined(self, part: Part, digits: Sequence[str]) -> str:
        """Return the sum of products by the integers as floats, less that of the middle of the codes."""
        e, tile, words = self.e, self.tile, self.words
        eight = splat("8", tile.lanes, "i32")
        low, middle, high = digits

        def shifted(value: str, lower: str) -> str:
            return e.let(f"add {words} {e.let(f'shl {words} {value}, {eight}')}, {lower}")

        def float(value: str, initial: str) -> str:
            return e.let(f"sitofp {words} {e.let(f'add {words} {value}, {initial}')} to {tile.type}")

        if self.form.bits < 8:
            return float(shifted(shifted(high, middle), low), part.initial)
        base = splat(float_literal(65536.0, tile.element), tile.lanes, tile.element)
        above, below = float(high, part.initial_of_high), float(shifted(middle, low), part.initial)
        return e.multiply_add(tile.type, above, base, below)

    def _with_rest(self, value: str, part: Part, rest: str) -> str:
        """Return a sum of products by the integers, plus that by the remainders."""
        e, tile = self.e, self.tile
        number = e.let(
            f"sitofp {self.words} {e.let(f'add {self.words} {rest}, {part.initial_of_rest}')} to {tile.type}"
        )
        unit = splat(float_literal(REMAINDER_UNIT, tile.element), tile.lanes, tile.element)
        return e.multiply_add(tile.type, number, unit, value)

    # Conversion for many rows.

    def convert(self, begin: str | int, length: str | int, target: str, column: str | int, vectors: int) -> None:
        """Emit the conversion of some steps of K, whole blocks or up to the last step, to floats.

        Args:
            begin: The first step.
            length: The number of steps.
            target: Address of the floats, [steps, columns of the vectors].
            column: The first column.
            vectors: Vectors of columns.
        """
        e, block = self.e, self.form.block
        first, tile = e.div(begin, block), self.tile
        start, row = e.div(column, tile.lanes), vectors * tile.lanes
        with e.loop(0, e.div(length, block)) as number:
            at = e.address(target, tile.element, e.mul(number, block * row))
            self._convert_block(self.block(e.add(first, number)), at, block, start, vectors)
        if self.rest:
            whole = e.div(length, block)
            with e.when(e.let(f"icmp slt i64 {e.mul(whole, block)}, {length}")):
                at = e.address(target, tile.element, e.mul(whole, block * row))
                self._convert_block(self.block(self.whole), at, self.rest, start, vectors)

    def _convert_block(self, block: str, target: str, steps: int, start: str | int, vectors: int) -> None:
        e, tile, form = self.e, self.tile, self.form
        numbers = [e.add(start, number) for number in range(vectors)]
        scales = [self._scale(block, number) for number in numbers]
        zeros = [self._zero(block, number) for number in numbers]

        def convert_word(row: str | int, count: int) -> None:
            first = e.mul(row, form.codes_per_word)
            # The next part of the panel: hardware prefetchers do not follow a stream that pauses.
            self._prefetch(block, row, 4 * form.block_words(tile.columns) * (self.chunk // form.block), start, vectors)
            for index, (number, scale, zero) in enumerate(zip(numbers, scales, zeros, strict=True)):
                word = self._word(block, row, number)
                if self.table is None:
                    word = self._flipped(word)
                for step in range(count):
                    weight = self._weight(self._code(word, step), scale, zero)
                    offset = e.add(e.mul(e.add(first, step), vectors * tile.lanes), index * tile.lanes)
                    e.store(tile.type, weight, e.address(target, tile.element, offset), tile.bytes * tile.lanes)

        whole, rest = divmod(steps, form.codes_per_word)
        with e.loop(0, whole) as row:
            convert_word(row, form.codes_per_word)
        if rest:
            convert_word(whole, rest)
