"""Cases of strings and n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import Case, Draw
from tests.ops.generators.table import draws


@draws("StringConcat")
def concat(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    return Case(name, 20, [draw.array(shape, object), draw.array(draw.partner(shape), object)])


@draws("StringSplit")
def split(draw: Draw, name: str) -> Case:
    options = draw.options(delimiter=draw.pick(" ", "b", ""), maxsplit=draw.integer(1, 2))
    return Case(name, 20, [draw.array(draw.shape(1, 3), object)], options, 2)


@draws("StringNormalizer")
def normalizer(draw: Draw, name: str) -> Case:
    options: dict[str, Any] = draw.options(
        case_change_action=draw.pick("NONE", "LOWER", "UPPER"), is_case_sensitive=draw.integer(0, 1),
        stopwords=["a", "B B"],
    )  # fmt: skip
    words = draw.numbers.choice(["a", "b b", "A", "Word"], draw.pick((3,), (1, 4)))
    return Case(name, 10, [np.asarray(words, object)], options)


@draws("RegexFullMatch")
def match(draw: Draw, name: str) -> Case:
    pattern = draw.pick("a*", "[a-z ]+", "(a|b b)", r"\w+", ".*", "")
    return Case(name, 20, [draw.array(draw.shape(), object)], {"pattern": pattern})


@draws("TfIdfVectorizer")
def ngrams(draw: Draw, name: str) -> Case:
    options: dict[str, Any] = {
        "mode": draw.pick("TF", "IDF", "TFIDF"), "min_gram_length": 1, "max_gram_length": draw.integer(1, 2),
        "max_skip_count": draw.integer(0, 2), "ngram_counts": [0, 3], "pool_int64s": [1, 2, 3, 1, 2, 2, 3],
        "ngram_indexes": [0, 1, 2, 3, 4],
    }  # fmt: skip
    if draw.chance(0.5):
        options["weights"] = [0.5, 2.0, 1.0, 3.0, 0.1]
    return Case(name, 9, [draw.array(draw.pick((6,), (2, 5)), draw.pick(np.int32, np.int64), 1, 4)], options)
