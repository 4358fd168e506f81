"""Estimators that iterate for every row until their own tolerance: factorizations and topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import method, number_matrix
from sardonyx.errors import UnsupportedError

MOST_COMPONENTS = 256
"""Number of components whose updates are written one after the other."""

_EPSILON = float(np.finfo(np.float32).eps)
"""The smallest denominator of scikit-learn's multiplicative updates."""

_EULER = 0.577215664901532860606512090082402431

Body = Callable[[Sequence[Array]], tuple[Array, Sequence[Array]]]


def repeated(most: int, states: Sequence[Array], body: Body) -> list[Array]:
    """Return states after a loop.

    Args:
        most: Maximum number of turns, at least 1.
        states: The states ahead of the loop.
        body: Takes the states of a turn; returns the condition of another turn, and the states after this one. An array
            from outside of the body has to be a right operand.
    """
    outer = states[0].builder
    inner = GraphBuilder(outer.names)
    turn = ir.Value(name=outer.names.fresh("turn"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))
    going = ir.Value(name=outer.names.fresh("going"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL))
    types = [ir.TensorType(ir.DataType.from_numpy(state.dtype)) for state in states]
    values = [ir.Value(name=outer.names.fresh("state"), type=kind) for kind in types]
    again, results = body([Array(inner, value, state.dtype) for value, state in zip(values, states, strict=True)])
    outputs = [inner.node("Identity", result.value) for result in (again, *results)]
    graph = inner.graph([turn, going, *values], outputs, "iteration")
    operands = [outer.constant(most, np.int64), outer.constant(True), *(state.value for state in states)]
    after = outer.nodes_of("Loop", len(states), *operands, body=graph)
    return [Array(outer, value, state.dtype) for value, state in zip(after, states, strict=True)]


def filled(x: Array, columns: int, number: float) -> Array:
    """Return a matrix of one number, with as many rows as another."""
    rows = x.node("Shape", dtype=np.int64, start=0, end=1)
    shape = rows.node("Concat", rows.constant([columns], np.int64), dtype=np.int64, axis=0)
    return shape.node("ConstantOfShape", dtype=x.dtype, value=ir.tensor(np.array([number], x.dtype)))


@method("transform", "NMF")
def factorized(estimator: Any, x: Any) -> Array:
    """Translate coordinate descent over the weights of the components, from zeros."""
    subject = "NMF.transform"
    if estimator.solver != "cd":
        raise UnsupportedError(f"solver={estimator.solver!r}", where=subject)
    if estimator.shuffle:
        raise UnsupportedError("components in random order", where=subject)
    h = np.asarray(estimator.components_)
    value = number_matrix(x).cast(h.dtype)
    count = _limited(len(h), subject)
    l1, l2 = _regularization(estimator, h)
    squares = h @ h.T + l2 * np.eye(count, dtype=h.dtype)
    products = value @ h.T - l1

    def body(states: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
        weights, first = states
        columns = [weights.columns([k]) for k in range(count)]
        violation: Any = None
        for k in range(count):
            gradient = concatenated(columns, axis=1) @ squares[:, [k]] - products.columns([k])
            projected = where(np.equal(columns[k], 0.0), np.minimum(gradient, 0.0), gradient)
            part = np.absolute(projected).sum()
            violation = part if violation is None else violation + part
            if squares[k, k]:
                columns[k] = np.maximum(columns[k] - gradient / float(squares[k, k]), 0.0)
        first = where(first < 0.0, violation, first)
        again = (first > 0.0) & (violation > first * float(estimator.tol))
        return again, [concatenated(columns, axis=1), first]

    return repeated(int(estimator.max_iter), [filled(value, count, 0.0), value.constant(-1.0)], body)[0]


@method("transform", "MiniBatchNMF")
def factorized_in_batches(estimator: Any, x: Any) -> Array:
    """Translate multiplicative updates of the weights, from their mean."""
    subject = "MiniBatchNMF.transform"
    if estimator._beta_loss != 2:
        raise UnsupportedError(f"beta_loss={estimator.beta_loss!r}", where=subject)
    value = number_matrix(x).cast(np.float64)
    h = np.asarray(estimator.components_, np.float64)
    l1, l2 = _regularization(estimator, h)
    products = value @ h.T
    mean = np.sqrt(value.mean() / float(len(h)))

    def body(states: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
        (weights,) = states
        denominator = weights @ (h @ h.T) + (l1 + weights * l2)
        denominator = where(np.equal(denominator, 0.0), _EPSILON, denominator)
        factor = denominator.constant(1.0) / denominator * products
        factor = factor if estimator._gamma == 1 else np.power(factor, float(estimator._gamma))
        after = weights * factor
        change, size = after - weights, np.sqrt((after * after).sum())
        again = np.sqrt((change * change).sum()) > size * float(max(estimator.tol, 0.0))
        return again if estimator.tol > 0 else np.logical_or(again, True), [after]

    return repeated(int(estimator._transform_max_iter), [filled(value, len(h), 1.0) * mean], body)[0]


def _limited(count: int, subject: str) -> int:
    if count > MOST_COMPONENTS:
        raise UnsupportedError(f"{count} components, expected at most {MOST_COMPONENTS}", where=subject)
    return count


def _regularization(estimator: Any, h: Any) -> tuple[float, float]:
    """Return the weights of both norms, which scikit-learn scales by the number of columns."""
    total = h.shape[1] * float(estimator.alpha_W)
    return total * float(estimator.l1_ratio), total * (1.0 - float(estimator.l1_ratio))


@method("transform", "LatentDirichletAllocation")
def topics(estimator: Any, x: Any) -> Array:
    """Translate the iteration of each row's topics until they change by less than the tolerance."""
    words = np.asarray(estimator.exp_dirichlet_component_, estimator.components_.dtype)
    counts = number_matrix(x).cast(words.dtype)
    tolerance, prior = float(estimator.mean_change_tol), float(estimator.doc_topic_prior_)

    def expectation(distribution: Array) -> Array:
        return np.exp(_digamma(distribution) - _digamma(distribution.sum(1, keepdims=True)))

    def body(states: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
        distribution, expected, is_active = states
        phi = expected @ words + float(np.finfo(words.dtype).eps)
        after = (phi.constant(1.0) / phi * counts) @ words.T * expected + prior
        change = np.absolute(after - distribution).mean(1, keepdims=True)
        expected = where(is_active, expectation(after), expected)
        distribution = where(is_active, after, distribution)
        still = is_active & (change >= tolerance)
        return still.any(), [distribution, expected, still]

    start = filled(counts, len(words), 1.0)
    states = [start, expectation(start), filled(counts, 1, 1.0) > 0.0]
    result = repeated(int(estimator.max_doc_update_iter), states, body)[0]
    return result / result.sum(1, keepdims=True)


def _digamma(x: Array) -> Array:
    """Return the digamma function as scikit-learn computes it: steps up to 6, then a series."""
    total, shifted = x * 0.0, x
    for _ in range(6):
        is_small = shifted < 6.0
        total = total - where(is_small, shifted.constant(1.0) / shifted, 0.0)
        shifted = where(is_small, shifted + 1.0, shifted)
    inverse = shifted.constant(1.0) / shifted
    square = inverse * inverse
    series = square * ((square * (square * (-1 / 252) + 1 / 120)) * -1.0 + 1 / 12)
    result = total + np.log(shifted) - inverse * 0.5 - series
    return where(x <= 1e-6, x.constant(-_EULER) - x.constant(1.0) / x, result)
