"""Imputers of missing values, and indicators."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import Table, apply, method, number_matrix
from sardonyx.convert.tabular.preprocessing import column
from sardonyx.errors import UnsupportedError


def _is_missing(values: Array, missing: Any) -> Array:
    if values.dtype == object:
        text = "nan" if isinstance(missing, float) else str(missing)
        return values.node("Equal", values.constant(np.array(text, object), object), dtype=bool)
    if missing is None or (isinstance(missing, float) and np.isnan(missing)):
        return np.isnan(values)
    return np.equal(values, float(missing))


@method("transform", "SimpleImputer")
def simple_imputer(estimator: Any, x: Any) -> Array | Table:
    """Translate replacement of missing values by a statistic of the column; an indicator beside texts is a table."""
    statistics = np.asarray(estimator.statistics_)
    if any(isinstance(statistic, str) for statistic in statistics):
        return _text_imputed(estimator, x, statistics)
    value = number_matrix(x)
    missing = _is_missing(value, estimator.missing_values)
    result = where(missing, np.nan_to_num(statistics.astype(np.float64)), value)
    use = np.arange(len(statistics))
    if not estimator.keep_empty_features and estimator.strategy != "constant":
        use = np.flatnonzero(~np.isnan(statistics.astype(np.float64)))
        result = result if len(use) == len(statistics) else result.columns(use)
    if estimator.add_indicator:
        result = concatenated([result, missing.columns(estimator.indicator_.features_).cast(np.float64)], axis=1)
    return result


def _text_imputed(estimator: Any, x: Any, statistics: Any) -> Array | Table:
    value = concatenated([column(x, i) for i in range(len(statistics))], axis=1)
    missing = _is_missing(value, estimator.missing_values)
    # A column in which all were missing has no statistic.
    known = np.array([statistic is not None and statistic == statistic for statistic in statistics])
    row = value.constant(np.where(known, statistics, "").reshape(1, -1), object)
    result = missing.node("Where", row, value, dtype=object)
    width = len(known)
    if not (known.all() or estimator.keep_empty_features or estimator.strategy == "constant"):
        result, width = result.columns(np.flatnonzero(known)), int(known.sum())
    if not estimator.add_indicator:
        return result
    features = estimator.indicator_.features_
    return Table([result, missing.columns(features).cast(np.float64)], [width, len(features)])


@method("transform", "MissingIndicator")
def missing_indicator(estimator: Any, x: Any) -> Array:
    """Translate the positions of missing values."""
    return _is_missing(number_matrix(x), estimator.missing_values).columns(estimator.features_)


@method("transform", "KNNImputer")
def neighbour_imputer(estimator: Any, x: Any) -> Array:
    """Translate the mean of the nearest fitted rows that have the value."""
    if estimator.weights not in ("uniform", "distance") or estimator.metric != "nan_euclidean":
        raise UnsupportedError(f"weights={estimator.weights!r}, metric={estimator.metric!r}", where="KNNImputer")
    value = number_matrix(x)
    fitted, absent = np.asarray(estimator._fit_X, np.float64), np.asarray(estimator._mask_fit_X, bool)
    missing = _is_missing(value, estimator.missing_values)
    present = 1.0 - missing.cast(np.float64)
    filled, points = where(missing, 0.0, value), np.where(absent, 0.0, fitted)
    gaps = filled.node("Unsqueeze", [1]) - points
    shared = present.node("Unsqueeze", [1]) * (1.0 - absent)
    common = shared.sum(2)
    distances = (gaps * gaps * shared).sum(2) * float(fitted.shape[1])
    distances = np.sqrt(distances / where(np.equal(common, 0.0), 1.0, common))
    undefined = np.equal(common, 0.0)
    columns = []
    for i in range(fitted.shape[1]):
        donors = np.flatnonzero(~absent[:, i])
        count = min(estimator.n_neighbors, len(donors))
        mean = float(np.mean(fitted[donors, i])) if len(donors) else 0.0
        if not count:
            columns.append(value.columns([i]))
            continue
        near = where(undefined.columns(donors), np.inf, distances.columns(donors))
        builder = near.builder
        ordered, order = builder.nodes_of("TopK", 2, near.value, builder.constant([count], np.int64), axis=1, largest=0)
        gap, index = Array(builder, ordered, np.float64), Array(builder, order, np.int64)
        finite = (gap < np.inf).cast(np.float64)
        if estimator.weights == "distance":
            is_zero = np.equal(gap, 0.0)
            inverse = finite / where(is_zero, 1.0, gap)
            finite = where(is_zero.any(1, keepdims=True), is_zero.cast(np.float64), inverse)
        donated = value.constant(fitted[donors, i]).rows(index)
        total = finite.sum(1, keepdims=True)
        none = np.equal(total, 0.0)
        replacement = where(none, mean, (donated * finite).sum(1, keepdims=True) / where(none, 1.0, total))
        columns.append(where(missing.columns([i]), replacement, value.columns([i])))
    valid = getattr(estimator, "_valid_mask", None)
    if valid is not None and not estimator.keep_empty_features:
        columns = [part for part, use in zip(columns, valid, strict=True) if use]
    result = concatenated(columns, axis=1)
    if estimator.add_indicator:
        result = concatenated([result, missing.columns(estimator.indicator_.features_).cast(np.float64)], axis=1)
    return result


@method("transform", "IterativeImputer")
def iterative_imputer(estimator: Any, x: Any) -> Array:
    """Translate the recorded sequence of regressions."""
    if estimator.sample_posterior:
        raise UnsupportedError("sample_posterior=True draws random numbers", where="IterativeImputer")
    value = number_matrix(x)
    missing = _is_missing(value, estimator.missing_values)
    result = apply("transform", estimator.initial_imputer_, value)
    per_round = max(estimator.n_features_with_missing_, 1)
    low, high = np.asarray(estimator._min_value, np.float64), np.asarray(estimator._max_value, np.float64)
    for step in estimator.imputation_sequence_[: per_round * estimator.n_iter_]:
        i = int(step.feat_idx)
        predicted = apply("predict", step.estimator, result.columns(np.asarray(step.neighbor_feat_idx)))
        predicted = predicted.reshape(-1, 1).clip(float(low[i]), float(high[i]))
        unit = np.zeros(len(low), bool)
        unit[i] = True
        result = where(missing & unit, predicted, result)
    if estimator.add_indicator:
        result = concatenated([result, missing.columns(estimator.indicator_.features_).cast(np.float64)], axis=1)
    return result
