"""Dictionaries of features and bags of labels become columns; sparse codes are those of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import OptionError, SardonyxError

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.decomposition import DictionaryLearning, SparseCoder  # noqa: E402
from sklearn.feature_extraction import DictVectorizer, FeatureHasher  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import MultiLabelBinarizer  # noqa: E402

RNG = np.random.default_rng(0)
MIXED = [
    {"age": float(a), "c": str(c)}
    for a, c in zip(RNG.normal(0, 1, 40), RNG.choice(["x", "y=1", "zz"], 40), strict=True)
]
NUMBERS = [{"a": float(a), "b": 1} for a in RNG.normal(0, 1, 40)]
BAGS = [[str(label) for label in RNG.choice(["a", "b", "c", "d"], 1 + i % 3, replace=False)] for i in range(40)]
MATRIX_OF_TEXTS = RNG.choice(np.array(["red", "blue"], object), (20, 2))
WHOLE = [[i % 5, 5 + i % 2] for i in range(40)]
TARGET = np.arange(40) % 2

CASES: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "texts and numbers ahead of a classifier": (
        lambda: make_pipeline(DictVectorizer(), LogisticRegression()),
        MIXED,
        None,
    ),
    "numbers": (lambda: DictVectorizer(sparse=False, dtype=np.float32), NUMBERS, None),
    "another separator": (lambda: DictVectorizer(separator=":", sort=False), MIXED, MIXED[:6]),
    "hashes of keys": (lambda: FeatureHasher(16), MIXED, MIXED[:6]),
    "hashes without signs": (lambda: FeatureHasher(8, alternate_sign=False), MIXED, (MIXED[:6],)),
    "hashes of bags": (lambda: FeatureHasher(8, input_type="string"), BAGS, None),
    "hashes of a matrix": (lambda: FeatureHasher(8, input_type="string"), MATRIX_OF_TEXTS, (MATRIX_OF_TEXTS,)),
    "labels of texts": (MultiLabelBinarizer, BAGS, None),
    "labels of integers": (MultiLabelBinarizer, WHOLE, None),
}


def fitted(build: Callable[[], Any], rows: Any) -> Any:
    estimator = build()
    return estimator.fit(rows, TARGET) if hasattr(estimator, "steps") else estimator.fit(rows)


@pytest.mark.parametrize("name", CASES)
def test_rows_without_a_fixed_length_are_proved(name: str) -> None:
    build, rows, examples = CASES[name]
    result = sardonyx.convert(fitted(build, rows), examples)
    assert result.report.verdict.status == "proved", result.report.verdict.reason


def test_a_missing_key_is_nan_or_an_empty_text() -> None:
    estimator = fitted(lambda: DictVectorizer(sparse=False), MIXED)
    session = sardonyx.Session(sardonyx.convert(estimator).model)
    feeds = {"age": np.array([[np.nan], [2.0]]), "c": np.array([["x"], [""]], object)}
    expected = estimator.transform([{"c": "x"}, {"age": 2.0}])
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)


def test_rows_that_no_class_records_are_required() -> None:
    with pytest.raises(OptionError, match="keys of the dictionaries are not known"):
        sardonyx.convert(FeatureHasher(8).fit(MIXED))


def test_lists_of_texts_in_a_dictionary_are_refused_by_key() -> None:
    rows = [{"tags": ["a", "b"]}]
    with pytest.raises(SardonyxError, match="key 'tags' has values of type list"):
        sardonyx.convert(DictVectorizer().fit(rows), rows)


ATOMS = RNG.normal(0, 1, (10, 6)) / np.sqrt(6)
MATRIX = RNG.normal(0, 1, (30, 6))


@pytest.mark.parametrize(
    "estimator",
    [
        DictionaryLearning(4, max_iter=2, random_state=0),
        SparseCoder(ATOMS, transform_n_nonzero_coefs=3, split_sign=True),
        SparseCoder(ATOMS, transform_n_nonzero_coefs=6),
        SparseCoder(ATOMS, transform_algorithm="lasso_lars", transform_alpha=0.2),
        SparseCoder(ATOMS, transform_algorithm="lasso_cd", transform_alpha=0.2, positive_code=True),
        SparseCoder(ATOMS, transform_algorithm="threshold", transform_alpha=0.2),
    ],
    ids=["pursuit", "three atoms by sign", "six atoms", "least angles", "descent", "threshold"],
)
def test_sparse_codes_are_those_of_scikit_learn(estimator: Any) -> None:
    estimator.fit(MATRIX)
    result = sardonyx.convert(estimator)
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    codes = sardonyx.Session(result.model).run(None, {"X": MATRIX})[0]
    np.testing.assert_allclose(codes, estimator.transform(MATRIX), atol=1e-4)


def test_a_path_of_least_angles_is_refused_with_the_algorithms_that_convert() -> None:
    coder = SparseCoder(ATOMS, transform_algorithm="lars", transform_n_nonzero_coefs=2).fit(MATRIX)
    with pytest.raises(SardonyxError, match="least angles") as caught:
        sardonyx.convert(coder)
    assert "lasso_lars" in caught.value.remedy
