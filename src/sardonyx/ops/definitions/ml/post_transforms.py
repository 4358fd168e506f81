"""Post-transforms of classifier and regressor scores, and the expansion of a binary score to two.

Source: ``post_transform`` of the ONNX-ML operators. Two cases that the standard leaves open follow ONNX Runtime: the
second score of a binary classifier, and the inverse error function in ``PROBIT`` (Winitzki's approximation).
"""

from __future__ import annotations

import math

from sardonyx.core import language as L
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError

NAMES = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def apply_post_transform(scores: Tensor, kind: str) -> Tensor:
    """Apply a post-transform to scores [N, classes].

    Raises:
        InvalidModelError: The transform is unknown.
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
    raise InvalidModelError(f"unknown post_transform {kind!r}.", remedy=f"Use one of {', '.join(NAMES)}.")


def _softmax_of_nonzero(x: Tensor) -> Tensor:
    """Return the softmax over nonzero scores; a score of 0 stays 0."""
    nonzero = L.not_equal(x, 0)
    largest = L.reduce_max(x, [-1], keepdims=True)
    e = L.where(nonzero, L.exp(x - largest), 0)
    total = L.reduce_sum(e, [-1], keepdims=True)
    return e / L.where(L.equal(total, 0), 1, total)


def _probit(x: Tensor) -> Tensor:
    y = 2 * x - 1
    log = L.log((1 - y) * (1 + y))
    v = 2 / (math.pi * 0.147) + 0.5 * log
    return math.sqrt(2) * L.sign(y) * L.sqrt(L.sqrt(v * v - log / 0.147) - v)


def expand_binary_score(score: Tensor, kind: str, *, probability: bool) -> Tensor:
    """Return the scores [N, 2] of a binary classifier from the score [N, 1] of its second class.

    Args:
        score: The score of the second class.
        kind: The transform.
        probability: True if the score is a probability, so that the first class gets one minus the score; otherwise
            the first class gets the negated score.
    """
    if kind == "PROBIT":
        return _probit(score)
    if probability:
        return L.concat([1 - score, score], -1)
    both = L.concat([-score, score], -1)
    return L.sigmoid(both) if kind == "LOGISTIC" else both
