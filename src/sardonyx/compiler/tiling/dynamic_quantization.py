"""Estimated gain of products of integers whose input a call quantizes by its own range.

Costs are scalar FMAs, as those of convolutions. Integers shorten the products; the range and the codes of the input, in
kernels of their own, take time.
"""

from __future__ import annotations

from dataclasses import replace

from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.convolution import ConvolutionProblem, choose_convolution
from sardonyx.core.ir import types as t

_WIDTH = 4
"""Adjacent channels of 8 bits in a lane."""


def convolution_saving(problem: ConvolutionProblem, target: Target) -> float:
    """Return the scalar FMAs that integers save in a convolution of float32; below 0 if they take longer.

    Args:
        problem: The convolution of floats, of one group.
        target: The processor.
    """
    if target.together(8) < _WIDTH:
        return 0.0
    chosen = choose_convolution(problem, target).cost
    floats = problem.fmas if chosen is None else chosen
    padded = -(-problem.channels // _WIDTH) * _WIDTH
    return floats - replace(problem, channels=padded, dtype=t.UINT8, dot_width=_WIDTH).fmas * _share(target)


def product_saving(rows: int, depth: int, columns: int, target: Target) -> float:
    """Return the scalar FMAs that integers save in a matrix product of float32 by constant weights."""
    if target.together(8) < _WIDTH:
        return 0.0
    # Few rows wait for the weights, which have a quarter of the bytes.
    floats = max(rows, costs.L2_LOAD_FMAS)
    integers = max(rows * _share(target), costs.L2_LOAD_FMAS / _WIDTH)
    return depth * columns * (floats - integers)


def quantization_cost(elements: int, target: Target) -> float:
    """Return the scalar FMAs in the time in which a call quantizes an input by its range."""
    return elements * costs.DYNAMIC_INPUT_FMAS * 16 / target.lanes(32) + costs.DYNAMIC_KERNELS_FMAS


def _share(target: Target) -> float:
    """Return the time of a product of bytes over that of a product of float32."""
    return (costs.INTEGER_QUAD_FMAS if target.saturates else 1.0) / _WIDTH
