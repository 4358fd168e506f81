"""Constant folding: folded and retained subgraphs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx import model as model_io
from sardonyx.rewrite import evaluate, pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.models import INT64, STRING, info, model, node


def folded(proto: onnx.ModelProto, **settings: object) -> tuple[ir.Model, Engine]:
    loaded = model_io.from_proto(proto)
    selection = pipeline.select(passes=["fold_constants", "extract_constant_to_initializer", "eliminate_deadend"])
    return loaded, pipeline.transform(loaded, selection, Settings(**settings))  # type: ignore[arg-type]


def operators(loaded: ir.Model) -> list[str]:
    return [n.op_type for n in loaded.graph]


def constants(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, **weights: object) -> onnx.ModelProto:
    return model([*nodes, node("Identity", ["last"], ["y"])], [], [info("y", None, kind)], weights)


def test_a_whole_subgraph_becomes_one_weight() -> None:
    nodes = [node("Tanh", ["k"], ["a"]), node("Mul", ["a", "a"], ["b"]), node("Add", ["x", "b"], ["y"])]
    proto = model(nodes, [info("x", [4])], [info("y", [4])], {"k": np.linspace(-1, 1, 4).astype(np.float32)})
    loaded, _ = folded(proto)
    assert operators(loaded) == ["Add"]
    feeds = {"x": np.ones(4, np.float32)}
    before, after = evaluate.evaluate(proto, feeds), evaluate.evaluate(model_io.to_proto(loaded), feeds)
    assert before["y"].tobytes() == after["y"].tobytes()


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_operators_are_never_folded(op: str) -> None:
    loaded, _ = folded(constants(node(op, ["k"], ["last"]), k=np.full(4, 0.5, np.float32)))
    assert op in operators(loaded)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float64", "bool"])
def test_types_stay_exactly(dtype: str) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    proto = constants(node("Concat", ["k", "k"], ["last"], axis=0), kind=kind, k=np.array([0, 1, 1], dtype))
    loaded, _ = folded(proto)
    assert "Concat" not in operators(loaded)
    actual = evaluate.evaluate(model_io.to_proto(loaded), {})["y"]
    assert actual.dtype == dtype and actual.tolist() == np.array([0, 1, 1] * 2, dtype).tolist()


def test_strings_are_folded() -> None:
    words = np.array(["a", "ü"], object)
    loaded, _ = folded(constants(node("Concat", ["k", "k"], ["last"], axis=0), kind=STRING, k=words))
    assert "Concat" not in operators(loaded)
    assert evaluate.evaluate(model_io.to_proto(loaded), {})["y"].tolist() == ["a", "ü"] * 2


def test_bfloat16_is_folded() -> None:
    proto = constants(node("Neg", ["k"], ["last"]), kind=TensorProto.BFLOAT16, k=np.ones(3, ml_dtypes.bfloat16))
    loaded, _ = folded(proto)
    assert "Neg" not in operators(loaded)
    arrays = [v.const_value.numpy() for v in loaded.graph.initializers.values() if v.const_value is not None]
    assert any(array.dtype == ml_dtypes.bfloat16 and (array.astype(np.float32) == -1).all() for array in arrays)


def test_results_beyond_the_limit_are_refused() -> None:
    proto = constants(node("Tile", ["k", "n"], ["last"]), k=np.ones(10, np.float32), n=np.array([1000]))
    loaded, engine = folded(proto, growth=1000)
    assert "Tile" in operators(loaded)
    assert any("bytes" in reason for reason in engine.refused.values())
    assert "Tile" not in operators(folded(proto, growth=100_000)[0])


def test_one_number_repeated_stays_an_operator() -> None:
    large = constants(node("ConstantOfShape", ["n"], ["last"]), n=np.array([100, 100]))
    assert "ConstantOfShape" in operators(folded(large)[0])
    small = constants(node("ConstantOfShape", ["n"], ["last"]), n=np.array([4]))
    assert "ConstantOfShape" not in operators(folded(small)[0])


def test_a_size_that_depends_on_data_is_folded() -> None:
    proto = constants(node("NonZero", ["k"], ["last"]), kind=INT64, k=np.array([0, 3, 0, 4], np.float32))
    loaded, _ = folded(proto)
    assert evaluate.evaluate(model_io.to_proto(loaded), {})["y"].tolist() == [[1, 3]]


def test_an_evaluation_that_fails_leaves_the_model_as_it_is() -> None:
    nodes = [node("Gather", ["k", "i"], ["last"])]
    loaded, _ = folded(constants(*nodes, k=np.ones(3, np.float32), i=np.array([7])))
    assert "Gather" in operators(loaded)
