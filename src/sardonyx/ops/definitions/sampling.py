"""Images read at real coordinates, as *DeformConv*, *GridSample* and *RoiAlign* share it: no operator of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.dim import Size
from sardonyx.core.language import Tensor

Coordinates = Sequence[Tensor]
"""A tensor for each spatial axis, of one shape [N, *points]."""

Pixels = Callable[[Coordinates], Tensor]
"""From integer coordinates to the values there, [N, *points, C]."""


def pixels_or_zero(x: Tensor) -> Pixels:
    """The pixels of images [N, C, *spatial], and 0 outside of them."""
    by_place = L.permute(x, [0, *range(2, x.rank), 1])
    sizes = x.shape[2:]

    def at(where: Coordinates) -> Tensor:
        inside = L.constant(True)
        for coordinate, size in zip(where, sizes, strict=True):
            inside = inside & ((coordinate >= 0) & (coordinate < number(size)))
        found = L.gather_nd(by_place, _nearest(where, sizes), batch=1)
        return L.where(L.unsqueeze(inside, [-1]), found, 0)

    return at


def pixels_or_border(x: Tensor) -> Pixels:
    """The pixels of images [N, C, *spatial], and outside of them the nearest."""
    by_place = L.permute(x, [0, *range(2, x.rank), 1])
    return lambda where: L.gather_nd(by_place, _nearest(where, x.shape[2:]), batch=1)


def _nearest(where: Coordinates, sizes: Sequence[Size]) -> Tensor:
    """Index vectors of the nearest places inside."""
    parts = [L.clip(c, 0, number(size) - 1) for c, size in zip(where, sizes, strict=True)]
    return L.concat([L.unsqueeze(part, [-1]) for part in parts], -1)


def number(size: Size, dtype: t.DType = t.INT64) -> Tensor:
    """A size as a scalar."""
    return L.cast(L.size_tensor([size], ()), dtype)


def linear(pixels: Pixels, where: Coordinates) -> Tensor:
    """The values at real coordinates, [N, *points, C], interpolated between the corners of the cell around them."""
    below = [L.floor(coordinate) for coordinate in where]
    past = [coordinate - floor for coordinate, floor in zip(where, below, strict=True)]
    found: Tensor | None = None
    for corner in itertools.product((0, 1), repeat=len(where)):
        weight = L.constant(1, where[0].dtype)
        for fraction, upper in zip(past, corner, strict=True):
            weight = weight * (fraction if upper else 1 - fraction)
        value = pixels([L.cast(floor, t.INT64) + upper for floor, upper in zip(below, corner, strict=True)])
        part = value * L.unsqueeze(weight, [-1])
        found = part if found is None else found + part
    assert found is not None
    return found
