"""Inputs of products by codes of few bits as integers of four signed bytes.

A block of a row is scaled by a power of two, so that the largest number is an integer of 29 or 30 bits, and rounded:
numbers of more than 1/64 of the block's largest magnitude are exact, the error of others is at most 2**-30 of it, less
than that of a float32 sum. Balanced digits of 8 bits are then multiplied with codes by instructions that add four
products of bytes in a lane, exactly.

A block with an element that is infinite or NaN has the factor NaN: its sums are no results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen.requantize import nearest
from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.target.description import Target

LANES = 16
_WORDS, _FLOATS = vector(LANES, "i32"), vector(LANES, "float")

DIGITS = 4

_NUMBERS = 3 + DIGITS
"""Words of a block after the digits."""

_MOST_BYTES = 1 << 18
"""Most bytes of the digits of a row."""

_UNROLLED = 4
"""Vectors of a block whose passes are not loops."""

Load = Callable[[str | int, str | None], str]
"""Loads a vector of floats from a step of the block, in the lanes of a mask."""


def multiplies_digits(target: Target) -> bool:
    """Return True if the target adds four products of bytes in each of 16 lanes without saturation."""
    return target.vector_bits == 512 and not target.saturates


@dataclass(frozen=True)
class Block:
    """A block of the row.

    Attributes:
        words: Address of the digits.
        factors: Two scalar floats, powers of two: a sum of products by the integers times both is one by the inputs.
        initial: The first sum of each digit, scalar ``i32``: less the sum of the digit times the middle of the codes.
        total: The sum of the integers as a scalar float.
    """

    words: str
    factors: tuple[str, str]
    initial: tuple[str, ...]
    total: str


class InputDigits:
    """Emitter of the digits of a row, in memory on the stack.

    The digits of the row that was written last stay for all panels that a thread multiplies. A word holds a digit of
    the four inputs that are multiplied with the codes of four bytes at one shift. After the words of a block follow
    its factors, first sums and total.

    Args:
        e: The IR builder, outside of the loop over panels.
        form: The storage of the codes.
        depth: The inputs of a row.
    """

    def __init__(self, e: Emitter, form: LowBits, depth: int) -> None:
        self.e, self.form, self.depth = e, form, depth
        self.shifts = 8 // form.bits
        self.plane = -(-form.block // LANES) * LANES // 4
        self.memory = e.array("i32", form.blocks(depth) * self._words)
        self.row = e.variable("i64", "0")

    @staticmethod
    def fits(form: LowBits, depth: int) -> bool:
        """Return True if the digits of a row take little of a thread's stack."""
        return depth * DIGITS + form.blocks(depth) * 4 * (_NUMBERS + 12) <= _MOST_BYTES

    @property
    def _words(self) -> int:
        return DIGITS * self.plane + _NUMBERS

    def word(self, block: Block, digit: int, row: str | int, shift: int) -> str:
        """Return a digit of the inputs of a row of words and a shift, in every lane."""
        e = self.e
        at = e.add(e.mul(row, self.shifts), digit * self.plane + shift)
        return e.spread(e.load("i32", e.address(block.words, "i32", at), 4), LANES, "i32")

    def block(self, number: str | int) -> Block:
        """Return a block of the row that was written."""
        words, e = self._block(number), self.e

        def load(type: str, index: int) -> str:
            return e.load(type, e.address(words, "i32", DIGITS * self.plane + index), 4)

        initial = tuple(load("i32", 2 + digit) for digit in range(DIGITS))
        return Block(words, (load("float", 0), load("float", 1)), initial, load("float", 2 + DIGITS))

    def _block(self, number: str | int) -> str:
        return self.e.address(self.memory, "i32", self.e.mul(number, self._words))

    def write(self, line: str, load: Load) -> None:
        """Emit the digits of a row, unless it is the row that was written last.

        Args:
            line: Address of the row.
            load: Loads inputs.
        """
        e = self.e
        address = e.let(f"ptrtoint ptr {line} to i64")
        with e.when(e.let(f"icmp ne i64 {address}, {self.row.get()}")):
            self.row.set(address)
            whole, rest = divmod(self.depth, self.form.block)
            with e.loop(0, whole) as number:
                self._write_block(number, self.form.block, load)
            if rest:
                self._write_block(whole, rest, load)

    def _write_block(self, number: str | int, steps: int, load: Load) -> None:
        e, words, first = self.e, self._block(number), self.e.mul(number, self.form.block)
        largest = e.variable(_WORDS, "zeroinitializer")

        def compare(start: str | int, mask: str | None) -> None:
            bits = e.let(f"bitcast {_FLOATS} {load(e.add(first, start), mask)} to {_WORDS}")
            magnitude = e.let(f"and {_WORDS} {bits}, {splat(str(0x7FFFFFFF), LANES, 'i32')}")
            largest.set(e.call(_WORDS, "llvm.umax.v16i32", [(_WORDS, largest.get()), (_WORDS, magnitude)]))

        self._visit(steps, compare)
        bits = e.call("i32", "llvm.vector.reduce.umax.v16i32", [(_WORDS, largest.get())])
        exponent = e.let(f"lshr i32 {bits}, 23")
        # The largest magnitude is below 2**(exponent - 126), and below 2**30 times the two powers.
        powers = e.let(f"sub i32 156, {exponent}")
        half = e.let(f"ashr i32 {powers}, 1")
        parts = half, e.let(f"sub i32 {powers}, {half}")
        scales = [e.spread(self._power(part), LANES, "float") for part in parts]
        sums = [e.variable(_WORDS, "zeroinitializer") for _ in range(DIGITS)]

        def split(start: str | int, mask: str | None) -> None:
            value = load(e.add(first, start), mask)
            for scale in scales:
                value = e.let(f"fmul {_FLOATS} {value}, {scale}")
            rest = nearest(Vector(e, value, "float", LANES)).name
            for digit, total in enumerate(sums):
                bytes = e.let(f"trunc {_WORDS} {rest} to {vector(LANES, 'i8')}")
                signed = e.let(f"sext {vector(LANES, 'i8')} {bytes} to {_WORDS}")
                total.set(e.let(f"add {_WORDS} {total.get()}, {signed}"))
                at = e.add(e.div(start, 4), digit * self.plane)
                e.store(vector(LANES, "i8"), self._ordered(bytes), e.address(words, "i32", at), 4)
                if digit < DIGITS - 1:
                    above = e.let(f"sub {_WORDS} {rest}, {signed}")
                    rest = e.let(f"ashr {_WORDS} {above}, {splat('8', LANES, 'i32')}")

        self._visit(steps, split)
        totals = [e.call("i32", "llvm.vector.reduce.add.v16i32", [(_WORDS, total.get())]) for total in sums]
        whole = "0"
        for digit, total in enumerate(totals):
            wide = e.let(f"sext i32 {total} to i64")
            whole = e.let(f"add i64 {whole}, {e.let(f'shl i64 {wide}, {8 * digit}')}")
        inverse = [self._power(e.let(f"sub i32 0, {part}")) for part in parts]
        is_finite = e.let(f"icmp ne i32 {exponent}, 255")
        known = e.let(f"select i1 {is_finite}, float {inverse[1]}, float {float_literal(float('nan'), 'float')}")
        middle = -(1 << self.form.bits - 1)
        numbers = [("float", inverse[0]), ("float", known)]
        # Codes are unsigned: the sum of inputs times the middle of their range is subtracted.
        numbers += [("i32", e.let(f"mul i32 {one}, {middle}")) for one in totals]
        numbers.append(("float", e.let(f"sitofp i64 {whole} to float")))
        for index, (type, value) in enumerate(numbers):
            e.store(type, value, e.address(words, "i32", DIGITS * self.plane + index), 4)

    def _visit(self, steps: int, body: Callable[[str | int, str | None], None]) -> None:
        """Emit a pass over the block's vectors."""
        whole = steps // LANES * LANES
        if whole <= _UNROLLED * LANES:
            for start in range(0, whole, LANES):
                body(start, None)
        else:
            with self.e.loop(0, whole, LANES) as at:
                body(at, None)
        if whole < steps:
            body(whole, self.e.lanes_below(steps - whole, LANES))

    def _power(self, exponent: str) -> str:
        """Return a power of two as a float."""
        e = self.e
        biased = e.let(f"add i32 {exponent}, 127")
        return e.let(f"bitcast i32 {e.let(f'shl i32 {biased}, 23')} to float")

    def _ordered(self, bytes: str) -> str:
        """Return the digits of 16 inputs in the order of words: by rows of words, shifts and bytes."""
        if self.shifts == 1:
            return bytes
        codes = self.form.codes_per_word
        order = [
            row * codes + byte * self.shifts + shift
            for row in range(LANES // codes) for shift in range(self.shifts) for byte in range(4)
        ]  # fmt: skip
        type, indices = vector(LANES, "i8"), ", ".join(f"i32 {index}" for index in order)
        return self.e.let(f"shufflevector {type} {bytes}, {type} poison, {vector(LANES, 'i32')} <{indices}>")
