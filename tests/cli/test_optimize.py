from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import demo
from sardonyx.cli import simplify
from sardonyx.report.passes import describe_passes
from sardonyx.rewrite.pipeline import exact_passes
from tests.cli.conftest import Run

CLASSIFIER = demo.path("digits_classifier")


def test_optimize_writes_a_better_model_and_a_report(run: Run, tmp_path: Path) -> None:
    better, page = tmp_path / "better.onnx", tmp_path / "report.html"
    outcome = run("optimize", CLASSIFIER, "-o", better, "--report", page, "--explain")
    assert outcome.code == 0
    for word in ("nodes", "parameters", "file", "MACs", "latency", "fuse_bn_into_conv", "Near matches", "proved"):
        assert word in outcome.out
    written = onnx.load(better)
    onnx.checker.check_model(written, full_check=True)
    assert "BatchNormalization" not in {node.op_type for node in written.graph.node}
    assert "<svg" in page.read_text(encoding="utf-8")


def test_json_output_is_a_single_value(run: Run, two_layers: Path, tmp_path: Path) -> None:
    outcome = run("optimize", two_layers, "-o", tmp_path / "better.onnx", "--json")
    report = outcome.json
    assert report["before"]["nodes"] == 3
    assert report["after"]["nodes"] < 3
    assert report["verdict"]["status"] == "proved"
    assert report["latency"]["runs"] >= 5
    assert report["written"] == str(tmp_path / "better.onnx")


def test_passes_and_skip_select_passes(run: Run, two_layers: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.onnx"
    run("optimize", two_layers, "-o", better, "--passes", "eliminate_identity,eliminate_nop_cast", "--no-measure")
    assert [node.op_type for node in onnx.load(better).graph.node] == ["MatMul", "MatMul"]
    run("optimize", two_layers, "-o", better, "--skip", "eliminate_identity", "--passes", "eliminate_identity")
    assert len(onnx.load(better).graph.node) == 3


def test_real_inputs_are_the_only_sample(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "real.npz"
    np.savez(inputs, x=np.ones((4, 2), np.float32))
    assert run("optimize", two_layers, "--inputs", inputs, "--json").json["verdict"]["samples"] == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((4, 2)), "expected FLOAT [N,2] for 'x', got float64 [4, 2]. Convert"),
        (np.ones((4, 3), np.float32), "expected FLOAT [N,2] for 'x', got float32 [4, 3]. Give"),
        (np.ones(2, np.float32), "expected FLOAT [N,2] for 'x', got float32 [2]. Give"),
    ],
)
@pytest.mark.parametrize("verb", [("optimize",), ("fp16", "--auto")])
def test_invalid_inputs_are_refused(
    run: Run, two_layers: Path, tmp_path: Path, array: np.ndarray, message: str, verb: tuple[str, ...]
) -> None:
    inputs = tmp_path / "wrong.npz"
    np.savez(inputs, x=array)
    outcome = run(*verb, two_layers, "--inputs", inputs, "-o", tmp_path / "out.onnx")
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "out.onnx").exists()


def test_strict_exits_with_3_and_writes_nothing(run: Run, two_layers: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.onnx"
    outcome = run("optimize", two_layers, "-o", better, "--no-verify", "--strict", "--json")
    assert outcome.code == 3
    assert not better.exists()
    assert outcome.json["error"]["kind"] == "VerificationError"
    assert outcome.json["error"]["remedy"].startswith("Drop --no-verify")


def test_user_rules_are_loaded_from_a_file(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { h = Relu(x) y = Relu(h) }'
    )
    onnx.save(model, tmp_path / "model.onnx")
    rules = Path(__file__).resolve().parents[2] / "examples" / "own_rule.py"
    report = run("optimize", tmp_path / "model.onnx", "--rules", rules, "--passes", "eliminate_identity", "--json").json
    assert report["after"]["nodes"] == 1
    assert report["by_pass"] == {"eliminate_repeated_relu": 1}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("\nraise ValueError('no')", "rules.py, line 2: running it failed: ValueError: no"),
        ("import sys\nsys.exit(5)", "rules.py, line 2: running it failed: SystemExit: 5"),
        ("def (", "rules.py: running it failed: SyntaxError: invalid syntax"),
        ("x = 1", "rules.py: expected at least one rule, got none"),
    ],
)
def test_an_invalid_file_of_rules_is_refused(run: Run, tmp_path: Path, code: str, message: str) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(code, encoding="utf-8")
    outcome = run("optimize", CLASSIFIER, "--rules", rules)
    assert outcome.code == 1
    assert message in outcome.err


def test_an_empty_list_of_passes_changes_nothing(run: Run, two_layers: Path) -> None:
    report = run("optimize", two_layers, "--passes", "", "--json").json
    assert report["before"] == report["after"]
    assert report["latency"] == "nothing was changed"
    out = " ".join(run("optimize", two_layers, "--passes", "").out.split())
    assert "Latency not measured: nothing was changed" in out


def test_text_models_are_read_and_written(run: Run, two_layers: Path, tmp_path: Path) -> None:
    text, better = tmp_path / "layers.onnxtxt", tmp_path / "better.onnxtxt"
    assert run("convert", two_layers, "-o", text).code == 0
    assert run("optimize", text, "-o", better).code == 0
    assert "MatMul" in better.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["no-such-file.onnx"], "no-such-file.onnx"),
        ([CLASSIFIER, "--target", "abacus"], "abacus"),
        ([CLASSIFIER, "--passes", "eliminate_everything"], "eliminate_everything"),
        ([CLASSIFIER, "--input-shape", "image"], "--input-shape"),
        ([CLASSIFIER, "--input-shape", "image:1,1,-8,8"], "-8"),
        ([CLASSIFIER, "--inputs", CLASSIFIER], str(CLASSIFIER)),
    ],
)
def test_invalid_requests_are_named(run: Run, arguments: list[object], word: str) -> None:
    outcome = run("optimize", *arguments)
    assert outcome.code == 2
    assert word in outcome.err
    assert "Traceback" not in outcome.err


def test_simplify_is_bit_exact(run: Run, tmp_path: Path) -> None:
    simpler = tmp_path / "simpler.onnx"
    outcome = run("simplify", CLASSIFIER, "-o", simpler, "--json")
    assert outcome.json["verdict"]["exact"]
    assert {patch["exactness"] for patch in outcome.json["applied"]} == {"exact"}
    kinds = {node.op_type for node in onnx.load(simpler).graph.node}
    assert "BatchNormalization" in kinds
    assert "Constant" not in kinds
    assert simplify.EXAMPLE


def test_passes_lists_all_with_their_exactness(run: Run) -> None:
    listed = run("passes", "--json").json
    assert {info["exactness"] for info in listed} >= {"exact", "reassociates"}
    assert all(info["description"] for info in listed)
    descriptions = {info["name"]: info["description"] for info in listed}
    inverses = "Not not x is x. -(-x) is x. 1 / (1 / x) is x, written with Reciprocal."
    assert descriptions["eliminate_double_inverse"] == inverses
    assert [info["name"] for info in listed] == [info.name for info in describe_passes()]
    assert "fuse_bn_into_conv" in run("passes").out
    assert "fuse_bn_into_conv" not in exact_passes()
    assert run("passes", "--target", "abacus").code == 2


@pytest.mark.parametrize(
    ("name", "gains"),
    [
        ("magika_v3_3", {20: (1, "fuse_gelu")}),
        pytest.param(
            "ort_tfbert_qa",
            {17: (49, "fuse_layer_normalization"), 20: (24, "fuse_gelu"), 23: (24, "fuse_attention")},
            marks=pytest.mark.long,
        ),
    ],
)
def test_predicted_gains_of_a_newer_opset_are_real(
    run: Run, suites: Path, tmp_path: Path, name: str, gains: dict[int, tuple[int, str]]
) -> None:
    def optimized(*options: object) -> tuple[str, dict[str, int], int]:
        better = tmp_path / "better.onnx"
        out = run("optimize", suites / "real" / f"{name}.onnx", "-o", better, "--no-measure", *options).out
        report = run("optimize", suites / "real" / f"{name}.onnx", "--no-verify", "--json", *options).json
        return out, report["by_pass"], len(onnx.load(better).graph.node)

    output, _, nodes = optimized()
    for opset, (times, label) in gains.items():
        assert f"{times} more fusion{'s' if times > 1 else ''} with --opset {opset}" in output
        raised, by_pass, fewer = optimized("--opset", opset)
        assert "proved" in raised and by_pass[label] == times and fewer < nodes
        assert f"with --opset {opset}\n" not in raised
        nodes = fewer
