"""Models for engines with converters of their own: the files run there with the same answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser

import sardonyx
from sardonyx.errors import EvaluationError, MissingDependencyError, OptionError, UnsupportedError
from sardonyx.export import checking
from sardonyx.export.artifact import Artifact, Options
from sardonyx.export.exporting import loaded
from sardonyx.export.foreign_converters import run_in_child
from sardonyx.export.targets import missing_packages, target_of

NETWORK = (
    "agraph (float[N,3,8,8] x) => (float[N,4] y) { c = Conv <pads: ints = [1,1,1,1]>"
    " (x, w, b) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) y = Softmax(f) }"
)


def network() -> onnx.ModelProto:
    graph = parser.parse_graph(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,))):
        array = rng.standard_normal(shape).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", ["openvino", "mnn", "ncnn"])
def test_the_engine_gives_the_answers_of_the_model(target: str, tmp_path: Path) -> None:
    row = target_of(target)
    if missing := missing_packages(row):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[{row.extra}])")
    result = sardonyx.convert_to(network(), target, sizes=None if row.opens_sizes else {"N": 1})
    assert result.report.verdict.status == "proved", result.report.verdict
    files = result.save(tmp_path / f"net{row.suffix}")
    assert files[-1].name == f"net{row.suffix}" and all(file.stat().st_size for file in files)


def test_mnn_runs_recurrent_layers() -> None:
    if missing := missing_packages(target_of("mnn")):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[mnn])")
    text = "agraph (float[5,2,4] x) => (float[5,1,2,3] y) { y = LSTM <hidden_size: int = 3> (x, w, r, b) }"
    graph = parser.parse_graph(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (1, 12, 4)), ("r", (1, 12, 3)), ("b", (1, 24))):
        graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = sardonyx.convert_to(model, "mnn")
    # A session of MNN, which has no control flow, gives no result.
    assert result.report.verdict.status == "proved", (result.report.verdict, result.report.guilty)


def test_a_target_without_open_sizes_asks_for_numbers() -> None:
    if missing := missing_packages(target_of("ncnn")):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[ncnn])")
    with pytest.raises(OptionError, match="no open sizes"):
        sardonyx.convert_to(network(), "ncnn")


def test_sizes_are_those_of_the_inputs_for_a_target_without_open_sizes() -> None:
    row = target_of("ncnn")
    inputs = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    source, fixed = loaded(network(), row, {}, inputs)
    assert fixed == {"N": 1}
    assert source.graph.inputs[0].shape == ir.Shape([1, 3, 8, 8])
    assert loaded(network(), row, {"N": 1}, None)[1] == {"N": 1}
    with pytest.raises(OptionError, match="x"):
        loaded(network(), row, {}, {"x": np.zeros((1, 3), np.float32)})
    if not missing_packages(row):
        report = sardonyx.convert_to(network(), "ncnn", inputs=inputs).report
        assert report.verdict.status == "proved", report.verdict
        assert "sizes are fixed as the inputs have them: N=1" in report.notes


def test_openvino_refuses_an_operator_by_name() -> None:
    pytest.importorskip("openvino", reason="needs openvino (sardonyx[openvino])")
    graph = parser.parse_graph("agraph (float[2,2] x) => (float y) { y = Det(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="no conversion rule for Det"):
        sardonyx.convert_to(model, "openvino")


def test_openvino_runs_models_without_weights() -> None:
    pytest.importorskip("openvino", reason="needs openvino (sardonyx[openvino])")
    graph = parser.parse_graph("agraph (float[N,3] x) => (float[N,3] y) { y = Abs(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert sardonyx.convert_to(model, "openvino").report.verdict.status == "proved"


def test_a_model_that_openvino_cannot_compile_is_refused_beforehand() -> None:
    pytest.importorskip("openvino", reason="needs openvino (sardonyx[openvino])")
    graph = parser.parse_graph(
        "agraph (int64[N] s, float[M,3] x) => (float[A,B] y) { z = ConstantOfShape(s) y = Add(z, x) }"
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="OpenVINO refuses"):
        sardonyx.convert_to(model, "openvino")
    assert any("OpenVINO refuses" in finding.reason for finding in sardonyx.check(model, target="openvino"))


def test_a_core_ml_package_is_checked_by_its_specification(tmp_path: Path) -> None:
    pytest.importorskip("coremltools", reason="needs coremltools (sardonyx[coreml])")
    result = sardonyx.convert_to(network(), "coreml")
    verdict = result.report.verdict
    assert verdict.status == "not proved" and "specification only" in verdict.reason
    (package,) = result.save(tmp_path / "net.mlpackage", unproved=True)
    assert (package / "Manifest.json").is_file()
    assert [port.name for port in result.artifact.description.output] == ["y"]
    graph = parser.parse_graph("agraph (float[2,2] x) => (float y) { y = Det(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="MIL has no form for Det"):
        sardonyx.convert_to(model, "coreml")


def test_core_ml_packages_read_old_operator_sets() -> None:
    pytest.importorskip("coremltools", reason="needs coremltools (sardonyx[coreml])")
    graph = parser.parse_graph(
        "agraph (float[2,3,4] x) => (float[2,5,4] y)"
        " { c = Clip<max: float = 1.0>(x) p = Pad<pads: ints = [0,1,0,0,1,0]>(c) y = Softmax<axis: int = 1>(p) }"
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)
    program = sardonyx.convert_to(model, "coreml").artifact.mlProgram.functions["main"]
    (block,) = program.block_specializations.values()
    softmax = next(operation for operation in block.operations if operation.type == "softmax")
    assert len(softmax.outputs[0].type.tensorType.dimensions) == 2


def test_core_ml_has_no_inputs_without_axes() -> None:
    pytest.importorskip("coremltools", reason="needs coremltools (sardonyx[coreml])")
    graph = parser.parse_graph("agraph (float x) => (float y) { y = Abs(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="1 to 5 axes"):
        sardonyx.convert_to(model, "coreml")


def test_sequences_are_no_inputs_of_engines_in_processes_of_their_own() -> None:
    with pytest.raises(EvaluationError, match="accepts tensors alone"):
        run_in_child("", {}, {})({"x": [np.zeros(1), np.zeros(2)]})


@pytest.mark.parametrize("target", ["mnn", "ncnn"])
def test_a_missing_package_is_named_with_its_extra(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(MissingDependencyError, match=f"sardonyx\\[{target}\\]"):
        sardonyx.convert_to(network(), target, sizes={"N": 1})


@pytest.mark.parametrize("target", ["mnn", "openvino"])
def test_check_uses_the_table_where_the_engine_is_missing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    assert not sardonyx.check(network(), target=target)


class WrongConverter:
    """An exporter whose engine gives another answer, as one does whose program converts without an error."""

    @staticmethod
    def export(model: ir.Model, options: Options) -> Artifact:
        return Artifact(lambda path: None, lambda feeds: {"y": np.full((len(feeds["x"]), 4), 0.5, np.float32)})


def test_check_names_a_conversion_that_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "missing_packages", lambda row: [])
    monkeypatch.setattr(checking, "exporter_of", lambda row: WrongConverter)
    (one,) = checking.export_findings(network(), "openvino")
    assert "does not answer as the model does: output 'y' differs" in str(one)


def test_check_and_conversion_agree_on_ncnn() -> None:
    if missing := missing_packages(target_of("ncnn")):
        pytest.skip(f"needs {', '.join(missing)} (sardonyx[ncnn])")
    softsign = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> agraph (float[1,8] x) => (float[1,8] y) { y = Softsign(x) }'
    )
    verdict = sardonyx.convert_to(softsign, "ncnn").report.verdict
    findings = [str(one) for one in checking.export_findings(softsign, "ncnn")]
    assert (verdict.status == "proved") == (not findings)
    assert not list(checking.export_findings(loaded(network(), target_of("ncnn"), {"N": 1})[0], "ncnn"))
