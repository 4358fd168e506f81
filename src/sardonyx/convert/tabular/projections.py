"""Projections of features to components."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, sigmoid
from sardonyx.convert.tabular.methods import method, number_matrix
from sardonyx.errors import UnsupportedError


@method("transform", "_BasePCA", "PCA", "IncrementalPCA")
def principal_components(estimator: Any, x: Any) -> Array:
    """Translate projections to principal components."""
    value = number_matrix(x)
    if estimator.mean_ is not None:
        value = value - estimator.mean_
    result = value @ estimator.components_.T
    if estimator.whiten:
        scale = np.sqrt(estimator.explained_variance_)
        floor = np.finfo(scale.dtype).eps
        result = result / np.where(scale < floor, floor, scale)
    return result


@method("transform", "TruncatedSVD", "BaseRandomProjection", "GaussianRandomProjection", "SparseRandomProjection")
def projection(estimator: Any, x: Any) -> Array:
    """Translate a product with components."""
    components = estimator.components_
    components = components.toarray() if hasattr(components, "toarray") else components
    return number_matrix(x) @ components.T


@method("transform", "FastICA")
def independent_components(estimator: Any, x: Any) -> Array:
    """Translate projections to independent components."""
    value = number_matrix(x)
    if estimator.whiten:
        value = value - estimator.mean_
    return value @ estimator.components_.T


@method("transform", "FactorAnalysis")
def factors(estimator: Any, x: Any) -> Array:
    """Translate the expected factors."""
    weighted = estimator.components_ / estimator.noise_variance_
    inverse = np.linalg.inv(np.eye(len(estimator.components_)) + weighted @ estimator.components_.T)
    return ((number_matrix(x) - estimator.mean_) @ weighted.T) @ inverse


@method("transform", "SparsePCA", "MiniBatchSparsePCA", "_BaseSparsePCA")
def sparse_components(estimator: Any, x: Any) -> Array:
    """Translate ridge regression on the components."""
    components = estimator.components_
    gram = components @ components.T + estimator.ridge_alpha * np.eye(len(components))
    return (number_matrix(x) - estimator.mean_) @ np.linalg.solve(gram, components).T


@method("transform", "BernoulliRBM")
def hidden_units(estimator: Any, x: Any) -> Array:
    """Translate probabilities of hidden units."""
    return sigmoid(number_matrix(x) @ estimator.components_.T + estimator.intercept_hidden_)


@method("transform", "FeatureAgglomeration")
def agglomerated(estimator: Any, x: Any) -> Array:
    """Translate the mean of each cluster of features."""
    if estimator.pooling_func is not np.mean:
        raise UnsupportedError("pooling_func other than numpy.mean", where="FeatureAgglomeration")
    member = np.eye(int(estimator.n_clusters_))[np.asarray(estimator.labels_)]
    return number_matrix(x) @ (member / member.sum(axis=0))
