"""Gather, scatter, ranking and selection equal numpy, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import SardonyxError
from tests.ops.agreement import assert_computes, assert_equal, eager, traced, traced_function

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [np.array(-1), ints(0, 1, -2), ints([1], [0])])
def test_gather(indices: np.ndarray, axis: int) -> None:
    shape = ["", "K", "K L"][indices.ndim]
    assert_computes("Gather", [X, indices], ["N M 4", shape], np.take(X, indices, axis), axis=axis)


def test_gather_elements() -> None:
    indices = ints([[0, -1, 2]])
    expected = np.take_along_axis(X[:1, :1, :], indices, -1)
    assert_computes("GatherElements", [X, indices], ["N M 4", "1 1 K"], expected, axis=-1)


def test_gather_nd() -> None:
    assert_computes("GatherND", [X, ints([0, -1], [1, 0])], ["N M 4", "K 2"], X[[0, 1], [-1, 0]])
    expected = np.stack([X[0, 2], X[1, 0]])
    assert_computes("GatherND", [X, ints([-1], [0])], ["N M 4", "N 1"], expected, batch_dims=1)


def test_shape_entries_are_expressions() -> None:
    gathered = traced_function("Gather", [X, ints(1, 0)], ["N M 4", None])
    assert str(gathered.results[0].type) == "float[2, M, 4]"


# Writing.


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("none", [0, 7, 2]), ("add", [0, 13, 2]), ("mul", [0, 35, 2]), ("max", [0, 7, 2]), ("min", [0, 1, 2])],
)
def test_scatter_applies_updates_in_order(reduction: str, expected: list[float]) -> None:
    x, updates, options = np.arange(3.0), np.array([5.0, 7.0]), {"reduction": reduction}
    assert_computes("ScatterElements", [x, ints(1, -2), updates], ["N", "K", "K"], np.array(expected, float), **options)
    assert_computes("ScatterND", [x, ints([1], [-2]), updates], ["N", "K 1", "K"], np.array(expected, float), **options)


def test_scatter_of_rows_and_along_axes() -> None:
    rows = -X[0, :2]
    expected = X.copy()
    expected[1, [2, 0]] = rows
    assert_computes("ScatterND", [X, ints([1, -1], [1, 0]), rows], ["N M 4", "K 2", "K 4"], expected)
    expected = X.copy()
    expected[0, 0, [3, 1]] = [-1, -2]
    updates = np.float32([[[-1, -2]]])
    for name, opset in (("ScatterElements", 11), ("Scatter", 9)):
        inputs = [X, ints([[3, 1]]), updates]
        assert_computes(name, inputs, ["N M 4", "1 1 K", "1 1 K"], expected, axis=2, opset=opset)


@pytest.mark.parametrize(
    ("reduction", "truth"), [("add", [1, 1, 1]), ("mul", [0, 0, 1]), ("max", [1, 1, 1]), ("min", [0, 0, 1])]
)
def test_booleans_are_reduced_as_0_and_1(reduction: str, truth: list[int]) -> None:
    x, indices, updates = np.array([True, False, True]), np.array([0, 1]), np.array([False, True])
    expected = np.array(truth, bool)
    assert_computes("ScatterElements", [x, indices, updates], ["N", "K", "K"], expected, reduction=reduction)
    assert_computes("ScatterND", [x, indices[:, None], updates], ["N", "K 1", "K"], expected, reduction=reduction)


def test_scatter_of_strings_cannot_add() -> None:
    words, new = (np.array(list(text), object) for text in ("abc", "x"))
    assert eager("ScatterElements", [words, ints(1), new])[0].tolist() == ["a", "x", "c"]
    with pytest.raises(SardonyxError, match="does not accept string"):
        eager("ScatterElements", [words, ints(1), new], reduction="add")


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache, update, first = np.zeros((2, 1, 4, 3)), np.ones((2, 1, 2, 3)), ints(0, 2 if mode == "linear" else 3)
    expected = cache.copy()
    for sample, start in enumerate(first):
        expected[sample, :, [(start + i) % 4 for i in range(2)]] = 1
    shapes = ["B H S D", "B H T D", "B"]
    assert_computes("TensorScatter", [cache, update, first], shapes, expected, mode=mode)
    expected = cache.copy()
    expected[:, :, :2] = 1
    assert_computes("TensorScatter", [cache, update], shapes[:2], expected, mode=mode)


# Ranking.


@pytest.mark.parametrize("known", [None, "1"])
def test_top_k_selects_the_first_of_equals(known: str | None) -> None:
    x = np.float32([[1, 5, 5, 0], [2, 2, 2, 2]])
    arrays, shapes = [x, ints(3)], ["N M", known]
    assert_computes("TopK", arrays, shapes, np.float32([[5, 5, 1], [2, 2, 2]]), ints([1, 2, 0], [0, 1, 2]))
    assert_computes("TopK", arrays, shapes, np.float32([[0, 1, 5], [2, 2, 2]]), ints([3, 0, 1], [0, 1, 2]), largest=0)


def test_top_k_of_the_first_version_has_an_attribute() -> None:
    x = np.float32([[3, 1], [2, 4]])
    assert_computes("TopK", [x], ["N M"], np.float32([[3, 4]]), ints([0, 1]), k=1, axis=0, opset=1)


# Counted results.


def test_nonzero() -> None:
    x = np.array([[0, 1], [2, 0], [3, 4]])
    assert_computes("NonZero", [x], ["N M"], np.stack(np.nonzero(x)))
    assert_computes("NonZero", [np.array(5)], [""], np.zeros((0, 1), np.int64))
    assert_computes("NonZero", [x[:0]], ["N M"], np.zeros((2, 0), np.int64))


def test_compress() -> None:
    condition = np.array([False, True, True])
    assert_computes("Compress", [X, condition], ["N M 4", "K"], X[:, 1:], axis=-2)
    assert_computes("Compress", [X, condition], ["N M 4", "K"], np.float32([1, 2]))


@pytest.mark.parametrize("in_order", [0, 1])
def test_unique(in_order: int) -> None:
    x = np.float32([2, 1, 1, 3, 4, 3])
    expected = (
        (np.float32([1, 2, 3, 4]), ints(1, 0, 3, 4), ints(1, 0, 0, 2, 3, 2), ints(2, 1, 2, 1))
        if in_order
        else (np.float32([2, 1, 3, 4]), ints(0, 1, 3, 4), ints(0, 1, 1, 2, 3, 2), ints(1, 2, 2, 1))
    )
    assert_computes("Unique", [x], ["N"], *expected, sorted=in_order)


def test_unique_along_an_axis_and_of_strings() -> None:
    x = np.float32([[1, 0, 0], [1, 0, 0], [2, 3, 4]])
    assert_computes("Unique", [x], ["N M"], x[1:], ints(0, 2), ints(0, 0, 1), ints(2, 1), axis=0)
    words = np.array([["b", "a"], ["b", "a"]], object)
    actual = eager("Unique", [words], outputs=4, axis=1)
    assert actual[0].tolist() == [["a", "b"], ["a", "b"]]
    assert_equal(actual[1:], [ints(1, 0), ints(1, 0), ints(1, 1)])


def test_counted_sizes_are_symbols_of_their_own() -> None:
    function = traced_function("Unique", [X], ["N M 4"], outputs=4, axis=1)
    y, first, inverse, counts = (str(value.type) for value in function.results)
    count = y.removeprefix("float[N, ").removesuffix(", 4]")
    assert (first, inverse, counts) == (f"int64[{count}]", "int64[M]", f"int64[{count}]")


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "problem"),
    [
        ("Gather", [X, ints(2)], {}, "index 2 is out of range for an axis of 2"),
        ("Gather", [X, ints(-3)], {}, "index -3 is out of range for an axis of 2"),
        ("GatherElements", [X, ints([[4]])], {"axis": 2}, "index 4 is out of range"),
        ("GatherND", [X, ints([0, 3])], {}, "index 3 is out of range"),
        ("GatherND", [X, ints([0, 0, 0, 0])], {}, "exceed the rank 3"),
        ("ScatterElements", [X, ints([[4]]), X[:1, :1, :1]], {"axis": 2}, "index 4 is out of range"),
        ("ScatterND", [X, ints([2]), X[:1]], {}, "index 2 is out of range"),
        ("ScatterND", [X, ints([0]), X], {}, "equal shapes"),
        ("ScatterND", [X, ints([0]), X[:1]], {"reduction": "sub"}, "unknown reduction 'sub'"),
        ("TopK", [X, ints(5)], {}, "expected 0 ≤ k ≤ 4, got 5"),
        ("TopK", [X, ints(-1)], {}, "not negative"),
        ("TopK", [X, ints(1, 1)], {}, "expected one number"),
        ("Compress", [X, np.ones(3, np.bool_)], {"axis": 0}, "index 2 is out of range"),
        ("TensorScatter", [X, X[:, :2], ints(2, 0)], {"axis": 1}, "index 3 is out of range"),
        ("TensorScatter", [X, X], {"axis": 0}, "other than the batch axis 0"),
    ],
)
def test_invalid_inputs_are_refused(name: str, arrays: list[Any], attributes: dict[str, Any], problem: str) -> None:
    outputs = 2 if name == "TopK" else 1
    with pytest.raises(SardonyxError, match=problem):
        eager(name, arrays, outputs=outputs, **attributes)


def test_an_index_out_of_range_is_refused_at_run_time() -> None:
    with pytest.raises(SardonyxError, match="index 2 is out of range"):
        traced("Gather", [X, ints(2)], ["N M 4", "K"])
