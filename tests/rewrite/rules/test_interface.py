"""Passes that change a model's interface run only if named, and change only that."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.rewrite_context import Settings

NAMED = {
    "freeze_initializers",
    "lift_lexical_references",
    "rename_input_output",
    "rewrite_input_dtype",
    "set_unique_name_for_nodes",
    "split_init",
    "split_predict",
}

GATHER = """<ir_version: 10, opset_import: ["": 17]> g (float[4, 2] table, int64[n] at) => (float[n, 2] y)
{ rows = Gather (table, at)  y = Relu (rows) }"""

DEFAULT = """<ir_version: 10, opset_import: ["": 17]> g (float[2] x, float[2] w) => (float[2] y)
<float[2] w = {3.0, 4.0}> { y = Mul (x, w) }"""

IF = """<ir_version: %d, opset_import: ["": 17]> g (bool c, float[2] x) => (float[2] y) { a = Neg (x)
y = If (c) <then_branch = t () => (float[2] p) { p = Exp (a) },
            else_branch = e () => (float[2] q) { q = Add (a, x) }> }"""


def transformed(model: ir.Model, *passes: str) -> Engine:
    selection = pipeline.select(passes=passes)
    engine = pipeline.transform(model, selection, Settings())
    pipeline.finish(engine, selection)
    return engine


def test_inputs_with_defaults_are_frozen_at_them() -> None:
    model = model_io.from_proto(onnx.parser.parse_model(DEFAULT))
    transformed(model, "freeze_initializers")
    assert [value.name for value in model.graph.inputs] == ["x"]
    actual = evaluate(model_io.to_proto(model), {"x": np.ones(2, np.float32)})["y"]
    assert actual.tolist() == [3.0, 4.0]


def run(text: str, *passes: str) -> tuple[onnx.ModelProto, Engine]:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    engine = transformed(model, *passes)
    proto = model_io.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return proto, engine


def test_none_runs_by_default() -> None:
    selection = pipeline.select()
    running = {rule.name for rule in selection.rules} | {sweep.rule.name for sweep in selection.sweeps}
    assert not NAMED & running


def test_inputs_of_int64_are_narrowed_and_cast() -> None:
    proto, engine = run(GATHER, "rewrite_input_dtype")
    kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    assert kinds == {"table": onnx.TensorProto.FLOAT, "at": onnx.TensorProto.INT32}
    assert [node.op_type for node in proto.graph.node] == ["Cast", "Gather", "Relu"]
    assert len(engine.applied) == 1
    table, at = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([3, 0], np.int32)
    assert (evaluate(proto, {"table": table, "at": at})["y"] == table[at]).all()


def test_inputs_and_outputs_are_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, _ = run(GATHER, "rename_input_output")
    assert [v.name for v in (*proto.graph.input, *proto.graph.output)] == ["input_0", "input_1", "output_0"]
    monkeypatch.setenv("OPTIMIZER_RENAME_INPUT_PATTERN", "in_%d_")
    monkeypatch.setenv("OPTIMIZER_RENAME_OUTPUT_PATTERN", "without a number")
    proto, _ = run(GATHER, "rename_input_output")
    assert [v.name for v in (*proto.graph.input, *proto.graph.output)] == ["in_0_", "in_1_", "output_0"]


def test_a_name_that_something_else_has_is_not_given() -> None:
    proto, engine = run(GATHER.replace("rows", "input_1"), "rename_input_output")
    assert [v.name for v in proto.graph.input] == ["table", "at"]
    assert any("already names another value" in reason for reason in engine.refused.values())


def test_nodes_without_a_name_get_one() -> None:
    proto, _ = run(GATHER, "set_unique_name_for_nodes")
    names = [node.name for node in proto.graph.node]
    assert all(names) and len(set(names)) == len(names)


def test_captures_are_listed_in_the_metadata_of_nodes() -> None:
    proto, _ = run(IF % 10, "lift_lexical_references")
    listed = {entry.key: entry.value for node in proto.graph.node for entry in node.metadata_props}
    assert json.loads(listed["captures"]) == ["a", "x"]
    proto, engine = run(IF % 8, "lift_lexical_references")
    assert not engine.applied and any("IR version 10" in reason for reason in engine.refused.values())


def test_what_bodies_read_is_an_input_of_the_predicting_half() -> None:
    text = """<ir_version: 10, opset_import: ["": 17]> g (bool c) => (float[2] y) <float[2] w = {1, 2}> { a = Neg (w)
    y = If (c) <then_branch = t () => (float[2] p) { p = Exp (a) },
                else_branch = e () => (float[2] q) { q = Abs (w) }> }"""
    proto, _ = run(text, "split_predict")
    assert [value.name for value in proto.graph.input] == ["c", "a", "w"] and not proto.graph.initializer
    prepare, _ = run(text, "split_init")
    assert {value.name for value in prepare.graph.output} == {"a", "w"}
    feeds = evaluate(prepare, {}) | {"c": np.array(True)}
    assert np.allclose(evaluate(proto, feeds)["y"], np.exp([-1.0, -2.0]))


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_second_run_changes_nothing(name: str) -> None:
    for text in (GATHER, IF % 10):
        model = model_io.from_proto(onnx.parser.parse_model(text))
        transformed(model, name)
        assert not transformed(model, name).applied
