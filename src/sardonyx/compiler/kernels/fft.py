"""Discrete Fourier transforms of any length, in float64: radix 2, or Bluestein's algorithm.

Cooley and Tukey 1965 for ``p = 2**s`` (decimation in time, twiddles stored stage by stage), Bluestein 1970 for other
lengths: with ``w = exp(-pi i / n)`` the product ``j k`` is ``(j**2 + k**2 - (j - k)**2) / 2``. The transform is then a
convolution with ``w**(-k**2)``, computed by transforms of a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sardonyx.compiler.codegen import vector_math
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size

_LANES = 8
"""Butterflies of a vector, in stages with at least as many butterflies."""


def table_bytes(n: Size) -> Size:
    """Return the bytes of the tables for a length."""
    return 160 * n + 64


def scratch_bytes(n: Size) -> Size:
    """Return the bytes of scratch memory of a transform."""
    return 64 * n + 64


class Fourier:
    """The emitter of transforms of one length, a constant or a run-time value.

    Args:
        e: The IR builder.
        n: The length.
        tables: Address of :func:`table_bytes` bytes.
    """

    def __init__(self, e: Emitter, n: str | int, tables: str) -> None:
        self.e = e
        self.n = n
        bits = e.call("i64", "llvm.ctpop.i64", [("i64", str(n))])
        self.is_power = e.let(f"icmp ule i64 {bits}, 1")
        # The smallest power of two that is at least 2 n - 1, the length of the convolution.
        last = e.most(e.mul(e.sub(n, 1), 2), 0)
        zeros = e.call("i64", "llvm.ctlz.i64", [("i64", str(last)), ("i1", "false")])
        wide = e.let(f"sub i64 64, {zeros}")
        own = e.call("i64", "llvm.cttz.i64", [("i64", str(e.most(n, 1))), ("i1", "false")])
        self.stages = e.let(f"select i1 {self.is_power}, i64 {own}, i64 {wide}")
        self.p = e.let(f"shl i64 1, {self.stages}")
        self.twiddles = self._pair(tables, 0, self.p)
        self.filter = self._pair(tables, e.mul(self.p, 2), self.p)
        self.chirp = self._pair(tables, e.mul(self.p, 4), n)

    def write_tables(self) -> None:
        """Write the tables that all transforms of the length share."""
        e = self.e
        with e.loop(0, self.stages) as stage:
            half = e.let(f"shl i64 1, {stage}")
            with e.loop(0, half) as k:
                # Earlier stages have half - 1 twiddles in total.
                self._put_root(self.twiddles, e.add(e.sub(half, 1), k), k, half)
        with self._when_convolved():
            with e.loop(0, self.p) as k:
                self._put(self.filter, k, self._number(0.0), self._number(0.0))
            with e.loop(0, self.n) as k:
                # The angle has a period of 2 n in k * k.
                self._put_root(self.chirp, k, e.rem(e.mul(k, k), e.mul(self.n, 2)), self.n)
                re, im = self._get(self.chirp, k)
                self._put(self.filter, k, re, -im)
                self._put(self.filter, e.rem(e.sub(self.p, k), self.p), re, -im)
            self._transform(self.filter)

    def transform(
        self,
        scratch: str,
        inverse: bool,
        load: Callable[[str], tuple[str, str]],
        store: Callable[[str, str, str], None],
    ) -> None:
        """Write the transform of a row; the inverse is not divided by the length.

        Args:
            scratch: Address of :func:`scratch_bytes` bytes.
            inverse: True for the inverse transform.
            load: Emits the load of an element: real and imaginary part, ``double``.
            store: Called with the index and the parts of each result.
        """
        e = self.e
        work = self._pair(scratch, 0, self.p)
        with e.loop(self.n, self.p) as k:
            self._put(work, k, self._number(0.0), self._number(0.0))
        with e.loop(0, self.n) as k:
            re, im = (Vector(e, name, "double", 1) for name in load(k))
            # The inverse is the conjugate of the transform of the conjugate.
            self._put(work, k, re, -im if inverse else im)
        with self._when_convolved(), e.loop(0, self.n) as k:
            self._put(work, k, *_product(self._get(work, k), self._get(self.chirp, k)))
        self._transform(work)
        with self._when_convolved():
            with e.loop(0, self.p) as k:
                re, im = _product(self._get(work, k), self._get(self.filter, k))
                self._put(work, k, re, -im)
            self._transform(work)
            scale = self._number(1.0) / Vector(e, e.let(f"sitofp i64 {self.p} to double"), "double", 1)
            with e.loop(0, self.n) as k:
                re, im = self._get(work, k)
                self._put(work, k, *_product((re * scale, -im * scale), self._get(self.chirp, k)))
        with e.loop(0, self.n) as k:
            re, im = self._get(work, k)
            store(k, re.name, (-im if inverse else im).name)

    @contextmanager
    def _when_convolved(self) -> Iterator[None]:
        """Enclose code that runs only if the length is not a power of two."""
        with self.e.when(self.e.let(f"xor i1 {self.is_power}, true")):
            yield

    def _transform(self, data: tuple[str, str]) -> None:
        """Emit the transform of ``p`` numbers in memory."""
        e = self.e
        with e.loop(1, self.p) as k:
            reversed_bits = e.call("i64", "llvm.bitreverse.i64", [("i64", k)])
            other = e.let(f"lshr i64 {reversed_bits}, {e.sub(64, self.stages)}")
            with e.when(e.let(f"icmp slt i64 {k}, {other}")):
                one, two = self._get(data, k), self._get(data, other)
                self._put(data, k, *two)
                self._put(data, other, *one)
        with e.loop(0, self.stages) as stage:
            half = e.let(f"shl i64 1, {stage}")
            roots = e.sub(half, 1)
            with e.loop(0, self.p, e.mul(half, 2)) as first, e.either(e.let(f"icmp sge i64 {half}, {_LANES}")) as ways:
                for _, lanes in zip(ways, (_LANES, 1), strict=True):
                    with e.loop(0, half, lanes) as k:
                        low, high = e.add(first, k), e.add(e.add(first, half), k)
                        root = self._get(self.twiddles, e.add(roots, k), lanes)
                        (re, im), (x, y) = self._get(data, low, lanes), _product(self._get(data, high, lanes), root)
                        self._put(data, low, re + x, im + y)
                        self._put(data, high, re - x, im - y)

    # Complex numbers: all real parts, then all imaginary parts.

    def _pair(self, memory: str, first: str | int, count: str | int) -> tuple[str, str]:
        e = self.e
        return e.address(memory, "double", first), e.address(memory, "double", e.add(first, count))

    def _get(self, pair: tuple[str, str], at: str | int, lanes: int = 1) -> tuple[Vector, Vector]:
        e, type = self.e, f"<{lanes} x double>" if lanes > 1 else "double"
        re, im = (Vector(e, e.load(type, e.address(pointer, "double", at), 8), "double", lanes) for pointer in pair)
        return re, im

    def _put(self, pair: tuple[str, str], at: str | int, re: Vector, im: Vector) -> None:
        for pointer, part in zip(pair, (re, im), strict=True):
            self.e.store(part.type, part.name, self.e.address(pointer, "double", at), 8)

    def _put_root(self, pair: tuple[str, str], at: str | int, k: str | int, half: str | int) -> None:
        """Write ``exp(-pi i k / half)``."""
        e = self.e
        part, whole = (Vector(e, e.let(f"sitofp i64 {number} to double"), "double", 1) for number in (k, half))
        angle = part * math.pi / whole
        self._put(pair, at, vector_math.FUNCTIONS["cos"](angle), -vector_math.FUNCTIONS["sin"](angle))

    def _number(self, value: float) -> Vector:
        return Vector(self.e, "0.0", "double", 1).like(value)


def _product(a: tuple[Vector, Vector], b: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]
