"""Convolutions of images by matrix-free kernels: which form one takes, its weights, and the kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sardonyx.compiler.codegen.integer_dot import parted
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.kernels.conv.direct import DirectConvolution
from sardonyx.compiler.kernels.conv.dot import DotConvolution
from sardonyx.compiler.kernels.conv.grouped import grouped
from sardonyx.compiler.kernels.conv.weight_layouts import (
    Tile,
    apart_weights,
    direct_weights,
    dot_weights,
    grouped_weights,
    joined_channels,
)
from sardonyx.compiler.kernels.conv.window_sweep import Image, Sweep, Windows, block_count, rest_sizes
from sardonyx.compiler.target.description import Target
from sardonyx.core.dim import Size

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


def pack_weights(weights: np.ndarray, tile: Tile) -> np.ndarray:
    """The weights as :func:`convolution` reads them.

    Args:
        weights: [groups, filters of a group, channels of a group, *window], of any float type, or of the integers
            that the tile multiplies.
        tile: How the convolution is cut.

    Returns:
        A flat array of float32, or of integers of 32 bits.
    """
    each, window = weights.shape[2], weights.shape[3:]
    flat = weights.reshape(tile.filters, each, math.prod(window))
    if tile.apart:
        main, apart = (joined_channels(part, tile.together) for part in _parted_channels(flat))
        return np.concatenate([direct_weights(main, tile), apart_weights(apart, tile, window)])
    if tile.together > 1:
        return direct_weights(joined_channels(flat, tile.together), tile)
    flat = flat.astype(np.float32, copy=False)
    if tile.form == "dot":
        return dot_weights(flat, tile)
    return grouped_weights(flat, tile.lanes) if tile.form == "grouped" else direct_weights(flat, tile)


def _parted_channels(flat: np.ndarray) -> list[np.ndarray]:
    """Weights [filters, channels, taps] of 8 bits in two parts, see :func:`.parted`."""
    filters, channels, taps = flat.shape
    padded = np.pad(flat, ((0, 0), (0, channels % 2), (0, 0))).swapaxes(1, 2)
    pairs = padded.reshape(filters, taps, -1, 2)
    return [part.reshape(padded.shape).swapaxes(1, 2) for part in parted(pairs)]


def convolution(
    kernel: Kernel,
    *,
    x: Image,
    weights: str,
    batch: Size,
    windows: Windows,
    out: tuple[Size, ...],
    tile: Tile,
    epilogue: Epilogue,
) -> Size:
    """Write a direct convolution of floats, or of integers several of which are multiplied at once.

    The epilogue gets vectors of ``tile.lanes`` output channels at one place: image, channel (a multiple of the lanes,
    lane by lane), then the spatial axes. It is given whole vectors, without a mask: lanes past the last filter hold
    zeros, as the blocks of a blocked image are to be filled. Whoever stores elsewhere leaves these lanes out.

    Args:
        kernel: What is written.
        x: The image.
        weights: The packed weights, see :func:`pack_weights`.
        batch: How many images.
        windows: The windows, of as many axes as the image.
        out: The spatial sizes of the output.
        tile: How it is cut, see :func:`tile_for`.
        epilogue: What becomes of the results.

    Returns:
        The number of work items.
    """
    if tile.form == "grouped":
        return grouped(
            kernel, x=x, weights=weights, batch=batch, windows=windows, out=out, epilogue=epilogue,
            size=tile.channels // tile.groups,
        )  # fmt: skip
    shared = tile.channels if tile.groups == 1 else 0
    sweep = Sweep(kernel, x, windows, out, batch, tile.tiles, outputs=tile.outputs, shared=shared)
    template = DotConvolution if tile.form == "dot" else DirectConvolution
    template(sweep, x, weights, tile, epilogue).write()
    return sweep.items
