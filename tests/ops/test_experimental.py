"""Experimental operators, which no evaluator defines, equal the formulas of their documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidModelError, ShapeError
from tests.ops.agreement import assert_computes, eager

X = np.random.default_rng(0).standard_normal((2, 3, 5, 6)).astype(np.float32)
IMAGES = "N C H W"


@pytest.mark.parametrize(
    ("name", "attributes", "expected"),
    [
        ("Affine", {"alpha": 0.5, "beta": -2.0}, X * 0.5 - 2),
        ("Affine", {}, X),
        ("ImageScaler", {"scale": 2.0, "bias": [1.0, 0.0, -1.0]}, X * 2 + np.float32([[[1]], [[0]], [[-1]]])),
        ("ImageScaler", {"scale": 2.0}, X * 2),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}, 2 * np.log1p(np.exp(0.5 * X))),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}, 2 * np.tanh(0.5 * X)),
    ],
)
def test_elementwise(name: str, attributes: dict[str, Any], expected: np.ndarray) -> None:
    shape = "N 3 H W" if "bias" in attributes else IMAGES
    assert_computes(name, [X], [shape], expected.astype(np.float32), opset=1, rtol=1e-6, **attributes)


def test_crop() -> None:
    assert_computes("Crop", [X], [IMAGES], X[:, :, 2:4, 1:3], opset=1, border=[1, 2, 3, 1])
    assert_computes("Crop", [X], [IMAGES], X[:, :, 2:4, 1:5], opset=1, border=[1, 2, 0, 0], scale=[2, 4])


def test_given_tensor_fill() -> None:
    values, six = [1.0, 2, 3, 4, 5, 6], np.arange(1, 7, dtype=np.float32)
    shape = np.array([3, 2])
    assert_computes("GivenTensorFill", [], [], six.reshape(2, 3), opset=1, values=values, shape_=[2, 3])
    assert_computes("GivenTensorFill", [shape], ["2"], six.reshape(3, 2), opset=1, values=values, input_as_shape=1)
    like = np.zeros((2, 3), np.int64)
    assert_computes("GivenTensorFill", [like], ["N 3"], six.reshape(2, 3, 1), opset=1, values=values, extra_shape=[1])


@pytest.mark.parametrize(
    ("name", "attributes", "error"),
    [
        ("Crop", {"border": [1, 2, 3]}, InvalidModelError),
        ("Crop", {"border": [1, 2, 0, 0], "scale": [2]}, InvalidModelError),
        ("Crop", {"border": [3, 0, 4, 0]}, ShapeError),
        ("ImageScaler", {"bias": [1.0, 2.0]}, ShapeError),
        ("GivenTensorFill", {"values": [1.0, 2.0]}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(name: str, attributes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        eager(name, [X], opset=1, **attributes)
