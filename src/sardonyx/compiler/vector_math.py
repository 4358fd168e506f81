"""The elementary functions over vectors."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.vectors import Vector

Function = Callable[[Vector], Vector]

FUNCTIONS: dict[str, Function] = {}
"""Every function of one floating-point operand, by the name of its primitive."""


def by_library(name: str, *operands: Vector) -> Vector:
    """A function of the C library, lane by lane, in ``double``.

    Args:
        name: What C calls it.
        operands: What it is given, all of one type.
    """
    first = operands[0]
    emitter, lanes = first.emitter, first.lanes
    wide = [x if x.element == "double" else x.to("fpext", "double") for x in operands]
    declared = ", ".join(["double"] * len(wide))
    emitter.declarations[f"declare double @{name}({declared})"] = None
    if lanes == 1:
        found = emitter.let(f"call double @{name}({', '.join(f'double {x.name}' for x in wide)})")
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


def power(x: Vector, y: Vector) -> Vector:
    """``x`` to the power of ``y``, as C has it."""
    return by_library("pow", x, y)


FUNCTIONS["sqrt"] = sqrt


def _library(name: str) -> Function:
    return lambda x: by_library(name, x)


_BY_LIBRARY = (
    "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
)  # fmt: skip
FUNCTIONS.update({name: _library(name) for name in _BY_LIBRARY})
