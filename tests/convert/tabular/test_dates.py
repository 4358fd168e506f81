"""Dates of data frames: parts, differences and comparisons are those of pandas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import SardonyxError

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
sklearn = pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler  # noqa: E402

RNG = np.random.default_rng(0)
HOURS = pandas.to_timedelta(RNG.integers(-900_000, 900_000, 80), unit="h")
FRAME = pandas.DataFrame(
    {
        "when": pandas.Timestamp("1999-11-01 13:07:31") + HOURS,
        "end": pandas.Timestamp("2001-02-28 23:59:59") + HOURS,
        "age": RNG.normal(40, 12, 80),
        "city": RNG.choice(["Paris", "Oslo"], 80),
    }
)
HOLES = FRAME.assign(when=FRAME["when"].where(np.arange(80) % 7 > 0))

PARTS = (
    "year", "month", "day", "hour", "minute", "second", "quarter", "day_of_week", "day_of_year", "days_in_month",
    "is_leap_year", "is_month_start", "is_month_end", "is_quarter_start", "is_quarter_end", "is_year_start",
    "is_year_end",
)  # fmt: skip


def proved(function: Callable[[Any], Any], frame: Any) -> Any:
    transformer = FunctionTransformer(function).fit(frame)
    result = sardonyx.convert(transformer, (frame,))
    assert result.report.verdict.status == "proved", result.report.verdict.reason
    return result


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_date_is_that_of_pandas(name: str) -> None:
    result = proved(lambda frame: getattr(frame["when"].dt, name).to_frame(), FRAME[["when"]])
    feeds = {"when": FRAME[["when"]].to_numpy().astype(np.int64)}
    answer = sardonyx.Session(result.model).run(None, feeds)[0]
    np.testing.assert_array_equal(answer[:, 0], getattr(FRAME["when"].dt, name))


def test_parts_of_missing_dates_are_nan() -> None:
    result = proved(lambda frame: frame["when"].dt.month.to_frame(), HOLES[["when"]])
    feeds = {"when": HOLES[["when"]].to_numpy().astype(np.int64)}
    np.testing.assert_array_equal(sardonyx.Session(result.model).run(None, feeds)[0][:, 0], HOLES["when"].dt.month)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "days since a date": lambda frame: (frame["when"] - pandas.Timestamp("2024-01-01")).dt.days.to_frame(),
    "seconds between dates": lambda frame: (frame["end"] - frame["when"]).dt.total_seconds().to_frame(),
    "weeks between dates": lambda frame: ((frame["end"] - frame["when"]) / pandas.Timedelta(days=7)).to_frame(),
    "order": lambda frame: pandas.DataFrame({"a": frame["when"] > "2000-06-01", "b": frame["when"] < frame["end"]}),
    "ends of quarters": lambda frame: frame["when"].dt.is_quarter_end.to_frame(),
    "shifted": lambda frame: (frame["when"] + pandas.Timedelta(days=3)).dt.day_of_year.to_frame(),
    "midnight": lambda frame: (frame["when"].dt.normalize() == frame["when"]).to_frame(),
    "missing": lambda frame: frame["when"].isna().to_frame(),
    "whole weeks": lambda frame: ((frame["when"] - frame["end"]) // pandas.Timedelta(days=7)).to_frame(),
    "whole weeks back": lambda frame: ((frame["end"] - frame["when"]) // pandas.Timedelta(days=-7)).to_frame(),
    "whole durations": lambda frame: (
        (frame["end"] - pandas.Timestamp("1900-01-01")) // (frame["when"] - pandas.Timestamp("1999-01-01"))
    ).to_frame(),
    "some": lambda frame: frame["when"].where(frame["end"] > "2000-01-01").dt.month.to_frame(),
    "others": lambda frame: frame["when"].mask(frame["end"] > "2000-01-01", pandas.NaT).dt.year.to_frame(),
    "days of some": lambda frame: (frame["end"] - frame["when"].where(frame["end"] > "2000-01-01")).dt.days.to_frame(),
    "filled": lambda frame: frame["when"].fillna(pandas.Timestamp("2000-01-01")).dt.month.to_frame(),
    "filled by others": lambda frame: frame["when"].fillna(frame["end"]).dt.month.to_frame(),
}


@pytest.mark.parametrize("frame", [FRAME, HOLES], ids=["complete", "holes"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arithmetic_of_dates_is_that_of_pandas(name: str, frame: Any) -> None:
    proved(FUNCTIONS[name], frame[["when", "end"]])


NEAR_MIDNIGHT = pandas.DataFrame(
    {"when": pandas.date_range("2020-01-01", periods=40).as_unit("ns") - pandas.Timedelta(1, "ns")}
)


@pytest.mark.parametrize("divisor", [pandas.Timedelta(days=1), pandas.Timedelta(days=-1), pandas.Timedelta(0)])
def test_whole_quotients_of_durations_are_exact(divisor: Any) -> None:
    def whole(frame: Any) -> Any:
        return ((frame["when"] - pandas.Timestamp("1900-01-01")) // divisor).to_frame()

    result = proved(whole, NEAR_MIDNIGHT)
    answer = sardonyx.Session(result.model).run(None, {"when": NEAR_MIDNIGHT.to_numpy().astype(np.int64)})[0]
    expected = whole(NEAR_MIDNIGHT).to_numpy()
    assert answer.dtype == expected.dtype
    np.testing.assert_array_equal(answer, expected)


def test_dates_that_a_function_leaves_out_are_missing() -> None:
    frame = FRAME[["when", "end"]]
    result = proved(FUNCTIONS["some"], frame)
    feeds = {name: frame[[name]].to_numpy().astype(np.int64) for name in frame}
    expected = FUNCTIONS["some"](frame)
    assert expected.isna().any().all()
    np.testing.assert_array_equal(sardonyx.Session(result.model).run(None, feeds)[0], expected)


def test_columns_of_several_units_and_kinds_are_read() -> None:
    frame = pandas.DataFrame({"when": FRAME["when"].astype("datetime64[ns]"), "end": HOLES["when"].dt.as_unit("s")})
    frame["span"] = FRAME["end"] - FRAME["when"]
    frame["age"] = FRAME["age"]

    def parts(frame: Any) -> Any:
        columns = {"m": frame["when"].dt.month, "e": frame["end"].dt.year.fillna(0), "d": frame["span"].dt.days}
        return pandas.DataFrame(columns)

    proved(parts, frame)
    columns = make_column_transformer((FunctionTransformer(parts), ["when", "end", "span"]), ("passthrough", ["age"]))
    result = sardonyx.convert(make_pipeline(columns, Ridge()).fit(frame, frame["age"]), (frame,))
    assert result.report.verdict.status == "proved", result.report.verdict.reason


def test_dates_with_a_time_zone_are_refused_by_name() -> None:
    frame = pandas.DataFrame({"when": FRAME["when"].dt.tz_localize("UTC")})
    with pytest.raises(SardonyxError, match="column 'when' has dates with a time zone") as caught:
        sardonyx.convert(FunctionTransformer(lambda frame: frame["when"].dt.month.to_frame()).fit(frame), (frame,))
    assert "dt.tz_convert(None)" in caught.value.remedy


def test_dates_beside_texts_and_numbers_are_columns_of_a_pipeline() -> None:
    features = FunctionTransformer(lambda frame: pandas.DataFrame({"m": frame["when"].dt.month}))
    columns = make_column_transformer((features, ["when"]), (StandardScaler(), ["age"]), (OneHotEncoder(), ["city"]))
    frame = FRAME.drop(columns="end")
    result = sardonyx.convert(make_pipeline(columns, Ridge()).fit(frame, FRAME["age"]), (frame,))
    assert result.report.verdict.status == "proved", result.report.verdict.reason


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda frame: frame["when"].dt.strftime("%Y").to_frame(), "Series.dt.strftime has no translation"),
        (lambda frame: frame, "dates in the result have no translation"),
        (lambda frame: (frame["when"] * 2).to_frame(), "numpy.multiply of dates, numbers has no translation"),
        (lambda frame: frame["when"].where(frame["when"] > "2000", 0).to_frame(), "dates and numbers in one column"),
    ],
)
def test_what_dates_have_no_translation_for_is_named(function: Callable[[Any], Any], text: str) -> None:
    frame = FRAME[["when"]]
    with pytest.raises(SardonyxError, match=text):
        sardonyx.convert(FunctionTransformer(function).fit(frame), (frame,))
