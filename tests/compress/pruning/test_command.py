"""The verb `prune` writes the small model and its evidence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx.cli import main
from tests.compress.pruning.networks import residual


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in arguments])
    return int(exit_.value.code or 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(residual(False))
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "real.npz", x=rng.standard_normal((8, 3, 8, 8)).astype(np.float32))
    labels = rng.integers(0, 5, 8)
    np.savez(tmp_path / "eval.npz", x=rng.standard_normal((8, 3, 8, 8)).astype(np.float32), labels=labels)
    return path


def test_the_report_as_json_is_that_of_the_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = model.with_name("small.onnx")
    options = ["--channels", 0.5, "--data", model.with_name("real.npz"), "--eval", model.with_name("eval.npz")]
    assert run("prune", model, *options, "-o", small, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    stored = {entry.key: entry.value for entry in onnx.load(small).metadata_props}["sardonyx.prune"]
    assert {**json.loads(stored), "written": str(small)} == report
    assert report["evidence"]["judged"] == "held out" and report["evidence"]["metric"] is not None


def test_a_share_out_of_range_writes_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = model.with_name("small.onnx")
    assert run("prune", model, "--channels", 1.5, "-o", small) == 2
    assert "above 0 and below 1" in capsys.readouterr().err
    assert not small.exists()


def test_the_text_names_layers_that_stay_and_claims_no_gain_of_zeros(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = model.with_name("small.onnx")
    assert run("prune", model, "--sparsity", 0.5, "--pattern", "2:4", "-o", small) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "conv1" in text and "neither bytes nor time" in text


@pytest.mark.parametrize("verb, option", [("factorize", ["--rank", 0.25]), ("cluster", ["--bits", 8])])
def test_factorize_and_cluster_write_the_model_and_its_evidence(
    verb: str, option: list[object], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = model.with_name("small.onnx")
    model.write_bytes(residual(False, width=24))  # The report of a smaller model takes what palettes save.
    options = [*option, "--data", model.with_name("real.npz"), "--eval", model.with_name("eval.npz")]
    assert run(verb, model, *options, "-o", small, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    onnx.checker.check_model(onnx.load(small), full_check=True)
    assert report["written"] == str(small) and report["evidence"]["metric"] is not None
    assert any(not layer["reason"] for layer in report["layers"])
    assert run(verb, model, *options, "-o", small) == 0
    shown = capsys.readouterr().out
    assert "SQNR" in shown and "Metric:" in shown
