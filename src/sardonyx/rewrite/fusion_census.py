"""The fusions that engines make, counted in a model: an optimization must leave them as findable as they were.

A fusion counts alike as one standard operator (``LayerNormalization``) and as the nodes it is written out in, so that
fusing it ourselves loses nothing and breaking it up does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import onnx_ir as ir

from sardonyx.rewrite import facts

REACH = 6
"""Nodes between the two products of an attention: scale, mask, softmax, and the movements among them."""

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
    """How often each fusion is found, bodies and functions included."""
    found: Counter[str] = Counter()
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for node in facts.nodes_of(root):
            found.update(name for name, is_there in FUSIONS.items() if is_there(node))
    return found


def lost(before: Counter[str], after: Counter[str]) -> dict[str, tuple[int, int]]:
    """The fusions that became fewer: name → how many before and after."""
    return {name: (count, after[name]) for name, count in before.items() if after[name] < count}


def _makers(node: ir.Node) -> Iterator[ir.Node]:
    for value in node.inputs:
        maker = None if value is None else value.producer()
        if maker is not None and maker.graph is node.graph:
            yield maker


def _made_by(node: ir.Node, *op_types: str) -> ir.Node | None:
    """The first maker of an input that is one of these operators, casts between them aside."""
    for maker in _makers(node):
        while maker.op_type == "Cast" and "Cast" not in op_types and (before := next(_makers(maker), None)):
            maker = before
        if facts.is_op(maker, *op_types):
            return maker
    return None


def _root_of_mean_square(node: ir.Node) -> ir.Node | None:
    """The ``ReduceMean`` under the root that a normalization divides by."""
    root = _made_by(node, "Sqrt")
    total = None if root is None else _made_by(root, "Add")
    mean = None if total is None else _made_by(total, "ReduceMean")
    return mean if mean is not None and _made_by(mean, "Pow", "Mul") is not None else None


def _normalization(node: ir.Node) -> bool:
    """Layer or RMS normalization: a division by the root, or a product with its reciprocal."""
    if facts.is_op(node, "LayerNormalization", "RMSNormalization"):
        return True
    return facts.is_op(node, "Div", "Reciprocal") and _root_of_mean_square(node) is not None


def _gelu(node: ir.Node) -> bool:
    """The exact form goes through Erf, the approximate one through Tanh of a cubic."""
    if facts.is_op(node, "Gelu", "Erf"):
        return True
    cubic = _made_by(node, "Mul") if facts.is_op(node, "Tanh") else None
    return cubic is not None and _made_by(cubic, "Add") is not None


def _attention(node: ir.Node) -> bool:
    if facts.is_op(node, "Attention"):
        return True
    if not facts.is_op(node, "MatMul"):
        return False
    front, seen_softmax = [node], False
    for _ in range(REACH):
        front = [
            m for n in front for m in _makers(n) if m.op_type in BETWEEN or (seen_softmax and m.op_type == "MatMul")
        ]
        if seen_softmax and any(m.op_type == "MatMul" for m in front):
            return True
        softmax = [m for m in front if facts.is_op(m, "Softmax")]
        if softmax:
            front, seen_softmax = softmax, True
        front = front[:8]
    return False


def _activated_product(node: ir.Node) -> bool:
    """An activation whose operand is a convolution or matrix product that nothing else reads, bias aside."""
    if not facts.is_op(node, *ACTIVATIONS):
        return False
    value = node.inputs[0]
    for _ in range(2):
        maker = None if value is None else value.producer()
        if value is None or maker is None or not facts.used_once(value):
            return False
        if facts.is_op(maker, *PRODUCTS):
            return True
        if not facts.is_op(maker, "Add", "BatchNormalization"):
            return False
        value = next((v for v in maker.inputs if v is not None and not facts.is_constant(v)), None)
    return False


def _quantized_product(node: ir.Node) -> bool:
    """A product whose operands come out of ``DequantizeLinear``, which engines run in integers."""
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
"""What is counted: name → whether a node is where one ends."""
