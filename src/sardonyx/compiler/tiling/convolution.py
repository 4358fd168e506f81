"""The register tile of a convolution: blocks of output channels and neighbouring outputs, by sizes and target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.windows import Number, block_count, rest_sizes
from sardonyx.core.dim import Size


@dataclass(frozen=True)
class Tile:
    """How a convolution is cut: what its weights are packed for.

    Attributes:
        lanes: Channels of a block.
        blocks: Blocks of output channels of a tile.
        outputs: Neighbouring outputs of a tile.
        inner: Input channels that are multiplied together: those of a block, or some planes of a plain image.
        blocked: Whether the image is blocked.
        filters: Output channels of all groups.
        channels: Input channels of all groups.
        groups: Groups of channels.
        form: ``direct``: lanes are output channels, and inputs are spread. ``dot``: lanes are input channels, added up
            at the end, for few output channels. ``grouped``: lanes are channels of small groups, inputs are shuffled.
        together: Products that are added up within a lane: of integers, so many channels count as one, of 32 bits.
        saturates: Whether products of bytes may have sums that are no numbers of 16 bits, and must not.
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
    together: int = 1
    saturates: bool = False

    @property
    def element(self) -> str:
        """LLVM's type of a channel, and of a sum."""
        return "i32" if self.together > 1 else "float"

    @property
    def apart(self) -> bool:
        """Whether weights whose products are added up apart follow the others; see :func:`apart_weights`."""
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
        each, produced = self.channels // self.groups, self.filters // self.groups
        group = e.div(e.mul(tile, self.blocks * self.lanes), produced)
        return e.least(e.div(e.mul(group, each), self.inner), self._input_blocks - self.depth)

    @property
    def _input_blocks(self) -> int:
        return block_count(self.channels, self.inner)

    def _seen(self, tile: int) -> tuple[int, int]:
        """The range of input blocks that hold what a group of output blocks needs."""
        each, produced = self.channels // self.groups, self.filters // self.groups
        width = self.blocks * self.lanes
        first = tile * width // produced
        last = (min((tile + 1) * width, self.filters) - 1) // produced + 1
        return first * each // self.inner, block_count(last * each, self.inner)


_PLAIN = 4
"""Most planes of a plain image that are multiplied together."""


_TYPICAL = (7, 10, 14, 20, 28, 40, 56, 80)
"""Widths that count where the width is open: those in the middle of networks."""


_SPREADING = {256: 0.1, 512: 0.3}
"""What spreading an input over the lanes costs a tile of one block, by the bits of a vector: the wider a vector, the
fewer of them are multiplied a cycle beside what is loaded (measured on Zen 3 and Cascade Lake)."""


_GROUP = 8
"""Most channels of a group whose inputs are shuffled."""


_ADDING_UP = 8
"""What adding up the lanes of a result costs, in multiplications."""


def tile_for(
    target: Target,
    *,
    channels: int,
    filters: int,
    groups: int = 1,
    blocked: bool = True,
    width: Size | None = None,
    taps: int = 1,
    together: int = 1,
) -> Tile:
    """The tile for a convolution.

    Args:
        target: What the code is for.
        channels: Input channels of all groups.
        filters: Output channels of all groups.
        groups: Groups of channels.
        blocked: Whether the image is blocked.
        width: Outputs of a row, where known.
        taps: Taps of the window.
        together: Products that are added up within a lane; of an image of integers, which is blocked.
    """
    lanes = target.lanes(32)
    room = _room(target)
    inner, channels = lanes // together, -(-channels // together)
    saturates = together == 4 and target.saturates
    if not blocked:
        inner = max(count for count in range(1, _PLAIN + 1) if channels // groups % count == 0)
    most = min(block_count(filters, lanes), 4)
    sums = min(room, target.vector_registers - 4)
    shapes = [(blocks, min(room - blocks, sums) // blocks) for blocks in range(1, most + 1)]
    tiles = [
        Tile(lanes, blocks, outputs, inner, blocked, filters, channels, groups, together=together, saturates=saturates)
        for blocks, outputs in shapes
    ]
    direct = min(tiles, key=lambda tile: _cost(tile, width, _SPREADING.get(target.vector_bits, 0.1)))
    if not blocked or together > 1:
        return direct
    each = channels // groups
    if groups > 1 and each == filters // groups <= _GROUP and lanes % each == 0:
        return replace(direct, blocks=1, form="grouped")
    outputs = (room - 1 - filters) // filters if groups == 1 and filters <= lanes // 2 else 0
    dot = Tile(lanes, 1, outputs, inner, blocked, filters, channels, groups, "dot")
    depth = block_count(channels, lanes) * taps
    # A direct tile multiplies by whole blocks of output channels, or by half of one where vectors are two operations.
    spread = depth * lanes / (2 if target.vector_bits >= 512 else 1)
    if outputs and filters * (depth * (1 + 1 / outputs) + _ADDING_UP) < spread:
        return dot
    return direct


def _room(target: Target) -> int:
    """Registers for sums and weights: the others are for inputs."""
    if target.name == "neon":
        # Inputs are loaded in pairs, and wait in registers of their own.
        return target.vector_registers * 5 // 8
    return target.vector_registers - (2 if target.vector_registers >= 32 else 1)


def _cost(tile: Tile, width: Size | None, spreading: float) -> float:
    """Time of an output, in multiplications: a tile does these, and waits where they are few or loads are many."""
    if isinstance(width, int) and width:
        tiles = -(-width // tile.outputs)
        sizes = [width / tiles] * tiles
    else:
        sizes = [size for typical in _TYPICAL for size in _sizes(typical, tile.outputs)]
    cost = 0.0
    for first in range(0, tile.output_blocks, tile.blocks):
        blocks = min(tile.blocks, tile.output_blocks - first)
        cost += sum(max(size * blocks, size + blocks, 10) * (1 + spreading / blocks + 0.3 / size) for size in sizes)
    return cost / sum(sizes) * max(tile.depth, 1)


def _sizes(width: int, outputs: int) -> list[float]:
    """The tiles of a row whose width only a run tells."""
    sizes: list[float] = [outputs] * (width // outputs)
    rest = width % outputs
    for size in rest_sizes(outputs):
        if rest >= size:
            sizes.append(size)
            rest -= size
    return sizes


MOST_ADVANCE = 2
"""Furthest apart that the inputs of neighbouring outputs may be: those are loaded with two loads and a shuffle."""


_MOST_VECTORS = 8
"""Most vectors of outputs of a tile: more would gain little, and rows are not that wide."""


def tile_vectors(target: Target, filters: int) -> int:
    """How many vectors of outputs a tile has: as many as leave registers for inputs and a weight."""
    return max(1, min((target.vector_registers - 3) // (filters + 1), _MOST_VECTORS))
