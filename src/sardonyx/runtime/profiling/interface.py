"""A model with the inputs of a session and no nodes, for a session whose file holds no model."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx_ir as ir

from sardonyx.errors import UnsupportedError
from sardonyx.runtime.model_info import ValueInfo


def interface_model(inputs: Iterable[ValueInfo]) -> ir.Model:
    """Return a model that declares the inputs of a session, to draw inputs for the session.

    Raises:
        UnsupportedError: An input is not a tensor.
    """
    values = [_declared(info) for info in inputs]
    return ir.Model(ir.Graph(values, [], nodes=[], opset_imports={"": 1}, name="interface"), ir_version=8)


def _declared(info: ValueInfo) -> ir.Value:
    match = re.fullmatch(r"tensor\((\w+)\)", info.type)
    if match is None:
        raise UnsupportedError(
            f"inputs of type {info.type} cannot be drawn for a compiled file", where=info.name,
            remedy="Give real inputs.",
        )  # fmt: skip
    shape = None if info.shape is None else ir.Shape(info.shape)
    return ir.Value(name=info.name, shape=shape, type=ir.TensorType(ir.DataType[match[1].upper()]))
