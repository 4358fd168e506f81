"""Parser for the text form of Core functions; see :mod:`sardonyx.core.ir.printer` for the form.

The parsed function is rebuilt and checked by :mod:`sardonyx.core.eval.verifier`. Numbered symbols (``%0``) become
fresh ones.
"""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sardonyx.core.dim import Dim, Size, as_dim
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.eval.tensor import Tensor, bind, constant, function_input, known, level_of
from sardonyx.core.eval.verifier import check
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import DEFINED, Function, Value, define, defined_by, fresh_symbol, function, intern_value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.printer import INFIX, PREFIX, SIZES, UNWRITTEN
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type
from sardonyx.core.rules.assumed_sizes import same_type
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import SardonyxError, ShapeError, TextFormatError, TypeMismatchError

_BY_SIGN = {sign: op for op, sign in INFIX.items()}
_DTYPES = {dtype.name.lower(): dtype for dtype in t.ALL_DTYPES}
_HEADER = re.compile(r"(?:(?P<key>\w+) = )?(?P<name>\w+|\"(?:[^\"\\]|\\.)*\")\((?P<inputs>.*)\):")
_COMMENT = re.compile(r"  # (?P<name>\"(?:[^\"\\]|\\.)*\")$")
_DEFINES = re.compile(r" defines (?P<symbols>[%\d, ]+)$")
_BETWEEN = re.compile(r"(\w+) (\S+) (\w+)")
_PARAM = re.compile(r"\w+=")
_CALL = re.compile(r"(?P<op>\w+)\((?P<inside>.*)\)")


def parse_function(text: str, hosts: Mapping[str, HostFunction] | None = None) -> Function:
    """Parse a function.

    Args:
        text: The form of :func:`sardonyx.core.ir.printer.function_text`.
        hosts: Host functions by name.

    Raises:
        TextFormatError: The text does not parse; names the line.
        InvalidModelError: The text parses, but the function is not legal.
    """
    reader = _Reader(text, hosts or {})
    parsed = reader.function(0, 0)[1]
    if not reader.is_done:
        raise reader.error("expected a single function")
    check(parsed)
    return parsed


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


class _Reader:
    def __init__(self, text: str, hosts: Mapping[str, HostFunction]) -> None:
        self._lines = [
            _Line(i, len(line) - len(line.lstrip()), line.strip())
            for i, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
        self._at = 0
        self._hosts = hosts
        self._symbols: dict[str, Size] = {}

    @property
    def is_done(self) -> bool:
        """True if all lines are read."""
        return self._at == len(self._lines)

    def error(self, problem: str) -> TextFormatError:
        """Return an error at the current line."""
        number = self._lines[min(self._at, len(self._lines) - 1)].number if self._lines else 0
        return TextFormatError(f"{problem}.", where=f"line {number}")

    def _line(self) -> _Line:
        if self.is_done:
            raise self.error("the text ends within a function")
        return self._lines[self._at]

    def function(self, indent: int, level: int) -> tuple[str, Function]:
        """Parse the function at the current line; return its parameter name and the function."""
        match = _HEADER.fullmatch(self._line().text)
        if match is None or self._line().indent != indent:
            raise self.error("expected the head of a function")
        values: dict[str, Value] = {}
        for position, part in enumerate(split(match["inputs"])):
            name, _, type_ = part.partition(": ")
            values[name] = function_input(level, position, self.type(type_))
        self._at += 1
        inputs = list(values.values())
        while not self._line().text.startswith("return"):
            self._value(values, indent + 2, level)
        results = [self._lookup(values, name) for name in split(self._line().text.removeprefix("return"))]
        self._at += 1
        name = match["name"]
        return match["key"] or "", function(json.loads(name) if name[0] == '"' else name, inputs, results, level)

    def _lookup(self, values: Mapping[str, Value], name: str) -> Value:
        if name not in values:
            raise self.error(f"unknown value {name!r}")
        return values[name]

    def _value(self, values: dict[str, Value], indent: int, level: int) -> None:
        line, start = self._line(), self._at
        text = line.text
        comment = _COMMENT.search(text)
        text = text[: comment.start()] if comment else text
        defines = _DEFINES.search(text)
        symbols = split(defines["symbols"]) if defines else []
        text = text[: defines.start()] if defines else text
        name, colon, rest = text.partition(": ")
        written, equals, expression = rest.partition(" = ")
        if line.indent != indent or not colon or not equals:
            raise self.error("expected a value: `name: type = expression`")
        try:
            values[name] = self._build(values, symbols, written, expression, indent, level)
        except (ValueError, SyntaxError, KeyError, IndexError, TypeError, ShapeError, TypeMismatchError) as error:
            self._at = start
            raise self.error(f"{expression!r} does not parse ({error})") from error
        if comment:
            values[name].origin = json.loads(comment["name"])

    def _build(
        self, values: Mapping[str, Value], symbols: list[str], written: str, text: str, indent: int, level: int
    ) -> Value:
        between = _BETWEEN.fullmatch(text)
        if between:
            operands = [self._lookup(values, between[1]), self._lookup(values, between[3])]
            return self._apply(_BY_SIGN[between[2]], operands, {}, self._parse_type_and_advance(written), ())
        for op, sign in PREFIX.items():
            if text.startswith(sign) and text[1:] in values:
                return self._apply(op, [values[text[1:]]], {}, self._parse_type_and_advance(written), ())
        owner, dot, index = text.partition(".")
        if dot and owner in values:
            return self._apply("get", [values[owner]], {"index": int(index)}, self._parse_type_and_advance(written), ())
        call = _CALL.fullmatch(text)
        if call is None or call["op"] not in PRIMITIVES:
            return _literal(text, self._parse_type_and_advance(written))
        if call["op"] == "bind":
            return self._bind(values, symbols, call["inside"])
        own = tuple(self._fresh(symbol) for symbol in symbols)
        type_ = self._parse_type_and_advance(written)
        operands, params = self._arguments(call["op"], values, call["inside"])
        while not self.is_done and self._line().indent > indent:
            key, inner = self.function(indent + 2, level + 1)
            params[key] = inner
        value = self._apply(call["op"], operands, params, type_, own)
        # An interned call of the same host function has its symbols already.
        self._symbols.update(zip(symbols, map(Dim.symbol, defined_by(value)), strict=True))
        return value

    def _parse_type_and_advance(self, written: str) -> Type:
        """Return the type of the value at the current line, and move to the next line."""
        type_ = self.type(written)
        self._at += 1
        return type_

    def _bind(self, values: Mapping[str, Value], symbols: list[str], inside: str) -> Value:
        (operand,), params = self._arguments("bind", values, inside)
        size = bind(operand, params["element"])  # type: ignore[arg-type]
        self._symbols[symbols[0]] = size
        self._at += 1
        return next(value for value in operand.bound if value.params["symbol"] in size.symbols())

    def _apply(self, op: str, operands: list[Value], named: dict[str, Any], type_: Type, own: tuple[str, ...]) -> Value:
        if op in ("cond", "loop") and isinstance(type_, TupleType):
            named |= {"results": type_.results, "symbols": own}
        if op == "host":
            named |= {"symbols": own}
        params = {name: named[name] for name in PRIMITIVES[op].params}
        inferred = TYPE_RULES[op](*[operand.type for operand in operands], **params)
        if inferred != type_ and (op not in ("cond", "loop", "host") or not same_type(inferred, type_)):
            raise self.error(f"expected {inferred} for {op}, got {type_}")
        key = (params["function"], params["attributes"]) if op == "host" else tuple(params.values())
        make = Tensor if isinstance(type_, TensorType) else Value
        value = intern_value(make, op, tuple(operands), params, type_, level_of(operands), key)
        for symbol in defined_by(value):
            define(symbol, value)
        return value

    def _arguments(self, op: str, values: Mapping[str, Value], inside: str) -> tuple[list[Value], dict[str, Any]]:
        """Parse the operands and parameters of a call."""
        before, *after = ("", inside) if _PARAM.match(inside) else split(inside, ";") or [""]
        parts, params = split(before), dict(part.split("=", 1) for part in split("".join(after)))
        if op == "host":
            host, attributes = self._hosts[json.loads(parts[0])], tuple((k, _plain(v)) for k, v in params.items())
            return [self._lookup(values, p) for p in parts[1:]], {"function": host, "attributes": attributes}
        known_params = {name: self._param(name, text) for name, text in params.items() if name not in UNWRITTEN}
        return [self._lookup(values, part) for part in parts], known_params

    def _param(self, name: str, text: str) -> Any:
        if name in SIZES:
            return tuple(map(self.size, split(text[1:-1])))
        if name == "padding":
            return tuple(tuple(map(self.size, pair.split(":"))) for pair in split(text[1:-1]))
        if name == "k":
            return self.size(text)
        return _DTYPES[text] if name == "dtype" else _plain(text)

    # Sizes and types.

    def _fresh(self, symbol: str) -> str:
        name = fresh_symbol()
        self._symbols[symbol] = Dim.symbol(name)
        return name

    def size(self, text: str) -> Size:
        """Parse a size; undefined numbered symbols become fresh ones, too."""
        size = as_dim(int(text) if text.lstrip("-").isdigit() else text)
        if isinstance(size, Dim):
            for symbol in sorted(size.symbols()):
                if symbol.startswith(DEFINED) and symbol not in self._symbols:
                    self._fresh(symbol)
            return size.substitute(self._symbols)
        return size

    def type(self, text: str) -> Type:
        """Parse a type."""
        head, bracket, rest = text.partition("[")
        if head in _DTYPES:
            return TensorType(_DTYPES[head], tuple(map(self.size, split(rest[:-1]))) if bracket else None)
        outer, _, inside = text.partition("(")
        if not text.endswith(")") or outer not in ("sequence", "optional", "map", ""):
            raise self.error(f"expected a type, got {text!r}")
        parts = split(inside[:-1])
        if outer == "map":
            return MapType(_DTYPES[parts[0]], self.type(parts[1]))
        inner = [self.type(part) for part in parts]
        return TupleType(tuple(inner)) if outer == "" else (
            SequenceType(inner[0]) if outer == "sequence" else OptionalType(inner[0])
        )  # fmt: skip


def split(text: str, separator: str = ",") -> list[str]:
    """Return the parts between separators outside of brackets and quotes."""
    return [part for part in _parts(text, separator) if part]


def _parts(text: str, separator: str) -> Iterator[str]:
    depth, quote, start = 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and text[i - 1] != "\\" else quote
        elif c in "\"'`":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == separator and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


def _plain(text: str) -> Any:
    return ast.literal_eval(text)


def _literal(text: str, type_: Type) -> Value:
    if isinstance(type_, TensorType):
        return constant(_array(text, type_), type_.dtype)
    return known(_value(text, type_), type_)


def _value(text: str, type_: Type) -> Any:
    match type_:
        case TensorType():
            return _array(text, type_)
        case SequenceType(element):
            return [_value(part, element) for part in split(text[1:-1])]
        case OptionalType(element):
            return None if text == "none" else _value(text, element)
        case MapType(_, element):
            pairs = [part.split(": ", 1) for part in split(text[1:-1])]
            return {json.loads(key): _value(item, element) for key, item in pairs}
    raise SardonyxError(f"{type_} has no literal form.")


def _array(text: str, type_: TensorType) -> np.ndarray:
    dtype = t.numpy_dtype(type_.dtype)
    shape = [int(size) for size in type_.shape or ()]  # type: ignore[arg-type]
    if text.startswith("words"):
        sizes, words = json.loads(text.removeprefix("words"))
        strings = np.empty(len(words), object)
        strings[:] = words
        return strings.reshape(sizes)
    if text.startswith("bytes"):
        return np.frombuffer(base64.b64decode(text[6:-1]), dtype).reshape(shape).copy()
    return np.array(ast.literal_eval(text)).astype(dtype).reshape(shape)
