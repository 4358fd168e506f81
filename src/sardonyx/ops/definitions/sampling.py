"""Images read at real coordinates, as *DeformConv*, *GridSample* and *RoiAlign* share it: no operator of its own."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence

from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.language import Tensor

Coordinates = Sequence[Tensor]
"""A tensor for each spatial axis, together of shape [N, *points]."""

Pixels = Callable[[Coordinates], Tensor]
"""From integer coordinates to the values there, [N, *points, C]."""


def pixels_or_zero(x: Tensor) -> Pixels:
    """The pixels of images [N, C, *spatial], and 0 outside of them."""
    nearest = pixels_or_border(x)

    def at(where: Coordinates) -> Tensor:
        inside = L.constant(True)
        for coordinate, size in zip(where, x.shape[2:], strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < L.number(size))
        return L.where(L.unsqueeze(inside, [-1]), nearest(where), 0)

    return at


def pixels_or_border(x: Tensor, image: Tensor | None = None) -> Pixels:
    """The pixels of images [N, C, *spatial], and outside of them the nearest.

    Args:
        x: The images.
        image: Which of them each point is in, in place of one row of points for each.
    """
    by_place = L.permute(x, [0, *range(2, x.rank), 1])

    def at(where: Coordinates) -> Tensor:
        nearest = [L.clip(c, 0, L.number(size) - 1) for c, size in zip(where, x.shape[2:], strict=True)]
        if image is not None:
            nearest = [image, *nearest]
        shape = L.broadcast_shapes(*(index.shape for index in nearest))
        vectors = L.concat([L.unsqueeze(L.broadcast_to(index, shape), [-1]) for index in nearest], -1)
        return L.gather_nd(by_place, vectors, batch=1 if image is None else 0)

    return at


def corners(pixels: Pixels, where: Coordinates) -> Iterator[Tensor]:
    """The corners of the cells around real coordinates, times their weights: each [N, *points, C]."""
    below = [L.floor(coordinate) for coordinate in where]
    past = [coordinate - floor for coordinate, floor in zip(where, below, strict=True)]
    for corner in itertools.product((0, 1), repeat=len(where)):
        weight = L.constant(1, where[0].dtype)
        for fraction, upper in zip(past, corner, strict=True):
            weight = weight * (fraction if upper else 1 - fraction)
        place = [L.cast(floor, t.INT64) + upper for floor, upper in zip(below, corner, strict=True)]
        yield pixels(place) * L.unsqueeze(weight, [-1])


def linear(pixels: Pixels, where: Coordinates) -> Tensor:
    """The values at real coordinates, [N, *points, C], interpolated between the corners of the cells around them."""
    return functools.reduce(operator.add, corners(pixels, where))
