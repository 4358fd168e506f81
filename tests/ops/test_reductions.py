"""Reductions with axes as input or attribute, over empty axes and of every type; positions; cumulative operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import NeedsValueError, SardonyxError
from tests.ops.agreement import assert_computes, assert_equal, eager, traced, traced_function

X = np.random.default_rng(1).standard_normal((2, 3, 4)) ** 2 + 0.1


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


REDUCTIONS: dict[str, Any] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(0,), (-1, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_axes_as_input_and_as_attribute(name: str, axes: tuple[int, ...], keep: int) -> None:
    expected = np.asarray(REDUCTIONS[name](X, axis=axes, keepdims=bool(keep)))
    assert_computes(name, [X, ints(*axes)], ["N M 4", None], expected, rtol=1e-12, keepdims=keep)
    assert_computes(name, [X], ["N M 4"], expected, rtol=1e-12, keepdims=keep, axes=axes, opset=11)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_without_axes(name: str) -> None:
    compute = REDUCTIONS[name]
    over_all = np.asarray(compute(X, axis=None, keepdims=True))
    over_none = np.asarray(compute(X, axis=(), keepdims=True))
    for arrays, shapes in [([X], ["N M 4"]), ([X, ints()], ["N M 4", None])]:
        assert_computes(name, arrays, shapes, over_all, rtol=1e-12)
        assert_computes(name, arrays, shapes, over_none, rtol=1e-12, noop_with_empty_axes=1)
    assert_computes(name, [X], ["N M 4"], over_all, rtol=1e-12, opset=11)


@pytest.mark.parametrize(
    ("name", "nothing"),
    [
        ("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceL1", 0),
        ("ReduceL2", 0), ("ReduceSumSquare", 0), ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf),
    ],
)  # fmt: skip
def test_reductions_of_nothing(name: str, nothing: float) -> None:
    assert_computes(name, [X[:, :0], ints(1)], ["N M 4", None], np.full((2, 4), float(nothing)), keepdims=0)


def test_extremes_of_nothing_in_integers_and_booleans() -> None:
    empty = np.zeros((0, 2), np.int8)
    assert_computes("ReduceMax", [empty, ints(0)], ["N 2", None], np.int8([[-128, -128]]))
    assert_computes("ReduceMin", [empty.astype(np.bool_), ints(0)], ["N 2", None], np.array([[True, True]]))


def test_integers() -> None:
    x = np.array([[3, -4], [6, 8]], np.int32)
    assert_computes("ReduceL2", [x, ints(1)], ["N 2", None], np.int32([5, 10]), keepdims=0)
    assert_computes("ReduceMean", [x, ints(0)], ["N 2", None], np.int32([[4, 2]]))
    assert_computes("ReduceLogSum", [np.int64([[20]]), ints(1)], ["N 1", None], np.int64([[2]]))


def test_half_floats_keep_their_range() -> None:
    x = np.full((1, 4), 300, np.float16)
    for name, expected in [("ReduceL2", 600), ("ReduceMean", 300)]:
        assert_computes(name, [x, ints(1)], ["N M", None], np.float16([[expected]]))
    many = np.full((1, 4096), 60, np.float16)
    assert_computes("ReduceMean", [many, ints(1)], ["N M", None], np.float16([[60]]))


def test_the_logarithm_of_exponentials_keeps_its_range() -> None:
    x = np.array([[1e4, 1e4], [-np.inf, -np.inf], [np.inf, 0]])
    expected = np.array([1e4 + np.log(2), -np.inf, np.inf])
    assert_computes("ReduceLogSumExp", [x, ints(1)], ["N M", None], expected, rtol=1e-12, keepdims=0)


def test_axes_must_be_known_and_right() -> None:
    with pytest.raises(NeedsValueError, match="the axes of ReduceSum"):
        traced("ReduceSum", [X, ints(0)], ["N M 4", "1"])
    with pytest.raises(SardonyxError, match="out of range"):
        eager("ReduceSum", [X, ints(3)])
    with pytest.raises(SardonyxError, match="occurs twice"):
        eager("ReduceMax", [X, ints(0, -3)])


def test_types_while_tracing() -> None:
    function = traced_function("ReduceMean", [X, ints(0, 2)], ["N M K", None])
    assert str(function.results[0].type) == "double[1, M, 1]"


# Positions.


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_positions_of_first_and_last(axis: int, keep: int) -> None:
    x = np.array([[1, 3, 3], [3, 1, 1]], np.float32)
    options = {"axis": axis, "keepdims": keep}
    for name, numpys in (("ArgMax", np.argmax), ("ArgMin", np.argmin)):
        first = np.asarray(numpys(x, axis=axis, keepdims=bool(keep)))
        last = x.shape[axis] - 1 - np.asarray(numpys(np.flip(x, axis), axis=axis, keepdims=bool(keep)))
        assert_computes(name, [x], ["N M"], first, **options)
        assert_computes(name, [x], ["N M"], last, select_last_index=1, **options)


def test_the_position_in_an_empty_axis_is_refused() -> None:
    with pytest.raises(SardonyxError, match="is undefined"):
        eager("ArgMax", [X[:0]])


# Cumulative.


def cumulative(x: np.ndarray, compute: Any, neutral: int, exclusive: int, reverse: int) -> np.ndarray:
    x = np.flip(x, 1) if reverse else x
    actual = compute(x, axis=1)
    if exclusive:
        actual = np.concatenate([np.full_like(actual[:, :1], neutral), actual], 1)[:, :-1]
    return np.flip(actual, 1) if reverse else actual


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_cumulative(size: int, exclusive: int, reverse: int) -> None:
    x = X[:, :size]
    options = {"exclusive": exclusive, "reverse": reverse}
    for name, compute, neutral in (("CumSum", np.cumsum, 0), ("CumProd", np.cumprod, 1)):
        expected = cumulative(x, compute, neutral, exclusive, reverse)
        assert_computes(name, [x, np.array(-2)], ["N M 4", None], expected, rtol=1e-12, **options)


def test_cumulative_along_one_axis() -> None:
    assert_equal(eager("CumSum", [np.int32([1, 2]), np.array([0], np.int32)]), [np.int32([1, 3])])
    with pytest.raises(SardonyxError, match="out of range"):
        eager("CumSum", [X, np.array(3)])
