"""The servers of the serving benchmark: Triton's configuration fits the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's module; it is part of a program, and no part of the package."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    import serve_servers

    yield serve_servers
    for name in {path.stem for path in FOLDER.glob("*.py")} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("shapes", "has_batches"), [("N, 2|N, 2", True), ("1, 2|1, 2", False), ("N, 2|1, 2", False), ("N, 2|", False)]
)
def test_triton_merges_rows_of_models_with_an_open_batch_alone(
    servers: Any, tmp_path: Path, shapes: str, has_batches: bool
) -> None:
    x, y = (f"float[{shape}]" for shape in shapes.split("|"))
    text = f'<ir_version: 9, opset_import: ["": 18]> net ({x} x) => ({y} y) {{ y = Neg(x) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    servers.write_repository(tmp_path / "repository", [tmp_path / "net.onnx"])
    configuration = (tmp_path / "repository" / "net" / "config.pbtxt").read_text()
    assert ("max_batch_size" in configuration, "dynamic_batching" in configuration) == (has_batches, has_batches)
