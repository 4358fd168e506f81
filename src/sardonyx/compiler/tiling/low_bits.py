"""Sizes that the kernel of a product by weights of few bits works with."""

from __future__ import annotations

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import Size

FEW_ROWS = 16
"""Most rows for which codes are converted in registers; with more rows, a part of a panel is converted in memory."""

MOST_ROWS = 8
"""Rows that are multiplied by a code in a register."""

MOST_VECTORS = 12
"""Most vectors of columns of a panel of masked codes: one row has as many sums, in 16 registers."""

ROW_COUNTS = (1, 4, MOST_ROWS)
"""Row counts with code of their own, where the number of rows is open."""


DIGIT_LANES = 16
"""Lanes of the vectors that multiply digits of inputs."""

PART = 32
"""Most steps of K whose inputs share a power of two, as integers of digits."""

PART_NUMBERS = 8
"""Words after the digits of a part, for its numbers."""

_TILE_ROWS = 4
"""Most rows of a register tile of digits: sums of three digits by two vectors of columns are in 24 registers."""


def multiplies_digits(target: Target) -> bool:
    """Return True if the target adds four products of bytes in each of 16 lanes without saturation."""
    return target.vector_bits == DIGIT_LANES * 32 and not target.saturates


def digit_words(form: LowBits) -> int:
    """Return the words of the digits of a part of a row."""
    return -(-min(form.block, PART) // DIGIT_LANES) * DIGIT_LANES


def part_words(form: LowBits) -> int:
    """Return the words of a part of a row: its digits, and the numbers after them."""
    return digit_words(form) + PART_NUMBERS


def parts_of(form: LowBits, depth: int) -> int:
    """Return the parts of a row of ``depth`` inputs; the last part of a block may be shorter."""
    whole, rest = divmod(depth, form.block)
    return whole * -(-form.block // PART) + -(-rest // PART)


def digit_bytes(form: LowBits, depth: int) -> int:
    """Return the bytes of the digits of a row."""
    return parts_of(form, depth) * part_words(form) * 4


def digit_tile(form: LowBits, m: Size, depth: int, target: Target) -> tuple[int, int]:
    """Return the rows of a register tile of digits, and the tiles of a work item.

    Args:
        form: The storage of the weights.
        m: Rows.
        depth: K.
        target: The processor.
    """
    rows = -(-m // -(-m // _TILE_ROWS)) if isinstance(m, int) and m else _TILE_ROWS
    most = int(target.l2 * costs.DIGITS_SHARE_OF_L2) // (digit_bytes(form, depth) * rows)
    tiles = max(1, min(most, costs.DIGIT_ROWS_PER_ITEM // rows))
    return rows, min(tiles, -(-m // rows)) if isinstance(m, int) and m else tiles


def chunk(form: LowBits, columns: int, target: Target) -> int:
    """Return the steps of K that are converted to floats at a time: whole blocks, at most an eighth of L2."""
    most = target.l2 // 8 // (columns * 4)
    return max(1, most // form.block) * form.block


def stays_low(k: int, n: int, target: Target) -> bool:
    """Return True if weights stay in few bits: as floats they would take more than a share of L2."""
    return k * n * 4 > target.l2 * costs.EXPANDED_SHARE_OF_L2


def looks_up(form: LowBits, target: Target) -> bool:
    """Return True if one instruction converts codes to floats, by a table in a register."""
    return target.vector_bits == 512 and form.bits < 8


def panel_tiles_of(form: LowBits, n: int, vectors: int, lanes: int, target: Target) -> int:
    """Return the tiles of ``vectors`` vectors in a panel that takes one row the least time.

    Args:
        form: The storage of the weights.
        n: Columns.
        vectors: Vectors of columns of a tile.
        lanes: Lanes of a vector.
        target: The processor.
    """
    if looks_up(form, target):
        return 1

    def operations(tiles: int) -> int:
        return -(-n // (tiles * vectors * lanes)) * (3 * tiles * vectors + costs.LOW_BIT_STEP_OPERATIONS)

    most = max(1, MOST_VECTORS // vectors)
    return min((tiles for tiles in range(1, most + 1) if most % tiles == 0), key=operations)
