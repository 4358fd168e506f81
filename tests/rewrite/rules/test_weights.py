"""Passes that store weights in other types, as findings of ``check --lint`` recommend."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.model.check import check
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.evaluate import evaluate

GATHER = """<ir_version: 8, opset_import: ["": 17]> g (float[4, 2] x) => (float[2, 2] y, int64[2] z)
<int64[2] at = {3, 0}, int64[2] n = {1, 2}, int64[1] large = {3000000000}>
{ y = Gather (x, at)  m = Add (n, large)  z = Identity (m) }"""

DOUBLE = """<ir_version: 8, opset_import: ["": 17]> g (double[2] x, bool c) => (double[2] y) <double[2] w = {1.5, 0.1}>
{ k = Constant <value = double[2] {0.25, 0.5}> ()  a = Mul (x, w)  b = Cast <to = 11> (c)  d = Add (a, b)
  e = If (c) <then_branch = t () => (double[2] p) { p = Add (d, k) },
              else_branch = f () => (double[2] q) { q = Exp (d) }>
  y = Sub (e, k) }"""


def optimized(text: str, name: str) -> onnx.ModelProto:
    result = sardonyx.optimize(onnx.parser.parse_model(text), passes=[name], verify=False)
    proto = result.proto
    onnx.checker.check_model(proto, full_check=True)
    return proto


def test_indices_that_fit_are_stored_in_32_bits() -> None:
    proto = optimized(GATHER, "narrow_int64_weights")
    kinds = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    wide, narrow = onnx.TensorProto.INT64, onnx.TensorProto.INT32
    assert kinds == {"at": narrow, "n": wide, "large": wide}
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    before = evaluate(onnx.parser.parse_model(GATHER), {"x": x})
    assert all((value == before[name]).all() for name, value in evaluate(proto, {"x": x}).items())


def test_denormals_become_zeros_of_their_sign() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y)
    { y = Mul (x, w) }""")
    weight = np.array([1e-40, -1e-41, 2.0], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    proto = sardonyx.optimize(model, passes=["flush_denormal_weights"], verify=False).proto
    flushed = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    assert flushed.tolist() == [0.0, 0.0, 2.0] and np.signbit(flushed).tolist() == [False, True, False]


def test_double_precision_becomes_single_everywhere() -> None:
    proto = optimized(DOUBLE, "rewrite_float64_to_float32")
    assert onnx.TensorProto.DOUBLE not in {t.data_type for t in proto.graph.initializer}
    interface = (*proto.graph.input, *proto.graph.output)
    assert {v.name: v.type.tensor_type.elem_type for v in interface} == {"x": 1, "c": 9, "y": 1}
    x = np.array([0.3, -1.2])
    for truth in (True, False):
        before = evaluate(onnx.parser.parse_model(DOUBLE), {"x": x, "c": np.array(truth)})["y"]
        after = evaluate(proto, {"x": x.astype(np.float32), "c": np.array(truth)})["y"]
        assert after.dtype == np.float32 and np.allclose(before, after, rtol=1e-6)


def test_numbers_beyond_single_precision_stay() -> None:
    text = DOUBLE.replace("{1.5, 0.1}", "{1e300, 0.1}")
    result = sardonyx.optimize(onnx.parser.parse_model(text), passes=["rewrite_float64_to_float32"], verify=False)
    assert not result.report.applied
    assert any("beyond the range of float32" in reason for _, _, reason in result.report.refused)


def test_a_changed_interface_is_not_called_proved() -> None:
    result = sardonyx.optimize(onnx.parser.parse_model(DOUBLE), passes=["rewrite_float64_to_float32"])
    assert result.report.applied and result.report.verdict.status == "not proved"
    assert "changed inputs or outputs" in result.report.verdict.reason


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("int64-fits-int32", GATHER),
        ("float64", DOUBLE),
        (
            "weight-denormal",
            """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) <float[1] w = {1e-40}>
            { y = Mul (x, w) }""",
        ),
    ],
)
def test_the_command_that_lint_recommends_repairs_the_finding(code: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    finding = next(f for f in check(path, lint=True) if f.code == code)
    words = shlex.split(finding.command)
    passes = words[words.index("--passes") + 1].split(",")
    assert set(passes) <= set(pipeline.available_passes())
    sardonyx.optimize(path, passes=passes, verify=False).save(path)
    assert code not in {f.code for f in check(path, lint=True)}
