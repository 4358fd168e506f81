"""Outlier detectors, clusters and mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, log_sum_exp, where
from sardonyx.convert.tabular.ensembles import constant_rows
from sardonyx.convert.tabular.methods import apply, method, number_matrix
from sardonyx.convert.tabular.trees import ensemble, scikit_tree, single_precision

# Outliers


def _path_length(counts: Any) -> Any:
    counts = np.asarray(counts, np.float64)
    safe = np.maximum(counts, 3)
    long = 2.0 * (np.log(safe - 1.0) + np.euler_gamma) - 2.0 * (safe - 1.0) / safe
    return np.where(counts <= 1, 0.0, np.where(counts == 2, 1.0, long))


@method("score_samples", "IsolationForest")
def isolation_scores(estimator: Any, x: Any) -> Array:
    """Translate the anomaly score from the mean depth of leaves."""
    total: Any = None
    for one, features in zip(estimator.estimators_, estimator.estimators_features_, strict=True):
        inner = one.tree_
        depth = np.zeros(inner.node_count)
        for node in range(inner.node_count):
            for child in (inner.children_left[node], inner.children_right[node]):
                if child >= 0:
                    depth[child] = depth[node] + 1
        values = (depth + _path_length(inner.n_node_samples)).reshape(-1, 1)
        tree = scikit_tree(one, values)
        if len(features) != estimator.n_features_in_ or list(features) != list(range(len(features))):
            tree.features = np.asarray(features)[tree.features]
        total = [tree] if total is None else [*total, tree]
    depths = ensemble(single_precision(x), total, [0] * len(total), 1).ravel()
    denominator = len(estimator.estimators_) * float(_path_length([estimator._max_samples])[0])
    return np.power(2.0, depths * (-1.0 / denominator)) * -1.0


@method("score_samples", "EllipticEnvelope")
def elliptic_scores(estimator: Any, x: Any) -> Array:
    """Translate negative squared Mahalanobis distances."""
    gap = number_matrix(x) - estimator.location_
    return ((gap @ estimator.precision_) * gap).sum(1) * -1.0


@method("score_samples", "SGDOneClassSVM")
def linear_one_class_scores(estimator: Any, x: Any) -> Array:
    """Translate a linear score."""
    return (number_matrix(x) @ np.asarray(estimator.coef_).T).ravel()


@method("decision_function", "IsolationForest", "EllipticEnvelope", "SGDOneClassSVM", "LocalOutlierFactor")
def outlier_decision(estimator: Any, x: Any) -> Array:
    """Translate the score beyond the offset."""
    return apply("score_samples", estimator, x) - np.asarray(estimator.offset_).reshape(-1)


@method("predict", "IsolationForest", "EllipticEnvelope", "SGDOneClassSVM", "LocalOutlierFactor")
def outlier_labels(estimator: Any, x: Any) -> Array:
    """Translate 1 for inliers, -1 for outliers."""
    inlier = where(outlier_decision(estimator, x) >= 0.0, np.int64(1), np.int64(-1))
    return inlier.cast(np.int32) if type(estimator).__name__ == "SGDOneClassSVM" else inlier


# Clusters and mixtures


def center_distances(estimator: Any, x: Any) -> Array:
    """Return squared distances to cluster centres, [rows, clusters]."""
    gaps = number_matrix(x).node("Unsqueeze", [1]) - np.asarray(estimator.cluster_centers_, np.float64)
    return (gaps * gaps).sum(2)


@method("predict", "_BaseKMeans", "KMeans", "MiniBatchKMeans", "MeanShift", "AffinityPropagation")
def nearest_center(estimator: Any, x: Any) -> Array:
    """Translate the number of the nearest centre."""
    index = center_distances(estimator, x).argmin(1)
    narrow = type(estimator).__name__ in ("KMeans", "MiniBatchKMeans", "BisectingKMeans")
    return index.cast(np.int32) if narrow else index


@method("transform", "_BaseKMeans", "KMeans", "MiniBatchKMeans", "BisectingKMeans")
def distances_to_centers(estimator: Any, x: Any) -> Array:
    """Translate distances to the centres."""
    return np.sqrt(center_distances(estimator, x))


@method("predict", "BisectingKMeans")
def bisecting_labels(estimator: Any, x: Any) -> Array:
    """Translate the descent through the tree of bisections."""
    features = number_matrix(x)
    mean = getattr(estimator, "_X_mean", None)
    if mean is not None:
        features = features - mean

    def label(node: Any) -> Any:
        if node.left is None:
            return constant_rows(features, np.int32(node.label))
        gaps = [features - child.center for child in (node.left, node.right)]
        left, right = ((gap * gap).sum(1) for gap in gaps)
        return where(left <= right, label(node.left), label(node.right))

    return label(estimator._bisecting_tree)


@method("predict", "Birch")
def birch_labels(estimator: Any, x: Any) -> Array:
    """Translate the cluster of the nearest subcluster."""
    gaps = number_matrix(x).node("Unsqueeze", [1]) - estimator.subcluster_centers_
    return (gaps * gaps).sum(2).constant(estimator.subcluster_labels_, np.int64).rows((gaps * gaps).sum(2).argmin(1))


@method("transform", "Birch")
def birch_distances(estimator: Any, x: Any) -> Array:
    """Translate distances to the subclusters."""
    gaps = number_matrix(x).node("Unsqueeze", [1]) - estimator.subcluster_centers_
    return np.sqrt((gaps * gaps).sum(2))


def _mixture(estimator: Any, x: Any) -> Array:
    """Return log probabilities of rows and components, with weights, [rows, components]."""
    features, columns = number_matrix(x), []
    kind = estimator.covariance_type
    width = estimator.means_.shape[1]
    for k, mean in enumerate(estimator.means_):
        factor = estimator.precisions_cholesky_ if kind == "tied" else estimator.precisions_cholesky_[k]
        gap = features - mean
        if kind in ("full", "tied"):
            projected, logdet = gap @ factor, float(np.sum(np.log(np.diag(factor))))
        elif kind == "diag":
            projected, logdet = gap * factor, float(np.sum(np.log(factor)))
        else:
            projected, logdet = gap * float(factor), width * float(np.log(factor))
        columns.append(
            (projected * projected).sum(1, keepdims=True) * -0.5 + (logdet - 0.5 * width * np.log(2 * np.pi))
        )
    result = concatenated(columns, axis=1)
    if type(estimator).__name__ == "BayesianGaussianMixture":
        from scipy.special import digamma

        freedom = estimator.degrees_of_freedom_
        correction = -0.5 * width * np.log(freedom)
        steps = np.arange(width)[:, np.newaxis]
        log_lambda = width * np.log(2.0) + np.sum(digamma(0.5 * (freedom - steps)), 0)
        correction = correction + 0.5 * (log_lambda - width / estimator.mean_precision_)
        return result + (correction + estimator._estimate_log_weights())
    return result + np.log(estimator.weights_)


@method("predict", "BaseMixture")
def mixture_labels(estimator: Any, x: Any) -> Array:
    """Translate the most probable component."""
    return _mixture(estimator, x).argmax(1)


@method("predict_proba", "BaseMixture")
def mixture_proba(estimator: Any, x: Any) -> Array:
    """Translate probabilities of components."""
    joint = _mixture(estimator, x)
    return np.exp(joint - log_sum_exp(joint))
