"""Beams: several continuations of each prompt, and the finished sequences among which the best are returned.

Source: ONNX Runtime's contrib operators, *BeamSearch*; Wolf et al. (2020), *Transformers*. The state of a search
is the scores of beams [batch, K], and of finished sequences the tokens [batch, K, max_length], the scores [batch, K] in
falling order (-inf for none), and True for prompts whose search has ended [batch].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Size, Tensor
from sardonyx.ops.definitions.microsoft.logits import LOWEST

_UNLIKELY = -1e9
"""The first score of all beams but one: beams of equal prompts would stay equal."""


@dataclass(frozen=True)
class Beams:
    """A beam search.

    Attributes:
        batch: Number of prompts.
        width: Number of beams of a prompt.
        room: Greatest length of a sequence.
        eos_token: The token that ends a sequence.
        pad_token: The token that fills sequences.
        penalty: Exponent of the length by which scores are divided; a scalar.
        ends_early: True if the search of a prompt ends with the first ``width`` sequences, False if the search goes on
            while a better sequence is possible.
    """

    batch: Size
    width: Size
    room: Size
    eos_token: int
    pad_token: int
    penalty: Tensor
    ends_early: bool

    @property
    def initial(self) -> list[Tensor]:
        """The state before the first token."""
        beams = (self.batch, self.width)
        return [
            L.where(L.equal(L.iota(beams, 1), 0), 0.0, L.full(beams, _UNLIKELY, t.FLOAT)),
            L.full((*beams, self.room), self.pad_token, t.INT32),
            L.full(beams, -math.inf, t.FLOAT),
            L.full((self.batch,), False, t.BOOL),
        ]

    def advance(
        self, scores: Tensor, sequences: Tensor, length: Tensor, state: Sequence[Tensor], *, collects: bool
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Continue the beams by one token.

        Args:
            scores: Scores of next tokens, [batch * K, V].
            sequences: Tokens, [batch * K, max_length].
            length: Number of tokens of a sequence, a scalar.
            state: The state of the search.
            collects: Return the scores of all tokens.

        Returns:
            The next tokens [batch * K], the row that each row continues, True while the search of a prompt goes on, the
            state, and the scores of all tokens [batch, K, V] if requested.
        """
        totals, words, finished, ended = state
        batch, width, vocabulary = self.batch, self.width, scores.shape[1]
        every = L.reshape(scores, (batch, width, vocabulary)) + L.unsqueeze(totals, [2])
        flat = L.reshape(every, (batch, width * vocabulary))
        chosen = L.top_k(flat, 1, 2 * width)
        values = L.gather_elements(flat, chosen, 1)
        beams, tokens = chosen / L.number(vocabulary), L.remainder(chosen, L.number(vocabulary))
        is_end = L.equal(tokens, self.eos_token)
        words, finished = self._finish(values, beams, is_end, sequences, length, words, finished, ended)

        # Of twice as many candidates as beams, at most one of each beam ends: enough remain.
        rank = L.iota(tokens.shape, 1)
        open_ones = L.top_k(rank + L.where(is_end, 2 * L.number(width), 0), 1, width, largest=False)
        next_tokens, next_beams, next_totals = (L.gather_elements(x, open_ones, 1) for x in (tokens, beams, values))
        closed = L.unsqueeze(ended, [1])
        next_tokens = L.where(closed, self.pad_token, next_tokens)
        next_totals = L.where(closed, 0.0, next_totals)
        rows = L.iota(next_beams.shape, 0) * L.number(width) + L.where(closed, 0, next_beams)

        worst = L.squeeze(L.slice_(finished, 1, width - 1, width), [1])
        is_full = worst > -math.inf
        best = L.squeeze(L.slice_(values, 1, 0, 1), [1]) / self._divisor(length)
        improves = L.full((batch,), False, t.BOOL) if self.ends_early else worst < best
        ended = ended | (is_full & ~improves)
        flat_size = (batch * width,)
        return (
            L.cast(L.reshape(next_tokens, flat_size), t.INT32),
            L.reshape(rows, flat_size),
            ~L.all_of(ended),
            [next_totals, words, finished, ended],
            [every] if collects else [],
        )

    def best(self, sequences: Tensor, length: Tensor, state: Sequence[Tensor], returned: Size) -> tuple[Tensor, Tensor]:
        """Return the best sequences [batch, returned, max_length] and their scores [batch, returned]."""
        totals, words, finished, ended = state
        open_scores = L.where(L.unsqueeze(ended, [1]), -math.inf, L.maximum(totals / self._divisor(length), LOWEST))
        rows = L.reshape(sequences, (self.batch, self.width, self.room))
        words, finished = self._keep_best(L.concat([words, rows], 1), L.concat([finished, open_scores], 1))
        finished = L.permute(finished, [1, 0])
        finished = L.at_most(finished, returned, self.width, "num_return_sequences exceeds num_beams.")
        return L.slice_(words, 1, 0, returned), L.slice_(L.permute(finished, [1, 0]), 1, 0, returned)

    def _finish(
        self, values: Tensor, beams: Tensor, is_end: Tensor, sequences: Tensor, length: Tensor, words: Tensor,
        finished: Tensor, ended: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the finished sequences with those that end now; only the first K candidates can end."""
        values, beams, is_end = (L.slice_(x, 1, 0, self.width) for x in (values, beams, is_end))
        new = L.maximum(values / self._divisor(length), LOWEST)
        new = L.where(is_end & ~L.unsqueeze(ended, [1]), new, -math.inf)
        rows = L.iota(beams.shape, 0) * L.number(self.width) + beams
        return self._keep_best(L.concat([words, L.take(sequences, rows, 0)], 1), L.concat([finished, new], 1))

    def _keep_best(self, words: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the K best of the sequences; of equal ones the first."""
        best = L.top_k(scores, 1, self.width)
        return L.gather_nd(words, L.unsqueeze(best, [2]), batch=1), L.gather_elements(scores, best, 1)

    def _divisor(self, length: Tensor) -> Tensor:
        return L.cast(length, t.FLOAT) ** self.penalty
