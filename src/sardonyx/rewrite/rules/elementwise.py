"""Element-wise operators with an operand that leaves the other as it is, or that decides the result alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import (
    COMMUTATIVE,
    EXACT,
    REASSOCIATES,
    Expr,
    Match,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    rule,
)
from sardonyx.rewrite.notation import Abs, Add, Div, Mul, Neg, Not, Reciprocal, Sub
from sardonyx.rewrite.rules.broadcasting import REPEATING, filled, keeps_shape, repeated
from sardonyx.rewrite.rules.normalization import LAYER_NORMALIZATION, is_affine_of_normalization
from sardonyx.rewrite.site import Site

UNITS: dict[str, Any] = {
    "Add": 0,
    "Sub": 0,
    "Mul": 1,
    "Div": 1,
    "Pow": 1,
    "And": True,
    "Or": False,
    "Xor": False,
    "BitwiseOr": 0,
    "BitwiseXor": 0,
}
"""The right operand that changes nothing; for commutative operators the left one too."""

ABSORBERS: dict[str, Any] = {"Mul": 0, "And": False, "Or": True, "BitwiseAnd": 0}
"""The operand that is the result, whatever the other is."""


def _operands(s: Site) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
    """The operands as (any value, the number): in the orders that the operator allows."""
    left, right = s.input(0), s.input(1)
    yield left, right
    if s.node.op_type in COMMUTATIVE:
        yield right, left


def _unit(s: Site, *, exactly: bool) -> Result:
    near: Result = None
    for x, operand in _operands(s):
        number = repeated(s, operand)
        if number is None or number != UNITS[s.node.op_type]:
            continue
        kind = facts.dtype(x)
        if kind is None:
            continue
        if _keeps_signed_zero(s.node.op_type, number, kind) != exactly:
            continue
        if x is not None and keeps_shape(s, x, [operand]):
            if s.opset < LAYER_NORMALIZATION and is_affine_of_normalization(s, x):
                return Refusal("engines make one kernel of the layer normalization that it ends")
            return x
        near = Refusal(f"the {number} may broadcast the other operand to another shape")
    return near


def _keeps_signed_zero(op_type: str, number: object, kind: ir.DataType) -> bool:
    """−0.0 + 0.0 and −0.0 − −0.0 are 0.0: only the zero of the other sign leaves every float as it is."""
    if op_type not in ("Add", "Sub") or not kind.is_floating_point():
        return True
    assert isinstance(number, (int, float))
    negative = math.copysign(1.0, number) < 0
    return negative == (op_type == "Add")


@rule("eliminate_nop_with_unit", on=UNITS, after=REPEATING, exactness=EXACT)
def neutral_operand(s: Site) -> Result:
    """Operators with the operand that changes nothing: x + −0.0, x − 0, x·1, x/1, x¹, And true, Or false."""
    return _unit(s, exactly=True)


@rule("eliminate_nop_with_unit", on=("Add", "Sub"), after=REPEATING, exactness=REASSOCIATES)
def neutral_but_for_the_sign_of_zero(s: Site) -> Result:
    """Adding 0.0: where x is −0.0, the result keeps its sign."""
    return _unit(s, exactly=False)


@rule("eliminate_absorbing_element", on=ABSORBERS, after=REPEATING, exactness=EXACT, opset=9)
def absorbing_operand(s: Site) -> Result:
    """Integers times 0, And with false, Or with true: the result is known without the other operand."""
    for x, operand in _operands(s):
        number = repeated(s, operand)
        if number is None or number != ABSORBERS[s.node.op_type]:
            continue
        kind, shape = facts.dtype(s.output), facts.static_shape(s.output)
        if kind is None or kind.is_floating_point():
            return Refusal("NaN and infinities times 0 are NaN")
        if operand is not None and x is not None and keeps_shape(s, operand, [x]):
            return operand
        if shape is None:
            return Refusal("the shape of the result is not known")
        result = filled(shape, number, kind)
        if isinstance(result, Expr):
            return result
        nodes: list[ir.Node] = []
        constant = s.workspace.new_constant(result, s.graph, f"{s.output.name}_constant", nodes)
        return Patch({s.output: constant}, nodes=nodes)
    return None


@rule("eliminate_consecutive_idempotent_ops", on=("Relu", "Ceil", "Floor", "Round", "Sign", "Abs"), exactness=EXACT)
def idempotent_twice(s: Site) -> Result:
    """Relu, Ceil, Floor, Round, Sign, Abs of their own result."""
    return s.input(0) if s.producer(0, s.node.op_type) is not None else None


@rule("eliminate_double_inverse", exactness=EXACT)
def not_not(x: V) -> Rewrite:
    """Not of Not."""
    return Not(Not(x)) >> x


@rule("eliminate_double_inverse", exactness=EXACT)
def neg_neg(x: V) -> Rewrite:
    """Neg of Neg."""
    return Neg(Neg(x)) >> x


@rule("eliminate_double_inverse", exactness=REASSOCIATES)
def reciprocal_reciprocal(x: V) -> Rewrite:
    """Reciprocal of Reciprocal."""
    return Reciprocal(Reciprocal(x)) >> x


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def add_negated(x: V, y: V) -> Rewrite:
    """Adding −y is subtracting y."""
    return Add(x, Neg(y).once) >> Sub(x, y)


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def subtract_negated(x: V, y: V) -> Rewrite:
    """Subtracting −y is adding y."""
    return Sub(x, Neg(y).once) >> Add(x, y)


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def abs_of_negated(x: V) -> Rewrite:
    """The absolute value of −x is that of x."""
    return Abs(Neg(x).once) >> Abs(x)


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def product_of_negated(x: V, y: V) -> Rewrite:
    """−x · −y is x · y."""
    return Mul(Neg(x).once, Neg(y).once) >> Mul(x, y)


@rule("fuse_reciprocal_into_mul", exactness=REASSOCIATES, opset=7)
def reciprocal_times(x: V, y: V) -> Rewrite:
    """(1/x) · y is y / x."""
    return Mul(Reciprocal(x).once, y) >> Div(y, x)


def _over(m: Match) -> Result:
    one = next(node for node in m.nodes if node.op_type == "Div").inputs[0]
    kind = facts.dtype(m.y)
    if kind is None or not kind.is_floating_point():
        return Refusal("integer division rounds")
    if not keeps_shape(m.site, m.x, [one]):
        return Refusal("the 1 may broadcast the divisor to another shape")
    return Div(m.y, m.x)


@rule("fuse_reciprocal_into_mul", exactness=REASSOCIATES, opset=7)
def one_over_times(x: V, y: V) -> Rewrite:
    """(1 / x) · y is y / x."""
    return Mul(Div(1, x).once, y) >> _over
