"""Text vectorizers with patterns, stop words and hashes read texts of all languages as scikit-learn does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.convert.tabular.patterns import portable, whole_run
from sardonyx.errors import UnsupportedError

text = pytest.importorskip("sklearn.feature_extraction.text", reason="scikit-learn is not installed")

TEXTS = np.array(
    [
        "Über den Wolken, abc_def 12",
        "на дворе трава, на траве дрова",
        "l'été — 3ème fois!",
        "",
        "a b a B 東京 x1 über",
        "über",
        "  ﬁnd naïve ÉTÉ  e\u0301 ",
    ],
    object,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "the default": {},
    "words of one letter": {"token_pattern": r"(?u)\b\w+\b"},
    "words of letters alone": {"token_pattern": r"\b[^\W\d_]{2,}\b", "ngram_range": (1, 2)},
    "ASCII words between boundaries": {"token_pattern": r"\b[a-z]+\b"},
    "pieces": {"token_pattern": r"[^\W\d_]+|\d"},
    "no spaces": {"token_pattern": r"\S+"},
    "the split of Python": {"tokenizer": str.split, "token_pattern": None},
    "lower case by a function": {"preprocessor": str.lower},
    "stop words": {"stop_words": ["на", "b"], "ngram_range": (1, 2)},
    "characters": {"analyzer": "char", "ngram_range": (1, 3)},
    "characters of words": {"analyzer": "char_wb", "ngram_range": (1, 2)},
    "letters without accents": {"strip_accents": "unicode", "ngram_range": (1, 2)},
    "letters of ASCII": {"strip_accents": "ascii", "analyzer": "char"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_are_those_of_python(name: str) -> None:
    vectorizer = text.TfidfVectorizer(**OPTIONS[name]).fit(TEXTS)
    report = sardonyx.convert(vectorizer, (TEXTS,)).report
    assert report.verdict.status == "proved", report.verdict.reason


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alternate_sign": False, "norm": None, "ngram_range": (1, 3), "dtype": np.float32},
        {"analyzer": "char", "ngram_range": (2, 2), "norm": "l1"},
        {"binary": True, "stop_words": ["на"]},
    ],
)
def test_hashes_are_those_of_scikit_learn(options: dict[str, Any]) -> None:
    vectorizer = text.HashingVectorizer(n_features=32, **options)
    report = sardonyx.convert(vectorizer, (TEXTS,)).report
    assert report.verdict.status == "proved", report.verdict.reason


@pytest.mark.parametrize("pattern", [r"\w", r"\d", r"[^\W\d_]", r"\S", r"[\w.-]", r"[\]\d]", r"[^]\s]", r"\."])
def test_a_portable_class_has_the_same_members(pattern: str) -> None:
    characters = "".join(map(chr, range(0x3000))) + "東京😀"
    assert re.findall(portable(pattern), characters, re.DOTALL) == re.findall(pattern, characters, re.DOTALL)


def test_patterns_with_another_meaning_in_re2_are_refused() -> None:
    for pattern in (r"\b(\w{2})\w*\b", r"(?<=a)b", r"\ba", r"(a)"):
        with pytest.raises(UnsupportedError, match="groups, boundaries"):
            portable(pattern)


def test_runs_between_boundaries_have_word_characters_alone() -> None:
    assert whole_run(r"(?u)\b[a-z]{2,}\b") == "[a-z]{2,}"
    assert whole_run(r"\b[a-z-]+\b") is None
    assert whole_run(r"\ba|b\b") is None
