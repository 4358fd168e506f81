"""All ONNX operators as names for rules: ``from sardonyx.rewrite.notation import Conv, Gemm``."""

from __future__ import annotations

import onnx

from sardonyx.rewrite.language import Op

_NAMES = frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == "")


def __getattr__(name: str) -> Op:
    if name not in _NAMES:
        raise AttributeError(f"unknown ONNX operator '{name}'")
    return Op((name,))
