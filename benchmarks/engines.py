"""The engines whose latency is compared, each with its fastest settings.

The imports are inside the functions, so that a process loads only the measured engine.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], list[Any]]
"""A function from feeds to outputs, in the model's order."""

SUBJECT = "sardonyx"
PEERS = ("onnxruntime", "openvino")


class NotCompiled(Exception):
    """Sardonyx has no compiled model, so that its interpreter would be measured."""


def load(engine: str, path: Path, threads: int) -> Run:
    """Return the engine with the model loaded, ready to run.

    Raises:
        Exception: The engine cannot load the model.
    """
    return {"sardonyx": sardonyx, "onnxruntime": onnxruntime, "openvino": openvino}[engine](path, threads)


def sardonyx(path: Path, threads: int, compile: str = "wait") -> Run:
    """Return a session of Sardonyx; by default after compilation."""
    from sardonyx import Session

    session = Session(path, compile=compile, threads=threads)
    if compile == "wait" and session.native is None:
        raise NotCompiled(session.not_compiled)
    return lambda feeds: session.run(None, feeds)


def onnxruntime(path: Path, threads: int) -> Run:
    """Return a session of ONNX Runtime with its defaults: all optimizations, spinning workers."""
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
        results = request.infer(dict(feeds))
        return [results[output] for output in outputs]

    return run


def versions() -> dict[str, str]:
    """Return the versions of all engines."""
    return {name: importlib.metadata.version(name) for name in (SUBJECT, *PEERS)}
