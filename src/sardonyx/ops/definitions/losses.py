"""Losses: ``SoftmaxCrossEntropyLoss``, ``NegativeLogLikelihoodLoss``.

Source: ONNX Operators, *SoftmaxCrossEntropyLoss*, *NegativeLogLikelihoodLoss*. Classes are along the second axis.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss; the mean is weighted, and ignored labels have weight 0."""
    axis = L.normalized_axis(1, x.rank)
    classes = x.shape[axis]
    target = L.of_shape(target, (x.shape[0], *x.shape[2:]), "the labels")
    ignored = None if ignore_index is None else L.equal(target, ignore_index)
    label = target if ignored is None else L.where(ignored, 0, target)
    # A negative label is out of range: labels do not count from the end.
    label = L.where(label < 0, L.size_tensor([classes], (), target.dtype), label)
    w = L.full(target.shape, 1, x.dtype)
    if weight is not None:
        w = L.take(L.of_shape(weight, (classes,), "the weights"), label, 0)
    if ignored is not None:
        w = L.where(ignored, 0, w)
    loss = -w * L.squeeze(L.gather_elements(x, L.unsqueeze(label, [axis]), axis), [axis])
    match reduction:
        case "none":
            return loss
        case "sum":
            return L.reduce_sum(loss)
        case "mean":
            return L.reduce_sum(loss) / L.reduce_sum(w)
    raise InvalidModelError(f"unknown reduction {reduction!r}.", remedy="Use 'none', 'sum' or 'mean'.")


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    log_prob = L.log_softmax(scores, 1)
    loss = negative_log_likelihood_loss(log_prob, labels, weights, ignore_index=ignore_index, reduction=reduction)
    return loss, log_prob
