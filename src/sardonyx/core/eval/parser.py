"""Functions of the graph from their text; see :mod:`.text` for the form.

What is read is built anew and checked by :mod:`.spec`. Numbered symbols (``%0``) become fresh ones.
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
from sardonyx.core.ir.graph import DEFINED, Function, Value, define, defined_by, fresh_symbol, function, interned
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.printer import INFIX, PREFIX, SIZES, UNWRITTEN
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type
from sardonyx.core.rules.type_rules import TYPE_RULES, same_type
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
    """The function that a text writes.

    Args:
        text: As :func:`.text.function_text` gives it.
        hosts: The host functions that it names.

    Raises:
        TextFormatError: It does not parse; says in which line.
        InvalidModelError: It parses, and the function is not legal.
    """
    reader = _Reader(text, hosts or {})
    found = reader.function(0, 0)[1]
    if not reader.is_done:
        raise reader.error("one function is expected")
    check(found)
    return found


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
        """Whether all lines are read."""
        return self._at == len(self._lines)

    def error(self, problem: str) -> TextFormatError:
        """An error at the line at hand."""
        number = self._lines[min(self._at, len(self._lines) - 1)].number if self._lines else 0
        return TextFormatError(f"{problem}.", where=f"line {number}")

    def _line(self) -> _Line:
        if self.is_done:
            raise self.error("the text ends within a function")
        return self._lines[self._at]

    def function(self, indent: int, level: int) -> tuple[str, Function]:
        """A function that begins at the line at hand, and the parameter that it is."""
        match = _HEADER.fullmatch(self._line().text)
        if match is None or self._line().indent != indent:
            raise self.error("the head of a function is expected")
        values: dict[str, Value] = {}
        for position, part in enumerate(split(match["inputs"])):
            name, _, type_ = part.partition(": ")
            values[name] = function_input(level, position, self.type(type_))
        self._at += 1
        inputs = list(values.values())
        while not self._line().text.startswith("return"):
            self._value(values, indent + 2, level)
        results = [self._named(values, name) for name in split(self._line().text.removeprefix("return"))]
        self._at += 1
        name = match["name"]
        return match["key"] or "", function(json.loads(name) if name[0] == '"' else name, inputs, results, level)

    def _named(self, values: Mapping[str, Value], name: str) -> Value:
        if name not in values:
            raise self.error(f"{name!r} is read, and nothing is called so")
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
            raise self.error("a value is expected: `name: type = expression`")
        try:
            values[name] = self._made(values, symbols, written, expression, indent, level)
        except (ValueError, SyntaxError, KeyError, IndexError, TypeError, ShapeError, TypeMismatchError) as error:
            self._at = start
            raise self.error(f"{expression!r} does not parse ({error})") from error
        if comment:
            values[name].origin = json.loads(comment["name"])

    def _made(
        self, values: Mapping[str, Value], symbols: list[str], written: str, text: str, indent: int, level: int
    ) -> Value:
        between = _BETWEEN.fullmatch(text)
        if between:
            operands = [self._named(values, between[1]), self._named(values, between[3])]
            return self._applied(_BY_SIGN[between[2]], operands, {}, self._next(written), ())
        for op, sign in PREFIX.items():
            if text.startswith(sign) and text[1:] in values:
                return self._applied(op, [values[text[1:]]], {}, self._next(written), ())
        owner, dot, index = text.partition(".")
        if dot and owner in values:
            return self._applied("get", [values[owner]], {"index": int(index)}, self._next(written), ())
        call = _CALL.fullmatch(text)
        if call is None or call["op"] not in PRIMITIVES:
            return _literal(text, self._next(written))
        if call["op"] == "bind":
            return self._bound(values, symbols, call["inside"])
        own = tuple(self._fresh(symbol) for symbol in symbols)
        type_ = self._next(written)
        operands, params = self._inside(call["op"], values, call["inside"])
        while not self.is_done and self._line().indent > indent:
            key, inner = self.function(indent + 2, level + 1)
            params[key] = inner
        made = self._applied(call["op"], operands, params, type_, own)
        # A host function that was called before on the same has its symbols already.
        self._symbols.update(zip(symbols, map(Dim.symbol, defined_by(made)), strict=True))
        return made

    def _next(self, written: str) -> Type:
        """The type of the value of the line at hand, which is read."""
        type_ = self.type(written)
        self._at += 1
        return type_

    def _bound(self, values: Mapping[str, Value], symbols: list[str], inside: str) -> Value:
        (operand,), params = self._inside("bind", values, inside)
        size = bind(operand, params["element"])  # type: ignore[arg-type]
        self._symbols[symbols[0]] = size
        self._at += 1
        return next(value for value in operand.bound if value.params["symbol"] in size.symbols())

    def _applied(
        self, op: str, operands: list[Value], given: dict[str, Any], type_: Type, own: tuple[str, ...]
    ) -> Value:
        if op in ("cond", "loop") and isinstance(type_, TupleType):
            given |= {"results": type_.results, "symbols": own}
        if op == "host":
            given |= {"symbols": own}
        params = {name: given[name] for name in PRIMITIVES[op].params}
        told = TYPE_RULES[op](*[operand.type for operand in operands], **params)
        if told != type_ and (op not in ("cond", "loop", "host") or not same_type(told, type_)):
            raise self.error(f"{op} gives {told}, and {type_} is written")
        key = (params["function"], params["attributes"]) if op == "host" else tuple(params.values())
        make = Tensor if isinstance(type_, TensorType) else Value
        made = interned(make, op, tuple(operands), params, type_, level_of(operands), key)
        for symbol in defined_by(made):
            define(symbol, made)
        return made

    def _inside(self, op: str, values: Mapping[str, Value], inside: str) -> tuple[list[Value], dict[str, Any]]:
        """The operands and parameters of a call."""
        before, *after = ("", inside) if _PARAM.match(inside) else split(inside, ";") or [""]
        parts, params = split(before), dict(part.split("=", 1) for part in split("".join(after)))
        if op == "host":
            host, attributes = self._hosts[json.loads(parts[0])], tuple((k, _plain(v)) for k, v in params.items())
            return [self._named(values, p) for p in parts[1:]], {"function": host, "attributes": attributes}
        known_params = {name: self._param(name, text) for name, text in params.items() if name not in UNWRITTEN}
        return [self._named(values, part) for part in parts], known_params

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
        """A size; numbered symbols that nothing defined are fresh ones, too."""
        size = as_dim(int(text) if text.lstrip("-").isdigit() else text)
        if isinstance(size, Dim):
            for symbol in sorted(size.symbols()):
                if symbol.startswith(DEFINED) and symbol not in self._symbols:
                    self._fresh(symbol)
            return size.substitute(self._symbols)
        return size

    def type(self, text: str) -> Type:
        """A type."""
        head, bracket, rest = text.partition("[")
        if head in _DTYPES:
            return TensorType(_DTYPES[head], tuple(map(self.size, split(rest[:-1]))) if bracket else None)
        outer, _, inside = text.partition("(")
        if not text.endswith(")") or outer not in ("sequence", "optional", "map", ""):
            raise self.error(f"{text!r} is no type")
        parts = split(inside[:-1])
        if outer == "map":
            return MapType(_DTYPES[parts[0]], self.type(parts[1]))
        inner = [self.type(part) for part in parts]
        return TupleType(tuple(inner)) if outer == "" else (
            SequenceType(inner[0]) if outer == "sequence" else OptionalType(inner[0])
        )  # fmt: skip


def split(text: str, separator: str = ",") -> list[str]:
    """The parts between commas (or another separator) that are in no brackets and no quotes."""
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
    raise SardonyxError(f"{type_} has no literals.")


def _array(text: str, type_: TensorType) -> np.ndarray:
    dtype = t.numpy_dtype(type_.dtype)
    shape = [int(size) for size in type_.shape or ()]  # type: ignore[arg-type]
    if text.startswith("words"):
        sizes, words = json.loads(text.removeprefix("words"))
        found = np.empty(len(words), object)
        found[:] = words
        return found.reshape(sizes)
    if text.startswith("bytes"):
        return np.frombuffer(base64.b64decode(text[6:-1]), dtype).reshape(shape).copy()
    return np.array(ast.literal_eval(text)).astype(dtype).reshape(shape)
