"""Instructions of the matrix unit (AMX): products of tiles of 16 rows of 64 bytes, added to tiles of 16 by 16 sums.

Eight tile registers form one block: four tiles of sums, two of the first operand and two of weights. A step multiplies
16 rows of 64 adjacent bytes by weights of 64 by 16, stored as ``[64 / 4][columns][4]``, or 16 rows of 32 adjacent
bfloat16 by weights of 32 by 16, stored as ``[32 / 2][columns][2]``. Denormal numbers count as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sardonyx.compiler.llvm.ir_builder import Emitter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWS = 16
"""Rows of a tile."""

DEPTH = 64
"""Bytes of a row of the first operand that a step multiplies."""

WORDS = DEPTH // 4
"""Words of 32 bits of a row of the first operand that a step multiplies."""

COLUMNS = 16
"""Columns of a tile of sums."""

_FIRST, _WEIGHTS = 4, 6
"""Numbers of the registers of the first operand and of the weights; the sums come before."""


class MatrixUnit:
    """Emitter of tile instructions for a block of up to 2 by 2 tiles of sums.

    Args:
        e: Emitter of the function.
        is_bfloat16: True for bfloat16 and sums of float32; otherwise bytes and sums of 32-bit integers.
    """

    def __init__(self, e: Emitter, *, is_bfloat16: bool = False) -> None:
        self._e = e
        self._instruction = "llvm.x86.tdpbf16ps" if is_bfloat16 else "llvm.x86.tdpbusd"
        self._configuration = ""

    @contextmanager
    def configured(self) -> Iterator[None]:
        """Configure tiles of all rows before the enclosed code, and release the tiles after it."""
        e = self._e
        name = "@tiles"
        e.globals[name] = (
            f"{name} = internal constant [64 x i8] [{', '.join(f'i8 {b}' for b in _bytes([ROWS] * 8))}], align 64"
        )
        self._configure(name)
        yield
        e.call("void", "llvm.x86.tilerelease", [])

    def configure_rows(self, rows: Sequence[str | int]) -> None:
        """Configure the rows of the two tiles of the first operand, 1 to 16 each; sums become undefined."""
        e = self._e
        if not self._configuration:
            self._configuration = e.array("i8", 64)
        numbers = ", ".join(f"i8 {b}" for b in _bytes([ROWS] * 8))
        e.store("<64 x i8>", f"<{numbers}>", self._configuration, 64)
        for half, count in enumerate(rows):
            value = e.let(f"trunc i64 {count} to i8")
            for register in (2 * half, 2 * half + 1, _FIRST + half):
                e.store("i8", value, e.address(self._configuration, "i8", 48 + register), 1)
        self._configure(self._configuration)

    def configure_whole(self) -> None:
        """Configure tiles of all rows again; sums become undefined."""
        self._configure("@tiles")

    def clear(self, rows: int, columns: int) -> None:
        """Set the sums of a block of so many tiles to zero."""
        for i in range(rows):
            for j in range(columns):
                self._e.call("void", "llvm.x86.tilezero", [("i8", str(2 * i + j))])

    def step(self, first: Sequence[str], pitch: str | int, weights: Sequence[str], row_bytes: int) -> None:
        """Multiply and add a step of K.

        Args:
            first: Addresses of the tiles of the first operand; integers are unsigned.
            pitch: Bytes from row to row of the first operand.
            weights: Addresses of the tiles of weights; integers are signed.
            row_bytes: Bytes from row to row of the weights.
        """
        for i, address in enumerate(first):
            self._load(_FIRST + i, address, pitch)
        for j, address in enumerate(weights):
            self._load(_WEIGHTS + j, address, row_bytes)
        for i in range(len(first)):
            for j in range(len(weights)):
                numbers = (2 * i + j, _FIRST + i, _WEIGHTS + j)
                self._e.call("void", self._instruction, [("i8", str(number)) for number in numbers])

    def store(self, i: int, j: int, address: str, pitch: int) -> None:
        """Store a tile of sums, rows at a distance of ``pitch`` bytes."""
        operands = [("i8", str(2 * i + j)), ("ptr", address), ("i64", str(pitch))]
        self._e.call("void", "llvm.x86.tilestored64", operands)

    def _load(self, register: int, address: str, pitch: str | int) -> None:
        operands = [("i8", str(register)), ("ptr", address), ("i64", str(pitch))]
        self._e.call("void", "llvm.x86.tileloadd64", operands)

    def _configure(self, pointer: str) -> None:
        self._e.call("void", "llvm.x86.ldtilecfg", [("ptr", pointer)])


def _bytes(rows: Sequence[int]) -> list[int]:
    """Return a configuration: palette 1, the bytes of a row of each tile as 16 bits, the rows of each tile."""
    sizes = [byte for _ in rows for byte in (DEPTH, 0)]
    return [1, *[0] * 15, *sizes, *[0] * (32 - len(sizes)), *rows, *[0] * (16 - len(rows))]
