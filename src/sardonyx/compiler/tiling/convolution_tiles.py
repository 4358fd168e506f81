"""Register tiles of convolutions: outputs and channels that a kernel keeps in registers, and their estimated costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.windows import Number, block_count, rest_sizes
from sardonyx.core.dim import Size


@dataclass(frozen=True)
class Tile:
    """The register tile of a direct convolution, and the layout of packed weights.

    Attributes:
        lanes: Channels of a block.
        blocks: Blocks of output channels of a tile.
        outputs: Neighbouring outputs of a tile.
        inner: Input channels of a step: those of a block, or some planes of an NCHW image.
        blocked: True for a blocked image, False for NCHW.
        filters: Output channels of all groups.
        channels: Input channels of all groups.
        groups: Groups of channels.
        form: ``direct``: lanes are output channels, and inputs are broadcast. ``dot``: lanes are input channels, added
            up at the end, for few output channels. ``grouped``: lanes are channels of small groups, inputs are
            shuffled.
        dot_width: Adjacent integer or bfloat16 channels that a lane multiplies and adds in one instruction; they count
            as one channel of 32 bits.
        saturates: True if sums of two byte products saturate at 16 bits on the target.
        bfloat16: True if the adjacent channels are bfloat16, and sums float32.
    """

    lanes: int
    blocks: int
    outputs: int
    inner: int
    blocked: bool
    filters: int
    channels: int
    groups: int
    form: Literal["direct", "dot", "grouped"] = "direct"
    dot_width: int = 1
    saturates: bool = False
    bfloat16: bool = False

    @property
    def element(self) -> str:
        """LLVM's type of a channel, or of a word of adjacent channels, and of a sum."""
        return "i32" if self.dot_width > 1 and not self.bfloat16 else "float"

    @property
    def corrects_overflow(self) -> bool:
        """True if a table of overflow corrections follows the weights; see :func:`correction_weights`."""
        return self.saturates and self.groups == 1

    @property
    def output_blocks(self) -> int:
        """Blocks of output channels."""
        return block_count(self.filters, self.lanes)

    @property
    def tiles(self) -> int:
        """Groups of blocks, the last of which may be smaller."""
        return -(-self.output_blocks // self.blocks)

    @property
    def depth(self) -> int:
        """Input blocks that an output block sees."""
        if self.groups == 1:
            return self._input_blocks
        return max(last - first for first, last in map(self._seen, range(self.tiles)))

    def first_input(self, tile: int) -> int:
        """The first input block that a group of output blocks sees."""
        return min(self._seen(tile)[0], self._input_blocks - self.depth)

    def first_input_at(self, e: Emitter, tile: Number) -> Number:
        """:meth:`first_input` at run time."""
        if self.groups == 1:
            return 0
        channels, produced = self.channels // self.groups, self.filters // self.groups
        group = e.div(e.mul(tile, self.blocks * self.lanes), produced)
        return e.least(e.div(e.mul(group, channels), self.inner), self._input_blocks - self.depth)

    @property
    def _input_blocks(self) -> int:
        return block_count(self.channels, self.inner)

    def _seen(self, tile: int) -> tuple[int, int]:
        """Return the range of input blocks that a group of output blocks reads."""
        channels, produced = self.channels // self.groups, self.filters // self.groups
        width = self.blocks * self.lanes
        first = tile * width // produced
        last = (min((tile + 1) * width, self.filters) - 1) // produced + 1
        return first * channels // self.inner, block_count(last * channels, self.inner)


def choose_tile(
    target: Target,
    *,
    channels: int,
    filters: int,
    groups: int = 1,
    blocked: bool = True,
    width: Size | None = None,
    taps: int = 1,
    dot_width: int = 1,
    bfloat16: bool = False,
) -> Tile:
    """Return the tile of a direct convolution with the least estimated cost.

    Args:
        target: The processor.
        channels: Input channels of all groups.
        filters: Output channels of all groups.
        groups: Groups of channels.
        blocked: True for a blocked image, False for NCHW.
        width: Outputs of a row; None if open.
        taps: Taps of the window.
        dot_width: Adjacent channels that a lane multiplies and adds in one instruction; the image is then blocked.
        bfloat16: True if the adjacent channels are bfloat16.
    """
    return min(
        tile_costs(
            target, channels=channels, filters=filters, groups=groups, blocked=blocked, width=width, taps=taps,
            dot_width=dot_width, bfloat16=bfloat16,
        ).items(),
        key=lambda item: item[1],
    )[0]  # fmt: skip


def tile_costs(
    target: Target,
    *,
    channels: int,
    filters: int,
    groups: int = 1,
    blocked: bool = True,
    width: Size | None = None,
    taps: int = 1,
    dot_width: int = 1,
    bfloat16: bool = False,
) -> dict[Tile, float]:
    """Return the compared tiles of a direct convolution with costs; see :func:`choose_tile`.

    The cost is the time of an output in vector FMAs, relative to the other tiles only: a tile multiplies, and waits if
    the tile has few sums or many loads. Small groups have one tile, whose cost is 0.
    """
    lanes = target.lanes(32)
    room = _room(target)
    inner, channels = lanes // dot_width, -(-channels // dot_width)
    saturates = dot_width == 4 and target.saturates
    if not blocked:
        inner = max(count for count in range(1, costs.MOST_PLANES + 1) if channels // groups % count == 0)
    most = min(block_count(filters, lanes), costs.BFLOAT16_MOST_BLOCKS if bfloat16 else 4)
    sums = min(room, target.vector_registers - 4)
    shapes = [(blocks, min(room - blocks, sums) // blocks) for blocks in range(1, most + 1)]
    plain = Tile(lanes, 1, 1, inner, blocked, filters, channels, groups, "direct", dot_width, saturates, bfloat16)
    tiles = [replace(plain, blocks=blocks, outputs=outputs) for blocks, outputs in shapes]
    broadcast = costs.BROADCAST_COST.get(target.vector_bits, costs.UNKNOWN_BROADCAST_COST)
    compared = {tile: _direct_cost(tile, width, broadcast) for tile in tiles}
    if not blocked or dot_width > 1:
        return compared
    members = channels // groups
    if groups > 1 and members == filters // groups <= costs.MOST_GROUP_CHANNELS and lanes % members == 0:
        direct = min(compared, key=compared.__getitem__)
        return {replace(direct, blocks=1, form="grouped"): 0.0}
    outputs = (room - 1 - filters) // filters if groups == 1 and filters <= lanes // 2 else 0
    if outputs:
        dot = Tile(lanes, 1, outputs, inner, blocked, filters, channels, groups, "dot")
        depth = block_count(channels, lanes) * taps
        # A direct tile multiplies by whole blocks of output channels, or by half of one if vectors are two operations.
        spread = depth * lanes / (2 if target.vector_bits >= 512 else 1)
        adding = filters * (depth * (1 + 1 / outputs) + costs.LANE_SUM_FMAS)
        if spread:
            best = min(compared.values())
            # Equal costs are the direct tile's, which comes first.
            cost = best * adding / spread
            compared[dot] = max(cost, best) if adding >= spread else min(cost, _below(best))
    return compared


def _below(cost: float) -> float:
    """The next smaller cost: rounding must not decide between two forms."""
    return math.nextafter(cost, 0.0)


def _room(target: Target) -> int:
    """Registers for sums and weights; the others are for inputs."""
    if target.name == "neon":
        # Inputs are loaded in pairs, and wait in registers of their own.
        return target.vector_registers * 5 // 8
    return target.vector_registers - (2 if target.vector_registers >= 32 else 1)


def _direct_cost(tile: Tile, width: Size | None, broadcast: float) -> float:
    if isinstance(width, int) and width:
        # All tiles of a row are alike: one of them has the cost of an output.
        sizes = [width / -(-width // tile.outputs)]
    else:
        sizes = [size for typical in costs.TYPICAL_WIDTHS for size in _split_row(typical, tile.outputs)]
    cost = 0.0
    for first in range(0, tile.output_blocks, tile.blocks):
        blocks = min(tile.blocks, tile.output_blocks - first)
        cost += sum(
            max(size * blocks, size + blocks, costs.SHORTEST_TILE_FMAS)
            * (1 + broadcast / blocks + costs.OUTPUT_LOAD_COST / size)
            for size in sizes
        )
    return cost / sum(sizes) * max(tile.depth, 1)


def _split_row(width: int, outputs: int) -> list[float]:
    """The tiles of a row whose width is known only at run time."""
    sizes: list[float] = [outputs] * (width // outputs)
    rest = width % outputs
    for size in rest_sizes(outputs):
        if rest >= size:
            sizes.append(size)
            rest -= size
    return sizes


MOST_ADVANCE = 2
"""Largest distance of the inputs of neighbouring outputs of a planar tile.

Two loads and a shuffle give a vector of inputs.
"""


def planar_vectors(target: Target, filters: int) -> int:
    """Return the vectors of outputs of a planar tile: as many as leave registers for inputs and a weight."""
    return max(1, min((target.vector_registers - 3) // (filters + 1), costs.MOST_PLANAR_VECTORS))


def grouped_outputs(target: Target, channels: int, taps: int) -> int:
    """Return the outputs of a tile of channels in small groups.

    The weights of a row of taps stay in registers, and one input.

    Args:
        target: The processor.
        channels: Channels of a group.
        taps: Taps of a row of the window.
    """
    return max(4, min(target.vector_registers - channels * taps - channels - 1, target.vector_registers // 2))


# Schedules.
