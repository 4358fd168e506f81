"""Values that engines and clients pass: refused by name unless the element type holds them, in all front ends."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.distributed import Image, Predictor
from sardonyx.distributed.ray import Replica
from sardonyx.errors import FeedError, OptionError
from sardonyx.mlflow import PyFunc

HEADER = '<ir_version: 9, opset_import: ["": 18]> net '
INTEGERS = HEADER + "(int64[N] x) => (int64[N] y) <int64[1] c = {2}> { y = Mul(x, c) }"
FLOATS = HEADER + "(float[N] x) => (float[N] y) <float[1] c = {2.0}> { y = Mul(x, c) }"
ROWS = HEADER + "(float[N, L] x) => (float[N, L] y) { y = Neg(x) }"
TOTAL = HEADER + "(float[N] x) => (float y) { y = ReduceSum<keepdims = 0>(x) }"
TEXTS = HEADER + "(string[N] x) => (string[N] y) { y = Identity(x) }"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_IMAGES", str(tmp_path / "images"))


def session(text: str) -> Session:
    return Session(onnx.parser.parse_model(text), compile="off")


@functools.cache
def predictor(text: str) -> Predictor:
    return Predictor(Image.compile(onnx.parser.parse_model(text)))


@functools.cache
def replica() -> Replica:
    return Replica(onnx.parser.parse_model(INTEGERS).SerializeToString())


def objects(*values: Any) -> np.ndarray:
    column = np.empty(len(values), object)
    column[:] = values
    return column


WRONG_INTEGERS: dict[str, Any] = {
    "a missing float": np.array([1.0, np.nan]), "a fraction": np.array([1.7]), "a list of fractions": [1.7],
    "too large": [2**70], "too large among objects": objects(2**70), "beyond int64": np.array([2**64 - 1], np.uint64),
    "a fraction among objects": objects(1, 1.7), "a missing object": objects(1, None), "infinity": [np.inf],
    "texts": ["a"], "ragged": [[1], [1, 2]], "complex": np.array([1 + 2j]), "None": None, "a dictionary": {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize("values", WRONG_INTEGERS.values(), ids=WRONG_INTEGERS)
def test_values_that_are_no_integers_are_refused_by_name(values: Any) -> None:
    function = PyFunc(session(INTEGERS))
    for call in (function.predict, predictor(INTEGERS)):
        with pytest.raises(FeedError):
            call({"x": values})
    with pytest.raises(FeedError):
        replica().answer({"inputs": {"x": values}})


def test_whole_floats_are_integers_and_missing_numbers_are_nan() -> None:
    assert predictor(INTEGERS)({"x": np.array([1.0, 3.0])})["y"].tolist() == [2, 6]
    assert replica().answer({"inputs": {"x": [1.0, 3]}})["outputs"]["y"] == [2, 6]
    result = predictor(FLOATS)({"x": objects(None, 1.0)})["y"]
    assert np.isnan(result[0]) and result[1] == 2


@pytest.mark.parametrize("values", [objects(["a"], [1.0, 2.0]), objects(None, [1.0]), objects([[1.0], [1, 2]], [1.0])])
def test_rows_that_cannot_be_read_are_refused_by_name(values: Any) -> None:
    with pytest.raises(FeedError, match="x: "):
        predictor(ROWS)({"x": values})


@pytest.mark.parametrize("values", [None, np.float32(3), 3.0, "text", {"a": 1}])
def test_a_column_without_rows_is_refused_by_name(values: Any) -> None:
    with pytest.raises(FeedError, match="x: expected rows"):
        predictor(FLOATS)({"x": values})


def test_columns_of_several_lengths_are_refused() -> None:
    two = predictor(HEADER + "(float[N] a, float[N] b) => (float[N] y) { y = Add(a, b) }")
    with pytest.raises(FeedError, match="b: expected a column of 2 rows, got 1"):
        two({"a": objects([1.0], [1.0, 2.0]), "b": objects([1.0])})


@pytest.mark.parametrize("values", [[], np.empty(0, object), np.zeros(0)])
def test_an_empty_column_is_of_the_type_of_the_input(values: Any) -> None:
    for text in (TEXTS, FLOATS, ROWS):
        assert len(predictor(text)({"x": values})["y"]) == 0
        assert len(PyFunc(session(text)).predict({"x": values})["y"]) == 0


def test_elements_that_are_no_texts_are_refused() -> None:
    assert predictor(TEXTS)({"x": ["a", "b"]})["y"].tolist() == ["a", "b"]
    for wrong in (["a", None], [1.5], np.ones(2)):
        with pytest.raises(FeedError, match="x: expected texts"):
            predictor(TEXTS)({"x": wrong})


def test_an_output_without_axes_is_repeated_for_each_row() -> None:
    assert predictor(TOTAL)({"x": np.array([1.0, 2.0])})["y"].tolist() == [3, 3]


def test_weights_of_integers_are_not_rounded() -> None:
    with pytest.raises(OptionError, match=r"c: expected int64 values, got 1\.7"):
        replica().reconfigure({"weights": {"c": [1.7]}})
    with pytest.raises(OptionError, match="c: "):
        replica().reconfigure({"weights": {"c": [2**70]}})


def test_frames_and_series_are_predicted() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    function = PyFunc(session(FLOATS))
    for name in ("x", None):
        series = pandas.Series([1.0, 2.0], index=[5, 7], name=name)
        answer = function.predict(series)
        assert answer["y"].tolist() == [2, 4] and answer.index.tolist() == [5, 7]
    frame = pandas.DataFrame({"a": pandas.array([1, None], "Int64"), "b": [1.0, 2.0]})
    answer = PyFunc(session(ROWS)).predict(frame)["y"]
    assert answer[0].tolist() == [-1, -1] and np.isnan(answer[1][0])
    assert PyFunc(session(TOTAL)).predict(pandas.DataFrame({"x": [1.0, 2.0]}))["y"].tolist() == [3, 3]
    assert len(function.predict(pandas.DataFrame({"x": []}))) == 0
    for wrong in (pandas.DataFrame({"x": ["a"]}), pandas.DataFrame([[1.0, 2.0]], columns=["x", "x"]), None, 5):
        with pytest.raises(FeedError):
            function.predict(wrong)
    with pytest.raises(FeedError, match="rows of one shape"):
        PyFunc(session(ROWS)).predict(pandas.DataFrame({"x": [[1.0], [1.0, 2.0]]}))
