"""A table of embeddings that a product reads too is stored once as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization import quantize

WORDS, WIDTH = 600, 48


def language_model(form: str) -> bytes:
    """Return scores of words by the table of their embeddings."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    inner = (rng.standard_normal((WIDTH, WIDTH)) / 7).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["e"], "lookup"),
        helper.make_node("MatMul", ["e", "inner"], ["h"], "inner_product"),
        helper.make_node("Relu", ["h"], ["r"]),
    ]
    if form == "gemm":
        nodes += [
            helper.make_node("Reshape", ["r", "flat"], ["f"]),
            helper.make_node("Gemm", ["f", "table"], ["y"], "scores", transB=1),
        ]
    else:
        nodes += [
            helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["r", "t"], ["s"], "scores"),
            helper.make_node("Reshape", ["s", "flat"], ["y"]),
        ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", WORDS])
    arrays = [
        numpy_helper.from_array(table, "table"), numpy_helper.from_array(inner, "inner"),
        numpy_helper.from_array(np.array([-1, WIDTH if form == "gemm" else WORDS]), "flat"),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "net", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def samples(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.integers(0, WORDS, (2, 16))} for _ in range(count)]


@pytest.mark.parametrize("form", ["gemm", "matmul"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weights"])
def test_the_integers_of_table_and_product_are_one_tensor(form: str, mode: Any) -> None:
    model = language_model(form)
    result = quantize(model, samples(12) if mode == "static" else None, mode=mode)
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    large = [tensor for tensor in proto.graph.initializer if np.prod(tensor.dims) >= WORDS * WIDTH]
    assert [tensor.data_type for tensor in large] == [TensorProto.INT8]
    assert any("share the integers" in note for note in result.report.notes)
    feeds = samples(1, seed=2)[0]
    (expected,) = sardonyx.Session(model, compile="wait").run(None, feeds)
    content = proto.SerializeToString()
    engine = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for actual in (sardonyx.Session(content, compile="wait").run(None, feeds)[0], engine.run(None, feeds)[0]):
        assert 10 * np.log10(np.square(expected).sum() / np.square(expected - actual).sum()) > 30


def test_a_target_that_reads_weights_from_constants_stores_both() -> None:
    result = quantize(language_model("matmul"), samples(12), target="tensorrt")
    assert not any(node.op_type == "Transpose" for node in result.model.graph)


def test_a_product_of_fewer_bits_has_integers_of_its_own() -> None:
    result = quantize(language_model("matmul"), weights="int4")
    kinds = {value.dtype.name for value in result.model.graph.initializers.values() if np.prod(value.shape) > WORDS}
    assert {"INT8", "UINT4"} <= kinds
