"""Features made of neighbours, leaves and learned metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array
from sardonyx.convert.tabular.kernels import centred_components, metric_distances, nearest
from sardonyx.convert.tabular.methods import method, number_matrix
from sardonyx.convert.tabular.trees import leaf_values, scikit_tree, single_precision
from sardonyx.errors import UnsupportedError


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
