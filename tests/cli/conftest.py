from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from sardonyx.cli import main


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def suites() -> Path:
    folder = os.environ.get("SARDONYX_SUITES")
    if not folder:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    return Path(folder)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command line in this process."""

    def command(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else 0, written.out, written.err)

    return command


@pytest.fixture
def two_layers(tmp_path: Path) -> Path:
    """Return a model of two matrix products with an Identity between, for an open batch."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        layers (float[N, 2] x) => (float[N, 2] y)
        <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}, float[2, 2] v = {1.0, 0.5, 0.25, 2.0}>
        { h = MatMul(x, w) i = Identity(h) y = MatMul(i, v) }"""
    )
    path = tmp_path / "layers.onnx"
    onnx.save(model, path)
    return path
