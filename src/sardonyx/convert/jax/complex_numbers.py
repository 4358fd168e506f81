"""Complex numbers as pairs of real ones on a last axis, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.translation import COMPLEX_RULES, RULES, Context, Rule, is_complex, is_pair, part_count
from sardonyx.errors import UnsupportedError

MOVEMENTS = (
    "broadcast_in_dim",
    "concatenate",
    "copy",
    "dynamic_slice",
    "expand_dims",
    "gather",
    "neg",
    "pad",
    "reduce_sum",
    "reshape",
    "rev",
    "select_n",
    "slice",
    "squeeze",
    "stack",
    "transpose",
)
"""Primitives that act on both parts alike."""


_MOST_FACTORS = 8


def part(c: Context, x: ir.Value, index: int) -> ir.Value:
    """Return the real (0) or imaginary (1) parts."""
    return c.node("Gather", x, c.constant(index, np.int64), axis=-1)


def pair(c: Context, *parts: ir.Value) -> ir.Value:
    """Return complex numbers of two parts, or keys of words."""
    last = c.ints([-1])
    return c.node("Concat", *(c.node("Unsqueeze", part, last) for part in parts), axis=-1)


def _alike(name: str) -> Rule:
    def translate(c: Context, e: Any, *inputs: ir.Value) -> ir.Value:
        parts = []
        for index in range(part_count(next(atom for atom in (*e.outvars, *e.invars) if is_pair(atom)))):
            operands = [
                part(c, x, index) if is_pair(variable) else x for x, variable in zip(inputs, e.invars, strict=True)
            ]
            result = RULES[name](c, e, *operands)
            parts.append(result[0] if isinstance(result, (list, tuple)) else result)
        return pair(c, *parts)

    return translate


COMPLEX_RULES.update({name: _alike(name) for name in MOVEMENTS})


def _both(operator: str) -> Rule:
    return lambda c, _, x, y: c.node(operator, x, y)


COMPLEX_RULES.update({"add": _both("Add"), "add_any": _both("Add"), "sub": _both("Sub")})


def complex_rule(name: str) -> Callable[[Rule], Rule]:
    """Register a function as the translation of a primitive with complex numbers."""

    def register(function: Rule) -> Rule:
        COMPLEX_RULES[name] = function
        return function

    return register


@complex_rule("real")
def _real(c: Context, _: Any, x: ir.Value) -> ir.Value:
    return part(c, x, 0)


@complex_rule("imag")
def _imag(c: Context, _: Any, x: ir.Value) -> ir.Value:
    return part(c, x, 1)


@complex_rule("complex")
def _complex(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return pair(c, x, y)


@complex_rule("convert_element_type")
def _converted(c: Context, e: Any, x: ir.Value) -> ir.Value:
    dtype = np.float64 if np.dtype(e.params["new_dtype"]) == np.complex128 else np.float32
    if not is_complex(e.outvars[0]):
        return c.cast(part(c, x, 0), e.params["new_dtype"])
    if is_complex(e.invars[0]):
        return c.cast(x, dtype)
    x = c.cast(x, dtype)
    return pair(c, x, c.node("Sub", x, x))


@complex_rule("conj")
def _conjugate(c: Context, e: Any, x: ir.Value) -> ir.Value:
    if not is_complex(e.invars[0]):
        return pair(c, x, c.node("Sub", x, x))
    return pair(c, part(c, x, 0), c.node("Neg", part(c, x, 1)))


def _scale(c: Context, e: Any, x: ir.Value, index: int = 0) -> ir.Value:
    """Return the size of the larger part, 1 for numbers that are 0 or infinite: squares of quotients are finite."""
    dtype = _part_type(e.invars[index])
    largest = c.node("ReduceMax", c.node("Abs", x), c.ints([-1]), keepdims=0)
    is_bad = c.node("Or", c.node("Equal", largest, c.scalar(0, dtype)), c.node("IsInf", largest))
    return c.node("Where", is_bad, c.scalar(1, dtype), largest)


@complex_rule("abs")
def _magnitude(c: Context, e: Any, x: ir.Value) -> ir.Value:
    scale = _scale(c, e, x)
    scaled = c.node("Div", x, c.node("Unsqueeze", scale, c.ints([-1])))
    return c.node("Mul", c.node("ReduceL2", scaled, c.ints([-1]), keepdims=0), scale)


@complex_rule("mul")
def _product(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    a, b, p, q = part(c, x, 0), part(c, x, 1), part(c, y, 0), part(c, y, 1)
    real = c.node("Sub", c.node("Mul", a, p), c.node("Mul", b, q))
    return pair(c, real, c.node("Add", c.node("Mul", a, q), c.node("Mul", b, p)))


@complex_rule("div")
def _quotient(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    scale = _scale(c, e, y, 1)
    a, b = part(c, x, 0), part(c, x, 1)
    p, q = (c.node("Div", part(c, y, i), scale) for i in (0, 1))
    length = c.node("Add", c.node("Mul", p, p), c.node("Mul", q, q))
    real = c.node("Add", c.node("Mul", a, p), c.node("Mul", b, q))
    imaginary = c.node("Sub", c.node("Mul", b, p), c.node("Mul", a, q))
    return pair(c, *(c.node("Div", c.node("Div", top, length), scale) for top in (real, imaginary)))


@complex_rule("sqrt")
def _root(c: Context, e: Any, x: ir.Value) -> ir.Value:
    dtype = _part_type(e.invars[0])
    half, zero = c.scalar(0.5, dtype), c.scalar(0, dtype)
    scale = _scale(c, e, x)
    a, b = (c.node("Div", part(c, x, i), scale) for i in (0, 1))
    size = c.node("Sqrt", c.node("Add", c.node("Mul", a, a), c.node("Mul", b, b)))
    # The larger part by a sum of numbers of one sign, the other one by division: no digit is cancelled.
    root = c.node("Sqrt", c.node("Mul", c.node("Add", size, c.node("Abs", a)), half))
    is_zero = c.node("Equal", root, zero)
    other = c.node("Div", c.node("Mul", c.node("Abs", b), half), c.node("Where", is_zero, c.scalar(1, dtype), root))
    factor = c.node("Sqrt", scale)
    root, other = c.node("Mul", root, factor), c.node("Mul", other, factor)
    is_left = c.node("Less", a, zero)
    real, imaginary = c.node("Where", is_left, other, root), c.node("Where", is_left, root, other)
    return pair(c, real, c.node("Where", c.node("Less", b, zero), c.node("Neg", imaginary), imaginary))


def _inverse(c: Context, e: Any, x: ir.Value) -> ir.Value:
    """Return 1 / x."""
    scale = _scale(c, e, x)
    p, q = (c.node("Div", part(c, x, i), scale) for i in (0, 1))
    length = c.node("Mul", c.node("Add", c.node("Mul", p, p), c.node("Mul", q, q)), scale)
    return pair(c, c.node("Div", p, length), c.node("Neg", c.node("Div", q, length)))


@complex_rule("rsqrt")
def _inverse_root(c: Context, e: Any, x: ir.Value) -> ir.Value:
    return _inverse(c, e, _root(c, e, x))


@complex_rule("pow")
def _power(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """Translate x ** y as exp(y log(x)); 0 to the power 0 is 1, to other powers 0."""
    result = _exponential(c, e, _product(c, e, y, _logarithm(c, e, x)))
    one, zero = (c.constant(np.array([number, 0]), _part_type(e.outvars[0])) for number in (1, 0))
    return c.node("Where", _is_zero(c, x), c.node("Where", _is_zero(c, y), one, zero), result)


def _part_type(variable: Any) -> np.dtype[Any]:
    """Return the type of the real part of a complex variable."""
    return np.dtype(f"f{variable.aval.dtype.itemsize // 2}")


def _is_zero(c: Context, x: ir.Value) -> ir.Value:
    """Return True for the numbers that are 0, with a last axis of size 1."""
    largest = c.node("ReduceMax", c.node("Abs", x), c.ints([-1]), keepdims=1)
    return c.node("Not", c.cast(largest, np.bool_))


def _rotated(c: Context, x: ir.Value) -> ir.Value:
    """Return i x: the numbers rotated by a right angle."""
    return pair(c, c.node("Neg", part(c, x, 1)), part(c, x, 0))


@complex_rule("sinh")
def _hyperbolic_sine(c: Context, e: Any, x: ir.Value) -> ir.Value:
    real, angle = part(c, x, 0), part(c, x, 1)
    sinh, cosh = c.node("Sinh", real), c.node("Cosh", real)
    return pair(c, c.node("Mul", sinh, c.node("Cos", angle)), c.node("Mul", cosh, c.node("Sin", angle)))


@complex_rule("cosh")
def _hyperbolic_cosine(c: Context, e: Any, x: ir.Value) -> ir.Value:
    real, angle = part(c, x, 0), part(c, x, 1)
    sinh, cosh = c.node("Sinh", real), c.node("Cosh", real)
    return pair(c, c.node("Mul", cosh, c.node("Cos", angle)), c.node("Mul", sinh, c.node("Sin", angle)))


@complex_rule("tanh")
def _hyperbolic_tangent(c: Context, e: Any, x: ir.Value) -> ir.Value:
    """Translate with tanh and tan of the parts, which do not overflow for large real parts."""
    t, s = c.node("Tanh", part(c, x, 0)), c.node("Tan", part(c, x, 1))
    one, tt, ss = c.scalar(1, _part_type(e.outvars[0])), c.node("Mul", t, t), c.node("Mul", s, s)
    below = c.node("Add", one, c.node("Mul", tt, ss))
    real = c.node("Div", c.node("Mul", t, c.node("Add", one, ss)), below)
    return pair(c, real, c.node("Div", c.node("Mul", s, c.node("Sub", one, tt)), below))


def _of_rotated(function: Rule) -> Rule:
    """Return -i f(i x): sin and tan by sinh and tanh."""
    return lambda c, e, x: c.node("Neg", _rotated(c, function(c, e, _rotated(c, x))))


COMPLEX_RULES["sin"] = _of_rotated(_hyperbolic_sine)
COMPLEX_RULES["tan"] = _of_rotated(_hyperbolic_tangent)
COMPLEX_RULES["cos"] = lambda c, e, x: _hyperbolic_cosine(c, e, _rotated(c, x))


@complex_rule("sign")
def _direction(c: Context, e: Any, x: ir.Value) -> ir.Value:
    size = c.node("Unsqueeze", _magnitude(c, e, x), c.ints([-1]))
    return c.node("Where", _is_zero(c, x), x, c.node("Div", x, size))


@complex_rule("exp")
def _exponential(c: Context, e: Any, x: ir.Value) -> ir.Value:
    size, angle = c.node("Exp", part(c, x, 0)), part(c, x, 1)
    return pair(c, c.node("Mul", size, c.node("Cos", angle)), c.node("Mul", size, c.node("Sin", angle)))


@complex_rule("log")
def _logarithm(c: Context, e: Any, x: ir.Value) -> ir.Value:
    real, imaginary = part(c, x, 0), part(c, x, 1)
    angle: ir.Value = RULES["atan2"](c, _Real(e), imaginary, real)
    return pair(c, c.node("Log", _magnitude(c, e, x)), angle)


@complex_rule("square")
def _square(c: Context, e: Any, x: ir.Value) -> ir.Value:
    squared: ir.Value = _product(c, e, x, x)
    return squared


@complex_rule("integer_pow")
def _integer_power(c: Context, e: Any, x: ir.Value) -> ir.Value:
    power = int(e.params["y"])
    if not 1 <= abs(power) <= _MOST_FACTORS:
        raise UnsupportedError(f"complex numbers to the power {power}", where="jax")
    result = x
    for _ in range(abs(power) - 1):
        result = _product(c, e, result, x)
    return result if power > 0 else _inverse(c, e, result)


@complex_rule("dot_general")
def _contraction(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    """Translate a product of tensors as the four products of the parts."""
    real = _Real(e)
    (a, b), (p, q) = (
        (part(c, v, 0), part(c, v, 1)) if is_complex(variable) else (v, None)
        for v, variable in zip((x, y), e.invars, strict=True)
    )

    def product(left: ir.Value | None, right: ir.Value | None) -> ir.Value | None:
        return None if left is None or right is None else RULES["dot_general"](c, real, left, right)

    def combined(operator: str, one: ir.Value | None, other: ir.Value | None) -> ir.Value:
        present = [value for value in (one, other) if value is not None]
        return c.node(operator, *present) if len(present) == 2 else present[0]

    first, second = product(a, p), product(b, q)
    return pair(c, combined("Sub", first, second), combined("Add", product(a, q), product(b, p)))


@complex_rule("eq")
def _equal(c: Context, _: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    both = c.cast(c.node("Equal", x, y), np.int32)
    return c.cast(c.node("ReduceMin", both, c.ints([-1]), keepdims=0), np.bool_)


@complex_rule("ne")
def _unequal(c: Context, e: Any, x: ir.Value, y: ir.Value) -> ir.Value:
    return c.node("Not", _equal(c, e, x, y))


class _Real:
    """An equation of complex numbers as one of their parts."""

    def __init__(self, equation: Any) -> None:
        self.primitive, self.params = equation.primitive, equation.params
        self.invars = [_RealVariable(variable) for variable in equation.invars]
        self.outvars = [_RealVariable(variable) for variable in equation.outvars]


class _RealVariable:
    """A variable of one part of complex numbers."""

    def __init__(self, variable: Any) -> None:
        self.aval = variable.aval
        if is_complex(variable):
            self.aval = variable.aval.update(dtype=_part_type(variable))


@complex_rule("fft")
def _fft(c: Context, e: Any, x: ir.Value) -> ir.Value:
    kind = str(e.params["fft_type"]).rpartition(".")[2].upper()
    lengths = e.params["fft_lengths"]
    rank = len(e.invars[0].aval.shape)
    axes = list(range(rank - len(lengths), rank))
    if "IRFFT" in kind or kind == "3":
        if not isinstance(lengths[-1], (int, np.integer)):
            raise UnsupportedError("an inverse real Fourier transform of an open length", where="jax")
        return _from_half_spectrum(c, x, axes, int(lengths[-1]))
    if "RFFT" in kind or kind == "2":
        x = c.node("Unsqueeze", x, c.ints([-1]))
        x = c.node("DFT", x, None, c.constant(axes.pop(), np.int64), onesided=1)
        inverse = 0
    else:
        inverse = int("IFFT" in kind or kind == "1")
    for axis in axes:
        x = c.node("DFT", x, None, c.constant(axis, np.int64), inverse=inverse)
    return x


def _from_half_spectrum(c: Context, x: ir.Value, axes: list[int], length: int) -> ir.Value:
    """Return the real signal of a spectrum without its mirrored half."""
    for axis in axes[:-1]:
        x = c.node("DFT", x, None, c.constant(axis, np.int64), inverse=1)
    axis = axes[-1]
    mirrored = list(range((length - 1) // 2, 0, -1))
    if mirrored:
        tail = c.node("Gather", x, c.ints(mirrored), axis=axis)
        x = c.node("Concat", x, pair(c, part(c, tail, 0), c.node("Neg", part(c, tail, 1))), axis=axis)
    return part(c, c.node("DFT", x, None, c.constant(axis, np.int64), inverse=1), 0)
