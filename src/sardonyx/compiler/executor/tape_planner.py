"""Planning: native functions that prepare a tape for a set of sizes, in microseconds.

``measure`` computes all sizes (:mod:`.size_program`) and assigns buffers to offsets in the arena: in each layout the
largest first, each in the lowest gap among the buffers alive at the same time. ``fill`` writes the words of the tape
that depend on sizes. Both find their operands in a table of words (:class:`PlanWord`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from sardonyx.compiler.executor.size_program import ROW_WORDS, Operation
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable
from sardonyx.compiler.target.alignment import ALIGNMENT

BUFFER_WORDS = 3
"""Words of a buffer: the register of its size in bytes, and the first and last step of its lifetime."""

LAYOUT_WORDS = 4
"""Words of a layout: first buffer, end of the buffers, register for its bytes, enclosing buffer.

The last layout has no enclosing buffer; the enclosing buffers of the others belong to later layouts.
"""

PLACED_WORDS = 4
"""Words of a placed buffer: offsets of its start and end, first and last step of its lifetime."""

WORD_WORDS = 2
"""Words of a word to fill: its index in the tape, and the register or buffer."""

ELEMENT_WORDS = 3
"""Words of an element of a tensor of sizes: offset in the tape, width (in bytes), register."""

FAULT = -1
"""Result of ``measure`` if sizes do not match."""


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
    OFFSETS = 8  # i64 for each buffer: its offset in the arena
    SIZE_WORDS = 9
    SIZE_WORD_COUNT = 10
    PLACE_WORDS = 11
    PLACE_WORD_COUNT = 12
    ELEMENTS = 13
    ELEMENT_COUNT = 14
    TAPE = 15
    ARENA = 16
    CAPACITY = 17  # bytes of the context's own arena
    REQUIRED = 18  # result of the last measure, in bytes
    BLOCK = 19  # ptr to the words of the arena's block; null for the context's own arena


class BlockWord(IntEnum):
    """The words of a block: an arena shared by calls of the whole process, one at a time."""

    BUSY = 0  # 1 while a call uses the block
    ADDRESS = 1  # aligned; 0 if the block is empty
    CAPACITY = 2  # bytes


def definitions() -> tuple[list[str], list[str]]:
    """Return the LLVM definitions of the functions for planning and arenas, and their declarations.

    The functions are ``i64 measure(ptr table)``, ``void fill(ptr table)``, ``i64 hold(ptr table)`` and
    ``i64 seize(ptr words)``.
    """
    measure, fill, hold, seize = (Emitter() for _ in range(4))
    fault = _compute(measure)
    total = _assign_offsets(measure)
    result = measure.let(f"select i1 {fault.get()}, i64 {FAULT}, i64 {total.get()}")
    measure.store("i64", result, measure.address("%table", "i64", int(PlanWord.REQUIRED)), 8)
    _fill(fill)
    _hold(hold)
    seized = seize.let(f"zext i1 {_seize(seize, '%words')} to i64")
    texts = [
        f"define i64 @measure(ptr %table) nounwind {{\n{measure.text()}\n  ret i64 {result}\n}}",
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
    """Load a row; return its address and words."""
    row = e.address(rows, "i64", e.mul(index, words))
    return row, [_number(e, row, word) for word in range(words)]


def _test(e: Emitter, comparison: str, a: str | int, b: str | int) -> str:
    return e.let(f"icmp {comparison} i64 {a}, {b}")


# Sizes.


def _compute(e: Emitter) -> Variable:
    """Execute the instructions; return a flag that is true after a fault.

    Sizes that do not match are a fault, and numbers of more than 64 bits.
    """
    fault = e.variable("i1", "false")
    rows, registers = _pointer(e, PlanWord.ROWS), _pointer(e, PlanWord.REGISTERS)
    with e.loop(0, _number(e, "%table", int(PlanWord.ROW_COUNT))) as i:
        _, (operation, *operands) = _row(e, rows, i, ROW_WORDS)
        a, b = (_number(e, registers, operand) for operand in operands)
        labels = {member: e.fresh("operation") for member in _INSTRUCTIONS}
        done = e.fresh("done")
        cases = " ".join(f"i64 {int(member)}, label %{label}" for member, label in labels.items())
        e.line(f"switch i64 {operation}, label %{done} [{cases}]")
        for member, label in labels.items():
            e.label(label)
            e.store("i64", _INSTRUCTIONS[member](e, a, b, fault), e.address(registers, "i64", i), 8)
            e.line(f"br label %{done}")
        e.label(done)
    return fault


def _set_fault(e: Emitter, fault: Variable, condition: str) -> None:
    fault.set(e.let(f"or i1 {fault.get()}, {condition}"))


def _overflow_checked(operation: str) -> Callable[[Emitter, str, str, Variable], str]:
    def write(e: Emitter, a: str, b: str, fault: Variable) -> str:
        name = f"llvm.{operation}.with.overflow.i64"
        e.declarations[f"declare {{ i64, i1 }} @{name}(i64, i64)"] = None
        pair = e.let(f"call {{ i64, i1 }} @{name}(i64 {a}, i64 {b})")
        _set_fault(e, fault, e.let(f"extractvalue {{ i64, i1 }} {pair}, 1"))
        return e.let(f"extractvalue {{ i64, i1 }} {pair}, 0")

    return write


def _divide(e: Emitter, a: str, b: str, fault: Variable) -> str:
    is_zero = _test(e, "eq", b, 0)
    _set_fault(e, fault, is_zero)
    b = e.let(f"select i1 {is_zero}, i64 1, i64 {b}")
    result = e.variable("i64")
    # A division of 32-bit numbers, as most sizes are, takes a fraction of the time.
    long = _test(e, "ugt", e.let(f"or i64 {a}, {b}"), (1 << 32) - 1)
    with e.either(long) as branches:
        written = iter(branches)
        next(written)
        quotient, rest = e.let(f"sdiv i64 {a}, {b}"), e.let(f"srem i64 {a}, {b}")
        differ = _test(e, "slt", e.let(f"xor i64 {rest}, {b}"), 0)
        down = e.let(f"and i1 {differ}, {_test(e, 'ne', rest, 0)}")
        result.set(e.let(f"sub i64 {quotient}, {e.let(f'zext i1 {down} to i64')}"))
        next(written)
        short = [e.let(f"trunc i64 {operand} to i32") for operand in (a, b)]
        result.set(e.let(f"zext i32 {e.let(f'udiv i32 {short[0]}, {short[1]}')} to i64"))
        next(written, None)
    return result.get()


def _broadcast(e: Emitter, a: str, b: str, fault: Variable) -> str:
    ones = [_test(e, "eq", operand, 1) for operand in (a, b)]
    matches = e.let(f"or i1 {e.let(f'or i1 {ones[0]}, {ones[1]}')}, {_test(e, 'eq', a, b)}")
    _set_fault(e, fault, e.let(f"xor i1 {matches}, true"))
    return e.let(f"select i1 {ones[0]}, i64 {b}, i64 {a}")


def _equal(e: Emitter, a: str, b: str, fault: Variable) -> str:
    _set_fault(e, fault, _test(e, "ne", a, b))
    return a


def _differ(e: Emitter, a: str, b: str, fault: Variable) -> str:
    return e.let(f"zext i1 {_test(e, 'ne', a, b)} to i64")


_INSTRUCTIONS: dict[Operation, Callable[[Emitter, str, str, Variable], str]] = {
    Operation.ADD: _overflow_checked("sadd"),
    Operation.MULTIPLY: _overflow_checked("smul"),
    Operation.DIVIDE: _divide,
    Operation.LEAST: lambda e, a, b, fault: str(e.least(a, b)),
    Operation.GREATEST: lambda e, a, b, fault: str(e.most(a, b)),
    Operation.BROADCAST: _broadcast,
    Operation.EQUAL: _equal,
    Operation.DIFFER: _differ,
}


# Offsets.


class _Buffers:
    """Access to the table of buffers.

    Args:
        e: IR builder of the function.
    """

    def __init__(self, e: Emitter) -> None:
        self._e = e
        self._rows = _pointer(e, PlanWord.BUFFERS)
        self._registers = _pointer(e, PlanWord.REGISTERS)

    def row(self, buffer: str) -> Sequence[str]:
        """Load the register of a buffer's size and the first and last step of its lifetime."""
        return _row(self._e, self._rows, buffer, BUFFER_WORDS)[1]

    def bytes(self, buffer: str) -> str:
        """Load the size of a buffer."""
        at = self._e.address(self._rows, "i64", self._e.mul(buffer, BUFFER_WORDS))
        return _number(self._e, self._registers, _number(self._e, at, 0))


def _assign_offsets(e: Emitter) -> Variable:
    """Assign offsets to the buffers of all layouts; return the bytes of the last layout."""
    registers, layouts = _pointer(e, PlanWord.REGISTERS), _pointer(e, PlanWord.LAYOUTS)
    count = _number(e, "%table", int(PlanWord.LAYOUT_COUNT))
    total = e.variable("i64", "0")
    with e.loop(0, count) as number:
        _, (start, end, register, _) = _row(e, layouts, number, LAYOUT_WORDS)
        _sort(e, start, end)
        _assign_layout_offsets(e, start, end, total)
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
    """Sort the buffers of a layout by descending size, equal sizes by number.

    Insertion sort: the order hardly changes from call to call.
    """
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


def _assign_layout_offsets(e: Emitter, start: str, end: str, total: Variable) -> None:
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
    """Return the lowest offset that is free during a lifetime; the placed buffers are sorted by offset."""
    at, next_, stop = e.variable("i64", "0"), e.variable("i64", "0"), e.variable("i64", count)
    with e.repeat(lambda: _test(e, "slt", next_.get(), stop.get())):
        _, (begin, end, born, dies) = _row(e, placed, next_.get(), PLACED_WORDS)
        next_.set(str(e.add(next_.get(), 1)))
        overlaps = e.let(f"and i1 {_test(e, 'sle', born, last)}, {_test(e, 'sle', first, dies)}")
        with e.when(overlaps):
            fits = _test(e, "sle", e.add(at.get(), bytes_), begin)
            stop.set(e.let(f"select i1 {fits}, i64 0, i64 {stop.get()}"))
            at.set(e.let(f"select i1 {fits}, i64 {at.get()}, i64 {e.most(at.get(), end)}"))
    return at.get()


def _insert(e: Emitter, placed: str, count: str, row: Sequence[str]) -> None:
    """Insert a row into the placed buffers, sorted by offset."""
    j = e.variable("i64", count)

    def is_after() -> str:
        before = e.mul(e.most(e.sub(j.get(), 1), 0), PLACED_WORDS)
        after = _test(e, "sgt", _number(e, placed, before), row[0])
        return e.let(f"and i1 {after}, {_test(e, 'sgt', j.get(), 0)}")

    with e.repeat(is_after):
        to = e.address(placed, "i64", e.mul(j.get(), PLACED_WORDS))
        for word in range(PLACED_WORDS):
            e.store("i64", _number(e, to, word - PLACED_WORDS), e.address(to, "i64", word), 8)
        j.set(str(e.sub(j.get(), 1)))
    to = e.address(placed, "i64", e.mul(j.get(), PLACED_WORDS))
    for word, value in enumerate(row):
        e.store("i64", value, e.address(to, "i64", word), 8)


# Arenas.


def _seize(e: Emitter, block: str) -> str:
    """Write code that claims a block; return the flag of success."""
    pair = e.let(f"cmpxchg ptr {e.address(block, 'i64', int(BlockWord.BUSY))}, i64 0, i64 1 acquire monotonic")
    return e.let(f"extractvalue {{ i64, i1 }} {pair}, 1")


def release(e: Emitter, block: str) -> None:
    """Write code that releases a block."""
    e.line(f"store atomic i64 0, ptr {e.address(block, 'i64', int(BlockWord.BUSY))} release, align 8")


def _hold(e: Emitter) -> None:
    """Write code that claims the arena for which the tape was filled.

    The function returns 1, or 0 if the arena is claimed by another call, replaced, or smaller than required.
    """
    required, block = _number(e, "%table", int(PlanWord.REQUIRED)), _pointer(e, PlanWord.BLOCK)
    with e.when(e.let(f"icmp eq ptr {block}, null")):
        fits = _test(e, "sle", required, _number(e, "%table", int(PlanWord.CAPACITY)))
        e.line(f"ret i64 {e.let(f'zext i1 {fits} to i64')}")
        e.label(e.fresh("unreached"))
    with e.when(_seize(e, block)):
        same = _test(e, "eq", _number(e, block, int(BlockWord.ADDRESS)), _number(e, "%table", int(PlanWord.ARENA)))
        fits = _test(e, "sle", required, _number(e, block, int(BlockWord.CAPACITY)))
        with e.when(e.let(f"and i1 {same}, {fits}")):
            e.line("ret i64 1")
            e.label(e.fresh("unreached"))
        release(e, block)
    e.line("ret i64 0")


# Words of the tape.


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
