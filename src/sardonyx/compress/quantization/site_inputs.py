"""Statistics of the inputs of sites, as rows of the matrix that is multiplied by the weight.

A product reads rows of its input's last axis; a convolution reads patches, [channels of a group, *kernel] flattened.
Rows have the order of :meth:`WeightSite.matrix`. Memory does not grow with the number of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.base.blas_threads import products
from sardonyx.compress.quantization.patches import Patches
from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.compress.quantization.ranges import SENTINEL

_EVEN_SAMPLES = 8
_LEAST_ROWS = 128
"""Samples whose draws of rows are about equal, and the least draw, with ``Needs.rows_per_depth``."""

_DRAWN_SAMPLES = 16
"""Samples that the kept rows of ``Needs.draws`` are of, if these have rows enough."""

_PENDING = 1 << 18
"""Elements of the rows of several samples from which these enter the second moments, which bounds temporary memory."""

_PART = 1024
"""Rows of a matrix that are computed in float64 at once, which bounds temporary memory."""

_ROWS_FOR_DEPTH = 0.25
"""Rows over their length at which half of a correlation is trusted; with eight times the length, 97 %."""

_LEAST_VARIANCE = 1e-10
_LEAST_SHARE = 1e-6
"""Variances that are rounding errors of float32: shares of the mean square, and of that about the origin of sums."""


@dataclass(frozen=True)
class Needs:
    """Statistics that a method needs of the input of each site, beyond the ranges.

    Attributes:
        means: If True, the mean of each channel.
        magnitudes: If True, the mean magnitude of each channel, and the mean.
        maxima: If True, the largest magnitude and the mean of each channel.
        second_moments: If True, the mean of x xᵀ over rows x.
        rows: The number of rows to keep, drawn evenly from all samples.
        row_means: If True, the mean of all rows, whatever rows are drawn.
        draws: The number of the rows that enter the second moments to keep, evenly from the first samples.
        rows_per_sample: Rows of one sample that enter the second moments at most, drawn evenly.
        rows_per_depth: If positive, rows of all samples in multiples of their length, growing with the logarithm of
            the number of samples; a sample counts by all its rows, however many are drawn.
        most_bytes: Limit of the bytes of all second moments; sites beyond it have ``squares`` alone.
    """

    means: bool = False
    maxima: bool = False
    second_moments: bool = False
    rows: int = 0
    rows_per_sample: int = 2048
    rows_per_depth: int = 0
    most_bytes: int = 2 << 30
    magnitudes: bool = False
    draws: int = 0
    row_means: bool = False

    def union(self, other: Needs) -> Needs:
        """Return what both need."""
        return Needs(
            self.means or other.means,
            self.maxima or other.maxima,
            self.second_moments or other.second_moments,
            max(self.rows, other.rows),
            max(self.rows_per_sample, other.rows_per_sample),
            max(self.rows_per_depth, other.rows_per_depth),
            max(self.most_bytes, other.most_bytes),
            self.magnitudes or other.magnitudes,
            max(self.draws, other.draws),
            self.row_means or other.row_means,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing is needed."""
        channels = self.means or self.maxima or self.magnitudes
        return not (channels or self.second_moments or self.rows or self.row_means)


NOTHING = Needs()
"""No statistics beyond the ranges."""


class SiteInput:
    """Statistics of the input of one site.

    Elements that stand for infinity are not counted: channels leave out their samples, sums and moments their rows.

    Attributes:
        groups: The number of groups of a convolution; 1 otherwise.
        depth: The number of elements of a row.
        count: The number of rows that were seen.
        lows: The least value of each channel, of shape [channels]; None if maxima are not needed.
        highs: The greatest value of each channel, of shape [channels]; None if maxima are not needed.
        maxima: The largest magnitude of each channel, of shape [channels]; None if not needed.
        means: The mean of each channel, of shape [channels]; None if not needed.
        row_means: The mean of all rows, of shape [groups, depth]; None if not needed. Rows of convolutions hold the
            zeros of borders, which are many where images are small.
        magnitudes: The mean magnitude of each channel, of shape [channels]; None if not needed.
        squares: The mean square of each element of rows, of shape [groups, depth]; None if not needed.
        second_moment: The mean of x xᵀ, float32 of shape [groups, depth, depth]; None if not needed or too large.
        covariance: The same of rows minus their mean; None if the mean of all rows is not needed.
        draws: Rows, float32 of shape [groups, at most needs.draws, depth]; None if not needed.
        rows: Rows, float32 of shape [groups, at most needs.rows, depth]; None if not needed.
    """

    def __init__(self, site: WeightSite, needs: Needs, has_moment: bool, seed: int) -> None:
        self._patches = Patches.of(site)
        self._needs = needs
        self._generator = np.random.default_rng(seed)
        self.groups, self.depth = self._patches.groups, self._patches.depth
        self.count = 0
        self._weight = 0.0
        self._drawn = 0
        self._samples = 0
        self._has_moment = has_moment
        self._pending: list[np.ndarray] = []
        self._moment: np.ndarray | None = None
        self._squares: np.ndarray | None = None
        self._sums: np.ndarray | None = None
        self._elements = 0
        self._row_sums: np.ndarray | None = None
        self._row_count = 0.0
        self._origin: np.ndarray | None = None
        self._origin_sums = np.zeros(0)
        self._magnitudes: np.ndarray | None = None
        self.lows: np.ndarray | None = None
        self.highs: np.ndarray | None = None
        self.rows: np.ndarray | None = None
        self.draws: np.ndarray | None = None
        self._keys = np.zeros(0)

    @staticmethod
    def geometry(site: WeightSite) -> object:
        """Return a key that sites have in common if the rows of equal inputs are equal."""
        return Patches.of(site)

    def add(self, values: np.ndarray, samples: int = 1) -> None:
        """Add the input of one sample, or of several along the first axis."""
        if not values.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # Sums of values that stand for infinity.
            self._add(values, samples)

    def _add(self, values: np.ndarray, samples: int) -> None:
        is_bounded = max(-float(values.min()), float(values.max())) < SENTINEL
        if is_bounded and (self._needs.means or self._needs.maxima or self._needs.magnitudes):
            self._add_channels(values)
        if self._needs.row_means:
            sums, count = self._patches.sums(values) if is_bounded else self._bounded_sums(values)
            self._row_sums = sums if self._row_sums is None else self._row_sums + sums
            self._row_count += count
        if not (self._needs.second_moments or self._needs.rows):
            return
        limit = max(self._rows_of(samples) if self._needs.second_moments else 0, self._needs.rows)
        rows, total = self._patches.rows(values, limit, self._generator)
        self.count += total
        if self._needs.second_moments and total:
            self._add_moments(rows if is_bounded else _bounded(rows), total / rows.shape[1], samples)
        if self._needs.rows:
            self._add_rows(rows, total)

    @property
    def maxima(self) -> np.ndarray | None:
        """The largest magnitude of each channel."""
        return None if self.lows is None or self.highs is None else np.maximum(-self.lows, self.highs)

    @property
    def means(self) -> np.ndarray | None:
        """The mean of each channel."""
        return None if self._sums is None or not self._elements else self._sums / self._elements

    @property
    def row_means(self) -> np.ndarray | None:
        """The mean of all rows."""
        return None if self._row_sums is None or not self._row_count else self._row_sums / self._row_count

    @property
    def magnitudes(self) -> np.ndarray | None:
        """The mean magnitude of each channel."""
        return None if self._magnitudes is None or not self._elements else self._magnitudes / self._elements

    @property
    def trust(self) -> float:
        """The share of the products of different elements of rows that the drawn rows support; see :func:`trust_of`."""
        self._add_pending()
        return trust_of(self._drawn, self.depth)

    @property
    def squares(self) -> np.ndarray | None:
        """The mean square of each element of rows."""
        self._add_pending()
        if self._squares is None or not self._weight:
            return None
        squares = self._squares / self._weight
        if self._origin is None:
            return squares
        return np.asarray(np.maximum(squares + self._origin * (2 * self._offset + self._origin), 0.0))

    @property
    def second_moment(self) -> np.ndarray | None:
        """The mean of x xᵀ over the rows x."""
        self._add_pending()
        if self._moment is None or not self._weight:
            return None
        moment = self._moment / np.float32(self._weight)
        if self._origin is None:
            return moment
        origin, offset = self._origin[:, None], self._offset[:, None]
        for part in self._parts():
            own, shift = self._origin[:, part, None], self._offset[:, part, None]
            moment[:, part] = moment[:, part] + (own * offset + shift * origin) + own * origin
        return moment

    @property
    def covariance(self) -> np.ndarray | None:
        """The mean of (x - m)(x - m)ᵀ over the rows x with the mean m; 0 for elements that do not vary."""
        squares = self.squares
        if self.row_means is None or self._moment is None or squares is None or self._squares is None:
            return None
        result, offset = self._moment / np.float32(self._weight), self._offset
        for part in self._parts():
            result[:, part] = result[:, part] - offset[:, part, None] * offset[:, None]
        least = _LEAST_VARIANCE * squares + _LEAST_SHARE * self._squares / self._weight
        varies = np.diagonal(result, axis1=1, axis2=2) > least
        result *= varies[:, :, None]
        result *= varies[:, None]
        return result

    def leave_means(self) -> None:
        """Forget the mean of all rows, which no bias is corrected by."""
        self._row_sums, self._row_count = None, 0.0

    @property
    def _offset(self) -> np.ndarray:
        """The mean of the drawn rows minus the origin."""
        return self._origin_sums / self._weight

    def _parts(self) -> list[slice]:
        return [slice(first, first + _PART) for first in range(0, self.depth, _PART)]

    def rescale(self, factors: np.ndarray) -> None:
        """Multiply the channels by positive factors, of shape [channels]."""
        self._add_pending()
        own = factors[self._patches.channels]
        for name in ("lows", "highs", "_sums", "_magnitudes"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name) * factors.astype(getattr(self, name).dtype))
        if self._row_sums is not None:
            self._row_sums = self._row_sums * own
        if self._squares is not None:
            self._squares = self._squares * np.square(own)
        if self._origin is not None:
            self._origin, self._origin_sums = self._origin * own, self._origin_sums * own
        if self._moment is not None:
            self._moment *= (own[:, :, None] * own[:, None]).astype(np.float32)
        if self.rows is not None:
            self.rows = self.rows * own[:, None].astype(np.float32)
        if self.draws is not None:
            self.draws = self.draws * own[:, None].astype(np.float32)

    def _bounded_sums(self, values: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the sum and the number of the rows of a sample without elements that stand for infinity."""
        rows, total = self._patches.rows(values, self._needs.rows_per_sample, self._generator)
        weight = total / max(rows.shape[1], 1)
        rows = _bounded(rows)
        return rows.sum(1, dtype=np.float64) * weight, rows.shape[1] * weight

    def _add_channels(self, values: np.ndarray) -> None:
        axis = self._patches.channel_axis % values.ndim
        # Reductions over one contiguous axis are several times as fast as over several.
        inner = 0 if axis == values.ndim - 1 else 2
        shape = (-1,) if inner == 0 else (math.prod(values.shape[:axis]),)
        rows: np.ndarray = values.reshape(*shape, values.shape[axis], *(() if inner == 0 else (-1,)))
        sums = rows.sum(inner, dtype=np.float32).reshape(-1, values.shape[axis]).sum(0, dtype=np.float64)
        self._sums = sums if self._sums is None else self._sums + sums
        self._elements += values.size // values.shape[axis]
        if self._needs.magnitudes:
            sizes = np.abs(rows).sum(inner, dtype=np.float32).reshape(-1, values.shape[axis]).sum(0, dtype=np.float64)
            self._magnitudes = sizes if self._magnitudes is None else self._magnitudes + sizes
        if self._needs.maxima:
            lows = rows.min(inner).reshape(-1, values.shape[axis]).min(0)
            highs = rows.max(inner).reshape(-1, values.shape[axis]).max(0)
            self.lows = lows if self.lows is None else np.minimum(self.lows, lows)
            self.highs = highs if self.highs is None else np.maximum(self.highs, highs)

    def _rows_of(self, samples: int) -> int:
        """Return the most rows of the next samples that enter the moments."""
        needs, first = self._needs, self._samples
        self._samples += samples
        if not needs.rows_per_depth:
            return needs.rows_per_sample * samples
        least = (
            max(needs.rows_per_depth * self.depth // (_EVEN_SAMPLES + number), _LEAST_ROWS)
            for number in range(first, first + samples)
        )
        return sum(min(rows, needs.rows_per_sample) for rows in least)

    def _add_moments(self, rows: np.ndarray, weight: float, samples: int = 1) -> None:
        """Add the squares of drawn rows, each of which stands for `weight` rows of its sample."""
        if not rows.shape[1]:
            return
        self._weight += rows.shape[1] * weight
        self._drawn += rows.shape[1]
        self._keep_draws(rows, samples)
        if self._has_moment and self._needs.row_means:
            # Sums about a row near the mean: those about 0 would lose variances beside large means.
            if self._origin is None:
                self._origin = rows.mean(1, dtype=np.float64).astype(np.float32).astype(np.float64)
                self._origin_sums = np.zeros_like(self._origin)
            rows = rows - self._origin[:, None].astype(np.float32)
            self._origin_sums += rows.sum(1, dtype=np.float64) * weight
        self._pending.append(rows * np.float32(weight**0.5))
        if sum(rows.size for rows in self._pending) >= _PENDING:
            self._add_pending()

    def _keep_draws(self, rows: np.ndarray, samples: int) -> None:
        left = self._needs.draws - (0 if self.draws is None else self.draws.shape[1])
        if left <= 0:
            return
        step = max(rows.shape[1] * _DRAWN_SAMPLES // (self._needs.draws * samples), 1)
        drawn = rows[:, ::step][:, :left]
        self.draws = drawn.copy() if self.draws is None else np.concatenate([self.draws, drawn], 1)

    def _add_pending(self) -> None:
        """Multiply the rows of several samples at once: a product of few rows costs a wait for the threads of BLAS."""
        if not self._pending:
            return
        rows = self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending, 1)
        self._pending = []
        with np.errstate(over="ignore", invalid="ignore"):
            self._add_products(rows)

    def _add_products(self, rows: np.ndarray) -> None:
        squares = np.einsum("grk,grk->gk", rows, rows).astype(np.float64)
        self._squares = squares if self._squares is None else self._squares + squares
        if self._has_moment:
            with products(rows.shape[1] * self.depth**2):
                moment = np.matmul(rows.transpose(0, 2, 1), rows)
            if self._moment is None:
                self._moment = moment
            else:
                self._moment += moment

    def _add_rows(self, rows: np.ndarray, total: int) -> None:
        """Keep the rows of the least random keys; rows that were not drawn have the greater keys of their sample."""
        keys = self._generator.permutation(np.sort(self._generator.random(total))[: rows.shape[1]])
        joined = rows if self.rows is None else np.concatenate([self.rows, rows], 1)
        keys = np.concatenate([self._keys, keys])
        chosen = np.sort(np.argsort(keys, kind="stable")[: self._needs.rows])
        self.rows, self._keys = np.ascontiguousarray(joined[:, chosen]), keys[chosen]


def trust_of(rows: int, depth: int) -> float:
    """Return the share of second moments of different elements that a number of rows supports, from 0 to 1.

    Few rows span few directions: integers that reduce the error of these rows alone increase that of other inputs.
    """
    return rows / max(rows + _ROWS_FOR_DEPTH * depth, 1.0)


def shrunk(moments: np.ndarray, trust: float) -> np.ndarray:
    """Return second moments, [..., depth, depth], of which those of different elements are a share."""
    if trust >= 1:
        return moments
    result = moments * moments.dtype.type(trust)
    index = np.arange(moments.shape[-1])
    result[..., index, index] = moments[..., index, index]
    return np.asarray(result)


def _bounded(rows: np.ndarray) -> np.ndarray:
    """Return the rows, [groups, rows, depth], without an element that stands for infinity."""
    return rows[:, (np.abs(rows) < SENTINEL).all((0, 2))]


def moments_within(sites: Sequence[WeightSite], needs: Needs) -> set[str]:
    """Return the labels of the sites whose second moments fit in the limit, the smallest first.

    Sites that read the same rows count once.
    """
    chosen: set[str] = set()
    left = needs.most_bytes if needs.second_moments else 0
    patches = {site.label: (site.input, Patches.of(site)) for site in sites}
    counted: set[object] = set()
    for label, key in sorted(patches.items(), key=lambda pair: pair[1][1].moment_bytes):
        if key not in counted:
            left -= key[1].moment_bytes
            counted.add(key)
        if left < 0:
            break
        chosen.add(label)
    return chosen
