"""The engines whose latency is compared: each loads a model file and runs it on feeds, with what makes it fastest.

Imports stand inside the functions, so that a process loads only what it measures.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], list[Any]]
"""From feeds to the outputs, in the model's order."""

SUBJECT = "sardonyx"
PEERS = ("onnxruntime", "openvino")


class NotCompiled(Exception):
    """Sardonyx would answer from its interpreter: that is nobody's latency."""


def load(engine: str, path: Path, threads: int) -> Run:
    """The engine with the model loaded, ready to run.

    Raises:
        Exception: Whatever the engine raises on a model that it cannot load.
    """
    return {"sardonyx": sardonyx, "onnxruntime": onnxruntime, "openvino": openvino}[engine](path, threads)


def sardonyx(path: Path, threads: int, compile: str = "wait") -> Run:
    """Compiled first, or as ``compile`` says."""
    from sardonyx import Session

    session = Session(path, compile=compile, threads=threads)
    if compile == "wait" and session.native is None:
        raise NotCompiled(session.not_compiled)
    return lambda feeds: session.run(None, feeds)


def onnxruntime(path: Path, threads: int) -> Run:
    """All optimizations, which is the default; its workers spin while it runs, as they do by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def openvino(path: Path, threads: int) -> Run:
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", config)
    request = compiled.create_infer_request()
    outputs = list(compiled.outputs)

    def run(feeds: Mapping[str, np.ndarray]) -> list[Any]:
        found = request.infer(dict(feeds))
        return [found[output] for output in outputs]

    return run


def versions() -> dict[str, str]:
    """Of all engines."""
    return {name: importlib.metadata.version(name) for name in (SUBJECT, *PEERS)}
