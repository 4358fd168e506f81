"""Facts that a file states about its values: declared types, and elements of initializers that may affect sizes."""

from __future__ import annotations

import math
from typing import TypeAlias

import onnx_ir as ir

from sardonyx.core.dim import Dim, Size, as_dim
from sardonyx.core.eval.tensor import FOLDED_ELEMENTS
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, TensorType, Type, is_float
from sardonyx.errors import ModelFileError
from sardonyx.ops.core_values import core_type, tensor_constant

Known: TypeAlias = "Value | Type | None"
"""Facts about a value: the value itself (a small constant, sizes), its type, or nothing."""

_MAX_FLOATS = 16
"""Most elements of a float constant that is kept: eight scales of a ``Resize`` and as many again."""

_LAYERS = frozenset(
    {
        "BatchNormalization", "Conv", "ConvTranspose", "GRU", "Gemm", "GroupNormalization", "InstanceNormalization",
        "LSTM", "LayerNormalization", "PRelu", "RMSNormalization", "RNN",
    }
)  # fmt: skip
"""Operators whose float inputs after the first are weights, regardless of their number of elements."""

_JOINS = frozenset({"Add", "Sub", "Mul"})
"""Operators that have no known value if one input is the result of a layer."""


def may_affect_sizes(dtype: DType, elements: int) -> bool:
    """Return True if a constant may affect sizes: integers, and few floats (scales of a ``Resize``)."""
    return elements <= (_MAX_FLOATS if is_float(dtype) else FOLDED_ELEMENTS)


def _is_layer_weight(value: ir.Value) -> bool:
    """Return True if a value is only read as a weight of layers, or added to or multiplied with the result of one."""
    uses = value.uses()
    return bool(uses) and all(
        (use.idx > 0 and use.node.op_type in _LAYERS) or (use.node.op_type in _JOINS and _joins_layer(use.node))
        for use in uses
    )


def _joins_layer(node: ir.Node) -> bool:
    producers = [operand.producer() for operand in node.inputs if operand is not None]
    return any(producer is not None and producer.op_type in (*_LAYERS, "MatMul") for producer in producers)


def initializer_facts(value: ir.Value) -> Known:
    """Return an initializer's value if sizes may depend on the value, else its type; reads no weights."""
    tensor = value.const_value
    if tensor is None:
        return symbolic_type(value)
    shape = tuple(tensor.shape.numpy())
    dtype = tensor.dtype
    if may_affect_sizes(dtype, math.prod(shape)) and not (is_float(dtype) and _is_layer_weight(value)):
        try:
            return tensor_constant(tensor)
        except ModelFileError:
            pass  # The contents were stripped, or are in a missing file: the type is known.
    return TensorType(dtype, shape)


def symbolic_type(value: ir.Value) -> Type | None:
    """Return the type that the file declares, with a symbol for every open size; None if undeclared."""
    if value.type is None:
        return None
    if not isinstance(value.type, ir.TensorType):
        return core_type(value.type, value.shape)
    if value.shape is None:
        return TensorType(value.type.dtype, None)
    sizes: list[Size] = []
    for axis, size in enumerate(value.shape):
        known = size if isinstance(size, int) else as_dim(size.value) if size.value else -1
        # Some exporters write -1 for an open size.
        sizes.append(Dim.symbol(f"?{value.name}.{axis}") if isinstance(known, int) and known < 0 else known)
    return TensorType(value.type.dtype, tuple(sizes))
