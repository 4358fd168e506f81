"""SavedModels are converted and proved in a process with TensorFlow; a missing package is named."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.convert.tensorflow import importer
from sardonyx.errors import ConversionError, MissingDependencyError, ModelFileError, OptionError
from sardonyx.rewrite.evaluate import evaluate

PYTHON = "SARDONYX_TENSORFLOW_PYTHON"
PROGRAM = """
import sys
import tensorflow as tf


class Pure(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
    def call(self, x):
        return {"y": tf.nn.relu(x) * 2.0}

class Reading(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
    def call(self, x):
        return {"y": x + tf.cast(tf.strings.length(tf.io.read_file("name")), tf.float32)}


class Smooth(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 4), tf.float32, name="x")])
    def call(self, x):
        return {"y": tf.nn.gelu(x)}


module = {"pure": Pure, "reading": Reading, "smooth": Smooth}[sys.argv[2]]()
tf.saved_model.save(module, sys.argv[1], signatures=module.call)
"""
needs_tensorflow = pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with tensorflow")


def saved(folder: Path, kind: str) -> str:
    subprocess.run([os.environ[PYTHON], "-c", PROGRAM, str(folder), kind], check=True, capture_output=True)
    return str(folder)


@needs_tensorflow
def test_a_saved_model_is_proved_with_an_open_batch(tmp_path: Path) -> None:
    result = sardonyx.convert(saved(tmp_path / "model", "pure"))
    assert (result.report.way, result.report.verdict.status) == ("tf2onnx", "proved")
    assert any(len(values) > 1 for values in result.report.sizes.values())
    assert [value.name for value in result.model.graph.outputs] == ["y"]


@needs_tensorflow
def test_a_saved_model_that_reads_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="ReadFile"):
        sardonyx.convert(saved(tmp_path / "model", "reading"))


@needs_tensorflow
def test_an_exact_gelu_is_proved(tmp_path: Path) -> None:
    assert sardonyx.convert(saved(tmp_path / "model", "smooth")).report.verdict.status == "proved"


def test_error_functions_that_tf2onnx_leaves_without_definition_are_written() -> None:
    model = sardonyx.load(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y, float[N] z) '
            "{ h = Neg(x) y = Erfc(h) z = Mul(y, h) }"
        )
    )
    importer.write_error_functions(model)
    x = np.linspace(-3, 3, 7, dtype=np.float32)
    y, z = evaluate(sardonyx.to_proto(model), {"x": x}).values()
    expected = np.array([math.erfc(-n) for n in x])
    np.testing.assert_allclose(y, expected, atol=1e-6)
    np.testing.assert_allclose(z, -x * expected, atol=3e-6)


FAKE = """#!{python}
import json, subprocess, sys
if sys.argv[1] == "-c":
    sys.exit()
for line in sys.stdin:
    if json.loads(line)["do"] == "convert":
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        open({pid!r}, "w").write(str(started.pid))
        started.wait()
    print(json.dumps({{"operators": []}}), flush=True)
"""


ANSWERING = """#!{python}
import json, shutil, sys
if sys.argv[1] == "-c":
    sys.exit()
inputs = {{"x": {{"shape": {shape}, "dtype": {dtype!r}}}}}
for line in sys.stdin:
    if json.loads(line)["do"] == "convert":
        shutil.copy({model!r}, sys.argv[3] + "/model.onnx")
        print(json.dumps({{"signature": "s", "inputs": inputs, "outputs": ["y"]}}), flush=True)
    else:
        print(json.dumps({{"operators": []}}), flush=True)
"""


@pytest.mark.parametrize(
    "shape, dtype, named",
    [("[None]", "string", "type string"), ("[None]", "resource", "type resource"), ("None", "float32", "unknown rank")],
)
def test_inputs_that_cannot_be_drawn_are_named(
    shape: str, dtype: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    python, model = tmp_path / "python", tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 17]> g (float[N] x) => (float[N] y) '
                                      "{ y = Relu (x) }"), model)  # fmt: skip
    python.write_text(ANSWERING.format(python=sys.executable, model=str(model), shape=shape, dtype=dtype))
    python.chmod(0o700)
    monkeypatch.setenv(PYTHON, str(python))
    with pytest.raises(OptionError, match=f"input 'x' of {named}.*Pass example inputs"):
        sardonyx.convert(str(tmp_path))


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
def test_a_conversion_that_exceeds_its_time_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    python, pid = tmp_path / "python", tmp_path / "pid"
    python.write_text(FAKE.format(python=sys.executable, pid=str(pid)))
    python.chmod(0o700)
    monkeypatch.setenv(PYTHON, str(python))
    monkeypatch.setattr(importer, "SECONDS", 3)
    with pytest.raises(ConversionError, match="no answer in time"):
        sardonyx.convert(str(tmp_path))
    deadline = time.monotonic() + 120
    while is_running(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(pid.read_text()))


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="tensorflow is installed here")
def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    monkeypatch.setenv(PYTHON, sys.executable)
    with pytest.raises(MissingDependencyError, match=f"tensorflow.*{PYTHON}"):
        sardonyx.convert(str(tmp_path))
    monkeypatch.setenv(PYTHON, str(tmp_path / "absent"))
    with pytest.raises(MissingDependencyError, match="no interpreter that runs"):
        sardonyx.convert(str(tmp_path))


def test_other_exporters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(OptionError, match="unknown exporter"):
        sardonyx.convert(str(tmp_path), exporter="sardonyx")
