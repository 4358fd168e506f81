"""Flags of denormal numbers among the float32 numbers that a kernel writes."""

from __future__ import annotations

from sardonyx.compiler.llvm.ir_builder import Emitter, vector


class DenormalFlag:
    """A flag that is set if a number of a kernel is denormal.

    Args:
        emitter: The code of the kernel, at its beginning.
        lanes: Elements of a vector, at least 2.
    """

    def __init__(self, emitter: Emitter, lanes: int) -> None:
        self._emitter, self._lanes = emitter, lanes
        self._mask = vector(lanes, "i1")
        self._seen = emitter.variable(self._mask, "zeroinitializer")

    def add(self, numbers: str) -> None:
        """Emit the test of a vector of float32 numbers."""
        e, ints = self._emitter, vector(self._lanes, "i32")
        # Doubling drops the sign bit: below 1 << 24 the exponent is 0, and subtracting 1 wraps zero around.
        bits = e.let(f"bitcast {vector(self._lanes, 'float')} {numbers} to {ints}")
        doubled = e.let(f"shl {ints} {bits}, splat (i32 1)")
        less = e.let(f"sub {ints} {doubled}, splat (i32 1)")
        small = e.let(f"icmp ult {ints} {less}, splat (i32 {(1 << 24) - 1})")
        self._seen.set(e.let(f"or {self._mask} {self._seen.get()}, {small}"))

    def store(self, flag: str) -> None:
        """Emit the store of 1 to an int32 number if a denormal number was met."""
        e, bits = self._emitter, f"i{self._lanes}"
        with e.when(e.let(f"icmp ne {bits} {e.let(f'bitcast {self._mask} {self._seen.get()} to {bits}')}, 0")):
            e.store("i32", "1", flag, 4)
