"""Packings of weights: the ways to compute :class:`.Prepared` data, as values.

A packing refers to constants as Core values and holds all else as plain data, so that it can be stored with its kernel
and applied to the weights of another model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.low_bit_weights import LowBitWeights
from sardonyx.compiler.analysis.strided_views import View
from sardonyx.compiler.codegen.integer_dot import entries, parted
from sardonyx.compiler.kernels.conv.convolution import pack_weights
from sardonyx.compiler.kernels.conv.depthwise_bytes import pack_byte_weights
from sardonyx.compiler.kernels.conv.grouped import pack_depthwise_weights
from sardonyx.compiler.kernels.conv.matrix import pack_matrix_weights
from sardonyx.compiler.kernels.conv.nchw import pack_planar_weights
from sardonyx.compiler.kernels.gemm.gemm import pack
from sardonyx.compiler.kernels.gemm.low_bits import pack_codes
from sardonyx.compiler.kernels.matrix_tiles import WORDS
from sardonyx.compiler.lower.launch import Read
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import winograd
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.gemm_schedule import GemmSchedule
from sardonyx.compiler.tiling.matrix_convolution import MatrixConvolution
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType


@dataclass(frozen=True)
class PanelPacking:
    """Weights of a product in panels of columns.

    Attributes:
        weights: The weights.
        summed: The axes along K.
        columns: The axes of the columns.
        k: Steps of K, each of ``dot_width`` elements.
        schedule: The schedule of the product.
    """

    weights: View
    summed: tuple[int, ...]
    columns: tuple[int, ...]
    k: int
    schedule: GemmSchedule

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        layout, tile = self.schedule.packed_layout, self.schedule.tile
        array = _strided(self.weights, read).transpose(*self.summed, *self.columns)
        array = array.reshape(self.k * layout.dot_width, math.prod(array.shape[len(self.summed) :]))
        if self.schedule.form == "matrix":
            array = np.pad(array, ((0, -len(array) % (WORDS * layout.dot_width)), (0, 0)))
        if layout.overflow_correction:
            terms = array.T.reshape(array.shape[1], -1, 2)
            main, apart = (_words(part.reshape(len(terms), -1).T, layout.dot_width) for part in parted(terms))
            steps = np.arange(self.k, dtype=np.int32)[:, np.newaxis]
            table = entries(apart.T, steps, tile.columns, tile.lanes)
            return np.concatenate([pack(main, layout).ravel(), table])
        return pack(_words(array, layout.dot_width) if layout.dot_width > 1 else array, layout)


@dataclass(frozen=True)
class LowBitPacking:
    """Weights of few bits in panels of columns.

    Attributes:
        weights: The weights.
        columns: Columns of a panel.
    """

    weights: LowBitWeights
    columns: int

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        packed, scale, zero = self.weights.packed, self.weights.scale, self.weights.zero
        zeros = None if zero is None else read(zero)[:, 0]
        return pack_codes(read(packed), read(scale)[:, 0], zeros, self.weights.form, self.columns)


@dataclass(frozen=True)
class FilterPacking:
    """Weights of a direct convolution, for a register tile; ``window`` has the axes along which the kernel moves."""

    weights: Value
    tile: Tile
    window: tuple[int, ...]

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        weights = read(self.weights)
        return pack_weights(weights.reshape(*weights.shape[:3], *self.window), self.tile)


@dataclass(frozen=True)
class DepthwisePacking:
    """Weights of a depthwise convolution of an image less ``shift``.

    Attributes:
        weights: The weights.
        target: The processor.
        window: Taps along the axes along which the kernel moves.
        shift: Integer that is subtracted from each integer of the image.
    """

    weights: Value
    target: Target
    window: tuple[int, ...]
    shift: int = 0

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        weights = read(self.weights)
        return pack_depthwise_weights(weights.reshape(*weights.shape[:3], *self.window), self.target, self.shift)


@dataclass(frozen=True)
class DepthwiseBytePacking:
    """Weights of a depthwise convolution of an image of codes less ``shift``, in words.

    Attributes:
        weights: The weights.
        target: The processor.
        window: Taps along the axes along which the kernel moves.
        stride: Inputs from output to output of a row.
        shift: Integer that is subtracted from each code of the image.
        dtype: The element type of the image.
    """

    weights: Value
    target: Target
    window: tuple[int, ...]
    stride: int
    shift: int
    dtype: DType

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        weights = read(self.weights)
        rows = weights.reshape(*weights.shape[:3], *self.window)
        return pack_byte_weights(rows, self.target, self.stride, self.shift, self.dtype)


@dataclass(frozen=True)
class PlanarPacking:
    """Weights of a convolution of an NCHW image."""

    weights: Value

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        return pack_planar_weights(read(self.weights))


@dataclass(frozen=True)
class MatrixUnitPacking:
    """Weights of a convolution on the matrix unit."""

    weights: Value
    plan: MatrixConvolution

    def __call__(self, read: Read) -> np.ndarray:
        """Return the packed weights."""
        return pack_matrix_weights(read(self.weights), self.plan)


@dataclass(frozen=True)
class WinogradPacking:
    """Weights of Winograd's convolution, transformed.

    Attributes:
        weights: The weights.
        tile: Rows and columns of a tile's results.
        target: The processor.
        fresh: True if kernels transform the weights in the call, and the weights are only packed.
    """

    weights: Value
    tile: tuple[int, int]
    target: Target
    fresh: bool

    def __call__(self, read: Read) -> np.ndarray:
        """Return the transformed or packed weights."""
        array = read(self.weights)[0]
        if array.dtype.kind == "i":
            return winograd.transform_integers(array, self.tile, self.target)
        source = array.astype(np.float32, copy=False)
        if self.fresh:
            return winograd.pack_weights(source, self.target)
        return winograd.transform_weights(source, self.tile, self.target)


def _words(array: np.ndarray, dot_width: int) -> np.ndarray:
    """Return small integers [K, columns] as 32-bit words of adjacent elements along K."""
    depth, columns = array.shape
    words = array.reshape(depth // dot_width, dot_width, columns).swapaxes(1, 2)
    return np.ascontiguousarray(words).view(np.int32)[..., 0]


def _strided(view: View, read: Read) -> np.ndarray:
    """Return the elements of a view of a constant."""
    array = np.ascontiguousarray(read(view.base)).reshape(-1)
    steps = [int(step) * array.itemsize for step in view.strides]  # type: ignore[arg-type]
    return np.lib.stride_tricks.as_strided(array[int(view.offset) :], view.shape, steps)  # type: ignore[arg-type]
