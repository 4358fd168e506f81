"""Scalar factors of products: merge the factors of both operands, fold a factor into a weight."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import CONSTANT, REASSOCIATES, Expr, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import Add, MatMul, Mul
from sardonyx.rewrite.rules.polynomials import number_of
from sardonyx.rewrite.rules.signatures import reapply
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.weight_dependencies import derive, query

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

MOVING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
"""Operators that commute with a scalar factor: one tensor, and a shape."""

LONGEST = 8


def match_scaled(s: Site, value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """Match a product or quotient with one number and a single reader: return the tensor and the factor."""
    node = None if value is None else value.producer()
    if node is None or node.graph is not s.node.graph or not facts.is_op(node, "Mul", "Div") or value is None:
        return None
    return _match_factor(node) if facts.used_once(value) else None


def _match_factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    for index in (0, 1) if node.op_type == "Mul" else (0,):
        tensor, number = node.inputs[index], number_of(node.inputs[1 - index])
        if tensor is None or number is None or facts.dtype(tensor) not in FLOATS or facts.is_constant(tensor):
            continue
        if facts.rank(tensor) is None or facts.rank(tensor) != facts.rank(node.outputs[0]):
            continue
        if node.op_type == "Mul" or number:
            return tensor, number if node.op_type == "Mul" else 1 / number
    return None


def _round_to_type(factor: float, like: ir.Value) -> np.ndarray | None:
    kind = facts.dtype(like)
    assert kind is not None
    with np.errstate(over="ignore"):
        number = np.array(factor, kind.numpy())
    # A factor of 1e-30 is 0 in float16, and 1e30 is infinite.
    return number if np.isfinite(number) and (abs(number) >= np.finfo(number.dtype).tiny or factor == 0) else None


@rule("fuse_scales_of_matmul", on="MatMul", after=("Mul", "Div"), exactness=REASSOCIATES)
def scales_of_both_operands(s: Site) -> Result:
    """Merge the scalar factors of both operands of a product into one."""
    left, right = match_scaled(s, s.input(0)), match_scaled(s, s.input(1))
    if left is None or right is None:
        return None
    number = _round_to_type(left[1] * right[1], left[0])
    if number is None:
        return Refusal("the product of the two factors exceeds the range of the type")
    return MatMul(Mul(left[0], number), right[0])


@rule("fuse_scale_into_weight", on=("Mul", "Div"), after=CONSTANT, exactness=REASSOCIATES, opset=7)
def scale_of_linear(s: Site) -> Result:
    """Fold a scalar factor after a linear layer into its weight and bias, through shape changes too."""
    scaled = _match_factor(s.node)
    if scaled is None:
        return None
    value, factor = scaled
    chain: list[ir.Node] = []
    while (node := value.producer()) is not None and node.graph is s.node.graph and facts.is_op(node, *MOVING):
        if not facts.used_once(value) or len(chain) == LONGEST or node.inputs[0] is None:
            return None
        chain.append(node)
        value = node.inputs[0]
    if not facts.used_once(value):
        return None
    moved = _scale_linear(s, value, factor)
    if moved is None or isinstance(moved, Refusal):
        return moved
    for node in reversed(chain):
        moved = reapply(node, moved, *node.inputs[1:])
    return moved


def _scale_linear(s: Site, value: ir.Value, factor: float) -> Expr | Refusal | None:
    """Return the layer that produces ``value``, with its weight and bias multiplied by ``factor``."""
    node = value.producer()
    if node is None or node.graph is not s.node.graph:
        return None
    if facts.is_op(node, "Gemm"):
        weight, bias = (
            _scale_weight(node.inputs[1], factor),
            _scale_weight(node.inputs[2] if len(node.inputs) > 2 else None, factor),
        )
        if weight is None or (len(node.inputs) > 2 and bias is None):
            return None
        terms = [weight] if bias is None else [weight, bias]
        return Op(("Gemm",))(node.inputs[0], *terms, **dict[str, Any](node.attributes))
    if facts.is_op(node, "MatMul"):
        # `fuse_scale_into_matmul` handles a product without a bias if no shape change follows.
        weight = _scale_weight(node.inputs[1], factor)
        return None if weight is None else MatMul(node.inputs[0], weight)
    if not facts.is_op(node, "Add"):
        return None
    for index in (0, 1):
        product, term = node.inputs[index], node.inputs[1 - index]
        layer = None if product is None else product.producer()
        if layer is None or product is None or layer.graph is not s.node.graph or not facts.is_op(layer, "MatMul"):
            continue
        both = layer.inputs[1], term
        scaled_constants = (
            tuple(_scale_weight(v, factor) for v in both)
            if facts.used_once(product) and all(map(_is_weight, both))
            else ()
        )
        if not scaled_constants or None in scaled_constants:
            return Refusal("the weight or the bias is not constant, or the product has other readers")
        return Add(MatMul(layer.inputs[0], scaled_constants[0]), scaled_constants[1])
    return None


def _scale_weight(value: ir.Value | None, factor: float) -> ir.TensorProtocol | None:
    """Return a floating-point constant times ``factor``."""
    tensor = facts.constant_tensor(value)
    if tensor is None or not _is_weight(value):
        return None
    (product,) = derive(functools.partial(_product, factor), tensor)
    return product if query(_stays_finite, product, tensor) else None


def _is_weight(value: ir.Value | None) -> bool:
    return facts.is_constant(value) and facts.dtype(value) in FLOATS


def _product(factor: float, array: np.ndarray) -> tuple[np.ndarray]:
    product = np.empty_like(array)
    with np.errstate(over="ignore"):
        # A factor that the weight's type represents gives the same bits in that type, and faster. Otherwise the
        # product is computed in float64 by buffered pieces, without a wide copy of the whole.
        wide = None if array.dtype.type(factor) == factor else np.float64
        np.multiply(
            array, array.dtype.type(factor) if wide is None else factor, out=product, dtype=wide, casting="unsafe"
        )
    return (product,)


def _stays_finite(product: np.ndarray, array: np.ndarray) -> bool:
    return bool(np.isfinite(product).all() or not np.isfinite(array).all())
