"""Alias of the binding module, under the name that some programs import."""

from __future__ import annotations

from typing import Any

from sardonyx.compat.onnxruntime.capi import onnxruntime_pybind11_state


def __getattr__(name: str) -> Any:
    return getattr(onnxruntime_pybind11_state, name)
