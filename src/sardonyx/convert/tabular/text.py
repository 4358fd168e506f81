"""Text vectorizers: tokens by a regular expression, counted as n-grams of a vocabulary."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, where
from sardonyx.convert.tabular.methods import method
from sardonyx.errors import UnsupportedError

WORDS = r"(?u)\b\w\w+\b"
"""The default pattern: words of at least two characters."""

_PADDING = "\x00"


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


def _grams(estimator: Any) -> list[tuple[str, ...]]:
    """Return the vocabulary as n-grams, by column."""
    by_column = sorted(estimator.vocabulary_.items(), key=lambda item: int(item[1]))
    if estimator.analyzer == "word":
        return [tuple(term.split(" ")) for term, _ in by_column]
    return [tuple(term) for term, _ in by_column]


@method("transform", "CountVectorizer")
def counts(estimator: Any, texts: Array) -> Array:
    """Translate counts of words or characters."""
    if estimator.analyzer == "char_wb":
        raise UnsupportedError("analyzer='char_wb' pads every word", where=type(estimator).__name__)
    if estimator.analyzer == "word" and estimator.stop_words is not None and estimator.ngram_range[1] > 1:
        raise UnsupportedError("n-grams of several words across stop words", where=type(estimator).__name__)
    normal = _normalized(estimator, texts)
    tokens = _tokens(estimator, normal) if estimator.analyzer == "word" else _characters(estimator, normal)
    grams = _grams(estimator)
    low, high = estimator.ngram_range
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
