"""The frame of exports: refusals, proof, atomic files and the command, on small models in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.cli import main
from sardonyx.errors import OptionError, SardonyxError, UnsupportedError, VerificationError
from sardonyx.export.artifact import Refusal, refuse
from sardonyx.export.targets import TARGETS, target_of

torch = pytest.importorskip("torch", reason="torch is not installed (extra: torch)")

NET = """<ir_version: 9, opset_import: ["": 18]> small_net (float[N, 4] x) => (float[N, 4] y)
<float[4, 4] w = {1., 2., 3., 4., 5., 6., 7., 8., 9., 1., 2., 3., 4., 5., 6., 7.}>
{ a = MatMul(x, w)  b = Softmax(a)  y = Exp(b) }"""

TEXTS = """<ir_version: 9, opset_import: ["": 20]> net (string[N] x, string[N] y) => (string[N] z)
{ z = StringConcat(x, y) }"""


def proto(text: str = NET) -> Any:
    return onnx.parser.parse_model(text)


def test_every_target_has_one_name_and_an_extra_for_its_packages() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    assert all(target.extra or not target.requires for target in TARGETS)


def test_an_export_is_proved_at_several_sizes() -> None:
    result = sardonyx.convert_to(proto(), "torch")
    assert result.report.verdict.status == "proved"
    assert {1, 2} < set(result.report.sizes["N"])
    assert isinstance(result.artifact, torch.nn.Module)


def test_sizes_of_the_caller_are_fixed() -> None:
    result = sardonyx.convert_to(proto(), "torch", sizes={"N": 3})
    assert result.report.verdict.status == "proved" and not result.report.sizes


@pytest.mark.parametrize("target", ["torch", "stablehlo", "tflite"])
@pytest.mark.parametrize(
    ("shape", "factors", "offsets"), [(("2*h", "n+1"), (2, 1), (0, 1)), (("4*h+2", "3*n"), (4, 3), (2, 0))]
)
def test_symbols_within_declared_sizes_are_solved(
    target: str, shape: tuple[str, str], factors: tuple[int, int], offsets: tuple[int, int]
) -> None:
    model = proto(
        f"""<ir_version: 9, opset_import: ["": 18]> net (float[H, W] x) => (float[h, n] y)
        <int64[2] factors = {{{factors[0]}, {factors[1]}}}, int64[2] offsets = {{{offsets[0]}, {offsets[1]}}}>
        {{ s = Shape(x)  r = Sub(s, offsets)  q = Div(r, factors)  o = ConstantOfShape <value = float[1] {{2.0}}> (q)
           m = ReduceMean(x)  y = Mul(o, m) }}"""
    )
    for dim, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_param = size
    report = sardonyx.convert_to(model, target).report
    assert report.verdict.status == "proved" or "not installed" in report.verdict.reason, report.verdict
    assert report.verdict.status != "proved" or all(len(report.sizes[symbol]) > 1 for symbol in "hn")


def test_unknown_targets_and_sizes_are_refused() -> None:
    with pytest.raises(OptionError, match="unknown target 'caffe'"):
        target_of("caffe")
    with pytest.raises(OptionError, match="unknown open size 'M'"):
        sardonyx.convert_to(proto(), "torch", sizes={"M": 3})


def test_nodes_that_cannot_run_are_refused_by_name() -> None:
    model = proto(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[4] y) { y = Concat<axis = 3>(x, x) }'
    )
    for target in ("torch", "stablehlo", "tflite"):
        with pytest.raises(SardonyxError, match="axis 3 is out of range"):
            sardonyx.convert_to(model, target)


def test_refusals_name_node_and_rule() -> None:
    with pytest.raises(UnsupportedError, match="torch has no tensors of string"):
        sardonyx.convert_to(proto(TEXTS), "torch")
    with pytest.raises(UnsupportedError, match="and 2 more"):
        refuse("torch", [Refusal(f"node {i}", "Op", "no form") for i in range(10)])
    refuse("torch", [])


def test_check_says_beforehand_what_has_no_form() -> None:
    findings = sardonyx.check(proto(TEXTS), target="torch")
    assert {finding.code for finding in findings} == {"target-form"}
    assert not sardonyx.check(proto(), target="torch")


def test_nothing_is_written_unless_proved(tmp_path: Path) -> None:
    result = sardonyx.convert_to(proto(), "torch", verify=False)
    with pytest.raises(VerificationError, match="not proved"):
        result.save(tmp_path / "net.py")
    assert not list(tmp_path.iterdir())
    files = result.save(tmp_path / "net.py", unproved=True)
    assert [file.name for file in files] == ["net.safetensors", "net.py"]
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_command_writes_a_module_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(proto(), tmp_path / "net.onnx")
    with pytest.raises(SystemExit) as ended:
        main(["convert-to", str(tmp_path / "net.onnx"), "--to", "torch", "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"]["status"] == "proved"
    assert [Path(file).name for file in report["written"]] == ["net.safetensors", "net.py"]
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "net.py")}
    exec(compile((tmp_path / "net.py").read_text(), "net.py", "exec"), namespace)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    (expected,) = sardonyx.run(proto(), {"x": x}).values()
    np.testing.assert_allclose(namespace["load"]()(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-5)


def test_numbers_rounded_to_the_neighbouring_code_are_no_difference() -> None:
    model = proto(
        """<ir_version: 9, opset_import: ["": 18]> net (float[256, 512] x) => (float[256, 512] y)
        <float s = {0.7}, int8 z = {1}>
        { a = MatMul(x, w)  q = QuantizeLinear(a, s, z)  y = DequantizeLinear(q, s, z) }"""
    )
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    verdict = sardonyx.convert_to(model, "torch").report.verdict
    assert verdict.status == "proved", verdict
    assert any("a step of the 8-bit inputs" in note for note in verdict.notes)
