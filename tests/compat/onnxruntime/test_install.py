"""Programs that import ``onnxruntime`` load Sardonyx."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from sardonyx.compat import install
from sardonyx.errors import OptionError

PROGRAM = """
import sys
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph
from onnxruntime.capi import _pybind_state as C

options = SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
session = InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name, shape = session.get_inputs()[0].name, session.get_inputs()[0].shape
x = np.ones([size if isinstance(size, int) else 1 for size in shape], np.float32)
try:
    session.run(None, {name: x.astype(np.int32)})
except InvalidArgument as error:
    print("refused")
print(session.run([session.get_outputs()[0].name], {name: x})[0].tolist(), ort.__name__, __name__, C.get_device())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> n (float[N, 2] x) => (float[N, 2] y) { y = Neg(x) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"]])
def test_a_program_runs_unchanged(folder: Path, program: list[str]) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "sardonyx.compat.onnxruntime", *program, "net.onnx"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert outcome.stdout.split("\n")[:2] == [
        "refused", "[[-1.0, -1.0]] sardonyx.compat.onnxruntime __main__ CPU",
    ], outcome.stderr  # fmt: skip


def test_install_refuses_unknown_and_already_imported_packages() -> None:
    with pytest.raises(OptionError, match="unknown drop-in module 'numpy'"):
        install("numpy")
    program = "import onnxruntime, sardonyx.compat; sardonyx.compat.install('onnxruntime')"
    pytest.importorskip("onnxruntime")
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.returncode and "is already imported" in outcome.stderr


def test_the_provider_onnxruntime_does_not_load_the_drop_in() -> None:
    program = """
import sardonyx.compat
sardonyx.compat.install('onnxruntime')
from sardonyx.runtime.providers import Settings, make
try:
    make('onnxruntime', Settings())
except Exception as error:
    print(type(error).__name__)
"""
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.stdout.strip() == "MissingDependencyError", outcome.stderr
