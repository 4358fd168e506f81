"""The elementary functions over vectors of ``float`` or ``double``.

Within 2 units in the last place, special values as in C, results never out of the function's range. Of ``float``, the
functions of :mod:`.vector_math_float` have polynomials of their own, and the rest is computed in ``double`` and
rounded. Of ``double``, ``tan``, ``erf``, ``asinh``, ``acosh``, ``atanh`` and ``pow`` are left to the C library, lane by
lane; so are sine, cosine and tangent of what is beyond the reach of their reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.compiler.codegen import vector_math_f32 as single
from sardonyx.compiler.codegen import vector_math_f64 as double
from sardonyx.compiler.llvm.vector_value import Vector

Function = Callable[[Vector], Vector]


def by_library(name: str, *operands: Vector) -> Vector:
    """A function of the C library, lane by lane, in ``double``.

    Args:
        name: What C calls it.
        operands: What it is given, all of one type.
    """
    first = operands[0]
    emitter, lanes = first.emitter, first.lanes
    wide = [x if x.element == "double" else x.to("fpext", "double") for x in operands]
    emitter.declarations[f"declare double @{name}({', '.join(['double'] * len(wide))})"] = None
    if lanes == 1:
        found = emitter.let(f"call double @{name}({', '.join(map(str, wide))})")
    else:
        found = "poison"
        for lane in range(lanes):
            given = [emitter.let(f"extractelement {x}, i64 {lane}") for x in wide]
            one = emitter.let(f"call double @{name}({', '.join(f'double {x}' for x in given)})")
            found = emitter.let(f"insertelement {wide[0].type} {found}, double {one}, i64 {lane}")
    result = Vector(emitter, found, "double", lanes)
    return result if first.element == "double" else result.to("fptrunc", first.element)


def sqrt(x: Vector) -> Vector:
    """The square root, rounded correctly; NaN of negative numbers."""
    return x.call("sqrt")


def _either(of_float: Function, of_double: Function) -> Function:
    return lambda x: of_double(x) if x.element == "double" else of_float(x)


def _in_double(function: Function) -> Function:
    """The function of ``float`` vectors by way of ``double``, rounded once."""
    return lambda x: function(x.to("fpext", "double")).to("fptrunc", "float")


def _library(name: str) -> Function:
    return lambda x: by_library(name, x)


def _turning(name: str, function: Function, limit: float) -> Function:
    """A function of angles, with the C library's beyond the limit."""

    def of(x: Vector) -> Vector:
        near, size = function(x), x.abs()
        found = x.emitter.variable(x.type, near.name)
        far = (size > limit) & (size < math.inf)
        with x.emitter.when(far.any()):
            # Lane by lane the one or the other: what a lane gives does not hang on its neighbours.
            found.set(far.where(by_library(name, x), near).name)
        return Vector(x.emitter, found.get(), x.element, x.lanes)

    return of


_NEAR = 2.0**-10
"""Up to here two terms of a series are enough for ``float``."""


def _asinh(x: Vector) -> Vector:
    size = x.abs()
    far = double.log(size + sqrt(size.fma(size, 1.0)))
    return (size < _NEAR).where((size * size).fma(size * (-1 / 6), size), far).with_sign_of(x)


def _acosh(x: Vector) -> Vector:
    return (x < 1.0).where(x.like(math.nan), double.log(x + sqrt((x - 1.0) * (x + 1.0))))


def _atanh(x: Vector) -> Vector:
    far = double.log((x + 1.0) / (1.0 - x)) * 0.5
    return (x.abs() < _NEAR).where((x * x).fma(x * (1 / 3), x), far)


FUNCTIONS: dict[str, Function] = {
    "sqrt": sqrt,
    "exp": _either(single.exp, double.exp),
    "log": _either(single.log, double.log),
    "tanh": _either(single.tanh, double.tanh),
    "erf": _either(single.erf, _library("erf")),
    "sin": _either(_turning("sin", single.sin, single.TURNS_LIMIT), _turning("sin", double.sin, double.TURNS_LIMIT)),
    "cos": _either(_turning("cos", single.cos, single.TURNS_LIMIT), _turning("cos", double.cos, double.TURNS_LIMIT)),
    "tan": _either(_turning("tan", _in_double(double.tan), double.TURNS_LIMIT), _library("tan")),
    "asin": _either(single.asin, double.asin),
    "acos": _either(single.acos, double.acos),
    "atan": _either(single.atan, double.atan),
    "sinh": _either(_in_double(double.sinh), double.sinh),
    "cosh": _either(_in_double(double.cosh), double.cosh),
    "asinh": _either(_in_double(_asinh), _library("asinh")),
    "acosh": _either(_in_double(_acosh), _library("acosh")),
    "atanh": _either(_in_double(_atanh), _library("atanh")),
}
"""Every function of one floating-point operand, by the name of its primitive."""


def power(x: Vector, y: Vector) -> Vector:
    """``x`` to the power of ``y``, as C has it; a constant exponent that is a small multiple of 1/2 costs little."""
    exponent = y.uniform()
    if exponent is not None and exponent in _POWERS:
        return _POWERS[exponent](x)
    if x.element == "double":
        return by_library("pow", x, y)
    wide, by = x.to("fpext", "double"), y.to("fpext", "double")
    size = wide.abs()
    product = by * double.log(size)
    # 1 to any power is 1, and so is -1 to an infinite one.
    product = (size.equals(1.0) & by.abs().equals(math.inf)).where(product.like(0.0), product)
    found = double.exp(product)
    half = by * 0.5
    odd = by.call("floor").equals(by) & half.call("floor").compare("one", half)
    found = odd.where(found.with_sign_of(wide), found)
    broken = by.call("floor").compare("one", by) & (wide < 0.0) & (wide > -math.inf)
    found = broken.where(found.like(math.nan), found)
    found = (wide.equals(1.0) | by.equals(0.0)).where(found.like(1.0), found)
    return found.to("fptrunc", "float")


def _root(x: Vector) -> Vector:
    """The power of 1/2: plus infinity of minus infinity, plus zero of minus zero, other than the square root."""
    return x.equals(-math.inf).where(x.like(math.inf), sqrt(x + 0.0))


_POWERS: dict[float, Function] = {
    -2.0: lambda x: (1.0 / x) * (1.0 / x),
    -1.0: lambda x: 1.0 / x,
    -0.5: lambda x: 1.0 / _root(x),
    0.0: lambda x: x.like(1.0),
    0.5: _root,
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}
"""Exponents that need no logarithm, each within 2 units in the last place."""
