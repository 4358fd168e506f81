"""The latency benchmark: the tables say what is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The benchmark's modules by name; they are programs, and no part of the package."""
    pytest.importorskip("onnxruntime")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    import children
    import engine_tables

    yield {"children": children, "tables": engine_tables}
    own = {path.stem for path in FOLDER.glob("*.py")}
    for name in own & (set(sys.modules) - before):
        del sys.modules[name]


def row(name: str, ours: float, theirs: float, **more: Any) -> dict[str, Any]:
    peers = {"onnxruntime": theirs, "onnxruntime, optimized": theirs / 2, "openvino": 10 * theirs}
    return {
        "name": name, "seconds": {"sardonyx": ours, **peers},
        "ratios": {peer: seconds / ours for peer, seconds in peers.items()},
        "peak": {"operations": 1e11, "bytes": 1e10}, "roofline": 0.5, "kernels": 3, **more,
    }  # fmt: skip


def test_the_better_graph_of_a_peer_counts(modules: dict[str, ModuleType]) -> None:
    tables = modules["tables"]
    assert tables.best_of(row("net", 1.0, 4.0), "onnxruntime") == 2.0
    assert tables.best(row("net", 1.0, 4.0)) == 2.0
    assert tables.best({"name": "net", "failure": "crashed"}) is None


def holds(tables: ModuleType, rows: list[dict[str, Any]]) -> dict[str, str]:
    summary, *_ = tables.tables({"latency": rows}, ["latency"])
    return {criterion: verdict for _, criterion, _, verdict in summary.rows if criterion}


def test_the_criteria_hold_when_all_models_are_fast(modules: dict[str, ModuleType]) -> None:
    assert set(holds(modules["tables"], [row("a", 1.0, 8.0), row("b", 2.0, 8.0)]).values()) == {"yes"}


def test_one_that_failed_counts_as_slower(modules: dict[str, ModuleType]) -> None:
    verdicts = holds(modules["tables"], [row("a", 1.0, 8.0), {"name": "b", "failure": "crashed"}])
    assert verdicts["no model slower than the better peer"] == "NO"
    assert verdicts["≥ 2.0 × ONNX Runtime"] == "NO"


def test_a_slow_network_needs_its_roofline(modules: dict[str, ModuleType]) -> None:
    criterion = "≥ 2.0 × ONNX Runtime or ≥ 0.8 of the roofline"
    assert holds(modules["tables"], [row("a", 1.0, 2.4)])[criterion] == "NO"
    assert holds(modules["tables"], [row("a", 1.0, 2.4, roofline=0.9)])[criterion] == "yes"
    assert holds(modules["tables"], [row("a", 0.001, 0.0024)])[criterion] == "yes"


def test_a_model_is_measured_on_all_engines(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[2, 4] x) => (float[2, 4] y) { h = Exp(x) y = Softmax(h) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 4), np.float32))
    path, feeds = str(tmp_path / "net.onnx"), str(tmp_path / "feeds.npz")
    measured = modules["children"].call("latency", path=path, optimized=path, feeds=feeds, threads=2, seconds=0.1)
    assert measured["failures"] == {}
    sides = {"sardonyx", "onnxruntime", "openvino", "onnxruntime, optimized", "openvino, optimized"}
    assert set(measured["seconds"]) == sides
    assert measured["ratios"]["sardonyx"] == 1.0
    assert max(measured["errors"].values()) < 1e-5
    assert measured["kernels"] >= 1


def test_many_sizes_are_measured_on_all_engines(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[N, 4] x) => (float[N, 4] y) { h = Exp(x) y = Softmax(h) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    sizes = []
    for n in (3, 200, 7):
        sizes.append(str(tmp_path / f"{n}.npz"))
        np.savez(sizes[-1], x=np.ones((n, 4), np.float32))
    measured = modules["children"].call("dynamic", path=str(tmp_path / "net.onnx"), sizes=sizes, threads=2)
    assert measured["faults"] == measured["compilations"] == 0
    assert len(measured["ratios"]) == 2
    assert set(measured["new"]) == {"sardonyx", "onnxruntime", "openvino"}
    table, lines = modules["tables"].of_many_sizes([{"name": "net", "count": 3, **measured}])
    assert len(table.rows) == 3
    assert {criterion: verdict for _, criterion, _, verdict in lines}["no compilation"] == "yes"


def test_a_crash_is_a_row(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    arguments = {"path": str(tmp_path / "none.onnx"), "optimized": None, "feeds": "none.npz", "threads": 1}
    assert "failure" in modules["children"].call("latency", seconds=0.1, **arguments)
