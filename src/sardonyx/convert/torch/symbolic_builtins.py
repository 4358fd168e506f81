"""``len``, ``float`` and ``int`` of a tensor as symbolic numbers, in the modules of the user's program.

Python requires a number from ``__len__``, ``__float__`` and ``__int__``, so torch fixes the number, or refuses one that
depends on data.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from sardonyx.base.replaced_attributes import replaced

_FOREIGN = frozenset(("builtins", "numpy", "sardonyx", "torch", ""))
"""Packages whose modules keep Python's functions."""


@contextlib.contextmanager
def symbolic_builtins(program: torch.nn.Module) -> Iterator[None]:
    """Replace ``len``, ``float``, ``int`` and functions of ``math`` inside of the ``with`` statement.

    Functions of Python are replaced in the packages of a module's parts, in modules without names of their own for
    them; ``float`` and ``int`` remain where a module takes them for element types.
    """
    packages = {_package(owner) for part in program.modules() for owner in (type(part), part.forward)} - _FOREIGN
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and hasattr(module, "__dict__")
    ]
    changed: list[tuple[dict[str, Any], str]] = []
    try:
        for module in modules:
            functions = {"len": length} if _has_builtin_dtypes(module) else _BUILTINS
            for name in functions.keys() - vars(module).keys():
                vars(module)[name] = functions[name]
                changed.append((vars(module), name))
        with contextlib.ExitStack() as stack:
            for name in _FUNCTIONS:
                stack.enter_context(replaced(math, name, _symbolic(name)))
            for name in ("__lt__", "__le__", "__gt__", "__ge__"):
                stack.enter_context(replaced(torch.SymFloat, name, _with_finite(getattr(torch.SymFloat, name))))
            for kind in (torch.SymInt, torch.SymFloat, torch.SymBool):
                stack.enter_context(replaced(kind, "__format__", _text, is_new=True))
            stack.enter_context(replaced(torch.Tensor, "__format__", _text_of_tensor(torch.Tensor.__format__)))
            yield
    finally:
        for names, name in changed:
            names.pop(name, None)


_BUILTIN_DTYPE = re.compile(r"(?:dtype\s*=|\.(?:as)?type\(|\.to\()\s*(?:int|float)\b")


def _has_builtin_dtypes(module: Any) -> bool:
    """Return True if a source has ``int`` or ``float`` as an element type, which torch compares by identity."""
    file = str(getattr(module, "__file__", None) or "")
    return file.endswith(".py") and _has_builtin_dtypes_in(file)


@functools.cache
def _has_builtin_dtypes_in(file: str) -> bool:
    try:
        text = Path(file).read_text(encoding="utf-8")
        # Most modules have no such text, and are not parsed.
        return bool(_BUILTIN_DTYPE.search(text)) and any(map(_has_builtin_dtype, ast.walk(ast.parse(text))))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False


def _has_builtin_dtype(node: ast.AST) -> bool:
    """Return True for a call with ``int`` or ``float`` as an element type."""
    if not isinstance(node, ast.Call):
        return False
    values = [word.value for word in node.keywords if word.arg == "dtype"]
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "type", "astype"):
        values += node.args
    return any(isinstance(value, ast.Name) and value.id in ("int", "float") for value in values)


def _package(owner: Any) -> str:
    return str(getattr(owner, "__module__", "")).partition(".")[0]


def length(value: Any) -> Any:
    """Return the length of a value, a symbolic size for a tensor."""
    if isinstance(value, torch.Tensor) and value.dim() and type(value).__len__ is torch.Tensor.__len__:
        return value.shape[0]
    return builtins.len(value)


class _Number(type):
    """The type of replacements of ``float`` and ``int``, which are called and compared with types."""

    own: type
    symbolic: tuple[type, ...]
    convert: Callable[[Any], Any]

    def __call__(cls, *values: Any, **options: Any) -> Any:
        if len(values) == 1:
            value = values[0].item() if isinstance(values[0], torch.Tensor) else values[0]
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                return cls.convert(value)
            return cls.own(value)
        return cls.own(*values, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (cls.own, *cls.symbolic))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.own)


class SymbolicFloat(builtins.float, metaclass=_Number):
    """Python's ``float``, with a symbolic number for a tensor."""

    own, symbolic, convert = builtins.float, (torch.SymFloat,), torch.sym_float


class SymbolicInt(builtins.int, metaclass=_Number):
    """Python's ``int``, with a symbolic number for a tensor."""

    own, symbolic, convert = builtins.int, (torch.SymInt,), torch.sym_int


def _symbolic(name: str) -> Callable[..., Any]:
    """Return a function of ``math`` that has a symbolic result for a symbolic number or a tensor."""
    own, function = getattr(math, name), getattr(torch, name)

    def call(value: Any, *others: Any) -> Any:
        number = value.item() if isinstance(value, torch.Tensor) else value
        if others or not isinstance(number, (torch.SymInt, torch.SymFloat)):
            return own(number, *others)
        return function(torch.scalar_tensor(number, dtype=torch.float64)).item()

    return call


def _text(number: Any, specification: str) -> str:
    """Return the name of a symbolic number, in any format: programs print their progress."""
    return str(number)


def _text_of_tensor(own: Callable[[Any, str], str]) -> Callable[[Any, str], str]:
    """Return the formatting of tensors, in any format for those that torch traces."""

    def call(x: Any, specification: str) -> str:
        return str(x) if isinstance(x, FakeTensor) else own(x, specification)

    return call


def _with_finite(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a comparison in which an infinity is the largest number: torch evaluates none with infinities."""

    def call(number: Any, other: Any) -> Any:
        is_infinite = type(other) is builtins.float and abs(other) == math.inf
        return compare(number, math.copysign(sys.float_info.max, other) if is_infinite else other)

    return call


_BUILTINS: dict[str, Any] = {"len": length, "float": SymbolicFloat, "int": SymbolicInt}

_FUNCTIONS = (
    *("sqrt", "exp", "expm1", "log", "log1p", "log2", "log10"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("isnan", "isinf", "isfinite"),
)
"""Functions of ``math`` that are functions of torch by the same name."""
