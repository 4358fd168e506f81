"""The register tile of a matrix product: how many rows, vectors of columns and chains of sums, by sizes and target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import BFLOAT16, FLOAT, FLOAT16, DType, is_float


@dataclass(frozen=True)
class Tile:
    """How much of a result is held in registers at once.

    Attributes:
        result: The element type of the sums.
        lanes: Elements of a vector.
        rows: Rows of a full tile.
        vectors: Vectors of columns.
        unroll: Steps of K that are written out in the inner loop of whole tiles.
        together: Products of small integers that are added up within a lane: so many along K are one of 32 bits.
        chains: Parts of each sum that are taken in turns along K and do not wait for each other.
        saturates: Whether products of bytes may have sums that are no numbers of 16 bits, and must not.
    """

    result: DType
    lanes: int
    rows: int
    vectors: int
    unroll: int
    together: int = 1
    chains: int = 1
    saturates: bool = False

    @property
    def columns(self) -> int:
        """Columns of a tile, which are those of a panel."""
        return self.lanes * self.vectors

    @property
    def element(self) -> str:
        """LLVM's type of a sum."""
        return load_store.register_type(self.result)

    @property
    def bytes(self) -> int:
        """Bytes of a sum."""
        return BITS[self.element] // 8

    @property
    def type(self) -> str:
        """LLVM's type of a vector of sums."""
        return vector(self.lanes, self.element)


def tile_for(target: Target, result: DType, n: Size | None = None, together: int = 1, m: Size | None = None) -> Tile:
    """The tile for products of so many columns: as many sums as leave registers for a row of B and elements of A.

    Args:
        target: What the kernel is for.
        result: The element type of the sums; those of 16-bit floating-point numbers are taken in float32.
        n: Columns of the product; where it is known that they are few, the tile is narrow and has more rows.
        together: Products of small integers that are added up within a lane.
        m: Rows of the product, where B is packed beforehand; where it is known that they are few, the tile has all of
            them, if that saves reading B again.
    """
    if result in (FLOAT16, BFLOAT16):
        result = FLOAT
    lanes = target.lanes(BITS[load_store.register_type(result)])
    rows, vectors = 6, 2 if target.vector_registers < 32 else 4
    if isinstance(n, int) and n <= lanes * (vectors - 1):
        rows, vectors = 8, max(1, -(-n // lanes))
    elif isinstance(m, int) and isinstance(n, int) and target.vector_bits == 512 and is_float(result):
        rows, vectors = _of_few_rows(m, rows, vectors)
    saturates = together == 4 and target.saturates
    # With four steps on NEON LLVM loads more of A ahead than there are registers for.
    tile = Tile(result, lanes, rows, vectors, 2 if target.name == "neon" else 4, together, saturates=saturates)
    return _in_chains(tile, m) if is_float(result) else tile


_IN_FLIGHT = 8
"""Multiply-adds that a core works on at a time: two begin with each cycle, and take four."""


def _in_chains(tile: Tile, m: Size | None) -> Tile:
    """The tile with chains, where it has so few sums that each multiply-add would wait for the one before."""
    if not isinstance(m, int) or m == 0:
        return tile
    chains = 1
    while min(m, tile.rows) * tile.vectors * chains < _IN_FLIGHT and chains < tile.unroll:
        chains *= 2
    return replace(tile, chains=chains)


def wide_tile(target: Target, result: DType, m: Size, n: Size) -> Tile:
    """The tile for products with a matrix that is read where it lies, a step of K after the other.

    Each step is a line of memory of its own, on a page of its own: of one or two rows of the other operand the tile has
    all, and more columns, as many as leave the fewest for a last panel.
    """
    tile = tile_for(target, result)
    if not (isinstance(m, int) and isinstance(n, int) and m in (1, 2)):
        return tile
    most = _IN_FLIGHT // m
    vectors = min(range(most, most // 2, -1), key=lambda count: n % (count * tile.lanes))
    return replace(tile, rows=m, vectors=vectors) if n >= 2 * most * tile.lanes else tile


WAIT = 5
"""Multiply-adds that a vector of B takes as long as to come from the second-level cache."""


def _of_few_rows(m: int, rows: int, vectors: int) -> tuple[int, int]:
    """Rows and vectors of a tile, of 32 registers that are cache lines.

    A vector of B takes the second-level cache longer than a few multiply-adds take the core: with few rows B decides.
    """
    most = {4: 6, 3: 9, 2: 14}
    if not most[4] < m <= 2 * most[2]:
        return rows, vectors
    vectors = min(most, key=lambda count: (-(-m // most[count]), -count))
    return -(-m // -(-m // most[vectors])), vectors


_GATED_ROWS = {False: {2: 6, 3: 4, 4: 2}, True: {2: 14, 3: 9, 4: 6}}
"""Rows of a tile of so many vectors, with 16 registers and with 32: sums, a row of B and an element of A."""


def gated_tile(target: Target, result: DType, gates: int, m: Size) -> Tile:
    """The tile for products of so many gates, of so many rows: it holds all gates of a unit."""
    plain, most = tile_for(target, result), _GATED_ROWS[target.vector_registers >= 32]
    vectors = gates * max(1, plain.vectors // gates)
    if not isinstance(m, int) or m == 0:
        return replace(plain, rows=most[vectors], vectors=vectors)
    if target.vector_bits == 512:
        fitting = [count for count in most if count % gates == 0]
        vectors = min((_time(m, most[count]), -count, count) for count in fitting)[-1]
    return _in_chains(replace(plain, rows=-(-m // -(-m // most[vectors])), vectors=vectors), m)


def _time(m: int, most: int) -> int:
    """Multiply-adds that a vector of columns takes, by tiles of at most so many rows, or waits for."""
    passes = -(-m // most)
    return passes * max(-(-m // passes), WAIT)


_LEFT_AND_TAKEN = 4
"""Instructions by which a vector of sums goes to memory and comes back."""


def holds_gates(target: Target, result: DType, gates: int, m: Size, k: int) -> bool:
    """Whether a kernel with all gates of a unit takes no longer than others do, see :func:`_of_few_rows`.

    The others leave their sums in memory, from where what follows reads them.
    """
    if target.vector_registers < 32:
        # A tile of more than two gates has few rows: where they are not all of them, plain tiles read B less often.
        return gates <= 2 or (isinstance(m, int) and 0 < m <= _GATED_ROWS[False][gates])
    if target.vector_bits < 512 or not isinstance(m, int) or m == 0:
        return True
    tile = gated_tile(target, result, gates, m)
    passes = -(-m // tile.rows)
    kept = 4 * k * tile.columns * tile.bytes <= 3 * target.l1
    time = max(tile.rows, WAIT) + (passes - 1) * tile.rows if kept else passes * max(tile.rows, WAIT)
    return 10 * k * time <= 11 * (k * _time(m, _of_few_rows(m, 6, 4)[0]) + _LEFT_AND_TAKEN * m)


def is_narrow(tile: Tile, n: Size) -> bool:
    """Whether so few columns are known to be that dot products are better than tiles."""
    return isinstance(n, int) and 0 < n <= tile.lanes // 4
