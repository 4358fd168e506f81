"""Losses of embeddings: triplets and contrasted pairs."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.base.option_checks import option
from sardonyx.core import language as L
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError
from sardonyx.train.losses.classification import pair, same_shape
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, label_shape, mean_over, shape_of


@dataclass(frozen=True)
class Triplet(Loss):
    """Margin between the distances of an anchor to a positive and to a negative embedding.

    The embeddings ``positive`` and ``negative`` have the output's shape [batch, features].

    Attributes:
        margin: The margin.
        positive: The name of the positive embeddings in a batch, or of an output of the model that computes them.
        negative: As ``positive``, of the negative embeddings.
    """

    margin: float = option(1.0, least=0)
    positive: str = "positive"
    negative: str = "negative"

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        output = outputs[self.output_name(outputs)]
        type = TensorType(output.dtype, label_shape(shape_of(output)))
        return {self.positive: type, self.negative: type}

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        anchor = L.widened(outputs[self.output_name({name: x.type for name, x in outputs.items()})])
        near, far = (
            self._distance(anchor, L.of_shape(L.cast(labels[name], anchor.dtype), anchor.shape, name))
            for name in (self.positive, self.negative)
        )
        return mean_over(L.maximum(near - far + self.margin, 0))

    def _distance(self, x: Tensor, y: Tensor) -> Tensor:
        difference = x - y + 1e-6
        return L.sqrt(L.reduce_sum(difference * difference, [-1]))


@dataclass(frozen=True)
class Contrastive(Loss):
    """Cross-entropy of similarities in a batch: row i of the output belongs to row i of the labels (InfoNCE).

    Attributes:
        temperature: Divisor of the cosines.
    """

    temperature: float = option(0.07, above=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        if len(shape_of(outputs[self.output_name(outputs)])) != 2:
            raise OptionError("expected embeddings [batch, features].", where=self.output_name(outputs))
        return same_shape(self, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = (_normalized(vectors) for vectors in pair(self, outputs, labels))
        scores = L.matmul(x, L.permute(y, [1, 0])) / self.temperature
        own = L.equal(L.iota(scores.shape, 0), L.iota(scores.shape, 1))
        return mean_over(-L.reduce_sum(L.where(own, L.log_softmax(scores, 1), 0), [1]))


def _normalized(x: Tensor) -> Tensor:
    return x / L.sqrt(L.maximum(L.reduce_sum(x * x, [-1], keepdims=True), 1e-16))
