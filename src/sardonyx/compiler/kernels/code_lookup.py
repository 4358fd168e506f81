"""Lookups of bytes in a table of 256 bytes.

AVX-512 VBMI looks up 64 bytes in 128 by one instruction: two lookups and a selection by the sign. AVX2 has a lookup in
16 bytes: each of the table's 16 rows is looked up by the lower half of a byte, and a tree of selections by the bits of
the upper half gives the result. Without AVX2, and for the last bytes, lookups are loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.llvm.ir_builder import Emitter, splat, vector
from sardonyx.compiler.target.description import Target

_LOOK_UP = "llvm.x86.avx2.pshuf.b"
_LOOK_UP_128 = "llvm.x86.avx512.vpermi2var.qi.512"


def _literal(bytes: np.ndarray) -> str:
    return f"<{', '.join(f'i8 {int(byte)}' for byte in bytes.view(np.int8))}>"


@dataclass(frozen=True)
class Padding:
    """Bytes that are no codes: the channels that fill a block.

    Attributes:
        block: Bytes of a block; adjacent blocks have the same channels.
        count: The channels of a block; the bytes after these become 0.
    """

    block: int
    count: str | int


class LookUp:
    """Emitter of lookups in one table.

    Args:
        e: Emitter of the instructions.
        target: The processor.
        table: The table, 256 bytes.
    """

    def __init__(self, e: Emitter, target: Target, table: np.ndarray) -> None:
        self.e = e
        self.rows = table.reshape(16, 16)
        self.has_vectors = "+avx2" in target.features
        self.has_wide_tables = "+avx512vbmi" in target.features
        self.lanes = 64 if self.has_wide_tables else 32
        self.type = vector(self.lanes, "i8")
        self.loads = e.array("i8", 256)
        for number, row in enumerate(self.rows):
            e.store(vector(16, "i8"), _literal(row), e.address(self.loads, "i8", 16 * number), 16)

    def replace(self, source: str, target: str, length: str | int, padding: Padding | None = None) -> None:
        """Emit the lookups of adjacent bytes.

        Args:
            source: Address of the bytes.
            target: Address of the results; may be the source.
            length: Number of bytes.
            padding: The bytes that are no codes; the first byte is the first one of a block. None if all are codes.
        """
        e = self.e
        whole: str | int = 0
        if self.has_vectors:
            whole = e.mul(e.div(length, self.lanes), self.lanes)
            mask = "" if padding is None else self._mask(padding)
            with e.loop(0, whole, self.lanes) as offset:
                bytes = self.vector(e.load(self.type, e.address(source, "i8", offset), 1))
                if padding is not None:
                    bytes = e.let(f"and {self.type} {bytes}, {mask}")
                e.store(self.type, bytes, e.address(target, "i8", offset), 1)
        with e.loop(whole, length) as offset:
            byte = e.load("i8", e.address(source, "i8", offset), 1)
            at = e.let(f"zext i8 {byte} to i64")
            result = e.load("i8", e.address(self.loads, "i8", at), 1)
            if padding is not None:
                is_code = e.let(f"icmp slt i64 {e.rem(offset, padding.block)}, {padding.count}")
                result = e.let(f"select i1 {is_code}, i8 {result}, i8 0")
            e.store("i8", result, e.address(target, "i8", offset), 1)

    def _mask(self, padding: Padding) -> str:
        """Return a vector of bytes whose bits are all 1 for codes and 0 for others."""
        e = self.e
        count = e.let(f"trunc i64 {padding.count} to i8")
        numbers = _literal(np.resize(np.arange(padding.block, dtype=np.int8), self.lanes))
        is_code = e.let(f"icmp slt {self.type} {numbers}, {e.spread(count, self.lanes, 'i8')}")
        return e.let(f"sext {vector(self.lanes, 'i1')} {is_code} to {self.type}")

    def vector(self, bytes: str) -> str:
        """Return the table's bytes for a vector of bytes."""
        return self._by_halves(bytes) if self.has_wide_tables else self._by_rows(bytes)

    def _selected(self, signs: str, values: Sequence[str]) -> list[str]:
        """Return the second of each pair of vectors where a byte is negative, else the first."""
        e, type = self.e, self.type
        mask = e.let(f"icmp slt {type} {signs}, zeroinitializer")
        return [
            e.let(f"select {vector(self.lanes, 'i1')} {mask}, {type} {second}, {type} {first}")
            for first, second in zip(values[::2], values[1::2], strict=True)
        ]

    def _by_halves(self, bytes: str) -> str:
        parts = [_literal(part) for part in self.rows.reshape(4, 64)]
        halves = [
            self.e.call(
                self.type, _LOOK_UP_128, [(self.type, operand) for operand in (parts[at], bytes, parts[at + 1])]
            )
            for at in (0, 2)
        ]
        return self._selected(bytes, halves)[0]

    def _by_rows(self, bytes: str) -> str:
        e, lanes, type = self.e, self.lanes, self.type
        lower = e.let(f"and {type} {bytes}, {splat('15', lanes, 'i8')}")
        values = [e.call(type, _LOOK_UP, [(type, _literal(np.tile(row, 2))), (type, lower)]) for row in self.rows]
        for bit in range(4, 8):
            # The sign of a byte selects: the bit is moved there, within words of 16 bits.
            wide = vector(lanes // 2, "i16")
            words = e.let(f"bitcast {type} {bytes} to {wide}")
            moved = e.let(f"shl {wide} {words}, {splat(str(7 - bit), lanes // 2, 'i16')}") if bit < 7 else words
            values = self._selected(e.let(f"bitcast {wide} {moved} to {type}"), values)
        (result,) = values
        return result
