"""Pipelines, columns, unions, searches and transformed targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.convert.tabular.array_tracing import TRACED, traced, traced_method
from sardonyx.convert.tabular.arrays import Array, concatenated
from sardonyx.convert.tabular.methods import Table, apply, element_class, method
from sardonyx.errors import UnsupportedError


def _before_last(pipeline: Any, x: Any) -> Any:
    for _, step in pipeline.steps[:-1]:
        # Steps that draw other rows (imblearn) do so while the pipeline is fitted alone.
        is_sampler = hasattr(step, "fit_resample") and not hasattr(step, "transform")
        if step is not None and step != "passthrough" and not is_sampler:
            x = apply("transform", step, x)
    return x


for _name in ("predict", "predict_proba", "decision_function", "transform", "score_samples"):

    def _pipeline(estimator: Any, x: Any, name: str = _name) -> Any:
        last = estimator.steps[-1][1]
        inner = _before_last(estimator, x)
        return inner if last is None or last == "passthrough" else apply(name, last, inner)

    def _searched(estimator: Any, x: Any, name: str = _name) -> Any:
        return apply(name, estimator.best_estimator_, x)

    def _frozen(estimator: Any, x: Any, name: str = _name) -> Any:
        return apply(name, estimator.estimator, x)

    method(_name, "Pipeline")(_pipeline)
    method(_name, "FrozenEstimator")(_frozen)
    method(_name, "BaseSearchCV")(_searched)


def column_indices(columns: Any, names: list[str]) -> list[int]:
    """Return columns of a ColumnTransformer as indices.

    Args:
        columns: Indices, names, a mask or a slice, as fitted.
        names: Names of the input's columns, or [].
    """
    if callable(columns):
        raise UnsupportedError("columns by a function are not resolved", where="ColumnTransformer")
    if isinstance(columns, slice):
        return (
            list(range(len(names)))[columns]
            if names
            else list(range(columns.start or 0, columns.stop, columns.step or 1))
        )
    items = [columns] if isinstance(columns, (str, int, np.integer)) else list(columns)
    if items and isinstance(items[0], (bool, np.bool_)):
        return [i for i, use in enumerate(items) if use]
    return [names.index(item) if isinstance(item, str) else int(item) for item in items]


@method("transform", "ColumnTransformer")
def column_transformer(estimator: Any, x: Any) -> Any:
    """Translate a transformer for each group of columns."""
    names = [str(name) for name in getattr(estimator, "feature_names_in_", [])]
    parts = []
    for _, transformer, columns in estimator.transformers_:
        if transformer == "drop":
            continue
        indices = column_indices(columns, names)
        if not indices:
            continue
        part = x.select(indices) if isinstance(x, Table) else x.columns(indices)
        part.names = [x.names[i] for i in indices] if len(x.names) else ()
        if isinstance(columns, (str, int, np.integer)) and isinstance(part, Array):
            part = part.ravel()  # Without names: one column by its name is a vector.
        if transformer != "passthrough":
            part = apply("transform", transformer, part)
        parts.append(part)
    return joined(parts)


def joined(parts: list[Any]) -> Any:
    """Return parts side by side: one matrix if all are numbers or all are texts, else a table."""
    flat: list[Array] = []
    for part in parts:
        flat += part.parts if isinstance(part, Table) else [part]
    if not flat:
        raise UnsupportedError("a transformer without columns has no translation")
    if len({element_class(part.dtype) for part in flat}) == 1:
        return concatenated(flat, axis=1)
    widths = [part.sizes()[1] for part in flat]
    if None in widths:
        raise UnsupportedError("texts and numbers in one result, with a number of columns that is not known")
    return Table(flat, [int(width or 0) for width in widths])


@method("transform", "FeatureUnion")
def feature_union(estimator: Any, x: Any) -> Any:
    """Translate transformers side by side."""
    weights = estimator.transformer_weights or {}
    parts = []
    for name, transformer in estimator.transformer_list:
        if transformer == "drop":
            continue
        part = x if transformer == "passthrough" else apply("transform", transformer, x)
        parts.append(part * float(weights[name]) if name in weights else part)
    return joined(parts)


@method("predict", "TransformedTargetRegressor")
def transformed_target(estimator: Any, x: Any) -> Array:
    """Translate the inverse of the target's transformation."""
    result = apply("predict", estimator.regressor_, x)
    transformer = estimator.transformer_
    is_vector = estimator._training_dim == 1
    matrix = result.reshape(-1, 1) if is_vector else result
    if type(transformer).__name__ == "FunctionTransformer":
        inverse = transformer.inverse_func
        matrix = matrix if inverse is None else traced(inverse, matrix, transformer.inv_kw_args or {})
    else:
        matrix = apply("inverse_transform", transformer, matrix)
    return matrix.ravel() if is_vector else matrix


@method("transform", "VotingClassifier", "VotingRegressor", "StackingClassifier", "StackingRegressor")
def members_predictions(estimator: Any, x: Any) -> Any:
    """Refuse member predictions as features: a predictor's model has its predictions alone."""
    raise UnsupportedError("member predictions as features", where=type(estimator).__name__)


for _name in TRACED:

    def _own_method(estimator: Any, x: Any, name: str = _name) -> Any:
        return traced_method(estimator, name, x)

    method(_name, "object")(_own_method)
