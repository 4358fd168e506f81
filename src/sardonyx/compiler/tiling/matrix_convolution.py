"""Convolutions of bytes on the matrix unit: lines of interleaved channels, tiles of outputs, steps of K.

A first kernel copies the image to *lines*, ``[batch][row][column][channel]`` with padding, so that all taps of a row
of the window are adjacent bytes. A tile of the first operand is then 16 adjacent outputs, each a row of 64 bytes at a
fixed distance: nothing is gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.core.dim import Size

TILE_ROWS, TILE_DEPTH, PANEL = 16, 64, 32
"""Outputs of a tile, bytes of K of a step, and filters of a panel of weights."""

PLANES = 4
"""Most channels of an NCHW image that is interleaved without blocks."""

MOST_POSITIONS = 192
"""Most positions of a work item. 24 KiB of sums share L1 with lines and weights; Sapphire Rapids, int8_speed.py."""

SLACK = 1024
"""Bytes after the lines that the last tile may read without use."""


@dataclass(frozen=True)
class MatrixConvolution:
    """The geometry of a convolution on the matrix unit; every pair is (vertical, horizontal).

    Attributes:
        channels: Input channels.
        filters: Output channels.
        image: Sizes of the image.
        out: Sizes of the result.
        window: Taps.
        strides: Input elements from output to output.
        dilations: Input elements from tap to tap.
        padding: Input elements before the first that the first window covers.
    """

    channels: int
    filters: int
    image: tuple[int, int]
    out: tuple[int, int]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    padding: tuple[int, int]

    @property
    def planes(self) -> bool:
        """True if the image is NCHW, False if it is blocked."""
        return self.channels <= PLANES

    @property
    def pixel(self) -> int:
        """Bytes of a pixel in a line."""
        return PLANES if self.planes else -(-self.channels // TILE_ROWS) * TILE_ROWS

    @property
    def lines(self) -> int:
        """Lines of an image."""
        return (self.out[0] - 1) * self.strides[0] + (self.window[0] - 1) * self.dilations[0] + 1

    @property
    def columns(self) -> int:
        """Pixels of a line."""
        return (self.out[1] - 1) * self.strides[1] + (self.window[1] - 1) * self.dilations[1] + 1

    @property
    def line_bytes(self) -> int:
        """Bytes of a line."""
        return self.columns * self.pixel

    def bytes(self, batch: Size) -> Size:
        """Return the bytes of all lines."""
        # The last tile reads up to 15 outputs and a step beyond the last window.
        return batch * (self.lines * self.line_bytes) + (TILE_ROWS * self.strides[1] * self.pixel + TILE_DEPTH + SLACK)

    @property
    def is_flat(self) -> bool:
        """True if tiles run across rows: outputs between the rows are computed and ignored."""
        whole = -(-self.out[1] // TILE_ROWS) * TILE_ROWS
        return self.strides[0] == self.strides[1] and self.columns < whole

    @property
    def pitch(self) -> int:
        """Positions from row to row of outputs."""
        return self.columns if self.is_flat else self.tiles_of_row * TILE_ROWS

    @property
    def tiles_of_row(self) -> int:
        """Tiles of a row of outputs that is not flat."""
        return -(-self.out[1] // TILE_ROWS)

    def tiles(self, rows: int) -> int:
        """Return the tiles of so many rows of outputs."""
        if not self.is_flat:
            return rows * self.tiles_of_row
        return -(-((rows - 1) * self.columns + self.out[1]) // TILE_ROWS)

    @property
    def rows(self) -> int:
        """Rows of outputs of a work item: the most that fit, of those with the fewest tiles for the image."""
        fitting = [rows for rows in range(1, self.out[0] + 1) if self.tiles(rows) * TILE_ROWS <= MOST_POSITIONS] or [1]
        return min(
            fitting, key=lambda rows: (-(-self.out[0] // rows) * (self.tiles(rows) + self.tiles(rows) % 2), -rows)
        )

    @property
    def panels(self) -> int:
        """Panels of weights."""
        return -(-self.filters // PANEL)

    @property
    def runs(self) -> tuple[int, int]:
        """Runs of adjacent bytes of a window, vertically and horizontally; a run has all taps of a row if adjacent."""
        return self.window[0], 1 if self.dilations[1] == 1 else self.window[1]

    @property
    def run_bytes(self) -> int:
        """Bytes of a run."""
        return self.pixel * (self.window[1] if self.runs[1] == 1 else 1)

    @property
    def chunks(self) -> int:
        """Steps of a run."""
        return -(-self.run_bytes // TILE_DEPTH)

    @property
    def steps(self) -> int:
        """Steps of K."""
        return self.runs[0] * self.runs[1] * self.chunks

    @property
    def cycles(self) -> float:
        """Estimated cycles of an image: 16 for each product of tiles, and the copy to lines."""
        groups = -(-self.out[0] // self.rows)
        tiles = -(-self.filters // TILE_ROWS)
        return groups * self.tiles(self.rows) * tiles * self.steps * TILE_ROWS + self.lines * self.line_bytes / 16

    @property
    def vector_cycles(self) -> float:
        """Estimated cycles of an image with vectors of 64 bytes."""
        groups = -(-self.channels // 4)
        taps = self.window[0] * self.window[1]
        return self.out[0] * self.out[1] * -(-self.filters // TILE_ROWS) * taps * groups
