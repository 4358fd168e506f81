"""Sorting of rows and selection of the first k elements.

Elements become integer keys of the same order, each stored with its index. Keys are compared, one vector at a time,
with the k-th best key so far; better entries are appended to a buffer. A full buffer is sorted, and its first k entries
remain. If k is a large part of the row, the buffer holds the whole row and is sorted once.

A short buffer is sorted by rank: for each entry, the entries before it are counted, in vectors and without branches. A
longer buffer is sorted by least-significant-digit radix sort. Both sorts are stable.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable, splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size, dim_max, dim_min
from sardonyx.core.ir import types as t

MOST = (1 << 32) - 1
"""Largest number of elements of a row: an index must fit into half a word."""

WORD = 8
"""Bytes of a word: a 32-bit key above the index, or a 64-bit key, whose index is another word."""

ROOM = 4
"""Entries of the buffer per selected element.

A larger buffer is sorted less often, but each sort takes longer; with random elements the buffer is sorted about twice
for a row of ten times its size.
"""

DIGIT = 8
"""Bits of a digit."""

ABREAST = 4
"""Vectors of entries whose ranks are counted in parallel."""

KeyAt = Callable[[str, "str | None"], str]
"""Emit the load of a vector of elements from an index on, with a mask of existing ones (None: all)."""


class Sorting:
    """The emitter of sorting and selection.

    NaN is greater than every number, zeros are equal, and equal elements remain in order.

    Args:
        e: The IR builder.
        dtype: The element type.
        descending: True if the greatest element comes first.
        length: Number of elements of a row.
        count: Number of elements to select, at most ``length``.
        lanes: Elements of a vector that are loaded at once.
        word_lanes: Words of a vector register.
    """

    def __init__(
        self, e: Emitter, dtype: t.DType, descending: bool, length: Size, count: Size, lanes: int, word_lanes: int
    ) -> None:
        self.e = e
        self.dtype = dtype
        self.descending = descending
        self.lanes = lanes
        self.word_lanes = word_lanes
        self._element = load_store.register_type(dtype)
        self._wide = self._element in ("i64", "double")
        self._digits = {"i1": 1, "i8": 1, "i16": 2}.get(self._element, 8 if self._wide else 4)
        short = ABREAST * word_lanes
        self._few = 4 * short
        """Most entries whose places are counted."""
        self.room: Size = dim_min(length, dim_max(ROOM * count, lanes)) + lanes
        """Entries that the buffer has room for."""
        self._arrays = 4 if self._wide else 2
        self._fixed = WORD * (self._few + short + lanes) + 4 * (self._digits << DIGIT)

    @property
    def bytes(self) -> Size:
        """Bytes of scratch memory."""
        return self._arrays * WORD * (self.room + self._slack) + self._fixed

    @property
    def _slack(self) -> int:
        """Entries after the end of a buffer that may be read, with any content."""
        return max(64, ABREAST * self.word_lanes)

    def first(self, n: str | int, k: str | int, room: str | int, scratch: str, read: KeyAt) -> None:
        """Write the selection of a row.

        Args:
            n: Number of elements of the row.
            k: Number of elements to select, at most ``n``.
            room: The value of :attr:`room`.
            scratch: Address of :attr:`bytes` bytes.
            read: Loads the elements.
        """
        self._lay_out(scratch, room)
        if k == 1 and not self._wide:
            self._least(n, read)
        else:
            self._search(n, k, room, read)

    def _least(self, n: str | int, read: KeyAt) -> None:
        """Emit the selection of a single entry."""
        e, lanes = self.e, self.lanes
        type, greatest = vector(lanes, "i64"), (1 << 63) - 1
        best = e.variable(type, splat(str(greatest), lanes, "i64"))
        with e.loop(0, n, lanes) as i:
            key, there = self._keys(n, i, read)
            (word,) = self._words(key, i)
            best.set(there.where(word, greatest).call("smin", Vector(e, best.get(), "i64", lanes)).name)
        least = e.call("i64", f"llvm.vector.reduce.smin.v{lanes}i64", [(type, best.get())])
        self._put(self._from[0].get(), 0, least)

    def _search(self, n: str | int, k: str | int, room: str | int, read: KeyAt) -> None:
        e, lanes = self.e, self.lanes
        count, last = e.variable("i64", "0"), e.variable(self._key_type, "0")
        filling = e.variable(vector(lanes, "i1"), splat("true", lanes, "i1"))
        limit = e.sub(room, lanes)
        with e.loop(0, n, lanes) as i:
            key, there = self._keys(n, i, read)
            best = Vector(e, e.spread(last.get(), lanes, self._key_type), self._key_type, lanes)
            good = (Vector(e, filling.get(), "i1", lanes) | (key < best)) & there
            with e.when(good.any()):
                self._append(key, i, good, count)
            full = e.let(f"icmp sgt i64 {count.get()}, {limit}")
            ends = e.let(f"icmp sle i64 {e.sub(n, i)}, {lanes}")
            with e.when(e.let(f"or i1 {full}, {ends}")):
                self._sort(count.get())
                count.set(str(k))
                filling.set(splat("false", lanes, "i1"))
                worst = self._word(self._from[0].get(), e.most(e.sub(k, 1), 0))
                last.set(worst if self._wide else Vector(e, worst, "i64", 1).lshr(32).to("trunc", "i32").name)

    def index(self, at: str) -> str:
        """Emit the load of a vector of indices, ``i64``, of the selected elements from position ``at`` on.

        Lanes past the last selected element are undefined.
        """
        e, type = self.e, vector(self.lanes, "i64")
        words = e.load(type, e.address(self._from[-1].get(), "i64", at), 8)
        return words if self._wide else (Vector(e, words, "i64", self.lanes) & MOST).name

    def _lay_out(self, scratch: str, room: str | int) -> None:
        e = self.e
        size = e.mul(e.add(room, self._slack), WORD)
        at = [e.address(scratch, "i8", e.mul(size, part)) for part in range(self._arrays)]
        half = self._arrays // 2
        self._from = [e.variable("ptr", address) for address in at[:half]]
        self._to = [e.variable("ptr", address) for address in at[half:]]
        self._base = e.variable("i64")
        rest = e.address(scratch, "i8", e.mul(size, self._arrays))
        self._ranks = rest
        self._some = e.address(rest, "i64", self._few + ABREAST * self.word_lanes)
        self._counts = e.address(self._some, "i64", self.lanes)

    # Keys.

    @property
    def _key_type(self) -> str:
        return "i64" if self._wide else "i32"

    def _key(self, name: str) -> Vector:
        """Return elements as signed integers in the order of selection, the first the least."""
        x = Vector(self.e, name, self._element, self.lanes)
        if x.is_float:
            bits = x.bits()
            least = bits.like(-(1 << (63 if self._wide else 31)))
            # Both zeros are 0. The key of NaN has no more significant digits than a 16-bit float.
            ordered = (bits < 0).where(least - bits, bits)
            nan = 0x7FFF << (48 if self._wide else 16)
            key = x.is_nan().where(bits.like(nan), ordered)
        else:
            # Short integers are in the upper bits, so that the radix sort needs fewer digits.
            unsigned = t.kind(self.dtype) != "int"
            key, free = x, {"i1": 24, "i8": 24, "i16": 16}.get(self._element, 0)
            if free:
                key = x.to("zext" if unsigned else "sext", "i32") << free
            if unsigned:
                key = key ^ -(1 << (63 if self._wide else 31))
        return ~key if self.descending else key

    def _keys(self, n: str | int, i: str, read: KeyAt) -> tuple[Vector, Vector]:
        """Return a vector of keys and the mask of the existing ones."""
        e, lanes = self.e, self.lanes
        keys, there = e.variable(vector(lanes, self._key_type)), e.variable(vector(lanes, "i1"))
        left = e.sub(n, i)
        some = e.lanes_below(left, lanes)
        with e.either(e.let(f"icmp sge i64 {left}, {lanes}")) as branches:
            for _, mask in zip(branches, (None, some), strict=True):
                keys.set(self._key(read(i, mask)).name)
                there.set(mask or splat("true", lanes, "i1"))
        return Vector(e, keys.get(), self._key_type, lanes), Vector(e, there.get(), "i1", lanes)

    def _words(self, key: Vector, i: str) -> list[Vector]:
        """Return the words of entries: key and index in one word, or in two."""
        e, lanes = self.e, self.lanes
        first = Vector(e, e.spread(i, lanes, "i64"), "i64", lanes)
        index = first + Vector(e, e.lane_numbers(lanes), "i64", lanes)
        return [key, index] if self._wide else [(key.to("sext", "i64") << 32) | index]

    # The buffer.

    def _word(self, array: str, at: str | int) -> str:
        return self.e.load("i64", self.e.address(array, "i64", at), 8)

    def _put(self, array: str, at: str | int, word: str) -> None:
        self.e.store("i64", word, self.e.address(array, "i64", at), 8)

    def _append(self, key: Vector, i: str, good: Vector, count: Variable) -> None:
        """Append the selected lanes of a vector of entries to the buffer."""
        e, lanes = self.e, self.lanes
        type, words = vector(lanes, "i64"), self._words(key, i)
        arrays = [variable.get() for variable in self._from]
        every = e.let(f"bitcast {good} to i{lanes}")
        gaps = e.let(f"and i{lanes} {every}, {e.let(f'add i{lanes} {every}, 1')}")
        with e.either(e.let(f"icmp eq i{lanes} {gaps}, 0")) as branches:
            next(branches)
            # The selected lanes are the first ones: the whole vector is stored, and the next store overwrites the rest.
            at = count.get()
            for word, array in zip(words, arrays, strict=True):
                e.store(type, word.name, e.address(array, "i64", at), 8)
            more = e.call(f"i{lanes}", f"llvm.ctpop.i{lanes}", [(f"i{lanes}", every)])
            count.set(str(e.add(at, e.let(f"zext i{lanes} {more} to i64"))))
            next(branches)
            for word, array in zip(words, arrays, strict=True):
                e.store(type, word.name, self._some, 8)
                at = count.get()
                for lane in range(lanes):
                    # The next lane overwrites a lane that is not selected.
                    self._put(array, at, self._word(self._some, lane))
                    bit = e.let(f"trunc i{lanes} {e.let(f'lshr i{lanes} {every}, {lane}')} to i1")
                    at = str(e.add(at, e.let(f"zext i1 {bit} to i64")))
            count.set(at)
            next(branches, None)

    # Sorting it.

    def _sort(self, count: str) -> None:
        """Sort the entries of the buffer."""
        e = self.e
        with e.either(e.let(f"icmp sle i64 {count}, {self._few}")) as branches:
            next(branches)
            self._sort_by_rank(count)
            next(branches)
            with e.when(e.let(f"xor i1 {self._is_sorted(count)}, true")):
                self._radix_sort(count)
            next(branches, None)

    def _is_sorted(self, count: str) -> str:
        """Return an i1: true if the entries are in order, e.g. because an earlier operator sorted them.

        The test ends at the first vector that is out of order.
        """
        e, lanes = self.e, self.word_lanes
        type, words = vector(lanes, "i64"), self._from[0].get()
        at, good = e.variable("i64", "0"), e.variable("i1", "true")
        last = e.sub(count, 1)

        def goes_on() -> str:
            return e.let(f"and i1 {good.get()}, {e.let(f'icmp slt i64 {at.get()}, {last}')}")

        with e.repeat(goes_on):
            here = at.get()
            one, following = (
                Vector(e, e.load(type, e.address(words, "i64", e.add(here, i)), 8), "i64", lanes) for i in range(2)
            )
            there = Vector(e, e.lanes_below(e.sub(last, here), lanes), "i1", lanes)
            wrong = (following < one) & there
            good.set(e.let(f"xor i1 {wrong.any()}, true"))
            at.set(str(e.add(here, lanes)))
        return good.get()

    def _swap(self) -> None:
        for here, there in zip(self._from, self._to, strict=True):
            one, other = here.get(), there.get()
            here.set(other)
            there.set(one)

    def _sort_by_rank(self, count: str) -> None:
        """Count the entries before each entry, and store the entry at this rank."""
        e, lanes = self.e, self.word_lanes
        type, abreast = vector(lanes, "i64"), ABREAST * lanes
        words = self._from[0].get()
        with e.loop(0, count, abreast) as start:
            at = [e.add(start, part * lanes) for part in range(ABREAST)]
            mine = [Vector(e, e.load(type, e.address(words, "i64", i), 8), "i64", lanes) for i in at]
            before = [e.variable(type, splat("0", lanes, "i64")) for _ in mine]
            block = list(zip(at, mine, before, strict=True))
            if self._wide:  # Equal keys are ordered by position.
                end = e.least(e.add(start, abreast), count)
                self._count(0, start, block, lambda other, word, distance: other <= word)
                self._count(start, end, block, _is_before)
                self._count(end, count, block, lambda other, word, distance: other < word)
            else:
                self._count(0, count, block, lambda other, word, distance: other < word)
            for i, rank in zip(at, before, strict=True):
                e.store(type, rank.get(), e.address(self._ranks, "i64", i), 8)
        with e.loop(0, count) as i:
            rank_of_entry = self._word(self._ranks, i)
            for here, there in zip(self._from, self._to, strict=True):
                self._put(there.get(), rank_of_entry, self._word(here.get(), i))
        self._swap()

    def _count(
        self,
        first: str | int,
        last: str | int,
        block: list[tuple[str | int, Vector, Variable]],
        before: Callable[[Vector, Vector, Vector], Vector],
    ) -> None:
        """Count, for each entry of a block, the entries of a range that come before.

        Args:
            first: Start of the range.
            last: End of the range.
            block: The vectors of the block: start, words, and counts so far.
            before: Compares an entry of the range with a vector of words, given the distances from the entry to the
                words.
        """
        e, lanes = self.e, self.word_lanes
        with e.loop(first, last) as j:
            other = Vector(e, e.spread(self._word(self._from[0].get(), j), lanes, "i64"), "i64", lanes)
            for i, word, count in block:
                distance = Vector(e, e.spread(str(e.sub(i, j)), lanes, "i64"), "i64", lanes)
                distance = distance + Vector(e, e.lane_numbers(lanes), "i64", lanes)
                comes = before(other, word, distance).to("sext", "i64")
                count.set((Vector(e, count.get(), "i64", lanes) - comes).name)

    def _radix_sort(self, count: str) -> None:
        """Emit a least-significant-digit radix sort of the keys relative to the least key.

        Digits that are equal in all keys are skipped.
        """
        e = self.e
        numbers, low = 1 << DIGIT, 64 - DIGIT * self._digits
        words = self._from[0].get()
        least = self._least_of(words, count)
        # The index below the digits is not part of the base that is subtracted.
        self._base.set((Vector(e, least, "i64", 1) & -(1 << low)).name)
        with e.loop(0, self._digits * numbers, 16) as i:
            e.store("<16 x i32>", "zeroinitializer", e.address(self._counts, "i32", i), 4)
        with e.loop(0, count) as i:
            word = self._unsigned(self._word(words, i))
            for number in range(self._digits):
                digit = self._digit(word, low + DIGIT * number)
                counter = e.address(self._counts, "i32", e.add(digit, number * numbers))
                e.store("i32", e.let(f"add i32 {e.load('i32', counter, 4)}, 1"), counter, 4)
        everything = e.let(f"trunc i64 {count} to i32")
        with e.loop(0, self._digits) as which:
            shift = e.add(e.mul(which, DIGIT), low)
            counts = e.address(self._counts, "i32", e.mul(which, numbers))
            one = e.address(counts, "i32", self._digit(self._unsigned(self._word(self._from[0].get(), 0)), shift))
            with e.when(e.let(f"icmp ne i32 {e.load('i32', one, 4)}, {everything}")):
                self._sort_by_digit(count, counts, shift)

    def _sort_by_digit(self, count: str, counts: str, shift: str | int) -> None:
        e = self.e
        total = e.variable("i32", "0")
        with e.loop(0, 1 << DIGIT) as i:
            counter, before = e.address(counts, "i32", i), total.get()
            total.set(e.let(f"add i32 {before}, {e.load('i32', counter, 4)}"))
            e.store("i32", before, counter, 4)
        here, there = [variable.get() for variable in self._from], [variable.get() for variable in self._to]
        with e.loop(0, count) as i:
            word = self._word(here[0], i)
            counter = e.address(counts, "i32", self._digit(self._unsigned(word), shift))
            position = e.load("i32", counter, 4)
            e.store("i32", e.let(f"add i32 {position}, 1"), counter, 4)
            to = e.let(f"zext i32 {position} to i64")
            self._put(there[0], to, word)
            for source, goal in zip(here[1:], there[1:], strict=True):
                self._put(goal, to, self._word(source, i))
        self._swap()

    def _unsigned(self, word: str) -> str:
        """Return a word as an unsigned integer of the same order: its distance from the least word."""
        return self.e.let(f"sub i64 {word}, {self._base.get()}")

    def _least_of(self, words: str, count: str) -> str:
        """Return the least of at least one word."""
        e, lanes = self.e, self.word_lanes
        type, greatest = vector(lanes, "i64"), (1 << 63) - 1
        least = e.variable(type, splat(str(greatest), lanes, "i64"))
        with e.loop(0, count, lanes) as i:
            there = Vector(e, e.lanes_below(e.sub(count, i), lanes), "i1", lanes)
            some = Vector(e, e.load(type, e.address(words, "i64", i), 8), "i64", lanes)
            least.set(there.where(some, greatest).call("smin", Vector(e, least.get(), "i64", lanes)).name)
        return e.call("i64", f"llvm.vector.reduce.smin.v{lanes}i64", [(type, least.get())])

    def _digit(self, word: str, shift: str | int) -> str:
        return self.e.let(f"and i64 {self.e.let(f'lshr i64 {word}, {shift}')}, {(1 << DIGIT) - 1}")


def _is_before(other: Vector, word: Vector, distance: Vector) -> Vector:
    return (other < word) | (other.equals(word) & (distance > 0))
