"""Constants added or multiplied one after another: merged once, instead of applied to every element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    SILENT,
    C,
    Fact,
    Guard,
    Match,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    where,
)
from sardonyx.rewrite.notation import Add, Div, Mul, Sqrt, Sub
from sardonyx.rewrite.rules.ranges import value_range
from sardonyx.rewrite.site import Site


@dataclass(frozen=True)
class Affine:
    """A node as ``sign·x + c`` or ``c·x^power``: the tensor, the constant, and their sides."""

    x: ir.Value
    constant: ir.Value
    x_on_right: bool
    """True if x is on the right of − or ÷."""
    inverse: bool
    """True if the constant is on the right of − or ÷."""


def _affine(node: ir.Node | None) -> Affine | None:
    """Return a binary operator on one tensor and one constant in affine form, or None."""
    if node is None or len(node.inputs) != 2:
        return None
    left, right = node.inputs
    if left is None or right is None or facts.is_constant(left) == facts.is_constant(right):
        return None
    ordered = node.op_type in ("Sub", "Div")
    if facts.is_constant(right):
        return Affine(left, right, x_on_right=False, inverse=ordered)
    return Affine(right, left, x_on_right=ordered, inverse=False)


def _chain(s: Site, *op_types: str) -> tuple[Affine, Affine] | Refusal | None:
    """Return the inner and outer operator if both have a constant and only the outer reads the inner."""
    outer = _affine(s.node)
    producer = None if outer is None else outer.x.producer()
    if outer is None or producer is None or producer.graph is not s.node.graph or not facts.is_op(producer, *op_types):
        return None
    inner = _affine(producer)
    if inner is None:
        return None
    if not facts.used_once(outer.x):
        return Refusal(f"'{outer.x.name}' has other readers")
    return inner, outer


def _combined(
    operation: Callable[[np.ndarray, np.ndarray], np.ndarray], first: ir.Value, second: ir.Value
) -> np.ndarray | Refusal:
    """Merge two constants, unless the result leaves the range of their type or is larger than each."""
    kind = facts.dtype(first)
    if kind is None or kind != facts.dtype(second) or kind.name in ("BFLOAT16", "BOOL"):
        return Refusal("the type of the constants has no arithmetic here")
    left, right = facts.static_shape(first), facts.static_shape(second)
    if left is None or right is None:
        return Refusal("the constants' shapes are not known")
    try:
        shape = np.broadcast_shapes(left, right)
    except ValueError:
        return Refusal("the constants do not broadcast with each other")
    if np.prod(shape, dtype=object) > max(np.prod(left, dtype=object), np.prod(right, dtype=object)):
        return Refusal("the constants together are larger than each")
    a, b = facts.constant(first), facts.constant(second)
    assert a is not None and b is not None
    with np.errstate(all="ignore"):
        result = np.asarray(operation(a, b)).astype(a.dtype)
    if a.dtype.kind == "f" and not _well_scaled(a, b, result):
        return Refusal("merged, the constants leave the range of their type")
    return result


def _well_scaled(a: np.ndarray, b: np.ndarray, result: np.ndarray) -> bool:
    """Return True if everything is finite and nothing became denormal."""
    if not all(np.isfinite(array).all() for array in (a, b, result)):
        return False
    tiny = np.abs(result) < np.finfo(result.dtype).tiny
    return not (tiny & (result != 0)).any()


@rule("fuse_consecutive_adds", on=("Add", "Sub"), after=("Add", "Sub"), exactness=REASSOCIATES, opset=7)
def add_of_add(s: Site) -> Result:
    """Fuse (x + a) + b into x + (a + b) for constants; − in any position likewise."""
    chain = _chain(s, "Add", "Sub")
    if chain is None or isinstance(chain, Refusal):
        return chain
    inner, outer = chain
    # inner = ±x ± c₁, outer = ±inner ± c₂: the sign of x, and c = ±c₁ ± c₂.
    first = -1 if inner.inverse != outer.x_on_right else 1
    second = -1 if outer.inverse else 1
    constant = _combined(lambda a, b: _signed(a, first) + _signed(b, second), inner.constant, outer.constant)
    if isinstance(constant, Refusal):
        return constant
    if any(_rounds(facts.constant(part.constant)) for part in chain):
        return Refusal("adding so large a number rounds the other operand, perhaps on purpose")
    return Sub(constant, inner.x) if inner.x_on_right != outer.x_on_right else Add(inner.x, constant)


def _signed(array: np.ndarray, sign: int) -> np.ndarray:
    return np.negative(array) if sign < 0 else array


def _rounds(array: np.ndarray | None) -> bool:
    """Return True if a float constant is so large that adding the constant rounds: a way to round to integers."""
    if array is None or array.dtype.kind != "f":
        return False
    return bool((np.abs(array) >= 2.0 ** (np.finfo(array.dtype).nmant - 4)).any())


@rule("fuse_consecutive_muls", on=("Mul", "Div"), after=("Mul", "Div"), exactness=REASSOCIATES, opset=7)
def mul_of_mul(s: Site) -> Result:
    """Fuse (x * a) * b into x * (a * b) for constants; ÷ in any position likewise, for floats."""
    chain = _chain(s, "Mul", "Div")
    if chain is None or isinstance(chain, Refusal):
        return chain
    inner, outer = chain
    producer, kind = outer.x.producer(), facts.dtype(outer.x)
    divides = s.node.op_type == "Div" or (producer is not None and producer.op_type == "Div")
    if divides and (kind is None or not kind.is_floating_point()):
        return Refusal("integer division rounds")
    first = inner.inverse != outer.x_on_right
    constant = _combined(lambda a, b: _ratio(a, b, first, outer.inverse), inner.constant, outer.constant)
    if isinstance(constant, Refusal):
        return constant
    zero = not all(np.all(facts.constant(part.constant)) for part in chain)
    if (zero and divides) or (not zero and not constant.all()):
        return Refusal("a constant is zero, or their product is too small for the type")
    return Div(constant, inner.x) if inner.x_on_right != outer.x_on_right else Mul(inner.x, constant)


def _ratio(a: np.ndarray, b: np.ndarray, under: bool, divides: bool) -> np.ndarray:
    """Return the product of a and b, each as it is or (``under``, ``divides``) as a divisor."""
    if a.dtype.kind != "f":
        return np.asarray(a * b)
    wide = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((1 / wide[0] if under else wide[0]) * (1 / wide[1] if divides else wide[1]))


@rule("fuse_linear_chain", on=("Add", "Sub"), after="Mul", exactness=REASSOCIATES, opset=7)
def scale_between_shifts(s: Site) -> Result:
    """Fuse (x ± a) * b ± c into x * b + (±a * b ± c), for constants."""
    last = _affine(s.node)
    scale = None if last is None else _affine(last.x.producer())
    first = None if scale is None else _affine(scale.x.producer())
    if last is None or scale is None or first is None or last.x_on_right or first.x_on_right:
        return None
    product, shifted = last.x.producer(), scale.x.producer()
    if not facts.is_op(product, "Mul") or not facts.is_op(shifted, "Add", "Sub") or not _alone(s, last.x, scale.x):
        return None
    moved = _combined(np.multiply, first.constant, scale.constant)
    if isinstance(moved, Refusal):
        return moved
    final = facts.constant(last.constant)
    if final is None or final.dtype != moved.dtype:
        return Refusal("the constants differ in type")
    if final.size != 1 and moved.size != 1 and final.shape != moved.shape:
        return Refusal("the constants together are larger than each")
    moved, final = _signed(moved, -1 if first.inverse else 1), _signed(final, -1 if last.inverse else 1)
    total = np.asarray(moved + final, moved.dtype)
    if total.dtype.kind == "f" and not np.isfinite(total).all():
        return Refusal("merged, the constants leave the range of their type")
    return Add(Mul(first.x, scale.constant), total)


def _alone(s: Site, *values: ir.Value) -> bool:
    """Return True if each value is produced in this graph and read once."""
    return all(facts.used_once(v) and (node := v.producer()) is not None and node.graph is s.node.graph for v in values)


@rule("adjust_add", exactness=EXACT, default=False)
def constant_to_the_right(x: V, c: C) -> Rewrite:
    """C + x is x + c."""
    on_the_left = guard(lambda m: m.root.inputs[0] is m.c and not facts.is_constant(m.x), "")
    return c + x >> x + c | where(on_the_left)


def _reciprocal(c: V) -> Fact:
    """The reciprocals of a floating-point constant, in its type; None if they leave the range of the type."""

    def reciprocal(m: Match) -> np.ndarray | None:
        divisor = facts.constant(m.bound[c.name])
        if divisor is None or divisor.dtype.kind != "f":
            return None
        with np.errstate(all="ignore"):
            inverse = np.asarray(1 / divisor, divisor.dtype)
        return inverse if _well_scaled(divisor, divisor, inverse) and inverse.all() else None

    return Fact(f"1 / {c.name}", reciprocal)


def _has_reciprocal(c: V) -> Guard:
    """Guard: the reciprocals of a constant are numbers of its type."""
    reciprocal = _reciprocal(c)
    return guard(lambda m: reciprocal(m) is not None, "the reciprocal leaves the range of the type")


def _divides(x: V, c: V) -> Guard:
    """Guard: x is not constant, and c is a floating-point constant of a numpy type."""

    def divides(m: Match) -> bool:
        kind = facts.dtype(m.bound[c.name])
        floating = kind is not None and kind.is_floating_point() and kind.numpy().kind == "f"
        return floating and not facts.is_constant(m.bound[x.name])

    return guard(divides, "")


def _is_power_of_two(m: Match) -> Refusal | None:
    """Guard: c is one power of two between 2**-13 and 2**12."""
    divisor = facts.scalar(m.c)
    if not isinstance(divisor, float):
        return SILENT
    mantissa, exponent = np.frexp(divisor)
    return None if abs(mantissa) == 0.5 and abs(int(exponent)) <= 12 else Refusal("its reciprocal is rounded")


@rule("rewrite_div_to_mul", exactness=EXACT, opset=7, default=False)
def divided_by_power_of_two(x: V, c: C) -> Rewrite:
    """X / c is x * (1 / c) for a power of two c, whose reciprocal is not rounded."""
    return x / c >> x * _reciprocal(c) | where(_divides(x, c), _is_power_of_two, _has_reciprocal(c))


@rule("rewrite_div_to_mul", exactness=REASSOCIATES, opset=7, default=False)
def divided_by_constant(x: V, c: C) -> Rewrite:
    """X / c is x * (1 / c) for a constant c; the reciprocal is rounded."""
    return x / c >> x * _reciprocal(c) | where(_divides(x, c), _has_reciprocal(c))


def _raises_floats(m: Match) -> bool:
    kind = facts.dtype(m.x)
    return facts.rank(m.root.inputs[1]) == 0 and kind is not None and kind.is_floating_point()


def not_negative(x: V) -> Guard:
    """Guard: no element is negative; NaN is permitted."""

    def objection(m: Match) -> Refusal | None:
        low, _ = value_range(m.site, m.bound[x.name])
        if low is None or low < 0:
            return Refusal("the root of minus infinity is NaN, its power infinity")
        return None

    return objection


@rule("rewrite_pow", exactness=REASSOCIATES)
def power_one_half(x: V) -> Rewrite:
    """X ** 0.5 is sqrt(x) for x >= 0."""
    return x**0.5 >> Sqrt(x) | where(guard(_raises_floats, ""), not_negative(x))


@rule("rewrite_pow", exactness=EXACT, opset=7, default=False)
def power_two(x: V) -> Rewrite:
    """X ** 2 is x * x."""
    return x**2.0 >> x * x | where(guard(_raises_floats, "the exponent has dimensions, or x is not floating point"))
