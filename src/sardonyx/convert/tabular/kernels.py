"""Kernel methods: support vectors, Gaussian processes, kernel ridge, nearest neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.convert.tabular.arrays import Array, concatenated, sigmoid, where
from sardonyx.convert.tabular.linear import normalized, two_columns
from sardonyx.convert.tabular.methods import apply, labels, method, number_matrix
from sardonyx.convert.tabular.wide_functions import erf
from sardonyx.errors import UnsupportedError


def squared_distances(x: Array, points: Any) -> Array:
    """Return squared distances of rows to points, [rows, points]."""
    gaps = x.node("Unsqueeze", [1]) - np.asarray(points, np.float64)
    return (gaps * gaps).sum(2)


def kernel(name: str, x: Array, points: Any, gamma: float, coef0: float, degree: float) -> Array:
    """Return the kernel between rows and points, [rows, points]."""
    points = np.asarray(points, np.float64)
    match name:
        case "linear":
            return x @ points.T
        case "rbf":
            return np.exp(squared_distances(x, points) * -gamma)
        case "poly" | "polynomial":
            return np.power((x @ points.T) * gamma + coef0, float(degree))
        case "sigmoid":
            return np.tanh((x @ points.T) * gamma + coef0)
        case "laplacian":
            return np.exp(np.absolute(x.node("Unsqueeze", [1]) - points).sum(2) * -gamma)
        case "cosine":
            norm = np.sqrt((x * x).sum(1, keepdims=True))
            length = np.sqrt((points * points).sum(1))
            return (x / where(np.equal(norm, 0.0), 1.0, norm)) @ (points / np.where(length == 0, 1, length)[:, None]).T
    raise UnsupportedError(f"kernel {name!r} has no translation")


def _support(estimator: Any, x: Any) -> Array:
    if not isinstance(estimator.kernel, str) or estimator.kernel == "precomputed":
        raise UnsupportedError(f"kernel {estimator.kernel!r} has no translation", where=type(estimator).__name__)
    vectors = estimator.support_vectors_
    vectors = vectors.toarray() if hasattr(vectors, "toarray") else vectors
    return kernel(estimator.kernel, number_matrix(x), vectors, estimator._gamma, estimator.coef0, estimator.degree)


def _dual(estimator: Any) -> Any:
    dual = estimator._dual_coef_
    return dual.toarray() if hasattr(dual, "toarray") else np.asarray(dual)


@method("predict", "SVR", "NuSVR")
def support_regression(estimator: Any, x: Any) -> Array:
    """Translate the weighted sum of kernels."""
    return (_support(estimator, x) @ _dual(estimator).T + estimator._intercept_).ravel()


def pairwise_decision(estimator: Any, x: Any) -> Array:
    """Return the decision of each pair of classes, positive for the first, [rows, pairs]."""
    dual, count = _dual(estimator), len(estimator.classes_)
    ends = np.cumsum(estimator._n_support)
    spans = [slice(int(end - n), int(end)) for end, n in zip(ends, estimator._n_support, strict=True)]
    weights = []
    for i in range(count):
        for j in range(i + 1, count):
            column = np.zeros(dual.shape[1])
            column[spans[i]] = dual[j - 1, spans[i]]
            column[spans[j]] = dual[i, spans[j]]
            weights.append(column)
    return _support(estimator, x) @ np.stack(weights, axis=1) + estimator._intercept_


def votes(decision: Array, count: int) -> tuple[Array, Array]:
    """Return votes and summed confidences [rows, classes] from decisions positive for the first class."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = np.zeros((len(pairs), count)), np.zeros((len(pairs), count))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    wins = (decision > 0.0).cast(np.float64)
    return wins @ first + (1.0 - wins) @ second, decision @ (first - second)


@method("decision_function", "SVC", "NuSVC")
def support_decision(estimator: Any, x: Any) -> Array:
    """Translate decisions of pairs, or votes of classes with confidences as tie breaks."""
    decision = pairwise_decision(estimator, x)
    count = len(estimator.classes_)
    if count == 2:
        return decision.ravel() * -1.0
    if estimator.decision_function_shape != "ovr":
        return decision
    won, confidence = votes(decision, count)
    return won + confidence / ((np.absolute(confidence) + 1.0) * 3.0)


@method("predict", "SVC", "NuSVC")
def support_labels(estimator: Any, x: Any) -> Array:
    """Translate the class with most votes."""
    if getattr(estimator, "break_ties", False) and len(estimator.classes_) > 2:
        return labels(estimator.classes_, support_decision(estimator, x).argmax(1))
    won, _ = votes(pairwise_decision(estimator, x), len(estimator.classes_))
    return labels(estimator.classes_, won.argmax(1))


@method("predict_proba", "SVC", "NuSVC")
def support_proba(estimator: Any, x: Any) -> Array:
    """Translate Platt's probabilities of pairs, coupled by the iteration of Wu, Lin and Weng."""
    if not len(estimator._probA):
        raise UnsupportedError("probability=False", where=type(estimator).__name__)
    decision = pairwise_decision(estimator, x)
    count = len(estimator.classes_)
    pair = sigmoid((decision * estimator._probA + estimator._probB) * -1.0).clip(1e-7, 1 - 1e-7)
    return coupled(pair, count)


def coupled(pair: Array, count: int) -> Array:
    """Return class probabilities from pairwise ones by libsvm's iteration, with its bound and tolerance."""
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    # q[t, t] = sum of r[j, t]², q[t, j] = -r[j, t] r[t, j], with r[i, j] = pair and r[j, i] = 1 - pair.
    square, other, cross = (
        np.zeros((len(pairs), count)),
        np.zeros((len(pairs), count)),
        np.zeros((len(pairs), count, count)),
    )
    for row, (i, j) in enumerate(pairs):
        square[row, j], other[row, i] = 1, 1
        cross[row, i, j] = cross[row, j, i] = -1
    diagonal = (pair * pair) @ square + ((1.0 - pair) * (1.0 - pair)) @ other
    products = (pair * (1.0 - pair)) @ cross.reshape(len(pairs), count * count)
    matrix = products.reshape(-1, count, count) + diagonal.node("Unsqueeze", [2]) * np.eye(count)
    share = diagonal * 0.0 + 1.0 / count
    going = np.equal(diagonal.columns([0]) * 0.0, 0.0)
    builder = share.builder
    body = GraphBuilder(builder.names)
    names = [builder.names.fresh(name) for name in ("step", "running", "share", "going")]
    kinds = [ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.DOUBLE, ir.DataType.BOOL]
    shapes: list[list[int | None]] = [[], [], [None, count], [None, 1]]
    inputs = [
        ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape))
        for name, kind, shape in zip(names, kinds, shapes, strict=True)
    ]
    old, active = Array(body, inputs[2], np.float64), Array(body, inputs[3], bool)
    outer = (Array(body, diagonal.value, np.float64), Array(body, matrix.value, np.float64))
    new, active = _coupling_step(old, active, *outer, count)
    again = active.any().node("Squeeze")
    outputs = [body.node("Identity", value) for value in (again.value, new.value, active.value)]
    start = builder.constant(True), share.value, going.value
    result = builder.nodes_of("Loop", 2, builder.constant(100), *start, body=body.graph(inputs, outputs, "coupling"))
    return Array(builder, result[0], np.float64)


def _coupling_step(share: Array, going: Array, diagonal: Array, matrix: Array, count: int) -> tuple[Array, Array]:
    """Return shares after one pass over the classes, and the rows that did not converge before."""
    gradient = (matrix @ share.node("Unsqueeze", [2])).reshape(-1, count)
    value = (share * gradient).sum(1, keepdims=True)
    going = going & (np.absolute(gradient - value).max(1, keepdims=True) >= 0.005 / count)
    updated = share
    for t in range(count):
        step = (value - gradient.columns([t])) / diagonal.columns([t])
        updated = (updated + step * np.eye(count)[t]) / (step + 1.0)
        scaled = 1.0 + step
        value = (value + step * (step * diagonal.columns([t]) + gradient.columns([t]) * 2.0)) / scaled / scaled
        gradient = (gradient + step * matrix.node("Gather", np.int64(t), axis=1)) / scaled
    return where(going, updated, share), going


@method("decision_function", "OneClassSVM")
def one_class_decision(estimator: Any, x: Any) -> Array:
    """Translate the signed distance to the support."""
    return (_support(estimator, x) @ _dual(estimator).T + estimator._intercept_).ravel()


@method("score_samples", "OneClassSVM")
def one_class_scores(estimator: Any, x: Any) -> Array:
    """Translate the raw score."""
    return one_class_decision(estimator, x) + estimator.offset_


@method("predict", "OneClassSVM")
def one_class_labels(estimator: Any, x: Any) -> Array:
    """Translate 1 for inliers, -1 for outliers."""
    return where(one_class_decision(estimator, x) > 0.0, np.int64(1), np.int64(-1))


@method("predict", "KernelRidge")
def kernel_ridge(estimator: Any, x: Any) -> Array:
    """Translate the weighted sum of kernels."""
    points = estimator.X_fit_
    gamma = 1.0 / points.shape[1] if estimator.gamma is None else estimator.gamma
    values = kernel(estimator.kernel, number_matrix(x), points, gamma, estimator.coef0, estimator.degree)
    dual = np.asarray(estimator.dual_coef_)
    result = values @ dual.reshape(len(points), -1)
    return result.ravel() if dual.ndim == 1 else result


def covariance(function: Any, x: Array, points: Any) -> Any:
    """Return a kernel of Gaussian processes between rows and points, [rows, points]."""
    points = np.asarray(points, np.float64)
    name = type(function).__name__
    match name:
        case "Sum" | "Product":
            left, right = covariance(function.k1, x, points), covariance(function.k2, x, points)
            return left + right if name == "Sum" else left * right
        case "Exponentiation":
            return np.power(covariance(function.kernel, x, points), float(function.exponent))
        case "ConstantKernel":
            return squared_distances(x, points) * 0.0 + float(function.constant_value)
        case "WhiteKernel":
            return squared_distances(x, points) * 0.0
        case "RBF":
            return np.exp(squared_distances(x / function.length_scale, points / function.length_scale) * -0.5)
        case "DotProduct":
            return x @ points.T + float(function.sigma_0) ** 2
        case "RationalQuadratic":
            base = squared_distances(x, points) / (2 * function.alpha * function.length_scale**2) + 1.0
            return np.power(base, -float(function.alpha))
        case "ExpSineSquared":
            angle = np.sqrt(squared_distances(x, points)) * (np.pi / function.periodicity)
            return np.exp(np.square(np.sin(angle) / float(function.length_scale)) * -2.0)
        case "Matern" if function.nu in (0.5, 1.5, 2.5):
            distance = np.sqrt(squared_distances(x / function.length_scale, points / function.length_scale))
            scaled = distance * np.sqrt(2 * function.nu)
            factor = {0.5: scaled * 0.0 + 1.0, 1.5: scaled + 1.0, 2.5: scaled + 1.0 + scaled * scaled / 3.0}[
                function.nu
            ]
            return factor * np.exp(scaled * -1.0)
    raise UnsupportedError(f"kernel {function} has no translation")


@method("predict", "GaussianProcessRegressor")
def gaussian_regression(estimator: Any, x: Any) -> Array:
    """Translate the mean of the process."""
    alpha = np.asarray(estimator.alpha_)
    mean = covariance(estimator.kernel_, number_matrix(x), estimator.X_train_) @ alpha.reshape(len(alpha), -1)
    mean = mean * np.asarray(estimator._y_train_std) + np.asarray(estimator._y_train_mean)
    return mean.ravel() if alpha.ndim == 1 or alpha.shape[1] == 1 else mean


_LAMBDAS = np.array([0.41, 0.4, 0.37, 0.44, 0.39])
_COEFFICIENTS = np.array([-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654])
"""Approximation of the logistic function by error functions (C. Williams and D. Barber)."""


def _laplace_proba(estimator: Any, x: Array) -> Array:
    """Return the probability of the second class of a binary Laplace approximation, a vector."""
    cross = covariance(estimator.kernel_, x, estimator.X_train_)
    mean = (cross @ (estimator.y_train_ - estimator.pi_).reshape(-1, 1)).reshape(1, -1)
    solved = np.linalg.solve(estimator.L_, np.diag(estimator.W_sr_))
    projected = cross @ solved.T
    prior = _prior_variance(estimator.kernel_, x)
    variance = (prior - (projected * projected).sum(1)).reshape(1, -1)
    alpha = 1.0 / (variance * 2.0)
    gamma = mean * _LAMBDAS.reshape(-1, 1)
    error = erf(gamma * np.sqrt(alpha / (alpha + (_LAMBDAS**2).reshape(-1, 1))))
    integrals = np.sqrt(np.pi / alpha) * error / (np.sqrt(variance * (2 * np.pi)) * 2.0)
    coefficients = _COEFFICIENTS.reshape(-1, 1)
    return (integrals * coefficients).sum(0) + 0.5 * float(coefficients.sum())


def _prior_variance(function: Any, x: Array) -> Any:
    """Return the kernel of each row with itself, a vector."""
    name = type(function).__name__
    if name in ("Sum", "Product"):
        left, right = _prior_variance(function.k1, x), _prior_variance(function.k2, x)
        return left + right if name == "Sum" else left * right
    if name == "DotProduct":
        return (x * x).sum(1) + float(function.sigma_0) ** 2
    if name == "Exponentiation":
        return np.power(_prior_variance(function.kernel, x), float(function.exponent))
    constants = {"ConstantKernel": "constant_value", "WhiteKernel": "noise_level"}
    value = float(getattr(function, constants[name])) if name in constants else 1.0
    return (x * 0.0).sum(1) + value


@method("predict_proba", "_BinaryGaussianProcessClassifierLaplace")
def laplace_proba(estimator: Any, x: Any) -> Array:
    """Translate the Laplace approximation of two classes."""
    return two_columns(_laplace_proba(estimator, number_matrix(x)))


@method("predict", "_BinaryGaussianProcessClassifierLaplace")
def laplace_labels(estimator: Any, x: Any) -> Array:
    """Translate labels by the sign of the latent mean."""
    cross = covariance(estimator.kernel_, number_matrix(x), estimator.X_train_)
    mean = (cross @ (estimator.y_train_ - estimator.pi_).reshape(-1, 1)).ravel()
    return labels(estimator.classes_, (mean > 0.0).cast(np.int64))


@method("predict_proba", "GaussianProcessClassifier")
def gaussian_proba(estimator: Any, x: Any) -> Array:
    """Translate the probabilities of two classes, or of each class against the rest."""
    base = estimator.base_estimator_
    if len(estimator.classes_) == 2:
        return laplace_proba(base, x)
    parts = [_laplace_proba(one, number_matrix(x)).reshape(-1, 1) for one in base.estimators_]
    return normalized(concatenated(parts, axis=1))


@method("predict", "GaussianProcessClassifier")
def gaussian_labels(estimator: Any, x: Any) -> Array:
    """Translate labels of two classes, of the greatest probability, or of pairs of classes."""
    base = estimator.base_estimator_
    if len(estimator.classes_) == 2 or estimator.multi_class == "one_vs_one":
        return apply("predict", base, x)  # The classes of the inner classifier are those of the outer one.
    parts = [_laplace_proba(one, number_matrix(x)).reshape(-1, 1) for one in base.estimators_]
    return labels(estimator.classes_, concatenated(parts, axis=1).argmax(1))


def metric_distances(estimator: Any, x: Array, points: Any) -> Array:
    """Return distances in the estimator's metric, [rows, points]."""
    name, power = estimator.effective_metric_, estimator.effective_metric_params_.get("p", 2)
    if name == "euclidean" or (name == "minkowski" and power == 2):
        return np.sqrt(squared_distances(x, points))
    if name == "cosine":
        return (kernel("cosine", x, points, 1.0, 0.0, 1.0) * -1.0 + 1.0).clip(0.0, 2.0)
    gaps = np.absolute(x.node("Unsqueeze", [1]) - np.asarray(points, np.float64))
    if name in ("manhattan", "cityblock", "l1") or (name == "minkowski" and power == 1):
        return gaps.sum(2)
    if name in ("chebyshev", "infinity"):
        return gaps.max(2)
    if name == "minkowski" and estimator.effective_metric_params_.get("w") is None:
        return np.power(np.power(gaps, float(power)).sum(2), 1.0 / power)
    raise UnsupportedError(f"metric {name} has no translation", where=type(estimator).__name__)


def nearest(estimator: Any, x: Any, count: int) -> tuple[Array, Array]:
    """Return distances and positions of the nearest fitted rows, [rows, count]."""
    distances = metric_distances(estimator, number_matrix(x), estimator._fit_X)
    values, index = distances.builder.nodes_of(
        "TopK", 2, distances.value, distances.builder.constant([count], np.int64), axis=1, largest=0
    )
    return Array(distances.builder, values, np.float64), Array(distances.builder, index, np.int64)


def weights(estimator: Any, distances: Array) -> Array:
    """Return the weights of neighbours; a neighbour at distance 0 excludes all others at another distance."""
    if estimator.weights == "uniform":
        return distances * 0.0 + 1.0
    if estimator.weights != "distance":
        raise UnsupportedError(f"weights={estimator.weights!r}", where=type(estimator).__name__)
    is_zero = np.equal(distances, 0.0)
    inverse = 1.0 / where(is_zero, 1.0, distances)
    return where(is_zero.any(1, keepdims=True), is_zero.cast(np.float64), inverse)


@method("predict", "KNeighborsRegressor")
def neighbour_regression(estimator: Any, x: Any) -> Array:
    """Translate the weighted mean of the nearest targets."""
    distances, index = nearest(estimator, x, estimator.n_neighbors)
    target = np.asarray(estimator._y, np.float64)
    values = distances.constant(target.reshape(len(target), -1)).rows(index)
    share = weights(estimator, distances)
    result = (values * share.node("Unsqueeze", [2])).sum(1) / share.sum(1, keepdims=True)
    return result.ravel() if target.ndim == 1 else result


def _class_shares(estimator: Any, share: Array, index: Array | None) -> list[Array]:
    """Return weights summed by class for every output; `index` None: a column for each fitted row."""
    targets = np.asarray(estimator._y).reshape(len(estimator._fit_X), -1)
    classes = estimator.classes_ if isinstance(estimator.classes_, list) else [estimator.classes_]
    result = []
    for output, known in enumerate(classes):
        hot = np.eye(len(known))[targets[:, output]]
        if index is None:
            result.append(share @ hot)
        else:
            result.append((share.constant(hot).rows(index) * share.node("Unsqueeze", [2])).sum(1))
    return result


@method("predict_proba", "KNeighborsClassifier")
def neighbour_proba(estimator: Any, x: Any) -> Any:
    """Translate shares of classes among the nearest rows."""
    distances, index = nearest(estimator, x, estimator.n_neighbors)
    result = [normalized(part) for part in _class_shares(estimator, weights(estimator, distances), index)]
    return result if isinstance(estimator.classes_, list) else result[0]


@method("predict", "KNeighborsClassifier")
def neighbour_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of greatest weight among the nearest rows."""
    distances, index = nearest(estimator, x, estimator.n_neighbors)
    parts = _class_shares(estimator, weights(estimator, distances), index)
    if not isinstance(estimator.classes_, list):
        return labels(estimator.classes_, parts[0].argmax(1))
    columns = [
        labels(known, part.argmax(1)).reshape(-1, 1) for known, part in zip(estimator.classes_, parts, strict=True)
    ]
    return concatenated(columns, axis=1)


def _within(estimator: Any, x: Any) -> Array:
    """Return weights of fitted rows within the radius, [rows, fitted rows]."""
    distances = metric_distances(estimator, number_matrix(x), estimator._fit_X)
    return weights(estimator, distances) * (distances <= float(estimator.radius)).cast(np.float64)


@method("predict", "RadiusNeighborsRegressor")
def radius_regression(estimator: Any, x: Any) -> Array:
    """Translate the weighted mean of targets within the radius; NaN without any."""
    share = _within(estimator, x)
    target = np.asarray(estimator._y, np.float64)
    result = (share @ target.reshape(len(target), -1)) / share.sum(1, keepdims=True)
    return result.ravel() if target.ndim == 1 else result


@method("predict_proba", "RadiusNeighborsClassifier")
def radius_proba(estimator: Any, x: Any) -> Array:
    """Translate shares of classes within the radius; a row without neighbours has those of the label of outliers."""
    if isinstance(estimator.classes_, list):
        raise UnsupportedError("several outputs", where="RadiusNeighborsClassifier")
    shares = _class_shares(estimator, _within(estimator, x), None)[0]
    total = shares.sum(1, keepdims=True)
    is_outlier = np.equal(total, 0.0)
    result = shares / where(is_outlier, 1.0, total)
    known = np.equal(estimator.classes_, _outlier_label(estimator)).astype(np.float64)
    return where(is_outlier, known, result) if known.any() else result


def _outlier_label(estimator: Any) -> Any:
    """Return the label of rows without neighbours; None if the estimator refuses such rows."""
    return None if estimator.outlier_label_ is None else np.ravel(estimator.outlier_label_)[0]


@method("predict", "RadiusNeighborsClassifier")
def radius_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of greatest weight within the radius, or the label of outliers."""
    shares = radius_proba(estimator, x)
    label = _outlier_label(estimator)
    if label is None or label in estimator.classes_:
        return labels(estimator.classes_, shares.argmax(1))
    index = where(np.equal(shares.sum(1), 0.0), len(estimator.classes_), shares.argmax(1))
    return labels(np.append(estimator.classes_, label), index.cast(np.int64))


@method("score_samples", "LocalOutlierFactor")
def outlier_factor(estimator: Any, x: Any) -> Array:
    """Translate the negative local outlier factor of new rows."""
    distances, index = nearest(estimator, x, estimator.n_neighbors_)
    reach = distances.constant(estimator._distances_fit_X_[:, estimator.n_neighbors_ - 1]).rows(index)
    density = 1.0 / (np.maximum(distances, reach).mean(1) + 1e-10)
    ratio = distances.constant(estimator._lrd).rows(index) / density.reshape(-1, 1)
    return ratio.mean(1) * -1.0


@method("predict_proba", "BaseLabelPropagation", "LabelPropagation", "LabelSpreading")
def propagated_proba(estimator: Any, x: Any) -> Array:
    """Translate class shares weighted by the kernel to fitted rows."""
    distributions = np.asarray(estimator.label_distributions_)
    if estimator.kernel == "knn":
        _, index = nearest(estimator.nn_fit, x, estimator.n_neighbors)
        return normalized(index.constant(distributions, np.float64).rows(index).sum(1))
    if estimator.kernel == "rbf":
        weight = kernel("rbf", number_matrix(x), estimator.X_, estimator.gamma, 0, 0)
    else:
        raise UnsupportedError(f"kernel {estimator.kernel!r} has no translation", where=type(estimator).__name__)
    return normalized(weight @ distributions)


@method("predict", "BaseLabelPropagation", "LabelPropagation", "LabelSpreading")
def propagated_labels(estimator: Any, x: Any) -> Array:
    """Translate the class of the greatest share."""
    return labels(estimator.classes_, propagated_proba(estimator, x).argmax(1))


@method("transform", "KernelPCA")
def kernel_components(estimator: Any, x: Any) -> Array:
    """Translate projections in feature space."""
    points = estimator.X_fit_
    gamma = getattr(estimator, "gamma_", None) or estimator.gamma or 1.0 / points.shape[1]
    values = kernel(estimator.kernel, number_matrix(x), points, gamma, estimator.coef0, estimator.degree)
    return centred_components(estimator, values)


def centred_components(estimator: Any, values: Array) -> Array:
    """Return projections of rows of a kernel on the components of a KernelPCA."""
    centre = estimator._centerer
    values = values - centre.K_fit_rows_ - values.mean(1, keepdims=True) + centre.K_fit_all_
    nonzero = np.flatnonzero(estimator.eigenvalues_)
    scaled = np.zeros_like(estimator.eigenvectors_)
    scaled[:, nonzero] = estimator.eigenvectors_[:, nonzero] / np.sqrt(estimator.eigenvalues_[nonzero])
    return values @ scaled


@method("transform", "Nystroem")
def nystroem(estimator: Any, x: Any) -> Array:
    """Translate kernels to a subset, normalized."""
    points = estimator.components_
    gamma = 1.0 / points.shape[1] if estimator.gamma is None else estimator.gamma
    degree, coef0 = estimator.degree or 3, 1 if estimator.coef0 is None else estimator.coef0
    return kernel(estimator.kernel, number_matrix(x), points, gamma, coef0, degree) @ estimator.normalization_.T


@method("transform", "RBFSampler")
def random_fourier(estimator: Any, x: Any) -> Array:
    """Translate random Fourier features."""
    angle = number_matrix(x) @ estimator.random_weights_ + estimator.random_offset_
    return np.cos(angle) * float(np.sqrt(2.0 / estimator.n_components))


@method("transform", "SkewedChi2Sampler")
def skewed_features(estimator: Any, x: Any) -> Array:
    """Translate random Fourier features of logarithms."""
    angle = np.log(number_matrix(x) + float(estimator.skewedness)) @ estimator.random_weights_
    return np.cos(angle + estimator.random_offset_) * float(np.sqrt(2.0 / estimator.n_components))


@method("transform", "AdditiveChi2Sampler")
def additive_features(estimator: Any, x: Any) -> Array:
    """Translate samples of the transform of the additive chi-squared kernel; 0 stays 0."""
    value, steps = number_matrix(x).cast(np.float64), int(estimator.sample_steps)
    known = {1: 0.8, 2: 0.5, 3: 0.4}
    interval = float(known.get(steps, 1.0) if estimator.sample_interval is None else estimator.sample_interval)
    is_zero = np.equal(value, 0.0)
    positive = where(is_zero, 1.0, value)
    parts = [np.sqrt(positive * interval)]
    angle = np.log(positive) * interval
    for j in range(1, steps):
        factor = np.sqrt(positive * (2.0 * interval / np.cosh(np.pi * j * interval)))
        parts += [factor * np.cos(angle * float(j)), factor * np.sin(angle * float(j))]
    return concatenated([where(is_zero, 0.0, part) for part in parts], axis=1)


MOST_SKETCH_COMPONENTS = 1024
"""Number of components up to which the tables of a sketch, quadratic in it, are written: 16 MiB."""


@method("transform", "PolynomialCountSketch")
def sketched(estimator: Any, x: Any) -> Array:
    """Translate the product of hashed columns in the frequencies."""
    count = int(estimator.n_components)
    if count > MOST_SKETCH_COMPONENTS:
        raise UnsupportedError(
            f"{count} components, expected at most {MOST_SKETCH_COMPONENTS}", where="PolynomialCountSketch"
        )
    value = number_matrix(x).cast(np.float64) * float(np.sqrt(estimator.gamma))
    angles = np.outer(np.arange(count), np.arange(count)) * (2 * np.pi / count)
    cosines, sines = value.constant(np.cos(angles)), value.constant(-np.sin(angles))
    real: Any = None
    imaginary: Any = None
    for indices, signs in zip(estimator.indexHash_, estimator.bitHash_, strict=True):
        table = np.zeros((len(indices), count))
        table[np.arange(len(indices)), indices] = signs
        constant = table[-1] * np.sqrt(estimator.coef0) if estimator.coef0 else np.zeros(count)
        sketch = value @ (table[:-1] if estimator.coef0 else table) + constant
        first, second = sketch @ cosines, sketch @ sines
        if real is None:
            real, imaginary = first, second
        else:
            real, imaginary = real * first - imaginary * second, real * second + imaginary * first
    return (real @ cosines + imaginary @ sines) / float(count)


@method("transform", "KernelCenterer")
def centred_kernel(estimator: Any, x: Any) -> Array:
    """Translate kernel values with means removed."""
    matrix = number_matrix(x)
    means = matrix.sum(1, keepdims=True) / float(len(estimator.K_fit_rows_))
    return matrix - np.asarray(estimator.K_fit_rows_) - means + float(estimator.K_fit_all_)
