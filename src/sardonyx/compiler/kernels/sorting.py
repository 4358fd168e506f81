"""Sorting a row: a stable merge of runs that double, of keys with their indices."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler import storage
from sardonyx.compiler.emitter import Emitter, Variable
from sardonyx.compiler.kernels.kernel import Index
from sardonyx.compiler.vectors import Vector
from sardonyx.core import types as t
from sardonyx.core.dim import Size

KEY_BYTES = 8
"""Room for a key, whatever its type."""


def scratch_bytes(n: Size) -> Size:
    """Bytes that sorting ``n`` keys needs."""
    return n * (2 * KEY_BYTES + 16)


def sort_row(
    e: Emitter,
    n: str | int,
    scratch: str,
    dtype: t.DType,
    descending: bool,
    key: Callable[[str], str],
) -> str:
    """Write the sort of a row; equal keys stay in order. NaN is greater than every number.

    Args:
        e: Where it goes.
        n: How many keys.
        scratch: Memory of :func:`scratch_bytes`.
        dtype: The type of the keys.
        descending: Whether the greatest comes first.
        key: Writes the read of a key by its index, as it is in registers.

    Returns:
        A pointer to the indices, ``i64``, in order.
    """
    return _Sort(e, n, scratch, dtype, descending).write(key)


def first_of_row(
    e: Emitter,
    n: str | int,
    k: int,
    scratch: str,
    dtype: t.DType,
    descending: bool,
    key: Callable[[str], str],
) -> str:
    """Write the choice of the first few of a row, as :func:`sort_row` orders them; of all where there are fewer.

    Each key is compared with the last of those chosen so far, and put in its place where it stands before that.

    Args:
        e: Where it goes.
        n: How many keys.
        k: How many are chosen, 1 at least.
        scratch: Memory of :func:`scratch_bytes` of ``k``.
        dtype: The type of the keys.
        descending: Whether the greatest comes first.
        key: Writes the read of a key by its index, as it is in registers.

    Returns:
        A pointer to the indices, ``i64``, in order.
    """
    chosen = _Sort(e, k, scratch, dtype, descending)
    keys, indices = chosen.keys[0].get(), chosen.indices[0].get()
    with e.loop(0, n) as i:
        new = key(i)
        enters = e.variable("i1", e.let(f"icmp slt i64 {i}, {k}"))
        with e.when(e.let(f"xor i1 {enters.get()}, true")):
            enters.set(chosen.before(new, chosen.key(keys, k - 1)))
        with e.when(enters.get()):
            at = e.variable("i64", str(e.least(i, k - 1)))
            moves = e.variable("i1")

            def goes_on(at: Variable = at, moves: Variable = moves, new: str = new) -> str:
                moves.set("false")
                with e.when(e.let(f"icmp sgt i64 {at.get()}, 0")):
                    moves.set(chosen.before(new, chosen.key(keys, str(e.sub(at.get(), 1)))))
                return moves.get()

            with e.repeat(goes_on):
                to = at.get()
                before = str(e.sub(to, 1))
                storage.store(e, dtype, chosen.key(keys, before), keys, Index(to), 1)
                chosen.put(indices, to, storage.load(e, t.INT64, indices, Index(before), 1))
                at.set(before)
            storage.store(e, dtype, new, keys, Index(at.get()), 1)
            chosen.put(indices, at.get(), i)
    return indices


class _Sort:
    def __init__(self, e: Emitter, n: str | int, scratch: str, dtype: t.DType, descending: bool) -> None:
        self.e = e
        self.n = n
        self.dtype = dtype
        self.descending = descending
        bytes_ = e.mul(n, KEY_BYTES)
        at = [e.address(scratch, "i8", e.mul(bytes_, part)) for part in range(4)]
        self.keys = [e.variable("ptr", at[0]), e.variable("ptr", at[1])]
        self.indices = [e.variable("ptr", at[2]), e.variable("ptr", at[3])]

    def write(self, key: Callable[[str], str]) -> str:
        e, n = self.e, self.n
        keys, indices = self.keys[0].get(), self.indices[0].get()
        with e.loop(0, n) as i:
            storage.store(e, self.dtype, key(i), keys, Index(i), 1)
            self.put(indices, i, i)
        width = e.variable("i64", "1")
        with e.repeat(lambda: e.let(f"icmp slt i64 {width.get()}, {n}")):
            run = width.get()
            with e.loop(0, n, e.mul(run, 2)) as first:
                middle = e.least(e.add(first, run), n)
                self._merge(first, middle, e.least(e.add(middle, run), n))
            for pair in (self.keys, self.indices):
                one, other = pair[0].get(), pair[1].get()
                pair[0].set(other)
                pair[1].set(one)
            width.set(str(e.mul(run, 2)))
        return self.indices[0].get()

    def _merge(self, first: str, middle: str | int, end: str | int) -> None:
        """Two runs that follow each other into one."""
        e = self.e
        keys, indices = self.keys[0].get(), self.indices[0].get()
        to_keys, to_indices = self.keys[1].get(), self.indices[1].get()
        left, right = e.variable("i64", first), e.variable("i64", str(middle))
        with e.loop(first, end) as goal:
            a, b = left.get(), right.get()
            chosen = e.variable("i1", "false")
            with e.when(e.let(f"icmp slt i64 {b}, {end}")):
                chosen.set("true")
                with e.when(e.let(f"icmp slt i64 {a}, {middle}")):
                    chosen.set(self.before(self.key(keys, b), self.key(keys, a)))
            from_right = chosen.get()
            source = e.let(f"select i1 {from_right}, i64 {b}, i64 {a}")
            storage.store(e, self.dtype, self.key(keys, source), to_keys, Index(goal), 1)
            self.put(to_indices, goal, storage.load(e, t.INT64, indices, Index(source), 1))
            one = e.let(f"zext i1 {from_right} to i64")
            right.set(str(e.add(b, one)))
            left.set(str(e.add(a, e.let(f"sub i64 1, {one}"))))

    def before(self, a: str, b: str) -> str:
        """Whether a key stands before another, whatever their order was."""
        x, y = (Vector(self.e, name, storage.register_type(self.dtype), 1) for name in (a, b))
        if not x.is_float:
            sign = "s" if t.kind(self.dtype) == "int" else "u"
            return x.compare(f"{sign}{'gt' if self.descending else 'lt'}", y).name
        if self.descending:
            return ((x > y) | (x.is_nan() & ~y.is_nan())).name
        return ((x < y) | (y.is_nan() & ~x.is_nan())).name

    def key(self, keys: str, at: str | int) -> str:
        return storage.load(self.e, self.dtype, keys, Index(at), 1)

    def put(self, indices: str, at: str, index: str) -> None:
        storage.store(self.e, t.INT64, index, indices, Index(at), 1)
