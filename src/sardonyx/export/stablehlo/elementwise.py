"""The StableHLO forms of functions of each element, and of conversions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType
from sardonyx.core.rules import erf
from sardonyx.errors import UnsupportedError
from sardonyx.export.stablehlo.hlo_forms import HLO_FORMS, HloRule, hlo_form, number_like, shape_of
from sardonyx.export.stablehlo.text_writer import Operand, TextWriter, type_text

_UNARY = {
    "neg": "negate", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "round_nearest_even",
    "exp": "exponential", "log": "log", "sqrt": "sqrt", "sin": "sine", "cos": "cosine", "tan": "tan", "tanh": "tanh",
    "not": "not",
}  # fmt: skip
_BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "rem": "remainder", "pow": "power",
    "max": "maximum", "min": "minimum", "and": "and", "or": "or", "xor": "xor", "shift_left": "shift_left",
}  # fmt: skip


def _unary(op: str) -> HloRule:
    def rule(w: TextWriter, value: Value, x: Operand) -> Operand:
        kind = t.kind(x.dtype)
        if kind in ("int", "uint") and op in ("floor", "ceil", "round"):
            return x
        if kind == "uint" and op == "abs":
            return x
        if kind == "uint" and op == "sign":
            zero, one = w.full(0, x.dtype, x.shape), w.full(1, x.dtype, x.shape)
            return w.select(w.compare("EQ", x, zero), zero, one, value.origin)
        return w.unary(_UNARY[op], x, value.origin)

    return rule


def _binary(op: str) -> HloRule:
    def rule(w: TextWriter, value: Value, x: Operand, y: Operand) -> Operand:
        return w.binary(_BINARY[op], x, y, value.origin)

    return rule


HLO_FORMS |= {op: _unary(op) for op in _UNARY} | {op: _binary(op) for op in _BINARY}


@hlo_form("shift_right")
def _shift_right(w: TextWriter, value: Value, x: Operand, y: Operand) -> Operand:
    arithmetic = t.kind(x.dtype) == "int"
    return w.binary(f"shift_right_{'arithmetic' if arithmetic else 'logical'}", x, y, value.origin)


@hlo_form("equal", "less")
def _compare(w: TextWriter, value: Value, x: Operand, y: Operand) -> Operand:
    return w.compare("EQ" if value.op == "equal" else "LT", x, y, value.origin)


@hlo_form("select")
def _select(w: TextWriter, value: Value, condition: Operand, x: Operand, y: Operand) -> Operand:
    return w.select(condition, x, y, value.origin)


def _arc_tangent(w: TextWriter, x: Operand, base: str = "") -> Operand:
    return w.binary("atan2", x, number_like(w, 1, x), base)


@hlo_form("atan")
def _atan(w: TextWriter, value: Value, x: Operand) -> Operand:
    return _arc_tangent(w, x, value.origin)


@hlo_form("asin", "acos")
def _asin(w: TextWriter, value: Value, x: Operand) -> Operand:
    one = number_like(w, 1, x)
    below, above = w.binary("subtract", one, x), w.binary("add", one, x)
    leg = w.unary("sqrt", w.binary("multiply", below, above))
    return w.binary("atan2", x, leg, value.origin) if value.op == "asin" else w.binary("atan2", leg, x, value.origin)


@hlo_form("sinh", "cosh")
def _sinh(w: TextWriter, value: Value, x: Operand) -> Operand:
    half = number_like(w, 0.5, x)
    if value.op == "cosh":
        both = w.binary("add", w.unary("exponential", x), w.unary("exponential", w.unary("negate", x)))
        return w.binary("multiply", half, both, value.origin)
    up, down = w.unary("exponential_minus_one", x), w.unary("exponential_minus_one", w.unary("negate", x))
    return w.binary("multiply", half, w.binary("subtract", up, down), value.origin)


@hlo_form("asinh", "acosh", "atanh")
def _asinh(w: TextWriter, value: Value, x: Operand) -> Operand:
    one, base = number_like(w, 1, x), value.origin
    if value.op == "acosh":
        leg = w.unary("sqrt", w.binary("multiply", w.binary("subtract", x, one), w.binary("add", x, one)))
        return w.unary("log", w.binary("add", x, leg), base)
    if value.op == "atanh":
        up, down = w.unary("log_plus_one", x), w.unary("log_plus_one", w.unary("negate", x))
        return w.binary("multiply", number_like(w, 0.5, x), w.binary("subtract", up, down), base)
    size = w.unary("abs", x)
    square = w.binary("multiply", size, size)
    root = w.unary("sqrt", w.binary("add", one, square))
    fraction = w.binary("divide", square, w.binary("add", one, root))
    return w.binary("multiply", w.unary("sign", x), w.unary("log_plus_one", w.binary("add", size, fraction)), base)


@hlo_form("erf")
def _erf(w: TextWriter, value: Value, x: Operand) -> Operand:
    """Write the error function in float64 by the approximations of Core."""
    wide = w.convert(x, t.DOUBLE)

    def number(v: float) -> Operand:
        return number_like(w, v, wide)

    def polynomial(v: Operand, coefficients: Sequence[float]) -> Operand:
        result = number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = w.binary("add", w.binary("multiply", result, v), number(coefficient))
        return result

    def ratio(v: Operand, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> Operand:
        return w.binary("divide", polynomial(v, parts[0]), polynomial(v, parts[1]))

    size = w.binary("minimum", w.unary("abs", wide), number(6.0))
    square = w.binary("multiply", size, size)
    small = w.binary("add", size, w.binary("multiply", size, ratio(square, erf.NEAR_ZERO)))
    near_one = w.binary("add", number(erf.ERX), ratio(w.binary("subtract", size, number(1.0)), erf.NEAR_ONE))
    inverse = w.binary("divide", number(1.0), w.binary("maximum", square, number(1.0)))
    middle = w.compare("LT", size, number(1 / 0.35))
    tail = w.select(middle, ratio(inverse, erf.MIDDLE), ratio(inverse, erf.FAR))
    exponent = w.binary("add", w.binary("subtract", w.unary("negate", square), number(0.5625)), tail)
    above = w.binary("divide", w.unary("exponential", exponent), w.binary("maximum", size, number(1.0)))
    large = w.binary("subtract", number(1.0), above)
    inner = w.select(w.compare("LT", size, number(1.25)), near_one, large)
    magnitude = w.select(w.compare("LT", size, number(0.84375)), small, inner)
    signed = w.binary("multiply", magnitude, w.unary("sign", wide))
    return w.convert(signed, x.dtype, value.origin)


# Conversions.


@hlo_form("convert")
def _convert(w: TextWriter, value: Value, x: Operand, *, dtype: DType, saturate: bool, rounding: str) -> Operand:
    if t.STRING in (x.dtype, dtype):
        raise UnsupportedError("StableHLO has no texts.")
    if dtype == t.BOOL:
        return w.compare("NE", x, number_like(w, 0, x), value.origin)
    if t.kind(x.dtype) == "complex" and t.kind(dtype) != "complex":
        part = t.FLOAT if x.dtype == t.COMPLEX64 else t.DOUBLE
        text = f"stablehlo.real {x.name} : ({x.type}) -> {type_text(part, x.shape)}"
        x = w.op(text, part, x.shape)
    if dtype in t.FLOAT8 and saturate:
        import ml_dtypes

        limit = float(ml_dtypes.finfo(t.numpy_dtype(dtype)).max)  # type: ignore[no-untyped-call]
        x = w.convert(x, t.FLOAT)
        x = w.binary("maximum", w.binary("minimum", x, number_like(w, limit, x)), number_like(w, -limit, x))
    if t.is_float(x.dtype) and t.is_integer(dtype) and dtype.bitwidth < 32:
        x = w.convert(x, t.INT32)
    return w.convert(x, dtype, value.origin)


@hlo_form("bitcast")
def _bitcast(w: TextWriter, value: Value, x: Operand, *, dtype: DType) -> Operand:
    shape = shape_of(value)
    if dtype.bitwidth < x.dtype.bitwidth:
        split = (*x.shape, x.dtype.bitwidth // dtype.bitwidth)
        text = f"stablehlo.bitcast_convert {x.name} : ({x.type}) -> {type_text(dtype, split)}"
        return w.reshape(w.op(text, dtype, split), shape, value.origin)
    if dtype.bitwidth > x.dtype.bitwidth:
        x = w.reshape(x, (*shape, dtype.bitwidth // x.dtype.bitwidth))
    text = f"stablehlo.bitcast_convert {x.name} : ({x.type}) -> {type_text(dtype, shape)}"
    return w.op(text, dtype, shape, value.origin)
