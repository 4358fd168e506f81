"""The register tile of a matrix product: a few rows by a few vectors of columns, all of it in registers over all of K.

The sums of one element are taken in the order of K whatever the tile, so that results do not depend on how the work is
cut. Finished tiles go through a small buffer on the stack: what is fused behind is then written once in the code, in a
loop over rows and vectors, and not once a register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sardonyx.compiler.emitter import Emitter, vector
from sardonyx.compiler.target import Target
from sardonyx.core.types import DType, is_float

UNROLL = 4
"""Steps of K that are written out in the inner loop."""

_REGISTERS = {
    DType.FLOAT: ("float", 32),
    DType.FLOAT16: ("float", 32),
    DType.BFLOAT16: ("float", 32),
    DType.DOUBLE: ("double", 64),
    **dict.fromkeys((DType.INT32, DType.UINT32), ("i32", 32)),
    **dict.fromkeys((DType.INT64, DType.UINT64), ("i64", 64)),
}


@dataclass(frozen=True)
class Tile:
    """How much of a result is held in registers at once.

    Attributes:
        element: LLVM's type of the sums.
        bits: Bits of an element.
        lanes: Elements of a vector.
        rows: Rows of a full tile.
        vectors: Vectors of columns.
        fused: Whether a product is added without rounding in between.
    """

    element: str
    bits: int
    lanes: int
    rows: int
    vectors: int
    fused: bool

    @property
    def columns(self) -> int:
        """Columns of a tile, which are those of a panel."""
        return self.lanes * self.vectors

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.bits // 8

    @property
    def type(self) -> str:
        """LLVM's type of a vector of sums."""
        return vector(self.lanes, self.element)

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The row counts that code is written for, descending; others take the next larger one."""
        return (self.rows, *(count for count in (4, 2, 1) if count < self.rows))


def tile_for(target: Target, result: DType) -> Tile:
    """The tile for sums of an element type: as many sums as leave registers for a row of B and an element of A."""
    element, bits = _REGISTERS[result]
    rows, vectors = 6, 2 if target.vector_registers < 32 else 4
    fused = is_float(result) and ("+fma" in target.features or target.name == "neon")
    return Tile(element, bits, target.lanes(bits), rows, vectors, fused)


def multiply_add(e: Emitter, tile: Tile, a: str, b: str, c: str) -> str:
    """``a * b + c`` of vectors: rounded once where the target can, modulo 2**bits for integers."""
    if tile.fused:
        return e.fma(tile.type, a, b, c)
    kind = "" if tile.element.startswith("i") else "f"
    return e.let(f"{kind}add {tile.type} {e.let(f'{kind}mul {tile.type} {a}, {b}')}, {c}")


def accumulate(
    e: Emitter,
    tile: Tile,
    rows: int,
    depth: str | int,
    load_a: Callable[[int, str | int], str],
    load_b: Callable[[str | int], Sequence[str]],
) -> list[list[str]]:
    """Write the loop over K; returns the sums, by row and vector of columns.

    Args:
        e: Writes the kernel.
        tile: The tile.
        rows: Rows of it that are computed.
        depth: K.
        load_a: Gives the element of A at a row of the tile and a place along K, in every lane.
        load_b: Gives the vectors of B at a place along K.
    """
    sums = [[e.variable(tile.type, "zeroinitializer") for _ in range(tile.vectors)] for _ in range(rows)]

    def step(place: str | int) -> None:
        columns = load_b(place)
        for row, line in enumerate(sums):
            element = load_a(row, place)
            for each, column in zip(line, columns, strict=True):
                each.set(multiply_add(e, tile, element, column, each.get()))

    whole = e.mul(e.div(depth, UNROLL), UNROLL)
    with e.loop(0, whole, UNROLL) as place:
        for offset in range(UNROLL):
            step(e.add(place, offset))
    with e.loop(whole, depth) as place:
        step(place)
    return [[each.get() for each in line] for line in sums]
