"""The verbs ``split`` and ``watermark``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.trust.encryption import Key, write_key
from tests.cli.conftest import Run
from tests.distributed.networks import layers
from tests.trust.networks import CHANNELS, network


def test_split_writes_parts_whose_chain_is_the_model(run: Run, tmp_path: Path) -> None:
    source, folder = tmp_path / "net.onnx", tmp_path / "new" / "parts"
    onnx.save(layers(4, skip=True), source)
    written = run("split", source, "--parts", 2, "-o", folder, "--json").json
    report = json.loads((folder / "pipeline.json").read_text())
    assert {**report, "written": str(folder)} == written
    assert report["parts"] == ["part-1.onnx", "part-2.onnx"] and report["error"] <= 1e-5
    values = {"x": np.random.default_rng(0).standard_normal((3, 64), np.float32)}
    expected = sardonyx.run(source, values)
    for name in report["parts"]:
        session = sardonyx.Session(folder / name)
        values |= sardonyx.run(folder / name, {entry.name: values[entry.name] for entry in session.get_inputs()})
    for name in report["outputs"]:
        np.testing.assert_allclose(values[name], expected[name], rtol=1e-5, atol=1e-6)
    assert "proved" in run("split", source, "--by-memory", "32KiB", "-o", folder).out


def test_split_writes_ways_that_compute_the_model(run: Run, tmp_path: Path) -> None:
    source, folder = tmp_path / "net.onnx", tmp_path / "ways"
    onnx.save(layers(2), source)
    written = run("split", source, "--ways", 2, "-o", folder, "--json").json
    report = json.loads((folder / "tensor_parallel.json").read_text())
    assert {**report, "written": str(folder)} == written and report["weight_bytes"] == [16384, 16384]
    feeds = {"x": np.random.default_rng(0).standard_normal((3, 64), np.float32)}
    values: list[dict[str, np.ndarray]] = [dict(feeds), dict(feeds)]
    for stage in report["stages"]:
        for own, name in zip(values, stage["files"], strict=True):
            read = {entry.name: own[entry.name] for entry in sardonyx.Session(folder / name).get_inputs()}
            own.update(sardonyx.run(folder / name, read))
        for join in stage["joins"]:
            parts = [own[join["part"]] for own in values]
            whole = sum(parts) if join["axis"] is None else np.concatenate(parts, join["axis"])
            for own in values:
                own[join["name"]] = np.asarray(whole)
    for name, expected in sardonyx.run(source, feeds).items():
        np.testing.assert_allclose(values[0][report["outputs"][name]], expected, rtol=1e-5, atol=1e-6)
    assert "way 2: 16,384 bytes" in run("split", source, "--ways", 2, "-o", folder).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ways", "2", "--parts", "2"], "expected one of --ways, --parts and --by-memory, got --ways and --parts"),
        (["--ways", "1"], "--ways: expected an integer of at least 2 and below 65"),
        ([], "expected a number of parts"),
        (["--parts", "0"], "--parts: expected 1 to 64 parts"),
        (["--parts", "2", "--by-memory", "1GiB"], "expected a number of parts"),
        (["--by-memory", "much"], "--by-memory: expected a size"),
        (["--by-memory", "1000"], "--by-memory: the weights of node"),
    ],
)
def test_split_refuses_other_options_by_name(run: Run, tmp_path: Path, words: list[str], message: str) -> None:
    onnx.save(layers(2), tmp_path / "net.onnx")
    outcome = run("split", tmp_path / "net.onnx", "-o", tmp_path / "parts", *words)
    assert outcome.code == 2 and message in outcome.err
    assert not (tmp_path / "parts").exists()


def test_watermark_marks_and_searches(run: Run, tmp_path: Path) -> None:
    source, target, key = tmp_path / "net.onnx", tmp_path / "marked.onnx", tmp_path / "mark.key"
    onnx.save(network(), source)
    write_key(Key("aes256", bytes(range(32))), key)
    assert run("watermark", source, "-o", target, "--key", key, "--json").json["channels"] == 3 * CHANNELS
    assert run("watermark", target, "--original", source, "--key", key, "--json").json["p_value"] < 1e-9
    assert run("watermark", source, "--key", key).code == 2
    outcome = run("watermark", source, "-o", tmp_path / "x.onnx", "--key", tmp_path / "none")
    assert outcome.code == 2 and "cannot be read" in outcome.err and not (tmp_path / "x.onnx").exists()
