"""Readable text form of Core functions; :mod:`sardonyx.core.eval.parser` is the inverse.

    softmax(x0: float[N, 4]):
      v0: float[N] = reduce(x0; kind='max', axes=(1,))
      v1: float[N, 1] = reshape(v0; shape=[N, 1])
      v2: float[N, 4] = broadcast(v1; shape=[N, 4])
      v3: float[N, 4] = x0 - v2
      return v3

One line for each value, in topological order: name, type, and the primitive with operands and parameters. The
functions that a value calls follow indented. A value that defines symbols ends with ``defines %0``; such symbols are
numbered in order of occurrence. ONNX names follow as comments.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import DEFINED, Function, Value, defined_by, functions_of, symbols_in
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType, Type
from sardonyx.errors import UnsupportedError

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "pow": "**", "and": "&", "or": "|", "xor": "^",
    "shift_left": "<<", "shift_right": ">>", "less": "<", "equal": "==",
}  # fmt: skip
"""Binary primitives that are written as infix operators."""

PREFIX = {"neg": "-", "not": "~"}
"""Unary primitives that are written as prefix operators."""

SIZES = frozenset(("shape", "starts", "limits", "low", "high", "sizes"))
"""Parameters that are tuples of sizes."""

UNWRITTEN = frozenset(("results", "symbols", "symbol", "function", "attributes", "value", "type", "level", "position"))
"""Parameters that are not written as ``name=value``."""

MOST_WRITTEN = 24
"""Maximum number of elements of a constant written as numbers; longer ones are written as bytes."""


def function_text(function: Function) -> str:
    """Return the function as text.

    Raises:
        UnsupportedError: A host function has an attribute without text form.
    """
    return "\n".join(_Printer(function).lines(function, "", "")) + "\n"


class _Printer:
    def __init__(self, function: Function) -> None:
        self._numbers: dict[str, Size] = {}
        for symbol in _symbols_of(function):
            self._numbers.setdefault(symbol, Dim.symbol(f"{DEFINED}{len(self._numbers)}"))

    def lines(self, function: Function, indent: str, key: str) -> Iterator[str]:
        """Yield the lines of a function, the first with the prefix ``key``."""
        names = {value: f"x{i}" for i, value in enumerate(function.inputs)}
        inputs = ", ".join(f"{name}: {self.type(value.type)}" for value, name in names.items())
        yield f"{indent}{key}{name_text(function.name)}({inputs}):"
        count = 0
        for value in function.values:
            if value not in names:
                names[value] = f"v{count}"
                count += 1
                yield from self._value(value, names, indent + "  ")
        yield f"{indent}  return {', '.join(names[value] for value in function.results)}".rstrip()

    def _value(self, value: Value, names: Mapping[Value, str], indent: str) -> Iterator[str]:
        operands = [names[operand] for operand in value.operands]
        line = f"{indent}{names[value]}: {self.type(value.type)} = {self._expression(value, operands)}"
        own = defined_by(value)
        if own:
            line += f" defines {', '.join(self._symbol(symbol) for symbol in own)}"
        # A small constant is one interned value for all readers, so its ONNX name is arbitrary.
        named = value.origin and not (
            value.is_constant and isinstance(value.known, np.ndarray) and value.known.size <= 1
        )
        yield line + (f"  # {json.dumps(value.origin)}" if named else "")
        for name, param in value.params.items():
            if isinstance(param, Function):
                yield from self.lines(param, indent + "  ", f"{name} = ")

    def _expression(self, value: Value, operands: list[str]) -> str:
        if value.op in INFIX:
            return f"{operands[0]} {INFIX[value.op]} {operands[1]}"
        if value.op in PREFIX:
            return PREFIX[value.op] + operands[0]
        if value.op == "get":
            return f"{operands[0]}.{value.params['index']}"
        if value.op == "constant":
            return literal(value.params["value"], value.type)
        params = [f"{name}={self._param(name, p)}" for name, p in value.params.items() if self._is_written(name, p)]
        if value.op == "host":
            params = [f"{name}={_attribute(name, p)}" for name, p in value.params["attributes"]]
            operands = [json.dumps(value.params["function"].name), *operands]
        return f"{value.op}({', '.join(operands)}{'; ' if params and operands else ''}{', '.join(params)})"

    @staticmethod
    def _is_written(name: str, param: Any) -> bool:
        return name not in UNWRITTEN and not isinstance(param, Function)

    def _param(self, name: str, param: Any) -> str:
        if name in SIZES:
            return f"[{', '.join(map(self.size, param))}]"
        if name == "padding":
            return f"[{', '.join(f'{self.size(low)}:{self.size(high)}' for low, high in param)}]"
        if name == "k":
            return self.size(param)
        return dtype_text(param) if isinstance(param, t.DType) else repr(param)

    def _symbol(self, symbol: str) -> str:
        return str(self._numbers[symbol])

    def size(self, size: Size) -> str:
        """Return the text of a size, with defined symbols numbered."""
        return str(size.substitute(self._numbers) if isinstance(size, Dim) else size)

    def type(self, type: Type) -> str:
        """Return the text of a type, with defined symbols numbered."""
        match type:
            case TensorType(dtype, shape):
                sizes = "" if shape is None else f"[{', '.join(map(self.size, shape))}]"
                return dtype_text(dtype) + sizes
            case SequenceType(element):
                return f"sequence({self.type(element)})"
            case OptionalType(element):
                return f"optional({self.type(element)})"
            case MapType(key, value):
                return f"map({dtype_text(key)}, {self.type(value)})"
            case TupleType(results):
                return f"({', '.join(map(self.type, results))})"
        raise UnsupportedError(f"expected a type of Core, got {type}.")


def _symbols_of(function: Function) -> Iterator[str]:
    """Yield the symbols that values define or no input of the model binds, in printing order."""
    parts = [*(value.type for value in function.inputs)]
    for part in parts:
        yield from _numbered(part)
    for value in function.values:
        yield from _numbered(value.type)
        yield from defined_by(value)
        for inner in functions_of(value):
            yield from _symbols_of(inner)
        yield from _numbered(value.params)


def _numbered(part: Any) -> Iterator[str]:
    return (symbol for symbol in symbols_in(part) if symbol.startswith(DEFINED))


def name_text(name: str) -> str:
    """Return a function's name, in quotes unless an identifier."""
    return name if name.isidentifier() else json.dumps(name)


def dtype_text(dtype: t.DType) -> str:
    """Return the name of an element type."""
    return dtype.name.lower()


def _attribute(name: str, value: Any) -> str:
    if isinstance(value, (int, float, str, bytes, type(None))) and value == value and abs(_number(value)) != np.inf:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return repr(tuple(value))
    raise UnsupportedError(f"the attribute {name} has no text form: {type(value).__name__}.")


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else 0


# Known values.


def literal(value: Any, type: Type) -> str:
    """Return a known value as text: numbers, or the bytes of a larger array."""
    match type:
        case TensorType():
            return _array_text(value, type.dtype)
        case SequenceType(element):
            return f"[{', '.join(literal(item, element) for item in value)}]"
        case OptionalType(element):
            return "none" if value is None else literal(value, element)
        case MapType(_, element):
            return f"{{{', '.join(f'{json.dumps(key)}: {literal(item, element)}' for key, item in value.items())}}}"
    raise UnsupportedError(f"{type} has no literal form.")


def _array_text(array: np.ndarray, dtype: t.DType) -> str:
    if dtype == t.STRING:
        words = [word.decode() if isinstance(word, bytes) else str(word) for word in array.ravel().tolist()]
        return f"words{json.dumps([list(array.shape), words])}"
    if array.size <= MOST_WRITTEN and t.kind(dtype) != "complex" and np.isfinite(array.astype(np.float64)).all():
        return _nested(array)
    return f'bytes"{base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}"'


def _nested(array: np.ndarray) -> str:
    if array.ndim:
        return f"[{', '.join(map(_nested, array))}]"
    number = array[()]
    return str(number) if number.dtype.kind in "biuf" else str(float(number))
