from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.rewrite.evaluate import evaluate
from tests.cli.conftest import Run

DETECTOR, CLASSIFIER = demo.path("digits_detector"), demo.path("digits_classifier")


def test_demo_finds_digits_and_ends_with_the_detectors_table(run: Run) -> None:
    out = run("demo").out
    assert "99.7%" in out
    assert "┌8" in out, "a found eight is drawn"
    assert out.index("digits_classifier.onnx") < out.index("digits_detector.onnx") < out.rindex("proved")


@pytest.mark.long
def test_demo_in_json(run: Run) -> None:
    found = run("demo", "--json").json["detector"]
    assert found["verdict"]["status"] == "proved"
    assert found["right"] >= 0.95 * found["digits"]
    assert found["nodes"][1] < found["nodes"][0] / 2


def test_info(run: Run) -> None:
    out = run("info", DETECTOR).out
    for word in ("batch", "NonMaxSuppression", "opsets", "ai.onnx 16", "depends on sizes"):
        assert word in out
    sized = run("info", DETECTOR, "--sizes", "batch=1,height=96", "--size", "width=128", "--json").json
    assert isinstance(sized["macs"], int)
    assert sized["file_bytes"] == DETECTOR.stat().st_size
    assert run("info", DETECTOR, "--sizes", "batch").code == 2
    assert "twice" in run("info", DETECTOR, "--sizes", "batch=1,batch=2").err


def test_check_passes_what_is_sound(run: Run) -> None:
    assert run("check", DETECTOR).code == 0
    assert "is sound" in run("check", DETECTOR).out


def test_check_exits_with_1_on_errors_and_names_the_place(run: Run, two_layers: Path) -> None:
    model = onnx.load(two_layers)
    model.graph.node[0].input[0] = "nowhere"
    onnx.save(model, two_layers)
    outcome = run("check", two_layers)
    assert outcome.code == 1
    assert "nowhere" in outcome.out
    listed = run("check", two_layers, "--json")
    assert listed.code == 1
    assert listed.json["counts"]["error"] >= 1


def test_check_for_a_target_and_lint(run: Run, two_layers: Path) -> None:
    assert "$ sardonyx" in run("check", CLASSIFIER, "--target", "ort-mobile", "--lint").out
    assert run("check", two_layers, "--target", "abacus").code == 2


def test_diff(run: Run, two_layers: Path, tmp_path: Path) -> None:
    assert "equal" in run("diff", two_layers, two_layers).out
    better, report = tmp_path / "better.onnx", tmp_path / "report.json"
    report.write_text(run("optimize", two_layers, "-o", better, "--no-measure", "--json").out, encoding="utf-8")
    out = run("diff", two_layers, better, "--report", report).out
    assert "- Identity" in out
    assert run("diff", two_layers, better, "--report", two_layers).code == 2


def test_extract_takes_names_with_commas(run: Run, two_layers: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.onnx"
    assert run("extract", two_layers, "--inputs", "h", "--outputs", "y,i", "-o", part).code == 0
    assert [value.name for value in onnx.load(part).graph.output] == ["y", "i"]
    assert run("extract", two_layers, "--outputs", "z", "-o", part).code == 2


def test_rename_and_merge(run: Run, two_layers: Path, tmp_path: Path) -> None:
    other, joined = tmp_path / "other.onnx", tmp_path / "joined.onnx"
    assert run("rename", two_layers, "x=a", "y=b", "--dim", "N=batch", "-o", other).code == 0
    assert run("merge", two_layers, other, "--link", "y=a", "-o", joined).code == 0
    feeds = {"x": np.ones((3, 2), np.float32)}
    once = evaluate(two_layers, feeds)["y"]
    np.testing.assert_allclose(evaluate(joined, feeds)["b"], evaluate(two_layers, {"x": once})["y"], rtol=1e-6)
    assert run("rename", two_layers, "-o", other).code == 2
    assert run("rename", two_layers, "x", "-o", other).code == 2


def test_set_shape(run: Run, two_layers: Path, tmp_path: Path) -> None:
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
    for given, shape in (("x:0:0,2", "[batch,3,x:0_2]"), ("x:0", "[batch,x:0_1,x:0_2]"), ("x:0:1", "[1,x:0_1,8]")):
        told = run("set-shape", path, "--dynamic", given, "-o", opened, "--json").json
        assert told["inputs"] == {"x:0": shape}
    assert "names no axes" in run("set-shape", path, "--dynamic", "x:0:a", "-o", opened).err
    assert "is no size" in run("set-shape", path, "--batch", "-3", "-o", opened).err


def test_convert_opset_and_ir(run: Run, two_layers: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.onnx"
    assert run("convert-opset", two_layers, "--opset", 13, "--ir", 7, "-o", older).code == 0
    model = onnx.load(older)
    assert (model.opset_import[0].version, model.ir_version) == (13, 7)
    assert run("convert-opset", two_layers, "-o", older).code == 2
    assert run("convert-opset", two_layers, "--opset", 1000, "-o", older).code == 2


def test_convert_between_forms(run: Run, tmp_path: Path) -> None:
    text, back, beside = tmp_path / "model.textproto", tmp_path / "back.onnx", tmp_path / "beside.onnx"
    assert run("convert", CLASSIFIER, "-o", text).code == 0
    assert run("convert", text, "-o", back).code == 0
    assert onnx.load(back) == onnx.load(CLASSIFIER)
    assert run("convert", CLASSIFIER, "--external-data", "-o", beside).code == 0
    assert (tmp_path / "beside.onnx.data").exists()
    assert run("convert", CLASSIFIER, "--format", "papyrus", "-o", back).code == 2


def test_fp16(run: Run, tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    outcome = run("fp16", CLASSIFIER, "--keep-io", "--block-op", "Softmax", "-o", half, "--json")
    assert outcome.code == 0
    assert half.stat().st_size < 0.6 * CLASSIFIER.stat().st_size
    assert {kept["op_type"] for kept in outcome.json["kept"]} >= {"Softmax"}
    assert run("fp16", CLASSIFIER, "--inputs", half, "-o", half).code == 2


def test_fp16_auto_measures(run: Run, tmp_path: Path) -> None:
    inputs = tmp_path / "real.npz"
    np.savez(inputs, image=demo.inputs("digits_classifier")["image"][:16])
    options = ["--auto", "--tolerance", "0.01", "--inputs", inputs, "--keep-io", "-o", tmp_path / "half.onnx"]
    assert run("fp16", CLASSIFIER, *options, "--json").json["error"] <= 0.01
    assert "Output error" in run("fp16", CLASSIFIER, *options).out


def test_view_names_the_extra_that_it_needs(run: Run, two_layers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    view = __import__("sardonyx.cli.view", fromlist=["view"])
    with pytest.raises(Exception, match=r"sardonyx\[view\]"):
        view.command(two_layers)


def test_view_of_a_missing_file(run: Run, tmp_path: Path) -> None:
    assert run("view", tmp_path / "absent.onnx").code == 2


def test_long_work_shows_progress_on_terminals_only(run: Run, two_layers: Path) -> None:
    assert run("info", two_layers).err == ""


def test_explain(run: Run, two_layers: Path) -> None:
    out = run("explain", two_layers, "--sizes", "N=4").out
    assert "contract" in out
    assert "a result" in out
    assert "Nothing is left to the interpreter" in out
    found = run("explain", two_layers, "--size", "N=4", "--json").json
    assert found["compiled"]
    assert sum(kernel["operations"] for kernel in found["kernels"]) == 2 * 2 * 4 * 2 * 2
    assert any(node.startswith("MatMul") for kernel in found["kernels"] for node in kernel["nodes"])
    assert run("explain", two_layers, "--size", "N").code == 2


def test_compile(run: Run, two_layers: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "net.sdx"
    assert run("compile", two_layers, "-o", compiled, "--json").json["bytes"] == compiled.stat().st_size
    x = np.ones((3, 2), np.float32)
    expected = sardonyx.Session(two_layers).run(None, {"x": x})
    for found, other in zip(sardonyx.Session(compiled, compile="wait").run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-5)
    assert run("compile", two_layers, "-o", tmp_path / "net.onnx").code == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc to link with")
def test_compile_to_a_c_library(run: Run, two_layers: Path, tmp_path: Path) -> None:
    library = tmp_path / "libnet.so"
    told = run("compile", two_layers, "--shared", library, "--json").json
    assert told == {
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
def test_compile_needs_to_know_what_to_write(run: Run, two_layers: Path, options: list[str]) -> None:
    assert run("compile", two_layers, *options).code == 2


def test_explain_says_what_cannot_be_compiled(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N] x, int64[K] s) => (y) { y = Reshape(x, s) }"""
    )
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    found = run("explain", path, "--json").json
    assert found["compiled"] is False
    assert found["reason"]
    assert "when it is called" in run("explain", path).out
    deeper = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N] x, int64 steps) => (y) {
          y = Loop(steps, , x)<body = deeper (int64 i, bool on, float s) => (bool again, float t) {
            again = Identity(on) axes = Constant<value_ints=[0]>() t = Unsqueeze(s, axes) }>
        }"""
    )
    onnx.save(deeper, path)
    found = run("explain", path, "--json").json
    assert "not compiled" in run("explain", path).out
    assert run("profile", path, "--runs", 1, "--json").json["interpreted"][0]["reason"] == found["reason"]


def test_profile(run: Run, two_layers: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "real.npz"
    np.savez(inputs, x=np.ones((4, 2), np.float32))
    found = run("profile", two_layers, "--inputs", inputs, "--runs", 2, "--json").json
    assert found["runs"] == 2
    assert found["operations"] == 2 * 2 * 4 * 2 * 2
    assert all(kernel["seconds"] > 0 for kernel in found["kernels"])
    out = run("profile", two_layers, "--runs", 2, "--threads", 1).out
    assert "By kind" in out
    assert "Measured peak of 1 thread:" in out


def test_profile_writes_a_page_and_a_trace(run: Run, two_layers: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    out = run("profile", two_layers, "--runs", 1, "--html", page, "--trace", trace).out
    assert "By module" in out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]


def test_profile_takes_sizes(run: Run, two_layers: Path, tmp_path: Path) -> None:
    for n in (1, 64):
        found = run("profile", two_layers, "--runs", 1, "--sizes", f"N={n}", "--json").json
        assert found["operations"] == n * 2 * 2 * 2 * 2
    assert "no open size 'K'" in run("profile", two_layers, "--sizes", "K=3").err
    np.savez(tmp_path / "real.npz", x=np.zeros((2, 4), np.float32))
    both = run("profile", two_layers, "--sizes", "N=3", "--inputs", tmp_path / "real.npz")
    assert both.code == 2 and "told by the inputs" in both.err


def test_profile_tells_of_memory(run: Run, two_layers: Path, tmp_path: Path) -> None:
    out = run("profile", two_layers, "--memory", "--plot", tmp_path / "m.svg").out
    assert "peak of a call" in out
    assert (tmp_path / "m.svg").read_text(encoding="utf-8").startswith("<svg")
    found = run("profile", two_layers, "--memory", "--json").json
    assert found["peak"] > 0
    assert found["plans"][0]["buffers"]


@pytest.mark.parametrize(
    "options", [["--plot", "m.svg"], ["--memory", "--trace", "t.json"], ["--memory", "--plot", "m.png"]]
)
def test_profile_says_which_options_do_not_go_together(run: Run, two_layers: Path, options: list[str]) -> None:
    assert run("profile", two_layers, *options).code == 2


@pytest.mark.parametrize("place", ["absent/file", "/proc/self/file", "/dev/null", "."])
@pytest.mark.parametrize(
    "verb", [["profile", "--html"], ["profile", "--trace"], ["profile", "--memory", "--plot"], ["bench", "--plot"]]
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    run: Run, two_layers: Path, verb: list[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sardonyx.Session, "__init__")
    refused = run(verb[0], two_layers, *verb[1:], place)
    assert refused.code == 2 and place in refused.err
