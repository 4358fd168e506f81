"""Movements between operators on integers move integers, at one scale on both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from sardonyx.compress.quantization import quantize
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.model import load
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.session import Session

RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.standard_normal((1, 8, 6, 6)).astype(np.float32)} for _ in range(8)]

SHUFFLED = """<ir_version: 9, opset_import: ["": 17]>
net (float[1,8,6,6] x) => (float[1,8,6,6] y) {{
    a = Conv(x, w1)
    left = Relu(a)
    b = Conv(x, w2)
    joined = Concat<axis = 1>(left, b)
    pairs = Reshape(joined, five)
    first = Gather<axis = 2>(pairs, zero)
    second = Gather<axis = 2>(pairs, one)
    c = Conv(second, w3)
    {other}
    again = Concat<axis = 1>(first, c)
    large = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(again, , twice)
    halved = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(large)
    d = Conv(halved, w4)
    y = Add(d, {last})
}}
"""


def network(other: str = "", last: str = "x") -> bytes:
    """Return a network that joins, shuffles and repeats channels, and perhaps reads half of them in float."""
    model = onnx.parser.parse_model(SHUFFLED.format(other=other, last=last))
    arrays: dict[str, Any] = {
        "five": np.array([1, 8, 2, 6, 6]), "zero": np.array(0), "one": np.array(1),
        "twice": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    rng = np.random.default_rng(1)
    for number, channels in enumerate((8, 8, 8, 16), 1):
        arrays[f"w{number}"] = (rng.standard_normal((8, channels, 1, 1)) / channels**0.5).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model.SerializeToString()


def test_shuffled_channels_stay_integers_at_the_scale_of_their_source() -> None:
    model = load(network())
    infer_shapes(model)
    placement = find_placement(model)
    assert {str(value.name): str(source.name) for value, source in placement.moved.items()} == {
        "first": "pairs", "second": "pairs", "pairs": "joined", "large": "again",
    }  # fmt: skip
    assert {node.op_type for readers in placement.reads.values() for node, _ in readers} >= {"Concat", "Resize"}
    result = quantize(network(), SAMPLES)
    assert result.report.outputs[0].sqnr > 28
    for node in result.model.graph:
        if node.op_type in ("Reshape", "Gather", "Resize"):
            source, reader = node.inputs[0], next(iter(node.outputs[0].uses())).node
            assert source is not None and source.producer() is not None
            assert reader.inputs[1] is not None and source.producer().inputs[1] is not None  # type: ignore[union-attr]
            scales = [one.inputs[1].const_value.numpy() for one in (source.producer(), reader)]  # type: ignore[union-attr]
            assert scales[0] == scales[1]


@pytest.mark.parametrize("reader", ["Tanh", "Softmax"])
def test_a_movement_with_a_reader_of_floats_moves_floats(reader: str) -> None:
    model = load(network(f"other = {reader}(first)", "other"))
    infer_shapes(model)
    assert {str(value.name) for value in find_placement(model).moved} == {"large", "second"}


def test_excluded_movements_move_floats() -> None:
    model = load(network())
    infer_shapes(model)
    assert {str(value.name) for value in find_placement(model, ["Gather"]).moved} == {"large"}


def test_operators_on_integers_move_integers_themselves() -> None:
    result = quantize(network(), SAMPLES, form="qoperator", target="onnxruntime")
    moved = [node for node in result.model.graph if node.op_type in ("Reshape", "Gather", "Resize")]
    assert len(moved) >= 4 and all(node.outputs[0].dtype.is_integer() for node in moved if node.outputs[0].dtype)
    plain = quantize(network(), SAMPLES)
    for sample in SAMPLES[:2]:
        first, second = (Session(one.model, compile="off").run(None, sample)[0] for one in (result, plain))
        np.testing.assert_allclose(first, second, atol=0.05 * np.abs(second).max())
