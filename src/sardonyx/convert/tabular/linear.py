"""Linear models, discriminants and multilayer perceptrons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, log_sum_exp, sigmoid, softmax, where
from sardonyx.convert.tabular.methods import apply, labels, method, number_matrix
from sardonyx.errors import UnsupportedError


def affine(estimator: Any, x: Any) -> Array:
    """Return x @ coef + intercept, [rows, outputs]."""
    coefficients = np.asarray(estimator.coef_.toarray() if hasattr(estimator.coef_, "toarray") else estimator.coef_)
    coefficients = np.atleast_2d(coefficients).astype(np.float64)
    return number_matrix(x) @ coefficients.T + np.asarray(estimator.intercept_, np.float64)


def shaped(estimator: Any, result: Array) -> Array:
    """Return a result of one output as a vector, where the estimator does so."""
    return result.ravel() if np.ndim(estimator.coef_) == 1 else result


@method(
    "predict",
    "LinearModel",
    "LinearSVR",
    "QuantileRegressor",
    "HuberRegressor",
    "BaseSGDRegressor",
    "SGDRegressor",
    "PassiveAggressiveRegressor",
)
def linear_regression(estimator: Any, x: Any) -> Array:
    """Translate a linear function."""
    return shaped(estimator, affine(estimator, x))


@method("predict", "TheilSenRegressor", "RANSACRegressor")
def robust_regression(estimator: Any, x: Any) -> Array:
    """Translate the inner linear function."""
    inner = getattr(estimator, "estimator_", None)
    return linear_regression(estimator, x) if inner is None else apply("predict", inner, x)


@method("predict", "_GeneralizedLinearRegressor", "PoissonRegressor", "GammaRegressor", "TweedieRegressor")
def generalized_linear(estimator: Any, x: Any) -> Array:
    """Translate a linear function under the inverse of the link."""
    raw = linear_regression(estimator, x)
    link = type(estimator._base_loss.link).__name__
    if link == "LogLink":
        return np.exp(raw)
    if link == "IdentityLink":
        return raw
    raise UnsupportedError(f"link {link} has no translation", where=type(estimator).__name__)


@method("predict", "_PLS", "PLSRegression", "CCA", "PLSCanonical")
def partial_least_squares(estimator: Any, x: Any) -> Array:
    """Translate a linear function of centred features."""
    result = (number_matrix(x) - estimator._x_mean) @ np.asarray(estimator.coef_).T + estimator.intercept_
    return result.ravel() if getattr(estimator, "_predict_1d", False) else result


@method("transform", "_PLS", "PLSRegression", "CCA", "PLSCanonical")
def partial_least_squares_scores(estimator: Any, x: Any) -> Array:
    """Translate scores of scaled features."""
    return ((number_matrix(x) - estimator._x_mean) / estimator._x_std) @ estimator.x_rotations_


@method("decision_function", "LinearClassifierMixin")
def linear_decision(estimator: Any, x: Any) -> Array:
    """Translate the signed distance of each class; a vector for two classes."""
    result = affine(estimator, x)
    return result.ravel() if np.atleast_2d(estimator.coef_).shape[0] == 1 else result


def signed_labels(estimator: Any, decision: Array) -> Array:
    """Return labels by the sign of a vector or the greatest column of [rows, classes]."""
    if len(estimator.classes_) == 2:
        return labels(estimator.classes_, (decision.ravel() > 0.0).cast(np.int64))
    return labels(estimator.classes_, decision.argmax(1))


@method("predict", "LinearClassifierMixin")
def linear_labels(estimator: Any, x: Any) -> Array:
    """Translate labels of the greatest distance."""
    return signed_labels(estimator, linear_decision(estimator, x))


@method("predict", "RidgeClassifier", "RidgeClassifierCV")
def ridge_labels(estimator: Any, x: Any) -> Array:
    """Translate labels of the greatest distance; several outputs by sign."""
    if np.ndim(estimator.classes_) > 1 or isinstance(estimator.classes_, list):
        raise UnsupportedError("several outputs of a ridge classifier", where=type(estimator).__name__)
    return linear_labels(estimator, x)


def two_columns(probability: Array) -> Array:
    """Return [1 - p, p] for the vector of the second class."""
    second = probability.reshape(-1, 1)
    return concatenated([1.0 - second, second], axis=1)


@method("predict_proba", "LogisticRegression")
def logistic_proba(estimator: Any, x: Any) -> Array:
    """Translate softmax over classes, or each class against the rest."""
    decision = linear_decision(estimator, x)
    scheme = getattr(estimator, "multi_class", "auto")
    one_vs_rest = scheme == "ovr" or (scheme in ("auto", "deprecated", "warn") and estimator.solver == "liblinear")
    if len(estimator.classes_) == 2:
        return two_columns(sigmoid(decision))
    return normalized(sigmoid(decision)) if one_vs_rest else softmax(decision)


def normalized(shares: Array) -> Array:
    """Return rows that sum to 1; rows of zeros become equal shares, as scikit-learn does."""
    total = shares.sum(1, keepdims=True)
    return shares / total


@method("predict_proba", "SGDClassifier")
def sgd_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of the logistic loss or of the modified Huber loss."""
    decision = linear_decision(estimator, x)
    binary = len(estimator.classes_) == 2
    if estimator.loss == "log_loss":
        return two_columns(sigmoid(decision)) if binary else normalized(sigmoid(decision))
    if estimator.loss != "modified_huber":
        raise UnsupportedError(f"probabilities of loss {estimator.loss}", where="SGDClassifier.predict_proba")
    shares = (decision.clip(-1.0, 1.0) + 1.0) / 2.0
    if binary:
        return two_columns(shares)
    total = shares.sum(1, keepdims=True)
    is_zero = np.equal(total, 0.0)
    return where(is_zero, 1.0 / len(estimator.classes_), shares / where(is_zero, 1.0, total))


@method("predict_proba", "LinearDiscriminantAnalysis")
def discriminant_proba(estimator: Any, x: Any) -> Array:
    """Translate posteriors of the linear discriminant."""
    decision = linear_decision(estimator, x)
    return two_columns(sigmoid(decision)) if len(estimator.classes_) == 2 else softmax(decision)


@method("transform", "LinearDiscriminantAnalysis")
def discriminant_projection(estimator: Any, x: Any) -> Array:
    """Translate the projection to the most discriminative directions."""
    centred = number_matrix(x)
    if estimator.solver == "svd":
        centred = centred - estimator.xbar_
    return (centred @ estimator.scalings_).columns(slice(0, estimator._max_components))


@method("decision_function", "QuadraticDiscriminantAnalysis")
def quadratic_decision(estimator: Any, x: Any) -> Array:
    """Translate log posteriors; the difference for two classes."""
    result = _quadratic(estimator, x)
    return result.columns(1) - result.columns(0) if len(estimator.classes_) == 2 else result


def _quadratic(estimator: Any, x: Any) -> Array:
    features = number_matrix(x)
    norms, determinants = [], []
    for mean, rotation, scaling in zip(estimator.means_, estimator.rotations_, estimator.scalings_, strict=True):
        projected = (features - mean) @ (rotation * scaling**-0.5)
        norms.append((projected * projected).sum(1, keepdims=True))
        determinants.append(np.sum(np.log(scaling)))
    return (concatenated(norms, axis=1) + np.array(determinants)) * -0.5 + np.log(estimator.priors_)


@method("predict_proba", "QuadraticDiscriminantAnalysis")
def quadratic_proba(estimator: Any, x: Any) -> Array:
    """Translate posteriors of the quadratic discriminant."""
    return softmax(_quadratic(estimator, x))


@method("predict", "QuadraticDiscriminantAnalysis")
def quadratic_labels(estimator: Any, x: Any) -> Array:
    """Translate labels of the greatest posterior."""
    return labels(estimator.classes_, _quadratic(estimator, x).argmax(1))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "identity": lambda x: x,
    "logistic": sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "softmax": softmax,
    "exp": np.exp,
}


def perceptron(estimator: Any, x: Any) -> Array:
    """Return the output layer of a multilayer perceptron, [rows, outputs]."""
    value = number_matrix(x)
    last = len(estimator.coefs_) - 1
    for i, (weights, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        function = estimator.out_activation_ if i == last else estimator.activation
        value = _ACTIVATIONS[function](value @ weights + bias)
    return value


@method("predict", "MLPRegressor")
def perceptron_regression(estimator: Any, x: Any) -> Array:
    """Translate the output layer."""
    result = perceptron(estimator, x)
    return result.ravel() if estimator.n_outputs_ == 1 else result


@method("predict_proba", "MLPClassifier")
def perceptron_proba(estimator: Any, x: Any) -> Array:
    """Translate class probabilities."""
    result = perceptron(estimator, x)
    return two_columns(result) if estimator.n_outputs_ == 1 else result


@method("predict", "MLPClassifier")
def perceptron_labels(estimator: Any, x: Any) -> Array:
    """Translate labels; several outputs are 0 or 1 each."""
    result = perceptron(estimator, x)
    if estimator.n_outputs_ == 1:
        return labels(estimator.classes_, (result.ravel() > 0.5).cast(np.int64))
    if estimator.out_activation_ == "softmax":
        return labels(estimator.classes_, result.argmax(1))
    return (result > 0.5).cast(np.int64)


@method("predict", "IsotonicRegression")
@method("transform", "IsotonicRegression")
def isotonic(estimator: Any, x: Any) -> Array:
    """Translate the interpolation between thresholds."""
    value = x.cast(np.float64).ravel()
    result = interpolated(value, estimator.X_thresholds_, estimator.y_thresholds_)
    if estimator.out_of_bounds == "clip":
        return result
    if estimator.out_of_bounds == "raise":
        raise UnsupportedError("out_of_bounds='raise'", where="IsotonicRegression", remedy="Set out_of_bounds='clip'.")
    return where((value < estimator.X_min_) | (value > estimator.X_max_), np.nan, result)


def interpolated(value: Array, points: Any, results: Any) -> Array:
    """Return the linear interpolation of a vector between ascending points, constant beyond the ends."""
    points, results = np.asarray(points, np.float64), np.asarray(results, np.float64)
    if len(points) == 1:
        return value * 0.0 + results[0]
    reached = (value.reshape(-1, 1) >= points).sum(1)
    left = (reached - 1).clip(0, len(points) - 2)
    start, low, high = points[:-1], results[:-1], results[1:]
    gaps = np.diff(points)
    gaps = np.where(gaps == 0, 1.0, gaps)
    slope = value.constant((high - low) / gaps).rows(left)
    inside = slope * (value - value.constant(start).rows(left)) + value.constant(low).rows(left)
    inside = where(value >= points[-1], results[-1], inside)
    return where(value <= points[0], results[0], inside)


@method("decision_function", "NearestCentroid")
def centroid_scores(estimator: Any, x: Any) -> Array:
    """Translate discriminant scores; the difference for two classes."""
    scores = _centroid_scores(estimator, x)
    return scores.columns(1) - scores.columns(0) if len(estimator.classes_) == 2 else scores


def _centroid_scores(estimator: Any, x: Any) -> Array:
    deviation = np.asarray(estimator.within_class_std_dev_, np.float64)
    scale = np.where(deviation == 0, 1.0, deviation)
    squares = _centroid_distances(estimator, number_matrix(x) / scale, estimator.centroids_ / scale)
    return squares * -1.0 + 2.0 * np.log(np.asarray(estimator.class_prior_, np.float64))


def _centroid_distances(estimator: Any, value: Array, centroids: Any) -> Array:
    """Return squared distances to centroids, [rows, classes]."""
    gaps = value.node("Unsqueeze", [1]) - centroids
    if estimator.metric == "manhattan":
        return np.square(np.absolute(gaps).sum(2))
    if estimator.metric != "euclidean":
        raise UnsupportedError(f"metric {estimator.metric}", where="NearestCentroid")
    return (gaps * gaps).sum(2)


@method("predict_proba", "NearestCentroid")
def centroid_proba(estimator: Any, x: Any) -> Array:
    """Translate softmax of the discriminant scores."""
    return softmax(_centroid_scores(estimator, x))


@method("predict", "NearestCentroid")
def centroid_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of the nearest centroid, or of the greatest score if priors differ."""
    priors = np.asarray(estimator.class_prior_, np.float64)
    if np.isclose(priors, 1 / len(priors)).all():
        distances = _centroid_distances(estimator, number_matrix(x), estimator.centroids_)
        return labels(estimator.classes_, distances.argmin(1))
    return signed_labels(estimator, centroid_scores(estimator, x))


@method(
    "predict_proba",
    "_BaseDiscreteNB",
    "_BaseNB",
    "GaussianNB",
    "MultinomialNB",
    "ComplementNB",
    "BernoulliNB",
    "CategoricalNB",
)
def bayes_proba(estimator: Any, x: Any) -> Array:
    """Translate normalized joint likelihoods."""
    joint = likelihood(estimator, x)
    return np.exp(joint - log_sum_exp(joint))


@method(
    "predict",
    "_BaseDiscreteNB",
    "_BaseNB",
    "GaussianNB",
    "MultinomialNB",
    "ComplementNB",
    "BernoulliNB",
    "CategoricalNB",
)
def bayes_labels(estimator: Any, x: Any) -> Array:
    """Translate labels of the greatest likelihood."""
    return labels(estimator.classes_, likelihood(estimator, x).argmax(1))


def likelihood(estimator: Any, x: Any) -> Array:
    """Return joint log likelihoods of naive Bayes, [rows, classes]."""
    features = number_matrix(x)
    name = type(estimator).__name__
    if name == "GaussianNB":
        columns = []
        for prior, mean, variance in zip(estimator.class_prior_, estimator.theta_, estimator.var_, strict=True):
            gap = features - mean
            constant = np.log(prior) - 0.5 * np.sum(np.log(2.0 * np.pi * variance))
            columns.append((gap * gap / variance).sum(1, keepdims=True) * -0.5 + constant)
        return concatenated(columns, axis=1)
    if name == "MultinomialNB":
        return features @ estimator.feature_log_prob_.T + estimator.class_log_prior_
    if name == "ComplementNB":
        result = features @ estimator.feature_log_prob_.T
        return result + estimator.class_log_prior_ if len(estimator.classes_) == 1 else result
    if name == "BernoulliNB":
        if estimator.binarize is not None:
            features = (features > float(estimator.binarize)).cast(np.float64)
        negative = np.log(1 - np.exp(estimator.feature_log_prob_))
        result = features @ (estimator.feature_log_prob_ - negative).T
        return result + (estimator.class_log_prior_ + negative.sum(axis=1))
    if name == "CategoricalNB":
        total: Any = None
        for i, table in enumerate(estimator.feature_log_prob_):
            part = features.constant(table.T).rows(features.columns(i).cast(np.int64))
            total = part if total is None else total + part
        return total + estimator.class_log_prior_
    raise UnsupportedError("the class has no translation", where=name)
