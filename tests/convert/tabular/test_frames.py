"""Functions and transformers of users over data frames are traced column by column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import SardonyxError

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder  # noqa: E402

RNG = np.random.default_rng(0)
FRAME = pandas.DataFrame(
    {
        "age": RNG.normal(40, 12, 60).round(1),
        "hours": RNG.integers(0, 60, 60),
        "part": np.where(RNG.random(60) < 0.2, np.nan, RNG.random(60)),
        "city": RNG.choice(["Paris", "London", "Oslo"], 60),
    }
)
TARGET = FRAME["age"].to_numpy() * 0.1 + RNG.normal(0, 1, 60)


def _assigned(frame: Any) -> Any:
    frame = frame.copy()
    frame["ratio"] = frame["age"] / (frame.hours.abs() + 1)
    frame.loc[frame["hours"] > 30, "hours"] = 30
    frame[["age", "hours"]] = frame[["age", "hours"]].clip(lower=5)
    frame["one"] = 1
    return frame.drop(columns=["city", "part"])


def _swapped(frame: Any) -> Any:
    """Columns are assigned by position, whatever their names."""
    frame = frame[["age", "hours"]].copy()
    frame[["age", "hours"]] = frame[["hours", "age"]]
    return frame


def _branch(frame: Any) -> Any:
    return frame[["age"]] if frame["age"] > 0 else frame[["hours"]]


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "columns by name": lambda d: d[["age", "hours"]],
    "a column as an attribute": lambda d: d.age.to_frame(),
    "assignments": _assigned,
    "a new column": lambda d: d.assign(x=d["age"] * d["hours"], y=lambda e: e["x"] + 1)[["x", "y"]],
    "missing values": lambda d: pandas.concat(
        [d["part"].fillna(0), d["part"].isna().astype(float).rename("m")], axis=1
    ),
    "missing values by column": lambda d: d[["part", "age"]].fillna({"part": -1}),
    "a table of texts": lambda d: d["city"].map({"Paris": 1, "London": 2, "Oslo": 3}).to_frame(),
    "texts compared": lambda d: (d[["city"]] == "Paris").astype(float),
    "a choice": lambda d: pandas.DataFrame({"a": np.where(d["city"] == "Oslo", d["age"], 0), "b": d["hours"]}),
    "columns of another frame": _swapped,
    "columns by type": lambda d: d.select_dtypes(["number", "bool"])[["hours", "age"]],
    "chosen columns of a new frame": lambda d: pandas.DataFrame(
        {"a": d["age"], "b": d["hours"], "c": d["part"]}, columns=["b", "a"]
    ),
    "membership": lambda d: d["city"].isin(["Paris", "Oslo"]).astype(int).to_frame(),
    "parts of texts": lambda d: pandas.DataFrame(
        {"a": d["city"].str.contains("on").astype(float), "b": d["city"].str.startswith("P").astype(float)}
    ),
    "bins": lambda d: pandas.DataFrame({"a": pandas.cut(d["age"], [-99, 30, 50, 199], labels=False), "b": d["hours"]}),
    "a function by column": lambda d: d[["age", "hours"]].apply(lambda c: np.log1p(c.abs())),
    "a function by row": lambda d: d.apply(lambda row: row["age"] + row["hours"] * 2, axis=1).to_frame(),
    "a function by element": lambda d: d["age"].apply(lambda v: v**2).to_frame(),
    "reductions of rows": lambda d: pandas.concat(
        [d[["age", "part"]].mean(axis=1).rename("a"), d[["age", "hours"]].max(axis=1).rename("b")], axis=1
    ),
    "types": lambda d: d.select_dtypes(include="number")[["age"]].astype(int),
    "positions": lambda d: d.iloc[:, [0, 1]] - d.loc[:, "age":"hours"].min(axis=1).to_frame().values,
    "arrays of numpy": lambda d: np.c_[d["age"], d[["hours"]].to_numpy(), np.sqrt(d["age"].abs())],
    "replaced values": lambda d: d[["hours"]].replace({0: -1, 1: -2}).where(d[["hours"]] < 50, 50),
    "methods of operators": lambda d: d[["age", "hours"]].mul(2).sub(d["age"], axis=0).rename(columns={"age": "b"}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_function_of_a_frame_is_proved(name: str) -> None:
    pipeline = make_pipeline(FunctionTransformer(NUMBERS[name]), Ridge()).fit(FRAME, TARGET)
    report = sardonyx.convert(pipeline, FRAME[:9]).report
    assert report.verdict.status == "proved", report.verdict.reason


TEXTS: dict[str, Callable[[Any], Any]] = {
    "small letters": lambda d: d.assign(city=d["city"].str.lower()),
    "rare texts": lambda d: d.assign(city=d["city"].where(d["city"].isin(["Paris"]), "other")),
    "replaced texts": lambda d: d.assign(city=d["city"].replace({"Oslo": "Bergen"})),
    "texts of bins": lambda d: d.assign(city=pandas.cut(d["age"], [-99, 40, 199], labels=["young", "old"]).astype(str)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_frame_of_texts_and_numbers_is_encoded_by_the_next_step(name: str) -> None:
    encoder = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"]), ("passthrough", ["age"]))
    pipeline = make_pipeline(FunctionTransformer(TEXTS[name]), encoder, Ridge()).fit(FRAME, TARGET)
    report = sardonyx.convert(pipeline, FRAME[:9]).report
    assert report.verdict.status == "proved", report.verdict.reason


class Ages(TransformerMixin, BaseEstimator):
    """A user's transformer over data frames."""

    def fit(self, x: Any, y: Any = None) -> Ages:
        self.mean_ = x["age"].mean()
        return self

    def transform(self, x: Any) -> Any:
        if not isinstance(x, pandas.DataFrame):
            raise TypeError("expected a data frame")
        result = pandas.DataFrame(index=x.index)
        result["gap"] = (x["age"] - self.mean_).abs()
        return result


def test_a_transformer_of_frames_is_traced() -> None:
    pipeline = make_pipeline(Ages(), Ridge()).fit(FRAME, TARGET)
    report = sardonyx.convert(pipeline, FRAME[:9]).report
    assert report.verdict.status == "proved", report.verdict.reason


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_branch, "a branch on values"),
        (lambda d: d[d["age"] > 0], "a selection of rows"),
        (lambda d: d[["age"]].rolling(3).mean(), "rolling has no translation"),
        (lambda d: d["nothing"], "column 'nothing'"),
        (lambda d: d[["age", "hours"]].mean(), "over rows"),
        (lambda d: d["city"].str.contains("P.r"), "regular expression"),
        (lambda d: d.assign(city=d["city"].where(d["age"] > 0, 1.0)), "texts and numbers in one column"),
    ],
)
def test_what_has_no_translation_is_named(function: Callable[[Any], Any], text: str) -> None:
    transformer = FunctionTransformer(function)
    transformer.fit(FRAME)
    with pytest.raises(SardonyxError, match=text):
        sardonyx.convert(transformer, FRAME[:9])
