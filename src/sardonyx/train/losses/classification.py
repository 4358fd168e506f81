"""Losses of classifiers: cross-entropy, binary cross-entropy, focal loss, Kullback-Leibler divergence, distillation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sardonyx.base.option_checks import option, require_number
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import FeedError, OptionError
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, label_shape, mean_over, shape_of

_ROUNDING = 1e-3
"""Rounding of probabilities in float16."""


def class_axis(rank: int, axis: int | None) -> int:
    """Return the axis of classes: the last of matrices and sequences [batch, steps, classes], axis 1 of images.

    Raises:
        OptionError: The axis is outside of the rank.
    """
    if axis is None:
        return 1 if rank >= 4 else rank - 1
    if not -rank <= axis < rank:
        raise OptionError(f"expected an axis of scores of rank {rank}, got {axis}.", where="axis")
    return axis % rank


def _without(shape: Sequence[Size], axis: int) -> tuple[Size, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


_FEW = 8
"""Labels that are checked one by one: operations of numpy would take longer."""


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy of logits and class indices (or probabilities), as ``torch.nn.CrossEntropyLoss``.

    Labels are int64 of the logits' shape without the axis of classes; with ``soft``, probabilities of the
    logits' shape.

    Attributes:
        output: The logits; if the output is the result of a ``Softmax``, training reads the input of the ``Softmax``.
        label: The name of the labels in a batch.
        axis: The axis of classes; by default the last one up to rank 3, and axis 1 of images.
        label_smoothing: Share of the probability that is spread over all classes, in [0, 1].
        ignore: The label of elements that count nothing.
        class_weights: A factor for each class.
        soft: If True, labels are probabilities.
    """

    undone: ClassVar[str] = "Softmax"
    label_remedy: ClassVar[str] = (
        "Give class indices of the shape of the scores without the axis of classes (`axis`), or probabilities (`soft`)."
    )
    axis: int | None = option(None, kind=int)
    label_smoothing: float = option(0.0, least=0, most=1)
    ignore: int = -100
    class_weights: tuple[float, ...] | None = None
    soft: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        weights: Any = self.class_weights
        if weights is None:
            return
        if isinstance(weights, str) or not isinstance(weights, Iterable):
            raise OptionError(f"expected a factor for each class, got {weights!r}.", where="class_weights")
        factors = tuple(weights)
        object.__setattr__(self, "class_weights", factors)
        for weight in factors:
            require_number(weight, "class_weights", least=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        logits = outputs[self.output_name(outputs)]
        shape = shape_of(logits)
        if not shape:
            raise OptionError("expected scores with an axis of classes, got a scalar.", where=self.output_name(outputs))
        axis = class_axis(len(shape), self.axis)
        classes = shape[axis]
        if self.class_weights is not None and isinstance(classes, int) and len(self.class_weights) != classes:
            raise OptionError(
                f"expected {classes} factors, one for each class, got {len(self.class_weights)}.", where="class_weights"
            )
        if self.soft:
            return {self.label: TensorType(logits.dtype, label_shape(shape))}
        return {self.label: TensorType(t.INT64, label_shape(_without(shape, axis)))}

    def classes(self, outputs: OutputTypes) -> int | None:
        shape = shape_of(outputs[self.output_name(outputs)])
        classes = shape[class_axis(len(shape), self.axis)]
        return classes if isinstance(classes, int) and not self.soft else None

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        classes = self.classes(outputs)
        if self.soft:
            check_shares(labels[self.label], self.label)
        elif classes is not None:
            check_indices(labels[self.label], classes, self.ignore, self.label)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        logits = outputs[self.output_name({name: x.type for name, x in outputs.items()})]
        logits = L.widened(logits)
        axis = class_axis(logits.rank, self.axis)
        log_p = L.log_softmax(logits, axis)
        factors = None
        if self.class_weights is not None:
            shape = [len(self.class_weights) if a == axis else 1 for a in range(logits.rank)]
            factors = L.broadcast_to(
                L.reshape(L.constant(np.array(self.class_weights), logits.dtype), shape), logits.shape
            )
        if self.soft:
            probabilities = L.of_shape(L.cast(labels[self.label], logits.dtype), logits.shape, "the labels")
            probabilities = self._smoothed(probabilities, logits.shape[axis])
            weighted = log_p * probabilities if factors is None else log_p * probabilities * factors
            return mean_over(-L.reduce_sum(weighted, [axis]))
        label = L.of_shape(labels[self.label], _without(logits.shape, axis), "the labels")
        counted = L.not_equal(label, self.ignore)
        chosen = L.equal(L.iota(logits.shape, axis), L.broadcast_to(L.unsqueeze(label, [axis]), logits.shape))
        weights = L.cast(counted, logits.dtype)
        if factors is not None:
            weights = weights * L.reduce_sum(L.where(chosen, factors, 0), [axis])
        loss = -L.reduce_sum(L.where(chosen, log_p, 0), [axis])
        if not self.label_smoothing:
            return mean_over(loss, weights)
        spread = -L.reduce_sum(log_p if factors is None else log_p * factors, [axis])
        classes = L.cast(L.size_tensor([logits.shape[axis]], ()), logits.dtype)
        shared = L.reduce_sum(L.where(counted, spread, 0)) * self.label_smoothing / classes
        own = mean_over(loss, weights)
        return Terms(own.total * (1 - self.label_smoothing) + shared, own.weight)

    def _smoothed(self, probabilities: Tensor, classes: Size) -> Tensor:
        if not self.label_smoothing:
            return probabilities
        count = L.cast(L.size_tensor([classes], ()), probabilities.dtype)
        return probabilities * (1 - self.label_smoothing) + self.label_smoothing / count


def check_indices(labels: np.ndarray, classes: int, ignore: int | None, name: str) -> None:
    """Check class indices.

    Raises:
        FeedError: An index is outside of the classes.
    """
    if labels.size <= _FEW and all(0 <= label < classes for label in labels.ravel().tolist()):
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignore is not None:
        wrong &= labels != ignore
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise FeedError(
            f"expected class indices from 0 to {classes - 1}, got {int(labels[index])} at {list(index)}.", where=name
        )


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy of logits, as ``torch.nn.BCEWithLogitsLoss``.

    Labels are probabilities of the logits' shape. If the output is the result of a ``Sigmoid``, training reads the
    input of the ``Sigmoid``.

    Attributes:
        positive_weight: Factor of the positive term.
    """

    undone: ClassVar[str] = "Sigmoid"
    positive_weight: float = option(1.0, least=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        check_shares(labels[self.label], self.label)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        positive, negative = L.softplus(-x), L.softplus(x)
        return mean_over(self.positive_weight * y * positive + (1 - y) * negative)


@dataclass(frozen=True)
class Focal(Loss):
    """Focal loss of logits and class indices: cross-entropy times ``(1 - p) ** gamma`` (Lin et al., 2017).

    Attributes:
        gamma: The exponent; 0 gives cross-entropy.
        axis: The axis of classes, as in :class:`CrossEntropy`.
        ignore: The label of elements that count nothing.
    """

    undone: ClassVar[str] = "Softmax"
    gamma: float = option(2.0, least=0)
    axis: int | None = option(None, kind=int)
    ignore: int = -100

    def _plain(self) -> CrossEntropy:
        return CrossEntropy(self.output, self.label, self.axis, ignore=self.ignore)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return self._plain().labels(outputs)

    def classes(self, outputs: OutputTypes) -> int | None:
        return self._plain().classes(outputs)

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        self._plain().check(labels, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        logits = L.widened(outputs[self.output_name({name: x.type for name, x in outputs.items()})])
        axis = class_axis(logits.rank, self.axis)
        label = L.of_shape(labels[self.label], _without(logits.shape, axis), "the labels")
        chosen = L.equal(L.iota(logits.shape, axis), L.broadcast_to(L.unsqueeze(label, [axis]), logits.shape))
        log_p = L.reduce_sum(L.where(chosen, L.log_softmax(logits, axis), 0), [axis])
        return mean_over(
            -((1 - L.exp(log_p)) ** self.gamma) * log_p, L.cast(L.not_equal(label, self.ignore), logits.dtype)
        )


@dataclass(frozen=True)
class KullbackLeibler(Loss):
    """Kullback-Leibler divergence of the softmax of logits from target probabilities, averaged over samples.

    Labels are probabilities of the logits' shape.

    Attributes:
        axis: The axis of classes, as in :class:`CrossEntropy`.
    """

    undone: ClassVar[str] = "Softmax"
    axis: int | None = option(None, kind=int)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        check_shares(labels[self.label], self.label)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, p = pair(self, outputs, labels)
        axis = class_axis(x.rank, self.axis)
        log_target = L.log(L.where(p > 0, p, 1))
        return mean_over(L.reduce_sum(p * (log_target - L.log_softmax(x, axis)), [axis]))


@dataclass(frozen=True)
class Distillation(Loss):
    """Divergence of softened student logits from teacher logits, with the loss of the labels (Hinton et al., 2015).

    Attributes:
        temperature: Divisor of the logits; the divergence is multiplied by its square.
        alpha: Share of the teacher; the rest is the cross-entropy of the labels. At 1, a batch has no labels.
        teacher: The name of the teacher's logits in a batch; ``Trainer(teacher=...)`` computes the logits.
        axis: The axis of classes, as in :class:`CrossEntropy`.
    """

    undone: ClassVar[str] = "Softmax"
    temperature: float = option(2.0, above=0)
    alpha: float = option(0.5, least=0, most=1)
    teacher: str = "teacher"
    axis: int | None = option(None, kind=int)

    def _plain(self) -> CrossEntropy:
        return CrossEntropy(self.output, self.label, self.axis)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        logits = outputs[self.output_name(outputs)]
        types = {self.teacher: TensorType(logits.dtype, label_shape(shape_of(logits)))}
        return types if self.alpha == 1 else types | self._plain().labels(outputs)

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        if self.alpha < 1:
            self._plain().check(labels, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        logits = L.widened(outputs[self.output_name({name: x.type for name, x in outputs.items()})])
        axis = class_axis(logits.rank, self.axis)
        teacher = L.of_shape(L.cast(labels[self.teacher], logits.dtype), logits.shape, "the teacher's logits")
        log_q = L.log_softmax(teacher / self.temperature, axis)
        log_p = L.log_softmax(logits / self.temperature, axis)
        soft = mean_over(L.reduce_sum(L.exp(log_q) * (log_q - log_p), [axis]) * self.temperature**2)
        if self.alpha == 1:
            return soft
        hard = self._plain().terms(outputs, labels)
        share = soft.weight / hard.weight * (1 - self.alpha)
        return Terms(soft.total * self.alpha + hard.total * share, soft.weight)


def check_shares(labels: np.ndarray, name: str) -> None:
    """Check labels that are probabilities; those that a computation rounds beyond 0 or 1 are permitted.

    Raises:
        FeedError: A label is outside of [0, 1].
    """
    wrong = ~((labels >= -_ROUNDING) & (labels <= 1 + _ROUNDING))
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise FeedError(f"expected labels from 0 to 1, got {labels[index]} at {list(index)}.", where=name)


def same_shape(loss: Loss, outputs: OutputTypes) -> dict[str, TensorType]:
    """Return labels of the type of the output."""
    output = outputs[loss.output_name(outputs)]
    return {loss.label: TensorType(output.dtype, label_shape(shape_of(output)))}


def pair(loss: Loss, outputs: Outputs, labels: Outputs) -> tuple[Tensor, Tensor]:
    """Return the output and the labels of its shape, in float32 at least."""
    x = L.widened(outputs[loss.output_name({name: x.type for name, x in outputs.items()})])
    return x, L.of_shape(L.cast(labels[loss.label], x.dtype), x.shape, "the labels")
