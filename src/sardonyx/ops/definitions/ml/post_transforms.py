"""What scores become before they leave a classifier or regressor, and how one score of two classes becomes two.

Source: ``post_transform`` of the ONNX-ML operators. Two things it leaves open are as ONNX Runtime has them: the second
score of a binary classifier, and the inverse of the error function in ``PROBIT`` (Winitzki's approximation).
"""

from __future__ import annotations

import math

from sardonyx.core import language as L
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError

NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transformed(scores: Tensor, kind: str) -> Tensor:
    """Scores [N, classes] after the transform.

    Raises:
        InvalidModelError: There is no such transform.
    """
    match kind:
        case "NONE":
            return scores
        case "SOFTMAX":
            return L.softmax(scores, -1)
        case "LOGISTIC":
            return L.sigmoid(scores)
        case "SOFTMAX_ZERO":
            return _softmax_of_nonzero(scores)
        case "PROBIT":
            return _probit(scores)
    raise InvalidModelError(f"there is no post_transform {kind!r}.", remedy=f"There are {', '.join(NAMES)}.")


def _softmax_of_nonzero(x: Tensor) -> Tensor:
    """The softmax in which a score of 0 stays 0."""
    there = L.not_equal(x, 0)
    largest = L.reduce_max(x, [-1], keepdims=True)
    e = L.where(there, L.exp(x - largest), 0)
    total = L.reduce_sum(e, [-1], keepdims=True)
    return e / L.where(L.equal(total, 0), 1, total)


def _probit(x: Tensor) -> Tensor:
    y = 2 * x - 1
    log = L.log((1 - y) * (1 + y))
    v = 2 / (math.pi * 0.147) + 0.5 * log
    return math.sqrt(2) * L.sign(y) * L.sqrt(L.sqrt(v * v - log / 0.147) - v)


def both_classes(score: Tensor, kind: str, *, probability: bool) -> Tensor:
    """Scores [N, 2] of a classifier of two classes that computes one, [N, 1], for the second class.

    Args:
        score: The score of the second class.
        kind: The transform.
        probability: Whether the score is one, so that the first class has what is left of 1; else it has the negative.
    """
    if kind == "PROBIT":
        return _probit(score)
    if probability:
        return L.concat([1 - score, score], -1)
    both = L.concat([-score, score], -1)
    return L.sigmoid(both) if kind == "LOGISTIC" else both
