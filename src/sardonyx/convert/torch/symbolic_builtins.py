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
    them; ``float`` and ``int`` remain where a module has them as values.
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
            functions = {"len": length} if _has_types_as_values(module) else _BUILTINS
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


_NAME = re.compile(r"(?:int|float)\b(?![(.\w])")

_BEFORE_VALUES = ("=", "(", "{", ",", " is", " is not", " in")
"""Ends of the text before a type that may be a value."""


def _may_be_value(text: str, start: int) -> bool:
    """Return True if the name at a position may be a value; most names are annotations or arguments of isinstance."""
    before = text[text.rfind("\n", 0, start) + 1 : start].rstrip()
    if not before.endswith(_BEFORE_VALUES) or before.endswith(" ("):
        return before.endswith("in (")
    depth = 0
    for i in range(len(before) - 1, -1, -1):
        depth += (before[i] in ")]}") - (before[i] in "([{")
        if depth < 0:
            # The innermost open bracket: of ``dict[str, int]``, ``isinstance(x, int)``, or ``zeros(3, int)``.
            is_type = before[i] == "[" and before[i - 1 : i].isidentifier()
            return not is_type and not before[:i].endswith(_WITH_TYPES)
    return True


def _has_types_as_values(module: Any) -> bool:
    """Return True if a source has ``int`` or ``float`` as a value, which others compare by identity.

    Such values are element types (``dtype=int``), the types of ``type(x) is int``, and keys of tables.
    """
    file = str(getattr(module, "__file__", None) or "")
    return file.endswith(".py") and _has_types_as_values_in(file)


@functools.cache
def _has_types_as_values_in(file: str) -> bool:
    try:
        text = Path(file).read_text(encoding="utf-8")
        # Most modules have no such text, and are not parsed.
        is_likely = any(_may_be_value(text, match.start()) for match in _NAME.finditer(text))
        return is_likely and _has_type_as_value(ast.parse(text))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False


def _has_type_as_value(tree: ast.AST) -> bool:
    """Return True if ``int`` or ``float`` is neither called, nor an annotation, nor an argument of a known function."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            if node.id in ("int", "float") and isinstance(node.ctx, ast.Load):
                return True
            continue
        skipped: list[ast.AST | None] = []
        if isinstance(node, ast.Call):
            is_known = isinstance(node.func, ast.Name) and node.func.id in _WITH_TYPES
            skipped = [*node.args] if is_known else [node.func] if isinstance(node.func, ast.Name) else []
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            skipped = [node.returns]
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            skipped = [node.annotation]
        elif isinstance(node, ast.Subscript):
            skipped = [node.slice]  # ``list[int]``, ``Optional[float]``
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            skipped = [node.left, node.right]  # ``int | float``
        pending += [child for child in ast.iter_child_nodes(node) if child not in skipped]
    return False


_WITH_TYPES = ("isinstance", "issubclass", "map", "cast", "partial")
"""Functions that the replacements suit as arguments."""


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
