"""The exporter of MNN files: MNN's own converter writes the file, and MNN answers in the proof.

The converter's native module is called directly. The Python package of the converter is never imported: it installs
another package on import, and reports each conversion over the network.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.export.artifact import Artifact, Feeds, Options, Refusal, refuse
from sardonyx.export.decomposition import converted, lacking, notes_of
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
                   "--bizCode", "sardonyx", "--keepInputFormat", "1", "--useOriginRNNImpl"])
"""

_RUN = """
import json
import MNN
import numpy as np

specification = json.load(open("specification.json"))
feeds = np.load("feeds.npz")


def by_session(interpreter, session):
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
    for name in specification["outputs"]:
        tensor = interpreter.getSessionOutput(session, name)
        shape, kind = tuple(tensor.getShape()), tensor.getDataType()
        dtype = np.float32 if kind == MNN.Halide_Type_Float else np.uint8 if kind == MNN.Halide_Type_Uint8 else np.int32
        result = MNN.Tensor(shape, kind, np.zeros(shape, dtype), layout)
        tensor.copyToHostTensor(result)
        yield np.array(result.getNumpyData(), dtype).reshape(shape)


def by_module():
    expr = MNN.expr
    kinds = {"f": (np.float32, expr.float), "u": (np.uint8, expr.uint8)}
    manager = MNN.nn.create_runtime_manager(({},))
    manager.set_hint(3, 0)  # Convolutions without Winograd, whose rounding errors are 100 times larger.
    network = MNN.nn.load_module_from_file(
        "model.mnn", specification["inputs"], specification["outputs"], runtime_manager=manager
    )
    variables = []
    information = network.get_info()
    layouts = dict(zip(information["inputNames"], [one.data_format for one in information["inputs"]]))
    for name in specification["inputs"]:
        dtype, kind = kinds.get(feeds[name].dtype.kind, (np.int32, expr.int))
        array = np.ascontiguousarray(feeds[name].astype(dtype))
        variables.append(expr.placeholder(list(array.shape), expr.NCHW, kind))
        variables[-1].write(array)
        if layouts.get(name) == expr.NC4HW4:  # Channels in groups of 4: modules do not convert their inputs.
            variables[-1] = expr.convert(variables[-1], expr.NC4HW4)
    results = network.forward(variables)
    for result in results if isinstance(results, (list, tuple)) else [results]:
        yield np.array((expr.convert(result, expr.NCHW) if result.shape else result).read()).reshape(result.shape)


try:
    results = list(by_module())  # Control flow, and sizes that data decides, have results through modules alone.
except Exception:
    interpreter = MNN.Interpreter("model.mnn")
    results = list(by_session(interpreter, interpreter.createSession()))
np.savez("results.npz", **{f"result_{i}": result for i, result in enumerate(results)})
"""

_DIRECT = ("MNN's answers in the proof are those without Winograd's convolutions (hint 3, level 0)",)

_TYPES = (
    ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.UINT8, ir.DataType.INT32,
    ir.DataType.INT64, ir.DataType.BOOL,
)  # fmt: skip
"""Element types of inputs and outputs, which MNN holds as float32, int32 or uint8."""

_LACKING = re.compile(r"These Op Not Support: (.*)")


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield the operators that MNN's converter lacks, node by node, or the reason of its refusal."""
    broken = list(_broken_rules(model))
    yield from broken or converted(model, _convert)[2]


def _broken_rules(model: ir.Model) -> Iterator[Refusal]:
    """Yield the inputs and outputs that MNN cannot hold."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not isinstance(value.type, ir.TensorType):
            yield Refusal(str(value.name), "", f"MNN has tensors alone, and this is {value.type}")
        elif value.dtype not in _TYPES:
            yield Refusal(str(value.name), "", f"MNN has no tensors of {value.dtype and value.dtype.name.lower()}")


def _convert(model: ir.Model) -> tuple[bytes, list[Refusal], frozenset[str]]:
    """Return the file of a model, or the refusals and the operators that the converter names in them."""
    data, output = _file(model)
    if data:
        return data, [], frozenset()
    listed = _LACKING.search(output)
    named = frozenset(re.findall(r"(\w+)(?:\s|$)", listed.group(1))) if listed else frozenset()
    refused = lacking(model, named, "MNN's converter has no form for")
    reason = last_lines(output) or "no file is written"
    return b"", refused or [Refusal("model", "", f"MNN's converter refuses: {reason}")], named


def _file(model: ir.Model) -> tuple[bytes, str]:
    """Return the file, empty without one, and the converter's output."""
    with tempfile.TemporaryDirectory(prefix="sardonyx-mnn-") as name:
        folder = Path(name)
        model_io.save(model, folder / "model.onnx")
        _, output = python(_CONVERT, (), folder)
        path = folder / "model.mnn"
        return path.read_bytes() if path.is_file() else b"", output


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as an MNN file.

    Raises:
        UnsupportedError: The converter refuses the model.
    """
    refuse("mnn", list(_broken_rules(model)))
    model, data, refused, replaced = converted(model, _convert)
    refuse("mnn", refused)
    outputs = [str(value.name) for value in model.graph.outputs]
    specification = {"inputs": input_names(model), "outputs": outputs}
    answer = run_in_child(_RUN, {"model.mnn": data}, specification)

    def run(feeds: Feeds) -> Mapping[str, Any]:
        return declared(answer(feeds), model)

    def write(path: Path) -> None:
        path.write_bytes(data)

    return Artifact(write, run, forms=operator_counts(model), notes=[*notes_of(replaced), *_DIRECT], value=data)
