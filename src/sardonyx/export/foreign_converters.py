"""Converters of other engines: models as files for them, and their programs in processes of their own.

A foreign converter may write to the standard output, end the process, or import packages that change the environment:
each runs in a child process with a time limit, in an empty folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import EvaluationError
from sardonyx.export.artifact import Feeds

SECONDS = 600.0
"""Time limit of a child process."""

_OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_INPUT": "1", "HF_HUB_OFFLINE": "1", "PYTHONNOUSERSITE": "1"}
"""Environment of child processes: a converter installs nothing."""

_LINES = 4
"""Last lines of a child's output that a message repeats."""


def child(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a program in a folder; return its exit code and its output.

    Raises:
        EvaluationError: The program exceeds the time limit.
    """
    try:
        done = subprocess.run(
            list(command),
            cwd=folder,
            env={**os.environ, **_OFFLINE},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EvaluationError(f"the program exceeds {SECONDS:.0f} s", where=str(command[0])) from error
    return done.returncode, done.stdout.decode("utf-8", "replace")


def python(script: str, arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run Python code in a process of its own; see :func:`child`."""
    return child([sys.executable, "-c", script, *arguments], folder)


def last_lines(output: str) -> str:
    """Return the end of a program's output as one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " ".join(lines[-_LINES:])[-500:]


def input_names(model: ir.Model) -> list[str]:
    """Return the names of the inputs that a call must feed."""
    return [str(value.name) for value in model.graph.inputs if value.name not in model.graph.initializers]


def operator_counts(model: ir.Model) -> Mapping[str, int]:
    """Return the number of nodes by operator."""
    return dict(sorted(Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)).items()))


def declared(answers: Sequence[Any], model: ir.Model) -> dict[str, Any]:
    """Return answers by the names of the outputs, in their element types.

    Raises:
        EvaluationError: The engine gives another number of results.
    """
    outputs = list(model.graph.outputs)
    if len(answers) != len(outputs):
        raise EvaluationError(f"the engine gives {len(answers)} results, expected {len(outputs)}")
    for value, array in zip(outputs, answers, strict=True):
        if value.shape is not None and np.ndim(array) != len(value.shape) and not np.size(array):
            raise EvaluationError(f"the engine gives no result for '{value.name}'")
    return {
        str(value.name): np.asarray(array) if value.dtype is None else np.asarray(array).astype(value.dtype.numpy())
        for value, array in zip(outputs, answers, strict=True)
    }


def run_in_child(script: str, files: Mapping[str, bytes], specification: Any) -> Callable[[Feeds], list[Any]]:
    """Return a function that answers feeds by Python code in a process of its own.

    Args:
        script: Code that reads ``feeds.npz`` and ``specification.json`` of its folder, and writes arrays ``result_0``,
            ``result_1``, … to ``results.npz``.
        files: Files of the folder.
        specification: Plain data for the code.
    """

    def run(feeds: Feeds) -> list[Any]:
        if lists := [name for name, value in feeds.items() if not isinstance(value, (np.ndarray, np.generic))]:
            raise EvaluationError(f"the engine accepts tensors alone, and input {lists[0]} is of another type")
        with tempfile.TemporaryDirectory(prefix="sardonyx-engine-") as name:
            folder = Path(name)
            for file, data in files.items():
                (folder / file).write_bytes(data)
            (folder / "specification.json").write_text(json.dumps(specification))
            arrays: dict[str, Any] = {key: np.asarray(array) for key, array in feeds.items()}
            np.savez(folder / "feeds.npz", **arrays)
            code, output = python(script, (), folder)
            if code != 0 or not (folder / "results.npz").is_file():
                raise EvaluationError(f"the engine ends with code {code}: {last_lines(output)}")
            with np.load(folder / "results.npz", allow_pickle=False) as stored:
                return [stored[f"result_{i}"] for i in range(len(stored.files))]

    return run
