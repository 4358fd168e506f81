"""Sardonyx: check, optimize, compress, compile, run and edit ONNX models.

The names in ``__all__`` are the stable Python API. Each name is imported on first use, so that ``import sardonyx`` and
``sardonyx --help`` remain fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from sardonyx.base.gc_pause import imports_frozen

__version__ = "0.1.0"

PUBLIC_NAMES = {
    "sardonyx.compress.float16": ["auto_mixed_precision", "convert_bfloat16", "convert_float16"],
    "sardonyx.errors": ["SardonyxError"],
    "sardonyx.model": ["load", "save", "to_proto"],
    "sardonyx.model.check": ["check"],
    "sardonyx.ops": ["host_operator", "operator"],
    "sardonyx.report.accuracy": ["compare"],
    "sardonyx.report.bench": ["bench"],
    "sardonyx.report.diff": ["diff"],
    "sardonyx.report.reduction": ["reduce"],
    "sardonyx.report.summary": ["summary"],
    "sardonyx.rewrite.inference": ["infer_shapes"],
    "sardonyx.rewrite.language": ["Refusal", "rule"],
    "sardonyx.rewrite.opset": ["convert_opset"],
    "sardonyx.rewrite.optimize": ["Optimized", "optimize"],
    "sardonyx.rewrite.reshape_inputs": ["make_dynamic", "set_batch", "set_input_shapes"],
    "sardonyx.rewrite.surgery": ["extract", "merge", "rename"],
    "sardonyx.runtime": ["Node", "RunOptions", "Session", "SessionOptions", "Value", "compile", "explain", "profile"],
}
"""The public names, by module; source of ``__init__.pyi``, which ``tools/make_api_stub.py`` writes."""

_MODULES = {name: module for module, names in PUBLIC_NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sardonyx' has no attribute '{name}'")
    with imports_frozen():
        value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
