"""How a Winograd convolution is cut, what it costs, and how its weights are laid out.

The result is cut into tiles, such as 4 x 4. A tile's inputs (6 x 6 for windows of 3 x 3) are transformed, which makes
the convolution a product of matrices at each of these 36 *places*: [tiles, channels] by [channels, filters]; a tile's
results are the inverse transform of its sums at all places (Lavin and Gray 2015, arXiv:1509.09308). F(4,3) along both
axes multiplies 4 times less than the direct way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.toom_cook import LARGEST, ShortConvolution, as_floats, short_convolution
from sardonyx.compiler.tiling.windows import block_count
from sardonyx.core.dim import Size, ceil_div
from sardonyx.errors import OptionError

_PAD = 16
"""Elements between the planes of a transform: planes a power of two apart would share few cache sets."""


@dataclass(frozen=True)
class Winograd:
    """One convolution of stride 1, without dilation or groups, over float32: its sizes, and how it is cut.

    Attributes:
        target: What the code is for.
        tile: Rows and columns of a tile's results: 2 to 6 along an axis with 3 taps, 1 along one with 1 tap.
        batch: Images.
        channels: Input channels.
        filters: Output channels.
        out: Rows and columns of the result.
        padding: Rows of zeros above the image, columns of zeros left of it.
        workers: How many threads will share the work.
        staged: Whether a first kernel transforms all inputs and a second shares the products out by filters: for few
            tiles and many weights, so that each thread reads a part of the weights only.
        fresh: Whether kernels transform weights too, as they need them and a slice of channels at a time: where
            transformed ones would take longer to come than to make.
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

    @property
    def lanes(self) -> int:
        """Channels of a block of the images."""
        return self.target.lanes(32)

    @property
    def algorithms(self) -> tuple[ShortConvolution, ShortConvolution]:
        """The matrices for columns (along the rows' axis) and for rows."""
        return short_convolution(self.tile[0]), short_convolution(self.tile[1])

    @property
    def places(self) -> int:
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
        """The most tiles that are multiplied together.

        Weights are read once for each block: a dozen tiles keep them from being the limit, where the transformed
        inputs leave room for them in the second-level cache. Weights that are fresh are made as seldom as can be,
        and staged inputs are read as often as the weights: there larger blocks are better, as far as there are tiles.
        """
        enough, room = (12, self.target.l2 // 4)
        if self.fresh or self.staged:
            enough, room = (64 if self.fresh and isinstance(self.tiles, int) else 36, self.target.l2)
        of_rows = 4 * self.places * self.rows * self.slice_blocks * self.lanes
        return self.rows * max(1, min(-(-enough // self.rows), room // of_rows))

    @property
    def slice_blocks(self) -> int:
        """Vectors of input channels of a slice: all, or as many as have fresh weights in an eighth of a cache."""
        if not self.fresh:
            return self.channel_blocks
        of_block = 4 * self.places * self.lanes * self.vectors * self.lanes
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
        """Elements from place to place of a block's transformed inputs, ``[place][block of channels][tile][lane]``."""
        return self.channel_blocks * self.block * self.lanes + _PAD

    @property
    def sum_plane(self) -> int:
        """Elements from place to place of a block's sums, ``[place][tile][filter of a group]``."""
        return self.block * self.vectors * self.lanes + _PAD

    @property
    def scratch(self) -> int:
        """Bytes of memory that each worker needs for itself, a multiple of 64."""
        planes = self.sum_plane + (self.weight_plane if self.fresh else 0) + (0 if self.staged else self.input_plane)
        return 4 * self.places * planes

    @property
    def transformed(self) -> Size:
        """Bytes of all transformed inputs, where they are a stage of their own."""
        return self.blocks * (4 * self.places * self.input_plane)


def filter_vectors(target: Target, filters: int) -> int:
    """Vectors of filters of a register tile: 2 or 3, 1 where little else remains or much would be for nothing."""
    blocks = block_count(filters, target.lanes(32))
    return min((2, 3, 1), key=lambda vectors: -(-blocks // vectors) * (vectors if vectors > 1 else 1.125))


def transform_weights(
    weights: npt.NDArray[np.float32], tile: tuple[int, int], target: Target
) -> npt.NDArray[np.float32]:
    """The weights as kernels read them.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].
        tile: Rows and columns of a tile's results.
        target: What the code is for.

    Returns:
        [groups of filters, places, channels, filters of a group], not in this order in memory; channels and filters
        that fill blocks are zero.
    """
    down, across = (as_floats(short_convolution(m).weight) for m in tile)
    transformed = np.einsum("xi,fcij,yj->fcxy", down, weights.astype(np.float64), across, optimize=True)
    return _in_groups(transformed, target).transpose(0, 2, 1, 3)


def pack_weights(weights: npt.NDArray[np.float32], target: Target) -> npt.NDArray[np.float32]:
    """Weights that kernels transform, as these read them.

    Args:
        weights: [filters, channels, 3 or 1, 3 or 1].
        target: What the code is for.

    Returns:
        [groups of filters, channels, taps, filters of a group], not in this order in memory; channels and filters that
        fill blocks are zero.
    """
    return _in_groups(weights, target)


def _in_groups(weights: npt.NDArray[np.floating], target: Target) -> npt.NDArray[np.float32]:
    """[groups of filters, channels, places, filters of a group] of [filters, channels, rows, columns]."""
    filters, channels, *window = weights.shape
    lanes = target.lanes(32)
    width = lanes * filter_vectors(target, filters)
    groups = -(-filters // width)
    padded = np.zeros((groups * width, block_count(channels, lanes) * lanes, math.prod(window)), np.float32)
    padded[:filters, :channels] = weights.reshape(filters, channels, -1)
    return padded.reshape(groups, width, *padded.shape[1:]).transpose(0, 2, 3, 1)


def error_bound(tile: tuple[int, int], channels: int) -> float:
    """An upper estimate of the largest error in proportion to the largest result.

    Roundings are taken as independent: a product carries those of its transforms and of the sum over the channels,
    and the inverse transform amplifies them as the matrices do. Random inputs reach about half of it.
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
    """The time of a convolution in multiply-adds of one thread, all lanes counted.

    It is for comparison with other tiles, and with the direct way's ``batch * channels * filters * taps * places`` over
    the number of threads. Products run at the processor's rate unless the weights take longer to come from memory; a
    byte takes as long as 2 multiply-adds there. Transforms take a lane about 7 multiply-adds an input and 4 a sum.
    Where tiles are few, it is taken as staged; where weights are large, they are fresh.
    """
    plan = Winograd(
        target, tile, batch, channels, filters, out, fresh=has_fresh_weights(target, tile, channels, filters)
    )
    tiles = batch * math.prod(-(-extent // m) for extent, m in zip(out, tile, strict=True))
    inputs, sums = plan.channel_blocks * plan.lanes, plan.groups * plan.vectors * plan.lanes
    products = tiles * plan.places * inputs * sums
    transforms = tiles * plan.places * (costs.WINOGRAD_INPUT_FMAS * inputs + costs.WINOGRAD_OUTPUT_FMAS * sums)
    if plan.fresh:
        blocks = -(-tiles // plan.block)
        return (products + blocks * costs.WINOGRAD_FRESH_FMAS * plan.places * inputs * sums + transforms) / workers
    memory = costs.WINOGRAD_BYTE_FMAS * 4 * plan.places * inputs * sums
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


def best_tile(target: Target, **problem: Any) -> tuple[tuple[int, int], float]:
    """Return the tile of least cost, and the cost; the arguments are those of :func:`tile_costs`."""
    found = tile_costs(target, **problem)
    best = min(found, key=found.__getitem__)
    return best, found[best]


def has_fresh_weights(target: Target, tile: tuple[int, int], channels: int, filters: int) -> bool:
    """Whether kernels are to transform weights as they need them, since transformed ones would be large."""
    plan = Winograd(target, tile, 1, channels, filters, tile)
    inputs, sums = plan.channel_blocks * plan.lanes, plan.filter_blocks * plan.lanes
    return 4 * plan.places * inputs * sums >= costs.WINOGRAD_FRESH_BYTES


def prefers_stages(plan: Winograd) -> bool:
    """Whether a plan is better staged: threads would have few tiles each for all the weights that they read."""
    return isinstance(plan.tiles, int) and plan.workers > 1 and plan.tiles < costs.WINOGRAD_STAGE_TILES * plan.workers
