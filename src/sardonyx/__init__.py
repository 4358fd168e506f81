"""Sardonyx: one package that takes an ONNX model from file to answer.

The names below are the stable Python API. Each is loaded when it is first used, so that importing the package
(and ``sardonyx --help``) costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sardonyx.base.gc_pause import importing

if TYPE_CHECKING:
    from sardonyx.errors import SardonyxError
    from sardonyx.model import load, save
    from sardonyx.model.check import check
    from sardonyx.ops import host_operator, operator
    from sardonyx.report.diff import diff
    from sardonyx.report.summary import summary
    from sardonyx.rewrite.inference import infer_shapes
    from sardonyx.rewrite.language import Refusal, rule
    from sardonyx.rewrite.opset import convert_opset
    from sardonyx.rewrite.optimize import Optimized, optimize
    from sardonyx.rewrite.reshape_inputs import make_dynamic, set_batch, set_input_shapes
    from sardonyx.rewrite.surgery import extract, merge, rename
    from sardonyx.runtime import Node, RunOptions, Session, SessionOptions, Value

__version__ = "0.1.0"

__all__ = [
    "Node",
    "Optimized",
    "Refusal",
    "RunOptions",
    "SardonyxError",
    "Session",
    "SessionOptions",
    "Value",
    "check",
    "convert_opset",
    "diff",
    "extract",
    "host_operator",
    "infer_shapes",
    "load",
    "make_dynamic",
    "merge",
    "operator",
    "optimize",
    "rename",
    "rule",
    "save",
    "set_batch",
    "set_input_shapes",
    "summary",
]

_MODULES = {
    "Node": "sardonyx.runtime",
    "Optimized": "sardonyx.rewrite.optimize",
    "Refusal": "sardonyx.rewrite.language",
    "SardonyxError": "sardonyx.errors",
    "RunOptions": "sardonyx.runtime",
    "Session": "sardonyx.runtime",
    "SessionOptions": "sardonyx.runtime",
    "Value": "sardonyx.runtime",
    "check": "sardonyx.model.check",
    "convert_opset": "sardonyx.rewrite.opset",
    "diff": "sardonyx.report.diff",
    "extract": "sardonyx.rewrite.surgery",
    "host_operator": "sardonyx.ops",
    "infer_shapes": "sardonyx.rewrite.inference",
    "load": "sardonyx.model",
    "make_dynamic": "sardonyx.rewrite.reshape_inputs",
    "merge": "sardonyx.rewrite.surgery",
    "operator": "sardonyx.ops",
    "optimize": "sardonyx.rewrite.optimize",
    "rename": "sardonyx.rewrite.surgery",
    "rule": "sardonyx.rewrite.language",
    "save": "sardonyx.model",
    "set_batch": "sardonyx.rewrite.reshape_inputs",
    "set_input_shapes": "sardonyx.rewrite.reshape_inputs",
    "summary": "sardonyx.report.summary",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sardonyx' has no attribute '{name}'")
    with importing():
        found = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
