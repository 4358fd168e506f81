"""Integer products with their scales and bias, as ONNX Runtime's MatMulIntegerToFloat and DynamicQuantizeMatMul."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Patch, Refusal, Result, microsoft, rule
from sardonyx.rewrite.rules.contributed import DOMAIN, ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.site import Site

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class _Product:
    """A product a · b of integers, converted to float32 and scaled.

    Attributes:
        node: The MatMulInteger.
        a_scale: The scale of ``a``, one number.
        b_scale: The scale of ``b``, one number or one per column.
    """

    node: ir.Node
    a_scale: ir.Value
    b_scale: ir.Value


@rule(
    "fuse_integer_product",
    on="Mul",
    among=("MatMulInteger",),
    exactness=REASSOCIATES,
    opset=10,
    emits=DOMAIN,
    targets=ONNXRUNTIME,
)
def integer_product(s: Site) -> Result:
    """Fuse Cast(MatMulInteger(a, b)) · scales + bias into MatMulIntegerToFloat, or DynamicQuantizeMatMul."""
    product = _match(s)
    if product is None:
        return None
    a, b, a_zero, b_zero = (*product.node.inputs, None, None)[:4]
    if a is None or b is None:
        return None
    sizes, rank = facts.static_shape(b), facts.rank(a)
    if sizes is None or len(sizes) != 2 or rank is None or rank < 2 or facts.dtype(a) not in _BYTES:
        return Refusal("expected a matrix of known size, and a tensor of rank 2 or more")
    columns = sizes[1]
    if not all(_is_one_number(value) for value in (product.a_scale, a_zero)):
        return Refusal("the scale or zero point of the left operand is not one number")
    if not all(_is_one_number(value) or facts.static_shape(value) == (columns,) for value in (product.b_scale, b_zero)):
        return Refusal("the scale or zero point of the matrix is neither one number nor one per column")
    if any(facts.dtype(value) != ir.DataType.FLOAT for value in (product.a_scale, product.b_scale)):
        return Refusal("the scales are not of type float32")
    end, bias = _biased(s, columns)
    source = _dynamically_quantized(s, product, a, a_zero)
    if source is not None:
        fused = microsoft("DynamicQuantizeMatMul")(source, b, product.b_scale, b_zero, bias)
    else:
        fused = microsoft("MatMulIntegerToFloat")(a, b, product.a_scale, product.b_scale, a_zero, b_zero, bias)
    return Patch({end: fused}, before=None if end is s.output else _only_reader(s.output))


def _match(s: Site) -> _Product | None:
    """Match the root as Cast(MatMulInteger) · (p · q), or as (Cast(MatMulInteger) · p) · q."""
    for index in (0, 1):
        factor = s.input(1 - index)
        node = _converted(s, s.input(index))
        scales = producer_of(s, factor, "Mul")
        if node is not None and scales is not None:
            return _scaled(node, scales.inputs[0], scales.inputs[1])
        inner = producer_of(s, s.input(index), "Mul")
        if inner is None or not facts.used_once(inner.outputs[0]):
            continue
        for at in (0, 1):
            node = _converted(s, inner.inputs[at])
            if node is not None:
                return _scaled(node, inner.inputs[1 - at], factor)
    return None


def _converted(s: Site, value: ir.Value | None) -> ir.Node | None:
    """Return the MatMulInteger whose result is converted to float32 for one reader, or None."""
    cast = producer_of(s, value, "Cast")
    if cast is None or value is None or not facts.used_once(value) or s.attr("to", node=cast) != ir.DataType.FLOAT:
        return None
    node = producer_of(s, cast.inputs[0], "MatMulInteger")
    return node if node is not None and facts.used_once(node.outputs[0]) else None


def _scaled(node: ir.Node, p: ir.Value | None, q: ir.Value | None) -> _Product | None:
    """Return the product with its scales: the one that belongs to the left operand's quantization is ``a_scale``."""
    if p is None or q is None:
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    source = None if zero is None else zero.producer()
    belongs = source is not None and q.producer() is source
    # A constant belongs to the weight, as does the one of the two with several elements.
    is_swapped = belongs or (not _is_one_number(p) and _is_one_number(q))
    return _Product(node, q, p) if is_swapped else _Product(node, p, q)


def _is_one_number(value: ir.Value | None) -> bool:
    return value is None or facts.static_shape(value) in ((), (1,))


def _only_reader(value: ir.Value) -> ir.Node:
    (use,) = value.uses()
    return use.node


def _biased(s: Site, columns: int) -> tuple[ir.Value, ir.Value | None]:
    """Return the value after an addition of one constant per column and the constant, or the root's result and None."""
    if facts.used_once(s.output):
        node = _only_reader(s.output)
        if facts.is_op(node, "Add") and node.graph is s.graph:
            for value in node.inputs:
                if value is not None and facts.is_constant(value) and facts.static_shape(value) == (columns,):
                    return node.outputs[0], value
    return s.output, None


def _dynamically_quantized(s: Site, product: _Product, a: ir.Value, zero: ir.Value | None) -> ir.Value | None:
    """Return the tensor that a DynamicQuantizeLinear quantizes for this product alone, or None."""
    node = producer_of(s, a, "DynamicQuantizeLinear")
    if node is None or node.outputs[1] is not product.a_scale or node.outputs[2] is not zero:
        return None
    return node.inputs[0] if all(facts.used_once(value) for value in node.outputs) else None
