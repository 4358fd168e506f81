"""Tensor operators of ONNX Runtime: early or additional forms of standard ones, and others.

Source: ONNX Runtime's contrib operators, *Pad* to *NGramRepeatBlock*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError, UnsupportedError
from sardonyx.ops.definitions import grids, movement, regions, sources
from sardonyx.ops.registry import find, operator

DOMAIN = "com.microsoft"

operator("Trilu", since=1, domain=DOMAIN)(movement.trilu)


@operator("Pad", since=1, domain=DOMAIN)
def pad(data: Tensor, pads: Tensor, value: Tensor | None = None, *, mode: str = "constant") -> Tensor:
    return regions.pad(data, L.reshape(pads, (L.product(pads.shape),)), value, mode=mode)


@operator("Range", since=1, domain=DOMAIN)
def range_(start: Tensor, limit: Tensor, delta: Tensor | None = None) -> Tensor:
    return sources.range_(start, limit, L.constant(1, start.dtype) if delta is None else delta)


@operator("ExpandDims", since=1, domain=DOMAIN)
def expand_dims(x: Tensor, axis: Tensor) -> Tensor:
    return L.unsqueeze(x, [int(L.static_scalar(axis, "the axis of ExpandDims"))])


_EXPONENTS = {"chebyshev": math.inf, "cityblock": 1.0, "euclidean": 2.0, "manhattan": 1.0, "sqeuclidean": 2.0}
"""The exponent p of the metrics that are special cases of Minkowski's."""


@operator("CDist", since=1, domain=DOMAIN)
def cdist(a: Tensor, b: Tensor, *, metric: str = "sqeuclidean", p: float = 2.0) -> Tensor:
    """Return the distance of each row of ``a`` [M, K] to each row of ``b`` [N, K], as [M, N].

    ONNX Runtime computes Euclidean distances alone; skl2onnx writes other metrics, and ``p`` for Minkowski's.
    """
    if metric not in (*_EXPONENTS, "minkowski"):
        raise InvalidModelError(
            f"unknown metric {metric!r}; expected one of {', '.join(sorted([*_EXPONENTS, 'minkowski']))}."
        )
    exponent = _EXPONENTS.get(metric, p)
    if not exponent > 0:
        raise InvalidModelError(f"expected a positive `p`, got {p}.")
    if a.rank != 2 or b.rank != 2:
        raise InvalidModelError(f"expected two matrices, got ranks {a.rank} and {b.rank}.")
    difference = L.unsqueeze(a, [1]) - L.unsqueeze(L.of_shape(b, (b.shape[0], a.shape[1]), "the rows of CDist"), [0])
    if exponent == 2:
        squares = L.reduce_sum(difference * difference, [-1])
        return squares if metric == "sqeuclidean" else L.sqrt(squares)
    distance = L.abs_(difference)
    if math.isinf(exponent):  # Rows without elements have a distance of 0.
        return L.reduce_max(L.pad(distance, (0, 0, 0), (0, 0, 1)), [-1])
    return L.reduce_sum(distance, [-1]) if exponent == 1 else L.reduce_sum(distance**exponent, [-1]) ** (1 / exponent)


@operator("GridSample", since=1, domain=DOMAIN)
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Tensor:
    standard = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return grids.grid_sample(x, grid, align_corners=align_corners, mode=standard, padding_mode=padding_mode)


@operator("Unique", since=1, domain=DOMAIN)
def unique(x: Tensor) -> tuple[Tensor, ...]:
    """Return elements in the order of their first occurrence, the index of each input in them, and counts."""
    standard = find("", "Unique", 11)
    assert standard is not None
    values, _, indices, counts = standard([x], {"sorted": 0}, opset=11, outputs=4)
    return values, indices, counts  # type: ignore[return-value]


@operator("Inverse", since=1, domain=DOMAIN)
def inverse(x: Tensor) -> Tensor:
    """Return the inverses of the matrices in the last two axes, by Gauss-Jordan elimination with pivots."""
    if x.rank < 2:
        raise ShapeError(f"expected at least 2 axes for the matrices, got {x.type}.")
    size = x.shape[-1]
    x = L.of_shape(x, (*x.shape[:-2], size, size), "the input of Inverse")
    wide = L.cast(x, t.FLOAT) if x.dtype in (t.FLOAT16, t.BFLOAT16) else x
    identity = L.cast(L.equal(L.iota(x.shape, x.rank - 1), L.iota(x.shape, x.rank - 2)), wide.dtype)
    rows = L.iota((*x.shape[:-1], 1), x.rank - 2)

    def eliminate(i: Tensor, both: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        column = L.unsqueeze(L.take(both, i, -1), [-1])
        left = L.where(rows < i, -1, L.abs_(column))
        pivot = L.argmax(left, -2, keepdims=True)
        first, other = _row(both, L.full(pivot.shape, i, t.INT64)), _row(both, pivot)
        swapped = L.where(L.equal(rows, i), other, L.where(L.equal(rows, pivot), first, both))
        unit = other / L.unsqueeze(L.take(other, i, -1), [-1])
        factor = L.unsqueeze(L.take(swapped, i, -1), [-1])
        return None, [L.where(L.equal(rows, i), unit, swapped - factor * unit)], []

    both = L.concat([wide, identity], -1)
    final, _ = L.loop(L.size_tensor([size], ()), None, [both], eliminate)
    return L.cast(L.slice_(final[0], -1, size, 2 * size), x.dtype)


def _row(x: Tensor, at: Tensor) -> Tensor:
    """Return the row of every matrix that ``at`` [..., 1, 1] selects, kept as one row."""
    return L.gather_elements(x, L.broadcast_to(at, (*at.shape[:-1], x.shape[-1])), -2)


@operator("Rfft", since=1, domain=DOMAIN)
def rfft(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    """Return the one-sided transform of real numbers along the last axis, as (real, imaginary) pairs."""
    _require_supported(normalized, onesided, signal_ndim)
    pairs = L.fft(_complex(L.concat([L.unsqueeze(x, [-1]), L.unsqueeze(L.zeros_like(x), [-1])], -1)))
    return _pairs(L.slice_(pairs, -1, 0, x.shape[-1] // 2 + 1), x)


@operator("Irfft", since=1, domain=DOMAIN)
def irfft(x: Tensor, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Tensor:
    """Return the inverse of ``Rfft`` for an even number of results."""
    _require_supported(normalized, onesided, signal_ndim)
    if x.rank < 2:
        raise ShapeError(f"expected at least 2 axes for the spectrum, got {x.type}.")
    count = 2 * (x.shape[-2] - 1)
    mirrored = L.reverse(L.slice_(x, -2, 1, x.shape[-2] - 1), [-2]) * L.constant([1.0, -1.0], x.dtype)
    whole = _pairs(L.fft(_complex(L.concat([x, mirrored], -2)), inverse=True), x)
    scale = L.cast(L.size_tensor([count], ()), x.dtype)
    return L.squeeze(L.slice_(whole, -1, 0, 1), [-1]) / scale


def _require_supported(normalized: int, onesided: int, dimensions: int) -> None:
    if normalized or not onesided or dimensions != 1:
        raise UnsupportedError(
            "expected a one-sided, unnormalized transform of one axis: ONNX Runtime defines no other."
        )


def _complex(pairs: Tensor) -> Tensor:
    wide = t.COMPLEX128 if pairs.dtype == t.DOUBLE else t.COMPLEX64
    return L.bitcast(pairs if pairs.dtype == t.DOUBLE else L.cast(pairs, t.FLOAT), wide)


def _pairs(x: Tensor, like: Tensor) -> Tensor:
    return L.cast(L.bitcast(x, t.DOUBLE if x.dtype == t.COMPLEX128 else t.FLOAT), like.dtype)


@operator("CropAndResize", since=1, domain=DOMAIN)
def crop_and_resize(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    crop_size: Tensor,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Tensor:
    """Crop boxes (y1, x1, y2, x2 as fractions of the image) and resize each to one size."""
    if mode not in ("bilinear", "nearest"):
        raise InvalidModelError(f"unknown mode {mode!r}.", remedy="Use 'bilinear' or 'nearest'.")
    rois = L.of_shape(rois, (L.of_rank(rois, 2, "boxes").shape[0], 4), "boxes")
    height, width = L.sizes(L.of_shape(crop_size, (2,), "the crop size"), "the crop size")
    x = L.of_rank(x, 4, "the images")
    images = L.take(x, L.of_rank(batch_indices, 1, "the indices of images"), 0)
    ys, rows_inside = _sample_positions(rois, 0, height, x.shape[2], x)
    xs, columns_inside = _sample_positions(rois, 1, width, x.shape[3], x)
    if mode == "nearest":
        pixels = _pixels(images, L.floor(ys + 0.5), L.floor(xs + 0.5))
    else:
        top, left = L.floor(ys), L.floor(xs)
        down, right = L.unsqueeze(ys - top, [1, 3]), L.unsqueeze(xs - left, [1, 2])
        above = _pixels(images, top, left) * (1 - right) + _pixels(images, top, L.ceil(xs)) * right
        below = _pixels(images, L.ceil(ys), left) * (1 - right) + _pixels(images, L.ceil(ys), L.ceil(xs)) * right
        pixels = above * (1 - down) + below * down
    inside = L.unsqueeze(rows_inside, [1, 3]) & L.unsqueeze(columns_inside, [1, 2])
    return L.where(inside, pixels, extrapolation_value)


def _sample_positions(rois: Tensor, axis: int, count: Size, size: Size, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sample positions of boxes along an axis, [boxes, count], and which are in the image."""
    low, high = L.slice_(rois, 1, axis, axis + 1), L.slice_(rois, 1, axis + 2, axis + 3)
    last = L.cast(L.size_tensor([size], ()), x.dtype) - 1
    steps = L.cast(L.size_tensor([count], ()), x.dtype) - 1
    step = L.cast(L.arange(count), x.dtype)
    at = low * last + step * ((high - low) * last / L.maximum(steps, 1))
    # Exact at the end of the box: a rounding error would move a sample on the border out of the image.
    at = L.where(L.equal(step, steps), high * last, at)
    at = L.where(steps > 0, at, 0.5 * (low + high) * last)
    return at, (at >= 0) & (at <= last)


def _pixels(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return each image's pixels at clamped rows and columns, [boxes, channels, rows, columns]."""
    n, c, h, w = images.shape
    by_row = L.unsqueeze(_clamp(rows, h), [1, 3])
    picked = L.gather_elements(images, L.broadcast_to(by_row, (n, c, rows.shape[1], w)), 2)
    by_column = L.unsqueeze(_clamp(columns, w), [1, 2])
    return L.gather_elements(picked, L.broadcast_to(by_column, (n, c, rows.shape[1], columns.shape[1])), 3)


def _clamp(at: Tensor, size: Size) -> Tensor:
    return L.clip(L.cast(at, t.INT64), 0, L.size_tensor([size], ()) - 1)


_LONGEST_RUN = 1024
"""Longest run of tokens: each token is an operation of its own."""


@operator("NGramRepeatBlock", since=1, domain=DOMAIN)
def ngram_repeat_block(input_ids: Tensor, scores: Tensor, *, ngram_size: int) -> Tensor:
    """Set the scores of tokens that would repeat a run of ``ngram_size`` tokens to -inf."""
    length = L.of_rank(input_ids, 2, "the tokens").shape[1]
    starts = length - ngram_size + 1
    if isinstance(starts, int) and starts <= 0:
        return scores
    if ngram_size > _LONGEST_RUN:
        raise UnsupportedError(f"expected an ngram_size of at most {_LONGEST_RUN}, got {ngram_size}.")
    tail: Sequence[Tensor] = [
        L.slice_(input_ids, 1, length - ngram_size + 1 + i, length - ngram_size + 2 + i) for i in range(ngram_size - 1)
    ]
    repeats = L.full((input_ids.shape[0], starts), L.constant(True), t.BOOL)
    for i, token in enumerate(tail):
        repeats = repeats & L.equal(L.slice_(input_ids, 1, i, i + starts), token)
    following = L.slice_(input_ids, 1, ngram_size - 1, ngram_size - 1 + starts)
    hit = L.cast(repeats, t.INT32)
    blocked = L.scatter_elements(L.full(scores.shape, 0, t.INT32), following, hit, 1, "max")
    return L.where(blocked > 0, -float("inf"), scores)
