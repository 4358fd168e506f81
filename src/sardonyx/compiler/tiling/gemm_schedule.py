"""A matrix product and its schedule: form, register tile, blocking of K and prefetch.

:mod:`.gemm` chooses the schedule. Packing, the kernel, fusion and ``explain`` read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import require, take_fields
from sardonyx.compiler.tiling.low_bits import multiplies_digits
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import BFLOAT16, FLOAT, FLOAT16, INT32, DType, is_float

Layout = Literal["packed", "rows", "columns", "unit", "strided"]
"""Storage of B: packed before the call, or in place.

In place: with contiguous rows of the accumulator's type (``rows``), contiguous along K as A is (``columns``), both
(``unit``), or neither.
"""

Form = Literal["tiles", "few_columns", "one_row", "low_bits", "matrix"]
"""Register tiles with B's columns in the lanes, or dot products with K in the lanes.

``low_bits``: tiles, of weights that stay in few bits; ``tiles`` of such weights means that they are expanded to floats
when the program is compiled. ``matrix``: tiles of the matrix unit.
"""

Prefetch = Literal["none", "panel", "stream", "steps"]
"""The target of the inner loop's prefetches.

``panel``: part of the next panel. ``stream``: later lines of a panel that is read once per call. ``steps``: later rows
of a B that is read in place.
"""

DOT_ROWS = 4
"""Rows whose dot products a kernel without tiles computes at once."""


@dataclass(frozen=True)
class GemmProblem:
    """A batch of matrix products, ``C[m, n] = sum over k of A[m, k] * B[k, n]``.

    Attributes:
        m: Rows of A.
        n: Columns of B; of gates the columns as packed, see :func:`gated_columns`.
        k: Columns of A; of small integers, groups of ``dot_width``.
        result: The element type of the result.
        b: The storage of B.
        b_dtype: The element type of B in memory.
        dot_width: Adjacent elements along K that one lane multiplies and adds in one instruction.
        gates: Gates that the epilogue combines unit by unit; 1 without gates.
        low_bits: The storage of weights of few bits; None for other operands.
    """

    m: Size
    n: Size
    k: Size
    result: DType
    b: Layout
    b_dtype: DType
    dot_width: int = 1
    gates: int = 1
    low_bits: LowBits | None = None

    def __str__(self) -> str:
        parts = [f"gemm m={self.m} n={self.n} k={self.k} {self.result.name.lower()} b={self.b}"]
        if self.b_dtype != self.result:
            parts.append(f"of {self.b_dtype.name.lower()}")
        if self.dot_width > 1:
            parts.append(f"dot_width={self.dot_width}")
        if self.gates > 1:
            parts.append(f"gates={self.gates}")
        if self.low_bits is not None:
            parts.append(f"of {self.low_bits}")
        return " ".join(parts)


@dataclass(frozen=True)
class Tile:
    """The block of a result that is computed in registers.

    Attributes:
        result: The element type of the sums.
        lanes: Elements of a vector.
        rows: Rows of a full tile.
        vectors: Vectors of columns.
        unroll: Steps of K that are written out in the inner loop of whole tiles.
        dot_width: Adjacent elements along K that a lane multiplies and adds in one instruction.
        chains: Independent partial sums of each sum, which take turns along K.
        saturates: True if sums of two byte products saturate at 16 bits on the target.
    """

    result: DType
    lanes: int
    rows: int
    vectors: int
    unroll: int
    dot_width: int = 1
    chains: int = 1
    saturates: bool = False

    @property
    def columns(self) -> int:
        """Columns of a tile and of a panel."""
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

    @property
    def registers(self) -> int:
        """Vector registers of the sums, a row of B and an element of A."""
        return self.rows * self.vectors * self.chains + self.vectors + 1


@dataclass(frozen=True)
class PackedLayout:
    """The order of packed weights: the part of a schedule on which packing depends.

    Attributes:
        result: The element type of the sums.
        lanes: Elements of a vector.
        columns: Columns of a panel; 0 for ``[N, K]``, without panels.
        gates: Gates whose columns alternate, a vector of each.
        dot_width: Adjacent elements along K in 32 bits.
        overflow_correction: True if a table of overflow corrections follows the panels.
    """

    result: DType
    lanes: int
    columns: int
    gates: int
    dot_width: int
    overflow_correction: bool

    def __str__(self) -> str:
        panels = f"panels of {self.columns} columns" if self.columns else "columns"
        return (
            f"{panels}, {self.lanes} lanes, {self.gates} gates, dot width {self.dot_width}"
            f"{', overflow correction' if self.overflow_correction else ''}, {self.result.name}"
        )


MATRIX_ROWS, MATRIX_VECTORS = 32, 2
"""Rows and vectors of columns of a block of the matrix unit."""

_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "form": str, "result": str, "lanes": int, "rows": int, "vectors": int, "unroll": int, "chains": int,
    "dot_width": int, "saturates": bool, "gates": int, "k_block": int, "tiles_per_item": int, "prefetch": str,
    "panel_tiles": int,
}  # fmt: skip


@dataclass(frozen=True)
class GemmSchedule:
    """The form, tile and blocking of the kernel of a matrix product.

    Attributes:
        form: The kernel's form.
        tile: The register tile; of dot products only lanes and types count.
        gates: Gates whose columns alternate in a tile; 1 if the epilogue gets plain columns.
        k_block: Steps of K that are done for all rows of a work item before the next block; 0 for all of K. Of
            ``low_bits``, 0 means that digits of inputs are multiplied, so that codes are not converted to floats.
        tiles_per_item: Register tiles of rows in a work item.
        prefetch: The target of the inner loop's prefetches.
        panel_tiles: Register tiles of columns in a panel of weights of few bits, which few rows multiply at once.
    """

    form: Form
    tile: Tile
    gates: int = 1
    k_block: int = 0
    tiles_per_item: int = costs.GEMM_TILES_PER_ITEM
    prefetch: Prefetch = "none"
    panel_tiles: int = 1

    def __str__(self) -> str:
        tile = self.tile
        if self.form == "matrix":
            return f"tiles of the matrix unit, {tile.rows}x{tile.columns}, {self.tiles_per_item} tiles per item"
        if not self.has_tiles:
            return f"{self.form}: dot products along K, {tile.lanes} lanes"
        parts = ["low_bits"] if self.form == "low_bits" else []
        parts += [f"tile {tile.rows}x{tile.vectors}x{tile.lanes}", f"unroll {tile.unroll}"]
        if tile.chains > 1:
            parts.append(f"{tile.chains} chains")
        if tile.dot_width > 1:
            parts.append(f"dot width {tile.dot_width}")
        if self.gates > 1:
            parts.append(f"{self.gates} gates")
        if self.panel_tiles > 1:
            parts.append(f"panels of {self.panel_tiles} tiles")
        if self.k_block:
            parts.append(f"K in blocks of {self.k_block}")
        parts.append(f"{self.tiles_per_item} tiles per item")
        if self.prefetch != "none":
            parts.append(f"prefetch {self.prefetch}")
        return ", ".join(parts)

    @property
    def has_tiles(self) -> bool:
        """True if B's columns are in the lanes of register tiles."""
        return self.form in ("tiles", "low_bits")

    @property
    def corrects_overflow(self) -> bool:
        """True if weights whose byte products saturate are multiplied again with a correction."""
        return self.tile.saturates and self.form == "tiles"

    @property
    def packed_layout(self) -> PackedLayout:
        """The order of packed weights."""
        tile = self.tile
        columns = tile.columns if self.has_tiles or self.form == "matrix" else 0
        return PackedLayout(tile.result, tile.lanes, columns, self.gates, tile.dot_width, self.corrects_overflow)

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        tile = self.tile
        return {
            "kind": "gemm", "form": self.form, "result": tile.result.name.lower(), "lanes": tile.lanes,
            "rows": tile.rows, "vectors": tile.vectors, "unroll": tile.unroll, "chains": tile.chains,
            "dot_width": tile.dot_width, "saturates": tile.saturates, "gates": self.gates, "k_block": self.k_block,
            "tiles_per_item": self.tiles_per_item, "prefetch": self.prefetch, "panel_tiles": self.panel_tiles,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GemmSchedule:
        """Return the schedule of :meth:`to_dict`.

        Raises:
            OptionError: A field is missing, unknown or of another type.
        """
        f = take_fields("gemm", data, _FIELDS)
        require(f["form"] in get_args(Form), f"expected form to be one of {get_args(Form)}, got {f['form']!r}.")
        require(f["prefetch"] in get_args(Prefetch), f"unknown prefetch {f['prefetch']!r}.")
        require(f["result"].upper() in DType.__members__, f"unknown element type {f['result']!r}.")
        sizes = f["lanes"], f["rows"], f["vectors"], f["unroll"], f["dot_width"], f["chains"]
        tile = Tile(DType.__members__[f["result"].upper()], *sizes, f["saturates"])
        return cls(f["form"], tile, f["gates"], f["k_block"], f["tiles_per_item"], f["prefetch"], f["panel_tiles"])

    def validate(self, problem: GemmProblem, target: Target) -> None:
        """Refuse a schedule that is impossible for the problem.

        Raises:
            OptionError: A field has a value that is impossible for the problem on the target.
        """
        tile, base = self.tile, default_tile(target, problem.result, problem.dot_width)
        for name in ("result", "lanes", "dot_width", "saturates"):
            value, fixed = getattr(tile, name), getattr(base, name)
            require(value == fixed, f"{name} is {fixed} for this problem on {target.name}, got {value}.")
        require(1 <= tile.rows <= 32 and 1 <= tile.vectors <= 16, "expected 1 to 32 rows and 1 to 16 vectors.")
        most = 4 * target.vector_registers
        sums = tile.rows * tile.vectors * tile.chains
        require(sums <= most, f"expected at most {most} vectors of sums on {target.name}, got {sums}.")
        require(tile.unroll in (1, 2, 4, 8), f"expected unroll to be 1, 2, 4 or 8, got {tile.unroll}.")
        require(tile.chains in (1, 2, 4, 8), f"expected chains to be 1, 2, 4 or 8, got {tile.chains}.")
        require(tile.chains <= tile.unroll, f"expected at most {tile.unroll} chains (unroll), got {tile.chains}.")
        require(tile.chains == 1 or is_float(tile.result), "sums of integers have one chain.")
        require(1 <= self.tiles_per_item <= 64, f"expected 1 to 64 tiles per item, got {self.tiles_per_item}.")
        require(self.gates in (1, problem.gates), f"expected 1 or {problem.gates} gates, got {self.gates}.")
        require(tile.vectors % self.gates == 0, f"expected vectors to be a multiple of {self.gates} gates.")
        require(1 <= self.panel_tiles <= 16, f"expected 1 to 16 tiles of a panel, got {self.panel_tiles}.")
        require(self.panel_tiles == 1 or self.form == "low_bits", f"{self.form} has panels of one tile.")
        require(self.k_block >= 0, f"expected k_block to be at least 0, got {self.k_block}.")
        packed = problem.b == "packed"
        if self.k_block and self.form == "tiles":
            require(packed and isinstance(problem.k, int), "K is blocked only for packed weights and a known K.")
            require(self.k_block % tile.unroll == 0, "expected k_block to be a multiple of unroll.")
        if self.form == "low_bits":
            low = problem.low_bits
            require(low is not None, "low_bits takes weights of few bits.")
            assert low is not None
            by_digits = multiplies_digits(target)
            require(by_digits == (self.k_block == 0), f"expected k_block {'0' if by_digits else 'above 0'}.")
            require(self.k_block % low.block == 0, f"expected k_block in blocks of {low.block}.")
            require(tile.chains == 1, "low_bits takes one chain.")
        if self.form == "few_columns":
            n = problem.n
            require(problem.b != "rows" and problem.b != "strided", "B is not contiguous along K.")
            require(isinstance(n, int) and 0 < n <= tile.lanes, f"few_columns takes 1 to {tile.lanes} columns.")
            require(problem.gates == 1, "few_columns takes no gates.")
            corrected = tile.saturates and not is_narrow(tile, n)
            require(not corrected, "few_columns has no overflow correction, which the weights may need.")
        if self.form == "matrix":
            reason = refuse_matrix(problem, target)
            require(reason is None, f"matrix: {reason}.")
            fits = (tile.rows, tile.vectors) == (MATRIX_ROWS, MATRIX_VECTORS) and self.k_block == 0
            require(fits, f"matrix takes {MATRIX_ROWS} rows, {MATRIX_VECTORS} vectors and no blocks of K.")
        if self.form == "one_row":
            require(problem.m == 1 and problem.b in ("columns", "unit"), "one_row takes one row and a B along K.")
        require(self.prefetch in ("none", "steps") or packed, f"prefetch {self.prefetch} takes packed weights.")
        require(self.prefetch != "steps" or not packed, "prefetch steps takes a B in place.")


def accumulator(result: DType) -> DType:
    """Return the element type of the sums of a product: float32 for 16-bit floating-point numbers."""
    return FLOAT if result in (FLOAT16, BFLOAT16) else result


def gated_columns(target: Target, result: DType, gates: int, units: int) -> int:
    """Return the columns of packed weights of gates: the units of each gate fill whole vectors."""
    lanes = target.lanes(BITS[load_store.register_type(result)])
    return -(-units // lanes) * lanes * gates


def default_tile(target: Target, result: DType, dot_width: int = 1) -> Tile:
    """Return the tile for many rows and columns.

    The tile has as many sums as leave registers for a row of B and elements of A.
    """
    result = accumulator(result)
    lanes = target.lanes(BITS[load_store.register_type(result)])
    vectors = 2 if target.vector_registers < 32 else 4
    # With four steps on NEON LLVM loads more of A ahead than there are registers for.
    unroll = 2 if target.name == "neon" else 4
    return Tile(result, lanes, 6, vectors, unroll, dot_width, saturates=dot_width == 4 and target.saturates)


def is_narrow(tile: Tile, n: Size) -> bool:
    """Return True if so few columns are known to exist that dot products along K are faster than tiles."""
    return isinstance(n, int) and 0 < n <= tile.lanes // 4


def refuse_matrix(problem: GemmProblem, target: Target) -> str | None:
    """Return why the matrix unit cannot compute a product; None if it can."""
    if not target.has_tiles:
        return "the processor has no matrix unit"
    kind = accumulator(problem.result), problem.dot_width
    if kind not in ((INT32, 4), (FLOAT, 2)) or problem.b != "packed" or problem.gates > 1:
        return "it takes products of bytes or bfloat16 by packed weights"
    if not isinstance(problem.k, int) or problem.k == 0 or not isinstance(problem.n, int):
        return "it takes a known number of columns and terms"
    return None
