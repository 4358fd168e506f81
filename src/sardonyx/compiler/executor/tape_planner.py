"""Planning: the native functions that make a tape ready for a set of sizes, in microseconds.

``measure`` computes all sizes (:mod:`.size_table`) and places buffers in the arena: in each layout the largest first,
each in the lowest gap among those alive with it. ``fill`` writes what depends on sizes to the tape. Both read where
everything is from a table of words (:class:`PlanWord`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from sardonyx.compiler.executor.size_program import ROW_WORDS, Operation
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable
from sardonyx.compiler.target.alignment import ALIGNMENT

BUFFER_WORDS = 3
"""Words of a buffer: the register of its bytes, the first and the last step that it is alive in."""

LAYOUT_WORDS = 4
"""Words of a layout: its first buffer, the one past its last, the register for its bytes, the buffer that it lies in.

The last one lies in none; the buffers of the others belong to layouts further on.
"""

PLACED_WORDS = 4
"""Words of a buffer that is placed: where it begins and ends, the first and the last step."""

WORD_WORDS = 2
"""Words of a word to fill: its number, and the register or buffer."""

ELEMENT_WORDS = 3
"""Words of an element of a tensor of sizes: where it is in the tape and how long, in bytes; its register."""

FAULT = -1
"""What ``measure`` gives instead of bytes where sizes do not go together."""


class PlanWord(IntEnum):
    """The words of the table: addresses, and counts of rows."""

    ROWS = 0
    ROW_COUNT = 1
    REGISTERS = 2
    BUFFERS = 3
    LAYOUTS = 4
    LAYOUT_COUNT = 5
    ORDER = 6  # i64 for each buffer: within a layout, the largest first
    PLACED = 7
    OFFSETS = 8  # i64 for each buffer: where it is in the arena
    SIZE_WORDS = 9
    SIZE_WORD_COUNT = 10
    PLACE_WORDS = 11
    PLACE_WORD_COUNT = 12
    ELEMENTS = 13
    ELEMENT_COUNT = 14
    TAPE = 15
    ARENA = 16
    CAPACITY = 17  # bytes of the arena, where it is the context's own
    WANTED = 18  # bytes that the last measure found
    BLOCK = 19  # ptr to the words of the block that the arena is; null where it is the context's own


class BlockWord(IntEnum):
    """The words of a block, which is an arena that calls of the whole process use one after the other."""

    BUSY = 0  # whether a call has it
    ADDRESS = 1  # aligned; 0 where there is no memory
    CAPACITY = 2  # bytes


def definitions() -> tuple[list[str], list[str]]:
    """The functions of planning and of arenas, and what they call, as LLVM has it.

    ``i64 measure(ptr table)``, ``void fill(ptr table)``, ``i64 hold(ptr table)`` and ``i64 seize(ptr words)``.
    """
    measure, fill, hold, seize = (Emitter() for _ in range(4))
    fault = _compute(measure)
    total = _place(measure)
    found = measure.let(f"select i1 {fault.get()}, i64 {FAULT}, i64 {total.get()}")
    measure.store("i64", found, measure.address("%table", "i64", int(PlanWord.WANTED)), 8)
    _fill(fill)
    _hold(hold)
    seized = seize.let(f"zext i1 {_seize(seize, '%words')} to i64")
    texts = [
        f"define i64 @measure(ptr %table) nounwind {{\n{measure.text()}\n  ret i64 {found}\n}}",
        f"define void @fill(ptr %table) nounwind {{\n{fill.text()}\n  ret void\n}}",
        f"define i64 @hold(ptr %table) nounwind {{\n{hold.text()}\n}}",
        f"define i64 @seize(ptr %words) nounwind {{\n{seize.text()}\n  ret i64 {seized}\n}}",
    ]
    return texts, [*measure.declarations, *fill.declarations]


def _pointer(e: Emitter, word: PlanWord) -> str:
    return e.load("ptr", e.address("%table", "i64", int(word)), 8)


def _number(e: Emitter, array: str, index: str | int) -> str:
    return e.load("i64", e.address(array, "i64", index), 8)


def _row(e: Emitter, rows: str, index: str | int, words: int) -> tuple[str, list[str]]:
    """The address of a row, and its words."""
    row = e.address(rows, "i64", e.mul(index, words))
    return row, [_number(e, row, word) for word in range(words)]


def _test(e: Emitter, comparison: str, a: str | int, b: str | int) -> str:
    return e.let(f"icmp {comparison} i64 {a}, {b}")


# Sizes.


def _compute(e: Emitter) -> Variable:
    """Carry the instructions out; whether there was a fault: sizes that do not go together, or of more than 64 bits."""
    fault = e.variable("i1", "false")
    rows, registers = _pointer(e, PlanWord.ROWS), _pointer(e, PlanWord.REGISTERS)
    with e.loop(0, _number(e, "%table", int(PlanWord.ROW_COUNT))) as i:
        _, (operation, *operands) = _row(e, rows, i, ROW_WORDS)
        a, b = (_number(e, registers, operand) for operand in operands)
        labels = {each: e.fresh("operation") for each in _INSTRUCTIONS}
        done = e.fresh("done")
        cases = " ".join(f"i64 {int(each)}, label %{label}" for each, label in labels.items())
        e.line(f"switch i64 {operation}, label %{done} [{cases}]")
        for each, label in labels.items():
            e.label(label)
            e.store("i64", _INSTRUCTIONS[each](e, a, b, fault), e.address(registers, "i64", i), 8)
            e.line(f"br label %{done}")
        e.label(done)
    return fault


def _fails(e: Emitter, fault: Variable, condition: str) -> None:
    fault.set(e.let(f"or i1 {fault.get()}, {condition}"))


def _checked(operation: str) -> Callable[[Emitter, str, str, Variable], str]:
    def write(e: Emitter, a: str, b: str, fault: Variable) -> str:
        name = f"llvm.{operation}.with.overflow.i64"
        e.declarations[f"declare {{ i64, i1 }} @{name}(i64, i64)"] = None
        pair = e.let(f"call {{ i64, i1 }} @{name}(i64 {a}, i64 {b})")
        _fails(e, fault, e.let(f"extractvalue {{ i64, i1 }} {pair}, 1"))
        return e.let(f"extractvalue {{ i64, i1 }} {pair}, 0")

    return write


def _divided(e: Emitter, a: str, b: str, fault: Variable) -> str:
    nothing = _test(e, "eq", b, 0)
    _fails(e, fault, nothing)
    b = e.let(f"select i1 {nothing}, i64 1, i64 {b}")
    found = e.variable("i64")
    # Most sizes are short, and dividing those takes a fraction of the time.
    long = _test(e, "ugt", e.let(f"or i64 {a}, {b}"), (1 << 32) - 1)
    with e.either(long) as branches:
        written = iter(branches)
        next(written)
        quotient, rest = e.let(f"sdiv i64 {a}, {b}"), e.let(f"srem i64 {a}, {b}")
        differ = _test(e, "slt", e.let(f"xor i64 {rest}, {b}"), 0)
        down = e.let(f"and i1 {differ}, {_test(e, 'ne', rest, 0)}")
        found.set(e.let(f"sub i64 {quotient}, {e.let(f'zext i1 {down} to i64')}"))
        next(written)
        short = [e.let(f"trunc i64 {each} to i32") for each in (a, b)]
        found.set(e.let(f"zext i32 {e.let(f'udiv i32 {short[0]}, {short[1]}')} to i64"))
        next(written, None)
    return found.get()


def _broadcast(e: Emitter, a: str, b: str, fault: Variable) -> str:
    ones = [_test(e, "eq", each, 1) for each in (a, b)]
    fits = e.let(f"or i1 {e.let(f'or i1 {ones[0]}, {ones[1]}')}, {_test(e, 'eq', a, b)}")
    _fails(e, fault, e.let(f"xor i1 {fits}, true"))
    return e.let(f"select i1 {ones[0]}, i64 {b}, i64 {a}")


def _equal(e: Emitter, a: str, b: str, fault: Variable) -> str:
    _fails(e, fault, _test(e, "ne", a, b))
    return a


def _differ(e: Emitter, a: str, b: str, fault: Variable) -> str:
    return e.let(f"zext i1 {_test(e, 'ne', a, b)} to i64")


_INSTRUCTIONS: dict[Operation, Callable[[Emitter, str, str, Variable], str]] = {
    Operation.ADD: _checked("sadd"),
    Operation.MULTIPLY: _checked("smul"),
    Operation.DIVIDE: _divided,
    Operation.LEAST: lambda e, a, b, fault: str(e.least(a, b)),
    Operation.GREATEST: lambda e, a, b, fault: str(e.most(a, b)),
    Operation.BROADCAST: _broadcast,
    Operation.EQUAL: _equal,
    Operation.DIFFER: _differ,
}


# Places.


class _Buffers:
    """What is read of buffers.

    Args:
        e: Writes the function.
    """

    def __init__(self, e: Emitter) -> None:
        self._e = e
        self._rows = _pointer(e, PlanWord.BUFFERS)
        self._registers = _pointer(e, PlanWord.REGISTERS)

    def row(self, buffer: str) -> Sequence[str]:
        """Its register, its first and its last step."""
        return _row(self._e, self._rows, buffer, BUFFER_WORDS)[1]

    def bytes(self, buffer: str) -> str:
        """How long it is."""
        at = self._e.address(self._rows, "i64", self._e.mul(buffer, BUFFER_WORDS))
        return _number(self._e, self._registers, _number(self._e, at, 0))


def _place(e: Emitter) -> Variable:
    """Place the buffers of all layouts; the bytes of the last."""
    registers, layouts = _pointer(e, PlanWord.REGISTERS), _pointer(e, PlanWord.LAYOUTS)
    count = _number(e, "%table", int(PlanWord.LAYOUT_COUNT))
    total = e.variable("i64", "0")
    with e.loop(0, count) as number:
        _, (start, end, register, _) = _row(e, layouts, number, LAYOUT_WORDS)
        _sort(e, start, end)
        _place_layout(e, start, end, total)
        e.store("i64", total.get(), e.address(registers, "i64", register), 8)
    offsets = _pointer(e, PlanWord.OFFSETS)
    with e.loop(1, count) as number:
        back = e.sub(e.sub(count, 1), number)
        _, (start, end, _, outer) = _row(e, layouts, back, LAYOUT_WORDS)
        base = _number(e, offsets, outer)
        with e.loop(start, end) as buffer:
            at = e.address(offsets, "i64", buffer)
            e.store("i64", str(e.add(e.load("i64", at, 8), base)), at, 8)
    return total


def _sort(e: Emitter, start: str, end: str) -> None:
    """Put the largest first, and equal ones as they are numbered: by insertion, as little changes from call to call."""
    order, buffers = _pointer(e, PlanWord.ORDER), _Buffers(e)
    with e.loop(e.add(start, 1), end) as i:
        buffer = _number(e, order, i)
        bytes_ = buffers.bytes(buffer)
        j = e.variable("i64", i)

        def belongs_before() -> str:
            before = _number(e, order, e.most(e.sub(j.get(), 1), start))
            other = buffers.bytes(before)
            larger = _test(e, "sgt", bytes_, other)
            earlier = e.let(f"and i1 {_test(e, 'eq', bytes_, other)}, {_test(e, 'slt', buffer, before)}")
            moves = e.let(f"or i1 {larger}, {earlier}")
            return e.let(f"and i1 {moves}, {_test(e, 'sgt', j.get(), start)}")

        with e.repeat(belongs_before):
            at = e.address(order, "i64", j.get())
            e.store("i64", _number(e, at, -1), at, 8)
            j.set(str(e.sub(j.get(), 1)))
        e.store("i64", buffer, e.address(order, "i64", j.get()), 8)


def _place_layout(e: Emitter, start: str, end: str, total: Variable) -> None:
    order, placed, offsets = (_pointer(e, word) for word in (PlanWord.ORDER, PlanWord.PLACED, PlanWord.OFFSETS))
    buffers = _Buffers(e)
    total.set("0")
    with e.loop(start, end) as number:
        buffer = _number(e, order, number)
        register, first, last = buffers.row(buffer)
        del register
        whole = e.add(buffers.bytes(buffer), ALIGNMENT - 1)
        bytes_ = e.let(f"and i64 {whole}, {-ALIGNMENT}")
        count = str(e.sub(number, start))
        at = _gap(e, placed, count, bytes_, first, last)
        following = str(e.add(at, bytes_))
        e.store("i64", at, e.address(offsets, "i64", buffer), 8)
        total.set(str(e.most(total.get(), following)))
        _insert(e, placed, count, (at, following, first, last))


def _gap(e: Emitter, placed: str, count: str, bytes_: str, first: str, last: str) -> str:
    """The lowest place for so many bytes, where those that are placed, in order, are alive in other steps."""
    at, next_, stop = e.variable("i64", "0"), e.variable("i64", "0"), e.variable("i64", count)
    with e.repeat(lambda: _test(e, "slt", next_.get(), stop.get())):
        _, (begin, end, born, dies) = _row(e, placed, next_.get(), PLACED_WORDS)
        next_.set(str(e.add(next_.get(), 1)))
        together = e.let(f"and i1 {_test(e, 'sle', born, last)}, {_test(e, 'sle', first, dies)}")
        with e.when(together):
            fits = _test(e, "sle", e.add(at.get(), bytes_), begin)
            stop.set(e.let(f"select i1 {fits}, i64 0, i64 {stop.get()}"))
            at.set(e.let(f"select i1 {fits}, i64 {at.get()}, i64 {e.most(at.get(), end)}"))
    return at.get()


def _insert(e: Emitter, placed: str, count: str, row: Sequence[str]) -> None:
    """Put a row where its beginning belongs."""
    j = e.variable("i64", count)

    def is_further() -> str:
        before = e.mul(e.most(e.sub(j.get(), 1), 0), PLACED_WORDS)
        further = _test(e, "sgt", _number(e, placed, before), row[0])
        return e.let(f"and i1 {further}, {_test(e, 'sgt', j.get(), 0)}")

    with e.repeat(is_further):
        to = e.address(placed, "i64", e.mul(j.get(), PLACED_WORDS))
        for word in range(PLACED_WORDS):
            e.store("i64", _number(e, to, word - PLACED_WORDS), e.address(to, "i64", word), 8)
        j.set(str(e.sub(j.get(), 1)))
    to = e.address(placed, "i64", e.mul(j.get(), PLACED_WORDS))
    for word, value in enumerate(row):
        e.store("i64", value, e.address(to, "i64", word), 8)


# Arenas.


def _seize(e: Emitter, block: str) -> str:
    """Take a block; whether nobody had it."""
    pair = e.let(f"cmpxchg ptr {e.address(block, 'i64', int(BlockWord.BUSY))}, i64 0, i64 1 acquire monotonic")
    return e.let(f"extractvalue {{ i64, i1 }} {pair}, 1")


def release(e: Emitter, block: str) -> None:
    """Write code that leaves a block to others."""
    e.line(f"store atomic i64 0, ptr {e.address(block, 'i64', int(BlockWord.BUSY))} release, align 8")


def _hold(e: Emitter) -> None:
    """Take the arena that the tape was filled for: 1, or 0 where it is not there, or too small for what is wanted."""
    wanted, block = _number(e, "%table", int(PlanWord.WANTED)), _pointer(e, PlanWord.BLOCK)
    with e.when(e.let(f"icmp eq ptr {block}, null")):
        fits = _test(e, "sle", wanted, _number(e, "%table", int(PlanWord.CAPACITY)))
        e.line(f"ret i64 {e.let(f'zext i1 {fits} to i64')}")
        e.label(e.fresh("unreached"))
    with e.when(_seize(e, block)):
        same = _test(e, "eq", _number(e, block, int(BlockWord.ADDRESS)), _number(e, "%table", int(PlanWord.ARENA)))
        fits = _test(e, "sle", wanted, _number(e, block, int(BlockWord.CAPACITY)))
        with e.when(e.let(f"and i1 {same}, {fits}")):
            e.line("ret i64 1")
            e.label(e.fresh("unreached"))
        release(e, block)
    e.line("ret i64 0")


# Words.


def _fill(e: Emitter) -> None:
    tape, arena = _pointer(e, PlanWord.TAPE), _number(e, "%table", int(PlanWord.ARENA))
    registers, offsets = _pointer(e, PlanWord.REGISTERS), _pointer(e, PlanWord.OFFSETS)
    rows = _pointer(e, PlanWord.SIZE_WORDS)
    with e.loop(0, _number(e, "%table", int(PlanWord.SIZE_WORD_COUNT))) as i:
        _, (word, register) = _row(e, rows, i, WORD_WORDS)
        e.store("i64", _number(e, registers, register), e.address(tape, "i64", word), 8)
    rows = _pointer(e, PlanWord.PLACE_WORDS)
    with e.loop(0, _number(e, "%table", int(PlanWord.PLACE_WORD_COUNT))) as i:
        _, (word, buffer) = _row(e, rows, i, WORD_WORDS)
        e.store("i64", str(e.add(_number(e, offsets, buffer), arena)), e.address(tape, "i64", word), 8)
    rows = _pointer(e, PlanWord.ELEMENTS)
    with e.loop(0, _number(e, "%table", int(PlanWord.ELEMENT_COUNT))) as i:
        _, (at, width, register) = _row(e, rows, i, ELEMENT_WORDS)
        value, to = _number(e, registers, register), e.address(tape, "i8", at)
        for bits in (8, 16, 32, 64):
            with e.when(_test(e, "eq", width, bits // 8)):
                short = value if bits == 64 else e.let(f"trunc i64 {value} to i{bits}")
                e.store(f"i{bits}", short, to, bits // 8)
