"""Convolutions and pooling whose results are read as rows of NCHW, where vectors of channels are transposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

OPERATORS = {"convolution": "Conv", "depthwise": "Conv", "max": "MaxPool", "mean": "AveragePool"}


def group_normalization(
    kind: str, channels: int, sizes: tuple[int, ...], window: int, stride: int, *, open_sizes: bool, activates: bool
) -> onnx.ModelProto:
    """Return a pointwise convolution, windows of a kind, and a normalization of groups of channels."""
    rng, rank = np.random.default_rng(channels), len(sizes)
    depth = channels if kind == "convolution" else 1
    arrays = {
        "p": rng.standard_normal((channels, channels, *[1] * rank)) / np.sqrt(channels),
        "w": rng.standard_normal((channels, depth, *[window] * rank)), "b": rng.standard_normal(channels),
        "ones": np.ones(4), "zeros": np.zeros(4),
    }  # fmt: skip
    attributes: dict[str, Any] = {"strides": [stride] * rank, "pads": [window // 2] * 2 * rank}
    is_convolution = OPERATORS[kind] == "Conv"
    attributes |= {"group": channels if kind == "depthwise" else 1} if is_convolution else {}
    attributes |= {} if is_convolution else {"kernel_shape": [window] * rank}
    inputs = ["h", "w", "b"] if is_convolution else ["h"]
    nodes = [
        helper.make_node("Conv", ["x", "p"], ["h"]),
        helper.make_node(OPERATORS[kind], inputs, ["c"], **attributes),
        helper.make_node("Sigmoid" if activates else "Identity", ["c"], ["a"]),
        helper.make_node("Reshape", ["a", "groups"], ["g"]),
        helper.make_node("InstanceNormalization", ["g", "ones", "zeros"], ["y"]),
    ]
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    initializers.append(numpy_helper.from_array(np.array([0, 4, -1]), "groups"))
    declared = ["N", channels, *([f"s{i}" for i in range(rank)] if open_sizes else sizes)]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, declared)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], initializers,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("activates", [False, True])
@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize(
    ("channels", "sizes", "window", "stride"),
    [(32, (40,), 5, 1), (20, (33,), 3, 2), (36, (7, 21), 3, 1), (16, (9, 13), 3, 2), (8, (3, 4, 14), 3, 1)],
)
@pytest.mark.parametrize("kind", OPERATORS)
def test_results_read_as_rows_equal_the_interpreter(
    kind: str, channels: int, sizes: tuple[int, ...], window: int, stride: int, open_sizes: bool, activates: bool
) -> None:
    model = group_normalization(
        kind, channels, sizes, window, stride, open_sizes=open_sizes, activates=activates
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((2, channels, *sizes)).astype(np.float32)
    session = sardonyx.Session(model, compile="wait", threads=1)
    assert not session.not_compiled
    (actual,) = session.run(None, {"x": x})
    (expected,) = sardonyx.Session(model, compile="off").run(None, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["convolution", "depthwise"])
@pytest.mark.parametrize(("channels", "sizes"), [(32, (40,)), (20, (7, 21))])
def test_integer_results_read_as_rows_equal_the_interpreter(kind: str, channels: int, sizes: tuple[int, ...]) -> None:
    model = group_normalization(kind, channels, sizes, 3, 1, open_sizes=False, activates=True)
    x = np.random.default_rng(0).standard_normal((8, channels, *sizes)).astype(np.float32)
    quantized = sardonyx.to_proto(sardonyx.quantize(model, data={"x": x}).model)
    (actual,) = sardonyx.Session(quantized, compile="wait", threads=1).run(None, {"x": x})
    (expected,) = sardonyx.Session(quantized, compile="off").run(None, {"x": x})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.performance_guard
@pytest.mark.parametrize("kind", ["max", "mean"])
def test_an_activation_between_windows_and_groups_keeps_rows_contiguous(kind: str) -> None:
    model = group_normalization(kind, 32, (64,), 3, 1, open_sizes=False, activates=True)
    session = sardonyx.Session(model, compile="wait", threads=1)
    assert session.program is not None
    (rows,) = (launch for launch in session.program.launches if launch.title == "rows")
    assert not any(word in rows.text for word in ("gather", "sdiv", "udiv"))


@pytest.mark.performance_guard
@pytest.mark.parametrize("kind", ["convolution", "depthwise", "max"])
def test_no_element_of_a_block_is_stored_alone(kind: str) -> None:
    model = group_normalization(kind, 32, (64,), 3, 1, open_sizes=False, activates=False)
    session = sardonyx.Session(model, compile="wait", threads=1)
    assert session.program is not None
    titles = {launch.title for launch in session.program.launches}
    assert {"convolution": "direct convolution", "depthwise": "depthwise convolution", "max": "pooling"}[kind] in titles
    assert not any("store float " in launch.text for launch in session.program.launches)
