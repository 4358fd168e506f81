"""Support vector machines.

Source: ONNX-ML, *SVMRegressor*, *SVMClassifier*; LIBSVM's voting of class pairs and coupling of their probabilities
(Wu, Lin and Weng, 2004, second method), as in ONNX Runtime.
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
MAX_ITERATIONS = 100
"""Most iterations of the probability coupling, as in LIBSVM."""
MIN_PROBABILITY = 1e-7
"""Lower bound of the probability of a pair."""


def _kernel(x: Tensor, vectors: Tensor, kind: str, params: Sequence[float]) -> Tensor:
    """Return the kernel of every row with every vector, [N, V]."""
    gamma, coef0, degree = [*params, *(0.0,) * 3][:3]
    if kind == "RBF":
        difference = L.unsqueeze(x, [1]) - L.unsqueeze(vectors, [0])
        return L.exp(-gamma * L.reduce_sum(difference * difference, [-1]))
    dot = L.matmul(x, L.permute(vectors, [1, 0]))
    match kind:
        case "LINEAR":
            return dot
        case "POLY":
            return (gamma * dot + coef0) ** degree
        case "SIGMOID":
            return L.tanh(gamma * dot + coef0)
    raise InvalidModelError(f"unknown kernel_type {kind!r}.", remedy="Use 'LINEAR', 'POLY', 'RBF' or 'SIGMOID'.")


def _rows(values: Sequence[float], count: int, what: str) -> Tensor:
    if count <= 0 or len(values) % count:
        raise InvalidModelError(f"expected {count} rows of {what}, got {len(values)} numbers.")
    return L.reshape(L.constant(list(values), t.FLOAT), (count, len(values) // count))


def _features(x: Tensor) -> Tensor:
    return L.cast(x if x.rank > 1 else L.unsqueeze(x, [0]), t.FLOAT)


@operator("SVMRegressor", since=1, domain=DOMAIN)
def svm_regressor(
    x: Tensor,
    *,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (),
) -> Tensor:
    rows = _features(x)
    vectors = _rows(support_vectors, n_supports, "support vectors") if n_supports else _rows(coefficients, 1, "weights")
    kernel = _kernel(rows, vectors, kernel_type if n_supports else "LINEAR", kernel_params)
    weights = L.constant(list(coefficients), t.FLOAT) if n_supports else L.constant([1.0], t.FLOAT)
    total = L.matmul(kernel, L.unsqueeze(weights, [-1])) + rho[0]
    if one_class:
        return L.where(total > 0, L.constant(1.0, t.FLOAT), -1.0)
    return apply_post_transform(total, post_transform)


@operator("SVMClassifier", since=1, domain=DOMAIN)
def svm_classifier(
    x: Tensor,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:
    rows, labels = _features(x), class_labels(classlabels_ints, classlabels_strings)
    classes = len(classlabels_ints) or len(classlabels_strings)
    if not vectors_per_class:
        weights = _rows(coefficients, classes, "coefficients")
        scores = _kernel(rows, weights, "LINEAR", ()) + (rho[0] if rho else 0.0)
        return L.take(labels, L.argmax(scores, -1), 0), apply_post_transform(scores, post_transform)
    count = sum(vectors_per_class)
    kernel = _kernel(rows, _rows(support_vectors, count, "support vectors"), kernel_type, kernel_params)
    pairs = _decisions(kernel, _rows(coefficients, max(classes - 1, 1), "coefficients"), vectors_per_class, rho)
    votes = L.argmax(_votes(pairs, classes), -1)
    if prob_a:
        chances = _couple(_pair_probabilities(pairs, prob_a, prob_b, classes), classes)
        return L.take(labels, votes, 0), apply_post_transform(chances, post_transform)
    if classes == 2:
        both = expand_binary_score(L.unsqueeze(pairs[0], [-1]), post_transform, probability=post_transform != "NONE")
        return L.take(labels, votes, 0), both
    return L.take(labels, votes, 0), apply_post_transform(
        L.concat([L.unsqueeze(d, [-1]) for d in pairs], -1), post_transform
    )


def _decisions(kernel: Tensor, coefficients: Tensor, per_class: Sequence[int], rho: Sequence[float]) -> list[Tensor]:
    """Return the decision value [N] of every pair of classes i < j, in order.

    Sums are computed in double precision, as in ONNX Runtime: terms of 10⁵ cancel where classes overlap.
    """
    kernel, coefficients = L.cast(kernel, t.DOUBLE), L.cast(coefficients, t.DOUBLE)
    starts = [sum(per_class[:i]) for i in range(len(per_class))]

    def part(row: int, of: int) -> Tensor:
        begin, end = starts[of], starts[of] + per_class[of]
        weights = L.squeeze(L.slice_(L.slice_(coefficients, 0, row, row + 1), 1, begin, end), [0])
        return L.matmul(L.slice_(kernel, 1, begin, end), weights)

    pairs = [(i, j) for i in range(len(per_class)) for j in range(i + 1, len(per_class))]
    if len(rho) != len(pairs):
        raise InvalidModelError(f"expected {len(pairs)} values in `rho`, one for each pair of classes, got {len(rho)}.")
    return [L.cast(part(j - 1, i) + part(i, j) + rho[at], t.FLOAT) for at, (i, j) in enumerate(pairs)]


def _votes(pairs: Sequence[Tensor], classes: int) -> Tensor:
    """Return the number of pairs that each class wins, [N, classes]."""
    won = [L.full_like(L.cast(pairs[0], t.INT64), 0)] * classes
    at = iter(pairs)
    for i in range(classes):
        for j in range(i + 1, classes):
            first = L.cast(next(at) > 0, t.INT64)
            won[i], won[j] = won[i] + first, won[j] + (1 - first)
    return L.concat([L.unsqueeze(count, [-1]) for count in won], -1)


def _pair_probabilities(
    pairs: Sequence[Tensor], a: Sequence[float], b: Sequence[float], classes: int
) -> list[list[Tensor]]:
    """Return the probability of class i in the pair with class j."""
    half = L.full_like(pairs[0], 0.5)
    table = [[half] * classes for _ in range(classes)]
    at = 0
    for i in range(classes):
        for j in range(i + 1, classes):
            chance = L.clip(1 - L.sigmoid(pairs[at] * a[at] + b[at]), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
            table[i][j], table[j][i] = chance, 1 - chance
            at += 1
    return table


def _couple(r: list[list[Tensor]], classes: int) -> Tensor:
    """Couple pairwise probabilities to one probability for each class, [N, classes]."""
    q = [[-r[j][i] * r[i][j] for j in range(classes)] for i in range(classes)]
    for i in range(classes):
        others = [r[j][i] * r[j][i] for j in range(classes) if j != i]
        q[i][i] = sum(others[1:], others[0])
    start = [L.full_like(r[0][1], 1 / classes)] * classes

    def improved(i: Tensor, *p: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        qp = [_dot(row, p) for row in q]
        total = _dot(qp, p)
        worst = L.maximum(*[L.abs_(value - total) for value in qp])
        running = worst >= 0.005 / classes
        chances = list(p)
        for k in range(classes):
            change = (total - qp[k]) / q[k][k]
            chances[k] = chances[k] + change
            scale = 1 + change
            total = (total + change * (change * q[k][k] + 2 * qp[k])) / scale / scale
            qp = [(value + change * q[k][j]) / scale for j, value in enumerate(qp)]
            chances = [chance / scale for chance in chances]
        return L.any_of(running), [L.where(running, new, old) for new, old in zip(chances, p, strict=True)], []

    final, _ = L.loop(L.constant(MAX_ITERATIONS, t.INT64), None, start, improved)
    return L.concat([L.unsqueeze(chance, [-1]) for chance in final], -1)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    products = [x * y for x, y in zip(a, b, strict=True)]
    return sum(products[1:], products[0])
