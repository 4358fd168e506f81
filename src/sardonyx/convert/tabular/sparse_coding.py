"""Sparse codes: rows as combinations of few atoms of a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.iterations import filled, repeated
from sardonyx.convert.tabular.methods import method, number_matrix
from sardonyx.errors import UnsupportedError

MOST_ATOMS = 64
"""Number of atoms of a code that pursuit chooses, whose steps are written one after the other."""

_EPSILON = float(np.finfo(np.float64).eps)
"""Below this, scikit-learn takes correlations and remainders of atoms for zero."""

_MOST_TURNS = 1_000_000

_CHANGE = 1e-13
"""Change of a code, relative to its largest number, at which descent has ended."""


@method("transform", "DictionaryLearning", "MiniBatchDictionaryLearning", "SparseCoder")
def dictionary(estimator: Any, x: Any) -> Array:
    """Translate coding by the estimator's algorithm."""
    algorithm = estimator.transform_algorithm
    atoms = np.asarray(getattr(estimator, "components_", getattr(estimator, "dictionary", None)), np.float64)
    value = number_matrix(x)
    if algorithm == "threshold":
        code = value @ atoms.T
        code = np.sign(code) * np.maximum(np.absolute(code) - _alpha(estimator), 0.0)
        code = np.maximum(code, 0.0) if estimator.positive_code else code
    elif algorithm == "omp":
        code = _pursued(estimator, value, atoms)
    elif algorithm in ("lasso_cd", "lasso_lars"):
        code = _descended(estimator, value, atoms)
    else:
        raise UnsupportedError(
            f"transform_algorithm={algorithm!r}: the path of least angles has no translation",
            where=type(estimator).__name__,
            remedy="Use 'omp', 'lasso_cd', 'lasso_lars' or 'threshold'.",
        )
    if estimator.split_sign:
        code = concatenated([np.maximum(code, 0.0), np.maximum(code * -1.0, 0.0)], axis=1)
    return code


def _alpha(estimator: Any) -> float:
    """Return the weight of the penalty; that of the fit, if the estimator has no other."""
    alpha = estimator.transform_alpha
    return float(getattr(estimator, "alpha", 1.0) if alpha is None else alpha)


def _pursued(estimator: Any, x: Array, atoms: Any) -> Array:
    """Return codes by orthogonal matching pursuit.

    Each step adds the atom that correlates most with the remainder. Chosen atoms are made orthonormal one after the
    other, so codes are the solution of a triangular system at the end.
    """
    limit = estimator.transform_n_nonzero_coefs
    count = int(min(max(atoms.shape[1] / 10, 1), len(atoms)) if limit is None else limit)
    if count > MOST_ATOMS:
        raise UnsupportedError(
            f"{count} atoms in a code, expected at most {MOST_ATOMS}", where=type(estimator).__name__
        )
    rest, goes_on = x, None
    chosen: list[Array] = []
    directions: list[Array] = []
    products: list[list[Array]] = []
    lengths: list[Array] = []
    for _ in range(count):
        strength = rest @ atoms.T
        strength = np.absolute(strength)
        largest = strength.max(1, keepdims=True)
        is_left = largest * largest >= _EPSILON
        goes_on = is_left if goes_on is None else goes_on & is_left
        index = strength.argmax(1)
        atom = index.constant(atoms, np.float64).rows(index)
        direction, square = atom, (atom * atom).sum(1, keepdims=True)
        products.append([])
        for other in directions:
            part = (other * atom).sum(1, keepdims=True)
            products[-1].append(part)
            direction = direction - other * part
            square = square - part * part
        goes_on = goes_on & (square > _EPSILON) if directions else goes_on
        length = np.sqrt(where(goes_on, square, 1.0))
        direction = where(goes_on, direction / length, 0.0)
        rest = rest - direction * (direction * x).sum(1, keepdims=True)
        chosen.append(index.constant(np.eye(len(atoms)), np.float64).rows(index))
        directions.append(direction)
        lengths.append(length)
    weights: list[Array] = []
    for k in reversed(range(count)):
        weight = (directions[k] * x).sum(1, keepdims=True)
        for j, later in enumerate(weights):
            weight = weight - products[count - 1 - j][k] * later
        weights.append(weight / lengths[k])
    parts = [one * weight for one, weight in zip(reversed(chosen), weights, strict=True)]
    return sum(parts[1:], parts[0])


def _descended(estimator: Any, x: Array, atoms: Any) -> Array:
    """Return codes with the least squared error and weighted sum of sizes, by descent along one atom after another."""
    gram = atoms @ atoms.T
    products = x @ atoms.T
    alpha = _alpha(estimator)
    used = [k for k in range(len(atoms)) if gram[k, k]]

    def body(states: Sequence[Array]) -> tuple[Array, Sequence[Array]]:
        (code,) = states
        columns = [code.columns([k]) for k in range(len(atoms))]
        for k in used:
            others = concatenated(columns, axis=1) @ np.where(np.arange(len(atoms)) == k, 0.0, gram[k])[:, None]
            pull = others * -1.0 + products.columns([k])
            size = np.absolute(pull) - alpha
            signed = np.maximum(pull - alpha, 0.0) if estimator.positive_code else np.sign(pull) * np.maximum(size, 0.0)
            columns[k] = signed / float(gram[k, k])
        after = concatenated(columns, axis=1)
        again = np.absolute(after - code).max() > np.absolute(after).max() * _CHANGE
        return again, [after]

    # A path of least angles ends at the solution itself, however slow the descent to it is.
    most = int(estimator.transform_max_iter) if estimator.transform_algorithm == "lasso_cd" else _MOST_TURNS
    return repeated(most, [filled(x, len(atoms), 0.0)], body)[0]
