"""Inputs of products by codes of few bits as integers of signed bytes.

A part of a row, at most :data:`PART` steps, is scaled by a power of two, so that its largest number is an integer of 22
bits, and rounded. Balanced digits of 8 bits are then multiplied with codes by instructions that add four products of
bytes in a lane, exactly, and the sums of the digits make one integer, or two of codes of 8 bits.

The error of an input is at most ``2**-22`` of the largest magnitude of its part, less than that of a float32 sum of
numbers of like magnitudes. A part whose magnitudes add up to less than twice to four times the largest one is *uneven*:
its products by the remainders, 7 bits more, are added too.

A part with an element that is infinite or NaN has the factor NaN: its sums are no results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen.requantize import nearest
from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.tiling.low_bits import DIGIT_LANES as LANES
from sardonyx.compiler.tiling.low_bits import PART, digit_words, part_words, parts_of

_WORDS, _FLOATS, _BYTES = vector(LANES, "i32"), vector(LANES, "float"), vector(4 * LANES, "i8")

DIGITS = 3
"""Digits of an integer, besides the remainder."""

_BITS = 22
"""Bits of the largest integer of a part: sums of 32 products by codes of 4 bits are within 32 bits."""

_BALANCE = 0x00808080
"""Half of the base of each digit: digits of an integer plus this are bytes, and less this signed bytes."""

_REMAINDER_BITS = 7
"""Bits of a remainder: a signed byte."""

REMAINDER_UNIT = 2.0**-_REMAINDER_BITS
"""The integer step of a remainder, in steps of the integers."""

_EVEN = 1 << _BITS + 1
"""Least sum of the integers' magnitudes of a part that needs no remainders."""

_FIRST_FACTOR, _SECOND_FACTOR, _INITIAL, _INITIAL_OF_HIGH, _INITIAL_OF_REST, _TOTAL, _UNEVEN = range(7)
"""The words of a part after its digits, at most :data:`PART_NUMBERS`."""

Load = Callable[[str, str | int, str | None], str]
"""Loads a vector of floats of a row, by its address, from a step of K, in the lanes of a mask."""


@dataclass(frozen=True)
class Part:
    """A part of a row.

    Attributes:
        e: The IR builder.
        words: Address of the digits.
        form: The storage of the codes.
    """

    e: Emitter
    words: str
    form: LowBits

    def digit(self, digit: int, row: int, shift: int) -> str:
        """Return a digit of the inputs of a row of words and a shift, in every lane; digit 3 is the remainder."""
        e = self.e
        group, word = divmod(row * (8 // self.form.bits) + shift, LANES // 4)
        at = (group * 4 + digit) * (LANES // 4) + word
        return e.spread(e.load("i32", e.address(self.words, "i32", at), 4), LANES, "i32")

    def _number(self, index: int, type: str) -> str:
        at = digit_words(self.form) + index
        return self.e.load(type, self.e.address(self.words, "i32", at), 4)

    @property
    def factors(self) -> tuple[str, str]:
        """Two powers of two, in every lane: a sum of products by the integers times both is one by the inputs.

        The product of both may be denormal.
        """
        first, second = (self._number(index, "float") for index in (_FIRST_FACTOR, _SECOND_FACTOR))
        return self.e.spread(first, LANES, "float"), self.e.spread(second, LANES, "float")

    @property
    def total(self) -> str:
        """The sum of the integers and remainders as floats, in every lane."""
        return self.e.spread(self._number(_TOTAL, "float"), LANES, "float")

    @property
    def initial(self) -> str:
        """The middle of the codes times the sum of the integers (of their two low digits, for bytes), negative."""
        return self.e.spread(self._number(_INITIAL, "i32"), LANES, "i32")

    @property
    def initial_of_high(self) -> str:
        """The middle of the codes times the sum of the highest digits, negative."""
        return self.e.spread(self._number(_INITIAL_OF_HIGH, "i32"), LANES, "i32")

    @property
    def initial_of_rest(self) -> str:
        """The middle of the codes times the sum of the remainders, negative."""
        return self.e.spread(self._number(_INITIAL_OF_REST, "i32"), LANES, "i32")

    @property
    def uneven(self) -> str:
        """An ``i32`` that is not 0 if the remainders count."""
        return self._number(_UNEVEN, "i32")


def each_part(e: Emitter, steps: int) -> Iterator[tuple[str | int, int]]:
    """Yield the parts of a block of ``steps`` inputs, number and steps; parts of the same length are a loop."""
    whole, rest = divmod(steps, PART)
    if whole == 1:
        yield 0, PART
    elif whole:
        with e.loop(0, whole) as number:
            yield number, PART
    if rest:
        yield whole, rest


class InputDigits:
    """Emitter of the digits of the rows of a work item, in scratch memory.

    The digits that were written last stay for all panels that a thread multiplies. They are in the order of products:
    [parts, tiles, rows of a tile, words of a part].

    Args:
        e: The IR builder, outside of the loop over work items.
        form: The storage of the codes.
        depth: The inputs of a row.
        memory: Address of the scratch memory of the thread.
        load: Loads inputs.
    """

    def __init__(self, e: Emitter, form: LowBits, depth: int, memory: str, load: Load) -> None:
        self.e, self.form, self.depth, self.memory, self.load = e, form, depth, memory, load
        self._written = e.variable("i64", "0"), e.variable("i64", "0")

    def part(self, number: str | int, tiles: str | int, tile: str | int, rows: int, row: str | int) -> Part:
        """Return a part of a row of a tile, one of ``tiles`` tiles of ``rows`` rows."""
        e = self.e
        at = e.add(e.mul(e.add(e.mul(number, tiles), tile), rows), row)
        return Part(e, e.address(self.memory, "i32", e.mul(at, part_words(self.form))), self.form)

    def write(self, line: Callable[[str | int], str], count: str, tiles: str | int, rows: int) -> None:
        """Emit the digits of all rows of a work item, unless they were written last.

        Args:
            line: Emits the address of a row of the item.
            count: Rows of the item; rows past them, in the last tile, repeat the last one.
            tiles: Register tiles of these rows.
            rows: Rows of a tile.
        """
        e, form = self.e, self.form
        address = e.let(f"ptrtoint ptr {line(0)} to i64")
        whole, rest = divmod(self.depth, form.block)
        parts = parts_of(form, form.block)
        # Items of other lengths may begin at the same address, if rows are repeated: their digits are elsewhere.
        pairs = tuple(zip(self._written, (address, count), strict=True))
        is_other, is_longer = (e.let(f"icmp ne i64 {now}, {before.get()}") for before, now in pairs)
        with e.when(e.let(f"or i1 {is_other}, {is_longer}")):
            for variable, now in pairs:
                variable.set(now)
            last = e.sub(count, 1)
            with e.loop(0, e.mul(tiles, rows)) as row:
                source, tile, within = line(e.least(row, last)), e.div(row, rows), e.rem(row, rows)

                def write_block(block: str | int, steps: int) -> None:
                    number, first = e.mul(block, parts), e.mul(block, form.block)
                    for begin, length in each_part(e, steps):
                        part = self.part(e.add(number, begin), tiles, tile, rows, within)
                        self._write_part(part.words, source, e.add(first, e.mul(begin, PART)), length)

                with e.loop(0, whole) as block:
                    write_block(block, form.block)
                if rest:
                    write_block(whole, rest)

    def _write_part(self, words: str, line: str, first: str | int, steps: int) -> None:
        e = self.e
        starts = range(0, steps, LANES)
        masks = [None if start + LANES <= steps else e.lanes_below(steps - start, LANES) for start in starts]
        values = [self.load(line, e.add(first, start), mask) for start, mask in zip(starts, masks, strict=True)]
        largest = ""
        for value in values:
            bits = e.let(f"bitcast {_FLOATS} {value} to {_WORDS}")
            magnitude = e.let(f"and {_WORDS} {bits}, {splat(str(0x7FFFFFFF), LANES, 'i32')}")
            pair = [(_WORDS, largest), (_WORDS, magnitude)]
            largest = e.call(_WORDS, "llvm.umax.v16i32", pair) if largest else magnitude
        exponent = e.let(f"lshr i32 {self._reduced('umax', largest)}, 23")
        # The largest magnitude is below 2**(exponent - 126).
        powers = e.let(f"sub i32 {126 + _BITS}, {exponent}")
        half = e.let(f"ashr i32 {powers}, 1")
        halves = half, e.let(f"sub i32 {powers}, {half}")
        scales = [e.spread(self._power(part), LANES, "float") for part in halves]
        integers, remainders, highest = [], [], []
        for index, value in enumerate(values):
            scaled = value
            for scale in scales:
                scaled = e.let(f"fmul {_FLOATS} {scaled}, {scale}")
            integer = nearest(Vector(e, scaled, "float", LANES)).name
            rest = e.let(f"fsub {_FLOATS} {scaled}, {e.let(f'sitofp {_WORDS} {integer} to {_FLOATS}')}")
            factor = splat(float_literal(float(1 << _REMAINDER_BITS), "float"), LANES, "float")
            remainder = nearest(Vector(e, e.let(f"fmul {_FLOATS} {rest}, {factor}"), "float", LANES)).name
            balance = splat(str(_BALANCE), LANES, "i32")
            digits = e.let(f"xor {_WORDS} {e.let(f'add {_WORDS} {integer}, {balance}')}, {balance}")
            above = e.let(f"shl {_WORDS} {remainder}, {splat('24', LANES, 'i32')}")
            bytes = e.let(f"bitcast {_WORDS} {e.let(f'or {_WORDS} {digits}, {above}')} to {_BYTES}")
            e.store(_BYTES, self._ordered(bytes), e.address(words, "i32", index * LANES), 4)
            integers.append(integer)
            remainders.append(remainder)
            if self.form.bits == 8:
                up = e.let(f"shl {_WORDS} {digits}, {splat('8', LANES, 'i32')}")
                highest.append(e.let(f"ashr {_WORDS} {up}, {splat('24', LANES, 'i32')}"))
        magnitudes = [e.call(_WORDS, "llvm.abs.v16i32", [(_WORDS, integer), ("i1", "false")]) for integer in integers]
        sum, rest = self._sum(integers), self._sum(remainders)
        # Without a sign, 0 minus 1 is the largest number: a part of zeros counts as even.
        below = e.let(f"sub i32 {self._sum(magnitudes)}, 1")
        uneven = e.let(f"zext i1 {e.let(f'icmp ult i32 {below}, {_EVEN - 1}')} to i32")
        inverse = [self._power(e.let(f"sub i32 0, {part}")) for part in halves]
        is_finite = e.let(f"icmp ne i32 {exponent}, 255")
        factor = e.let(f"select i1 {is_finite}, float {inverse[0]}, float {float_literal(float('nan'), 'float')}")
        step = float_literal(REMAINDER_UNIT, "float")
        small = e.let(f"fmul float {e.let(f'sitofp i32 {rest} to float')}, {step}")
        total = e.let(f"fadd float {e.let(f'sitofp i32 {sum} to float')}, {small}")
        middle = -(1 << self.form.bits - 1)
        high = self._sum(highest) if highest else "0"
        low = e.let(f"sub i32 {sum}, {e.let(f'shl i32 {high}, 16')}") if highest else sum
        numbers = {
            _FIRST_FACTOR: ("float", factor), _SECOND_FACTOR: ("float", inverse[1]), _TOTAL: ("float", total),
            _UNEVEN: ("i32", uneven),
        }  # fmt: skip
        for index, count in ((_INITIAL, low), (_INITIAL_OF_HIGH, high), (_INITIAL_OF_REST, rest)):
            numbers[index] = ("i32", e.let(f"mul i32 {count}, {middle}"))
        for index, (type, number) in numbers.items():
            e.store(type, number, e.address(words, "i32", digit_words(self.form) + index), 4)

    def _reduced(self, operation: str, value: str) -> str:
        return self.e.call("i32", f"llvm.vector.reduce.{operation}.v16i32", [(_WORDS, value)])

    def _sum(self, vectors: list[str]) -> str:
        """Return the sum of all lanes of some vectors."""
        total, *others = vectors
        for other in others:
            total = self.e.let(f"add {_WORDS} {total}, {other}")
        return self._reduced("add", total)

    def _power(self, exponent: str) -> str:
        """Return a power of two as a float."""
        e = self.e
        biased = e.let(f"add i32 {exponent}, 127")
        return e.let(f"bitcast i32 {e.let(f'shl i32 {biased}, 23')} to float")

    def _ordered(self, bytes: str) -> str:
        """Return the bytes of 16 inputs digit by digit, in the order of words, shifts and bytes."""
        codes, shifts = self.form.codes_per_word, 8 // self.form.bits
        order = [
            4 * (row * codes + byte * shifts + shift) + digit
            for digit in range(4) for row in range(LANES // codes) for shift in range(shifts) for byte in range(4)
        ]  # fmt: skip
        indices = ", ".join(f"i32 {index}" for index in order)
        return self.e.let(f"shufflevector {_BYTES} {bytes}, {_BYTES} poison, {vector(64, 'i32')} <{indices}>")
