"""Writing of Python source: statements in order, unique names, sizes as expressions, helpers and weights as used."""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.core.dim import Size, linear_symbol
from sardonyx.core.dim.polynomial import Atom
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType, TensorType
from sardonyx.errors import UnsupportedError
from sardonyx.export.torch import copied_functions
from sardonyx.export.torch.element_types import SPELLINGS

RESERVED = frozenset(
    {"self", "torch", "F", "math", "nn", "device", "range", "int", "bool", "float", "len", "list", "Path"}
)
"""Names that generated functions read."""

LONGEST_LITERAL = 16
"""Constants of more elements are buffers of the module."""

LONGEST_NAME = 60


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of the generated module.

    Attributes:
        path: The dotted name in the state.
        spelling: The Python expression that reads it inside of the module.
        shape: The shape.
        dtype: The element type in the model.
        trainable: True for a parameter.
    """

    path: str
    spelling: str
    shape: tuple[int, ...]
    dtype: DType
    trainable: bool


@dataclass
class Module:
    """The parts of a generated module that its statements need.

    Attributes:
        weights: Parameters and buffers by dotted name, in order.
        arrays: The numbers of the weights.
        helpers: Names of functions of :mod:`.copied_functions`.
        forms: Numbers of the operators by their form.
    """

    weights: dict[str, Weight] = field(default_factory=dict)
    arrays: dict[str, Any] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    forms: dict[str, int] = field(default_factory=dict)

    def add_weight(self, name: str, array: Any, dtype: DType, shape: Sequence[int], *, trainable: bool) -> Weight:
        """Add a parameter or buffer, and return it; its dotted name is derived from ``name``."""
        path = self._path(name)
        weight = Weight(path, _spelling(path), tuple(shape), dtype, trainable)
        self.weights[path], self.arrays[path] = weight, array
        return weight

    def _path(self, name: str) -> str:
        parts = [_identifier(part, digits=True) for part in re.split(r"[./]+", name) if part] or ["weight"]
        base, count = ".".join(parts), 1
        path = base
        while self._clashes(path):
            count += 1
            path = f"{base.replace('.', '_')}_{count}"
            path = path if not path[0].isdigit() else f"w_{path}"
        return path

    def _clashes(self, path: str) -> bool:
        if path in self.weights or path.split(".")[0] in _TAKEN or path.split(".")[0].isdigit():
            return True
        if any(part in _TAKEN for part in path.split(".")[1:]):
            return True
        return any(other.startswith(f"{path}.") or path.startswith(f"{other}.") for other in self.weights)


_TAKEN = frozenset({
    "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu",
    "cuda", "double", "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_extra_state",
    "get_parameter", "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers",
    "named_children", "named_modules", "named_parameters", "parameters", "register_backward_hook", "register_buffer",
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_module",
    "register_parameter", "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "state_dict", "to",
    "to_empty", "train", "training", "type", "xpu", "zero_grad",
})  # fmt: skip
"""Attributes of every ``nn.Module``."""


def _spelling(path: str) -> str:
    text = "self"
    for part in path.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    if text.endswith("]"):  # A weight whose last part is a number.
        head, _, last = text.rpartition("[")
        return f'getattr({head}, "{last[:-1]}")'
    return text


def _identifier(name: str, *, digits: bool = False) -> str:
    """Return a Python identifier derived from a name; a number stays a number if ``digits`` is set."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[-LONGEST_NAME:].strip("_")
    if digits and text.isdigit():
        return text
    if not text or text[0].isdigit():
        text = f"v_{text}" if text else "v"
    return f"{text}_" if keyword.iskeyword(text) or keyword.issoftkeyword(text) else text


class Source:
    """The statements of one generated function.

    Attributes:
        module: The module's parts.
        lines: The statements with their indentation.
        expressions: The Python expression of each value written so far.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.lines: list[str] = []
        self.expressions: dict[Value, Any] = {}
        self.names: dict[str, str] = {}
        self._sizes: dict[str, str] = {}
        self._used: set[str] = {*RESERVED, *vars(copied_functions)}
        self._depth = 2

    # Names and statements.

    def name(self, base: str) -> str:
        """Return a unique identifier derived from ``base``."""
        stem = _identifier(base)
        unique, count = stem, 1
        while unique in self._used:
            count += 1
            unique = f"{stem}_{count}"
        self._used.add(unique)
        return unique

    def line(self, text: str) -> None:
        """Write a statement."""
        self.lines.append("    " * self._depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write an indented block; values and sizes inside are unknown after it."""
        self.line(head)
        expressions, sizes, count = dict(self.expressions), dict(self._sizes), len(self.lines)
        self._depth += 1
        try:
            yield
            if len(self.lines) == count:
                self.line("pass")
        finally:
            self._depth -= 1
            self.expressions, self._sizes = expressions, sizes

    def assign(self, base: str, expression: str) -> str:
        """Write the assignment of an expression to a new name, and return the name."""
        name = self.name(base)
        self.line(f"{name} = {expression}")
        return name

    def helper(self, name: str) -> str:
        """Return the name of a helper, which the file then contains."""
        self.module.helpers.add(name)
        return name

    # Sizes.

    def bind(self, symbol: str, expression: str) -> None:
        """Bind a symbol of sizes to an expression, unless bound."""
        if symbol not in self._sizes:
            readable = symbol if not symbol.startswith("%") else f"size_{symbol[1:]}"
            self._sizes[symbol] = self.assign(readable, expression)

    def bind_sizes(self, type_: Any, expression: str) -> None:
        """Bind the symbols that are sizes of a value."""
        if not isinstance(type_, TensorType):
            return
        for axis, size in enumerate(type_.shape or ()):
            linear = None if isinstance(size, int) else linear_symbol(size)
            if linear is not None:
                symbol, factor, constant = linear
                text = f"{expression}.shape[{axis}]"
                text += f" {'-' if constant > 0 else '+'} {abs(constant)}" if constant else ""
                text = f"({text})" if constant and factor != 1 else text
                self.bind(symbol, f"{text} // {factor}" if factor != 1 else text)

    def size(self, size: Size) -> str:
        """Return a size as an expression.

        Raises:
            UnsupportedError: No input or value defines a symbol of the size.
        """
        if isinstance(size, int):
            return str(size)
        terms = []
        for _, atoms, factor in size.terms:
            parts = [self._atom(atom) for atom in atoms]
            if factor != 1 or not parts:
                parts.insert(0, str(factor))
            terms.append(" * ".join(parts))
        text = " + ".join(terms).replace("+ -1 * ", "- ").replace("+ -", "- ")
        return text or "0"

    def shape(self, sizes: Sequence[Size]) -> str:
        """Return sizes as a tuple."""
        return _tuple([self.size(size) for size in sizes])

    def _atom(self, atom: Atom) -> str:
        if atom.kind == "symbol":
            name = self._sizes.get(atom.name)
            if name is None:
                raise UnsupportedError(f"the size {atom.name} is not defined by any input or value.")
            return name
        args = [self.size(arg) for arg in atom.args]
        if atom.kind == "//":
            return f"({_factor(args[0])} // {_factor(args[1])})"
        function = self.helper("broadcast_size") if atom.kind == "broadcast" else f"torch.sym_{atom.kind}"
        text = args[0]
        for arg in args[1:]:
            text = f"{function}({text}, {arg})"
        return text

    # Constants.

    def literal(self, value: Value) -> str | None:
        """Return the number of a constant whose elements are all equal, as Python writes it; None for others."""
        known = value.known if value.is_constant else None
        if not isinstance(known, np.ndarray) or known.size != 1 or known.dtype.kind in "OcV":
            return None
        number = known.reshape(()).astype(np.float64 if t.is_float(_dtype(value)) else known.dtype).item()
        return spelled_number(number)

    def constant(self, value: Value) -> str:
        """Return the expression of a constant tensor: a call, or a buffer of the module for long ones."""
        known, dtype = value.known, _dtype(value)
        spelling = SPELLINGS[dtype]
        if dtype in (t.UINT64,):
            known = known.astype(np.int64)
        if known.size > LONGEST_LITERAL or known.dtype.kind in "cV":
            weight = self.module.add_weight(value.origin or "constant", known, dtype, known.shape, trainable=False)
            return weight.spelling
        plain = known.astype(np.float64) if t.is_float(dtype) else known
        if known.size and (known == known.reshape(-1)[0]).all():
            number = spelled_number(plain.reshape(-1)[0].item())
            return (
                f"torch.full({_tuple([str(size) for size in known.shape])}, {number}, dtype={spelling}, device=device)"
            )
        return f"torch.tensor({_nested(plain.tolist())}, dtype={spelling}, device=device)" + (
            "" if known.size else f".reshape({_tuple([str(size) for size in known.shape])})"
        )


_ASSIGNMENT = re.compile(r"( *)([A-Za-z_]\w*) = (?!\[\]$)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def without_unread(lines: Sequence[str], returned: str) -> list[str]:
    """Return statements without assignments to names that no later statement reads.

    Names are unique, and an assignment in a loop is read in any order: every statement outside counts as later.
    """
    statements = list(lines)
    while True:
        counts: dict[str, int] = {}
        for text in (*statements, returned):
            for name in _NAME.findall(text):
                counts[name] = counts.get(name, 0) + 1
        read = [
            text
            for text in statements
            if (match := _ASSIGNMENT.match(text)) is None
            or counts[match.group(2)] > 1
            or _is_only_one(statements, text)
        ]
        if len(read) == len(statements):
            return read
        statements = read


def _is_only_one(statements: Sequence[str], text: str) -> bool:
    """Return True if a statement is the only one of its block."""
    index = statements.index(text)
    return index > 0 and statements[index - 1].endswith(":")


def spelled_number(number: Any) -> str:
    """Return a number as Python writes it; infinities and NaN through ``math``."""
    if isinstance(number, float):
        if number != number:
            return "math.nan"
        if number in (float("inf"), float("-inf")):
            return "math.inf" if number > 0 else "-math.inf"
    return repr(number)


def _nested(items: Any) -> str:
    if isinstance(items, list):
        return f"[{', '.join(_nested(item) for item in items)}]"
    return spelled_number(items)


def _factor(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _dtype(value: Value) -> DType:
    return value.type.dtype  # type: ignore[union-attr]
