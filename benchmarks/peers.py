"""The measured optimizers: functions from file to file, with their defaults.

The function of a tool imports the tool, so that a child process loads only the measured tool, and a missing tool
becomes a named row.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Optimizer = Callable[[Path, Path], None]
"""A function that reads the model at the first path and writes the optimized model to the second path."""


@dataclass(frozen=True)
class Tool:
    """One optimizer: its `name` in tables, its `distribution`, and `load`, which imports the optimizer."""

    name: str
    distribution: str
    module: str
    load: Callable[[], Optimizer]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.distribution) if self.installed else "not installed"


def sardonyx(verify: bool = False, target: str = "portable") -> Optimizer:
    # The package imports its parts on first use, so the import belongs here, not into the timed run.
    from sardonyx import optimize

    def run(source: Path, result: Path) -> None:
        optimize(source, verify=verify, target=target).save(result)

    return run


def onnxsim() -> Optimizer:
    import onnx
    import onnxsim

    def run(source: Path, result: Path) -> None:
        model, _ = onnxsim.simplify(str(source))
        onnx.save(model, result)

    return run


def onnxslim() -> Optimizer:
    import onnx
    import onnxslim

    def run(source: Path, result: Path) -> None:
        onnx.save(onnxslim.slim(str(source)), result)

    return run


def onnxoptimizer() -> Optimizer:
    import onnx
    import onnxoptimizer

    def run(source: Path, result: Path) -> None:
        onnx.save(onnxoptimizer.optimize(onnx.load(source)), result)

    return run


def onnxscript() -> Optimizer:
    import onnx_ir
    import onnxscript.optimizer

    def run(source: Path, result: Path) -> None:
        onnx_ir.save(onnxscript.optimizer.optimize(onnx_ir.load(source)), result)

    return run


def onnxruntime(level: str = "ORT_ENABLE_BASIC") -> Optimizer:
    import onnxruntime

    def run(source: Path, result: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(result)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    return run


SUBJECT = Tool("sardonyx", "sardonyx", "sardonyx", sardonyx)
VERIFYING = Tool("sardonyx, verified", "sardonyx", "sardonyx", functools.partial(sardonyx, verify=True))
PEERS = (
    Tool("onnxsim", "onnxsim", "onnxsim", onnxsim),
    Tool("onnxslim", "onnxslim", "onnxslim", onnxslim),
    Tool("onnxoptimizer", "onnxoptimizer", "onnxoptimizer", onnxoptimizer),
    Tool("onnxscript", "onnxscript", "onnxscript", onnxscript),
    Tool("onnxruntime basic", "onnxruntime", "onnxruntime", onnxruntime),
)
FOR_ONNXRUNTIME = Tool(
    "sardonyx for onnxruntime", "sardonyx", "sardonyx", functools.partial(sardonyx, target="onnxruntime")
)
EXTENDED = Tool(
    "onnxruntime extended", "onnxruntime", "onnxruntime", functools.partial(onnxruntime, level="ORT_ENABLE_EXTENDED")
)
TOOLS = {tool.name: tool for tool in (SUBJECT, VERIFYING, *PEERS, FOR_ONNXRUNTIME, EXTENDED)}
