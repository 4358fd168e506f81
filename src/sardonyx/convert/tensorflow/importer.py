"""The importer of SavedModels: tf2onnx converts, TensorFlow answers, both in a process of their own.

TensorFlow's and tf2onnx's requirements of protobuf and numpy exclude those of many programs. The process uses the
interpreter that ``SARDONYX_TENSORFLOW_PYTHON`` names, else that of this program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.convert.imported import Answers, Feeds, Imported, Options, Way
from sardonyx.convert.tensorflow import child
from sardonyx.errors import ConversionError, EvaluationError, MissingDependencyError, ModelFileError, OptionError

PYTHON = "SARDONYX_TENSORFLOW_PYTHON"
"""The environment variable with the interpreter of TensorFlow."""

PACKAGES = ("tensorflow", "tf2onnx")
OPSET = 18
"""The newest operator set that tf2onnx writes."""

SECONDS = 900
"""Time that the process has for a request."""


def ways(source: Any, options: Options) -> Sequence[Way]:
    """Return the way to read a SavedModel.

    Raises:
        OptionError: The source is no folder, or the exporter is unknown.
        MissingDependencyError: The interpreter has no TensorFlow or no tf2onnx.
        ModelFileError: The file holds operators that access files or call Python.
    """
    if options.exporter not in ("auto", "tf2onnx"):
        raise OptionError(
            f"unknown exporter '{options.exporter}' for SavedModels",
            where="exporter",
            remedy="Known are: auto, tf2onnx.",
        )
    folder = Path(source) if isinstance(source, (str, os.PathLike)) else None
    if folder is None or not (folder / "saved_model.pb").is_file():
        raise OptionError(
            "expected the folder of a SavedModel", where="source", remedy="Save it with `tf.saved_model.save`."
        )
    interpreter = os.environ.get(PYTHON) or sys.executable
    _require_packages(interpreter)
    return (Way("tf2onnx", lambda: _read(folder, interpreter, options)),)


def _require_packages(interpreter: str) -> None:
    program = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
    try:
        result = subprocess.run(
            [interpreter, "-c", program, *PACKAGES], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependencyError(f"{PYTHON} names no interpreter that runs: {error}") from error
    missing = result.stdout.split() if result.returncode == 0 else list(PACKAGES)
    if missing:
        raise MissingDependencyError(
            f"reading a SavedModel needs {' and '.join(missing)}, which {interpreter} does not have",
            remedy=f"Install them in an environment of their own, and set {PYTHON} to its interpreter.",
        )


class _Process:
    """A process with TensorFlow and one SavedModel."""

    def __init__(self, interpreter: str, folder: Path, opset: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="sardonyx-tensorflow-")
        self.directory = Path(self._directory.name)
        command = [interpreter, str(Path(child.__file__)), str(folder.resolve()), str(self.directory), str(opset)]
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def request(self, do: str) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            ConversionError: The process ended, or its time is over.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ConversionError("the process with TensorFlow ended") from None
        ready, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            raise ConversionError("the process with TensorFlow ended, or gave no answer in time", where=do)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and those that it started (tf2onnx), and remove its files."""
        if self._process.returncode is None:  # The number of a process that was waited for may be another's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._directory.cleanup()

    def __del__(self) -> None:
        self.close()


def _read(folder: Path, interpreter: str, options: Options) -> Imported:
    process = _Process(interpreter, folder, options.opset or OPSET)
    unsafe = process.request("operators")
    if "problem" in unsafe:
        raise ModelFileError(f"cannot be read: {unsafe['problem']}", where=str(folder))
    if unsafe["operators"] and not options.trust:
        raise ModelFileError(
            f"holds operators that access files or call Python: {', '.join(unsafe['operators'])}",
            where=str(folder),
            remedy="Load it with `--trust` if you trust its author.",
        )
    answer = process.request("convert")
    if "problem" in answer:
        raise ConversionError(f"tf2onnx refuses the SavedModel: {answer['problem']}", where=str(folder))
    model = model_io.from_proto(model_io.to_proto(model_io.load(process.directory / "model.onnx")))
    write_error_functions(model)
    names = list(answer["inputs"])
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = str(value.name).partition(":")[0]
    outputs = [str(value.name) for value in model.graph.outputs]
    if len(outputs) == len(answer["outputs"]) and set(outputs) != set(answer["outputs"]):
        for value, name in zip(model.graph.outputs, answer["outputs"], strict=True):
            value.name = name

    def run(feeds: Feeds) -> Answers:
        arrays: dict[str, Any] = {name: np.asarray(feeds[name]) for name in names}
        np.savez(process.directory / "feeds.npz", **arrays)
        refusal = process.request("run")
        if "problem" in refusal:
            raise EvaluationError(refusal["problem"], where="TensorFlow")
        with np.load(process.directory / "answers.npz", allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}

    note = f"signature '{answer['signature']}', converted by tf2onnx"
    examples = (_examples(answer["inputs"], options),)
    return Imported(model, run, examples=examples, notes=(note,))


def write_error_functions(model: ir.Model) -> None:
    """Replace Erfc, which tf2onnx writes without any definition, by 1 - Erf(x), in place."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "Erfc" or node.domain or node.graph is None:
            continue
        x, result = node.inputs[0], node.outputs[0]
        assert x is not None
        dtype = x.dtype or result.dtype or ir.DataType.FLOAT
        one = ir.node("Constant", [], {"value": ir.tensor(np.ones((), dtype.numpy()))})
        erf = ir.node("Erf", [x])
        difference = ir.node("Sub", [one.outputs[0], erf.outputs[0]])
        for part in (one, erf, difference):
            part.outputs[0].name = f"{result.name}/{part.op_type}"
        node.graph.insert_before(node, [one, erf, difference])
        difference.outputs[0].type, difference.outputs[0].shape = result.type, result.shape
        name, result.name = result.name, f"{result.name}/Erfc"
        difference.outputs[0].name = name
        ir.convenience.replace_all_uses_with(result, difference.outputs[0], replace_graph_outputs=True)
        node.graph.remove(node, safe=True)


def _is_number(dtype: str) -> bool:
    """Return True if NumPy knows a type of TensorFlow as that of numbers; it knows no strings and resources."""
    try:
        return np.dtype(dtype).kind in "fiub"
    except TypeError:
        return False


def _examples(inputs: Mapping[str, Mapping[str, Any]], options: Options) -> Feeds:
    """Return the caller's examples by name, or drawn ones."""
    examples = options.examples
    if isinstance(examples, Mapping) and examples:
        return {name: np.asarray(examples[name]) for name in inputs if name in examples}
    if examples:
        return {name: np.asarray(value) for name, value in zip(inputs, examples, strict=True)}
    generator = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for name, value in inputs.items():
        if value["shape"] is None or not _is_number(value["dtype"]):
            of = "of unknown rank" if value["shape"] is None else f"of type {value['dtype']}"
            raise OptionError(
                f"no example can be drawn for the input '{name}' {of}.", where="example_inputs",
                remedy="Pass example inputs.",
            )  # fmt: skip
        shape = [(2 if axis == 0 else 8) if size is None else size for axis, size in enumerate(value["shape"])]
        dtype = np.dtype(value["dtype"])
        drawn = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
        feeds[name] = drawn.astype(dtype)
    return feeds
