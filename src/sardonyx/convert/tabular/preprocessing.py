"""Scalers, encoders, expansions and selections of features."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from sardonyx.convert.tabular.array_tracing import traced
from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.linear import interpolated
from sardonyx.convert.tabular.methods import Table, apply, method, number_matrix
from sardonyx.convert.tabular.wide_functions import erf, horner
from sardonyx.errors import UnsupportedError


@method("transform", "StandardScaler")
def standard(estimator: Any, x: Any) -> Array:
    """Translate centring and scaling."""
    value = number_matrix(x)
    if estimator.with_mean:
        value = value - estimator.mean_
    return value / estimator.scale_ if estimator.with_std else value


@method("transform", "MinMaxScaler")
def min_max(estimator: Any, x: Any) -> Array:
    """Translate scaling to a range."""
    value = number_matrix(x) * estimator.scale_ + estimator.min_
    return value.clip(*(float(n) for n in estimator.feature_range)) if estimator.clip else value


@method("transform", "MaxAbsScaler")
def max_abs(estimator: Any, x: Any) -> Array:
    """Translate division by the greatest absolute value."""
    return number_matrix(x) / estimator.scale_


@method("transform", "RobustScaler")
def robust(estimator: Any, x: Any) -> Array:
    """Translate centring by medians and scaling by quantiles."""
    value = number_matrix(x)
    if estimator.with_centering:
        value = value - estimator.center_
    return value / estimator.scale_ if estimator.with_scaling else value


@method("transform", "Normalizer")
def normalizer(estimator: Any, x: Any) -> Array:
    """Translate rows of norm 1."""
    value = number_matrix(x)
    match estimator.norm:
        case "l1":
            norm = np.absolute(value).sum(1, keepdims=True)
        case "l2":
            norm = np.sqrt((value * value).sum(1, keepdims=True))
        case _:
            norm = np.absolute(value).max(1, keepdims=True)
    return value / where(np.equal(norm, 0.0), 1.0, norm)


@method("transform", "Binarizer")
def binarizer(estimator: Any, x: Any) -> Array:
    """Translate comparison with a threshold."""
    return (number_matrix(x) > float(estimator.threshold)).cast(np.float64)


@method("transform", "PolynomialFeatures")
def polynomial(estimator: Any, x: Any) -> Array:
    """Translate products of powers: every product extends one of a lower degree."""
    value = number_matrix(x)
    known: dict[tuple[int, ...], Array] = {}
    columns = []
    for powers in estimator.powers_:
        factors = tuple(chain.from_iterable([i] * int(p) for i, p in enumerate(powers)))
        if not factors:
            known[factors] = value.columns([0]) * 0.0 + 1.0
        elif factors not in known:
            last = value.columns([factors[-1]])
            known[factors] = known[factors[:-1]] * last if factors[:-1] in known and len(factors) > 1 else last
            if len(factors) > 1 and factors[:-1] not in known:
                product = value.columns([factors[0]])
                for factor in factors[1:]:
                    product = product * value.columns([factor])
                known[factors] = product
        columns.append(known[factors])
    return concatenated(columns, axis=1)


@method("transform", "SplineTransformer")
def splines(estimator: Any, x: Any) -> Array:
    """Translate B-splines as piecewise polynomials."""
    value, columns = number_matrix(x), []
    if estimator.extrapolation not in ("constant", "continue", "periodic", "linear"):
        raise UnsupportedError(f"extrapolation {estimator.extrapolation!r}", where="SplineTransformer")
    from scipy.interpolate import PPoly

    reach = int(estimator.degree)
    for i, spline in enumerate(estimator.bsplines_):
        degree = spline.k
        count = spline.c.shape[1] if np.ndim(spline.c) > 1 else 1
        low, high = spline.t[reach], spline.t[-reach - 1]
        if low > high:
            raise UnsupportedError(f"column {i} has no interval between its outer knots", where="SplineTransformer")
        if estimator.extrapolation == "linear" and reach <= 1:
            reach += 1  # As scikit-learn does, also for the columns that follow.
        raw = column = value.columns(i)
        if estimator.extrapolation in ("constant", "linear"):
            column = column.clip(float(low), float(high))
        elif estimator.extrapolation == "periodic":
            turns = np.floor((column - float(low)) / float(high - low))
            column = column - turns * float(high - low)
        ends = [spline(np.array([bound])).reshape(-1) for bound in (low, high)]
        slopes = [spline(np.array([bound]), nu=1).reshape(-1) if degree else np.zeros(count) for bound in (low, high)]
        parts = []
        for k in range(count):
            pieces = PPoly.from_spline((spline.t, spline.c[:, k], degree))
            knots = pieces.x
            use = np.flatnonzero(np.diff(knots) > 0)
            use = use[(knots[use] >= low) & (knots[use] <= high) & (knots[use] < spline.t[-degree - 1])]
            starts, coefficients = knots[use], pieces.c[:, use]
            piece = ((column.reshape(-1, 1) >= starts).sum(1) - 1).clip(0, len(starts) - 1)
            offset = column - column.constant(starts).rows(piece)
            total = horner(offset, [column.constant(row).rows(piece) for row in coefficients])
            if estimator.extrapolation == "linear":
                for side, bound, has_line in ((0, low, k < reach), (1, high, k >= count - reach)):
                    line = (raw - float(bound)) * (float(slopes[side][k]) * has_line) + float(ends[side][k]) * has_line
                    total = where(raw < float(low) if side == 0 else raw > float(high), line, total)
            parts.append(total.reshape(-1, 1))
        n_splines = count if estimator.include_bias else count - 1
        columns += parts[:n_splines]
    return concatenated(columns, axis=1)


@method("transform", "PowerTransformer")
def power(estimator: Any, x: Any) -> Array:
    """Translate the Yeo-Johnson or Box-Cox transform of each column."""
    value, columns = number_matrix(x), []
    for i, exponent in enumerate(np.asarray(estimator.lambdas_, np.float64)):
        column = value.columns([i])
        if estimator.method == "box-cox":
            columns.append(
                np.log(column) if exponent == 0 else (np.power(column, float(exponent)) - 1.0) / float(exponent)
            )
            continue
        positive, negative = np.maximum(column, 0.0), np.maximum(column * -1.0, 0.0)
        if abs(exponent) < np.spacing(1.0):
            up = np.log1p(positive)
        else:
            up = (np.power(positive + 1.0, float(exponent)) - 1.0) / float(exponent)
        if abs(exponent - 2) > np.spacing(1.0):
            down = (np.power(negative + 1.0, float(2 - exponent)) - 1.0) / -float(2 - exponent)
        else:
            down = np.log1p(negative) * -1.0
        columns.append(where(column >= 0.0, up, down))
    result = concatenated(columns, axis=1)
    return apply("transform", estimator._scaler, result) if estimator.standardize else result


@method("transform", "QuantileTransformer")
def quantiles(estimator: Any, x: Any) -> Array:
    """Translate interpolation between quantiles: the mean of both directions, for repeated quantiles."""
    value, columns = number_matrix(x), []
    for i in range(estimator.quantiles_.shape[1]):
        column, points = value.columns(i), estimator.quantiles_[:, i]
        forward = interpolated(column, points, estimator.references_)
        backward = interpolated(column * -1.0, -points[::-1], -estimator.references_[::-1])
        middle = (forward - backward) * 0.5
        middle = where(np.equal(column, float(points[-1])), 1.0, middle)
        middle = where(np.equal(column, float(points[0])), 0.0, middle)
        if estimator.output_distribution == "normal":
            middle = normal_quantile(middle).clip(*_normal_range())
        columns.append(middle.reshape(-1, 1))
    return concatenated(columns, axis=1)


def _normal_range() -> tuple[float, float]:
    from scipy.stats import norm

    low = norm.ppf(1e-7 - np.spacing(1))
    return float(low), float(norm.ppf(1 - (1e-7 - np.spacing(1))))


_CENTRAL = (
    (
        -3.969683028665376e01,
        2.209460984245205e02,
        -2.759285104469687e02,
        1.383577518672690e02,
        -3.066479806614716e01,
        2.506628277459239,
    ),
    (
        -5.447609879822406e01,
        1.615858368580409e02,
        -1.556989798598866e02,
        6.680131188771972e01,
        -1.328068155288572e01,
        1.0,
    ),
)
_TAIL = (
    (
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ),
    (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996, 3.754408661907416, 1.0),
)
"""Rational approximations of the normal quantile (P. Acklam), relative error 1e-9."""


def normal_quantile(p: Array) -> Array:
    """Return the quantile of the normal distribution at probabilities."""
    centre = p - 0.5
    square = centre * centre
    middle = centre * horner(square, _CENTRAL[0]) / horner(square, _CENTRAL[1])
    smaller = np.minimum(p, 1.0 - p)
    root = np.sqrt(np.log(np.maximum(smaller, 1e-300)) * -2.0)
    tail = horner(root, _TAIL[0]) / horner(root, _TAIL[1])
    start = where(smaller < 0.02425, where(p < 0.5, tail, tail * -1.0), middle)
    # One Halley step brings the error to that of erf.
    error = (erf(start * float(np.sqrt(0.5))) + 1.0) * 0.5 - p
    slope = error * np.exp(start * start * 0.5) * float(np.sqrt(2 * np.pi))
    return start - slope / (start * slope * 0.5 + 1.0)


@method("transform", "KBinsDiscretizer")
def bins(estimator: Any, x: Any) -> Array:
    """Translate the number of the bin of each column, one-hot if requested."""
    value, columns = number_matrix(x), []
    for i, edges in enumerate(estimator.bin_edges_):
        column = value.columns([i])
        inner = np.asarray(edges[1:-1], np.float64)
        number = (column >= inner).sum(1, keepdims=True) if len(inner) else column.cast(np.int64) * 0
        if estimator.encode == "ordinal":
            columns.append(number.cast(np.float64))
        else:
            columns.append(np.equal(number, np.arange(int(estimator.n_bins_[i]))).cast(np.float64))
    return concatenated(columns, axis=1)


# Categories


def column(x: Any, index: int) -> Array:
    """Return one column as [rows, 1]."""
    if isinstance(x, Table):
        result = x.select([index])
        assert isinstance(result, Array)
        return result
    assert isinstance(x, Array)
    return x.columns([index])


def category_matches(values: Array, categories: Any) -> Array:
    """Return True where a column [rows, 1] equals a category, [rows, categories]; NaN equals NaN."""
    known = np.asarray(categories)
    if values.dtype == object:
        texts = np.array([str(category) for category in known], object)
        return values.node("Equal", values.constant(texts, object), dtype=bool)
    try:
        numbers = known.astype(np.float64)
    except ValueError as error:
        raise UnsupportedError(
            f"the column is of numbers, the categories are texts: {list(known[:3])}",
            remedy="Give example rows: the types of columns are taken from these.",
        ) from error
    value = values.cast(np.float64)
    result = np.equal(value, numbers)
    if np.isnan(numbers).any():
        result = result | (np.isnan(value) & np.isnan(numbers))
    return result


@method("transform", "OrdinalEncoder")
def ordinal(estimator: Any, x: Any) -> Array:
    """Translate categories to their numbers."""
    columns = []
    for i, categories in enumerate(estimator.categories_):
        matches = category_matches(column(x, i), categories)
        numbers = np.arange(len(categories), dtype=np.float64)
        groups = getattr(estimator, "_default_to_infrequent_mappings", None)
        if groups is not None and groups[i] is not None:
            numbers = np.asarray(groups[i], np.float64)
        missing = estimator._missing_indices.get(i) if hasattr(estimator, "_missing_indices") else None
        if missing is not None:
            numbers[missing] = float(estimator.encoded_missing_value)
        index = matches.argmax(1)
        number = index.constant(numbers, np.float64).rows(index)
        if estimator.handle_unknown == "use_encoded_value":
            number = where(matches.any(1), number, float(estimator.unknown_value))
        columns.append(number.reshape(-1, 1))
    return concatenated(columns, axis=1).cast(estimator.dtype)


@method("transform", "OneHotEncoder")
def one_hot(estimator: Any, x: Any) -> Array:
    """Translate categories to columns of 0 and 1; infrequent ones share a column."""
    columns = []
    for i, categories in enumerate(estimator.categories_):
        hot = category_matches(column(x, i), categories).cast(np.float64)
        groups = (
            getattr(estimator, "_default_to_infrequent_mappings", [None] * (i + 1))[i]
            if estimator._infrequent_enabled
            else None
        )
        count = len(categories)
        if groups is not None:
            merge = np.zeros((len(groups), int(np.max(groups)) + 1))
            merge[np.arange(len(groups)), np.asarray(groups, np.int64)] = 1
            count = merge.shape[1]
            unknown = 1.0 - hot.max(1, keepdims=True)
            hot = hot @ merge
            if estimator.handle_unknown == "infrequent_if_exist":
                hot = hot + unknown * np.eye(count)[-1]
        drop = None if estimator.drop_idx_ is None else estimator.drop_idx_[i]
        if drop is not None:
            keep = [k for k in range(count) if k != int(drop)]
            hot = hot.columns(keep)
        columns.append(hot)
    return concatenated(columns, axis=1).cast(estimator.dtype)


@method("transform", "TargetEncoder")
def target(estimator: Any, x: Any) -> Array:
    """Translate categories to means of the target."""
    columns = []
    classes = 1 if estimator.target_type_ != "multiclass" else len(estimator.classes_)
    count = len(estimator.categories_)
    for i in range(count):
        matches = category_matches(column(x, i), estimator.categories_[i])
        known, index = matches.any(1), matches.argmax(1)
        for k in range(classes):
            encodings = np.asarray(estimator.encodings_[i * classes + k], np.float64)
            mean = float(np.ravel(estimator.target_mean_)[k])
            columns.append(where(known, index.constant(encodings, np.float64).rows(index), mean).reshape(-1, 1))
    return concatenated(columns, axis=1)


@method("transform", "LabelEncoder")
def label_numbers(estimator: Any, x: Any) -> Array:
    """Translate labels to their numbers."""
    return category_matches(x.reshape(-1, 1), estimator.classes_).argmax(1)


@method("transform", "LabelBinarizer")
def label_columns(estimator: Any, x: Any) -> Array:
    """Translate labels to columns."""
    hot = category_matches(x.reshape(-1, 1), estimator.classes_).cast(np.int64)
    hot = hot.columns([1]) if len(estimator.classes_) == 2 else hot
    return hot * np.int64(estimator.pos_label - estimator.neg_label) + np.int64(estimator.neg_label)


# Selections and functions


@method("transform", "SelectorMixin")
def selection(estimator: Any, x: Any) -> Any:
    """Translate a selection of columns."""
    index = np.flatnonzero(estimator.get_support())
    return x.select([int(i) for i in index]) if isinstance(x, Table) else x.columns(index)


@method("predict", "RFE", "RFECV")
def selected_prediction(estimator: Any, x: Any) -> Any:
    """Translate the last estimator over the selected columns."""
    return apply("predict", estimator.estimator_, selection(estimator, x))


@method("predict_proba", "RFE", "RFECV")
def selected_proba(estimator: Any, x: Any) -> Any:
    """Translate probabilities of the last estimator over the selected columns."""
    return apply("predict_proba", estimator.estimator_, selection(estimator, x))


@method("transform", "FunctionTransformer")
def function(estimator: Any, x: Any) -> Any:
    """Translate a function of numpy by calling it with an array of the graph."""
    inner = getattr(estimator.func, "func", estimator.func)
    if inner is None or getattr(inner, "__name__", "") == "check_array":
        return x
    names = () if estimator.validate else tuple(getattr(estimator, "feature_names_in_", ()))
    return traced(estimator.func, x, estimator.kw_args or {}, names)
