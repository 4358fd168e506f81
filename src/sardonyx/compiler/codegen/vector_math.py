"""Elementary functions over vectors of ``float`` or ``double``.

The error is at most 2 units in the last place, special values are those of C, and results never leave the function's
range. For ``float``, the functions of :mod:`.vector_math_f32` have their own polynomials; the others are computed in
``double`` and rounded. For ``double``, the C library computes ``tan``, ``erf``, ``asinh``, ``acosh``, ``atanh`` and
``pow`` lane by lane, and also sine, cosine and tangent of arguments beyond the range of the argument reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.compiler.codegen import vector_math_f32 as single
from sardonyx.compiler.codegen import vector_math_f64 as double
from sardonyx.compiler.llvm.vector_value import Vector

Function = Callable[[Vector], Vector]


def by_library(name: str, *operands: Vector) -> Vector:
    """Return a function of the C library, computed lane by lane in ``double``.

    Args:
        name: The name in C.
        operands: The operands, all of one type.
    """
    first = operands[0]
    emitter, lanes = first.emitter, first.lanes
    wide = [x if x.element == "double" else x.to("fpext", "double") for x in operands]
    emitter.declarations[f"declare double @{name}({', '.join(['double'] * len(wide))})"] = None
    if lanes == 1:
        merged = emitter.let(f"call double @{name}({', '.join(map(str, wide))})")
    else:
        merged = "poison"
        for lane in range(lanes):
            scalars = [emitter.let(f"extractelement {x}, i64 {lane}") for x in wide]
            one = emitter.let(f"call double @{name}({', '.join(f'double {x}' for x in scalars)})")
            merged = emitter.let(f"insertelement {wide[0].type} {merged}, double {one}, i64 {lane}")
    result = Vector(emitter, merged, "double", lanes)
    return result if first.element == "double" else result.to("fptrunc", first.element)


def sqrt(x: Vector) -> Vector:
    """Return the square root, rounded correctly; NaN of negative numbers."""
    return x.call("sqrt")


def _either(of_float: Function, of_double: Function) -> Function:
    return lambda x: of_double(x) if x.element == "double" else of_float(x)


def _in_double(function: Function) -> Function:
    """Return the ``float`` form of a ``double`` function: computed in ``double``, rounded once."""
    return lambda x: function(x.to("fpext", "double")).to("fptrunc", "float")


def _library(name: str) -> Function:
    return lambda x: by_library(name, x)


def _trigonometric(name: str, function: Function, limit: float) -> Function:
    """Return a trigonometric function that calls the C library for arguments beyond the limit."""

    def of(x: Vector) -> Vector:
        near, size = function(x), x.abs()
        result = x.emitter.variable(x.type, near.name)
        far = (size > limit) & (size < math.inf)
        with x.emitter.when(far.any()):
            # Selected per lane, so that the result of a lane does not depend on its neighbours.
            result.set(far.where(by_library(name, x), near).name)
        return Vector(x.emitter, result.get(), x.element, x.lanes)

    return of


_NEAR = 2.0**-10
"""Largest argument for which two terms of a series are enough in ``float``."""


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
    "sin": _either(
        _trigonometric("sin", single.sin, single.TURNS_LIMIT), _trigonometric("sin", double.sin, double.TURNS_LIMIT)
    ),
    "cos": _either(
        _trigonometric("cos", single.cos, single.TURNS_LIMIT), _trigonometric("cos", double.cos, double.TURNS_LIMIT)
    ),
    "tan": _either(_trigonometric("tan", _in_double(double.tan), double.TURNS_LIMIT), _library("tan")),
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
    """Return ``x`` to the power of ``y`` as C defines it; exponents of :data:`_POWERS` need no logarithm."""
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
    result = double.exp(product)
    half = by * 0.5
    odd = by.call("floor").equals(by) & half.call("floor").compare("one", half)
    result = odd.where(result.with_sign_of(wide), result)
    broken = by.call("floor").compare("one", by) & (wide < 0.0) & (wide > -math.inf)
    result = broken.where(result.like(math.nan), result)
    result = (wide.equals(1.0) | by.equals(0.0)).where(result.like(1.0), result)
    return result.to("fptrunc", "float")


def _root(x: Vector) -> Vector:
    """Return the power of 1/2; differs from the square root at -infinity (+infinity) and at -0 (+0)."""
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
