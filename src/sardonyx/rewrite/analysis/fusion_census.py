"""Count of the fusions known to engines: an optimization must leave these fusions recognizable.

A fusion written as one standard operator (``LayerNormalization``) counts the same as its decomposition into nodes:
fusing loses nothing, and breaking the pattern does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts

REACH = 6
"""Nodes between the two products of an attention: scale, mask, softmax, and movements."""

ACTIVATIONS = ("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Elu", "PRelu", "Tanh", "Mish")

PRODUCTS = ("Conv", "ConvTranspose", "MatMul", "Gemm")

BETWEEN = frozenset(
    {
        "Add",
        "Mul",
        "Div",
        "Where",
        "Softmax",
        "Dropout",
        "Cast",
        "Reshape",
        "Identity",
        "DequantizeLinear",
        "QuantizeLinear",
    }
)


def census(model: ir.Model) -> Counter[str]:
    """Count the occurrences of each fusion, bodies and functions included."""
    counts: Counter[str] = Counter()
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for node in facts.nodes_of(root):
            counts.update(name for name, matches in FUSIONS.items() if matches(node))
    return counts


def lost_fusions(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """Return the fusions with fewer occurrences: name → counts before and after."""
    return {name: (count, after[name]) for name, count in before.items() if after[name] < count}


def _producers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None and producer.graph is node.graph:
            yield producer


def _producer_of_type(node: ir.Node, *op_types: str) -> ir.Node | None:
    """Return the first producer of an input with one of these operator types, looking through casts."""
    for producer in _producers(node):
        while producer.op_type == "Cast" and "Cast" not in op_types and (before := next(_producers(producer), None)):
            producer = before
        if facts.is_op(producer, *op_types):
            return producer
    return None


def _root_of_mean_square(node: ir.Node) -> ir.Node | None:
    """Return the ``ReduceMean`` below the square root in the denominator of a normalization."""
    root = _producer_of_type(node, "Sqrt")
    total = None if root is None else _producer_of_type(root, "Add")
    mean = None if total is None else _producer_of_type(total, "ReduceMean")
    return mean if mean is not None and _producer_of_type(mean, "Pow", "Mul") is not None else None


def _normalization(node: ir.Node) -> bool:
    """Match layer or RMS normalization: a division by the root, or a product with its reciprocal."""
    if facts.is_op(node, "LayerNormalization", "RMSNormalization"):
        return True
    return facts.is_op(node, "Div", "Reciprocal") and _root_of_mean_square(node) is not None


def _gelu(node: ir.Node) -> bool:
    """Match the exact form by ``Erf``, the approximate form by ``Tanh`` of a cubic."""
    if facts.is_op(node, "Gelu", "Erf"):
        return True
    cubic = _producer_of_type(node, "Mul") if facts.is_op(node, "Tanh") else None
    return cubic is not None and _producer_of_type(cubic, "Add") is not None


def _attention(node: ir.Node) -> bool:
    if facts.is_op(node, "Attention"):
        return True
    if not facts.is_op(node, "MatMul"):
        return False
    front, seen_softmax = [node], False
    for _ in range(REACH):
        front = [
            m for n in front for m in _producers(n) if m.op_type in BETWEEN or (seen_softmax and m.op_type == "MatMul")
        ]
        if seen_softmax and any(m.op_type == "MatMul" for m in front):
            return True
        softmax = [m for m in front if facts.is_op(m, "Softmax")]
        if softmax:
            front, seen_softmax = softmax, True
        front = front[:8]
    return False


def _activated_product(node: ir.Node) -> bool:
    """Match an activation of a convolution or matrix product without other readers, bias aside."""
    if not facts.is_op(node, *ACTIVATIONS):
        return False
    value = node.inputs[0]
    for _ in range(2):
        producer = None if value is None else value.producer()
        if value is None or producer is None or not facts.used_once(value):
            return False
        if facts.is_op(producer, *PRODUCTS):
            return True
        if not facts.is_op(producer, "Add", "BatchNormalization"):
            return False
        value = next((v for v in producer.inputs if v is not None and not facts.is_constant(v)), None)
    return False


def _quantized_product(node: ir.Node) -> bool:
    """Match a product of ``DequantizeLinear`` results, which engines compute in integers."""
    if facts.is_op(node, "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"):
        return True
    if not facts.is_op(node, *PRODUCTS):
        return False
    return all((m := v.producer()) is not None and facts.is_op(m, "DequantizeLinear") for v in node.inputs[:2] if v)


def _operator(*op_types: str) -> Callable[[ir.Node], bool]:
    return lambda node: facts.is_op(node, *op_types)


FUSIONS: dict[str, Callable[[ir.Node], bool]] = {
    "layer or RMS normalization": _normalization,
    "group or instance normalization": _operator("GroupNormalization", "InstanceNormalization"),
    "Gelu": _gelu,
    "attention": _attention,
    "product with activation": _activated_product,
    "product in integers": _quantized_product,
}
"""Counted fusions: name → predicate for the last node of an occurrence."""
