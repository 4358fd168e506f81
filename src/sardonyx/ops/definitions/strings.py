"""``StringConcat``, ``StringSplit``, ``StringNormalizer``, ``RegexFullMatch``, ``TfIdfVectorizer``.

Source: ONNX Operators, under these names. Tensors of strings are arrays of Python's ``str``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.eval.tensor import broadcast_shapes
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import InvalidModelError, NeedsValueError, ShapeError
from sardonyx.ops.re2 import compile_pattern
from sardonyx.ops.registry import host_operator

_STRINGS = "no arithmetic on strings"

Array = np.ndarray


def _shape(x: TensorType) -> t.Shape:
    if x.shape is None:
        raise NeedsValueError("the rank is unknown before the run.")
    return x.shape


def _to_array(words: Iterable[str], shape: Sequence[int]) -> Array:
    return np.fromiter(words, object).reshape(tuple(shape))


def _concat_types(x: TensorType, y: TensorType) -> tuple[Type]:
    return (TensorType(t.STRING, broadcast_shapes(_shape(x), _shape(y))),)


@host_operator("StringConcat", since=20, types=_concat_types, reason=_STRINGS)
def string_concat(x: Array, y: Array) -> tuple[Array]:
    return (np.asarray(x + y, object),)


def _split_types(x: TensorType, *, delimiter: str = "", maxsplit: int = -1) -> tuple[Type, Type]:
    return TensorType(t.STRING, (*_shape(x), unknown_size())), TensorType(t.INT64, _shape(x))


@host_operator("StringSplit", since=20, types=_split_types, reason=_STRINGS)
def string_split(x: Array, *, delimiter: str = "", maxsplit: int = -1) -> tuple[Array, Array]:
    """Split strings; without a delimiter at white space, and leading and trailing white space is dropped."""
    parts = [s.split(delimiter, maxsplit) if delimiter else s.strip().split(None, maxsplit) for s in x.ravel()]
    counts = np.array([len(part) for part in parts], np.int64).reshape(x.shape)
    longest = int(counts.max(initial=0))
    padded = (word for part in parts for word in [*part, *[""] * (longest - len(part))])
    return _to_array(padded, (*x.shape, longest)), counts


def _normalizer_types(
    x: TensorType,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> tuple[Type]:
    shape = _shape(x)
    if len(shape) not in (1, 2) or (len(shape) == 2 and isinstance(shape[0], int) and shape[0] != 1):
        raise ShapeError(f"expected strings of shape [C] or [1, C], got {x}.")
    return (TensorType(t.STRING, (*shape[:-1], unknown_size())),)


@host_operator("StringNormalizer", since=10, types=_normalizer_types, reason=_STRINGS)
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> tuple[Array]:
    """Normalize strings; case is changed by Unicode's rules, regardless of the locale."""
    changes: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}
    if case_change_action not in changes:
        raise InvalidModelError(
            f"unknown case_change_action {case_change_action!r}.", remedy="Use 'LOWER', 'UPPER' or 'NONE'."
        )
    fold = str if is_case_sensitive else str.lower
    stops = {fold(word) for word in stopwords}
    words = [changes[case_change_action](word) for word in x.ravel() if fold(word) not in stops] or [""]
    return (_to_array(words, (*x.shape[:-1], len(words))),)


def _match_types(x: TensorType, *, pattern: str) -> tuple[Type]:
    return (TensorType(t.BOOL, x.shape),)


@host_operator("RegexFullMatch", since=20, types=_match_types, reason=_STRINGS)
def regex_full_match(x: Array, *, pattern: str) -> tuple[Array]:
    expression = compile_pattern(pattern)
    matches = [expression.fullmatch(word) is not None for word in x.ravel()]
    return (np.array(matches, np.bool_).reshape(x.shape),)


def _tfidf_types(
    x: TensorType,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> tuple[Type]:
    shape = _shape(x)
    if len(shape) > 2:
        raise ShapeError(f"expected tokens of shape [C] or [N, C], got {x}.")
    return (TensorType(t.FLOAT, (*shape[:-1], max(ngram_indexes, default=-1) + 1)),)


@host_operator("TfIdfVectorizer", since=9, types=_tfidf_types, reason=_STRINGS)
def tfidf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] = (),
    pool_strings: Sequence[str] = (),
    weights: Sequence[float] = (),
) -> tuple[Array]:
    """Count n-grams; the weights belong to the n-grams of the pool, not to the columns of the result."""
    if mode not in ("TF", "IDF", "TFIDF"):
        raise InvalidModelError(f"unknown mode {mode!r} of TfIdfVectorizer.", remedy="Use 'TF', 'IDF' or 'TFIDF'.")
    grams = _split_pool(tuple(pool_strings) or tuple(pool_int64s), ngram_counts)
    if len(ngram_indexes) != len(grams) or (weights and len(weights) != len(grams)):
        raise InvalidModelError(f"{len(grams)} n-grams have {len(ngram_indexes)} indexes and {len(weights)} weights.")
    if min(ngram_indexes, default=0) < 0:
        raise InvalidModelError(f"expected non-negative `ngram_indexes`, got {min(ngram_indexes)}.")
    number = {gram: i for i, gram in enumerate(grams)}
    lengths = range(min_gram_length, max_gram_length + 1)
    rows = np.atleast_2d(x)
    result = np.zeros((len(rows), max(ngram_indexes, default=-1) + 1), np.float32)
    for row, tokens in zip(result, rows.tolist(), strict=True):
        counts = np.zeros(len(grams), np.float32)
        for gram in _ngrams(tokens, lengths, max_skip_count):
            if gram in number:
                counts[number[gram]] += 1
        if mode == "IDF":
            counts = np.minimum(counts, 1)
        if mode != "TF" and weights:
            counts *= np.array(weights, np.float32)
        np.add.at(row, list(ngram_indexes), counts)
    return (result.reshape(*x.shape[:-1], result.shape[1]),)


def _split_pool(pool: Sequence[int | str], starts: Sequence[int]) -> list[tuple[int | str, ...]]:
    """Return the n-grams of a pool: all of length 1, all of length 2 …; ``starts`` delimits the lengths."""
    grams = []
    for length, (begin, end) in enumerate(itertools.pairwise([*starts, len(pool)]), start=1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % length:
            raise InvalidModelError(
                f"elements {begin} to {end} of the pool do not divide into n-grams of length {length}."
            )
        grams += [tuple(pool[i : i + length]) for i in range(begin, end, length)]
    return grams


def _ngrams(tokens: Sequence[int | str], lengths: range, skips: int) -> Iterator[tuple[int | str, ...]]:
    """Yield all n-grams of these lengths; their tokens are equidistant, up to ``skips`` tokens between."""
    for length in range(max(lengths.start, 1), min(lengths.stop, len(tokens) + 1)):
        for step in range(1, 2 if length == 1 else min(skips + 1, (len(tokens) - 1) // (length - 1)) + 1):
            reach = (length - 1) * step
            for begin in range(len(tokens) - reach):
                yield tuple(tokens[begin : begin + reach + 1 : step])
