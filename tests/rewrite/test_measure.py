"""Measurements are paired, and intervals contain the true median with the stated confidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import parser

from sardonyx.rewrite import measure
from sardonyx.rewrite.measure import median_interval


def test_intervals_contain_the_median_with_their_confidence() -> None:
    rng = np.random.default_rng(0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval(list(range(6))) == (0, 5)
    # The sign test's tables: the 40th and the 61st of a hundred; many samples take no longer than few.
    assert median_interval(list(range(1, 101))) == (40, 61)
    assert median_interval(list(range(1, 10_001))) == (4902, 5099)
    samples = np.sort(rng.lognormal(size=(4000, 25)), axis=1)
    held = 0
    for sample in samples:
        interval = median_interval(list(sample))
        assert interval is not None
        held += interval[0] <= 1.0 <= interval[1]
    assert 0.95 <= held / len(samples) < 0.98


def test_runs_are_paired_on_the_supplied_inputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }'
    )
    onnx.save(model, path)
    latency = measure.measure([path, path], feeds={"x": np.ones((3, 2), np.float32)}, budget=0.05)
    assert latency.sizes == {"n": 3}
    assert (
        len(latency.times) == 2
        and len(latency.times[0]) == len(latency.times[1]) == latency.runs >= measure.FEWEST_PAIRS
    )
    assert latency.interval is not None and latency.interval[0] <= latency.ratio <= latency.interval[1]
    assert measure.Latency.read(latency.__dict__) == latency
