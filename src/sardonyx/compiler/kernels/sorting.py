"""Sorting a row: a stable merge of runs that double, of keys with their indices."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler import storage
from sardonyx.compiler.emitter import Emitter
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
            self._put(indices, i, i)
        width = e.variable("i64", "1")
        head, body, done = (e.fresh(stem) for stem in ("passes", "merge", "sorted"))
        e.line(f"br label %{head}")
        e.label(head)
        run = width.get()
        e.line(f"br i1 {e.let(f'icmp slt i64 {run}, {n}')}, label %{body}, label %{done}")
        e.label(body)
        with e.loop(0, n, e.mul(run, 2)) as first:
            middle = e.least(e.add(first, run), n)
            self._merge(first, middle, e.least(e.add(middle, run), n))
        for pair in (self.keys, self.indices):
            one, other = pair[0].get(), pair[1].get()
            pair[0].set(other)
            pair[1].set(one)
        width.set(str(e.mul(run, 2)))
        e.line(f"br label %{head}")
        e.label(done)
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
                    chosen.set(self._before(self._key(keys, b), self._key(keys, a)))
            from_right = chosen.get()
            source = e.let(f"select i1 {from_right}, i64 {b}, i64 {a}")
            storage.store(e, self.dtype, self._key(keys, source), to_keys, Index(goal), 1)
            self._put(to_indices, goal, storage.load(e, t.INT64, indices, Index(source), 1))
            one = e.let(f"zext i1 {from_right} to i64")
            right.set(str(e.add(b, one)))
            left.set(str(e.add(a, e.let(f"sub i64 1, {one}"))))

    def _before(self, a: str, b: str) -> str:
        """Whether a key stands before another, whatever their order was."""
        x, y = (Vector(self.e, name, storage.register_type(self.dtype), 1) for name in (a, b))
        if not x.is_float:
            sign = "s" if t.kind(self.dtype) == "int" else "u"
            return x.compare(f"{sign}{'gt' if self.descending else 'lt'}", y).name
        if self.descending:
            return ((x > y) | (x.is_nan() & ~y.is_nan())).name
        return ((x < y) | (y.is_nan() & ~x.is_nan())).name

    def _key(self, keys: str, at: str) -> str:
        return storage.load(self.e, self.dtype, keys, Index(at), 1)

    def _put(self, indices: str, at: str, index: str) -> None:
        storage.store(self.e, t.INT64, index, indices, Index(at), 1)
