"""Modules below ``onnxruntime`` are the drop-in's, or else those of the installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra: test)")

MODULES = """
import onnxruntime
import onnxruntime.backend
import onnxruntime.quantization
import onnxruntime.quantization.onnx_model
import onnxruntime.quantization.static_quantize_runner
from onnxruntime import datasets
from onnxruntime.capi import onnxruntime_inference_collection, onnxruntime_validation
from onnxruntime.tools.onnx_model_utils import get_opsets_imported

assert onnxruntime.__name__ == "sardonyx.compat.onnxruntime", onnxruntime.__name__
assert onnxruntime.backend.prepare.__module__.startswith("sardonyx."), onnxruntime.backend
assert onnxruntime_inference_collection.InferenceSession is onnxruntime.InferenceSession
assert onnxruntime.quantization.__name__ == "sardonyx.compat.onnxruntime.quantization"
assert onnxruntime.quantization.onnx_model.__name__ == "sardonyx.compat.onnxruntime.quantization.onnx_model"
for borrowed in (onnxruntime.quantization.static_quantize_runner, datasets, onnxruntime_validation):
    assert borrowed.__name__.startswith("onnxruntime.") and "sardonyx" not in borrowed.__file__, borrowed

session = onnxruntime.InferenceSession(datasets.get_example("mul_1.onnx"))
assert get_opsets_imported.__module__ == "onnxruntime.tools.onnx_model_utils"
assert session.get_inputs()[0].name == "X"
assert not hasattr(onnxruntime, "absent")
try:
    import onnxruntime.absent
except ModuleNotFoundError:
    print("done")
"""

COMPILED_NAMES = """
import sys

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import _pybind_state as C

x = np.ones((3, 2), np.float32)
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
value = ort.OrtValue.ortvalue_from_numpy(x)
assert value._ortvalue.data_ptr() == value.data_ptr() == x.ctypes.data
assert C.OrtValue.from_dlpack(value._ortvalue.to_dlpack()).numpy().tolist() == x.tolist()

vector = C.OrtValueVector()
vector.reserve(1)
vector.push_back(value._ortvalue)
assert (len(vector), vector.element_type_at(0), vector[0].shape()) == (1, 1, [3, 2])
assert [entry.numpy().tolist() for entry in vector] == [x.tolist()]

results = session._sess.run_with_ort_values({"x": value._ortvalue}, ["y"], None)
assert isinstance(results, C.OrtValueVector) and results[0].numpy().tolist() == (-x).tolist()

device = C.OrtDevice(C.OrtDevice.cpu(), C.OrtDevice.default_memory(), 0)
binding = C.SessionIOBinding(session._sess)
binding.bind_input("x", device, np.float32, x.shape, x.ctypes.data)
binding.bind_output("y", device)
session._sess.run_with_iobinding(binding, None)
outputs = binding.get_outputs()
assert isinstance(outputs, C.OrtValueVector) and outputs[0].numpy().tolist() == (-x).tolist()

fetches = C.OrtValueVector()
session.run_with_ortvaluevector(ort.RunOptions(), ["x"], vector, ["y"], fetches, [device])
assert fetches[0].numpy().tolist() == (-x).tolist()

bound = session.io_binding()
bound.bind_ortvalue_input("x", value)
bound.bind_output("y")
session.run_with_iobinding(bound)
assert isinstance(bound._iobinding.get_outputs()[0].numpy(), np.ndarray)
print("done")
"""


def run(tmp_path: Path, program: str, *arguments: str, on_ours: bool = True) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(program)
    runner = ["-m", "sardonyx.compat.onnxruntime"] if on_ours else []
    return subprocess.run(
        [sys.executable, *runner, "program.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )


def test_modules_are_ours_or_borrowed(tmp_path: Path) -> None:
    outcome = run(tmp_path, MODULES)
    assert outcome.stdout == "done\n", outcome.stderr


@pytest.mark.parametrize("on_ours", [True, False], ids=["ours", "real"])
def test_names_of_the_compiled_classes_have_the_same_meaning(tmp_path: Path, on_ours: bool) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> n (float[N, 2] x) => (float[N, 2] y) { y = Neg(x) }'
    )
    onnx.save(model, tmp_path / "net.onnx")
    outcome = run(tmp_path, COMPILED_NAMES, "net.onnx", on_ours=on_ours)
    assert outcome.stdout == "done\n", outcome.stderr


def test_without_the_package_its_modules_are_missing(tmp_path: Path) -> None:
    program = """
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
import onnxruntime.backend
try:
    import onnxruntime.datasets
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(tmp_path, program).stdout == "No module named 'onnxruntime.datasets'\n"


def test_a_backend_prepares_and_runs_models(tmp_path: Path) -> None:
    program = """
import numpy as np
import onnx
import onnxruntime.backend as backend
from onnxruntime.backend.backend import OnnxRuntimeBackend

model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> n (float[N] x) => (float[N] y) {y = Neg(x)}')
x = np.ones(3, np.float32)
assert backend.supports_device("CPU") and not backend.supports_device("GPU")
prepared = backend.prepare(model, "CPU", intra_op_num_threads=1)
assert prepared.run(x)[0].tolist() == prepared.run([x])[0].tolist() == backend.run(model, x)[0].tolist() == [-1] * 3
for options in ({"optimized_model_filepath": "x.onnx"}, {"enable_profiling": True}):
    try:
        backend.prepare(model, **options)
    except RuntimeError as error:
        assert "is not permitted" in str(error)
model.opset_import[0].version = 1000
assert not OnnxRuntimeBackend.is_opset_supported(model)[0]
print("done")
"""
    outcome = run(tmp_path, program)
    assert outcome.stdout == "done\n", outcome.stderr
