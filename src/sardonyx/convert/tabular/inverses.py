"""Inverses of transformations of numbers, which targets of regressors need."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.linear import interpolated
from sardonyx.convert.tabular.methods import apply, method, number_matrix
from sardonyx.convert.tabular.wide_functions import erf

_THRESHOLD = 1e-7
"""Probabilities closer to 0 or 1 are the least and the largest quantile, as scikit-learn has it."""


@method("inverse_transform", "StandardScaler")
def standard_inverse(estimator: Any, x: Any) -> Array:
    """Translate the inverse of centring and scaling."""
    return _restored(x, estimator.with_std, estimator.scale_, estimator.with_mean, estimator.mean_)


@method("inverse_transform", "MinMaxScaler")
def min_max_inverse(estimator: Any, x: Any) -> Array:
    """Translate the inverse of scaling to a range."""
    return (number_matrix(x) - estimator.min_) / estimator.scale_


@method("inverse_transform", "MaxAbsScaler")
def max_abs_inverse(estimator: Any, x: Any) -> Array:
    """Translate multiplication by the greatest absolute value."""
    return number_matrix(x) * estimator.scale_


@method("inverse_transform", "RobustScaler")
def robust_inverse(estimator: Any, x: Any) -> Array:
    """Translate the inverse of centring by medians and scaling by quantiles."""
    return _restored(x, estimator.with_scaling, estimator.scale_, estimator.with_centering, estimator.center_)


def _restored(x: Any, has_scale: bool, scale: Any, has_center: bool, center: Any) -> Array:
    value = number_matrix(x)
    if has_scale:
        value = value * scale
    return value + center if has_center else value


@method("inverse_transform", "QuantileTransformer")
def quantiles_inverse(estimator: Any, x: Any) -> Array:
    """Translate interpolation between quantiles at probabilities."""
    value, columns = number_matrix(x), []
    is_normal = estimator.output_distribution == "normal"
    for i in range(estimator.quantiles_.shape[1]):
        column, points = value.columns(i), estimator.quantiles_[:, i]
        if is_normal:
            column = (erf(column * float(np.sqrt(0.5))) + 1.0) * 0.5
        result = interpolated(column, estimator.references_, points)
        edge = _THRESHOLD if is_normal else 0.0
        result = where(column + edge > 1.0 if is_normal else np.equal(column, 1.0), float(points[-1]), result)
        result = where(column - edge < 0.0 if is_normal else np.equal(column, 0.0), float(points[0]), result)
        columns.append(result.reshape(-1, 1))
    return concatenated(columns, axis=1)


@method("inverse_transform", "PowerTransformer")
def power_inverse(estimator: Any, x: Any) -> Array:
    """Translate the inverses of Box-Cox and Yeo-Johnson powers."""
    value, columns = number_matrix(x), []
    if estimator.standardize:
        value = apply("inverse_transform", estimator._scaler, value)
    for i, exponent in enumerate(estimator.lambdas_):
        column = value.columns(i)
        if estimator.method == "box-cox":
            result = _root(column, float(exponent))
        else:
            up = _root(np.maximum(column, 0.0), float(exponent)) - 1.0
            down = _root(np.maximum(column * -1.0, 0.0), 2.0 - float(exponent)) * -1.0 + 1.0
            result = where(column >= 0.0, up, down)
        columns.append(result.reshape(-1, 1))
    return concatenated(columns, axis=1)


def _root(x: Any, exponent: float) -> Any:
    """Return the numbers whose power of an exponent, minus 1, divided by the exponent, is x."""
    if abs(exponent) < np.spacing(1.0):
        return np.exp(x)
    return np.power(x * exponent + 1.0, 1.0 / exponent)


@method("inverse_transform", "Pipeline")
def pipeline_inverse(estimator: Any, x: Any) -> Any:
    """Translate the inverses of the steps, the last one first."""
    for _, step in reversed(estimator.steps):
        if step is not None and step != "passthrough":
            x = apply("inverse_transform", step, x)
    return x
