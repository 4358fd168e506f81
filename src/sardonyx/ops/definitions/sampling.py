"""Images read at real coordinates, as *DeformConv*, *GridSample* and *RoiAlign* share it: no operator of its own."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import TypeMismatchError

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
        return L.gather_nd(by_place, vectors, batch=1 if image is None else 0, from_end=False)

    return at


def pixels_reflected(x: Tensor, align_corners: bool) -> Pixels:
    """The pixels of images [N, C, *spatial], which outside of them repeat as in a mirror at each border."""
    nearest = pixels_or_border(x)
    ends = [mirrors(size, align_corners, t.FLOAT) for size in x.shape[2:]]
    return lambda where: nearest(
        [L.cast(reflected(L.cast(c, t.FLOAT), *pair), t.INT64) for c, pair in zip(where, ends, strict=True)]
    )


def mirrors(size: Size, align_corners: bool, dtype: t.DType) -> tuple[Tensor, Tensor]:
    """Where images end: at the centres of the outer pixels, or at their edges."""
    last = L.number(size, dtype) - 1
    return (0 * last, last) if align_corners else (0 * last - 0.5, last + 0.5)


def reflected(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Coordinates brought between two mirrors; ``low`` where these are at one place."""
    extent = high - low
    beyond = L.abs_(x - low)
    times = L.floor(beyond / extent)
    left = beyond - times * extent
    odd = L.equal(L.remainder(times, 2), 1)
    return L.where(L.equal(extent, 0), low, L.where(odd, high - left, low + left))


Weights = Callable[[Tensor], Sequence[tuple[int, Tensor]]]
"""From where a coordinate lies in its cell, 0 to 1, to the pixels that count: offset from the lower one, and weight."""


def linear_weights(past: Tensor) -> Sequence[tuple[int, Tensor]]:
    """Of the two pixels around a coordinate."""
    return [(0, 1 - past), (1, past)]


def cubic_weights(past: Tensor) -> Sequence[tuple[int, Tensor]]:
    """Of the four pixels around a coordinate, by Keys's kernel with -0.75."""
    return [(offset, cubic(L.abs_(past - offset), -0.75)) for offset in (-1, 0, 1, 2)]


def cubic(distance: Tensor, a: float) -> Tensor:
    """Keys's kernel: R. G. Keys, Cubic convolution interpolation for digital image processing, 1981, equation (4)."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return L.where(d <= 1, near, L.where(d < 2, far, 0))


def between(x: Tensor) -> Tensor:
    """The pixels in a type that holds what lies between two of them.

    Raises:
        TypeMismatchError: They are texts.
    """
    if x.dtype == t.STRING:
        raise TypeMismatchError("texts cannot be interpolated.", remedy="Take the nearest.")
    return x if x.dtype in (t.DOUBLE, t.COMPLEX64, t.COMPLEX128) else L.cast(x, t.FLOAT)


def precision(x: Tensor) -> t.DType:
    """The type of coordinates in an image."""
    return t.DOUBLE if x.dtype in (t.DOUBLE, t.COMPLEX128) else t.FLOAT


def weighted(pixels: Pixels, where: Coordinates, weights: Weights = linear_weights) -> Iterator[Tensor]:
    """The pixels that count at real coordinates, times their weights: each [N, *points, C]."""
    below = [L.floor(coordinate) for coordinate in where]
    along = [weights(coordinate - floor) for coordinate, floor in zip(where, below, strict=True)]
    for taps in itertools.product(*along):
        place = [L.cast(floor, t.INT64) + offset for floor, (offset, _) in zip(below, taps, strict=True)]
        weight = functools.reduce(operator.mul, [weight for _, weight in taps])
        read = pixels(place)
        yield read * L.cast(L.unsqueeze(weight, [-1]), read.dtype)


def interpolated(pixels: Pixels, where: Coordinates, weights: Weights = linear_weights) -> Tensor:
    """The values at real coordinates, [N, *points, C]."""
    return functools.reduce(operator.add, weighted(pixels, where, weights))
