from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import Session, demo
from sardonyx.rewrite.evaluate import evaluate
from tests.cli.conftest import Run

DETECTOR, CLASSIFIER = demo.path("digits_detector"), demo.path("digits_classifier")


def test_demo_finds_digits_and_ends_with_the_detectors_table(run: Run) -> None:
    out = run("demo").out
    assert "99.7%" in out
    assert "┌8" in out, "a detected eight is drawn"
    assert out.index("digits_classifier.onnx") < out.index("digits_detector.onnx") < out.rindex("proved")


@pytest.mark.long
def test_demo_prints_its_figures_as_json(run: Run) -> None:
    detector = run("demo", "--json").json["detector"]
    assert detector["verdict"]["status"] == "proved"
    assert detector["right"] >= 0.95 * detector["digits"]
    assert detector["nodes"][1] < detector["nodes"][0] / 2


def test_info_summarizes_a_model(run: Run) -> None:
    out = run("info", DETECTOR).out
    for word in ("batch", "NonMaxSuppression", "opsets", "ai.onnx 16", "depends on sizes"):
        assert word in out
    sized = run("info", DETECTOR, "--sizes", "batch=1,height=96", "--size", "width=128", "--json").json
    assert isinstance(sized["macs"], int)
    assert sized["file_bytes"] == DETECTOR.stat().st_size
    assert run("info", DETECTOR, "--sizes", "batch").code == 2
    assert "twice" in run("info", DETECTOR, "--sizes", "batch=1,batch=2").err


def test_check_accepts_a_sound_model(run: Run) -> None:
    assert run("check", DETECTOR).code == 0
    assert "is sound" in run("check", DETECTOR).out


def test_check_exits_with_1_on_errors_and_names_the_location(run: Run, two_layers: Path) -> None:
    model = onnx.load(two_layers)
    model.graph.node[0].input[0] = "nowhere"
    onnx.save(model, two_layers)
    outcome = run("check", two_layers)
    assert outcome.code == 1
    assert "nowhere" in outcome.out
    listed = run("check", two_layers, "--json")
    assert listed.code == 1
    assert listed.json["counts"]["error"] >= 1


def test_check_accepts_a_target_and_lint(run: Run, two_layers: Path) -> None:
    assert "$ sardonyx" in run("check", CLASSIFIER, "--target", "ort-mobile", "--lint").out
    assert run("check", two_layers, "--target", "abacus").code == 2


def test_diff_lists_removed_nodes(run: Run, two_layers: Path, tmp_path: Path) -> None:
    assert "equal" in run("diff", two_layers, two_layers).out
    better, report = tmp_path / "better.onnx", tmp_path / "report.json"
    report.write_text(run("optimize", two_layers, "-o", better, "--no-measure", "--json").out, encoding="utf-8")
    out = run("diff", two_layers, better, "--names", report).out
    assert "- Identity" in out
    assert run("diff", two_layers, better, "--report", two_layers).code == 2


def test_extract_accepts_names_with_commas(run: Run, two_layers: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    assert run("extract", two_layers, "--inputs", "h", "--outputs", "y,i", "-o", part).code == 0
    assert [value.name for value in onnx.load(part).graph.output] == ["y", "i"]
    assert run("extract", two_layers, "--outputs", "z", "-o", part).code == 2


def test_renamed_models_are_merged(run: Run, two_layers: Path, tmp_path: Path) -> None:
    other, merged = tmp_path / "other.onnx", tmp_path / "merged.onnx"
    assert run("rename", two_layers, "x=a", "y=b", "--dim", "N=batch", "-o", other).code == 0
    assert run("merge", two_layers, other, "--link", "y=a", "-o", merged).code == 0
    feeds = {"x": np.ones((3, 2), np.float32)}
    once = evaluate(two_layers, feeds)["y"]
    np.testing.assert_allclose(evaluate(merged, feeds)["b"], evaluate(two_layers, {"x": once})["y"], rtol=1e-6)
    assert run("rename", two_layers, "-o", other).code == 2
    assert run("rename", two_layers, "x", "-o", other).code == 2


def test_set_shape_fixes_and_opens_the_batch(run: Run, two_layers: Path, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed.onnx"
    assert run("set-shape", two_layers, "--input", "x:4,2", "-o", fixed).code == 0
    assert onnx.load(fixed).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4
    assert run("set-shape", fixed, "--batch", "M", "-o", fixed).code == 0
    assert onnx.load(fixed).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "M"
    refused = run("set-shape", two_layers, "--input", "x:4,3", "-o", fixed)
    assert refused.code == 1
    assert run("set-shape", two_layers, "-o", fixed).code == 2


def test_set_shape_opens_named_axes(run: Run, tmp_path: Path) -> None:
    path, opened = tmp_path / "model.onnx", tmp_path / "opened.onnx"
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, 8] "x:0") => (float[1, 3, 8] y) { y = Neg("x:0") }'
    onnx.save(onnx.parser.parse_model(text), path)
    for entry, shape in (("x:0:0,2", "[batch,3,x:0_2]"), ("x:0", "[batch,x:0_1,x:0_2]"), ("x:0:1", "[1,x:0_1,8]")):
        outcome = run("set-shape", path, "--dynamic", entry, "-o", opened, "--json").json
        assert outcome["inputs"] == {"x:0": shape}
    assert "expected NAME:0,2,3, got 'x:0:a'" in run("set-shape", path, "--dynamic", "x:0:a", "-o", opened).err
    assert "expected a size of 0 or more, got -3" in run("set-shape", path, "--batch", "-3", "-o", opened).err


def test_opset_and_ir_version_are_converted(run: Run, two_layers: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.onnx"
    assert run("convert-opset", two_layers, "--opset", 13, "--ir", 7, "-o", older).code == 0
    model = onnx.load(older)
    assert (model.opset_import[0].version, model.ir_version) == (13, 7)
    assert run("convert-opset", two_layers, "-o", older).code == 2
    assert run("convert-opset", two_layers, "--opset", 1000, "-o", older).code == 2


def test_convert_writes_every_format(run: Run, tmp_path: Path) -> None:
    text, back, external = tmp_path / "model.textproto", tmp_path / "back.onnx", tmp_path / "external.onnx"
    assert run("convert", CLASSIFIER, "-o", text).code == 0
    assert run("convert", text, "-o", back).code == 0
    assert onnx.load(back) == onnx.load(CLASSIFIER)
    assert run("convert", CLASSIFIER, "--external-data", "-o", external).code == 0
    assert (tmp_path / "external.onnx.data").exists()
    assert run("convert", CLASSIFIER, "--format", "papyrus", "-o", back).code == 2


def test_fp16_halves_the_file_and_respects_blocked_operators(run: Run, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    outcome = run("fp16", CLASSIFIER, "--keep-io", "--block-op", "Softmax", "-o", half, "--json")
    assert outcome.code == 0
    assert half.stat().st_size < 0.6 * CLASSIFIER.stat().st_size
    assert {node["op_type"] for node in outcome.json["kept"]} >= {"Softmax"}
    assert run("fp16", CLASSIFIER, "--inputs", half, "-o", half).code == 2


def test_fp16_auto_measures(run: Run, tmp_path: Path) -> None:
    inputs = tmp_path / "real.npz"
    np.savez(inputs, image=demo.inputs("digits_classifier")["image"][:16])
    options = ["--auto", "--tolerance", "0.01", "--inputs", inputs, "--keep-io", "-o", tmp_path / "half.onnx"]
    assert run("fp16", CLASSIFIER, *options, "--json").json["error"] <= 0.01
    assert "Output error" in run("fp16", CLASSIFIER, *options).out


def test_view_names_its_missing_extra(run: Run, two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    view = __import__("sardonyx.cli.view", fromlist=["view"])
    with pytest.raises(Exception, match=r"sardonyx\[view\]"):
        view.command(two_layers)


def test_view_refuses_a_missing_file(run: Run, tmp_path: Path) -> None:
    assert run("view", tmp_path / "absent.onnx").code == 2


def test_progress_of_short_work_is_shown_on_terminals_only(run: Run, two_layers: Path) -> None:
    assert run("info", two_layers).err == ""


@pytest.mark.parametrize(("options", "notices"), [([], 1), (["--json"], 0)])
def test_long_compilation_is_reported_once_without_a_terminal(
    run: Run, two_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], notices: int
) -> None:
    monkeypatch.setattr("sardonyx.cli.output.SECONDS_BEFORE_NOTICE", 0.01)

    def compile_slowly(*arguments: object, **options: object) -> Session:
        time.sleep(0.3)
        return Session(two_layers, compile="wait")

    monkeypatch.setattr("sardonyx.cli.compile.Session", compile_slowly)
    outcome = run("compile", two_layers, "-o", tmp_path / "layers.sdx", *options)
    assert outcome.code == 0
    assert outcome.err == "compiling: in progress after 0.01 s\n" * notices
    assert "in progress" not in outcome.out


def test_a_lowered_ir_version_is_explained(run: Run, two_layers: Path, tmp_path: Path) -> None:
    newer, output = tmp_path / "newer.onnx", tmp_path / "out.onnx"
    assert run("convert-opset", two_layers, "--ir", "10", "-o", newer).code == 0
    reason = "the lowest with all features of the"
    optimized = run("optimize", newer, "--no-measure", "-o", output).out
    assert f"IR version 10 → 8: {reason} result" in optimized
    assert f"IR version: 10 → 8, {reason} second model" in run("diff", newer, output).out
    assert reason not in run("diff", output, newer).out
    assert "IR version" not in run("optimize", output, "--no-measure").out


def test_a_node_with_the_name_of_its_operator_is_named_once(run: Run, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[2] x) => (float[2] y) { [Cast] d = Cast<to=11>(x) [Cast_1] f = Cast<to=1>(d) [Relu] y = Relu(f) }"""
    model, output = tmp_path / "casts.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    assert run("info", model).out.count("weights       none") == 1
    assert run("optimize", model, "--no-measure", "-o", output).code == 0
    lines = run("diff", model, output).out.splitlines()
    assert {"- Cast", "- Cast_1"} <= set(lines)


def test_explain_lists_kernels_and_operations(run: Run, two_layers: Path) -> None:
    out = run("explain", two_layers, "--sizes", "N=4").out
    assert "contract" in out
    assert "a result" in out
    assert "The interpreter computes nothing" in out
    assert re.search(r"→\W+native", out)
    explanation = run("explain", two_layers, "--size", "N=4", "--json").json
    assert explanation["compiled"]
    assert [note["name"] for note in explanation["answerers"] if note["answers"]] == ["native"]
    assert sum(kernel["operations"] for kernel in explanation["kernels"]) == 2 * 2 * 4 * 2 * 2
    assert any(node.startswith("MatMul") for kernel in explanation["kernels"] for node in kernel["nodes"])
    assert run("explain", two_layers, "--size", "N").code == 2


def test_time_passes_shows_the_time_of_each_pass(
    run: Run, two_layers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    out = run("explain", two_layers, "--time-passes").out
    assert all(name in out for name in ("Compiler passes", "lower groups", "compile kernels"))
    file = tmp_path / "net.sdx"
    passes = run("compile", two_layers, "-o", file, "--time-passes", "--json").json["passes"]
    assert next(row["runs"] for row in passes if row["name"] == "fuse") >= 1
    assert "passes" not in run("compile", two_layers, "-o", file, "--json").json


def test_a_compiled_file_computes_the_same(run: Run, two_layers: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "net.sdx"
    assert run("compile", two_layers, "-o", compiled, "--json").json["bytes"] == compiled.stat().st_size
    x = np.ones((3, 2), np.float32)
    expected = sardonyx.Session(two_layers).run(None, {"x": x})
    actual = sardonyx.Session(compiled, compile="wait").run(None, {"x": x})
    for result, reference in zip(actual, expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-5)
    assert run("compile", two_layers, "-o", tmp_path / "net.onnx").code == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="linking needs cc")
def test_compile_writes_a_c_library_and_its_header(run: Run, two_layers: Path, tmp_path: Path) -> None:
    library = tmp_path / "libnet.so"
    written = run("compile", two_layers, "--shared", library, "--json").json
    assert written == {
        "shared": str(library),
        "shared_bytes": library.stat().st_size,
        "header": str(tmp_path / "libnet.h"),
    }
    header = (tmp_path / "libnet.h").read_text()
    assert "net_run(" in header and "net_resize(" in header
    both = ["--shared", library, "--header", tmp_path / "own.h", "--prefix", "own", "-o", tmp_path / "net.sdx"]
    fixed = tmp_path / "fixed.onnx"
    assert run("set-shape", two_layers, "--batch", 1, "-o", fixed).code == 0
    assert run("compile", fixed, *both).code == 0
    header = (tmp_path / "own.h").read_text()
    assert "own_run(" in header and "own_resize(" not in header
    assert (tmp_path / "net.sdx").exists()


@pytest.mark.parametrize("options", [[], ["--header", "a.h"], ["-o", "a.sdx", "--prefix", "a"]])
def test_compile_requires_a_file_to_write(run: Run, two_layers: Path, options: list[str]) -> None:
    assert run("compile", two_layers, *options).code == 2


def test_explain_shows_answerers_beside_the_placement(run: Run, two_layers: Path) -> None:
    providers = ["--provider", "native", "--provider", "reference"]
    explanation = run("explain", two_layers, *providers, "--json").json
    assert [note["name"] for note in explanation["answerers"] if note["answers"]] == ["native"]
    assert all(node["provider"] in ("", "native") for node in explanation["placement"])


def test_explain_names_the_reason_for_not_compiling(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N] x, int64[K] s) => (y) { y = Reshape(x, s) }"""
    )
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    explanation = run("explain", path, "--json").json
    assert explanation["compiled"] is False
    assert explanation["reason"]
    assert [(note["name"], note["answers"]) for note in explanation["answerers"]] == [
        ("specialization", True), ("interpreter", False),
    ]  # fmt: skip
    assert "Compiled at the first call" in run("explain", path).out
    deeper = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N] x, int64 steps) => (y) {
          y = Loop(steps, , x)<body = deeper (int64 i, bool on, float s) => (bool again, float t) {
            again = Identity(on) axes = Constant<value_ints=[0]>() t = Unsqueeze(s, axes) }>
        }"""
    )
    onnx.save(deeper, path)
    explanation = run("explain", path, "--json").json
    assert "Not compiled" in run("explain", path).out
    assert run("profile", path, "--runs", 1, "--json").json["interpreted"][0]["reason"] == explanation["reason"]


def test_profile_measures_every_kernel(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "real.npz"
    np.savez(inputs, x=np.ones((4, 2), np.float32))
    profile = run("profile", two_layers, "--inputs", inputs, "--runs", 2, "--json").json
    assert profile["runs"] == 2
    assert profile["operations"] == 2 * 2 * 4 * 2 * 2
    assert all(kernel["seconds"] > 0 for kernel in profile["kernels"])
    out = run("profile", two_layers, "--runs", 2, "--threads", 1).out
    assert "By kind" in out
    assert "Measured peak of 1 thread:" in out


def test_profile_writes_a_page_and_a_trace(run: Run, two_layers: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    out = run("profile", two_layers, "--runs", 1, "--html", page, "--trace", trace).out
    assert "By module" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_bench_explains_ratios_of_rounds(run: Run, two_layers: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = run("bench", two_layers, "--sizes", "N=4", "--seconds", "0.05", "--threads", 1).out
    assert "× sardonyx" in out and "p50" in out
    assert "median over the rounds of the time over that of Sardonyx on the first model" in " ".join(out.split())


def test_profile_accepts_sizes(run: Run, two_layers: Path, tmp_path: Path) -> None:
    for n in (1, 64):
        profile = run("profile", two_layers, "--runs", 1, "--sizes", f"N={n}", "--json").json
        assert profile["operations"] == n * 2 * 2 * 2 * 2
    assert "unknown open size 'K'" in run("profile", two_layers, "--sizes", "K=3").err
    np.savez(tmp_path / "real.npz", x=np.zeros((2, 4), np.float32))
    both = run("profile", two_layers, "--sizes", "N=3", "--inputs", tmp_path / "real.npz")
    assert both.code == 2 and "the inputs determine the sizes" in both.err


def test_profile_reports_memory(run: Run, two_layers: Path, tmp_path: Path) -> None:
    out = run("profile", two_layers, "--memory", "--plot", tmp_path / "m.svg").out
    assert "peak of a call" in out
    assert (tmp_path / "m.svg").read_text(encoding="utf-8").startswith("<svg")
    profile = run("profile", two_layers, "--memory", "--json").json
    assert profile["peak"] > 0
    assert profile["plans"][0]["buffers"]


@pytest.mark.parametrize(
    "options", [["--plot", "m.svg"], ["--memory", "--trace", "t.json"], ["--memory", "--plot", "m.png"]]
)
def test_profile_refuses_contradictory_options(run: Run, two_layers: Path, options: list[str]) -> None:
    assert run("profile", two_layers, *options).code == 2


@pytest.mark.parametrize("path", ["absent/file", "/proc/self/file", "/dev/null", "."])
@pytest.mark.parametrize(
    "verb", [["profile", "--html"], ["profile", "--trace"], ["profile", "--memory", "--plot"], ["bench", "--plot"]]
)
def test_unwritable_files_are_refused_before_measuring(
    run: Run, two_layers: Path, verb: list[str], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sardonyx.Session, "__init__")
    refused = run(verb[0], two_layers, *verb[1:], path)
    assert refused.code == 2 and path in refused.err


def test_bench_writes_the_time_of_every_run(run: Run, two_layers: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    times = tmp_path / "times.csv"
    options = ["--sizes", "N=4", "--seconds", "0.05", "--warmup", "0.05", "--threads", 1, "--times", times]
    (figures,) = run("bench", two_layers, *options, "--json").json
    head, *rows = [line.split(",") for line in times.read_text(encoding="utf-8").splitlines()]
    assert head == ["sizes", "engine", "round", "run", "seconds"]
    for engine in figures["engines"]:
        seconds = sorted(float(row[-1]) for row in rows if row[:2] == ["N=4", engine["engine"]])
        assert len(seconds) == engine["runs"]
        assert seconds[-(-len(seconds) // 2) - 1] == engine["percentiles"]["50"]


def test_bench_measures_a_compiled_file(run: Run, two_layers: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "net.sdx"
    assert run("compile", two_layers, "-o", compiled).code == 0
    (figures,) = run("bench", compiled, "--sizes", "N=4", "--seconds", "0.05", "--json").json
    assert [engine["engine"] for engine in figures["engines"]] == ["sardonyx"]
    refused = run("bench", compiled, "--against", "onnxruntime")
    assert refused.code == 2 and "cannot load a compiled file" in refused.err


def test_info_lists_nodes_and_weights(run: Run, two_layers: Path, tmp_path: Path) -> None:
    table = tmp_path / "nodes.csv"
    out = run("info", two_layers, "--sizes", "N=3", "--nodes", "--weights", "--csv", table).out
    assert "3 nodes" in out and "2 weights" in out and "float[3, 2]" in out
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["operator"] for row in rows] == ["MatMul", "Identity", "MatMul"]
    assert (rows[0]["inputs"], rows[0]["types"], rows[0]["macs"]) == ("x w", "float[3,2]", "12")
    data = run("info", two_layers, "--nodes", "--weights", "--json").json
    assert [row["operator"] for row in data["node_list"]] == ["MatMul", "Identity", "MatMul"]
    assert {row["name"]: row["largest"] for row in data["weight_list"]} == {"w": 4.0, "v": 2.0}
    assert "node_list" not in run("info", two_layers, "--json").json


def test_info_shows_several_models_side_by_side(run: Run, two_layers: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.onnx"
    assert run("simplify", two_layers, "-o", better).code == 0
    out = run("info", two_layers, better).out
    (row,) = [line for line in out.splitlines() if line.startswith("│ Identity")]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["Identity", "1", ""]
    assert [info["nodes"] for info in run("info", two_layers, better, "--json").json] == [3, 2]
    assert run("info", two_layers, better, "--nodes").code == 2
