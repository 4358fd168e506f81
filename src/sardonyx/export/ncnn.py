"""The exporter of ncnn files: pnnx converts, and ncnn answers in the proof.

The files are `.param`, a text, and `.bin`. Sizes are fixed, and inputs with a batch of 1 lose this axis: both are rules
of ncnn. Inputs are `in0`, `in1`, …, and outputs `out0`, `out1`, …, in the model's order.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
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
from sardonyx.rewrite.analysis import facts

MOST_AXES = 4
"""Axes of a tensor without the batch."""

_TODO = re.compile(r"^todo (\w+)", re.MULTILINE)
"""Operators of ONNX that pnnx has no pass for."""

_CONVERT = """
import os, sys, pnnx
program = os.path.join(os.path.dirname(pnnx.__file__), "pnnx")
os.execv(program, [program, "model.onnx", "fp16=0", *sys.argv[1:]])
"""

_RUN = """
import json
import math
import sys
import numpy as np
import ncnn

specification = json.load(open("specification.json"))
feeds = np.load("feeds.npz")
with ncnn.Net() as net:
    net.opt.use_vulkan_compute = False
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, "use_" + option, False)
    net.load_param("model.ncnn.param")
    net.load_model("model.ncnn.bin")
    with net.create_extractor() as extractor:
        for i, (name, batch) in enumerate(specification["inputs"]):
            array = feeds[name]
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
            matrix = ncnn.Mat(array) if batch is None else ncnn.Mat(array, batch_index=batch)
            extractor.input(f"in{i}", matrix.clone())
        arrays = {}
        for i, (batch, shape) in enumerate(specification["outputs"]):
            code, matrix = extractor.extract(f"out{i}")
            if code:
                sys.exit(f"a layer of out{i} fails with {code}")
            array = matrix.numpy() if batch is None else matrix.numpy(batch_index=batch)
            if array.size != math.prod(shape):
                sys.exit(f"out{i} has the sizes {list(array.shape)}, expected {shape}")
            arrays[f"result_{i}"] = np.array(array).reshape(shape)
np.savez("results.npz", **arrays)
"""


def _broken_rules(model: ir.Model) -> Iterator[Refusal]:
    """Yield the inputs and outputs that ncnn cannot hold."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in model.graph.initializers:
            continue
        sizes = facts.static_shape(value)
        if sizes is None:
            yield Refusal(str(value.name), "", "ncnn needs fixed sizes", "Fix open sizes with `--size`.")
        elif len(sizes) > MOST_AXES + 1 or (len(sizes) == MOST_AXES + 1 and sizes[0] != 1):
            yield Refusal(str(value.name), "", f"ncnn has tensors of at most {MOST_AXES} axes and a batch of 1")
        elif not value.dtype or value.dtype not in (ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64):
            yield Refusal(str(value.name), "", f"ncnn has no tensors of {value.dtype and value.dtype.name.lower()}")


def refusals(model: ir.Model, options: Options) -> Iterator[Refusal]:
    """Yield broken rules of ncnn, and the layers that pnnx leaves without an ncnn form."""
    broken = list(_broken_rules(model))
    yield from broken
    if not broken:
        yield from converted(model, _convert)[2]


def _convert(model: ir.Model) -> tuple[dict[str, bytes], list[Refusal], frozenset[str]]:
    """Return the files of a model, or the refusals and the operators that pnnx names in them."""
    files, problem, output = _files(model)
    if not problem:
        return files, [], frozenset()
    named = frozenset(_TODO.findall(output))
    refused = lacking(model, named, "ncnn has no layer for")
    return {}, refused or [Refusal("model", "", problem)], named


def _files(model: ir.Model) -> tuple[dict[str, bytes], str, str]:
    """Return the files of ncnn and the generated program, the problem, and the output of pnnx."""
    with tempfile.TemporaryDirectory(prefix="sardonyx-ncnn-") as name:
        folder = Path(name)
        model_io.save(model, folder / "model.onnx")
        code, output = python(_CONVERT, (), folder)
        names = ("model.ncnn.param", "model.ncnn.bin", "model_ncnn.py")
        if code or not all((folder / file).is_file() for file in names):
            return {}, f"pnnx refuses: {last_lines(output) or f'exit code {code}'}", output
        files = {file: (folder / file).read_bytes() for file in names}
    layers = [line.split()[0] for line in files["model.ncnn.param"].decode().splitlines()[2:] if line.split()]
    foreign = sorted({layer for layer in layers if "." in layer or layer.startswith(("aten", "pnnx", "prim"))})
    return files, f"ncnn has no layer for {', '.join(foreign)}" if foreign else "", output


_BATCH_IN = re.compile(
    r'ex\.input\("in(\d+)", ncnn\.Mat\(in\d+(?:\.squeeze\((\d+)\))?\.numpy\((?:[^)]*)\)(?:, batch_index=(\d+))?\)'
)
_BATCH_OUT = re.compile(r"out(\d+)\.numpy\((?:batch_index=(\d+))?\)")


def export(model: ir.Model, options: Options) -> Artifact:
    """Return a model as ncnn files.

    Raises:
        UnsupportedError: ncnn has no form for the model; names tensors, layers and rules.
    """
    refuse("ncnn", list(_broken_rules(model)))
    model, files, refused, replaced = converted(model, _convert)
    refuse("ncnn", refused)
    program = files.pop("model_ncnn.py").decode()
    batch_in = {int(m[1]): m[3] or m[2] for m in _BATCH_IN.finditer(program)}
    batch_out = {int(m[1]): m[2] for m in _BATCH_OUT.finditer(program)}
    shapes = [facts.static_shape(value) for value in model.graph.outputs]
    specification = {
        "inputs": [(name, _number(batch_in.get(i))) for i, name in enumerate(input_names(model))],
        "outputs": [(_number(batch_out.get(i)), shape) for i, shape in enumerate(shapes)],
    }
    answer = run_in_child(_RUN, files, specification)

    def run(feeds: Feeds) -> Mapping[str, Any]:
        try:
            return declared(answer(feeds), model)
        except EvaluationError as error:
            raise EvaluationError(error.problem, where="ncnn") from error

    def write(path: Path) -> None:
        path.write_bytes(files["model.ncnn.param"])
        path.with_suffix(".bin").write_bytes(files["model.ncnn.bin"])

    return Artifact(
        write,
        run,
        forms=operator_counts(model),
        value=files["model.ncnn.param"].decode(),
        notes=["inputs are in0, in1, …, outputs out0, out1, …, in the model's order", *notes_of(replaced)],
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
