"""Convolutions of codes whose image does not extend along the last axis equal the interpreter's."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import Session


def check(x: np.ndarray, weights: np.ndarray, zero: int, **attributes: int | list[int]) -> None:
    """Assert that compiled code convolves integers as the interpreter does."""
    node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], **attributes)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array(zero, np.uint8), "zero")]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9).SerializeToString()
    (expected,) = Session(model, compile="off").run(None, {"x": x})
    session = Session(model, compile="wait")
    assert session.native is not None
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("zero", [0, 225])
@pytest.mark.parametrize("dilation", [1, 2])  # Rows without dilation may be multiplied as words of bytes.
@pytest.mark.parametrize(("sizes", "window"), [((40, 1), (3, 1)), ((6, 8, 1), (3, 3, 1)), ((1, 40), (1, 3))])
def test_columns_are_convolved(sizes: tuple[int, ...], window: tuple[int, ...], dilation: int, zero: int) -> None:
    rng = np.random.default_rng(zero)
    x = rng.integers(0, 256, (2, 21, *sizes)).astype(np.uint8)
    weights = rng.integers(-128, 128, (21, 1, *window)).astype(np.int8)
    pads = [size // 2 for size in window] * 2
    check(x, weights, zero, group=21, pads=pads, dilations=[dilation] * len(window))


@pytest.mark.parametrize("zero", [0, 75])
@pytest.mark.parametrize("channels", [8, 64, 70])
@pytest.mark.parametrize(
    ("sizes", "window"), [((40, 1), (3, 3)), ((22, 1), (1, 5)), ((6, 18, 1), (1, 1, 3)), ((1, 22), (5, 1))]
)
def test_a_padded_column_is_a_part_of_an_image(
    sizes: tuple[int, ...], window: tuple[int, ...], channels: int, zero: int
) -> None:
    rng = np.random.default_rng(channels)
    x = rng.integers(0, 12, (1, channels, *sizes)).astype(np.uint8)
    weights = rng.integers(-128, 128, (18, channels, *window)).astype(np.int8)
    check(x, weights, zero, pads=[size // 2 for size in window] * 2)
