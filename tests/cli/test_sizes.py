"""Verbs that draw inputs find sizes on which the model runs, or accept sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.conftest import Run

FRAMES = """<ir_version: 8, opset_import: ["": 17]>
frames (float[N, L] x) => (float y) <int64[3] shape = {-1, 16, 10}> {
  r = Reshape(x, shape)
  y = ReduceMean <keepdims = 0>(r)
}"""
"""Runs only if N × L is a multiple of 160; no common size is."""

NEVER = """<ir_version: 8, opset_import: ["": 17]>
never (float[N] x, float[M] z) => (float y) <int64[2] shape = {-1, 1000003}> {
  r = Reshape(x, shape)
  s = Add(r, z)
  y = ReduceMean <keepdims = 0>(s)
}"""
"""Runs only if N is a multiple of a large prime."""

VERBS = {
    "bench": ["--against", "onnxruntime", "--seconds", "0.05"],
    "compare": ["--providers", "native,reference"],
    "profile": ["--runs", "1"],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(FRAMES), tmp_path / "frames.onnx")
    return tmp_path / "frames.onnx"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_finds_sizes_on_which_the_model_runs(run: Run, model: Path, verb: str) -> None:
    if verb == "bench":
        pytest.importorskip("onnxruntime")
    outcome = run(verb, model, *VERBS[verb])
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_without_sizes_names_the_options(run: Run, tmp_path: Path, verb: str) -> None:
    onnx.save(onnx.parser.parse_model(NEVER), tmp_path / "never.onnx")
    options = ["--against", "", *VERBS[verb][2:]] if verb == "bench" else VERBS[verb]
    outcome = run(verb, tmp_path / "never.onnx", *options)
    assert outcome.code == 1
    assert "--inputs" in outcome.err and "--sizes" in outcome.err and "N, M" in outcome.err


def test_compare_accepts_sizes(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("compare", model, "--providers", "native,reference", "--sizes", "N=3,L=320").code == 0
    assert "unknown open size 'K'" in run("compare", model, "--providers", "native,reference", "--sizes", "K=3").err
    np.savez(tmp_path / "real.npz", x=np.zeros((1, 160), np.float32))
    both = run("compare", model, "--providers", "native,reference", "--sizes", "N=1", "--inputs", tmp_path / "real.npz")
    assert both.code == 2 and "the inputs determine the sizes" in both.err


@pytest.mark.parametrize("verb", ["info", "explain", "profile", "convert-to --to stablehlo"])
def test_unknown_sizes_are_refused(run: Run, model: Path, verb: str) -> None:
    name, *options = verb.split()
    outcome = run(name, model, *options, "--sizes", "K=3")
    assert outcome.code == 2
    assert "--sizes: unknown open size 'K'. Open sizes of the model: N, L." in " ".join(outcome.err.split())


def test_sizes_hold_for_the_models_that_have_them(run: Run, model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(onnx.parser.parse_model(FRAMES.replace("float[N, L]", "float[M, L]")), other)
    infos = run("info", model, other, "--sizes", "N=2,M=3,L=160", "--json").json
    assert [info["sizes"] for info in infos] == [{"N": 2, "L": 160}, {"M": 3, "L": 160}]
    assert "unknown open size 'K'" in run("info", model, other, "--sizes", "K=3").err


def test_a_size_is_inserted_into_expressions(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 1] x) => (y) <float[1, 1] w = {2.0}> { y = MatMul(x, w) }""")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "2*N"
    onnx.save(model, tmp_path / "double.onnx")
    assert run("info", tmp_path / "double.onnx", "--sizes", "N=4", "--json").json["macs"] == 8
