"""The public suites, unpacked for a test session."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from tests.suites.archives import unpacked


@dataclass(frozen=True)
class Recorded:
    """One call that onnxoptimizer's own tests make.

    Attributes:
        name: The test, without its module, and the number of the call.
        passes: The passes asked for.
        fixed_point: Whether they were repeated.
        path: The model given.
        answer_path: What onnxoptimizer 0.4.2 answered; None where it crashed or raised.
    """

    name: str
    passes: list[str]
    fixed_point: bool
    path: Path
    answer_path: Path | None

    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def answer(self) -> onnx.ModelProto | None:
        return None if self.answer_path is None else onnx.load(self.answer_path)


@pytest.fixture(scope="session")
def onnxoptimizer_suite(tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    suites = os.environ.get("SARDONYX_SUITES")
    if not suites:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    folder = tmp_path_factory.mktemp("onnxoptimizer")
    unpacked(Path(suites) / "onnxoptimizer.tar.xz", folder)
    root = next(folder.iterdir())
    calls = []
    for entry in json.loads((root / "_index.json").read_text()):
        passes, fixed_point = entry["args"]["args"]
        home = root / entry["dir"]
        answer = home / "ref_output.onnx"
        calls.append(
            Recorded(
                name=entry["dir"].removeprefix("optimizer_test.py.TestOptimizer.test_"),
                passes=[part.strip(" '") for part in passes.strip("[]").split(",")],
                fixed_point=fixed_point == "True",
                path=home / "input.onnx",
                answer_path=answer if answer.exists() else None,
            )
        )
    return calls
