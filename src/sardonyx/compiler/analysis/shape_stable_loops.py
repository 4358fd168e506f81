"""Shape stability: conditions on run-time sizes under which a loop's state keeps its sizes.

As far as expressions tell, a body may return a state of other sizes than it receives: e.g. a recurrence whose initial
state has one row, and whose later states have as many rows as an unknown batch. If the numbers are equal in a run, the
loop is native for this call: the body's sizes are equal to the sizes of the initial state in every iteration. If the
numbers differ, the interpreter repeats the body.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Dim, Size, equal, evaluate, substitute
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ShapeError


@dataclass(frozen=True)
class ShapeStability:
    """The conditions under which a loop's state keeps its sizes.

    Attributes:
        sizes: Under the conditions, the size that each symbol of the body and of the results is equal to.
        same: Pairs of sizes that must be equal.
        rows: Symbols in ``sizes`` that depend on iterations only; 0 if rows are collected in no iteration.
    """

    sizes: Mapping[str, Size]
    same: tuple[tuple[Size, Size], ...]
    rows: frozenset[str]

    def resolve(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Return the values of the symbols, or None if the state changes its sizes.

        Args:
            sizes: Values of the symbols of the enclosing graph.
        """
        try:
            if all(evaluate(a, sizes) == evaluate(b, sizes) for a, b in self.same):
                return {symbol: evaluate(size, sizes) for symbol, size in self.sizes.items()}
        except ShapeError:
            # The interpreter computes the call and reports the node.
            return None
        return None


_analyzed: weakref.WeakKeyDictionary[Value, ShapeStability | str] = weakref.WeakKeyDictionary()


def shape_stability(loop: Value) -> ShapeStability | None:
    """Return the conditions under which a loop's state keeps its sizes.

    The result is None if the sizes are proven stable, proven unstable, or not analyzable.
    """
    if loop not in _analyzed:
        _analyzed[loop] = _analyze(loop) or "nothing"
    stability = _analyzed[loop]
    return stability if isinstance(stability, ShapeStability) else None


def _analyze(loop: Value) -> ShapeStability | None:
    body, carried = loop.params["body"], loop.params["carried"]
    results = loop.params["results"]
    if body.defined_symbols or not all(isinstance(type, TensorType) for type in (*results, *_types(loop))):
        return None
    known: dict[str, Size] = {}
    same: list[tuple[Size, Size]] = []
    outer_symbols = {symbol for operand in loop.operands for size in shape_of(operand) for symbol in _symbols(size)}

    def unify(size: Size, target: Size) -> None:
        """Define a symbol of the loop as ``target``; require any other size to be equal to ``target``."""
        if size == target:
            return
        atom = size.atom if isinstance(size, Dim) else None
        if atom is not None and atom.kind == "symbol" and atom.name not in outer_symbols and atom.name not in known:
            known[atom.name] = target
        else:
            same.append((substitute(size, known), target))

    for slot in range(carried):
        shapes = [shape_of(v) for v in (loop.operands[2 + slot], body.inputs[2 + slot], body.results[1 + slot])]
        if len({len(shape) for shape in shapes}) > 1:
            return None
        for before, during in zip(*shapes[:2], strict=True):
            unify(during, before)
    for slot in range(carried):
        before, after = shape_of(loop.operands[2 + slot]), shape_of(body.results[1 + slot])
        same += [(substitute(a, known), b) for a, b in zip(after, before, strict=True)]
        for declared, b in zip(results[slot].shape or (), before, strict=True):
            unify(declared, b)
    of_state = frozenset(known)
    for row, stacked in zip(body.results[1 + carried :], results[carried:], strict=True):
        for declared, size in zip((stacked.shape or ())[1:], shape_of(row), strict=True):
            unify(declared, substitute(size, known))
    unproven = [(a, b) for a, b in same if a != b and not equal(a, b)]
    if not (known or unproven) or any(equal(a, b) is False for a, b in unproven):
        return None
    return ShapeStability(known, tuple(dict.fromkeys(unproven)), frozenset(known) - of_state)


def _types(loop: Value) -> list[object]:
    body = loop.params["body"]
    return [value.type for value in (*loop.operands, *body.inputs, *body.results)]


def _symbols(size: Size) -> frozenset[str]:
    return size.symbols() if isinstance(size, Dim) else frozenset()
