"""The report of the error that single nodes cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.cli import main
from sardonyx.compress.evidence import plain
from sardonyx.errors import OptionError
from tests.compress.quantization.networks import detector

SAMPLES = [
    {"x": np.random.default_rng(seed).standard_normal((1, 3, 12, 12)).astype(np.float32)} for seed in range(8)
]  # fmt: skip
NAMES = {"conv1", "conv2", "conv3", "depthwise", "head"}


def negated_error(session: Any) -> tuple[float, list[float]]:
    """Return minus the mean distance of the answers from those of the original."""
    original = sardonyx.Session(detector(), compile="off")
    scores = [-float(np.abs(session.run(None, x)[0] - original.run(None, x)[0]).mean()) for x in SAMPLES]
    return float(np.mean(scores)), scores


@pytest.mark.parametrize("options", [{}, {"mode": "weights"}, {"method": "nearest"}], ids=str)
def test_nodes_are_ranked_by_the_error_of_their_integers_alone(options: dict[str, Any]) -> None:
    result = sardonyx.quantize(detector(), SAMPLES, sensitivity=True, evaluate=negated_error, **options)
    nodes = result.report.nodes
    assert {node.name for node in nodes} >= NAMES
    assert [node.sqnr for node in nodes] == sorted(node.sqnr for node in nodes)
    losses = {node.name: node.metric for node in nodes if node.metric is not None}
    assert set(losses) == NAMES and all(loss >= 0 for loss in losses.values())
    ranked = [node.name for node in nodes if node.name in NAMES]
    assert max(losses, key=lambda name: losses[name] or 0) in ranked[:2]
    assert "nodes" in json.loads(json.dumps(plain(result.report)))


def test_excluded_nodes_are_not_measured() -> None:
    result = sardonyx.quantize(detector(), SAMPLES, sensitivity=True, exclude=["conv2"])
    assert "conv2" not in {node.name for node in result.report.nodes}
    assert sardonyx.quantize(detector(), SAMPLES).report.nodes == ()


def test_single_nodes_need_samples() -> None:
    with pytest.raises(OptionError, match="needs samples"):
        sardonyx.quantize(detector(), sensitivity=True)


def test_the_verb_prints_the_error_of_single_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "real.npz"
    model.write_bytes(detector())
    np.savez(data, x=np.concatenate([sample["x"] for sample in SAMPLES]))
    command = ["quantize", str(model), "--data", str(data), "--sensitivity", "-o", str(tmp_path / "small.onnx")]
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--json"])
    assert not exit_.value.code
    assert {node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]} >= NAMES
    with pytest.raises(SystemExit):
        main(command)
    assert "single node" in capsys.readouterr().out
