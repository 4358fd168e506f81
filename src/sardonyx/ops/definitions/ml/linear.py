"""Linear models.

Source: ONNX-ML, *LinearRegressor*, *LinearClassifier*; the second score of two classes follows ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.definitions.ml.labels import class_labels
from sardonyx.ops.definitions.ml.post_transforms import apply_post_transform, expand_binary_score
from sardonyx.ops.registry import operator

DOMAIN = "ai.onnx.ml"


def _scores(x: Tensor, coefficients: Sequence[float], intercepts: Sequence[float], count: int) -> Tensor:
    """Return ``x`` times the transposed coefficients, [N, count]."""
    rows = L.cast(x if x.rank > 1 else L.unsqueeze(x, [0]), t.FLOAT)
    if count < 1 or not coefficients:
        raise InvalidModelError(f"expected at least 1 score with coefficients, got {count} and {len(coefficients)}.")
    if len(coefficients) % count:
        raise InvalidModelError(
            f"expected a number of coefficients that is a multiple of {count}, got {len(coefficients)}."
        )
    weights = L.reshape(L.constant(list(coefficients), t.FLOAT), (count, len(coefficients) // count))
    scores = L.matmul(rows, L.permute(weights, [1, 0]))
    return scores + L.constant(list(intercepts), t.FLOAT) if intercepts else scores


@operator("LinearRegressor", since=1, domain=DOMAIN)
def linear_regressor(
    x: Tensor,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    targets: int = 1,
    post_transform: str = "NONE",
) -> Tensor:
    return apply_post_transform(_scores(x, coefficients, intercepts, targets), post_transform)


@operator("LinearClassifier", since=1, domain=DOMAIN)
def linear_classifier(
    x: Tensor,
    *,
    coefficients: Sequence[float],
    intercepts: Sequence[float] = (),
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    labels = class_labels(classlabels_ints, classlabels_strings)
    count = max(len(intercepts), 1)
    scores = _scores(x, coefficients, intercepts, count)
    if count == 1 and labels.shape[0] == 2:
        chosen = L.cast(L.squeeze(scores, [1]) > 0, t.INT64)
        return L.take(labels, chosen, 0), expand_binary_score(scores, post_transform, probability=False)
    return L.take(labels, L.argmax(scores, -1), 0), apply_post_transform(scores, post_transform)
