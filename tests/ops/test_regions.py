"""Slices and pads equal numpy at every size, also with run-time positions and pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.errors import SardonyxError
from sardonyx.ops.registry import find
from tests.ops.agreement import assert_computes, eager, traced_function
from tests.random_cases import cases

X = np.arange(24, dtype=np.float32).reshape(4, 6)

PLACES = st.one_of(st.integers(-9, 9), st.sampled_from([-(1 << 63), (1 << 63) - 1, (1 << 31) - 1]))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def box(x: np.ndarray, axis: int, start: int, end: int, step: int) -> np.ndarray:
    """Slice by the clamping of the specification; Python's differs for ends before -n."""
    n = x.shape[axis]
    start, end = (position + n if position < 0 else position for position in (start, end))
    least, most = (0, n) if step > 0 else (-1, n - 1)
    chosen = range(min(max(start, 0), most), min(max(end, least), most), step)
    return np.take(x, list(chosen), axis)


@settings(deadline=None, max_examples=cases(60))
@given(
    size=st.integers(0, 6),
    start=PLACES,
    end=PLACES,
    step=st.sampled_from([1, 1, 2, 3, -1, -2, -3]),
    known=st.sampled_from([None, "1"]),
    step_known=st.sampled_from([None, "1"]),
)
def test_slice_clamps_as_specified(
    size: int, start: int, end: int, step: int, known: str | None, step_known: str | None
) -> None:
    x = np.arange(2 * size, dtype=np.int32).reshape(2, size)
    assert_computes(
        "Slice",
        [x, ints(start), ints(end), ints(-1), ints(step)],
        ["N M", known, known, None, step_known],
        box(x, 1, start, end, step),
    )


def test_slices_of_other_versions_and_axes() -> None:
    assert_computes("Slice", [X], ["N M"], X[1:3, :-1], starts=[1, 0], ends=[3, -1], opset=1)
    assert_computes("Slice", [X], ["N M"], X[:, 2:], starts=[2], ends=[99], axes=[1], opset=1)
    assert_computes("Slice", [X, ints(1, 2), ints(9, 9)], ["N M", None, None], X[1:, 2:])


@pytest.mark.parametrize(
    ("start", "end", "step", "size"),
    [
        (1, 1 << 40, 1, "max(0, N - 1)"),
        (0, -1, 1, "max(0, N - 1)"),
        (-3, (1 << 31) - 1, 1, "min(3, N)"),
        (0, 5, 1, "min(5, N)"),
        (0, 1 << 40, 2, "(N + 1)//2"),
        (-1, -(1 << 40), -1, "N"),
    ],
)
def test_sizes_of_slices_are_expressions(start: int, end: int, step: int, size: str) -> None:
    arrays = [X, ints(start), ints(end), ints(0), ints(step)]
    function = traced_function("Slice", arrays, ["N 6", None, None, None, None])
    assert str(function.results[0].type) == f"float[{size}, 6]"


def test_positions_that_are_sizes() -> None:
    """The end of a slice is computed from the shape, as models do."""
    slice_ = find("", "Slice", 18)
    assert slice_ is not None

    def body(x: L.Tensor) -> list[L.Tensor]:
        end = L.slice_(L.shape_tensor(x), 0, 0, 1) - 1
        return list(slice_([x, constant(ints(0)), end], {}, opset=18))  # type: ignore[arg-type]

    function = trace("slice", body, [t.TensorType(t.FLOAT, (Dim.symbol("N"), 3))])
    assert str(function.results[0].type) == "float[max(0, N - 1), 3]"


# Margins.


@settings(deadline=None, max_examples=cases(60))
@given(
    pads=st.lists(st.integers(0, 7), min_size=4, max_size=4),
    mode=st.sampled_from(["constant", "edge", "wrap", "reflect"]),
    known=st.sampled_from([None, "4"]),
)
def test_pad_equals_numpy(pads: list[int], mode: str, known: str | None) -> None:
    widths = [(pads[0], pads[2]), (pads[1], pads[3])]
    assert_computes("Pad", [X, ints(*pads)], ["N M", known], np.pad(X, widths, mode=mode), mode=mode)  # type: ignore[call-overload]


def test_pad_crops_before_extending() -> None:
    assert_computes("Pad", [X, ints(-1, 2, -1, -3)], ["N M", None], np.pad(X[1:-1, :-3], [(0, 0), (2, 0)]))
    for mode in ("edge", "wrap", "reflect"):
        expected = np.pad(X[1:], [(0, 2), (0, 0)], mode=mode)  # type: ignore[call-overload]
        assert_computes("Pad", [X, ints(-1, 2), None, ints(-2)], ["N M", None, None, None], expected, mode=mode)


def test_pads_of_other_versions_and_values() -> None:
    expected = np.pad(X, [(1, 0), (0, 2)], constant_values=7)
    assert_computes("Pad", [X], ["N M"], expected, paddings=[1, 0, 0, 2], value=7.0, opset=1)
    assert_computes("Pad", [X], ["N M"], expected, pads=[1, 0, 0, 2], value=7.0, opset=2)
    assert_computes("Pad", [X, ints(1, 0, 0, 2), np.array([7], np.float32)], ["N M", "4", "1"], expected)


def test_pad_of_empty_tensors_and_of_strings() -> None:
    assert_computes("Pad", [X[:0], ints(1, 0, 0, 0)], ["N M", None], np.zeros((1, 6), np.float32))
    (actual,) = eager("Pad", [np.array(["a"], object), ints(1, 0)])
    assert actual.tolist() == ["", "a"]


@pytest.mark.parametrize("known", [None, "2"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7])
def test_center_crop_pad(size: int, known: str | None) -> None:
    if size <= 4:
        rows = X[(4 - size) // 2 :][:size]
    else:
        rows = np.pad(X, [((size - 4) // 2, size - 4 - (size - 4) // 2), (0, 0)])
    assert_computes("CenterCropPad", [X, ints(6, size)], ["N M", known], rows, axes=[1, 0])


@pytest.mark.parametrize(
    ("name", "arrays", "attributes", "problem"),
    [
        ("Slice", [X, ints(0), ints(1), ints(0), ints(0)], {}, "Use one nonzero step"),
        ("Slice", [X, ints(0), ints(1), ints(2)], {}, "out of range for rank 2"),
        ("Slice", [X, ints(0, 0), ints(1, 1), ints(0, -2)], {}, "occurs twice"),
        ("Slice", [X, ints(0, 0), ints(1)], {}, "for a position input of Slice, got"),
        ("Slice", [X], {"starts": [0], "ends": [1, 2], "opset": 1}, "as many starts as ends and axes, got 1, 2"),
        ("Pad", [X, ints(1, 1)], {}, "expected 4 pads for 2 axes, got 2"),
        ("Pad", [X, ints(-5, 0, 0, 0)], {}, "removes more than all 4"),
        ("Pad", [X[:0], ints(1, 0, 0, 0)], {"mode": "edge"}, "out of range for an axis of 0"),
        ("Pad", [X, ints(1, 0, 0, 0)], {"mode": "mirror"}, "unknown mode 'mirror'"),
        ("CenterCropPad", [X, ints(1)], {}, "expected 2 sizes, one for each axis, got 1"),
        ("CenterCropPad", [X, ints(1, -1)], {}, "not negative"),
    ],
)
def test_invalid_inputs_are_refused(name: str, arrays: list[Any], attributes: dict[str, Any], problem: str) -> None:
    with pytest.raises(SardonyxError, match=problem):
        eager(name, arrays, **attributes)
