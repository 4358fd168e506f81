"""Loops of which only the sizes met in a run tell that their state keeps its sizes.

A body may give its state other sizes than it takes, as far as expressions tell (a recurrence whose initial state has
one row, and whose later ones have as many as a batch of which nothing is known). Where the numbers are the same, the
loop is native for this call: the body's own sizes are those of the initial state, and stay so. Where they are not, the
interpreter repeats the body.
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
class Settling:
    """What must hold for a loop's state to keep its sizes.

    Attributes:
        sizes: The sizes that symbols of the body and of the results then stand for.
        same: Pairs of sizes that must be equal.
        rows: The symbols among those that only iterations tell: of what is collected in none, they are 0.
    """

    sizes: Mapping[str, Size]
    same: tuple[tuple[Size, Size], ...]
    rows: frozenset[str]

    def settled(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """The numbers of its symbols; None where the state changes its sizes.

        Args:
            sizes: Numbers for the symbols around.
        """
        try:
            if all(evaluate(a, sizes) == evaluate(b, sizes) for a, b in self.same):
                return {symbol: evaluate(size, sizes) for symbol, size in self.sizes.items()}
        except ShapeError:
            # The interpreter says where.
            return None
        return None


_found: weakref.WeakKeyDictionary[Value, Settling | str] = weakref.WeakKeyDictionary()


def settling(loop: Value) -> Settling | None:
    """What must hold for a loop's state to keep its sizes; None where it surely does, surely not, or cannot be told."""
    if loop not in _found:
        _found[loop] = _settling(loop) or "nothing"
    found = _found[loop]
    return found if isinstance(found, Settling) else None


def _settling(loop: Value) -> Settling | None:
    body, carried = loop.params["body"], loop.params["carried"]
    results = loop.params["results"]
    if body.defined_symbols or not all(isinstance(type, TensorType) for type in (*results, *_types(loop))):
        return None
    known: dict[str, Size] = {}
    same: list[tuple[Size, Size]] = []
    around = {symbol for operand in loop.operands for size in shape_of(operand) for symbol in _symbols(size)}

    def stands_for(size: Size, meant: Size) -> None:
        """A symbol of the loop's own stands for a size; any other size must be equal to it."""
        if size == meant:
            return
        atom = size.atom if isinstance(size, Dim) else None
        if atom is not None and atom.kind == "symbol" and atom.name not in around and atom.name not in known:
            known[atom.name] = meant
        else:
            same.append((substitute(size, known), meant))

    for slot in range(carried):
        shapes = [shape_of(v) for v in (loop.operands[2 + slot], body.inputs[2 + slot], body.results[1 + slot])]
        if len({len(shape) for shape in shapes}) > 1:
            return None
        for before, during in zip(*shapes[:2], strict=True):
            stands_for(during, before)
    for slot in range(carried):
        before, after = shape_of(loop.operands[2 + slot]), shape_of(body.results[1 + slot])
        same += [(substitute(a, known), b) for a, b in zip(after, before, strict=True)]
        for declared, b in zip(results[slot].shape or (), before, strict=True):
            stands_for(declared, b)
    of_state = frozenset(known)
    for row, stacked in zip(body.results[1 + carried :], results[carried:], strict=True):
        for declared, size in zip((stacked.shape or ())[1:], shape_of(row), strict=True):
            stands_for(declared, substitute(size, known))
    open_ones = [(a, b) for a, b in same if a != b and not equal(a, b)]
    if not (known or open_ones) or any(equal(a, b) is False for a, b in open_ones):
        return None
    return Settling(known, tuple(dict.fromkeys(open_ones)), frozenset(known) - of_state)


def _types(loop: Value) -> list[object]:
    body = loop.params["body"]
    return [value.type for value in (*loop.operands, *body.inputs, *body.results)]


def _symbols(size: Size) -> frozenset[str]:
    return size.symbols() if isinstance(size, Dim) else frozenset()
