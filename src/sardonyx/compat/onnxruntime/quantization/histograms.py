"""Histograms of tensors, and the ranges that follow from them, by ONNX Runtime's conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compat.onnxruntime.quantization.quant_utils import smooth_distribution

_LEAST_BINS_OF_DISTRIBUTIONS = 512


def entropy(pk: Any, qk: Any, base: float | None = None, axis: int = 0) -> Any:
    """Return the divergence of one distribution from another; both are normalized."""
    p, q = (np.asarray(values).astype(np.float32) for values in (pk, qk))
    p, q = np.broadcast_arrays(p / p.sum(axis=axis, keepdims=True), q / q.sum(axis=axis, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where((p > 0) & (q > 0), p * np.log(p / q), np.where((p == 0) & (q >= 0), 0, np.inf))
    total = terms.sum(axis=axis)
    return (total if base is None else total / np.log(base)).astype(np.float32)


class HistogramCollector:
    """Histograms of tensors over samples.

    Args:
        method: ``"entropy"``, ``"percentile"`` or ``"distribution"``.
        symmetric: If True, histograms for percentiles are of magnitudes.
        num_bins: Bins of the first samples of a tensor; greater values add bins.
        num_quantized_bins: Bins of the distribution that entropy compares.
        percentile: The share of elements inside of a range, in percent.
        scenario: ``"same"``, or ``"p3"`` for elements that are cubes of those of 8-bit floats.

    Attributes:
        histogram_dict: Counts, edges, the least and the greatest value, and for values the limit of the edges, by name.

    Raises:
        ValueError: An argument is invalid.
    """

    def __init__(
        self,
        method: str,
        symmetric: bool,
        num_bins: int,
        num_quantized_bins: int,
        percentile: float,
        scenario: str,
    ) -> None:
        if method not in ("entropy", "percentile", "distribution"):
            raise ValueError(f"Only 'entropy', 'percentile' or 'distribution' methods are supported, got {method!r}.")
        if not 0 <= percentile <= 100:
            raise ValueError("Invalid percentile. Must be in range 0 <= percentile <= 100.")
        if scenario not in ("same", "p3"):
            raise ValueError(f"Invalid scenario. Must be in {{'same', 'p3'}}, got {scenario!r}.")
        if method == "distribution" and num_bins < _LEAST_BINS_OF_DISTRIBUTIONS:
            raise ValueError(f"Invalid num_bins. Must be in range {_LEAST_BINS_OF_DISTRIBUTIONS} <= num_bins.")
        self.method, self.symmetric, self.num_bins = method, symmetric, num_bins
        self.num_quantized_bins, self.percentile, self.scenario = num_quantized_bins, percentile, scenario
        self.histogram_dict: dict[str, tuple[Any, ...]] = {}

    def get_histogram_dict(self) -> dict[str, tuple[Any, ...]]:
        """Return the histograms by name."""
        return self.histogram_dict

    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Add the arrays of samples, by name."""
        is_magnitude = self.method == "percentile" and self.symmetric
        for name, arrays in name_to_arr.items():
            values = [arrays] if isinstance(arrays, np.ndarray) else arrays
            data = np.concatenate([np.asarray(array).reshape(-1) for array in values])
            data = data[~np.isnan(data)]
            if is_magnitude:
                self._add_magnitudes(name, data)
            else:
                self._add_values(name, data)

    def _add_magnitudes(self, name: str, data: np.ndarray) -> None:
        low, high = _extremes(data)
        data = np.abs(data)
        if name not in self.histogram_dict:
            counts, edges = np.histogram(data, bins=self.num_bins)
            self.histogram_dict[name] = counts, edges.astype(data.dtype), low, high
            return
        before, edges, least, greatest = self.histogram_dict[name]
        largest = np.max(data, initial=data.dtype.type(0))
        if largest > edges[-1]:
            width = edges[1] - edges[0]
            edges = np.hstack([edges, np.arange(edges[-1] + width, largest + width, width)])
        counts, edges = np.histogram(data, bins=edges)
        counts[: len(before)] += before
        self.histogram_dict[name] = counts, edges.astype(data.dtype), min(least, low), max(greatest, high)

    def _add_values(self, name: str, data: np.ndarray) -> None:
        low, high = _extremes(data)
        limit = np.array(max(abs(low), abs(high)), dtype=data.dtype)
        if name not in self.histogram_dict:
            counts, edges = np.histogram(data, self.num_bins, range=(float(-limit), float(limit)))
            self.histogram_dict[name] = counts, edges.astype(data.dtype), low, high, limit
            return
        before, edges, least, greatest, old_limit = self.histogram_dict[name]
        count, extra = len(before), 0
        if limit <= old_limit:
            limit = old_limit
        elif old_limit > 0:
            width = 2 * old_limit / count
            extra = int((limit - old_limit) // width + 1)
            limit = np.array(extra * width + old_limit, dtype=data.dtype)
        counts, edges = np.histogram(data, count + 2 * extra, range=(float(-limit), float(limit)))
        counts[extra : extra + count] += before
        self.histogram_dict[name] = (
            counts, edges.astype(data.dtype), min(least, low), max(greatest, high), limit,
        )  # fmt: skip

    def compute_collection_result(self) -> dict[str, Any]:
        """Return the ranges with the histograms, by name; statistics of the distribution for that method.

        Raises:
            ValueError: No sample was added.
        """
        if not self.histogram_dict:
            raise ValueError("Histogram has not been collected. Please run collect() first.")
        if self.method == "distribution":
            return {name: self._distribution(*one[:2]) for name, one in self.histogram_dict.items()}
        results = {}
        for name, (counts, edges, least, greatest, *_) in self.histogram_dict.items():
            if self.method == "entropy":
                low, high = self.get_entropy_threshold((counts, edges, least, greatest), self.num_quantized_bins)
            else:
                low, high = self._percentile(counts, edges)
                low = least if low < least else low
                high = greatest if high > greatest else high
            results[name] = np.asarray(low, edges.dtype), np.asarray(high, edges.dtype), counts, edges
        return results

    def _percentile(self, counts: np.ndarray, edges: np.ndarray) -> tuple[Any, Any]:
        shares = np.cumsum(counts / max(counts.sum(), 1))
        last = len(edges) - 1
        if self.symmetric:
            index = min(int(np.searchsorted(shares, self.percentile / 100.0)), last)
            return -edges[index], edges[index]
        outside = (100.0 - self.percentile) / 200.0
        indices = (min(int(np.searchsorted(shares, share)), last) for share in (outside, 1.0 - outside))
        low, high = (edges[index] for index in indices)
        return low, high

    def _distribution(self, counts: np.ndarray, edges: np.ndarray) -> dict[str, Any]:
        centres = ((edges[:-1] + edges[1:]) * 0.5).astype(np.float64)
        if self.scenario == "p3":
            centres = np.cbrt(centres)
        total = max(counts.sum(), 1)
        mean = (counts * centres).sum() / total
        deviation = max((counts * centres**2).sum() / total - mean**2, 0.0) ** 0.5
        statistics = {"avg": mean, "std": deviation, "lowest": edges.min(), "highest": edges.max()}
        arrays = {name: np.array(value, dtype=edges.dtype) for name, value in statistics.items()}
        return {**arrays, "hist": counts, "hist_edges": edges}

    def get_entropy_threshold(self, histogram: Any, num_quantized_bins: int) -> tuple[Any, Any]:
        """Return the limits whose quantized distribution diverges least from the values, clipped to the extremes.

        Source: Migacz, 8-bit Inference with TensorRT, 2017.
        """
        counts, edges, least, greatest = histogram[:4]
        middle, half = counts.size // 2, num_quantized_bins // 2
        best, divergence = (edges[0], edges[-1]), np.inf
        for reach in range(half, middle + 1):
            start, end = middle - reach, min(middle + reach + 1, counts.size)
            inner = counts[start:end]
            p = inner.copy()
            p[0] += counts[:start].sum()
            p[-1] += counts[end:].sum()
            occupied = p != 0
            merged = inner.size // num_quantized_bins
            covered = merged * num_quantized_bins
            sums = inner[:covered].reshape(num_quantized_bins, merged).sum(1)
            sums[-1] += inner[covered:].sum()
            present = occupied[:covered].reshape(num_quantized_bins, merged).sum(1)
            q = np.zeros(p.size, np.int64)
            q[:covered] = np.repeat(np.where(present > 0, sums / np.maximum(present, 1), 0).astype(np.int64), merged)
            smooth_p, smooth_q = smooth_distribution(p), smooth_distribution(q)
            if smooth_p is None or smooth_q is None:
                continue
            current = float(entropy(smooth_p, smooth_q))
            if current < divergence:
                best, divergence = (edges[start], edges[end]), current
        if not np.isfinite(divergence):
            best = np.zeros((), edges.dtype), np.zeros((), edges.dtype)
        low, high = best
        return (least if low < least else low), (greatest if high > greatest else high)


def _extremes(data: np.ndarray) -> tuple[Any, Any]:
    if not data.size:
        return np.zeros((), data.dtype)[()], np.zeros((), data.dtype)[()]
    return data.min(), data.max()
