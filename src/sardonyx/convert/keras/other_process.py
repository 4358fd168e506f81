"""Models of Keras on other backends: saved, and read by a process of its own whose backend is torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert.imported import Imported, Options, Size
from sardonyx.convert.keras.signature import Signature
from sardonyx.errors import ConversionError

SECONDS = 1800
"""Time after which the process is ended."""

PROGRAM = """
import json, sys
import numpy as np
from sardonyx import model as model_io
from sardonyx.convert.imported import Options
from sardonyx.convert.keras.importer import ways
from sardonyx.errors import SardonyxError
folder, options = sys.argv[1], json.loads(sys.argv[2])
with np.load(f"{folder}/examples.npz") as stored:
    examples = {name: stored[name] for name in stored.files}
dynamic = options["dynamic"]
if isinstance(dynamic, dict):
    dynamic = {name: {int(axis): label for axis, label in axes.items()} for name, axes in dynamic.items()}
try:
    way = ways(f"{folder}/model.keras", Options(examples, dynamic, "sardonyx", options["trust"], options["opset"]))[0]
    imported = way.read()
    model_io.save(imported.model, f"{folder}/model.onnx")
    sizes = {name: [size.example, size.low, size.high] for name, size in imported.sizes.items()}
    print(json.dumps({"sizes": sizes}))
except SardonyxError as error:
    print(json.dumps({"problem": error.problem, "where": error.where}))
"""


def read(signature: Signature, options: Options) -> Imported:
    """Return the model that a process with the backend torch makes of a saved copy.

    Raises:
        ConversionError: The model cannot be saved, or the process fails.
    """
    with tempfile.TemporaryDirectory(prefix="sardonyx-keras-") as folder:
        try:
            signature.model.save(Path(folder) / "model.keras")
        except Exception as error:
            raise ConversionError(f"Keras cannot save the model: {error}", where="the source") from error
        arrays: dict[str, Any] = dict(zip(signature.names, signature.arrays, strict=True))
        np.savez(Path(folder) / "examples.npz", **arrays)
        answer = _answer(folder, options)
        if "problem" in answer:
            raise ConversionError(str(answer["problem"]), where=str(answer["where"]))
        model = model_io.load(Path(folder) / "model.onnx")
        for initializer in model.graph.initializers.values():
            if initializer.const_value is not None:
                initializer.const_value = ir.tensor(initializer.const_value.numpy().copy(), name=initializer.name)
    for value, name in zip(model.graph.outputs, signature.outputs, strict=True):
        value.name = name
    sizes = {name: Size(*bounds) for name, bounds in answer["sizes"].items()}
    examples = dict(zip(signature.names, signature.arrays, strict=True))
    return Imported(model, signature.run, sizes=sizes, examples=(examples,))


def _answer(folder: str, options: Options) -> dict[str, dict[str, list[int]]]:
    # The copy is of a model in this process, whose code was loaded before: from a file, by the caller's trust alone.
    request = {"dynamic": options.dynamic, "trust": True, "opset": options.opset}
    command = [sys.executable, "-c", PROGRAM, folder, json.dumps(request)]
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConversionError(f"the process with the backend torch ran longer than {SECONDS} s") from error
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConversionError(f"the process with the backend torch fails: {reason[:300]}")
    answer: dict[str, dict[str, list[int]]] = json.loads(lines[-1])
    return answer
