"""Data movement equals numpy, at known and at open sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import NeedsValueError, SardonyxError, ShapeError
from tests.ops.agreement import assert_computes, eager, traced, traced_function

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("open_shape", [None, "3"])
@pytest.mark.parametrize("target", [(4, 3, 2), (-1, 4, 2), (0, -1, 2), (0, 0, 4), (2, 12, -1), (0, 4, -1)])
def test_reshape(target: tuple[int, ...], open_shape: str | None) -> None:
    filled = [X.shape[i] if size == 0 else size for i, size in enumerate(target)]
    assert_computes("Reshape", [X, ints(*target)], ["N M 4", open_shape], X.reshape(filled))


def test_reshape_of_empty_tensors_copies_sizes() -> None:
    """Copied sizes of 0 cancel in the quotient for -1, eagerly and traced."""
    assert_computes("Reshape", [X[:0], ints(0, -1)], ["N M 4", None], X[:0].reshape(0, 12))
    assert_computes("Reshape", [X[:0], ints(3, 0)], ["N M 4", None], X[:0].reshape(3, 0), allowzero=1)


def test_reshape_of_a_first_version_has_an_attribute() -> None:
    assert_computes("Reshape", [X], ["N M 4"], X.reshape(2, 12), shape=[0, -1], opset=1)


@pytest.mark.parametrize(
    ("name", "arrays", "shapes", "attributes", "expected"),
    [
        ("Flatten", [X], ["N M 4"], {"axis": -1}, X.reshape(6, 4)),
        ("Flatten", [X], ["N M 4"], {"axis": 0}, X.reshape(1, 24)),
        ("Flatten", [X], ["N M 4"], {"axis": 3}, X.reshape(24, 1)),
        ("Transpose", [X], ["N M 4"], {}, X.T),
        ("Transpose", [X], ["N M 4"], {"perm": [1, 2, 0]}, X.transpose(1, 2, 0)),
        ("Squeeze", [X[:1], ints(0)], ["N M 4", None], {}, X[0]),
        ("Squeeze", [X[:1, :, :1]], ["1 3 1"], {}, X[0, :, 0]),
        ("Squeeze", [X[:1]], ["N M 4"], {"axes": [-3], "opset": 11}, X[0]),
        ("Unsqueeze", [X, ints(0, -1)], ["N M 4", None], {}, X[None, ..., None]),
        ("Unsqueeze", [X], ["N M 4"], {"axes": [1], "opset": 11}, X[:, None]),
        ("Concat", [X, X[:1]], ["N M 4", "K M 4"], {"axis": -3}, np.concatenate([X, X[:1]])),
        ("Concat", [X, X[:, :1]], ["N M 4", "N K 4"], {"opset": 1}, np.concatenate([X, X[:, :1]], 1)),
        ("Expand", [X[:, :1], ints(5, 1, 3, 1)], ["N 1 4", None], {}, np.broadcast_to(X[:, :1], (5, 2, 3, 4))),
        ("Expand", [X[:, :1], ints(3, 1)], ["N M 4", "2"], {}, np.broadcast_to(X[:, :1], (2, 3, 4))),
        ("Tile", [X, ints(2, 0, 3)], ["N M 4", "3"], {}, np.tile(X, (2, 0, 3))),
        ("Tile", [X, ints(1, 2, 3)], ["N M 4", None], {}, np.tile(X, (1, 2, 3))),
        ("Tile", [X, ints(2), ints(-1)], ["N M 4", "1", None], {"opset": 1}, np.tile(X, 2)),
        ("Trilu", [X], ["N M 4"], {}, np.triu(X)),
        ("Trilu", [X, np.array(-1)], ["N M 4", ""], {"upper": 0}, np.tril(X, -1)),
        ("Identity", [X], ["N M 4"], {}, X),
    ],
)
def test_equals_numpy(
    name: str, arrays: list[Any], shapes: list[str | None], attributes: dict[str, Any], expected: np.ndarray
) -> None:
    assert_computes(name, arrays, shapes, expected, **attributes)


@pytest.mark.parametrize(
    ("arrays", "shapes", "attributes", "cuts"),
    [
        ([ints(1, 0, 2)], [None], {"axis": 1}, [1, 1]),
        ([ints(1, 2)], ["2"], {"axis": -2, "opset": 13}, [1]),
        ([], [], {"axis": 2, "opset": 13, "parts": 2}, [2]),
        ([], [], {"axis": 2, "opset": 2, "split": [3, 1]}, [3]),
        ([], [], {"axis": 2, "num_outputs": 3, "parts": 3, "size": 7}, [3, 6]),
        ([ints(1, 3)], ["2"], {"axis": 2, "opset": 1}, [1]),
    ],
)
def test_split(arrays: list[Any], shapes: list[str | None], attributes: dict[str, Any], cuts: list[int]) -> None:
    options = dict(attributes)
    x = np.arange(6 * options.pop("size", 4), dtype=np.float32).reshape(2, 3, -1)
    options.pop("parts", None)
    assert_computes("Split", [x, *arrays], ["N M K", *shapes], *np.split(x, cuts, options["axis"]), **options)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode: str) -> None:
    x = np.arange(2 * 8 * 3 * 5, dtype=np.float32).reshape(2, 8, 3, 5)
    (there,) = traced("DepthToSpace", [x], ["N C H W"], blocksize=2, mode=mode)
    assert there.shape == (2, 2, 6, 10)
    assert_computes("SpaceToDepth", [there], ["N C H W"], x, blocksize=2, mode=mode)


def test_space_to_depth_orders_blocks_first_before_version_28() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 2, 2, 4)
    (first,), (last,) = eager("SpaceToDepth", [x], blocksize=2, opset=13), eager("SpaceToDepth", [x], blocksize=2)
    np.testing.assert_array_equal(first, last)
    assert first[0, :2, 0, 0].tolist() == [0, 8]


@pytest.mark.parametrize("time_axis", [0, 1])
def test_reverse_sequence(time_axis: int) -> None:
    x, lengths = np.arange(16.0).reshape(4, 4), ints(0, 1, 3, 4)
    expected = x.copy() if time_axis else x.T.copy()
    for row, length in zip(expected, lengths, strict=True):
        row[:length] = row[:length][::-1]
    expected = expected if time_axis else expected.T
    attributes = {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    assert_computes("ReverseSequence", [x, lengths], ["N M", "K"], expected, **attributes)


def test_col2im_adds_overlapping_blocks() -> None:
    columns = np.ones((1, 4, 9), np.float32)
    expected = np.outer([1, 2, 2, 1], [1, 2, 2, 1]).astype(np.float32)[None, None]
    assert_computes("Col2Im", [columns, ints(4, 4), ints(2, 2)], ["N C L", None, None], expected)
    assert_computes(
        "Col2Im", [columns, ints(2, 2), ints(2, 2)], ["N C L", "2", None], expected[..., 1:3, 1:3], pads=[1, 1, 1, 1]
    )


@pytest.mark.parametrize(
    ("name", "arrays", "shapes", "attributes", "types"),
    [
        ("Reshape", [X, ints(0, -1)], ["N M 4", None], {}, ["float[N, 4*M]"]),
        ("Reshape", [X, ints(-1, 24)], ["N M 24", None], {}, ["float[M*N, 24]"]),
        ("Reshape", [X, ints(-1, 8)], ["N M 4", None], {}, ["float[M*N//2, 8]"]),
        ("Split", [X], ["N 3 4"], {"num_outputs": 2, "outputs": 2},
         ["float[(N + 1)//2, 3, 4]", "float[N - (N + 1)//2, 3, 4]"]),
        ("Split", [X], ["2*N 3 4"], {"opset": 13, "outputs": 2}, ["float[N, 3, 4]"] * 2),
        ("SpaceToDepth", [X], ["N C 2*H W"], {"blocksize": 2}, ["float[N, 4*C, H, W//2]"]),
        ("Expand", [X, ints(3, 1, 1)], ["1 M 4", None], {}, ["float[3, M, 4]"]),
    ],
)  # fmt: skip
def test_open_sizes_are_expressions(
    name: str, arrays: list[Any], shapes: list[str | None], attributes: dict[str, Any], types: list[str]
) -> None:
    function = traced_function(name, arrays, shapes, **attributes)
    assert [str(value.type) for value in function.results] == types


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "problem"),
    [
        ("Reshape", [X, ints(5, -1)], {}, "cannot be reshaped"),
        ("Reshape", [X, ints(-1, -1)], {}, "-1 occurs 2 times"),
        ("Reshape", [X, ints(-2, 12)], {}, "negative size"),
        ("Reshape", [X, ints(2, 3, 4, 0)], {}, "has rank 3"),
        ("Reshape", [X[:0], ints(0, -1)], {"allowzero": 1}, "size for -1 cannot be inferred"),
        ("Transpose", [X], {"perm": [0, 1]}, "expected a permutation"),
        ("Transpose", [X], {"perm": [-1, 0, 1]}, "expected a permutation"),
        ("Squeeze", [X, ints(0)], {}, "cannot be squeezed"),
        ("Unsqueeze", [X, ints(0, 0)], {}, "occurs twice"),
        ("Flatten", [X], {"axis": 4}, "out of range"),
        ("Concat", [X, X[:, :1]], {"axis": 0}, "differ outside of axis"),
        ("Concat", [X], {"axis": 3}, "out of range"),
        ("Split", [X, ints(1, 2)], {"outputs": 2}, "cannot be split into 1, 2"),
        ("Split", [X, ints(3, -1)], {"outputs": 2}, "not negative"),
        ("Split", [X], {"outputs": 2, "axis": 1, "opset": 13}, "cannot be split into 1, 1"),
        ("Expand", [X, ints(2, 2, 4)], {}, "do not broadcast"),
        ("Tile", [X, ints(1, 2)], {}, "expected 3 repeats, one for each axis, got 2"),
        ("Tile", [X, ints(1, 2, -3)], {}, "not negative"),
        ("DepthToSpace", [X[None]], {"blocksize": 2}, "cannot be reshaped"),
        ("DepthToSpace", [X], {"blocksize": 2}, "rank 3"),
        ("ReverseSequence", [X, ints(1, 1, 9)], {}, "out of range"),
        ("ReverseSequence", [X, ints(1, 1, -1)], {}, "out of range"),
    ],
)
def test_invalid_inputs_are_refused(name: str, arrays: list[Any], attributes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SardonyxError, match=problem):
        eager(name, arrays, **attributes)


def test_an_uneven_split_is_refused_at_run_time() -> None:
    with pytest.raises(ShapeError, match="cannot be reshaped"):
        traced("Split", [X], ["N M 4"], axis=1, opset=13, outputs=2)


def test_squeeze_without_axes_needs_the_sizes() -> None:
    with pytest.raises(NeedsValueError):
        traced("Squeeze", [X], ["N M 4"])
