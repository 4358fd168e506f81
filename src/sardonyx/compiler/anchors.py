"""Anchors: the contractions that a kernel is built around, as the templates want them.

Core writes a convolution over ``[G, N, C, spatial]``; the movements that bring an image there and back are part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.compiler.views import shape_of
from sardonyx.core.dim import Size, equal
from sardonyx.core.graph import Value


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image.

    Attributes:
        core: The ``convolve`` value.
        result: The image that it gives, ``[N, G * M, spatial]``.
        image: The image that it reads, ``[N, G * C, spatial]``.
        weights: ``[G, M, C, kernel]``.
        groups: How many groups.
        absorbed: The movements between the images and the ``convolve``.
    """

    core: Value
    result: Value
    image: Value
    weights: Value
    groups: int
    absorbed: tuple[Value, ...]


def convolution(core: Value, users: Mapping[Value, list[Value]]) -> Convolution | None:
    """A ``convolve`` as a convolution of images; None where it stands among other movements."""
    operand, weights = core.operands
    groups = shape_of(core)[0]
    rank = len(shape_of(core))
    swapped = (1, 0, *range(2, rank))
    if not isinstance(groups, int) or operand.op != "permute" or operand.params["axes"] != swapped:
        return None
    before = operand.operands[0]
    if before.op != "reshape":
        return None
    image = before.operands[0]
    (after,) = users[core] if len(users[core]) == 1 else (None,)
    if after is None or after.op != "permute" or after.params["axes"] != swapped or len(users[after]) != 1:
        return None
    result = users[after][0]
    if result.op != "reshape":
        return None
    n, c = shape_of(operand)[1], shape_of(operand)[2]
    m = shape_of(core)[2]
    if not _is_image(image, n, c * groups, shape_of(operand)[3:]):
        return None
    if not _is_image(result, n, m * groups, shape_of(core)[3:]):
        return None
    return Convolution(core, result, image, weights, groups, (before, operand, core, after))


def _is_image(value: Value, batch: Size, channels: Size, spatial: tuple[Size, ...]) -> bool:
    wanted = (batch, channels, *spatial)
    return len(shape_of(value)) == len(wanted) and all(
        a == b or equal(a, b) for a, b in zip(shape_of(value), wanted, strict=True)
    )
