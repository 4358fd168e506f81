"""Terms of all forms: the nodes that replace one, constants, and transpositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

VENDOR = "com.microsoft"

SMALLEST = 1024
"""Elements of a left factor from which the product is transposed: smaller ones save less than two Transposes cost."""


@dataclass(frozen=True)
class Plain:
    """The nodes that replace a node; the last one computes its result.

    Attributes:
        nodes: The nodes in order.
        main: The node with the weight.
    """

    nodes: Sequence[ir.Node]
    main: ir.Node


Form = Callable[[Writer, ir.Node], Plain | None]
"""Returns the plain form of a node; None if the node stays."""


def weight_of(value: ir.Value | None) -> np.ndarray | None:
    """Return a constant of 32-bit floats; None for other values."""
    tensor = facts.constant_tensor(value)
    return None if tensor is None or tensor.dtype != ir.DataType.FLOAT else tensor.numpy()


def float_node(
    writer: Writer, op_type: str, inputs: Sequence[ir.Value | None], node: ir.Node, domain: str = "",
    **attributes: Any,
) -> ir.Node:  # fmt: skip
    """Return a node of 32-bit floats, named after the node that is replaced."""
    name = str(node.name or node.outputs[0].name)
    return writer.node(op_type, inputs, name, ir.DataType.FLOAT, domain, **attributes)


def transposed(writer: Writer, value: ir.Value, rank: int, node: ir.Node) -> ir.Node:
    """Return a node that exchanges the last two axes of a value."""
    order = [*range(rank - 2), rank - 1, rank - 2]
    result = float_node(writer, "Transpose", [value], node, perm=order)
    result.outputs[0].shape = swapped(value.shape)
    return result


def swapped(shape: ir.Shape | None) -> ir.Shape | None:
    """Return a shape with the last two sizes exchanged."""
    if shape is None or len(shape) < 2:
        return None
    sizes = list(shape)
    return ir.Shape([*sizes[:-2], sizes[-1], sizes[-2]])


def weight(writer: Writer, old: ir.Value, array: np.ndarray) -> ir.Value:
    """Return a new initializer in place of a constant, named after it."""
    return writer.initializer(f"{old.name}_plain", np.ascontiguousarray(array, np.float32))


def number(node: ir.Node, name: str, default: float) -> float:
    """Return an attribute that is a number."""
    return float(facts.attribute(node, name, 1, default))
