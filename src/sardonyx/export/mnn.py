"""The exporter of MNN files: MNN's own converter writes the file, and MNN answers in the proof.

The converter's native module is called directly. The Python package of the converter is never imported: it installs
another package on import, and reports each conversion over the network.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.export.artifact import Artifact, Feeds, Options, Refusal, refuse
from sardonyx.export.foreign_converters import (
    declared,
    input_names,
    last_lines,
    operator_counts,
    python,
    run_in_child,
)

_CONVERT = """
import sys
import _tools
_tools.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", "model.onnx", "--MNNModel", "model.mnn",
                   "--bizCode", "sardonyx", "--keepInputFormat", "1"])
"""

_RUN = """
import json
import numpy as np
import MNN

specification = json.load(open("specification.json"))
feeds = np.load("feeds.npz")
interpreter = MNN.Interpreter("model.mnn")
session = interpreter.createSession()
layout = MNN.Tensor_DimensionType_Caffe
inputs = {name: interpreter.getSessionInput(session, name) for name in specification["inputs"]}
for name, tensor in inputs.items():
    interpreter.resizeTensor(tensor, tuple(feeds[name].shape))
interpreter.resizeSession(session)
for name, tensor in inputs.items():
    array, kind = feeds[name], tensor.getDataType()
    array = array.astype(np.float32 if kind == MNN.Halide_Type_Float else np.uint8 if kind == MNN.Halide_Type_Uint8
                         else np.int32)
    tensor.copyFrom(MNN.Tensor(tuple(array.shape), kind, np.ascontiguousarray(array), layout))
interpreter.runSession(session)
arrays = {}
for i, name in enumerate(specification["outputs"]):
    tensor = interpreter.getSessionOutput(session, name)
    shape, kind = tuple(tensor.getShape()), tensor.getDataType()
    dtype = np.float32 if kind == MNN.Halide_Type_Float else np.uint8 if kind == MNN.Halide_Type_Uint8 else np.int32
    result = MNN.Tensor(shape, kind, np.zeros(shape, dtype), layout)
    tensor.copyToHostTensor(result)
    arrays[f"result_{i}"] = np.array(result.getNumpyData(), dtype).reshape(shape)
np.savez("results.npz", **arrays)
"""


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the reason if MNN's converter refuses the model; `check` reports the operators of its table."""
    _, problem = _file(model)
    if problem:
        yield Refusal("model", "", f"MNN's converter refuses: {problem}")


def _file(model: ir.Model) -> tuple[bytes, str]:
    """Return the file, or the end of the converter's output."""
    with tempfile.TemporaryDirectory(prefix="sardonyx-mnn-") as name:
        folder = Path(name)
        model_io.save(model, folder / "model.onnx")
        _, output = python(_CONVERT, (), folder)
        path = folder / "model.mnn"
        return (path.read_bytes(), "") if path.is_file() else (b"", last_lines(output) or "no file is written")


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as an MNN file.

    Raises:
        UnsupportedError: The converter refuses the model.
    """
    data, problem = _file(model)
    refuse("mnn", [Refusal("model", "", f"MNN's converter refuses: {problem}")] if problem else [])
    outputs = [str(value.name) for value in model.graph.outputs]
    specification = {"inputs": input_names(model), "outputs": outputs}
    answer = run_in_child(_RUN, {"model.mnn": data}, specification)

    def run(feeds: Feeds) -> Mapping[str, Any]:
        return declared(answer(feeds), model)

    def write(path: Path) -> None:
        path.write_bytes(data)

    return Artifact(write, run, forms=operator_counts(model), value=data)
