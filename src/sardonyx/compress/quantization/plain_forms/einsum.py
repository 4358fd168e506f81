"""Einsum of a value and a constant as MatMul between Transpose and Reshape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.terms import Plain, float_node, weight, weight_of
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts


@dataclass(frozen=True)
class Equation:
    """The letters of an Einsum of a value and a constant, each once per term.

    Attributes:
        value, factor, result: The letters of the terms.
        batch: Letters of both factors and of the result, in the order of the constant.
        summed: Letters of both factors alone.
        rows: Letters of the value and of the result.
        columns: Letters of the constant and of the result.
    """

    value: str
    factor: str
    result: str
    batch: str
    summed: str
    rows: str
    columns: str


def read_equation(text: str, is_first: bool, ranks: tuple[int, int]) -> Equation | None:
    """Return the letters of an equation of two terms; None if it is no product with at most one axis of rows per batch.

    Args:
        text: The equation.
        is_first: True if the constant is the first term.
        ranks: The ranks of the value and of the constant; an ellipsis becomes capital letters.
    """
    terms, arrow, result = text.replace(" ", "").partition("->")
    parts = terms.split(",")
    if not arrow or len(parts) != 2:
        return None
    factor, value = parts if is_first else reversed(parts)
    if "..." in factor:
        return None
    letters = value.replace("...", "")
    if "..." in value:
        free = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in text][: ranks[0] - len(letters)]
        value, result = value.replace("...", "".join(free)), result.replace("...", "".join(free))
    if (len(value), len(factor)) != ranks or "..." in result:
        return None
    if any(len(set(term)) != len(term) for term in (value, factor, result)):
        return None
    batch = "".join(letter for letter in factor if letter in value and letter in result)
    summed = "".join(letter for letter in value if letter in factor and letter not in result)
    rows = "".join(letter for letter in value if letter not in factor)
    columns = "".join(letter for letter in factor if letter not in value)
    if not summed or set(rows + columns) - set(result) or set(result) != set(batch + rows + columns):
        return None
    return Equation(value, factor, result, batch, summed, rows, columns)


def plain_einsum(writer: Writer, node: ir.Node) -> Plain | None:
    """Return an Einsum with a constant as MatMul: [batch, rows, summed] times [batch, summed, columns]."""
    if len(node.inputs) != 2:
        return None
    arrays = [weight_of(value) for value in node.inputs]
    if sum(array is None for array in arrays) != 1:
        return None
    is_first = arrays[0] is not None
    array = arrays[0] if is_first else arrays[1]
    value, old = (node.inputs[1], node.inputs[0]) if is_first else node.inputs
    rank = facts.rank(value)
    if array is None or value is None or old is None or rank is None or value.dtype != ir.DataType.FLOAT:
        return None
    equation = read_equation(str(facts.attribute(node, "equation", 12, "")), is_first, (rank, array.ndim))
    if equation is None or not _has_sizes(equation, value, array):
        return None
    if equation.batch and (len(equation.rows) != 1 or not set(equation.batch) <= set(equation.result)):
        return None
    sizes = dict(zip(equation.factor, array.shape, strict=True))
    order = equation.batch + equation.summed + equation.columns
    matrix = array.transpose([equation.factor.index(letter) for letter in order])
    depth, width = (int(np.prod([sizes[letter] for letter in part])) for part in (equation.summed, equation.columns))
    matrix = matrix.reshape(*(sizes[letter] for letter in equation.batch), depth, width)
    nodes: list[ir.Node] = []
    leading = equation.batch + equation.rows
    x = _permuted(writer, node, value, equation.value, leading + equation.summed, nodes)
    if len(equation.summed) > 1:
        x = _reshaped(writer, node, x, [0] * len(leading) + [depth], nodes)
    x.shape = x.shape or ir.Shape([*[None] * len(leading), depth])
    product = float_node(writer, "MatMul", [x, weight(writer, old, matrix)], node)
    product.outputs[0].shape = ir.Shape([*_sizes(value, equation, leading), width])
    nodes.append(product)
    y = product.outputs[0]
    if len(equation.columns) != 1:
        y = _reshaped(writer, node, y, [0] * len(leading) + [sizes[letter] for letter in equation.columns], nodes)
    _permuted(writer, node, y, leading + equation.columns, equation.result, nodes)
    return Plain(nodes, product)


def _has_sizes(equation: Equation, value: ir.Value, array: np.ndarray) -> bool:
    """Return True if common axes have equal known sizes: Einsum repeats a size of 1."""
    for letter in equation.batch + equation.summed:
        size = facts.dim_at(value, equation.value.index(letter))
        if size != array.shape[equation.factor.index(letter)]:
            return False
    return array.size > 0


def _sizes(value: ir.Value, equation: Equation, letters: str) -> list[Any]:
    shape = value.shape
    assert shape is not None
    return [shape[equation.value.index(letter)] for letter in letters]


def _permuted(
    writer: Writer, node: ir.Node, value: ir.Value, before: str, after: str, nodes: list[ir.Node]
) -> ir.Value:
    """Return a value with its axes in another order; a Transpose is added to the nodes if that differs."""
    if before == after:
        return value
    nodes.append(float_node(writer, "Transpose", [value], node, perm=[before.index(letter) for letter in after]))
    return nodes[-1].outputs[0]


def _reshaped(writer: Writer, node: ir.Node, value: ir.Value, sizes: list[int], nodes: list[ir.Node]) -> ir.Value:
    shape = writer.initializer(f"{node.name}_sizes", np.array(sizes, np.int64))
    nodes.append(float_node(writer, "Reshape", [value, shape], node))
    return nodes[-1].outputs[0]
