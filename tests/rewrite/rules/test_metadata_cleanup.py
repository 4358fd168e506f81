"""Descriptions, inferred shapes and unused inputs are removed on request, after the proof."""

from __future__ import annotations

import numpy as np
import onnx

import sardonyx
from sardonyx.compat import onnxoptimizer
from sardonyx.rewrite import pipeline

MODEL = """<ir_version: 10, opset_import: ["": 17]>
    g (float[n] x, float[3] unread, bool c) => (float[n] y) {
        r = Exp (x)
        y = If (c) <then_branch = t () => (float[n] a) { a = Neg (r) },
                    else_branch = e () => (float[n] b) { b = Sin (r) }>
    }"""


def parsed() -> onnx.ModelProto:
    model = onnx.parser.parse_model(MODEL)
    model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = "why"
    model.graph.input[0].doc_string = model.graph.node[1].attribute[0].g.node[0].doc_string = "what"
    onnx.helper.set_model_props(model, {"author": "someone"})
    model.graph.node[0].metadata_props.add(key="from", value="there")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, ["n"]))
    return model


def test_texts_stay_unless_asked() -> None:
    assert onnxoptimizer.optimize(parsed(), ["nop"]) == parsed()


def test_texts_and_inferred_shapes_are_cleared() -> None:
    bare = onnxoptimizer.optimize(parsed(), ["clear_doc_strings", "clear_metadata", "clear_value_info"])
    onnx.checker.check_model(bare, full_check=True)
    assert not bare.graph.value_info
    assert not bare.metadata_props
    assert not bare.graph.node[0].metadata_props
    inner = bare.graph.node[1].attribute[0].g.node[0]
    assert not any(t.doc_string for t in (bare, bare.graph, bare.graph.node[0], bare.graph.input[0], inner))


def test_unread_inputs_go_after_the_proof() -> None:
    result = sardonyx.optimize(parsed(), passes=["eliminate_identity", "eliminate_unused_input"])
    assert result.report.verdict.status == "proved"
    assert [value.name for value in result.model.graph.inputs] == ["x", "c"]
    assert [value.name for value in sardonyx.optimize(parsed()).model.graph.inputs] == ["x", "unread", "c"]


def test_interface_passes_work_beside_the_proof() -> None:
    feeds = {"x": np.ones(2, np.float32), "unread": np.ones(3, np.float32), "c": np.array(True)}
    result = sardonyx.optimize(parsed(), passes=["eliminate_identity", "rename_input_output"], inputs=feeds)
    assert result.report.verdict.status == "proved"
    assert [value.name for value in result.model.graph.inputs] == ["input_0", "input_1", "input_2"]


def test_these_passes_run_only_when_named() -> None:
    late = {sweep.rule.name for sweep in pipeline.SWEEPS.values() if sweep.late}
    assert {"clear_value_info", "eliminate_unused_input", "rename_input_output", "split_init"} <= late
    assert not [sweep.rule.name for sweep in pipeline.select().sweeps if sweep.late]
