"""The schedule of a matrix product: form, register tile, blocking of K and prefetch.

:func:`choose_gemm` chooses once. Packing, the kernel, fusion and ``explain`` read the chosen :class:`GemmSchedule`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override, require, take_fields
from sardonyx.compiler.tiling.low_bits import FEW_ROWS, chunk, panel_tiles_of, stays_low
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import BFLOAT16, FLOAT, FLOAT16, INT32, DType, is_float, numpy_dtype

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
        k_block: Steps of K that are done for all rows of a work item before the next block; 0 for all of K.
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
            require(self.k_block > 0 and self.k_block % low.block == 0, f"expected k_block in blocks of {low.block}.")
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


def choose_gemm(problem: GemmProblem, target: Target) -> Choice[GemmSchedule]:
    """Choose the schedule of a matrix product.

    With gates, a schedule of one gate means that a separate kernel computes the product.

    Raises:
        OptionError: The user's schedule for the problem is invalid.
    """
    return apply_override(_choose(problem, target), target)


def clear_cache() -> None:
    """Forget all choices, after a change of constants in :mod:`sardonyx.compiler.tiling.costs`."""
    _choose.cache_clear()


@functools.lru_cache(maxsize=4096)
def _choose(problem: GemmProblem, target: Target) -> Choice[GemmSchedule]:
    return _choose_gated(problem, target) if problem.gates > 1 else _choose_plain(problem, target)


# Tiles.


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


def _narrow_tile(tile: Tile, n: Size) -> Tile | None:
    """The tile with fewer vectors and more rows; None if the columns fill the default tile, or are open."""
    if not (isinstance(n, int) and n <= tile.lanes * (tile.vectors - 1)):
        return None
    return replace(tile, rows=8, vectors=max(1, -(-n // tile.lanes)))


_MOST_ROWS = {4: 6, 3: 9, 2: 14}
"""Rows of a tile of so many vectors with 32 registers: sums, a row of B and an element of A."""

_GATED_ROWS = {False: {2: 6, 3: 4, 4: 2}, True: {2: 14, 3: 9, 4: 6}}
"""Rows of a gated tile of so many vectors, with 16 registers and with 32."""


def _has_few_rows(m: Size) -> bool:
    """Return True if a tile of fewer vectors and all rows reads B less often than the default one."""
    return isinstance(m, int) and _MOST_ROWS[4] < m <= 2 * _MOST_ROWS[2]


def _fit_rows(m: int, most: int) -> int:
    """Return the rows of a tile if all passes over B have as many."""
    return -(-m // -(-m // most))


def _few_row_vectors(m: int) -> int:
    """Return the vectors of the tile with the fewest passes over B: the passes decide, not the FMAs."""
    return min(_MOST_ROWS, key=lambda vectors: (-(-m // _MOST_ROWS[vectors]), -vectors))


def _add_chains(tile: Tile, m: Size) -> Tile:
    """Return the tile with several chains if each FMA would otherwise wait for the one before."""
    if not is_float(tile.result) or not isinstance(m, int) or m == 0:
        return tile
    chains = 1
    while min(m, tile.rows) * tile.vectors * chains < costs.FMAS_IN_FLIGHT and chains < tile.unroll:
        chains *= 2
    return replace(tile, chains=chains)


# Costs.


def _step_fmas(m: int, tile: Tile) -> int:
    """Vector FMAs per step of K and vector of columns: each pass multiplies its rows, or waits for B."""
    passes = -(-m // tile.rows)
    return passes * max(-(-m // passes), costs.L2_LOAD_FMAS)


def estimate_cost(problem: GemmProblem, schedule: GemmSchedule) -> float | None:
    """Return the estimated vector FMAs per step of K, for all rows and columns; None if sizes are open."""
    m, n, tile = problem.m, problem.n, schedule.tile
    if not (isinstance(m, int) and isinstance(n, int) and m and n):
        return None
    if schedule.form == "matrix":
        return m * n / (tile.lanes * MATRIX_SPEED)
    if not schedule.has_tiles:
        return m * n / tile.lanes
    sums = min(m, tile.rows) * tile.vectors * tile.chains
    latency = max(1.0, costs.FMAS_IN_FLIGHT / sums)
    return -(-n // tile.columns) * tile.vectors * _step_fmas(m, tile) * latency


# Choices.


class _Candidates:
    """Collects the alternatives of one problem, each once."""

    def __init__(self, problem: GemmProblem, target: Target, schedule: GemmSchedule) -> None:
        self.problem, self.target, self.schedule = problem, target, schedule
        self.rejected: dict[GemmSchedule, str] = {}

    def reject(self, tile: Tile | None, reason: str, form: Form = "tiles", gates: int = 1) -> None:
        """Add an alternative, unless the schedule is the chosen one."""
        if tile is None:
            return
        schedule = _complete(self.problem, self.target, form, tile, gates)
        if schedule != self.schedule:
            self.rejected.setdefault(schedule, reason)

    def choice(self, reason: str) -> Choice[GemmSchedule]:
        """Return the choice."""
        candidates = tuple(
            Candidate(schedule, why, estimate_cost(self.problem, schedule)) for schedule, why in self.rejected.items()
        )
        cost = estimate_cost(self.problem, self.schedule)
        return Choice(self.problem, self.schedule, reason, cost, candidates)


def bfloat16_width(m: Size, n: Size, k: Size, target: Target) -> int:
    """Return the adjacent numbers of a product of packed bfloat16 that an instruction adds in a lane: 2 or 1.

    With 1 the numbers are converted to float32 when loaded: many rows of pairs are slower.
    """
    if not target.multiplies_bfloat16 or not isinstance(k, int) or k % 2:
        return 1
    if isinstance(m, int) and m <= costs.BFLOAT16_PAIR_ROWS:
        return 2
    return 2 if _suits_matrix(GemmProblem(m, n, k // 2, BFLOAT16, "packed", FLOAT, 2), target) else 1


def _choose_low_bits(problem: GemmProblem, low: LowBits, target: Target) -> Choice[GemmSchedule]:
    """Choose between weights that stay in few bits and weights that are expanded to floats."""
    base = default_tile(target, problem.result)
    m, n, k = problem.m, problem.n, problem.k
    assert isinstance(n, int)
    assert isinstance(k, int)
    tile = base
    panel_tiles = panel_tiles_of(low, n, tile.vectors, tile.lanes, target)
    if isinstance(m, int) and m > FEW_ROWS:
        tile, panel_tiles = replace(base, rows=_fit_rows(m, base.rows)), 1
    schedule = GemmSchedule(
        "low_bits", tile, 1, chunk(low, tile.columns, target), costs.LOW_BIT_TILES_PER_ITEM, "none", panel_tiles
    )
    expanded = _choose_plain(replace(problem, low_bits=None), target)
    if stays_low(k, n, target):
        candidates = _Candidates(problem, target, schedule)
        candidates.rejected[expanded.schedule] = "weights as floats would take more memory and bandwidth"
        return candidates.choice("weights stay in few bits")
    candidates = _Candidates(problem, target, expanded.schedule)
    candidates.rejected[schedule] = "weights as floats take a small share of L2"
    return candidates.choice(f"expanded weights, {expanded.reason}")


MATRIX_ROWS, MATRIX_VECTORS = 32, 2
"""Rows and vectors of columns of a block of the matrix unit."""

MATRIX_SPEED = 8
"""Products of the matrix unit in the time of those of a vector; Sapphire Rapids, tdpbusd beside vpdpbusd."""

FEWEST_MATRIX_ROWS = 4
"""Fewest known rows for which the matrix unit is used. Fewer rows wait for weights from memory in any form."""


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


def _suits_matrix(problem: GemmProblem, target: Target) -> bool:
    """Return True if the matrix unit computes a product, and enough of each tile is used."""
    if refuse_matrix(problem, target) is not None:
        return False
    assert isinstance(problem.k, int)
    assert isinstance(problem.n, int)
    few = isinstance(problem.m, int) and problem.m < FEWEST_MATRIX_ROWS
    return not few and problem.k >= 8 and problem.n >= 8


def _choose_plain(problem: GemmProblem, target: Target) -> Choice[GemmSchedule]:
    if problem.low_bits is not None:
        return _choose_low_bits(problem, problem.low_bits, target)
    base = default_tile(target, problem.result, problem.dot_width)
    if _suits_matrix(problem, target):
        tile = replace(base, rows=MATRIX_ROWS, vectors=MATRIX_VECTORS)
        chosen = GemmSchedule("matrix", tile, tiles_per_item=costs.GEMM_TILES_PER_ITEM)
        candidates = _Candidates(problem, target, chosen)
        candidates.reject(base, "the matrix unit multiplies faster")
        return candidates.choice("tiles of the matrix unit")
    along_k = problem.b in ("columns", "unit")
    narrow = _narrow_tile(base, problem.n)
    m, n = problem.m, problem.n
    packed = problem.b == "packed"
    many = packed and narrow is None and isinstance(n, int) and target.vector_bits == 512 and is_float(base.result)
    few_rows = many and _has_few_rows(m)
    tile, reason = narrow or base, "few columns" if narrow else "the default tile"
    if few_rows:
        assert isinstance(m, int)
        vectors = _few_row_vectors(m)
        tile, reason = replace(base, rows=_fit_rows(m, _MOST_ROWS[vectors]), vectors=vectors), "fewest passes over B"
    if packed:
        tile = _add_chains(tile, m)
    form: Form = "tiles"
    if is_narrow(tile, n) and (along_k or packed):
        form, reason = "few_columns", f"at most {tile.lanes // 4} columns"
    elif problem.m == 1 and along_k:
        form, reason = "one_row", "one row, and B is contiguous along K"
    elif problem.b in ("rows", "unit"):
        tile, reason = _in_place_tile(target, problem)
    schedule = _complete(problem, target, form, tile)
    candidates = _Candidates(problem, target, schedule)
    if form != "tiles":
        candidates.reject(
            tile, "most lanes of a tile would be idle" if form == "few_columns" else "B would be transposed"
        )
        return candidates.choice(reason)
    if isinstance(n, int) and 0 < n <= base.lanes and (along_k or packed):
        candidates.reject(tile, f"more than {base.lanes // 4} columns", "few_columns")
    if few_rows:
        assert isinstance(m, int)
        for vectors, most in _MOST_ROWS.items():
            rows = _fit_rows(m, most)
            candidates.reject(
                _add_chains(replace(base, rows=rows, vectors=vectors), m),
                f"{-(-m // rows)} passes over B" if -(-m // rows) > -(-m // tile.rows) else "more panels",
            )
    candidates.reject(base if narrow else None, "lanes past the last column would be idle")
    if problem.b in ("rows", "unit") and isinstance(m, int) and m in (1, 2) and isinstance(n, int):
        most = costs.FMAS_IN_FLIGHT // m
        for vectors in range(most, most // 2, -1):
            candidates.reject(
                replace(base, rows=m, vectors=vectors),
                f"{n % (vectors * base.lanes)} columns in the last panel" if tile.rows == m else "too few columns",
            )
        candidates.reject(base, "each step of K would read few lines of a page")
    if tile.chains > 1:
        assert isinstance(m, int)
        sums = min(m, tile.rows) * tile.vectors
        candidates.reject(replace(tile, chains=1), f"{sums} sums: each FMA would wait for the one before")
    return candidates.choice(reason)


def _in_place_tile(target: Target, problem: GemmProblem) -> tuple[Tile, str]:
    """The tile for a B that is read in place, a step of K after the other, and the reason.

    Each step is a line of memory on a page of its own: with one or two rows of A the tile has all rows, and more
    columns, as many as leave the fewest for a last panel.
    """
    m, n, tile = problem.m, problem.n, default_tile(target, problem.result)
    reason = "the default tile"
    if not (isinstance(m, int) and isinstance(n, int) and m in (1, 2)):
        return tile, reason
    most = costs.FMAS_IN_FLIGHT // m
    vectors = min(range(most, most // 2, -1), key=lambda count: n % (count * tile.lanes))
    if n < 2 * most * tile.lanes:
        return tile, reason
    return replace(tile, rows=m, vectors=vectors), "few rows of A, B in place: widest tile with the smallest last panel"


def _choose_gated(problem: GemmProblem, target: Target) -> Choice[GemmSchedule]:
    """Choose between one kernel with all gates of a unit and a separate product.

    The sums of a separate product go through memory.
    """
    plain, m, gates = default_tile(target, problem.result), problem.m, problem.gates
    most = _GATED_ROWS[target.vector_registers >= 32]
    known = isinstance(m, int) and m > 0
    tiles: list[Tile] = []
    vectors = gates * max(1, plain.vectors // gates)
    if not known:
        tiles = [replace(plain, rows=most[vectors], vectors=vectors)]
    else:
        assert isinstance(m, int)
        counts = [vectors]
        if target.vector_bits == 512:
            counts = sorted(
                (count for count in most if count % gates == 0),
                key=lambda count: (_step_fmas(m, replace(plain, rows=most[count])), -count),
            )
        tiles = [_add_chains(replace(plain, rows=_fit_rows(m, most[count]), vectors=count), m) for count in counts]
    fused = _complete(problem, target, "tiles", tiles[0], gates)
    separate_problem = replace(problem, gates=1)
    separate = _choose_plain(separate_problem, target).schedule
    refusal = _refuse_gates(problem, target, tiles[0])
    candidates = _Candidates(problem, target, separate if refusal else fused)
    for tile in tiles:
        candidates.reject(tile, refusal or "slower for these rows", gates=gates)
    if refusal is None and separate != candidates.schedule:
        candidates.rejected.setdefault(separate, "sums would go through memory")
    return candidates.choice("a separate product is faster" if refusal else "all gates of a unit in one tile")


def _refuse_gates(problem: GemmProblem, target: Target, tile: Tile) -> str | None:
    """Return the reason why a kernel with all gates is slower than a separate product; None if not.

    The separate product stores the sums, and another kernel loads them.
    """
    m, k, gates = problem.m, problem.k, problem.gates
    assert isinstance(k, int)
    if target.vector_registers < 32:
        # A tile of more than two gates has few rows: unless they are all rows, plain tiles read B less often.
        if gates <= 2 or (isinstance(m, int) and 0 < m <= _GATED_ROWS[False][gates]):
            return None
        return f"a tile of {gates} gates has {_GATED_ROWS[False][gates]} rows: B would be read more often"
    if target.vector_bits < 512 or not isinstance(m, int) or m == 0:
        return None
    passes = -(-m // tile.rows)
    in_l1 = 4 * k * tile.columns * tile.bytes <= 3 * target.l1
    wait = costs.L2_LOAD_FMAS
    time = max(tile.rows, wait) + (passes - 1) * tile.rows if in_l1 else passes * max(tile.rows, wait)
    plain = replace(tile, rows=_MOST_ROWS[_few_row_vectors(m)] if _has_few_rows(m) else _MOST_ROWS[4])
    if _has_few_rows(m):
        plain = replace(plain, rows=_fit_rows(m, plain.rows))
    separate = k * _step_fmas(m, plain) + costs.SPILL_FMAS * m
    # In tenths: floating-point rounding must not decide.
    if 10 * k * time <= round(10 * costs.GATE_FUSION_SLACK) * separate:
        return None
    return f"{k * time} vector FMAs a column, a separate product {separate}"


def _complete(problem: GemmProblem, target: Target, form: Form, tile: Tile, gates: int = 1) -> GemmSchedule:
    """The schedule with a tile: blocking of K, size of work items and prefetch follow from the tile."""
    if form != "tiles":
        return GemmSchedule(form, tile)
    k_block = _block_k(problem, target, tile)
    per_item = costs.GEMM_TILES_PER_DEEP_ITEM if k_block else costs.GEMM_TILES_PER_ITEM
    return GemmSchedule(form, tile, gates, k_block, per_item, _choose_prefetch(problem, target, tile))


def _block_k(problem: GemmProblem, target: Target, tile: Tile) -> int:
    """Return the steps of K of a block; 0 for all.

    A panel of more than an eighth of L2 would be read again from beyond L2 for each register tile of rows, and so would
    the rows of A that use the panel.
    """
    if problem.b != "packed" or not isinstance(problem.k, int) or problem.k == 0:
        return 0
    if isinstance(problem.m, int) and problem.m <= tile.rows * costs.ROW_TILES_WORTH_PACKING:
        return 0
    most = target.l2 // 8 // (tile.columns * numpy_dtype(problem.b_dtype).itemsize)
    blocks = -(-problem.k // most)
    steps = -(-problem.k // (blocks * tile.unroll)) * tile.unroll
    return steps if steps < problem.k else 0


def prefetch_lines(problem: GemmProblem, tile: Tile) -> int:
    """Return the cache lines of the next panel that one round of the inner loop prefetches."""
    row_bytes = tile.columns * numpy_dtype(problem.b_dtype).itemsize
    lines = -(-tile.unroll * row_bytes // costs.CACHE_LINE)
    tiles = problem.m // tile.rows if isinstance(problem.m, int) else lines
    return int(-(-lines // max(tiles, 1)))


def _choose_prefetch(problem: GemmProblem, target: Target, tile: Tile) -> Prefetch:
    if problem.b != "packed":
        return "steps" if tile.rows <= 2 else "none"
    if prefetch_lines(problem, tile) <= costs.MOST_PREFETCH_LINES:
        return "panel"
    m, n, k = problem.m, problem.n, problem.k
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)):
        return "none"
    is_large = k * n * tile.bytes > target.l2 // 2
    return "stream" if is_large and tile.rows >= 4 and m <= 2 * tile.rows else "none"
