"""Direct, dot-product and grouped convolutions: packing of the weights, and the kernel of a form."""

from __future__ import annotations

import math

import numpy as np

from sardonyx.compiler.codegen.integer_dot import parted
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Kernel
from sardonyx.compiler.kernels.conv.direct import DirectConvolution
from sardonyx.compiler.kernels.conv.dot import DotConvolution
from sardonyx.compiler.kernels.conv.grouped import grouped
from sardonyx.compiler.kernels.conv.weight_layouts import (
    correction_weights,
    direct_weights,
    dot_weights,
    grouped_weights,
    pack_channels,
)
from sardonyx.compiler.kernels.conv.window_sweep import Image, Sweep
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import Windows
from sardonyx.core.dim import Size


def pack_weights(weights: np.ndarray, tile: Tile) -> np.ndarray:
    """Return the weights in the order in which :func:`convolution` reads them.

    Args:
        weights: [groups, filters of a group, channels of a group, *window], of any float type, or of the type that the
            tile multiplies in words.
        tile: The register tile and form.

    Returns:
        A flat array of float32 or int32.
    """
    group_channels, window = weights.shape[2], weights.shape[3:]
    flat = weights.reshape(tile.filters, group_channels, math.prod(window))
    if tile.corrects_overflow:
        main, corrections = (pack_channels(part, tile.dot_width) for part in _split_corrections(flat))
        return np.concatenate([direct_weights(main, tile), correction_weights(corrections, tile, window)])
    if tile.dot_width > 1:
        return direct_weights(pack_channels(flat, tile.dot_width), tile)
    flat = flat.astype(np.float32, copy=False)
    if tile.form == "dot":
        return dot_weights(flat, tile)
    return grouped_weights(flat, tile.lanes) if tile.form == "grouped" else direct_weights(flat, tile)


def _split_corrections(flat: np.ndarray) -> list[np.ndarray]:
    """Split int8 weights [filters, channels, taps] into main weights and corrections, see :func:`.parted`."""
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
    outputs: int = 0,
) -> Size:
    """Write a direct, dot-product or grouped convolution of floats, or a direct one of packed integers or bfloat16.

    The epilogue gets vectors of ``tile.lanes`` output channels at one position: image, channel (a multiple of the
    lanes, lane by lane), then the spatial axes. Vectors are whole, without a mask: lanes past the last filter hold
    zeros, as the padding of a blocked image requires. An epilogue with another layout omits these lanes.

    Args:
        kernel: The kernel.
        x: The image.
        weights: The packed weights, see :func:`pack_weights`.
        batch: Number of images.
        windows: The windows, with the rank of the image.
        out: The spatial sizes of the output.
        tile: The tile, see :func:`~sardonyx.compiler.tiling.convolution.choose_convolution`.
        epilogue: Consumes the results.
        outputs: Outputs of a register tile of a grouped convolution.

    Returns:
        The number of work items.
    """
    if tile.form == "grouped":
        return grouped(
            kernel, x=x, weights=weights, batch=batch, windows=windows, out=out, epilogue=epilogue,
            size=tile.channels // tile.groups, outputs=outputs,
        )  # fmt: skip
    shared = tile.channels if tile.groups == 1 else 0
    sweep = Sweep(kernel, x, windows, out, batch, tile.tiles, outputs=tile.outputs, shared=shared)
    template = DotConvolution if tile.form == "dot" else DirectConvolution
    template(sweep, x, weights, tile, epilogue).write()
    return sweep.items
