"""The gradient of a convolution's weights: a ``convolve`` of the input by the gradient of the result.

Core writes it with exchanged axes: channels are the batch, samples are the channels, and the kernel is as large as the
result of the convolution. The positions of the result of this ``convolve`` are the taps of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

MOST_TAPS = 64
"""Most taps of weights whose gradient has a kernel, or is a product with the windows of the input."""

FEWEST_POSITIONS = 32
"""Fewest positions of a sample for which the kernel's sums stay in registers for long enough."""


@dataclass(frozen=True)
class WeightGradient:
    """A gradient of the weights of a convolution with known sizes but for the batch.

    Attributes:
        core: The ``convolve``, ``[groups, channels, filters, *taps]``.
        result: The permuted value, ``[groups, filters, channels, *taps]``.
        strides: Strides of the convolution.
        dilation: Distances of the taps.
        low: Padding before the input.
    """

    core: Value
    result: Value
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of groups."""
        return _known(shape_of(self.core)[0])

    @property
    def channels(self) -> int:
        """Channels of a group."""
        return _known(shape_of(self.core)[1])

    @property
    def filters(self) -> int:
        """Filters of a group."""
        return _known(shape_of(self.core)[2])

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps of the weights along each spatial axis."""
        return tuple(map(_known, shape_of(self.core)[3:]))

    @property
    def batch(self) -> Size:
        """Number of samples."""
        return shape_of(self.core.operands[0])[2]

    @property
    def image(self) -> tuple[int, ...]:
        """Spatial sizes of the input."""
        return tuple(map(_known, shape_of(self.core.operands[0])[3:]))

    @property
    def positions(self) -> tuple[int, ...]:
        """Spatial sizes of the convolution's result."""
        return tuple(map(_known, shape_of(self.core.operands[1])[3:]))


def _known(size: Size) -> int:
    assert isinstance(size, int)
    return size


def known_product(sizes: Sequence[Size]) -> int | None:
    """Return the product of sizes; None if a size is open."""
    return (
        math.prod(size for size in sizes if isinstance(size, int))
        if all(isinstance(size, int) for size in sizes)
        else None
    )


def is_weight_gradient(core: Value) -> bool:
    """Return True if a ``convolve`` has the form of a gradient of weights: two exchanged operands, more positions."""
    if any(operand.is_constant for operand in core.operands) or any(
        operand.op != "permute" or not _exchanges(operand) for operand in core.operands
    ):
        return False
    taps, positions = known_product(shape_of(core)[3:]), known_product(shape_of(core.operands[1])[3:])
    if taps is None or taps > MOST_TAPS:
        return False
    return positions != 1 or shape_of(core.operands[0])[2] != 1


def _exchanges(permute: Value) -> bool:
    """Return True if a permute ends in the axes of an image whose samples and channels are exchanged."""
    axes = permute.params["axes"]
    return bool(axes[-1] == len(axes) - 1 and axes[1] > axes[2])


def has_kernel(core: Value) -> bool:
    """Return True if the kernel of weight gradients computes a ``convolve``."""
    if not is_weight_gradient(core) or dtype_of(core) != t.FLOAT:
        return False
    groups, channels, filters, *taps = shape_of(core)
    image, positions = shape_of(core.operands[0])[3:], shape_of(core.operands[1])[3:]
    if len(taps) not in (1, 2) or not known_product((groups, channels, filters, *taps, *image)):
        return False
    if any(dtype_of(operand) != t.FLOAT for operand in core.operands):
        return False
    if (known_product(positions) or 0) < FEWEST_POSITIONS:
        return False
    params = core.params
    lows = [low for low, _ in params["padding"]]
    return all(step == 1 for step in params["base_dilation"]) and all(isinstance(x, int) and x >= 0 for x in lows)


def match_weight_gradient(core: Value, users: Mapping[Value, list[Value]]) -> WeightGradient | None:
    """Match a ``convolve`` that has a kernel, with the permute after it; None for others."""
    if not has_kernel(core) or len(users[core]) != 1:
        return None
    (after,) = users[core]
    if after.op != "permute" or after.params["axes"] != (0, 2, 1, *range(3, len(shape_of(core)))):
        return None
    params = core.params
    low = tuple(pair[0] for pair in params["padding"])
    return WeightGradient(core, after, params["kernel_dilation"], params["strides"], low)
