"""Connectionist temporal classification (Graves et al., 2006)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sardonyx.base.option_checks import option
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import fresh_symbol
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import FeedError, OptionError
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, label_shape, mean_over, shape_of

_IMPOSSIBLE = -1e30
"""Logarithm of the probability of an impossible path; finite, so that gradients are."""


@dataclass(frozen=True)
class CTC(Loss):
    """Negative log-likelihood of label sequences under all alignments, divided by their lengths, averaged over samples.

    The output holds logits [batch, steps, classes], or [steps, batch, classes] with ``time_first``. A batch holds
    ``labels`` int64 [batch, length], padded by any class, ``label_lengths`` and ``input_lengths`` int64 [batch]. A
    sample whose labels fit no alignment counts 0.

    Attributes:
        blank: The class of the blank.
        time_first: If True, the axis of steps comes first.
        label_lengths: The name of the lengths of labels in a batch.
        input_lengths: The name of the numbers of steps in a batch.
    """

    blank: int = option(0, least=0)
    time_first: bool = False
    label_lengths: str = "label_lengths"
    input_lengths: str = "input_lengths"

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        shape = shape_of(outputs[self.output_name(outputs)])
        if len(shape) != 3:
            raise OptionError("expected logits of rank 3.", where=self.output_name(outputs))
        batch = label_shape(shape)[1 if self.time_first else 0]
        return {
            self.label: TensorType(t.INT64, (batch, Dim.symbol(fresh_symbol()))),
            self.label_lengths: TensorType(t.INT64, (batch,)),
            self.input_lengths: TensorType(t.INT64, (batch,)),
        }

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        classes = shape_of(outputs[self.output_name(outputs)])[2]
        values, lengths = labels[self.label], labels[self.label_lengths]
        if values.shape[1] == 0:
            raise FeedError("expected at least one label a sample.", where=self.label)
        if (lengths < 0).any() or (lengths > values.shape[1]).any():
            raise FeedError(f"expected lengths from 0 to {values.shape[1]}.", where=self.label_lengths)
        if (labels[self.input_lengths] < 1).any():
            raise FeedError("expected at least one step a sample.", where=self.input_lengths)
        used = np.arange(values.shape[1]) < lengths[:, None]
        wrong = used & ((values < 0) | (values == self.blank))
        if isinstance(classes, int):
            wrong |= used & (values >= classes)
        if wrong.any():
            raise FeedError("expected classes other than the blank.", where=self.label)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        logits = L.widened(outputs[self.output_name({name: x.type for name, x in outputs.items()})])
        if not self.time_first:
            logits = L.permute(logits, [1, 0, 2])
        log_p = L.log_softmax(logits, 2)
        steps, batch, _ = log_p.shape
        target, lengths, ends = labels[self.label], labels[self.label_lengths], labels[self.input_lengths]
        states = target.shape[1] * 2 + 1
        symbols = self._with_blanks(target)
        skips = self._may_skip(symbols)
        scores = L.gather_elements(log_p, L.broadcast_to(L.unsqueeze(symbols, [0]), (steps, batch, states)), 2)
        position = L.iota((batch, states), 1)
        start = L.where(position < 2, L.squeeze(L.slice_(scores, 0, 0, 1), [0]), _IMPOSSIBLE)

        def step(i: Tensor, alpha: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
            index = L.reshape(i + 1, (1,))
            score = L.squeeze(L.take(scores, index, 0), [0])
            one = _shifted(alpha, 1)
            two = L.where(skips, _shifted(alpha, 2), _IMPOSSIBLE)
            after = _log_sum(alpha, one, two) + score
            going = L.broadcast_to(L.unsqueeze(i + 1 < ends, [1]), alpha.shape)
            return None, [L.where(going, after, alpha)], []

        (alpha,), _ = L.loop(L.size_tensor([steps - 1], ()), None, [start], step)
        last = L.broadcast_to(L.unsqueeze(lengths * 2, [1]), (batch, states))
        final = L.equal(position, last) | L.equal(position, last - 1)
        scores_at_end = L.where(final, alpha, _IMPOSSIBLE)
        top = L.stop_gradient(L.reduce_max(scores_at_end, [1], keepdims=True))
        likelihood = L.squeeze(top, [1]) + L.log(L.reduce_sum(L.exp(scores_at_end - top), [1]))
        possible = likelihood > _IMPOSSIBLE / 2
        loss = L.where(possible, -likelihood, 0) / L.cast(L.maximum(lengths, 1), logits.dtype)
        return mean_over(loss)

    def _with_blanks(self, target: Tensor) -> Tensor:
        """Return the labels with a blank before, between and after: [batch, 2 * length + 1]."""
        wide = L.unsqueeze(target, [2])
        pairs = L.concat([L.full(wide.shape, self.blank, t.INT64), wide], 2)
        flat = L.reshape(pairs, (target.shape[0], target.shape[1] * 2))
        return L.concat([flat, L.full((target.shape[0], 1), self.blank, t.INT64)], 1)

    def _may_skip(self, symbols: Tensor) -> Tensor:
        """Return True for states that may follow the state before the preceding blank."""
        before = L.slice_(L.pad(symbols, [0, 2], [0, 0], -1), 1, 0, symbols.shape[1])
        return L.not_equal(symbols, self.blank) & L.not_equal(symbols, before)


def _shifted(alpha: Tensor, by: int) -> Tensor:
    return L.slice_(L.pad(alpha, [0, by], [0, 0], _IMPOSSIBLE), 1, 0, alpha.shape[1])


def _log_sum(*terms: Tensor) -> Tensor:
    top = L.stop_gradient(L.maximum(*terms))
    total = L.exp(terms[0] - top)
    for term in terms[1:]:
        total = total + L.exp(term - top)
    return top + L.log(total)
