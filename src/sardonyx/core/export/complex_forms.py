"""ONNX forms on complex numbers, represented as pairs of real numbers on a last axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.export.node_writer import GraphWriter
from sardonyx.core.ir.graph import Value
from sardonyx.errors import UnsupportedError

_UNCHANGED = frozenset(
    (
        *("add", "sub", "neg", "select", "convert", "bitcast", "reduce", "concat", "gather", "reverse", "pad", "fft"),
        *("constant", "get", "cond", "loop", "call", "stop_gradient", "contract", "convolve"),
    )
)
"""Primitives whose form is valid on pairs with unchanged parameters, or rejects complex operands."""


def paired_params(value: Value) -> Mapping[str, Any]:
    """Return the parameters of a primitive for operands with the additional last axis.

    Raises:
        UnsupportedError: The primitive has no form on complex numbers.
    """
    params = value.params
    match value.op:
        case "reshape" | "broadcast":
            return {**params, "shape": (*params["shape"], 2)}
        case "permute":
            return {**params, "axes": (*params["axes"], len(params["axes"]))}
        case "slice":
            return {
                "starts": (*params["starts"], 0),
                "limits": (*params["limits"], 2),
                "strides": (*params["strides"], 1),
            }
    if value.op not in _UNCHANGED:
        raise UnsupportedError(f"{value.op} of complex numbers has no ONNX form.", where=value.origin)
    return params


def _parts(w: GraphWriter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return real and imaginary parts, each with a last axis of 1."""
    return w.node("Gather", x, w.constant(np.array([0])), axis=-1), w.node(
        "Gather", x, w.constant(np.array([1])), axis=-1
    )


def _mul(w: GraphWriter, value: Value, x: ir.Value, y: ir.Value) -> Any:
    (a, b), (c, d) = _parts(w, x), _parts(w, y)
    real = w.node("Sub", w.node("Mul", a, c), w.node("Mul", b, d))
    return w.node("Concat", real, w.node("Add", w.node("Mul", a, d), w.node("Mul", b, c)), axis=-1)


def _div(w: GraphWriter, value: Value, x: ir.Value, y: ir.Value) -> Any:
    (a, b), (c, d) = _parts(w, x), _parts(w, y)
    scale = w.node("Add", w.node("Mul", c, c), w.node("Mul", d, d))
    real = w.node("Add", w.node("Mul", a, c), w.node("Mul", b, d))
    imaginary = w.node("Sub", w.node("Mul", b, c), w.node("Mul", a, d))
    return w.node("Div", w.node("Concat", real, imaginary, axis=-1), scale)


def _exp(w: GraphWriter, value: Value, x: ir.Value) -> Any:
    a, b = _parts(w, x)
    rotation = w.node("Concat", w.node("Cos", b), w.node("Sin", b), axis=-1)
    return w.node("Mul", w.node("Exp", a), rotation)


PAIRED: dict[str, Callable[..., Any]] = {"mul": _mul, "div": _div, "exp": _exp}
"""Primitives with a different form on pairs than on real numbers."""
