"""Lookups of bytes in a table of 256 bytes.

AVX2 has a lookup in 16 bytes: each of the table's 16 rows is looked up by the lower half of a byte, and a tree of
selections by the bits of the upper half gives the result. Without AVX2, and for the last bytes, lookups are loads.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.llvm.ir_builder import Emitter, splat, vector
from sardonyx.compiler.target.description import Target

_LANES = 32
_TYPE = vector(_LANES, "i8")
_LOOK_UP = "llvm.x86.avx2.pshuf.b"


def _literal(bytes: np.ndarray) -> str:
    return f"<{', '.join(f'i8 {int(byte)}' for byte in bytes.view(np.int8))}>"


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
        self.loads = e.array("i8", 256)
        for number, row in enumerate(self.rows):
            e.store(vector(16, "i8"), _literal(row), e.address(self.loads, "i8", 16 * number), 16)

    def replace(self, source: str, target: str, length: str | int) -> None:
        """Emit the lookups of adjacent bytes.

        Args:
            source: Address of the bytes.
            target: Address of the results; may be the source.
            length: Number of bytes.
        """
        e = self.e
        whole: str | int = 0
        if self.has_vectors:
            whole = e.mul(e.div(length, _LANES), _LANES)
            with e.loop(0, whole, _LANES) as offset:
                bytes = e.load(_TYPE, e.address(source, "i8", offset), 1)
                e.store(_TYPE, self.vector(bytes), e.address(target, "i8", offset), 1)
        with e.loop(whole, length) as offset:
            byte = e.load("i8", e.address(source, "i8", offset), 1)
            at = e.let(f"zext i8 {byte} to i64")
            e.store("i8", e.load("i8", e.address(self.loads, "i8", at), 1), e.address(target, "i8", offset), 1)

    def vector(self, bytes: str) -> str:
        """Return the table's bytes for a vector of 32 bytes."""
        e = self.e
        lower = e.let(f"and {_TYPE} {bytes}, {splat('15', _LANES, 'i8')}")
        values = [e.call(_TYPE, _LOOK_UP, [(_TYPE, _literal(np.tile(row, 2))), (_TYPE, lower)]) for row in self.rows]
        for bit in range(4, 8):
            # The sign of a byte selects: the bit is moved there, within words of 16 bits.
            wide = vector(_LANES // 2, "i16")
            words = e.let(f"bitcast {_TYPE} {bytes} to {wide}")
            moved = e.let(f"shl {wide} {words}, {splat(str(7 - bit), _LANES // 2, 'i16')}") if bit < 7 else words
            signs = e.let(f"bitcast {wide} {moved} to {_TYPE}")
            mask = e.let(f"icmp slt {_TYPE} {signs}, zeroinitializer")
            values = [
                e.let(f"select {vector(_LANES, 'i1')} {mask}, {_TYPE} {second}, {_TYPE} {first}")
                for first, second in zip(values[::2], values[1::2], strict=True)
            ]
        (result,) = values
        return result
