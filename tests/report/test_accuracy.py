"""The first differing layer is named, for any memory budget."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx import demo
from sardonyx.compress.float16 import convert_float16
from sardonyx.errors import OptionError
from sardonyx.report.accuracy import compare


def classifier() -> onnx.ModelProto:
    return onnx.load(demo.path("digits_classifier"))


def wrong_in(layer: int) -> tuple[onnx.ModelProto, str]:
    """Return the classifier with larger weights in its ``layer``-th product or convolution, and that layer's output."""
    model = classifier()
    nodes = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    node = nodes[layer]
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    tensor = weights[next(name for name in node.input if name in weights)]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.5), tensor.name))
    return model, node.output[0]


def images() -> dict[str, np.ndarray]:
    (value,) = classifier().graph.input
    shape = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
    return {value.name: np.random.default_rng(0).random(shape, np.float32)}


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_the_first_layer_that_differs_is_named(budget: int) -> None:
    for layer in (0, 1, -1):
        other, tensor = wrong_in(layer)
        comparison = compare(
            classifier(), other, providers=["reference"], inputs=images(), tolerance=1e-6, budget=budget
        )
        assert not comparison.equal
        assert comparison.first is not None and comparison.first.tensor == tensor
        assert all(layer_error.error <= 1e-6 for layer_error in comparison.layers[:-1])


def test_texts_between_layers_are_compared() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]> g (int64[4] x) => (float[4] y) {'
        ' a = ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1], values_strings = ["p", "q"]>(x)'
        ' y = ai.onnx.ml.LabelEncoder<keys_strings = ["q"], values_floats = [2.5]>(a) }'
    )
    feeds = {"x": np.array([0, 1, 1, 0])}
    assert compare(model, model, providers=["reference"], inputs=feeds, all_layers=True, budget=1).equal


def test_layers_of_equal_models_are_compared_on_request() -> None:
    comparison = compare(classifier(), classifier(), providers=["reference"], inputs=images(), all_layers=True)
    assert comparison.equal and comparison.first is None and comparison.unpaired == 0
    assert len(comparison.layers) == len(classifier().graph.node) - 1
    assert all(layer_error.error == 0 for layer_error in (*comparison.outputs, *comparison.layers))
    assert compare(classifier(), classifier(), providers=["reference"], inputs=images()).layers == ()


def test_two_providers_of_one_model_are_compared() -> None:
    comparison = compare(classifier(), providers=["reference", "native"], inputs=images(), all_layers=True)
    assert comparison.equal and 0 < max(layer_error.error for layer_error in comparison.layers) < 1e-4


def test_two_precisions_are_compared_in_the_wider() -> None:
    half = convert_float16(classifier()).model
    comparison = compare(classifier(), half, providers=["reference"], inputs=images(), tolerance=1e-2, all_layers=True)
    assert comparison.equal
    assert 0 < comparison.outputs[0].error < 1e-2


def test_incomparable_models_are_refused() -> None:
    with pytest.raises(OptionError, match="nothing to compare"):
        compare(classifier(), providers=["reference"])
    renamed = classifier()
    renamed.graph.input[0].name = "elsewhere"
    for node in renamed.graph.node:
        node.input[:] = ["elsewhere" if name == classifier().graph.input[0].name else name for name in node.input]
    with pytest.raises(OptionError, match="missing input"):
        compare(classifier(), renamed, providers=["reference"], inputs=images())
