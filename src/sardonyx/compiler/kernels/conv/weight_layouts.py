"""How convolutions are cut into tiles, and the order of weights that follows."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.codegen.integer_dot import entries
from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.tiling.convolution import Tile
from sardonyx.compiler.tiling.windows import block_count


def direct_weights(flat: np.ndarray, tile: Tile) -> np.ndarray:
    """Weights [filters, channels of a group, taps] in the order of direct tiles.

    For each group of output blocks: [input block][tap][input channel of the block][output block][lane].
    """
    each, taps = flat.shape[1:]
    produced, depth = tile.filters // tile.groups, tile.depth
    packed = aligned_zeros((depth * taps * tile.inner * tile.output_blocks * tile.lanes,), flat.dtype)
    size = depth * taps * tile.inner * tile.lanes
    for number in range(tile.tiles):
        start = number * tile.blocks
        blocks = min(tile.blocks, tile.output_blocks - start)
        first, last = start * tile.lanes, min((start + blocks) * tile.lanes, tile.filters)
        part = packed[start * size : (start + blocks) * size].reshape(depth, taps, tile.inner, blocks * tile.lanes)
        if tile.groups == 1:
            _put_channels(part[..., : last - first], flat[first:last].transpose(2, 1, 0), 0)
        else:
            seen = tile.first_input(number) * tile.inner
            for filter in range(first, last):
                at = filter // produced * each - seen
                _put_channels(part[..., filter - first : filter - first + 1], flat[filter].T[..., np.newaxis], at)
    return packed


APART_NUMBERS = 5
"""Numbers that tell where inputs of weights apart are: the input block, the tap along three axes, the channel."""


def apart_weights(flat: np.ndarray, tile: Tile, window: tuple[int, ...]) -> np.ndarray:
    """Weights [filters, channels, taps] that are multiplied apart, as :func:`.entries` with :data:`APART_NUMBERS`."""
    filters, channels, taps = flat.shape
    places = np.empty((channels, taps, APART_NUMBERS), np.int32)
    for axis, numbers in zip((0, 4), np.divmod(np.arange(channels), tile.inner), strict=True):
        places[..., axis] = numbers[:, np.newaxis]
    for axis, numbers in enumerate(np.unravel_index(np.arange(taps), (1,) * (3 - len(window)) + window), 1):
        places[..., axis] = numbers
    return entries(flat.reshape(filters, -1), places.reshape(-1, APART_NUMBERS), tile.blocks * tile.lanes, tile.lanes)


def _put_channels(blocks: np.ndarray, channels: np.ndarray, at: int) -> None:
    """Write channels [taps, channels, filters] into blocks of them, [block, tap, channel, filter], from one on."""
    inner, count = blocks.shape[2], channels.shape[1]
    block, within = divmod(at, inner)
    if within == 0 and (whole := count // inner):
        taps, filters = len(channels), channels.shape[2]
        parts = channels[:, : whole * inner].reshape(taps, whole, inner, filters)
        blocks[block : block + whole] = parts.swapaxes(0, 1)
        channels, block, count = channels[:, whole * inner :], block + whole, count - whole * inner
    while count:
        some = min(inner - within, count)
        blocks[block, :, within : within + some] = channels[:, :some]
        channels, block, within, count = channels[:, some:], block + 1, 0, count - some


def joined_channels(flat: np.ndarray, together: int) -> np.ndarray:
    """Integers [filters, channels, taps] as numbers of 32 bits, each so many neighbouring channels."""
    filters, channels, taps = flat.shape
    words = -(-channels // together)
    padded = np.zeros((filters, words * together, taps), flat.dtype)
    padded[:, :channels] = flat
    parts = padded.reshape(filters, words, together, taps).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(parts).view(np.int32)[..., 0]


def dot_weights(flat: np.ndarray, tile: Tile) -> np.ndarray:
    """Weights [filters, channels, taps] as [input block][tap][filter][lane]."""
    filters, channels, taps = flat.shape
    padded = np.zeros((filters, tile.depth * tile.lanes, taps), np.float32)
    padded[:, :channels] = flat
    return padded.reshape(filters, tile.depth, tile.lanes, taps).transpose(1, 3, 0, 2).ravel()


def grouped_weights(flat: np.ndarray, lanes: int) -> np.ndarray:
    """Weights [filters, channels of a group, taps] as [block][tap][channel of the group][lane]."""
    filters, each, taps = flat.shape
    blocks = block_count(filters, lanes)
    padded = np.zeros((blocks * lanes, each, taps), np.float32)
    padded[:filters] = flat
    return padded.reshape(blocks, lanes, each, taps).transpose(0, 3, 2, 1).ravel()
