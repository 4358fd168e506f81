"""Hostile command lines of compression: each ends in an error that names the cause, and writes no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Run

TEXT = """<ir_version: 9, opset_import: ["" : 17]>
net (float[N, 3, 12, 12] x) => (float[N, 5] y) {
    [c1] a = Conv(x, w1) r = Relu(a) [c2] b = Conv(r, w2) s = Relu(b) g = GlobalAveragePool(s) f = Flatten(g)
    [head] y = MatMul(f, w3) }"""

LINES = {
    "fp16 m.onnx --auto --inputs nan.npz": (1, "inputs, x: the sample holds NaN"),
    "fp16 m.onnx --auto --inputs name.npz": (2, "--inputs: unknown input"),
    "fp16 m.onnx --auto --inputs shape.npz": (2, "--inputs: expected FLOAT [N,3,12,12] for 'x'"),
    "fp16 m.onnx --auto --inputs junk.npz": (2, "junk.npz: expected named arrays"),
    "fp16 m.onnx --auto --inputs empty.npz": (1, "inputs: nothing to compare"),
    "fp16 m.onnx --auto --tolerance nan": (2, "--tolerance: expected a number above 0"),
    "fp16 m.onnx --max-finite nan": (2, "--max-finite: expected a number between"),
    "fp16 m.onnx --block-node other": (2, "--block-node: unknown node 'other'"),
    "fp16 wrong.onnx --auto": (1, "the model fails on all random inputs"),
    "prune m.onnx --channels 0.3 --data nan.npz": (1, "data, sample 5, x: the sample holds NaN"),
    "prune m.onnx --channels 0.3 --data inf.npz": (1, "sample 5: the activation holds NaN or infinity"),
    "prune m.onnx --channels nan": (2, "--channels: expected a share above 0 and below 1, got nan"),
    "prune m.onnx --channels 0.3 --heads 0.2": (2, "got `--channels` and `--heads`"),
    "prune m.onnx": (2, "expected one of `--channels`, `--heads`, `--layers` and `--sparsity`, got none"),
    "prune m.onnx --channels 0.3 --data empty.npz": (2, "empty.npz: expected at least one sample"),
    "prune m.onnx --channels 0.3 --data none.npz": (2, "none.npz: missing input 'x'"),
    "prune m.onnx --channels 0.3 --data objects.npz": (2, "objects.npz: cannot be read as samples"),
    "prune m.onnx --channels 0.3 --data folder": (2, "folder: expected between 1 and"),
    "prune wrong.onnx --channels 0.3": (1, "c1: expected finite weights"),
    "prune relu.onnx --channels 0.3": (1, "no channel can be removed: no layer has a constant weight"),
    "prune m.onnx --channels 0.3 --criterion foo": (2, "--criterion: expected one of auto"),
    "prune m.onnx --channels 0.3 --data ok.npz --recover finetune --steps 0": (2, "--steps: expected at least 1"),
    "prune m.onnx --channels 0.3 --eval ok.npz": (2, "the file has no labels"),
    "prune m.onnx --channels 0.3 --drop 1": (2, "--drop: a permitted loss needs a metric"),
    "prune m.onnx --channels 0.3 --exclude other": (2, "--exclude: the model has no node and no operator other"),
    "prune m.onnx --channels 0.3 --data ok.npz --preprocess relu.onnx": (2, "expected rank 2"),
    "cluster m.onnx --data nan.npz": (1, "data, sample 5, x: the sample holds NaN"),
    "cluster m.onnx --bits 5": (2, "--bits: expected 4 or 8"),
    "cluster relu.onnx": (1, "no weight is smaller as a palette"),
    "factorize m.onnx --data nan.npz": (1, "data, sample 5, x: the sample holds NaN"),
    "factorize m.onnx --rank 0.5 --energy 0.5": (2, "--rank, --energy: expected one of"),
    "distill m.onnx --teacher m.onnx --alpha 1 --data nan.npz": (1, "x: 1 of 16 samples of the batch of step 1"),
    "distill m.onnx --teacher relu.onnx --data ok.npz": (2, "--teacher: the teacher's input 'x' has rank 2"),
    "quantize m.onnx --data nan.npz": (1, "data, sample 5, x: the sample holds NaN"),
    "quantize m.onnx --data inf.npz": (1, "sample 5, x: the sample holds infinity, of which the model computes NaN"),
    "quantize m.onnx --data integers.npz": (2, "got int32"),
    "quantize m.onnx --data constant.npz --exclude c2,head": (2, "no activation of the samples has a range"),
    "quantize m.onnx --weights int3": (2, "--weights: expected a Scheme or one of int8"),
    "quantize m.onnx --weights int4 --block 0": (2, "--block: expected at least 2 elements"),
    "quantize m.onnx --target mars": (2, "--target: expected one of portable"),
    "compress m.onnx --data ok.npz --size 4XB": (2, "--size: expected a number with a unit"),
    "compress m.onnx --data nan.npz": (1, "data, sample 5, x: the sample holds NaN"),
    "compress m.onnx --data ok.npz --report m.onnx": (2, "--report: 'm.onnx' is an input of the command"),
    "compress m.onnx --data ok.npz --report ok.npz": (2, "--report: 'ok.npz' is an input of the command"),
    "compress m.onnx --data ok.npz --state m.onnx": (2, "the state cannot be read or written"),
    "compress m.onnx --data ok.npz --time 0": (2, "--time: expected more than 0"),
    "optimize m.onnx --report m.onnx": (2, "--report: 'm.onnx' is an input of the command"),
    "compress m.onnx --data ok.npz --eval labels.npz --drop nan": (2, "--drop: expected a number of 0 or more"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models and data."""
    path = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 5)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, wrong in (("m", False), ("wrong", True)):
        arrays["w1"][0, 0, 0, 0] = np.nan if wrong else 1
        del model.graph.initializer[:]
        model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
        onnx.save(model, path / f"{name}.onnx")
    relu = """<ir_version: 9, opset_import: ["" : 17]> net (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(relu), path / "relu.onnx")
    x = rng.standard_normal((16, 3, 12, 12)).astype(np.float32)
    changed = {"nan": np.nan, "inf": np.inf}
    for name, value in changed.items():
        wrong = x.copy()
        wrong[5, 0, 6, 6] = value
        np.savez(path / f"{name}.npz", x=wrong)
    np.savez(path / "ok.npz", x=x)
    np.savez(path / "name.npz", input=x)
    np.savez(path / "shape.npz", x=x[:, :2])
    np.savez(path / "integers.npz", x=x.astype(np.int32))
    np.savez(path / "empty.npz", x=x[:0])
    np.savez(path / "none.npz")
    np.savez(path / "constant.npz", x=np.zeros_like(x))
    np.savez(path / "labels.npz", x=x, labels=np.zeros(16, np.int64))
    np.savez(path / "objects.npz", x=np.array([{"a": 1}], dtype=object))
    (path / "junk.npz").write_bytes(b"PK\x03\x04junk")
    (path / "folder").mkdir()
    return path


@pytest.mark.parametrize("line", LINES)
def test_a_hostile_command_line_is_refused_by_name(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(folder)
    code, message = LINES[line]
    outcome = run(*line.split(), "-o", tmp_path / "out.onnx")
    assert message in " ".join(outcome.err.split())
    assert outcome.code == code
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    "line",
    ["profile m.onnx --html", "profile m.onnx --trace", "info m.onnx --csv", "bench m.onnx --times", "run m.onnx -o"],
)
def test_a_report_does_not_replace_the_model(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(folder)
    before = (folder / "m.onnx").read_bytes()
    outcome = run(*line.split(), "m.onnx")
    assert outcome.code == 2 and "is an input of the command" in " ".join(outcome.err.split())
    assert (folder / "m.onnx").read_bytes() == before


@pytest.mark.parametrize("line", ["cluster wrong.onnx", "factorize wrong.onnx --rank 0.3"])
def test_a_layer_of_nan_stays_and_is_named(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(folder)
    outcome = run(*line.split(), "-o", tmp_path / "out.onnx", "--json")
    assert {one["name"]: one["reason"] for one in outcome.json["layers"]}["c1"].endswith("not finite")


def test_activations_of_one_value_stay_in_float(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    outcome = run("quantize", "m.onnx", "--data", "constant.npz", "-o", tmp_path / "out.onnx")
    assert "f, r, x have one value in all samples" in " ".join(outcome.out.split())
