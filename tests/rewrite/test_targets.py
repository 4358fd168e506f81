"""Targets: their passes, operators and operator sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

from sardonyx.errors import OptionError
from sardonyx.rewrite import pipeline, targets
from sardonyx.rewrite.language import EXACT, REASSOCIATES, REGISTRY, Expr, Result, rule
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.record import Report
from sardonyx.rewrite.site import Site
from tests.rewrite.conftest import Clock

SWISH = """<ir_version: 11, opset_import: ["" : 24]>
g (float[2, 3] x) => (float[2, 3] y) { y = Swish(x) }"""


@pytest.fixture(autouse=True)
def _no_rules_left() -> Iterator[None]:
    known = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(known)


def test_an_unknown_target_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="unknown target 'abacus'"):
        targets.profile("abacus")


@pytest.mark.parametrize("name", sorted(targets.PROFILES))
def test_passes_that_a_target_adds_or_leaves_out_exist(name: str) -> None:
    profile = targets.profile(name)
    assert profile.adds | profile.without <= set(pipeline.available_passes())


def test_pairs_of_dequantizing_and_quantizing_stay_for_tensorrt_alone() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (uint8[2, 3] x) => (uint8[3, 2] y) <float s = {0.5}, uint8 z = {3}> {
        real = DequantizeLinear(x, s, z)
        turned = Transpose<perm = [1, 0]>(real)
        y = QuantizeLinear(turned, s, z)
    }""")
    assert sum(optimize(model, target="tensorrt").report.after.operators.values()) == 3
    assert optimize(model).report.after.operators == {"Transpose": 1}


def test_an_operator_unknown_to_a_parser_is_decomposed_for_its_target_only() -> None:
    model = parser.parse_model(SWISH)
    assert optimize(model, target="tensorrt").report.after.operators == {"Mul": 1, "Sigmoid": 1}
    assert optimize(model).report.after.operators == {"Swish": 1}


def test_no_rule_introduces_an_operator_unknown_to_the_parser() -> None:
    @rule("fuse_into_unique", on="Relu", exactness=EXACT)
    def unknown_there(s: Site) -> Result:
        """Relu as an operator unknown to the parser of TensorRT."""
        return Expr(("Swish",), (s.node.inputs[0],), {})

    model = parser.parse_model(SWISH.replace("Swish", "Relu"))
    report = optimize(model, target="tensorrt", rules=[unknown_there], verify=False).report
    assert ("fuse_into_unique/unknown_there", "y", "tensorrt does not support Swish") in report.refused
    assert report.after.operators == {"Relu": 1}


def test_the_operator_set_changes_only_if_too_old_for_the_target() -> None:
    text = '<ir_version: 3, opset_import: ["" : 8]> g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }'
    model = parser.parse_model(text)
    assert optimize(model).model.opset_imports[""] == 8
    converted = optimize(model, target="tensorrt")
    assert converted.model.opset_imports[""] == 9
    assert converted.report.gate.startswith("opset 8 → 9")
    assert optimize(model, target="onnxruntime").model.opset_imports[""] == 8


@pytest.mark.parametrize("opset", [11, 13, 18, 21])
def test_a_requested_operator_set_is_reached_and_proved(opset: int) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 8] x) => (float[2, 8] y) <float[8] s = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> {
        n = LayerNormalization<axis = -1>(x, s)
        y = Relu(n)
    }"""
    result = optimize(parser.parse_model(text), opset=opset)
    assert result.model.opset_imports[""] == opset
    assert result.report.verdict.status == "proved"
    assert result.report.gate.startswith(f"opset 17 → {opset}")


def test_rewrites_of_a_newer_operator_set_are_counted_by_site() -> None:
    @rule("fuse_x", on="Tanh", exactness=REASSOCIATES, opset=20)
    def one(s: Site) -> Result:
        """Tanh at a newer set."""
        return Expr(("Abs",), (s.node.inputs[0],), {})

    @rule("fuse_y", on="Tanh", exactness=REASSOCIATES, opset=23)
    def other(s: Site) -> Result:
        """Tanh at a set newer still."""
        return Expr(("Abs",), (s.node.inputs[0],), {})

    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] z) { y = Tanh(x) a = Exp(x) z = Tanh(a) }"""
    model = parser.parse_model(text)
    report: Report = optimize(model, rules=[one, other], verify=False).report
    assert report.refused_for_opset() == {"20": 2}
    raised = optimize(model, rules=[one, other], verify=False, opset=20).report
    assert raised.by_pass()["fuse_x"] == report.refused_for_opset()["20"]
    assert raised.refused_for_opset() == {}


def test_supplied_inputs_are_measured(clock: Clock) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { a = Identity(x) y = Relu(a) }'
    optimize(parser.parse_model(text), target="onnxruntime", inputs={"x": np.ones(7, np.float32)}, gate="latency")
    (request,) = clock.requests
    assert request["engine"] == "onnxruntime"
    assert np.array_equal(request["inputs"]["x"], np.ones(7, np.float32))


_SUITES = os.environ.get("SARDONYX_SUITES", "")
_QUICK = ("cnn_mnist_pytorch", "yunet_n_dynamic")
_OTHERS = ("basic_pitch", "byte_sb_bilstm", "fastestdet", "superres_ppp", "gtcrn", "voicevox_intonation", "dtln_1")


@pytest.mark.skipif(not _SUITES, reason="SARDONYX_SUITES does not name the folder of public models")
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("name", [*_QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in _OTHERS)])
def test_public_models_are_proved_at_lower_and_higher_operator_sets(name: str, opset: int) -> None:
    result = optimize(Path(_SUITES, "real", f"{name}.onnx"), opset=opset)
    assert result.model.opset_imports[""] == opset
    assert result.report.verdict.status == "proved", result.report.verdict
    assert not result.report.dropped
