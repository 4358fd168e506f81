"""Generation of text: *GreedySearch*, *Sampling* and *BeamSearch*, loops over a decoder that is a subgraph.

Source: ONNX Runtime's contrib operators. The decoder has the inputs and outputs of an exported GPT-2: tokens, positions
and mask, then a cache [2, rows, heads, length, size] for each layer, which the decoder returns with the new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.core import language as L
from sardonyx.core.dim import at_least
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Size, Tensor
from sardonyx.errors import InvalidModelError, TypeMismatchError, UnsupportedError
from sardonyx.ops.definitions.microsoft.beams import Beams
from sardonyx.ops.definitions.microsoft.logits import LOWEST, Constraints
from sardonyx.ops.graph import Body
from sardonyx.ops.registry import operator

DOMAIN = "com.microsoft"

_FIRST_CACHE = 3
"""Index of the first cache among the inputs of a decoder."""

State = Sequence[Tensor]
"""The tensors that a search carries from token to token."""

Choose = Callable[[Tensor, Tensor, Tensor, State, bool], tuple[Tensor, Tensor | None, Tensor, State, State]]
"""One step of a search.

From logits [rows, V], sequences [rows, max_length], their length, the state, and True for the token after the prompt,
to the next tokens [rows], the row that each row continues (None for itself), True if the search goes on, the new state,
and values to collect.
"""


class _Decoder:
    """The decoder subgraphs of a node.

    Args:
        decoder: The subgraph for one new token.
        first: The subgraph for the prompt; None for the same.
        vocabulary: Number of tokens; the logits of a padded vocabulary are more. None for all logits.
    """

    def __init__(self, decoder: Body, first: Body | None, vocabulary: int) -> None:
        self._next, self._first, self._vocabulary = decoder, first or decoder, vocabulary
        for body in (self._next, self._first):
            caches = body.input_count - _FIRST_CACHE
            if caches < 1 or body.output_count != 1 + caches:
                raise UnsupportedError(
                    f"expected a decoder with tokens, positions, a mask and caches as inputs, and logits and the same "
                    f"number of caches as outputs, got {body.input_count} inputs and {body.output_count} outputs."
                )

    def empty_caches(self, rows: Size) -> list[Tensor]:
        """Return the caches before the prompt, [2, rows, heads, 0, size] each.

        Raises:
            InvalidModelError: The decoder declares no heads and sizes.
        """
        caches = []
        for declared in self._first.input_types[_FIRST_CACHE:]:
            shape = declared.shape if isinstance(declared, TensorType) else None
            if shape is None or len(shape) != 5 or not (isinstance(shape[2], int) and isinstance(shape[4], int)):
                raise InvalidModelError(
                    "a decoder declares no number of heads and no size of heads for a cache.",
                    remedy="Declare caches as [2, batch, heads, length, size].",
                )
            assert isinstance(declared, TensorType)
            caches.append(L.full((2, rows, shape[2], 0, shape[4]), 0, declared.dtype))
        return caches

    def __call__(self, *inputs: Value, is_first: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the logits after the last token, [rows, V] in float32, and the caches."""
        results = (self._first if is_first else self._next)(*inputs)
        logits, *caches = [result for result in results if isinstance(result, Tensor)]
        logits = L.of_rank(logits, 3, "the logits of a decoder")
        last = L.squeeze(L.slice_(logits, 1, logits.shape[1] - 1, logits.shape[1]), [1])
        if self._vocabulary > 0:
            last = L.slice_(last, 1, 0, self._vocabulary)
        return L.cast(last, t.FLOAT), caches


def _generate(
    decoder: _Decoder, prompt: Tensor, mask: Tensor | None, max_length: Size, pad_token: int, choose: Choose,
    state: State,
) -> tuple[Tensor, Tensor, Tensor, State, list[Tensor]]:  # fmt: skip
    """Extend prompts token by token.

    Args:
        decoder: The decoder.
        prompt: Tokens, [rows, length].
        mask: 0 for tokens that are not read, [rows, length]; by default for ``pad_token``.
        max_length: The greatest length of a sequence with its prompt.
        pad_token: The token that fills sequences.
        choose: Chooses the next tokens.
        state: The state of the search before the first token.

    Returns:
        Sequences [rows, max_length], their length, True unless the search ended before, the state, and the collected
        values, each with a leading axis of steps.
    """
    if prompt.dtype != t.INT32:
        raise TypeMismatchError(f"expected a prompt of int32 tokens, got {prompt.type}.")
    rows, length = prompt.shape
    prompt = L.at_most(prompt, length + 1, max_length, "max_length must be greater than the length of the prompt.")
    is_word = L.cast(L.not_equal(prompt, pad_token), t.INT32)
    seen = L.cumulative("add", is_word, 1)
    positions = (seen - 1) * is_word
    mask = is_word if mask is None else L.of_shape(mask, prompt.shape, "attention_mask")
    next_position = L.slice_(seen, 1, length - 1, length)
    start = L.pad(prompt, (0, 0), (0, max_length - length), value=L.constant(pad_token, t.INT32))

    def advance(
        count: Tensor, sequences: Tensor, logits: Tensor, caches: State, state: State, is_first: bool
    ) -> tuple[Tensor, Tensor, Tensor, State, State, State]:
        tokens, sources, going, state, collected = choose(logits, sequences, count, state, is_first)
        if sources is not None:
            sequences = L.take(sequences, sources, 0)
            caches = [L.take(cache, sources, 1) for cache in caches]
        is_next = L.equal(L.iota(sequences.shape, 1), count)
        sequences = L.where(is_next, L.unsqueeze(tokens, [1]), sequences)
        return sequences, L.unsqueeze(tokens, [1]), going, caches, state, collected

    logits, caches = decoder(prompt, positions, mask, *decoder.empty_caches(rows), is_first=True)
    count = L.number(length)
    sequences, tokens, going, ordered, state, first = advance(count, start, logits, caches, state, True)
    one = L.full((rows, 1), 1, t.INT32)
    size = len(ordered)

    def iterate(i: Tensor, *carried: Any) -> tuple[Tensor, list[Value], list[Value]]:
        sequences, tokens, count, position, mask, *rest = carried
        mask = L.concat([mask, one], 1)
        logits, caches = decoder(tokens, position, mask, *rest[:size], is_first=False)
        sequences, tokens, going, ordered, state, row = advance(count, sequences, logits, caches, rest[size:], False)
        return going, [sequences, tokens, count + 1, position + 1, mask, *ordered, *state], list(row)

    carried = [sequences, tokens, count + 1, next_position, mask, *ordered, *state]
    steps = L.number(max_length - length - 1)
    (sequences, _, count, _, _, *rest), later = L.loop(steps, going, carried, iterate)
    collected = [L.concat([L.unsqueeze(a, [0]), b], 0) for a, b in zip(first, later, strict=True)]
    return sequences, count, going, rest[size:], collected


def _scalar(x: Tensor | None) -> Tensor | None:
    return None if x is None else L.reshape(x, ())


def _check_model_type(model_type: int, encoder: Body | None) -> None:
    if model_type != 0 or encoder is not None:
        raise UnsupportedError(
            f"expected a decoder-only model (`model_type` 0), got {model_type} with an encoder.",
            remedy="Export the decoder step, and search in the program.",
        )


def _check_tokens(**tokens: int) -> None:
    for name, token in tokens.items():
        if token < 0:
            raise InvalidModelError(f"expected a token of 0 or more for `{name}`, got {token}.")


@operator("GreedySearch", since=1, domain=DOMAIN)
def greedy_search(
    input_ids: Tensor,
    max_length: Tensor,
    min_length: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    vocab_mask: Tensor | None = None,
    prefix_vocab_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    decoder: Body,
    decoder_start_token_id: int = -1,
    encoder: Body | None = None,
    eos_token_id: int,
    init_decoder: Body | None = None,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    vocab_size: int = -1,
) -> Tensor:
    """Extend each prompt by the token with the highest score; a sequence that has ended is padded."""
    _check_model_type(model_type, encoder)
    constraints = Constraints(
        eos_token_id, no_repeat_ngram_size, _scalar(min_length), _scalar(repetition_penalty), vocab_mask,
        prefix_vocab_mask,
    )  # fmt: skip

    def best(scores: Tensor, count: Tensor) -> Tensor:
        return L.argmax(scores, 1)

    return _one_by_one(
        _Decoder(decoder, init_decoder, vocab_size),
        input_ids,
        attention_mask,
        max_length,
        constraints,
        pad_token_id,
        best,
    )


@operator("Sampling", since=1, domain=DOMAIN)
def sampling(
    input_ids: Tensor,
    max_length: Tensor,
    min_length: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    vocab_mask: Tensor | None = None,
    prefix_vocab_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    presence_mask: Tensor | None = None,
    seed: Tensor | None = None,
    *,
    custom: int = 0,
    decoder: Body,
    decoder_start_token_id: int = -1,
    encoder: Body | None = None,
    eos_token_id: int,
    filter_value: float = -1e20,
    init_decoder: Body | None = None,
    min_tokens_to_keep: int = 0,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    presence_penalty: float = 0.0,
    temperature: float = 1.0,
    top_p: float = 0.0,
    vocab_size: int = -1,
    identity: str,
) -> Tensor:
    """Extend each prompt by a random token among the most probable ones with a total probability of ``top_p``.

    The random numbers are those of this library: equal seeds give other tokens than in ONNX Runtime.
    """
    _check_model_type(model_type, encoder)
    if custom or presence_penalty:
        raise UnsupportedError("Sampling with `custom` or `presence_penalty` is not supported.")
    if not temperature > 0:
        raise InvalidModelError(f"expected a positive `temperature`, got {temperature}.")
    constraints = Constraints(
        eos_token_id, no_repeat_ngram_size, _scalar(min_length), _scalar(repetition_penalty), vocab_mask,
        prefix_vocab_mask, temperature,
    )  # fmt: skip
    batch = L.of_rank(input_ids, 2, "input_ids").shape[0]
    start = None if seed is None else float(L.static_scalar(L.reshape(seed, ()), "the seed of Sampling"))
    room = L.one_size(max_length, "max_length")
    numbers = L.uniform((room, batch), t.DOUBLE, seed=start, identity=identity)

    def draw(scores: Tensor, count: Tensor) -> Tensor:
        order = L.sort(scores, 1)
        size = scores.shape[1]
        if min_tokens_to_keep < 0 or at_least(size, min_tokens_to_keep + 1) is False:
            raise InvalidModelError(f"expected `min_tokens_to_keep` from 0 to {size} - 1, got {min_tokens_to_keep}.")
        ascending = L.gather_elements(scores, order, 1)
        below = L.cumulative("add", L.softmax(ascending), 1)
        rank = L.iota(scores.shape, 1)
        dropped = (below <= 1 - top_p) & (rank < L.number(size) - min_tokens_to_keep)
        weights = L.exp(L.cast(L.where(dropped, filter_value, ascending), t.DOUBLE))
        weights = L.where(dropped & (filter_value <= LOWEST), 0.0, weights)
        ends = L.cumulative("add", weights, 1)
        drawn = L.unsqueeze(L.take(numbers, count, 0), [1]) * L.slice_(ends, 1, size - 1, size)
        passed = L.reduce_sum(L.cast(drawn >= ends, t.INT64), [1], keepdims=True)
        return L.squeeze(L.gather_elements(order, L.minimum(passed, L.number(size) - 1), 1), [1])

    return _one_by_one(
        _Decoder(decoder, init_decoder, vocab_size),
        input_ids,
        attention_mask,
        max_length,
        constraints,
        pad_token_id,
        draw,
    )


def _one_by_one(
    decoder: _Decoder, prompt: Tensor, mask: Tensor | None, max_length: Tensor, constraints: Constraints,
    pad_token: int, pick: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """Extend each prompt by itself; ``pick`` chooses tokens from scores [rows, V] and the length of the sequences."""
    _check_tokens(eos_token_id=constraints.eos_token, pad_token_id=pad_token)
    prompt = L.of_rank(prompt, 2, "input_ids")
    batch = prompt.shape[0]

    def choose(
        logits: Tensor, sequences: Tensor, count: Tensor, state: State, is_first: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, State, State]:
        scores = constraints.apply(logits, sequences, count, batch, is_first=is_first)
        tokens = L.cast(pick(scores, count), t.INT32)
        ended = state[0] | L.equal(tokens, constraints.eos_token)
        return L.where(ended, pad_token, tokens), None, ~L.all_of(ended), [ended], []

    room = L.one_size(max_length, "max_length")
    running = L.full((batch,), False, t.BOOL)
    return _generate(decoder, prompt, mask, room, pad_token, choose, [running])[0]


@operator("BeamSearch", since=1, domain=DOMAIN)
def beam_search(
    input_ids: Tensor,
    max_length: Tensor,
    min_length: Tensor | None,
    num_beams: Tensor,
    num_return_sequences: Tensor,
    length_penalty: Tensor | None = None,
    repetition_penalty: Tensor | None = None,
    vocab_mask: Tensor | None = None,
    prefix_vocab_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    logits_processor: Tensor | None = None,
    *,
    decoder: Body,
    decoder_start_token_id: int = -1,
    early_stopping: int = 0,
    encoder: Body | None = None,
    eos_token_id: int,
    init_decoder: Body | None = None,
    model_type: int = 0,
    no_repeat_ngram_size: int = 0,
    pad_token_id: int,
    vocab_size: int = -1,
    outputs: int,
) -> tuple[Tensor, ...]:
    """Return the best sequences [batch, returned, max_length], their scores, and the scores of all tokens."""
    _check_model_type(model_type, encoder)
    _check_tokens(eos_token_id=eos_token_id, pad_token_id=pad_token_id)
    if decoder_input_ids is not None or logits_processor is not None:
        raise UnsupportedError("BeamSearch with `decoder_input_ids` or `logits_processor` is not supported.")
    prompt = L.of_rank(input_ids, 2, "input_ids")
    batch, length = prompt.shape
    room, width = L.one_size(max_length, "max_length"), L.one_size(num_beams, "num_beams")
    returned = L.one_size(num_return_sequences, "num_return_sequences")
    constraints = Constraints(
        eos_token_id, no_repeat_ngram_size, _scalar(min_length), _scalar(repetition_penalty), vocab_mask,
        prefix_vocab_mask,
    )  # fmt: skip
    penalty = L.constant(1.0, t.FLOAT) if length_penalty is None else L.cast(L.reshape(length_penalty, ()), t.FLOAT)
    beams = Beams(batch, width, room, eos_token_id, pad_token_id, penalty, ends_early=early_stopping == 1)

    def widen(x: Tensor) -> Tensor:
        """Repeat each row for every beam."""
        rows = L.broadcast_to(L.unsqueeze(x, [1]), (batch, width, *x.shape[1:]))
        return L.reshape(rows, (batch * width, *x.shape[1:]))

    def choose(
        logits: Tensor, sequences: Tensor, count: Tensor, state: State, is_first: bool
    ) -> tuple[Tensor, Tensor | None, Tensor, State, State]:
        scores = constraints.apply(L.log_softmax(logits), sequences, count, batch, is_first=is_first)
        return beams.advance(scores, sequences, count, state, collects=outputs > 2)

    mask = None if attention_mask is None else widen(L.of_shape(attention_mask, prompt.shape, "attention_mask"))
    decode = _Decoder(decoder, init_decoder, vocab_size)
    sequences, count, _, state, collected = _generate(
        decode, widen(prompt), mask, room, pad_token_id, choose, beams.initial
    )
    dtype = t.FLOAT if length_penalty is None else length_penalty.dtype
    best, scores = beams.best(sequences, count, state, returned)
    if not collected:
        return best, L.cast(scores, dtype)
    (steps,) = collected
    missing = room - length - steps.shape[0]
    return best, L.cast(scores, dtype), L.cast(L.pad(steps, (0,) * 4, (missing, 0, 0, 0)), dtype)
