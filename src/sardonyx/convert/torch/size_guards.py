"""Conditions on sizes under which torch captured a program: the proof runs sizes outside of them.

torch follows a branch on sizes (``x.shape[0] > 3``) with the sizes of the examples and records the condition. Many
recorded conditions are assumptions of torch alone, and the model is right without them. A condition becomes a guard of
the model if the model differs from the source where the condition does not hold.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sympy
import torch

from sardonyx.convert.torch.guards import Guard
from sardonyx.convert.torch.operators.registry import Site, site, translation_of
from sardonyx.convert.torch.operators.sizes import of_expression
from sardonyx.convert.torch.sources import is_ours
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.errors import ConversionError

MOST_CONDITIONS = 12
"""Maximum number of conditions outside of which sizes are drawn, branches of the program first."""

MOST_OF_BRANCH = 3
"""Number of sizes to draw outside of a branch; the source may refuse some."""

MOST_OUTSIDE = 1 << 14
"""Largest size to draw for a condition."""

_COMPARISONS = {
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.Ge: "ge",
    sympy.Le: "le",
    sympy.Gt: "gt",
    sympy.Lt: "lt",
}

_FUNCTIONS = {
    "Add": "add",
    "Mul": "mul",
    "Min": "sym_min",
    "Max": "sym_max",
    "Mod": "mod",
    "PythonMod": "mod",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "IntTrueDiv": "truediv",
    "FloatTrueDiv": "truediv",
    "ToFloat": "sym_float",
    "TruncToInt": "trunc",
    "FloorToInt": "floor",
    "CeilToInt": "ceil",
    "RoundToInt": "round",
    "Pow": "pow",
    "PowByNatural": "pow",
    "FloatPow": "pow",
    "OpaqueUnaryFn_sqrt": "sym_sqrt",
}
"""Python's functions of sizes by torch's names in conditions."""

_INTERNAL = ("_", "fx", "utils", "export")
"""Begin of the parts of torch whose conditions are no branches of a program."""


@dataclass(frozen=True)
class SizeGuard:
    """A condition on open sizes.

    Attributes:
        condition: The condition over torch's symbols.
        label: The condition with its line.
        is_branch: True if a line outside of torch's internals asks for the condition.
    """

    condition: Any
    label: str
    is_branch: bool

    @property
    def symbols(self) -> list[Any]:
        """The sizes of the condition."""
        return sorted(self.condition.free_symbols, key=str)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the condition holds, or cannot be decided, for sizes by symbol."""
        known = {symbol: sympy.Integer(sizes[str(symbol)]) for symbol in self.symbols if str(symbol) in sizes}
        # torch's functions of sizes assert that divisors are positive.
        with contextlib.suppress(ArithmeticError, TypeError, AssertionError):
            return bool(self.condition.xreplace(known) != sympy.false)
        return True

    def text(self, table: Mapping[str, Size]) -> str:
        """Return the label with the names that the sizes have in a model."""
        return re.sub(r"\bs\d+\b", lambda match: str(table.get(match[0], match[0])), self.label)

    def guard(self, table: Mapping[str, Size]) -> Guard | None:
        """Return the guard of a model; None if it always holds.

        Args:
            table: The sizes of the model by torch's symbol.

        Raises:
            ConversionError: The condition has no form in a model.
        """
        name = _COMPARISONS.get(type(self.condition))
        function = translation_of(f"python.{name}.default")
        sides = [_value(side, dict(table)) for side in self.condition.args] if name else []
        if function is None or not sides or any(side is None for side in sides):
            raise ConversionError(f"a condition on sizes has no form in a model: {self.condition}", where=self.label)
        result = function(*sides)
        if isinstance(result, Tensor):
            return Guard(result, self.text(table))
        if not result:
            raise ConversionError("a condition on sizes fails for all inputs", where=self.label)
        return None


def _value(expression: Any, table: dict[str, Size]) -> Any:
    """Return an expression of torch as a size, or as a scalar that the model computes; None without such a form."""
    size = of_expression(expression, table)
    if size is not None or expression.is_Symbol:
        return size
    if expression.is_Float or expression.is_Rational:
        return float(expression)
    function = translation_of(f"python.{_FUNCTIONS.get(type(expression).__name__)}.default")
    values = [_value(argument, table) for argument in expression.args]
    if function is None or any(value is None for value in values):
        return None
    token = site.set(Site(None, ""))
    try:
        return functools.reduce(function, values) if len(values) > 1 else function(values[0])
    finally:
        site.reset(token)


def size_guards(exported: torch.export.ExportedProgram, names: Sequence[str]) -> list[SizeGuard]:
    """Return the conditions on the open sizes of a program's inputs, branches of the program first.

    Args:
        exported: The program.
        names: The names of the inputs.
    """
    sizes = [size for _, _, size in _input_sizes(exported, names)]
    symbols = set().union(*(size.node.expr.free_symbols for size in sizes)) if sizes else set()
    environments = {id(size.node.shape_env): size.node.shape_env for size in sizes if size.node.shape_env is not None}
    guards: dict[str, SizeGuard] = {}
    for environment in environments.values():
        for entry in environment.guards:
            condition = environment.replace(entry.expr)
            if isinstance(condition, sympy.logic.boolalg.BooleanAtom) or not condition.free_symbols <= symbols:
                continue
            origin = entry.sloc.maybe_user_loc or entry.sloc.framework_loc
            frame = entry.sloc.framework_loc
            is_branch = not _is_internal(getattr(frame, "filename", ""))
            guard = SizeGuard(condition, f"{condition} ({_line(origin)})", is_branch)
            if is_branch or str(condition) not in guards:
                guards[str(condition)] = guard
    for symbol in sorted(symbols, key=str):
        condition = symbol >= 2
        if not isinstance(condition, sympy.logic.boolalg.BooleanAtom):
            guards.setdefault(str(condition), SizeGuard(condition, str(condition), False))
    return sorted(guards.values(), key=lambda guard: (not guard.is_branch, guard.label != str(guard.condition)))


def sizes_outside(guards: Sequence[SizeGuard], base: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes by symbol, close to those of the examples, for each of which a condition does not hold."""
    result: list[dict[str, int]] = []
    for guard in guards[:MOST_CONDITIONS]:
        if guard.holds(base):
            outside = (sizes for sizes in _near(guard, base) if not guard.holds(sizes))
            result += itertools.islice(outside, MOST_OF_BRANCH if guard.is_branch else 1)
    return [sizes for i, sizes in enumerate(result) if sizes not in result[:i]]


def _near(guard: SizeGuard, base: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes that differ from the examples' in one size, the closest first."""
    numbers = [int(atom) + step for atom in guard.condition.atoms(sympy.Integer) for step in (-1, 0, 1)]
    for name in map(str, guard.symbols):
        size = base[name]
        near = [size + sign * step for step in range(1, 9) for sign in (1, -1)]
        others = {value for value in (*near, *numbers, 1, 2, 2 * size, size // 2) if 1 <= value <= MOST_OUTSIDE}
        for value in sorted(others - {size}, key=lambda value: abs(value - size)):
            yield {**base, name: value}


def needed_ties(
    exported: torch.export.ExportedProgram,
    names: Sequence[str],
    examples: Mapping[str, int],
    differing: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """Return sizes to take for equal, without which a model differs: symbols by the symbol of the first input's size.

    Only sizes that are equal in the examples are tied, of the same axis of several inputs: first ones, or any if these
    do not suffice, as the lengths of cached keys and values. None are tied if inputs with equal ones differ too.

    Args:
        exported: The program.
        names: The names of the inputs.
        examples: The open sizes of the examples by symbol.
        differing: The inputs at which the model differs from the source.
    """
    by_axis: dict[int, list[str]] = {}
    for _, axis, size in _input_sizes(exported, names):
        symbol = str(size.node.expr)
        if symbol in examples and symbol not in by_axis.setdefault(axis, []):
            by_axis[axis].append(symbol)
    pairs = {
        axis: [(a, b) for a, b in itertools.combinations(symbols, 2) if examples[a] == examples[b]]
        for axis, symbols in by_axis.items()
    }
    first = pairs.get(0, [])
    return _ties(exported, names, first, differing) or _ties(
        exported, names, [pair for some in pairs.values() for pair in some], differing
    )


def _ties(
    exported: torch.export.ExportedProgram,
    names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    differing: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """Return those of the pairs whose sizes differ in inputs, each second by its first; none if equal ones remain."""
    ties: dict[str, str] = {}
    for feeds in differing:
        sizes = sizes_of(exported, names, feeds)
        if sizes is None:
            return {}
        broken = {b: a for a, b in pairs if sizes.get(a) != sizes.get(b)}
        if not broken:
            return {}
        if not any(sizes[a] != sizes[b] for b, a in ties.items()):
            ties |= broken
    return {symbol: _root(symbol, ties) for symbol in ties}


def _root(symbol: str, ties: Mapping[str, str]) -> str:
    """Return the symbol that a tied one stands for at last."""
    while symbol in ties:
        symbol = ties[symbol]
    return symbol


def sizes_of(
    exported: torch.export.ExportedProgram, names: Sequence[str], inputs: Mapping[str, Any]
) -> dict[str, int] | None:
    """Return the open sizes by symbol that inputs have; None if one symbol has two sizes."""
    sizes: dict[str, int] = {}
    for name, axis, size in _input_sizes(exported, names):
        if name not in inputs or not size.node.expr.is_Symbol:
            continue
        number = int(inputs[name].shape[axis])
        if sizes.setdefault(str(size.node.expr), number) != number:
            return None
    return sizes


def _input_sizes(
    exported: torch.export.ExportedProgram, names: Sequence[str]
) -> Iterator[tuple[str, int, torch.SymInt]]:
    """Yield the open sizes of inputs: input, axis, size."""
    for node in exported.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" and node.name in names else None
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield node.name, axis, size


def _is_internal(file: str) -> bool:
    """Return True for a file of torch or of ours that computes shapes or records programs."""
    if is_ours(file):
        return not Path(file).name.startswith("script")
    path, folder = Path(file), Path(torch.__file__).parent
    return not file or (path.is_relative_to(folder) and str(path.relative_to(folder)).startswith(_INTERNAL))


def _line(frame: Any) -> str:
    """Return the place of a frame, ``file.py:12``."""
    name = getattr(frame, "filename", "")
    return f"{Path(name).name}:{frame.lineno}" if name else str(frame)[:80]
