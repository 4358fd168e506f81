"""Weights that a node reads through a transposition, which stays in a model because other nodes read the constant."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.terms import weight_of
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

_READERS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
_MOVES = ("Transpose", "Identity")


def write_moved_weights(writer: Writer, nodes: list[ir.Node]) -> None:
    """Let products and convolutions read transposed constants as constants.

    Tables of embeddings are often the weight of the last product too; ``tied_tables.py`` stores both once.
    """
    moved: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node.domain or node.op_type not in _READERS:
            continue
        for index in (0, 1) if node.op_type in ("MatMul", "Gemm") else (1,):
            value = node.inputs[index] if len(node.inputs) > index else None
            array = None if value is None else _moved(value)
            if value is None or array is None:
                continue
            if value not in moved:
                moved[value] = writer.initializer(f"{value.name}_moved", array)
            node.replace_input_with(index, moved[value])
    for value in moved:
        _drop(writer, value)


def _moved(value: ir.Value) -> np.ndarray | None:
    """Return the elements of a constant that a value moves, as a view; None for other values."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in _MOVES or facts.refers_to_function_attribute(node):
        return None
    source = node.inputs[0]
    array = weight_of(source)
    if array is None and source is not None:
        array = _moved(source)
    if array is None or node.op_type == "Identity":
        return array
    return array.transpose(facts.attribute(node, "perm", 1, tuple(reversed(range(array.ndim)))))


def _drop(writer: Writer, value: ir.Value) -> None:
    """Remove the nodes that moved a constant for readers that are gone."""
    node = value.producer()
    if node is None or node.op_type not in _MOVES:
        writer.drop(value)
        return
    if value.uses() or value.is_graph_output():
        return
    source = node.inputs[0]
    writer.remove(node)
    if source is not None:
        _drop(writer, source)
