"""Tables of embeddings are integers in every mode, unless a row of one scale loses channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization import quantize

WORDS, WIDTH = 200, 48


def model(largest: float = 1.0) -> bytes:
    """Return a product of embeddings, of which one channel is larger than the others."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    table[:, 5] *= largest
    weight = (rng.standard_normal((WIDTH, 64)) / 7).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "x"], ["e"], "lookup"), helper.make_node("MatMul", ["e", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16, 64])
    arrays = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph(nodes, "net", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def samples(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.integers(0, WORDS, (2, 16))} for _ in range(count)]


@pytest.mark.parametrize("mode", ["static", "dynamic", "weights"])
def test_the_table_is_integers_in_each_mode(mode: Any) -> None:
    result = quantize(model(), samples(12) if mode == "static" else None, mode=mode)
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)
    assert not has_float_table(result.model)
    assert result.report.quantized == 2
    feeds = samples(1, seed=2)[0]
    (expected,), (actual,) = (sardonyx.Session(one, compile="wait").run(None, feeds) for one in (model(), result.model))
    assert 10 * np.log10(np.square(expected).sum() / np.square(expected - actual).sum()) > 35


@pytest.mark.parametrize("mode", ["static", "dynamic", "weights"])
def test_a_model_of_a_table_alone_has_integers_in_each_mode(mode: Any) -> None:
    proto = onnx.load_from_string(model())
    del proto.graph.node[1], proto.graph.initializer[1]
    proto.graph.node[0].output[0] = "y"
    proto.graph.output[0].type.tensor_type.shape.dim[2].dim_value = WIDTH
    result = quantize(proto, samples(4) if mode == "static" else None, mode=mode)
    assert not has_float_table(result.model)
    assert not any("0 products" in note for note in result.report.notes)


@pytest.mark.parametrize(
    ("options", "largest"), [({}, 100.0), ({"scheme": "w16a16"}, 1.0), ({"exclude": ["lookup"]}, 1.0)]
)
def test_a_table_that_loses_by_rows_of_8_bits_stays(options: dict[str, Any], largest: float) -> None:
    result = quantize(model(largest), samples(12), **options)
    assert has_float_table(result.model)
    assert result.report.quantized == 1


def has_float_table(model: ir.Model) -> bool:
    return any(
        value.dtype == ir.DataType.FLOAT and value.shape is not None and list(value.shape) == [WORDS, WIDTH]
        for value in model.graph.initializers.values()
    )
