"""Text vectorizers: tokens by a regular expression, counted as n-grams of a vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import method
from sardonyx.errors import UnsupportedError

WORDS = r"(?u)\b\w\w+\b"
"""The default pattern: words of at least two characters."""

_PADDING = "\x00"
_BETWEEN = "\x01"
"""A token between words, which no n-gram of a word holds."""
_MOST_TOKENS = 1 << 40


def _normalized(estimator: Any, texts: Array) -> Array:
    """Return texts as the vectorizer's preprocessor gives them, [rows]."""
    if estimator.preprocessor is not None or estimator.tokenizer is not None or callable(estimator.analyzer):
        raise UnsupportedError(
            "a function of Python as analyzer, preprocessor or tokenizer", where=type(estimator).__name__
        )
    if estimator.strip_accents is not None:
        raise UnsupportedError("strip_accents", where=type(estimator).__name__)
    flat = texts.ravel()
    return flat.node("StringNormalizer", case_change_action="LOWER") if estimator.lowercase else flat


def _tokens(estimator: Any, texts: Array) -> Array:
    """Return tokens of each text, [rows, most tokens], filled up with a character that no text has."""
    pattern = estimator.token_pattern
    if pattern == WORDS:
        pattern = r"\w\w+"
    elif re.search(r"\\b|\(", pattern.removeprefix("(?u)")):
        raise UnsupportedError(f"token_pattern {pattern!r}", where=type(estimator).__name__)
    return texts.node(
        "Tokenizer",
        domain="com.microsoft",
        mark=0,
        mincharnum=1,
        pad_value=_PADDING,
        tokenexp=pattern.removeprefix("(?u)"),
    )


def _characters(estimator: Any, texts: Array) -> Array:
    """Return the characters of each text; a run of white space is one space."""
    parts = texts.node(
        "Tokenizer", domain="com.microsoft", mark=0, mincharnum=1, pad_value=_PADDING, tokenexp=r"\s\s+|\s|\S"
    )
    is_run = parts.node("RegexFullMatch", dtype=bool, pattern=r"\s\s+")
    return is_run.node("Where", parts.constant(np.array(" ", object)), parts, dtype=object)


def _compacted(tokens: Array, is_left_out: Array) -> Array:
    """Return tokens [rows, most tokens] without some: the others in order, and rows filled up at the end."""
    builder, left_out = tokens.builder, is_left_out.cast(np.int64)
    ranks = (left_out * 0 + 1).node("CumSum", 1) + left_out * _MOST_TOKENS
    count = builder.node("Shape", tokens.value, start=1, end=2)
    _, order = builder.nodes_of("TopK", 2, ranks.value, count, axis=1, largest=0)
    filled = is_left_out.node("Where", tokens.constant(np.array(_PADDING, object)), tokens, dtype=object)
    return filled.node("GatherElements", Array(builder, order, np.int64), axis=1)


def _is_one_of(tokens: Array, words: Sequence[str]) -> Array:
    """Return True for tokens among words."""
    known = tokens.node("Unsqueeze", [2]).node("Equal", np.array(sorted(words), object), dtype=bool)
    return known.any(2)


def _padded_words(estimator: Any, texts: Array) -> Array:
    """Return the characters of each text with a space at both ends of every word, and a token between words."""
    if estimator.ngram_range[0] < 2:
        raise UnsupportedError("analyzer='char_wb' with single characters", where=type(estimator).__name__)
    parts = texts.node(
        "Tokenizer", domain="com.microsoft", mark=0, mincharnum=1, pad_value=_PADDING, tokenexp=r"\s+|\S"
    )
    is_space = parts.node("RegexFullMatch", dtype=bool, pattern=r"\s+")
    space, between, padding = (parts.constant(np.array(one, object)) for one in (" ", _BETWEEN, _PADDING))
    columns = [
        is_space.node("Where", space, parts, dtype=object),
        is_space.node("Where", between, padding, dtype=object),
        is_space.node("Where", space, padding, dtype=object),
    ]
    wide = concatenated([column.node("Unsqueeze", [2]) for column in columns], axis=2).reshape(0, -1)
    row = wide.builder.node("Slice", wide.builder.node("Shape", wide.value), *map(wide.builder.constant, ([0], [1])))
    ends = [
        Array(wide.builder, wide.builder.node("Expand", wide.constant(np.array([pair], object)).value, shape), object)
        for shape in [wide.builder.node("Concat", row, wide.builder.constant([2]), axis=0)]
        for pair in ([_BETWEEN, " "], [" ", _BETWEEN])
    ]
    whole = concatenated([ends[0], wide, ends[1]], axis=1)
    return _compacted(whole, _is_one_of(whole, [_PADDING]))


def _grams(estimator: Any) -> list[tuple[str, ...]]:
    """Return the vocabulary as n-grams, by column."""
    by_column = sorted(estimator.vocabulary_.items(), key=lambda item: int(item[1]))
    if estimator.analyzer == "word":
        return [tuple(term.split(" ")) for term, _ in by_column]
    low = estimator.ngram_range[0] if estimator.analyzer == "char_wb" else 0
    # A word that is shorter than the shortest n-gram counts as a whole.
    return [tuple(term) if len(term) >= low else (_BETWEEN, *term, _BETWEEN) for term, _ in by_column]


@method("transform", "CountVectorizer")
def counts(estimator: Any, texts: Array) -> Array:
    """Translate counts of words or characters."""
    normal = _normalized(estimator, texts)
    if estimator.analyzer == "char_wb":
        tokens = _padded_words(estimator, normal)
    elif estimator.analyzer == "char":
        tokens = _characters(estimator, normal)
    else:
        tokens = _tokens(estimator, normal)
        stop_words = estimator.get_stop_words()
        if stop_words is not None and estimator.ngram_range[1] > 1:
            tokens = _compacted(tokens, _is_one_of(tokens, list(stop_words)))
    grams = _grams(estimator)
    low, high = estimator.ngram_range[0], max([estimator.ngram_range[1], *map(len, grams)])
    pool: list[str] = []
    starts, columns = [], []
    for n in range(1, high + 1):
        starts.append(len(pool))
        for column, gram in enumerate(grams):
            if len(gram) == n:
                pool += gram
                columns.append(column)
    result = tokens.node(
        "TfIdfVectorizer",
        dtype=np.float32,
        max_gram_length=high,
        min_gram_length=low,
        max_skip_count=0,
        mode="TF",
        ngram_counts=starts,
        ngram_indexes=columns,
        pool_strings=pool,
    ).cast(np.float64)
    if estimator.binary:
        result = (result > 0.0).cast(np.float64)
    return result if type(estimator).__name__ == "TfidfVectorizer" else result.cast(estimator.dtype)


@method("transform", "TfidfTransformer")
def weighted(estimator: Any, x: Any) -> Array:
    """Translate weights of terms and rows of norm 1."""
    value = x.cast(np.float64)
    if estimator.sublinear_tf:
        value = where(value > 0.0, np.log(np.maximum(value, 1.0)) + 1.0, 0.0)
    if estimator.use_idf:
        value = value * np.asarray(estimator.idf_, np.float64)
    if estimator.norm is None:
        return value
    norm = (
        np.absolute(value).sum(1, keepdims=True)
        if estimator.norm == "l1"
        else np.sqrt((value * value).sum(1, keepdims=True))
    )
    return value / where(np.equal(norm, 0.0), 1.0, norm)


@method("transform", "TfidfVectorizer")
def tfidf(estimator: Any, texts: Array) -> Array:
    """Translate counts, weighted."""
    return weighted(estimator._tfidf, counts(estimator, texts))
