"""Scales that a call computes from the range of the quantized values, as ``DynamicQuantizeLinear`` does."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_splat
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def is_zero_code(code: Value, zero: Value) -> bool:
    """Return True if a computed code is that of the number 0, which a computed zero point equals.

    Args:
        code: The code, of 8 bits.
        zero: The zero point, of 8 bits.
    """
    limits = {t.UINT8: (0, 255), t.INT8: (-128, 127)}.get(dtype_of(code))
    if code.op != "convert" or limits is None or dtype_of(zero) != dtype_of(code):
        return False
    limited = code.operands[0]
    moved = limited
    for op, limit in (("min", limits[1]), ("max", limits[0])):
        if moved.op != op or number(moved.operands[1]) != limit:
            return False
        moved = moved.operands[0]
    if moved.op != "add" or moved.operands[0].op != "round":
        return False
    units, offset = moved.operands[0].operands[0], single(moved.operands[1])
    if offset.op != "convert" or single(offset.operands[0]) is not single(zero):
        return False
    if units.op != "div" or number(units.operands[0]) != 0:
        return False
    scale = single(units.operands[1])
    return is_not_zero(scale) and _is_code_by(zero, scale)


def _is_code_by(zero: Value, scale: Value) -> bool:
    """Return True for a code of a number in units of a scale: where the scale is NaN, it is the code of NaN."""
    value = single(zero)
    if value.op != "convert":
        return False
    value = single(value.operands[0])
    while value.op in ("min", "max", "round", "add", "neg"):  # NaN comes through.
        value = single(value.operands[0])
    return value.op == "div" and single(value.operands[1]) is scale


def is_not_zero(scale: Value) -> bool:
    """Return True for a number with another in place of 0: its quotient of 0 is 0, or NaN for NaN."""
    if scale.op != "select":
        return False
    condition, other, step = scale.operands
    if condition.op != "equal" or single(step) not in map(single, condition.operands):
        return False
    return any(number(operand) == 0 for operand in condition.operands) and (number(other) or 0) != 0


def number(value: Value) -> float | None:
    """Return the number in all elements of a constant; None for other values."""
    known = single(value)
    return float(np.ravel(known.known)[0]) if is_splat(known) else None


def single(value: Value) -> Value:
    """Return the value that movements of one element repeat."""
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    return value


def quantized_image(scale: Value) -> Value | None:
    """Return the floats whose range a computed scale covers; None for other scales.

    The scale is a positive number or NaN, and 1 for a range of 0: a quotient of one of these floats is of at most 32
    bits before its point, the float itself, or NaN. Without the 1 the scale may be 0; with another number, quotients
    may overflow.
    """
    if dtype_of(scale) != t.FLOAT or not is_not_zero(scale) or number(scale.operands[1]) != 1:
        return None
    step = single(scale.operands[2])
    if step.op != "div" or number(step.operands[1]) != 255:
        return None
    width = single(step.operands[0])
    images = [_reduced(width.operands[i], kind) for i, kind in enumerate(("max", "min"))] if width.op == "sub" else []
    return images[0] if images and images[0] is images[1] else None


def _reduced(value: Value, kind: str) -> Value | None:
    """Return the floats of which a value is the extreme, or the extreme with constants; None for other values."""
    value = single(value)
    while value.op == kind and number(value.operands[1]) is not None:
        value = single(value.operands[0])
    if value.op != "reduce" or value.params["kind"] != kind:
        return None
    image = value.operands[0]
    return image if len(value.params["axes"]) == len(shape_of(image)) else None
