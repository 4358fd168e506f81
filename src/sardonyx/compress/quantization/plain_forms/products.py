"""MatMul and Gemm whose weight is the right factor, with as few axes as the product permits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.terms import (
    SMALLEST,
    Plain,
    float_node,
    number,
    swapped,
    transposed,
    weight,
    weight_of,
)
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts


def right_hand_product(writer: Writer, node: ir.Node) -> Plain | None:
    """Return W X as the transpose of X' W', and X W without leading axes of W that have one element."""
    left, right = node.inputs
    assert left is not None and right is not None
    array = weight_of(right)
    rank = facts.rank(left)
    if array is not None:
        is_flat = array.ndim > 2 and all(size == 1 for size in array.shape[:-2])
        if not is_flat or rank is None or rank < array.ndim or facts.is_constant(left):
            return None
        product = float_node(writer, "MatMul", [left, weight(writer, right, array.reshape(array.shape[-2:]))], node)
        return Plain([product], product)
    array, rank = weight_of(left), facts.rank(right)
    if array is None or array.ndim < 2 or array.size < SMALLEST or rank is None or rank < 2:
        return None
    reversed_value = transposed(writer, right, rank, node)
    factor = weight(writer, left, np.swapaxes(array, -1, -2))
    product = float_node(writer, "MatMul", [reversed_value.outputs[0], factor], node)
    product.outputs[0].shape = swapped(node.outputs[0].shape)
    result = transposed(writer, product.outputs[0], max(rank, array.ndim), node)
    return Plain([reversed_value, product, result], product)


def product_of_gemm(writer: Writer, node: ir.Node) -> Plain | None:
    """Return a Gemm whose weight is the right factor, with alpha and beta in its constants."""
    left, right = node.inputs[:2]
    assert left is not None and right is not None
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    transposes = bool(facts.attribute(node, "transA", 13, 0)), bool(facts.attribute(node, "transB", 13, 0))
    array = weight_of(right)
    if array is not None and not facts.is_constant(left):
        if alpha == beta == 1 and not transposes[0]:
            return None
        nodes, x = [], left
        if transposes[0]:
            nodes.append(transposed(writer, left, 2, node))
            x = nodes[0].outputs[0]
        factor = right if alpha == 1 else weight(writer, right, array * np.float32(alpha))
        bias = _bias(writer, node, beta, nodes)
        product = float_node(
            writer, "Gemm", [x, factor] if bias is None else [x, factor, bias], node, transB=int(transposes[1])
        )
        return Plain([*nodes, product], product)
    array = weight_of(left)
    if array is None or array.size < SMALLEST or facts.is_constant(right):
        return None
    return _transposed_gemm(writer, node, array * np.float32(alpha), beta, transposes)


def _transposed_gemm(
    writer: Writer, node: ir.Node, array: np.ndarray, beta: float, transposes: tuple[bool, bool]
) -> Plain:
    """Return W X + C as the transpose of X' W', and a sum."""
    left, right = node.inputs[:2]
    assert left is not None and right is not None
    nodes, x = [], right
    if not transposes[1]:
        nodes.append(transposed(writer, right, 2, node))
        x = nodes[0].outputs[0]
    factor = weight(writer, left, array if transposes[0] else array.T)
    product = float_node(writer, "MatMul", [x, factor], node)
    product.outputs[0].shape = swapped(node.outputs[0].shape)
    result = transposed(writer, product.outputs[0], 2, node)
    nodes += [product, result]
    bias = _bias(writer, node, beta, nodes)
    if bias is not None:
        nodes.append(float_node(writer, "Add", [result.outputs[0], bias], node))
    return Plain(nodes, product)


def _bias(writer: Writer, node: ir.Node, beta: float, nodes: list[ir.Node]) -> ir.Value | None:
    """Return the third input of a Gemm times beta; a Mul is added to the nodes if the input is computed."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None or beta == 1:
        return bias
    array = weight_of(bias)
    if array is not None:
        return weight(writer, bias, array * np.float32(beta))
    factor = writer.initializer(f"{node.name}_beta", np.array(beta, np.float32))
    nodes.append(float_node(writer, "Mul", [bias, factor], node))
    return nodes[-1].outputs[0]
