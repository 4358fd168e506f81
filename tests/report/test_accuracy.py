"""Where two models part is named by the first layer, whatever fits into memory at a time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sardonyx import demo
from sardonyx.compress.float16 import convert_float_to_float16
from sardonyx.errors import OptionError
from sardonyx.report.accuracy import compare


def classifier() -> onnx.ModelProto:
    return onnx.load(demo.path("digits_classifier"))


def wrong_in(layer: int) -> tuple[onnx.ModelProto, str]:
    """The classifier with larger weights of its ``layer``-th product or convolution, and what that layer makes."""
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
        found = compare(classifier(), other, providers=["reference"], inputs=images(), tolerance=1e-6, budget=budget)
        assert not found.equal
        assert found.first is not None and found.first.tensor == tensor
        assert all(each.error <= 1e-6 for each in found.layers[:-1])


def test_layers_of_equal_models_are_compared_when_asked() -> None:
    found = compare(classifier(), classifier(), providers=["reference"], inputs=images(), all_layers=True)
    assert found.equal and found.first is None and found.unpaired == 0
    assert len(found.layers) == len(classifier().graph.node) - 1
    assert all(each.error == 0 for each in (*found.outputs, *found.layers))
    assert compare(classifier(), classifier(), providers=["reference"], inputs=images()).layers == ()


def test_two_providers_of_one_model() -> None:
    found = compare(classifier(), providers=["reference", "native"], inputs=images(), all_layers=True)
    assert found.equal and 0 < max(each.error for each in found.layers) < 1e-4


def test_two_precisions_are_compared_in_the_wider() -> None:
    half = convert_float_to_float16(classifier()).model
    found = compare(classifier(), half, providers=["reference"], inputs=images(), tolerance=1e-2, all_layers=True)
    assert found.equal
    assert 0 < found.outputs[0].error < 1e-2


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(OptionError, match="nothing to compare"):
        compare(classifier(), providers=["reference"])
    renamed = classifier()
    renamed.graph.input[0].name = "elsewhere"
    for node in renamed.graph.node:
        node.input[:] = ["elsewhere" if name == classifier().graph.input[0].name else name for name in node.input]
    with pytest.raises(OptionError, match="is not fed"):
        compare(classifier(), renamed, providers=["reference"], inputs=images())
