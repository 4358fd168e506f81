"""Features made of neighbours, leaves and learned metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, where
from sardonyx.convert.tabular.kernels import centred_components, metric_distances, nearest
from sardonyx.convert.tabular.methods import method, number_matrix
from sardonyx.convert.tabular.trees import leaf_values, scikit_tree, single_precision
from sardonyx.errors import UnsupportedError

MOST_NEIGHBOURS = 64
"""Number of neighbours whose equations are solved step by step."""


def _spread(values: Array, index: Array, count: int) -> Array:
    """Return values [rows, neighbours] in the columns of the fitted rows, zero elsewhere, [rows, fitted rows]."""
    chosen = np.equal(index.node("Unsqueeze", [2]), np.arange(count)).cast(np.float64)
    return (chosen * values.node("Unsqueeze", [2])).sum(1)


@method("transform", "KNeighborsTransformer")
def neighbour_graph(estimator: Any, x: Any) -> Array:
    """Translate the graph of the nearest fitted rows, as a dense matrix."""
    is_distance = estimator.mode == "distance"
    distances, index = nearest(estimator, x, estimator.n_neighbors + is_distance)
    return _spread(distances if is_distance else distances * 0.0 + 1.0, index, len(estimator._fit_X))


@method("transform", "RadiusNeighborsTransformer")
def radius_graph(estimator: Any, x: Any) -> Array:
    """Translate the graph of the fitted rows within the radius, as a dense matrix."""
    distances = metric_distances(estimator, number_matrix(x), estimator._fit_X)
    inside = (distances <= float(estimator.radius)).cast(np.float64)
    return inside * distances if estimator.mode == "distance" else inside


@method("transform", "Isomap")
def isometric_map(estimator: Any, x: Any) -> Array:
    """Translate shortest paths over the nearest fitted rows, projected by the fitted components."""
    if estimator.n_neighbors is None:
        raise UnsupportedError("neighbours within a radius", where="Isomap.transform")
    distances, index = nearest(estimator.nbrs_, x, estimator.nbrs_.n_neighbors)
    paths = distances.constant(np.asarray(estimator.dist_matrix_, np.float64)).rows(index)
    shortest = (paths + distances.node("Unsqueeze", [2])).min(1)
    return centred_components(estimator.kernel_pca_, shortest * shortest * -0.5)


@method("transform", "NeighborhoodComponentsAnalysis")
def neighbourhood_components(estimator: Any, x: Any) -> Array:
    """Translate the learned linear map."""
    return number_matrix(x) @ np.asarray(estimator.components_, np.float64).T


@method("transform", "PLSSVD")
def shared_directions(estimator: Any, x: Any) -> Array:
    """Translate projections of scaled features."""
    return ((number_matrix(x) - estimator._x_mean) / estimator._x_std) @ estimator.x_weights_


@method("transform", "RandomTreesEmbedding")
def leaf_embedding(estimator: Any, x: Any) -> Array:
    """Translate the leaves that a row reaches, one column a leaf."""
    categories = estimator.one_hot_encoder_.categories_
    total, start, trees = sum(map(len, categories)), 0, []
    for one, leaves in zip(estimator.estimators_, categories, strict=True):
        values = np.zeros((one.tree_.node_count, total))
        values[leaves.astype(np.int64), start + np.arange(len(leaves))] = 1.0
        trees.append(scikit_tree(one, values))
        start += len(leaves)
    return leaf_values(single_precision(x), trees).sum(1)


@method("transform", "LocallyLinearEmbedding")
def locally_linear_map(estimator: Any, x: Any) -> Array:
    """Translate the weights that make a row of its nearest fitted rows, applied to their embeddings."""
    value, count = number_matrix(x).cast(np.float64), int(estimator.n_neighbors)
    if count > MOST_NEIGHBOURS:
        raise UnsupportedError(
            f"{count} neighbours, expected at most {MOST_NEIGHBOURS}", where=type(estimator).__name__
        )
    _, index = nearest(estimator.nbrs_, x, count)
    gaps = value.constant(np.asarray(estimator.nbrs_._fit_X, np.float64)).rows(index) - value.node("Unsqueeze", [1])
    gram = gaps @ gaps.node("Transpose", perm=[0, 2, 1])
    trace = (gram * np.eye(count)).sum((1, 2), keepdims=True)
    gram = gram + where(trace > 0.0, trace * float(estimator.reg), float(estimator.reg)) * np.eye(count)
    solution = _solved(gram, count)
    weights = solution / solution.sum(1, keepdims=True)
    embedded = value.constant(np.asarray(estimator.embedding_, np.float64)).rows(index)
    return (embedded * weights).sum(1)


def _solved(gram: Array, count: int) -> Array:
    """Return the solutions [rows, count, 1] of positive definite equations with the right side 1."""
    rows = gram.node("Pad", [0, 0, 0, 0, 0, 1], gram.constant(1.0))
    for k in range(count):
        pivot = rows.node("Gather", [k], axis=1)
        pivot = pivot / pivot.node("Gather", [k], axis=2)
        reduced = rows - rows.node("Gather", [k], axis=2) * pivot
        rows = where(reduced.constant(np.arange(count).reshape(1, count, 1) == k, bool), pivot, reduced)
    return rows.node("Gather", [count], axis=2)
