"""The tiling of a Winograd convolution, with cost, error bound and the layout of weights.

The result is cut into tiles, such as 4 x 4. A tile's inputs (6 x 6 for windows of 3 x 3) are transformed, which makes
the convolution a product of matrices at each of these 36 *points*: [tiles, channels] by [channels, filters]. A tile's
results are the inverse transform of the sums at all points (Lavin and Gray 2015, arXiv:1509.09308). F(4,3) along both
axes multiplies 4 times less than a direct convolution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.toom_cook import (
    INTEGER_RESULTS,
    LARGEST,
    IntegerConvolution,
    ShortConvolution,
    as_floats,
    integer_convolution,
    short_convolution,
)
from sardonyx.compiler.tiling.windows import block_count
from sardonyx.core.dim import Size, ceil_div
from sardonyx.errors import OptionError

_PAD = 16
"""Elements between the planes of a transform: planes a power of two apart would share few cache sets."""


@dataclass(frozen=True)
class Winograd:
    """One convolution of stride 1, without dilation or groups, over float32: sizes and tiling.

    Attributes:
        target: The processor.
        tile: Rows and columns of a tile's results: 2 to 6 along an axis with 3 taps, 1 along an axis with 1 tap.
        batch: Images.
        channels: Input channels.
        filters: Output channels.
        out: Rows and columns of the result.
        padding: Rows of zeros above the image, columns of zeros left of it.
        workers: Threads that share the work.
        staged: True if a first kernel transforms all inputs and a second one shares the products out by filters: for
            few tiles and many weights, so that each thread reads a part of the weights only.
        fresh: True if kernels also transform weights during the call, a slice of channels at a time: transformed
            weights would take longer to load than to compute.
        integer: True for images of 8-bit integers, or of their differences, and tiles of 2 or 4 results along an axis:
            the transforms are exact in 16 bits, and lanes add products of pairs of channels.
    """

    target: Target
    tile: tuple[int, int]
    batch: Size
    channels: int
    filters: int
    out: tuple[Size, Size]
    padding: tuple[Size, Size] = (1, 1)
    workers: int = 1
    staged: bool = False
    fresh: bool = False
    integer: bool = False

    @property
    def input_lanes(self) -> int:
        """Words of 32 bits of a block of transformed channels."""
        return self.lanes // 2 if self.integer else self.lanes

    @property
    def lanes(self) -> int:
        """Channels of a block of the images."""
        return self.target.lanes(32)

    @property
    def algorithms(self) -> tuple[ShortConvolution, ShortConvolution]:
        """The matrices for columns (along the rows' axis) and for rows."""
        return self.integers if self.integer else (short_convolution(self.tile[0]), short_convolution(self.tile[1]))

    @property
    def integers(self) -> tuple[IntegerConvolution, IntegerConvolution]:
        """The same of integers."""
        return integer_convolution(self.tile[0]), integer_convolution(self.tile[1])

    @property
    def points(self) -> int:
        """Products for each tile, channel and filter."""
        return self.algorithms[0].n * self.algorithms[1].n

    @property
    def channel_blocks(self) -> int:
        """Vectors of input channels."""
        return block_count(self.channels, self.lanes)

    @property
    def filter_blocks(self) -> int:
        """Vectors of output channels."""
        return block_count(self.filters, self.lanes)

    @property
    def vectors(self) -> int:
        """Vectors of output channels of a register tile."""
        return filter_vectors(self.target, self.filters)

    @property
    def groups(self) -> int:
        """Groups of so many vectors."""
        return -(-self.filter_blocks // self.vectors)

    @property
    def rows(self) -> int:
        """Tiles of a register tile: its sums and a vector of each operand fill the registers."""
        return min(costs.WINOGRAD_MOST_ROWS, max(1, (self.target.vector_registers - self.vectors - 1) // self.vectors))

    @property
    def tiles(self) -> Size:
        """Tiles of all images."""
        return self.batch * ceil_div(self.out[0], self.tile[0]) * ceil_div(self.out[1], self.tile[1])

    @property
    def block(self) -> int:
        """The most tiles in one matrix product.

        Weights are read once for each block: a dozen tiles keep weights from being the bottleneck, if the transformed
        inputs leave room for them in L2. Fresh weights are transformed once per block, and staged inputs are read as
        often as the
        weights: larger blocks are better for both, as far as there are tiles.
        """
        enough, room = (12, self.target.l2 // 4)
        if self.fresh or self.staged:
            enough, room = (64 if self.fresh and isinstance(self.tiles, int) else 36, self.target.l2)
        of_rows = 4 * self.points * self.rows * self.slice_blocks * self.input_lanes
        return self.rows * max(1, min(-(-enough // self.rows), room // of_rows))

    @property
    def slice_blocks(self) -> int:
        """Vectors of input channels of a slice: all, or as many as have fresh weights in an eighth of a cache."""
        if not self.fresh:
            return self.channel_blocks
        of_block = 4 * self.points * self.lanes * self.vectors * self.lanes
        return min(self.channel_blocks, max(1, self.target.l2 // 8 // of_block))

    @property
    def weight_plane(self) -> int:
        """Elements from place to place of a slice's fresh weights, ``[place][channel][filter of a group]``."""
        return self.slice_blocks * self.lanes * self.vectors * self.lanes + _PAD

    @property
    def blocks(self) -> Size:
        """Blocks of tiles."""
        count = ceil_div(self.tiles, self.block)
        return count if self.staged else ceil_div(count, self.workers) * self.workers

    @property
    def input_plane(self) -> int:
        """Elements between points of a block's transformed inputs, ``[point][channel block][tile][lane]``."""
        return self.channel_blocks * self.block * self.input_lanes + _PAD

    @property
    def sum_plane(self) -> int:
        """Elements from place to place of a block's sums, ``[place][tile][filter of a group]``."""
        return self.block * self.vectors * self.lanes + _PAD

    @property
    def scratch(self) -> int:
        """Bytes of memory that each worker needs for itself, a multiple of 64."""
        planes = self.sum_plane + (self.weight_plane if self.fresh else 0) + (0 if self.staged else self.input_plane)
        return 4 * self.points * planes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights as kernels read them."""
        taps = math.prod(algorithm.taps for algorithm in self.algorithms)
        channels, filters = self.channel_blocks * self.input_lanes, self.groups * self.vectors * self.lanes
        return 4 * (taps if self.fresh else self.points) * channels * filters

    @property
    def transformed(self) -> Size:
        """Bytes of all transformed inputs, where they are a stage of their own."""
        return self.blocks * (4 * self.points * self.input_plane)


def filter_vectors(target: Target, filters: int) -> int:
    """Return the vectors of filters of a register tile.

    2 or 3; 1 if little else remains, or much would be computed for nothing.
    """
    blocks = block_count(filters, target.lanes(32))
    return min((2, 3, 1), key=lambda vectors: -(-blocks // vectors) * (vectors if vectors > 1 else 1.125))


def transform_weights(
    weights: npt.NDArray[np.float32], tile: tuple[int, int], target: Target
) -> npt.NDArray[np.float32]:
    """Return transformed weights in the order in which kernels read them.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].
        tile: Rows and columns of a tile's results.
        target: The processor.

    Returns:
        [groups of filters, points, channels, filters of a group]; channels and filters that fill blocks are zero.
    """
    down, across = (as_floats(short_convolution(m).weight) for m in tile)
    filters, channels = weights.shape[:2]
    width, groups, depth = group_sizes(filters, channels, target)
    result = aligned_zeros((groups, len(down), len(across), depth, width), np.float32)
    for group, part in enumerate(result):
        some = weights[group * width : (group + 1) * width]
        taps = some.transpose(2, 3, 1, 0).astype(np.float64, order="C")
        for row, coefficients in zip(part, down, strict=True):
            half = _weighted_sum(coefficients, taps)
            for point, coefficients in zip(row, across, strict=True):
                point[:channels, : len(some)] = _weighted_sum(coefficients, half)
    return result.reshape(groups, -1, depth, width)


def _weighted_sum(coefficients: npt.NDArray[np.float64], terms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sum of terms with coefficients; a kernel repeats the operations in this order to the bit."""
    total: npt.NDArray[np.float64] | None = None
    for coefficient, term in zip(coefficients, terms, strict=True):
        if coefficient:
            product = coefficient * term
            total = product if total is None else total + product
    assert total is not None
    return total


def transform_integers(weights: npt.NDArray[Any], tile: tuple[int, int], target: Target) -> npt.NDArray[np.int32]:
    """Return transformed integer weights, multiples of the true ones.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].
        tile: Rows and columns of a tile's results, 4, 2 or 1.
        target: The processor.

    Returns:
        [groups of filters, points, pairs of channels, filters of a group], two numbers of 16 bits in each.
    """
    down, across = (as_floats(integer_convolution(m).weight) for m in tile)
    points = np.kron(down, across)
    filters, channels = weights.shape[:2]
    width, groups, depth = group_sizes(filters, channels, target)
    result = aligned_zeros((groups, len(points), depth // 2, width), np.int32)
    pairs = result.view(np.int16).reshape(groups, len(points), depth // 2, width, 2)
    for group, part in enumerate(pairs):
        some = weights[group * width : (group + 1) * width].reshape(-1, channels, points.shape[1])
        taps = np.zeros((points.shape[1], depth, len(some)))
        taps[:, :channels] = some.transpose(2, 1, 0)
        transformed = (points @ taps.reshape(len(taps), -1)).reshape(len(points), depth // 2, 2, len(some))
        part[:, :, : len(some)] = transformed.swapaxes(2, 3)
    return result


_LARGEST_CODE = 255
"""Largest magnitude of an 8-bit integer, or of a difference of two."""


def most_exact_results(weights: npt.NDArray[np.integer[Any]]) -> int:
    """Return the most results along an axis for which Winograd's convolution of 8-bit integers is exact.

    Transforms have 16 bits and sums 32. Sums wrap around, until the result is divided by the factor of the weights.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].

    Returns:
        A number of :data:`.INTEGER_RESULTS`, or 0 if no tile is exact.
    """
    magnitudes = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    largest, largest_sum = (int(values.max(initial=0)) for values in (magnitudes, magnitudes.sum(axis=1)))
    axes = sum(size > 1 for size in weights.shape[2:])
    return max((m for m in INTEGER_RESULTS if _is_exact(integer_convolution(m), axes, largest, largest_sum)), default=0)


def _is_exact(along: IntegerConvolution, axes: int, largest: int, largest_sum: int) -> bool:
    """Return True if a convolution is exact, for the largest magnitude of a weight and sum of a filter's magnitudes."""
    fits = max(along.input_growth**axes * _LARGEST_CODE, along.weight_growth**axes * largest) < 1 << 15
    return fits and largest_sum * _LARGEST_CODE << axes * max(along.shifts) < 1 << 31


def integer_tiles(window: tuple[int, ...], most: int) -> list[tuple[int, int]]:
    """Return the tiles of integers for a window, of at most so many results along an axis."""
    rows, columns = ([m for m in INTEGER_RESULTS if m <= most] if taps > 1 else [1] for taps in window)
    return [(m, n) for m in rows for n in columns]


def integer_cost(
    target: Target, tile: tuple[int, int], *, batch: int, channels: int, filters: int, out: tuple[int, int],
    workers: int = 1,
) -> float:  # fmt: skip
    """Return the estimated time of a convolution of integers in scalar FMAs of one thread; see :func:`cost`.

    An instruction multiplies two integers of 16 bits in a lane.
    """
    pair = costs.WINOGRAD_PAIR_FMAS if target.saturates else 1
    plan = Winograd(target, tile, batch, channels, filters, out, integer=True)
    tiles = batch * math.prod(-(-extent // m) for extent, m in zip(out, tile, strict=True))
    inputs, sums = plan.channel_blocks * plan.lanes, plan.groups * plan.vectors * plan.lanes
    products = tiles * plan.points * inputs * sums * pair / 2
    transforms = tiles * plan.points * (costs.WINOGRAD_INPUT_FMAS * inputs + costs.WINOGRAD_OUTPUT_FMAS * sums)
    memory = costs.WINOGRAD_BYTE_FMAS * 2 * plan.points * inputs * sums
    return (products + memory + transforms) / workers


def pack_weights(weights: npt.NDArray[np.float32], target: Target) -> npt.NDArray[np.float32]:
    """Return weights that kernels transform, in the order in which kernels read them.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].
        target: The processor.

    Returns:
        [groups of filters, channels, taps, filters of a group], not in this order in memory; channels and filters that
        fill blocks are zero.
    """
    return _in_groups(weights, target)


def _in_groups(weights: npt.NDArray[np.floating], target: Target) -> npt.NDArray[np.float32]:
    """Return [groups, channels, points, filters of a group] of [filters, channels, rows, columns]."""
    filters, channels, *window = weights.shape
    width, groups, depth = group_sizes(filters, channels, target)
    padded = np.zeros((groups * width, depth, math.prod(window)), np.float32)
    padded[:filters, :channels] = weights.reshape(filters, channels, -1)
    return padded.reshape(groups, width, *padded.shape[1:]).transpose(0, 2, 3, 1)


def group_sizes(filters: int, channels: int, target: Target) -> tuple[int, int, int]:
    """Return the filters of a group, the groups, and the channels, filled up to whole blocks."""
    lanes = target.lanes(32)
    width = lanes * filter_vectors(target, filters)
    return width, -(-filters // width), block_count(channels, lanes) * lanes


def error_bound(tile: tuple[int, int], channels: int) -> float:
    """Return an upper estimate of the largest error, relative to the largest result.

    Roundings count as independent: a product carries the roundings of both transforms and of the sum over the channels,
    and the inverse transform amplifies them as the matrices do. Random inputs reach about half of the estimate.
    """
    roundings = sum(tile) + channels / 6
    return 2.0**-23 * math.sqrt(roundings) * math.prod(short_convolution(m).amplification for m in tile)


def cost(
    target: Target,
    tile: tuple[int, int],
    *,
    batch: int,
    channels: int,
    filters: int,
    out: tuple[int, int],
    workers: int = 1,
) -> float:
    """Return the estimated time of a convolution in scalar FMAs of one thread.

    For comparison with other tiles, and with ``batch * channels * filters * taps * outputs / threads`` of a direct
    convolution. Products run at the processor's FMA rate unless loading the weights takes longer; the constants of
    memory and transforms are in :mod:`sardonyx.compiler.tiling.costs`. Large weights count as fresh.
    """
    plan = Winograd(
        target, tile, batch, channels, filters, out, fresh=has_fresh_weights(target, tile, channels, filters)
    )
    tiles = batch * math.prod(-(-extent // m) for extent, m in zip(out, tile, strict=True))
    inputs, sums = plan.channel_blocks * plan.lanes, plan.groups * plan.vectors * plan.lanes
    products = tiles * plan.points * inputs * sums
    transforms = tiles * plan.points * (costs.WINOGRAD_INPUT_FMAS * inputs + costs.WINOGRAD_OUTPUT_FMAS * sums)
    if plan.fresh:
        blocks = -(-tiles // plan.block)
        return (products + blocks * costs.WINOGRAD_FRESH_FMAS * plan.points * inputs * sums + transforms) / workers
    memory = costs.WINOGRAD_BYTE_FMAS * 4 * plan.points * inputs * sums
    return (max(products, memory) + transforms) / workers


@functools.lru_cache(maxsize=1024)
def tile_costs(
    target: Target,
    *,
    batch: int,
    channels: int,
    filters: int,
    out: tuple[int, int],
    taps: tuple[int, int] = (3, 3),
    workers: int = 1,
    largest_error: float = 1e-5,
) -> Mapping[tuple[int, int], float]:
    """Return the :func:`cost` of each tile whose :func:`error_bound` is allowed.

    Args:
        target: The processor.
        batch: Images.
        channels: Input channels.
        filters: Output channels.
        out: Rows and columns of the result; typical ones if they are open.
        taps: Rows and columns of the window, 3 or 1.
        workers: Threads that share the work.
        largest_error: The largest error allowed, relative to the largest result.

    Raises:
        OptionError: No tile is as exact as that.
    """
    rows, columns = (range(2, LARGEST + 1) if count > 1 else range(1, 2) for count in taps)
    allowed = [tile for m in rows for n in columns if error_bound(tile := (m, n), channels) <= largest_error]
    if not allowed:
        raise OptionError(
            f"no Winograd convolution of {channels} channels is exact to {largest_error:g}.",
            remedy="Allow a larger error, or convolve directly.",
        )
    return {
        tile: cost(target, tile, batch=batch, channels=channels, filters=filters, out=out, workers=workers)
        for tile in allowed
    }


def has_fresh_weights(target: Target, tile: tuple[int, int], channels: int, filters: int) -> bool:
    """Return True if kernels transform weights during the call, since transformed ones would be large."""
    plan = Winograd(target, tile, 1, channels, filters, tile)
    inputs, sums = plan.channel_blocks * plan.lanes, plan.filter_blocks * plan.lanes
    return 4 * plan.points * inputs * sums >= costs.WINOGRAD_FRESH_BYTES


def prefers_stages(plan: Winograd) -> bool:
    """Return True if a staged plan is faster: threads have few tiles each for all weights."""
    return isinstance(plan.tiles, int) and plan.workers > 1 and plan.tiles < costs.WINOGRAD_STAGE_TILES * plan.workers
