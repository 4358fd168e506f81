"""Packing of convolution weights at compile time."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.codegen.integer_dot import entries
from sardonyx.compiler.target.alignment import aligned_zeros
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import block_count


def direct_weights(flat: np.ndarray, tile: Tile) -> np.ndarray:
    """Pack weights [filters, channels of a group, taps] for direct tiles.

    For each group of output blocks: [input block][tap][input channel of the block][output block][lane].
    """
    group_channels, taps = flat.shape[1:]
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
                at = filter // produced * group_channels - seen
                _put_channels(part[..., filter - first : filter - first + 1], flat[filter].T[..., np.newaxis], at)
    return packed


CORRECTION_INDICES = 5
"""Indices of the input of a correction: the input block, the tap along three axes, and the channel."""


def correction_weights(flat: np.ndarray, tile: Tile, window: tuple[int, ...]) -> np.ndarray:
    """Pack overflow corrections [filters, channels, taps] as :func:`.entries` with input indices.

    Each entry has :data:`CORRECTION_INDICES` indices.
    """
    filters, channels, taps = flat.shape
    indices = np.empty((channels, taps, CORRECTION_INDICES), np.int32)
    for axis, numbers in zip((0, 4), np.divmod(np.arange(channels), tile.inner), strict=True):
        indices[..., axis] = numbers[:, np.newaxis]
    for axis, numbers in enumerate(np.unravel_index(np.arange(taps), (1,) * (3 - len(window)) + window), 1):
        indices[..., axis] = numbers
    return entries(
        flat.reshape(filters, -1), indices.reshape(-1, CORRECTION_INDICES), tile.blocks * tile.lanes, tile.lanes
    )


def _put_channels(blocks: np.ndarray, channels: np.ndarray, at: int) -> None:
    """Store channels [taps, channels, filters] in blocks [block, tap, channel, filter] from ``at`` on."""
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


def pack_channels(flat: np.ndarray, dot_width: int) -> np.ndarray:
    """Pack integers or bfloat16 [filters, channels, taps] into 32-bit words of ``dot_width`` adjacent channels."""
    filters, channels, taps = flat.shape
    words = -(-channels // dot_width)
    padded = np.zeros((filters, words * dot_width, taps), flat.dtype)
    padded[:, :channels] = flat
    parts = padded.reshape(filters, words, dot_width, taps).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(parts).view(np.int32)[..., 0]


def dot_weights(flat: np.ndarray, tile: Tile) -> np.ndarray:
    """Pack weights [filters, channels, taps] as [input block][tap][filter][lane]."""
    filters, channels, taps = flat.shape
    padded = np.zeros((filters, tile.depth * tile.lanes, taps), np.float32)
    padded[:, :channels] = flat
    return padded.reshape(filters, tile.depth, tile.lanes, taps).transpose(1, 3, 0, 2).ravel()


def grouped_weights(flat: np.ndarray, lanes: int) -> np.ndarray:
    """Pack weights [filters, channels of a group, taps] as [block][tap][channel of the group][lane]."""
    filters, group_channels, taps = flat.shape
    blocks = block_count(filters, lanes)
    padded = np.zeros((blocks * lanes, group_channels, taps), np.float32)
    padded[:filters] = flat
    return padded.reshape(blocks, lanes, group_channels, taps).transpose(0, 3, 2, 1).ravel()
