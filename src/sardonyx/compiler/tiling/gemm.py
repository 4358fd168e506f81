"""The choice of the schedule of a matrix product, once for packing, the kernel, fusion and ``explain``."""

from __future__ import annotations

import functools
from dataclasses import replace

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.choice import Candidate, Choice, apply_override
from sardonyx.compiler.tiling.gemm_schedule import (
    MATRIX_ROWS,
    MATRIX_VECTORS,
    Form,
    GemmProblem,
    GemmSchedule,
    Prefetch,
    Tile,
    default_tile,
    is_narrow,
    refuse_matrix,
)
from sardonyx.compiler.tiling.low_bits import FEW_ROWS, chunk, digit_tile, multiplies_digits, panel_tiles_of, stays_low
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import BFLOAT16, FLOAT, is_float, numpy_dtype


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


def multiplies_pairs(m: Size, n: Size, target: Target) -> bool:
    """Return True if tiles of pairs multiply two computed operands of bfloat16 faster than tiles of float32 numbers."""
    if not (target.multiplies_bfloat16 and target.fast_pairs):
        return False
    return all(not isinstance(size, int) or size >= _FEWEST_PAIRED for size in (m, n))


_FEWEST_PAIRED = 8
"""Fewest known rows and columns of products of pairs; others have forms of their own."""


def multiplies_bytes(m: Size, n: Size, k: Size, target: Target) -> bool:
    """Return True if tiles of words of four bytes multiply two computed operands faster than tiles of float32 numbers.

    Any weights may be in the words: sums of two products must not saturate.
    """
    if target.together(8) != BYTES_OF_WORD or target.saturates:
        return False
    if isinstance(k, int) and k < costs.FEWEST_COMPUTED_TERMS:
        return False
    return all(not isinstance(size, int) or size >= _FEWEST_PAIRED for size in (m, n))


BYTES_OF_WORD = 4
"""Adjacent bytes along K that a lane multiplies and adds."""


def bfloat16_width(m: Size, n: Size, k: Size, target: Target) -> int:
    """Return the adjacent numbers of a product of packed bfloat16 that an instruction adds in a lane: 2 or 1.

    With 1 the numbers are converted to float32 when loaded: many rows of pairs are slower, but for processors that
    multiply pairs as fast as single numbers.
    """
    if not target.multiplies_bfloat16 or not isinstance(k, int) or k % 2:
        return 1
    if target.fast_pairs:
        return 2
    if isinstance(m, int) and m <= costs.BFLOAT16_PAIR_ROWS:
        return 2
    return 2 if _suits_matrix(GemmProblem(m, n, k // 2, BFLOAT16, "packed", FLOAT, 2), target) else 1


def _choose_low_bits(problem: GemmProblem, low: LowBits, target: Target) -> Choice[GemmSchedule]:
    """Choose between weights that stay in few bits and weights that are expanded to floats."""
    base = default_tile(target, problem.result)
    m, n, k = problem.m, problem.n, problem.k
    assert isinstance(n, int)
    assert isinstance(k, int)
    if multiplies_digits(target):
        rows, tiles = digit_tile(low, m, k, target)
        schedule = GemmSchedule("low_bits", replace(base, rows=rows), tiles_per_item=tiles)
    else:
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


MATRIX_SPEED = 8
"""Products of the matrix unit in the time of those of a vector; Sapphire Rapids, tdpbusd beside vpdpbusd."""

FEWEST_MATRIX_ROWS = 4
"""Fewest known rows for which the matrix unit is used. Fewer rows wait for weights from memory in any form."""


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
    m, n, tile = problem.m, problem.n, default_tile(target, problem.result, problem.dot_width)
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
