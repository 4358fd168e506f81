"""Products and convolutions of ``com.microsoft`` as standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.plain_forms.terms import Plain, float_node, number, transposed, weight, weight_of
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts


def plain_matmul(writer: Writer, node: ir.Node) -> Plain | None:
    """Return FusedMatMul with a constant factor as MatMul."""
    values = list(node.inputs[:2])
    arrays = [weight_of(value) for value in values]
    if sum(array is None for array in arrays) != 1:
        return None
    if facts.attribute(node, "transBatchA", 1, 0) or facts.attribute(node, "transBatchB", 1, 0):
        return None
    nodes, operands = [], []
    for value, array, name in zip(values, arrays, ("transA", "transB"), strict=True):
        assert value is not None
        is_transposed, rank = bool(facts.attribute(node, name, 1, 0)), facts.rank(value)
        if rank is None or rank < 2:
            return None
        if array is not None:
            matrix = np.swapaxes(array, -1, -2) if is_transposed else array
            operands.append(weight(writer, value, matrix * np.float32(number(node, "alpha", 1.0))))
        elif is_transposed:
            nodes.append(transposed(writer, value, rank, node))
            operands.append(nodes[-1].outputs[0])
        else:
            operands.append(value)
    product = float_node(writer, "MatMul", operands, node)
    return Plain([*nodes, product], product)


def plain_gemm(writer: Writer, node: ir.Node) -> Plain | None:
    """Return FusedGemm with a constant factor as Gemm and its activation."""
    if all(weight_of(value) is None for value in node.inputs[:2]):
        return None
    attributes = {
        name: node.attributes[name] for name in ("alpha", "beta", "transA", "transB") if name in node.attributes
    }
    product = float_node(writer, "Gemm", node.inputs, node, **dict[str, Any](attributes))
    names = {name: f"activation_{name}" for name in ("alpha", "beta", "gamma")}
    numbers = {name: number(node, own, 0.0) for name, own in names.items() if own in node.attributes}
    return _activated(writer, node, product, [product], numbers)


def plain_conv(writer: Writer, node: ir.Node) -> Plain | None:
    """Return FusedConv with a constant weight as Conv, the sum with its fourth input, and its activation."""
    if weight_of(node.inputs[1]) is None:
        return None
    attributes = {name: value for name, value in node.attributes.items() if not name.startswith("activation")}
    product = float_node(writer, "Conv", node.inputs[:3], node, **dict[str, Any](attributes))
    product.outputs[0].shape = node.outputs[0].shape
    nodes = [product]
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        nodes.append(float_node(writer, "Add", [product.outputs[0], node.inputs[3]], node))
    numbers = [float(value) for value in facts.attribute(node, "activation_params", 1, ()) or ()]
    return _activated(writer, node, product, nodes, dict(zip(("alpha", "beta"), numbers, strict=False)))


def _activated(
    writer: Writer, node: ir.Node, product: ir.Node, nodes: list[ir.Node], numbers: dict[str, float]
) -> Plain | None:
    """Return nodes and the activation of a fused node; None if the activation is unknown."""
    activation = facts.attribute(node, "activation", 1, "")
    x = nodes[-1].outputs[0]
    if not activation:
        return Plain(nodes, product)
    if activation in ("Relu", "Sigmoid", "Tanh"):
        return Plain([*nodes, float_node(writer, activation, [x], node)], product)
    if activation in ("LeakyRelu", "HardSigmoid"):
        return Plain([*nodes, float_node(writer, activation, [x], node, **dict[str, Any](numbers))], product)
    if activation == "Clip" and len(numbers) == 2 and writer.opset >= 11:
        bounds = [writer.initializer(f"{node.name}_bound", np.array(value, np.float32)) for value in numbers.values()]
        return Plain([*nodes, float_node(writer, "Clip", [x, *bounds], node)], product)
    return None
