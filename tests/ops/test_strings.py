"""Strings: concatenated, split, normalized, matched by RE2 patterns, counted as n-grams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.errors import InvalidModelError, SardonyxError, ShapeError, UnsupportedError
from sardonyx.ops.registry import find


def words(*texts: str) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def run(name: str, *arrays: np.ndarray, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    operator = find("", name, 22)
    assert operator is not None
    with running(RunContext()):
        values = [constant(a, t.STRING if a.dtype == object else None) for a in arrays]
        results = operator(values, attributes, opset=22, outputs=outputs)
        return [value.known for value in results if value is not None]


def test_concat_broadcasts() -> None:
    (actual,) = run("StringConcat", words("a", "b").reshape(2, 1), words("x", "y", ""))
    assert actual.tolist() == [["ax", "ay", "a"], ["bx", "by", "b"]]
    (actual,) = run("StringConcat", np.array("é", object), np.array("!", object))
    assert actual.shape == () and actual[()] == "é!"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [["a", "b", "c,,d"], ["x", "", ""], ["", "", ""]]),
        ({"delimiter": ","}, [["a  b c", "", "d"], [" x ", "", ""], ["", "", ""]]),
        ({"maxsplit": 1}, [["a", "b c,,d"], ["x", ""], ["", ""]]),
        ({"delimiter": ",", "maxsplit": 1}, [["a  b c", ",d"], [" x ", ""], ["", ""]]),
    ],
)
def test_split_pads_to_the_longest(attributes: dict[str, Any], expected: list[list[str]]) -> None:
    parts, counts = run("StringSplit", words("a  b c,,d", " x ", ""), outputs=2, **attributes)
    assert parts.tolist() == expected
    empty = 1 if "delimiter" in attributes else 0  # Between no delimiters lies one string, the empty one.
    assert counts.tolist() == [len(expected[0]), 1, empty]


def test_split_of_nothing() -> None:
    parts, counts = run("StringSplit", np.empty((0, 2), object), outputs=2)
    assert parts.shape == (0, 2, 0) and counts.shape == (0, 2) and counts.dtype == np.int64


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, ["The", "Straße", "the"]),
        ({"stopwords": ("THE",)}, ["Straße"]),
        ({"stopwords": ("the",), "is_case_sensitive": 1}, ["The", "Straße"]),
        ({"case_change_action": "UPPER"}, ["THE", "STRASSE", "THE"]),
        ({"case_change_action": "LOWER", "stopwords": ("x",)}, ["the", "straße", "the"]),
        ({"stopwords": ("the", "straße")}, [""]),
    ],
)
def test_normalizer(attributes: dict[str, Any], expected: list[str]) -> None:
    x = words("The", "Straße", "the")
    assert run("StringNormalizer", x, **attributes)[0].tolist() == expected
    assert run("StringNormalizer", x[None], **attributes)[0].tolist() == [expected]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (r"[[:alpha:]]+", "one"), (r"\w+", "one"), (r"\Qa.b\E?", "a.b"), (r"a\.b\z", "a.b"), (r"(?U)o.*", "one"),
        (r"[]x]+", "]x"), (r"\x{6f}ne", "one"), (r"(?<n>o)(?P<m>n)e", "one"), (r"(?i)ONE", "one"), (r"[\s]", "\n"),
        (r"[a&&.b]+", "a.b"), (r"é.*", "é"), (r"", ""),
    ],
)  # fmt: skip
def test_patterns_match_whole_strings(pattern: str, matched: str) -> None:
    x = words("one", "a.b", "]x", "é", "\n", "\v", "")
    assert [w for w, hit in zip(x, run("RegexFullMatch", x, pattern=pattern)[0], strict=True) if hit] == [matched]


@pytest.mark.parametrize(
    ("pattern", "error"),
    [(r"(a)\1", InvalidModelError), (r"(?=a)a", InvalidModelError), (r"\pL", UnsupportedError), ("(", UnsupportedError),
     (r"[[:^alpha:]]", UnsupportedError), (r"a{2,1}", UnsupportedError)],
)  # fmt: skip
def test_patterns_of_other_syntax_are_refused(pattern: str, error: type[SardonyxError]) -> None:
    with pytest.raises(error):
        run("RegexFullMatch", words("a"), pattern=pattern)


GRAMS: dict[str, Any] = {
    "ngram_counts": (0, 2), "ngram_indexes": (1, 0, 3), "min_gram_length": 1, "max_gram_length": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "skips", "expected"),
    [
        ("TF", 0, [[2, 3, 0, 0], [0, 0, 0, 2]]),
        ("TF", 1, [[2, 3, 0, 2], [0, 0, 0, 3]]),
        ("IDF", 1, [[0.5, 2, 0, 4], [0, 0, 0, 4]]),
        ("TFIDF", 1, [[1, 6, 0, 8], [0, 0, 0, 12]]),
    ],
)
@pytest.mark.parametrize("strings", [False, True])
def test_ngrams_are_counted_and_weighted(mode: str, skips: int, expected: list[list[float]], strings: bool) -> None:
    """7 and 8 alone, and equal neighbours: 7 7 in one row, 3 3 in the other."""
    for row, gram, counts in (([7, 8, 7, 8, 7], 7, expected[0]), ([9, 5, 3, 3, 3], 3, expected[1])):
        pool: tuple[Any, ...] = (7, 8, gram, gram)
        x = np.array(row)
        options: dict[str, Any] = {"mode": mode, "max_skip_count": skips, "weights": (2, 0.5, 4), **GRAMS}
        options["pool_strings" if strings else "pool_int64s"] = tuple(map(str, pool)) if strings else pool
        x = words(*map(str, row)) if strings else x
        (actual,) = run("TfIdfVectorizer", x, **options)
        assert actual.dtype == np.float32 and actual.tolist() == counts
        (rows,) = run("TfIdfVectorizer", np.stack([x, x]), **options)
        assert rows.tolist() == [counts, counts]


def test_mismatched_inputs_are_refused() -> None:
    common: dict[str, Any] = {"mode": "TF", "max_skip_count": 0, **GRAMS}
    with pytest.raises(InvalidModelError, match="n-grams of length 2"):
        run("TfIdfVectorizer", np.array([1]), pool_int64s=(7, 8, 7), **common)
    with pytest.raises(InvalidModelError, match="mode"):
        run("TfIdfVectorizer", np.array([1]), pool_int64s=(7, 8, 7, 7), **{**common, "mode": "DF"})
    with pytest.raises(ShapeError):
        run("StringNormalizer", words("a", "b").reshape(2, 1))
    with pytest.raises(InvalidModelError):
        run("StringNormalizer", words("a"), case_change_action="TITLE")


def test_traced_equals_eager() -> None:
    def body(x: Value, y: Value) -> list[Value]:
        concat, split = find("", "StringConcat", 20), find("", "StringSplit", 20)
        assert concat is not None and split is not None
        (joined,) = concat([x, y], {}, opset=20)
        parts, counts = split([joined], {"delimiter": "b"}, opset=20, outputs=2)
        return [v for v in (joined, parts, counts) if v is not None]

    n = Dim.symbol("N")
    function = trace("g", body, [t.TensorType(t.STRING, (n, 1)), t.TensorType(t.STRING, (3,))])
    arrays = [words("a", "ab").reshape(2, 1), words("x", "yby", "")]
    with running(RunContext()):
        arguments = [constant(a, t.STRING) for a in arrays]
        for actual, expected in zip(evaluate(function, arguments), body(*arguments), strict=True):
            assert actual.known.tolist() == expected.known.tolist() and actual.type == expected.type
