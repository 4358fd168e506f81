"""Changes of the scores of next tokens, in the order in which generation applies them.

Source: ONNX Runtime's contrib operators, *BeamSearch*, *GreedySearch*, *Sampling*; Keskar et al. (2019) for the penalty
of repetitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.core import language as L
from sardonyx.core.dim import floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Size, Tensor
from sardonyx.errors import InvalidModelError

LOWEST = -3.4028234663852886e38
"""The score of a token that must not follow: the lowest finite float32."""


@dataclass(frozen=True)
class Constraints:
    """The constraints on the next token.

    Attributes:
        eos_token: The token that ends a sequence.
        ngram: The length of token sequences that must not repeat; 0 for no constraint.
        min_length: Length of a sequence before which ``eos_token`` must not follow; a scalar.
        penalty: Divisor of positive scores, and factor of negative ones, of tokens in the sequence; a scalar.
        vocabulary: 0 for tokens that must not follow, [V].
        first: 0 for tokens that must not follow the prompt, [batch, V].
        temperature: Divisor of the scores.
    """

    eos_token: int
    ngram: int
    min_length: Tensor | None
    penalty: Tensor | None
    vocabulary: Tensor | None
    first: Tensor | None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.ngram < 0:
            raise InvalidModelError(f"expected `no_repeat_ngram_size` of 0 or more, got {self.ngram}.")

    def apply(self, scores: Tensor, sequences: Tensor, length: Tensor, batch: Size, *, is_first: bool) -> Tensor:
        """Return the scores of next tokens under the constraints.

        Args:
            scores: Scores, [rows, V].
            sequences: Tokens, [rows, max_length]; ``length`` of each row count.
            length: Scalar, int64.
            batch: Number of prompts, each of which has consecutive rows.
            is_first: True for the token after the prompt.
        """
        rows, vocabulary = scores.shape
        if self.penalty is not None:
            penalized = L.where(scores < 0, scores * self.penalty, scores / self.penalty)
            scores = L.where(self._occurs(sequences, length, vocabulary), penalized, scores)
        if self.ngram:
            scores = L.where(self._repeats(sequences, length, vocabulary), LOWEST, scores)
        if self.vocabulary is not None:
            mask = L.of_shape(self.vocabulary, (vocabulary,), "vocab_mask")
            scores = L.where(L.equal(mask, 0), LOWEST, scores)
        if self.first is not None and is_first:
            mask = L.unsqueeze(L.of_shape(self.first, (batch, vocabulary), "prefix_vocab_mask"), [1])
            by_prompt = L.reshape(scores, (batch, floor_div(rows, batch), vocabulary))
            scores = L.reshape(L.where(L.equal(mask, 0), LOWEST, by_prompt), (rows, vocabulary))
        if self.min_length is not None:
            ends = L.equal(L.arange(vocabulary), self.eos_token)
            scores = L.where(ends & (length < L.cast(self.min_length, t.INT64)), LOWEST, scores)
        return scores if self.temperature == 1.0 else scores / self.temperature

    @staticmethod
    def _occurs(sequences: Tensor, length: Tensor, vocabulary: Size) -> Tensor:
        """Return True for each token of the vocabulary that a sequence contains, [rows, V]."""
        return _marked(sequences, L.iota(sequences.shape, 1) < length, vocabulary)

    def _repeats(self, sequences: Tensor, length: Tensor, vocabulary: Size) -> Tensor:
        """Return True for each token that would complete a sequence of ``ngram`` tokens a second time, [rows, V]."""
        rows, room = sequences.shape
        padded = L.pad(sequences, (0, 0), (0, self.ngram))
        begins = L.iota((rows, room), 1)
        matches = begins + self.ngram <= length
        for offset in range(self.ngram - 1):
            last = L.maximum(length - (self.ngram - 1) + offset, 0)
            matches = matches & L.equal(
                L.slice_(padded, 1, offset, offset + room), L.unsqueeze(L.take(sequences, last, 1), [1])
            )
        followers = L.slice_(padded, 1, self.ngram - 1, self.ngram - 1 + room)
        return _marked(followers, matches, vocabulary)


def _marked(tokens: Tensor, chosen: Tensor, vocabulary: Size) -> Tensor:
    """Return True for each token of the vocabulary among the chosen ones of a row; tokens outside are left out."""
    tokens = L.cast(tokens, t.INT64)
    at = L.where(chosen & (tokens >= 0) & (tokens < L.number(vocabulary)), tokens, L.number(vocabulary))
    marks = L.scatter_elements(
        L.full((tokens.shape[0], vocabulary + 1), 0, t.INT32), at, L.full(tokens.shape, 1, t.INT32), 1
    )
    return L.equal(L.slice_(marks, 1, 0, vocabulary), 1)
