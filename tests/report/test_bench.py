"""Engines alternate, and ratios are medians over rounds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import EvaluationError, MissingDependencyError, OptionError
from sardonyx.report.alternation import alternate, ratio
from sardonyx.report.bench import bench, energy, throughput


def test_blocks_alternate() -> None:
    order: list[str] = []
    medians = alternate({name: lambda name=name: order.append(name) for name in "ab"}, 0.0)
    assert {name: len(blocks) for name, blocks in medians.items()} == {"a": 5, "b": 5}
    changes = [one for one, other in zip(order, [*order[1:], ""], strict=True) if one != other]
    # One warm-up run each; then ab, ba, ab, ba, ab, in which equal neighbours count as one.
    assert changes == list("abababab")


def test_a_ratio_is_the_median_over_rounds() -> None:
    assert ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == 2.0


def test_engines_are_measured_at_every_size() -> None:
    pytest.importorskip("onnxruntime")
    path = demo.path("digits_classifier")
    results = list(bench(path, sizes=[{"batch": 1}, {"batch": 3}], seconds=0.05, threads=1, streams=(1, 2)))
    assert [figures.sizes for figures in results] == [{"batch": 1}, {"batch": 3}]
    for figures in results:
        ours, theirs = figures.engines
        assert (ours.engine, theirs.engine, ours.ratio) == ("sardonyx", "onnxruntime", 1.0)
        assert theirs.ratio > 0 and theirs.runs >= 5
        for engine in figures.engines:
            assert 0 < engine.percentiles[50] <= engine.percentiles[90] <= engine.percentiles[99]
            assert engine.streams.keys() == {1, 2} and min(engine.streams.values()) > 0


def test_other_models_are_measured_on_the_same_engines(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path, small = demo.path("digits_classifier"), tmp_path / "small.onnx"
    sardonyx.quantize(path).save(small)
    (figures,) = bench(path, others=[small, small], sizes=[{"batch": 2}], seconds=0.05, threads=1)
    names = ["sardonyx", "onnxruntime"]
    others = [f"{name}: {small}{again}" for again in ("", " (2)") for name in names]
    assert [engine.engine for engine in figures.engines] == names + others
    assert all(engine.ratio > 0 for engine in figures.engines)
    squares = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> squares (float[N] x) => (float[N] y) { y = Mul(x, x) }'
    )
    onnx.save(squares, other := tmp_path / "squares.onnx")
    with pytest.raises(OptionError, match=r"expected the inputs of the first model \(.*\), got x tensor\(float\)"):
        next(bench(path, [], others=[other]))


def test_invalid_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = demo.path("digits_classifier")
    with pytest.raises(OptionError, match="unknown engine 'foo'"):
        next(bench(path, ["foo"]))
    with pytest.raises(OptionError, match="unknown open size 'N'"):
        next(bench(path, [], sizes=[{"N": 1}]))
    with pytest.raises(OptionError, match="the inputs determine the sizes"):
        next(bench(path, [], sizes=[{"batch": 1}], feeds={}))
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match="openvino is not installed"):
        next(bench(path, ["openvino"]))


def test_a_failing_stream_is_reported() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(EvaluationError, match="2 ran concurrently: no"):
        throughput(fail, 2, 0.05)


def test_energy_sums_whole_packages_and_counter_wraparound(tmp_path: Path) -> None:
    assert energy(lambda: None, 0.0, tmp_path) is None
    for name in ("intel-rapl:0", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "max_energy_range_uj").write_text("999999")
        (tmp_path / name / "energy_uj").write_text("900000")
    counter = tmp_path / "intel-rapl:0" / "energy_uj"
    # The counter wraps around during the call.
    assert energy(lambda: counter.write_text("400000"), 0.0, tmp_path) == 0.5
