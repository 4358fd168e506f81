"""Elementwise operators with a neutral or absorbing operand, repeated operators, and signs."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    SILENT,
    AnyOf,
    C,
    Expr,
    Guard,
    Match,
    Patch,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Abs, Neg, Not, Reciprocal
from sardonyx.rewrite.rules.broadcasting import REPEATING, broadcasts_into, fill_tensor, keeps_shape, repeated_number
from sardonyx.rewrite.rules.normalization import LAYER_NORMALIZATION, is_affine_of_normalization

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
"""The neutral right operand; for commutative operators also the left one."""

ABSORBERS: dict[str, Any] = {"Mul": 0, "And": False, "Or": True, "BitwiseAnd": 0}
"""The operand that is the result for every other operand."""


def _is_unit(unit: V, *, exactly: bool) -> Guard:
    """Guard: the operand is the root's neutral element; ``exactly``: also for a zero x of either sign."""

    def is_unit(m: Match) -> bool:
        number, kind = repeated_number(m.site, m.bound[unit.name]), facts.dtype(m.x)
        if number is None or number != UNITS[m.root.op_type] or kind is None:
            return False
        return _keeps_signed_zero(m.root.op_type, number, kind) == exactly

    return guard(is_unit, "")


def _keeps_operand(m: Match) -> Refusal | None:
    """Guard: the neutral element neither broadcasts x nor ends a normalization with a kernel of its own."""
    if not keeps_shape(m.site, m.x, [m.unit]):
        return Refusal(f"the {repeated_number(m.site, m.unit)} may broadcast the other operand to another shape")
    if m.site.opset < LAYER_NORMALIZATION and is_affine_of_normalization(m.site, m.x):
        return Refusal("engines have one kernel for the layer normalization that it ends")
    return None


def _keeps_signed_zero(op_type: str, number: object, kind: ir.DataType) -> bool:
    """Return True if the neutral element keeps the sign of a zero.

    −0.0 + 0.0 and −0.0 − −0.0 are 0.0: only the zero of the other sign leaves every float unchanged.
    """
    if op_type not in ("Add", "Sub") or not kind.is_floating_point():
        return True
    assert isinstance(number, (int, float))
    negative = math.copysign(1.0, number) < 0
    return negative == (op_type == "Add")


Operator = AnyOf(*UNITS)
Absorbing = AnyOf(*ABSORBERS)
IDEMPOTENT = ("Relu", "Ceil", "Floor", "Round", "Sign", "Abs")


@rule("eliminate_nop_with_unit", after=REPEATING, exactness=EXACT)
def neutral_operand(x: V, unit: V) -> Rewrite:
    """X * 1, x / 1, x ** 1, x - 0, x + -0.0, x and true, x or false are x."""
    return Operator(x, unit) >> x | where(_is_unit(unit, exactly=True), _keeps_operand)


@rule("eliminate_nop_with_unit", after=REPEATING, exactness=REASSOCIATES)
def neutral_but_for_the_sign_of_zero(x: V, unit: V) -> Rewrite:
    """X + 0.0 is x: an x of -0.0 keeps its sign."""
    return AnyOf("Add", "Sub")(x, unit) >> x | where(_is_unit(unit, exactly=False), _keeps_operand)


def _absorbs(m: Match) -> Refusal | None:
    """Guard: ``zero`` is the result of the root, whatever x is."""
    number = repeated_number(m.site, m.zero)
    if number is None or number != ABSORBERS[m.root.op_type]:
        return SILENT
    kind = facts.dtype(m.root.outputs[0])
    if kind is None or kind.is_floating_point():
        return Refusal("NaN and infinities times 0 are NaN")
    return None


@rule("eliminate_absorbing_element", after=REPEATING, exactness=EXACT, opset=9)
def absorbing_operand(x: V, zero: V) -> Rewrite:
    """X * 0 is 0 for integers, x and false is false, x or true is true."""

    def absorbed(m: Match) -> Result:
        s, kind, shape = m.site, facts.dtype(m.root.outputs[0]), facts.static_shape(m.root.outputs[0])
        if keeps_shape(s, m.zero, [m.x]):
            return m.zero  # type: ignore[no-any-return]
        if shape is None or kind is None:
            return Refusal("the shape of the result is not known")
        result = fill_tensor(shape, repeated_number(s, m.zero), kind)
        if isinstance(result, Expr):
            return result
        nodes: list[ir.Node] = []
        constant = s.workspace.new_constant(result, s.graph, f"{s.output.name}_constant", nodes)
        return Patch({s.output: constant}, nodes=nodes)

    return Absorbing(x, zero) >> absorbed | where(_absorbs)


@rule("eliminate_consecutive_idempotent_ops", exactness=EXACT)
def idempotent_twice(x: V) -> Rewrite:
    """f(f(x)) is f(x), for Relu, Ceil, Floor, Round, Sign and Abs."""
    once = AnyOf(*IDEMPOTENT)(x)
    same_operator = guard(lambda m: m.nodes[0].op_type == m.nodes[1].op_type, "")
    return AnyOf(*IDEMPOTENT)(once) >> once | where(same_operator)


@rule("eliminate_double_inverse", exactness=EXACT)
def not_not(x: V) -> Rewrite:
    """Not not x is x."""
    return Not(Not(x)) >> x


@rule("eliminate_double_inverse", exactness=EXACT)
def neg_neg(x: V) -> Rewrite:
    """-(-x) is x."""
    return Neg(Neg(x)) >> x


@rule("eliminate_double_inverse", exactness=REASSOCIATES)
def reciprocal_reciprocal(x: V) -> Rewrite:
    """1 / (1 / x) is x, written with Reciprocal."""
    return Reciprocal(Reciprocal(x)) >> x


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def add_negated(x: V, y: V) -> Rewrite:
    """X + -y is x - y."""
    return x + (-y).once >> x - y


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def subtract_negated(x: V, y: V) -> Rewrite:
    """X - -y is x + y."""
    return x - (-y).once >> x + y


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def abs_of_negated(x: V) -> Rewrite:
    """|-x| is |x|."""
    return Abs(-x) >> Abs(x) | where(unshared)


@rule("fuse_neg_into_neighbor", exactness=EXACT, opset=7)
def product_of_negated(x: V, y: V) -> Rewrite:
    """-x * -y is x * y."""
    return -x * -y >> x * y | where(unshared)


@rule("fuse_reciprocal_into_mul", exactness=REASSOCIATES, opset=7)
def reciprocal_times(x: V, y: V) -> Rewrite:
    """Reciprocal(x) * y is y / x."""
    return Reciprocal(x).once * y >> y / x


@rule("fuse_reciprocal_into_mul", exactness=REASSOCIATES, opset=7)
def one_over_times(x: V, y: V, one: C) -> Rewrite:
    """(1 / x) * y is y / x, for floating-point x."""
    return (one / x).once * y >> y / x | where(
        guard(lambda m: facts.scalar(m.one) == 1, ""),
        guard(lambda m: (kind := facts.dtype(m.y)) is not None and kind.is_floating_point(), "integer division rounds"),
        broadcasts_into(x, one),
    )
