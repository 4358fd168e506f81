"""Evaluation: run a model on numpy inputs, behind one small interface.

Verification needs answers of a trusted engine, and uses only ``evaluate(model, feeds)``.
If ONNX Runtime is installed, it is tried first, with its graph optimizations off: fast and
an independent implementation. The reference provider (:mod:`sardonyx.ops.reference`) runs models
refused by ONNX Runtime, and every model if ONNX Runtime is not installed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import EvaluationError, SardonyxError
from sardonyx.model import load
from sardonyx.ops.reference import ReferenceModel

_NOT_IN_NUMPY = ("bfloat16", "float8", "float4", "int4", "int2")
"""Element types (parts of their names) that ONNX Runtime's binding cannot convert from or to numpy arrays."""

Feeds = Mapping[str, Any]
Answers = dict[str, Any]


def _readable(feeds: Feeds) -> dict[str, Any]:
    """Convert arrays of bytes to arrays of strings: ONNX Runtime reads past the end of the former."""
    return {name: _as_strings(value) if isinstance(value, np.ndarray) else value for name, value in feeds.items()}


def _as_strings(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "SO":
        return array
    words = [word.decode() if isinstance(word, bytes) else word for word in array.reshape(-1).tolist()]
    strings = np.empty(len(words), object)
    strings[:] = words
    return strings.reshape(array.shape)


class Runner(Protocol):
    """A loaded model, ready to run."""

    name: str

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> Answers:
        """Run once; ``outputs=None`` means all graph outputs. Raises ``EvaluationError``."""
        ...


class OnnxRuntimeRunner:
    """ONNX Runtime on the CPU, graph optimizations off, one thread by default."""

    name = "onnxruntime"

    def __init__(self, model: onnx.ModelProto | bytes | str | os.PathLike[str], *, threads: int = 1) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
        source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        if not isinstance(source, bytes):
            source = os.fspath(source)
        self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self._outputs = [o.name for o in self._session.get_outputs()]
        for value in (*self._session.get_inputs(), *self._session.get_outputs()):
            if any(name in value.type for name in _NOT_IN_NUMPY):
                raise EvaluationError(f"ONNX Runtime exchanges no arrays of {value.type}", where=value.name)

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> Answers:
        """Run once; see ``Runner.run``."""
        names = list(self._outputs if outputs is None else outputs)
        try:
            return dict(zip(names, self._session.run(names, _readable(feeds)), strict=True))
        except (
            Exception
        ) as error:  # the binding raises a dozen unrelated classes, RuntimeError and ValueError among them
            raise EvaluationError(f"ONNX Runtime could not run the model: {error}") from error


class ReferenceRunner:
    """The reference provider: every operator by its definition, on numpy."""

    name = "reference"

    def __init__(self, model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> None:
        self._model = ReferenceModel(load(model))

    def run(self, feeds: Feeds, outputs: Sequence[str] | None = None) -> Answers:
        """Run once; see ``Runner.run``."""
        names = list(self._model.output_names if outputs is None else outputs)
        try:
            return dict(zip(names, self._model.run(names, _readable(feeds), RunContext()), strict=True))
        except SardonyxError as error:
            raise EvaluationError(f"the reference provider could not run the model: {error}") from error


def runner(model: onnx.ModelProto | bytes | str | os.PathLike[str], *, threads: int = 1) -> Runner:
    """Load ``model`` into the first engine that accepts the model.

    Raises:
        EvaluationError: every engine refuses the model; holds each engine's reason.
    """
    reasons: list[str] = []
    if importlib.util.find_spec("onnxruntime") is None:
        reasons.append("onnxruntime: not installed (extra: onnxruntime)")
    else:
        try:
            return OnnxRuntimeRunner(model, threads=threads)
        except Exception as error:  # the binding raises a dozen unrelated classes
            reasons.append(f"onnxruntime: {error}")
    try:
        return ReferenceRunner(model)
    except SardonyxError as error:
        reasons.append(f"reference: {error}")
    where = str(model) if isinstance(model, (str, Path)) else ""
    raise EvaluationError("no evaluator accepts the model (" + "; ".join(reasons) + ")", where=where)


def evaluate(
    model: onnx.ModelProto | bytes | str | os.PathLike[str], feeds: Feeds, outputs: Sequence[str] | None = None
) -> Answers:
    """Run ``model`` once on ``feeds`` and return its outputs by name.

    Raises:
        EvaluationError: every engine failed; holds each engine's reason.
    """
    first = runner(model)
    try:
        return first.run(feeds, outputs)
    except EvaluationError as refusal:
        if isinstance(first, ReferenceRunner):
            raise
        try:
            return ReferenceRunner(model).run(feeds, outputs)
        except SardonyxError as error:
            raise EvaluationError(f"{refusal}; reference: {error}") from error
