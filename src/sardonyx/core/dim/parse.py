"""Parser for ``dim_param`` texts of ONNX files: integer expressions, or plain names.

    sum      = product {("+" | "-") product}
    product  = factor {("*" | "//" | "/" | "%") factor}
    factor   = {"+" | "-"} primary ["**" NUMBER]
    primary  = NUMBER | NAME | "`" any name, backticks doubled "`" | FUNCTION "(" sum {"," sum} ")" | "(" sum ")"

Functions, in any case: ``min``, ``max``, ``mod``, ``floor``, ``ceil`` or ``ceiling``, ``floordiv`` or ``floor_div``,
``ceildiv`` or ``ceil_div``, ``broadcast``. A sign binds tighter than a product, and ``/`` is exact, as in sympy's
output (``floor(H/2 - 1/2) + 1``): a quotient that is not proven to be an integer must be inside ``floor`` or
``ceil``. Any other text (``batch size``, ``2N``, ``H/2``) is one opaque symbol of this name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from sardonyx.core.dim.bounds import NON_NEGATIVE
from sardonyx.core.dim.canonical_forms import broadcast, extremum, floor_div
from sardonyx.core.dim.polynomial import IDENTIFIER, MAX_COEFFICIENT, Dim, Size
from sardonyx.errors import ShapeError

MAX_LENGTH = 32768
"""Maximum number of characters of a text; every Dim prints shorter."""
MAX_NESTING = 96
"""Maximum nesting of parentheses; every Dim prints flatter."""
MAX_EXPONENT = 16

_TOKEN = re.compile(
    rf"\s*(?:(?P<number>[0-9]+)|(?P<name>{IDENTIFIER.pattern})|`(?P<quoted>(?:[^`]|``)+)`|(?P<sign>//|\*\*|[-+*/%(),]))"
)


class _NotAnExpression(Exception):
    """Signal that the text is a plain name; never leaves this module."""


class _Ratio(NamedTuple):
    """An exact quotient of sizes."""

    over: Size
    under: Size

    def whole(self) -> Size:
        """Return the quotient if proven to be an integer."""
        if self.under == 1:
            return self.over
        quotient = floor_div(self.over, self.under, NON_NEGATIVE)
        if quotient * self.under is not self.over and quotient * self.under != self.over:
            raise _NotAnExpression
        return quotient

    def floor(self) -> Size:
        return floor_div(self.over, self.under, NON_NEGATIVE)

    def ceil(self) -> Size:
        return -floor_div(-self.over, self.under, NON_NEGATIVE)


def parse(text: str) -> Size:
    """Return the size that ``text`` denotes: an expression, or else the symbol of this name.

    Raises:
        ShapeError: The text is empty or exceeds the limits on length, nesting or the size of an expression.
    """
    if not text.strip() or len(text) > MAX_LENGTH:
        raise ShapeError(
            f"the text of a symbolic size has {len(text)} characters.",
            where=repr(text[:40]),
            remedy=f"Give a name or an expression of at most {MAX_LENGTH} characters.",
        )
    try:
        return _Parser(_tokens(text), text).parse()
    except _NotAnExpression:
        return Dim.symbol(text)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return kind and text of each token; the last is ``("end", "")``."""
    tokens = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position, end)
        if match is None or match.lastgroup is None:
            raise _NotAnExpression
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return [*tokens, ("end", "")]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.position = 0
        self.nesting = 0

    def parse(self) -> Size:
        size = self.sum().whole()
        if self.tokens[self.position][0] != "end":
            raise _NotAnExpression
        return size

    def sum(self) -> _Ratio:
        total = self.product()
        while sign := self.accept("+", "-"):
            total = _add(total, self.product(), 1 if sign == "+" else -1)
            self.check(total)
        return total

    def product(self) -> _Ratio:
        result = self.factor()
        while sign := self.accept("*", "//", "/", "%"):
            result = _OPERATORS[sign](result, self.factor())
            self.check(result)
        return result

    def factor(self) -> _Ratio:
        negative = False
        while sign := self.accept("+", "-"):
            negative ^= sign == "-"
        base = self.primary()
        result = self.power(base) if self.accept("**") else base
        return _Ratio(-result.over, result.under) if negative else result

    def power(self, base: _Ratio) -> _Ratio:
        kind, text = self.advance()
        if kind != "number" or len(text) > 2 or int(text) > MAX_EXPONENT:
            raise _NotAnExpression
        result = _Ratio(1, 1)
        for _ in range(int(text)):
            result = _multiply(result, base)
            self.check(result)
        return result

    def primary(self) -> _Ratio:
        kind, text = self.advance()
        if kind == "number":
            if len(text) > len(str(MAX_COEFFICIENT)):
                raise self.limit("a number")
            return _Ratio(int(text), 1)
        if kind == "quoted":
            return _Ratio(Dim.symbol(text.replace("``", "`")), 1)
        if kind == "name":
            if self.tokens[self.position] != ("sign", "("):
                return _Ratio(Dim.symbol(text), 1)
            self.advance()
            return self.call(text)
        if text != "(":
            raise _NotAnExpression
        return self.parenthesized()[0]

    def call(self, name: str) -> _Ratio:
        args = self.parenthesized(several=True)
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise _NotAnExpression
        arity, apply = function
        if arity is not None and len(args) != arity:
            raise _NotAnExpression
        return _Ratio(apply(args), 1)

    def parenthesized(self, *, several: bool = False) -> list[_Ratio]:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self.limit(f"{self.nesting} nested parentheses")
        parts = [self.sum()]
        while several and self.accept(","):
            parts.append(self.sum())
        if not self.accept(")"):
            raise _NotAnExpression
        self.nesting -= 1
        return parts

    def accept(self, *signs: str) -> str:
        """Consume the next token if it is one of these signs."""
        kind, text = self.tokens[self.position]
        if kind != "sign" or text not in signs:
            return ""
        self.position += 1
        return text

    def advance(self) -> tuple[str, str]:
        token = self.tokens[self.position]
        if token[0] == "end":
            raise _NotAnExpression
        self.position += 1
        return token

    def check(self, value: _Ratio) -> None:
        """Apply the limit on coefficients of Dims to constants."""
        if any(isinstance(part, int) and abs(part) >= MAX_COEFFICIENT for part in value):
            raise self.limit("a number")

    def limit(self, excess: str) -> ShapeError:
        return ShapeError(
            f"a symbolic size exceeds the limits ({excess}).",
            where=repr(self.text[:40]),
            remedy="Give the size a plain name.",
        )


def _add(a: _Ratio, b: _Ratio, sign: int) -> _Ratio:
    if a.under == b.under:
        return _Ratio(a.over + sign * b.over, a.under)
    return _Ratio(a.over * b.under + sign * b.over * a.under, a.under * b.under)


def _multiply(a: _Ratio, b: _Ratio) -> _Ratio:
    return _Ratio(a.over * b.over, a.under * b.under)


def _divide(a: _Ratio, b: _Ratio) -> _Ratio:
    if b.over == 0:
        raise _NotAnExpression
    return _Ratio(a.over * b.under, a.under * b.over)


def _floor_divide(a: _Ratio, b: _Ratio) -> _Ratio:
    return _Ratio(_divide(a, b).floor(), 1)


def _remainder(a: _Ratio, b: _Ratio) -> _Ratio:
    if b.over == 0:
        raise _NotAnExpression
    return _Ratio(a.whole() % b.whole(), 1)


_OPERATORS: dict[str, Callable[[_Ratio, _Ratio], _Ratio]] = {
    "*": _multiply,
    "/": _divide,
    "//": _floor_divide,
    "%": _remainder,
}


def _wholes(args: list[_Ratio]) -> list[Size]:
    return [arg.whole() for arg in args]


_FUNCTIONS: dict[str, tuple[int | None, Callable[[list[_Ratio]], Size]]] = {
    "min": (None, lambda args: extremum("min", _wholes(args), NON_NEGATIVE)),
    "max": (None, lambda args: extremum("max", _wholes(args), NON_NEGATIVE)),
    "broadcast": (None, lambda args: broadcast(_wholes(args), NON_NEGATIVE)),
    "mod": (2, lambda args: _remainder(*args).over),
    "floor": (1, lambda args: args[0].floor()),
    "ceil": (1, lambda args: args[0].ceil()),
    "ceiling": (1, lambda args: args[0].ceil()),
    "floordiv": (2, lambda args: _divide(*args).floor()),
    "floor_div": (2, lambda args: _divide(*args).floor()),
    "ceildiv": (2, lambda args: _divide(*args).ceil()),
    "ceil_div": (2, lambda args: _divide(*args).ceil()),
}
