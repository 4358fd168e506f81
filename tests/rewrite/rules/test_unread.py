"""Unused parts of a model that are not nodes: functions and operator sets."""

from __future__ import annotations

import onnx

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings

TEXT = """<ir_version: 8, opset_import: ["": 17, "local": 1, "other": 3]>
g (float[2] x) => (float[2] y) { y = local.outer (x) }
<domain: "local", opset_import: ["": 17, "local": 1]> outer (a) => (b) { b = local.inner (a) }
<domain: "local", opset_import: ["": 17]> inner (a) => (b) { b = Relu (a) }
<domain: "local", opset_import: ["": 17]> idle (a) => (b) { b = Neg (a) }
"""


def _after(name: str) -> onnx.ModelProto:
    model = model_io.from_proto(onnx.parser.parse_model(TEXT))
    pipeline.transform(model, pipeline.select(passes=[name]), Settings())
    return model_io.to_proto(model)


def test_functions_that_nothing_calls_go_and_those_that_functions_call_stay() -> None:
    assert sorted(function.name for function in _after("eliminate_unused_function").functions) == ["inner", "outer"]


def test_operator_sets_that_nothing_uses_go() -> None:
    imports = {opset.domain: opset.version for opset in _after("eliminate_unused_opset_import").opset_import}
    assert imports == {"": 17, "local": 1}
