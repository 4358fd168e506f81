"""Text vectorizers: tokens by a regular expression, counted as n-grams of a vocabulary."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder
from sardonyx.convert.tabular.arrays import Array, concatenated, where
from sardonyx.convert.tabular.methods import method
from sardonyx.convert.tabular.patterns import WORD_RUN, portable, whole_run
from sardonyx.errors import UnsupportedError

WORDS = r"(?u)\b\w\w+\b"
"""The default pattern: words of at least two characters."""

_PADDING = "\x00"
_BETWEEN = "\x01"
"""A token between words, which no n-gram of a word holds."""
_MOST_TOKENS = 1 << 40


def _normalized(estimator: Any, texts: Array) -> Array:
    """Return texts as the vectorizer's preprocessor gives them, [rows]."""
    prepares = estimator.preprocessor
    if (
        prepares not in (None, str.lower)
        or estimator.tokenizer not in (None, str.split)
        or callable(estimator.analyzer)
    ):
        raise UnsupportedError(
            "a function of Python as analyzer, preprocessor or tokenizer",
            where=type(estimator).__name__,
            remedy="Use a token_pattern, str.lower or str.split.",
        )
    flat = texts.ravel()
    if prepares is not None or estimator.lowercase:
        flat = flat.node("StringNormalizer", case_change_action="LOWER")
    if estimator.strip_accents is None or prepares is not None:
        return flat
    if estimator.strip_accents not in ("unicode", "ascii"):
        raise UnsupportedError("a function of Python as strip_accents", where=type(estimator).__name__)
    return _without_accents(flat, estimator.strip_accents == "ascii")


def _without_accents(texts: Array, only_ascii: bool) -> Array:
    """Return texts whose letters have no accents: every character replaced, and joined again by a loop."""
    parts = _split(texts, portable(r"\s|\S"))
    old, new = _replaced_characters(only_ascii)
    known = parts.node(
        "LabelEncoder", domain="ai.onnx.ml", keys_strings=old, values_strings=new, default_string=_BETWEEN
    )
    parts = _is_one_of(known, [_BETWEEN]).node("Where", parts, known, dtype=object)
    if only_ascii:
        is_plain = parts.node("RegexFullMatch", dtype=bool, pattern=r"[\x00-\x7f]*")
        parts = is_plain.node("Where", parts, parts.constant(np.array("", object)), dtype=object)
    is_padding = _is_one_of(parts, [_PADDING])
    parts = is_padding.node("Where", parts.constant(np.array("", object)), parts, dtype=object)
    return _concatenation(parts)


def _concatenation(parts: Array) -> Array:
    """Return texts [rows, parts] joined along the parts, [rows]."""
    builder = parts.builder
    rows = builder.node("Shape", parts.value, start=0, end=1)
    empty = builder.node("Expand", parts.constant(np.array("", object)).value, rows)
    columns = builder.node("Squeeze", builder.node("Shape", parts.value, start=1, end=2), builder.constant([0]))
    inner = GraphBuilder(builder.names)
    number, condition, text = (
        ir.Value(name=builder.names.fresh(name), type=ir.TensorType(kind), shape=ir.Shape(shape))
        for name, kind, shape in (
            ("part", ir.DataType.INT64, []),
            ("continues", ir.DataType.BOOL, []),
            ("text", ir.DataType.STRING, [None]),
        )
    )
    column = inner.node("Gather", parts.value, number, axis=1)
    longer, goes_on = inner.node("StringConcat", text, column), inner.node("Identity", condition)
    body = inner.graph([number, condition, text], [goes_on, longer], "joined")
    return Array(builder, builder.node("Loop", columns, None, empty, body=body), object)


@functools.lru_cache(maxsize=2)
def _replaced_characters(only_ascii: bool) -> tuple[list[str], list[str]]:
    """Return the characters that lose accents, and what remains of each."""
    old, new = [], []
    for code in range(1, sys.maxunicode + 1):
        character = chr(code)
        if 0xD800 <= code < 0xE000:
            continue
        plain = unicodedata.normalize("NFKD", character)
        rest = "".join(one for one in plain if not unicodedata.combining(one))
        rest = plain.encode("ascii", "ignore").decode() if only_ascii else rest
        # What is not ASCII and has no other form is left out by the range of characters.
        if rest != character and not (only_ascii and not rest):
            old.append(character)
            new.append(rest)
    return old, new


def _split(texts: Array, pattern: str) -> Array:
    """Return matches of a portable pattern in each text, [rows, most matches]."""
    return texts.node("Tokenizer", domain="com.microsoft", mark=0, mincharnum=1, pad_value=_PADDING, tokenexp=pattern)


def _tokens(estimator: Any, texts: Array) -> Array:
    """Return tokens of each text, [rows, most tokens], filled up with a character that no text has."""
    pattern = r"\S+" if estimator.tokenizer is str.split else estimator.token_pattern
    inner = whole_run(pattern)
    if pattern == WORDS or inner == WORD_RUN:
        return _split(texts, portable(r"\w\w+" if pattern == WORDS else WORD_RUN))
    if inner is None:
        return _split(texts, portable(pattern))
    runs = _split(texts, portable(WORD_RUN))
    is_token = runs.node("RegexFullMatch", dtype=bool, pattern=portable(inner))
    return _compacted(runs, np.logical_not(is_token) | _is_one_of(runs, [_PADDING]))


def _characters(estimator: Any, texts: Array) -> Array:
    """Return the characters of each text; a run of white space is one space."""
    parts = _split(texts, portable(r"\s\s+|\s|\S"))
    is_run = parts.node("RegexFullMatch", dtype=bool, pattern=portable(r"\s\s+"))
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
    parts = _split(texts, portable(r"\s+|\S"))
    is_space = parts.node("RegexFullMatch", dtype=bool, pattern=portable(r"\s+"))
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


def _analyzed(estimator: Any, texts: Array) -> Array:
    """Return the words or characters of which n-grams consist."""
    normal = _normalized(estimator, texts)
    if estimator.analyzer == "char_wb":
        return _padded_words(estimator, normal)
    if estimator.analyzer == "char":
        return _characters(estimator, normal)
    tokens = _tokens(estimator, normal)
    stop_words = estimator.get_stop_words()
    # Words of the vocabulary are no stop words, but n-grams of words reach across these.
    is_counted = estimator.ngram_range[1] == 1 and hasattr(estimator, "vocabulary_")
    if stop_words is None or is_counted:
        return tokens
    return _compacted(tokens, _is_one_of(tokens, list(stop_words)))


@method("transform", "CountVectorizer")
def counts(estimator: Any, texts: Array) -> Array:
    """Translate counts of words or characters."""
    tokens = _analyzed(estimator, texts)
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
    is_alone = estimator.analyzer == "char_wb" and low == 1 and (" ",) in grams
    if is_alone:
        # Empty words at the ends of a text have spaces here that scikit-learn has not.
        position = grams.index((" ",))
        pool_position = pool.index(" ")
        del pool[pool_position], columns[columns.index(position)]
        starts = [start - (start > pool_position) for start in starts]
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
    if is_alone:
        words = _split(_normalized(estimator, texts), portable(r"\S+"))
        count = np.logical_not(_is_one_of(words, [_PADDING])).sum(1, keepdims=True).cast(np.float64)
        result = where(np.arange(len(grams)) == position, count * 2.0, result)
    if estimator.binary:
        result = (result > 0.0).cast(np.float64)
    return result if type(estimator).__name__ == "TfidfVectorizer" else result.cast(estimator.dtype)


@method("transform", "HashingVectorizer")
def hashed(estimator: Any, texts: Array) -> Array:
    """Translate counts of n-grams by their hashes."""
    if estimator.analyzer == "char_wb":
        raise UnsupportedError("analyzer='char_wb' of hashes", where=type(estimator).__name__)
    tokens = _analyzed(estimator, texts)
    width = int(estimator.n_features)
    shape = concatenated([tokens.node("Shape", dtype=np.int64, start=0, end=1), tokens.constant([width], np.int64)])
    total: Any = tokens.constant(0.0, np.float64).node("Expand", shape)
    present = total
    for n in range(estimator.ngram_range[0], estimator.ngram_range[1] + 1):
        grams, is_gram = _joined(tokens, n, " " if estimator.analyzer == "word" else "")
        code = grams.node("MurmurHash3", domain="com.microsoft", dtype=np.int32, seed=0, positive=0).cast(np.int64)
        index = np.absolute(code) % np.int64(width)
        count = is_gram.cast(np.float64)
        sign = where(code < np.int64(0), -1.0, 1.0) if estimator.alternate_sign else 1.0
        total = total.node("ScatterElements", index, count * sign, axis=1, reduction="add")
        present = present.node("ScatterElements", index, count, axis=1, reduction="max")
    total = present if estimator.binary else total
    return (_unit_rows(total, estimator.norm) if estimator.norm else total).cast(estimator.dtype)


def _joined(tokens: Array, n: int, between: str) -> tuple[Array, Array]:
    """Return n-grams as texts, and True for those without padding."""
    pieces = [tokens.node("Slice", [i], [i - n + 1 or np.iinfo(np.int64).max], [1]) for i in range(n)]
    is_gram: Any = True
    text = pieces[0]
    for i, piece in enumerate(pieces):
        is_gram = np.logical_and(np.logical_not(_is_one_of(piece, [_PADDING])), is_gram)
        if i:
            text = text.node("StringConcat", text.constant(np.array(between, object))).node("StringConcat", piece)
    return text, is_gram


def _unit_rows(value: Array, norm: str) -> Array:
    """Return rows of norm 1; rows of zeros stay."""
    squares = np.absolute(value) if norm == "l1" else value * value
    total = squares.sum(1, keepdims=True)
    length = total if norm == "l1" else np.sqrt(total)
    return value / where(np.equal(length, 0.0), 1.0, length)


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
    return _unit_rows(value, estimator.norm)


@method("transform", "TfidfVectorizer")
def tfidf(estimator: Any, texts: Array) -> Array:
    """Translate counts, weighted."""
    return weighted(estimator._tfidf, counts(estimator, texts))
