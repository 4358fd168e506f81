"""Image sampling at real coordinates, shared by *DeformConv*, *GridSample* and *RoiAlign*."""

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
"""A tensor for each spatial axis, broadcasting to the shape [N, *points]."""

Pixels = Callable[[Coordinates], Tensor]
"""Function from integer coordinates to pixel values, [N, *points, C]."""


def pixels_or_zero(x: Tensor) -> Pixels:
    """Return the pixels of images [N, C, *spatial] as a function, 0 outside of the images."""
    nearest = pixels_or_border(x)

    def at(coordinates: Coordinates) -> Tensor:
        inside = L.constant(True)
        for coordinate, size in zip(coordinates, x.shape[2:], strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < L.number(size))
        return L.where(L.unsqueeze(inside, [-1]), nearest(coordinates), 0)

    return at


def pixels_or_border(x: Tensor, image: Tensor | None = None) -> Pixels:
    """Return the pixels of images [N, C, *spatial] as a function, outside of the images the nearest pixel.

    Args:
        x: The images.
        image: Index of the image of each point; without it, row ``i`` of points belongs to image ``i``.
    """
    by_place = L.permute(x, [0, *range(2, x.rank), 1])

    def at(coordinates: Coordinates) -> Tensor:
        nearest = [L.clip(c, 0, L.number(size) - 1) for c, size in zip(coordinates, x.shape[2:], strict=True)]
        if image is not None:
            nearest = [image, *nearest]
        shape = L.broadcast_shapes(*(index.shape for index in nearest))
        vectors = L.concat([L.unsqueeze(L.broadcast_to(index, shape), [-1]) for index in nearest], -1)
        return L.gather_nd(by_place, vectors, batch=1 if image is None else 0, from_end=False)

    return at


def pixels_reflected(x: Tensor, align_corners: bool) -> Pixels:
    """Return the pixels of images [N, C, *spatial] as a function, reflected at each border."""
    nearest = pixels_or_border(x)
    ends = [mirrors(size, align_corners, t.FLOAT) for size in x.shape[2:]]
    return lambda coordinates: nearest(
        [L.cast(reflect(L.cast(c, t.FLOAT), *pair), t.INT64) for c, pair in zip(coordinates, ends, strict=True)]
    )


def mirrors(size: Size, align_corners: bool, dtype: t.DType) -> tuple[Tensor, Tensor]:
    """Return the reflection positions of an axis: the centres of the outer pixels, or their edges."""
    last = L.number(size, dtype) - 1
    return (0 * last, last) if align_corners else (0 * last - 0.5, last + 0.5)


def reflect(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Reflect coordinates into the interval between two mirrors; an interval of length 0 gives ``low``."""
    extent = high - low
    beyond = L.abs_(x - low)
    times = L.floor(beyond / extent)
    rest = beyond - times * extent
    odd = L.equal(L.remainder(times, 2), 1)
    return L.where(L.equal(extent, 0), low, L.where(odd, high - rest, low + rest))


Weights = Callable[[Tensor], Sequence[tuple[int, Tensor]]]
"""Function from a fractional coordinate, 0 to 1, to pairs (offset from the lower pixel, weight)."""


def linear_weights(past: Tensor) -> Sequence[tuple[int, Tensor]]:
    """Return offsets and weights of the two pixels around a coordinate."""
    return [(0, 1 - past), (1, past)]


def cubic_weights(past: Tensor) -> Sequence[tuple[int, Tensor]]:
    """Return offsets and weights of the four pixels around a coordinate, by Keys's kernel with a = -0.75."""
    return [(offset, cubic(L.abs_(past - offset), -0.75)) for offset in (-1, 0, 1, 2)]


def cubic(distance: Tensor, a: float) -> Tensor:
    """Evaluate Keys's kernel (R. G. Keys, Cubic convolution interpolation, 1981, equation 4)."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return L.where(d <= 1, near, L.where(d < 2, far, 0))


def to_interpolable(x: Tensor) -> Tensor:
    """Convert pixels to a type that represents interpolated values.

    Raises:
        TypeMismatchError: The pixels are strings.
    """
    if x.dtype == t.STRING:
        raise TypeMismatchError("strings cannot be interpolated.", remedy="Use the mode 'nearest'.")
    return x if x.dtype in (t.DOUBLE, t.COMPLEX64, t.COMPLEX128) else L.cast(x, t.FLOAT)


def coordinate_dtype(x: Tensor) -> t.DType:
    """Return the type of coordinates in an image."""
    return t.DOUBLE if x.dtype in (t.DOUBLE, t.COMPLEX128) else t.FLOAT


def weighted_pixels(pixels: Pixels, coordinates: Coordinates, weights: Weights = linear_weights) -> Iterator[Tensor]:
    """Yield the neighbouring pixels at real coordinates, times their weights, each [N, *points, C]."""
    below = [L.floor(coordinate) for coordinate in coordinates]
    along = [weights(coordinate - floor) for coordinate, floor in zip(coordinates, below, strict=True)]
    for taps in itertools.product(*along):
        position = [L.cast(floor, t.INT64) + offset for floor, (offset, _) in zip(below, taps, strict=True)]
        weight = functools.reduce(operator.mul, [weight for _, weight in taps])
        read = pixels(position)
        yield read * L.cast(L.unsqueeze(weight, [-1]), read.dtype)


def interpolate(pixels: Pixels, coordinates: Coordinates, weights: Weights = linear_weights) -> Tensor:
    """Return the values at real coordinates, [N, *points, C]."""
    return functools.reduce(operator.add, weighted_pixels(pixels, coordinates, weights))
