"""Replace slices ``x[i:i+1]`` in loops by a ``gather`` of element ``i``, for ``i`` inside ``x``.

Exported models bind both ends of such a slice from data, so that the sizes of the slice and of all values computed from
the slice are known only in the iteration. If the ends follow from the iteration number, the slice becomes a ``gather``,
whose size is 1: its kernel sets the fault flag if the number is out of range, and the interpreter then computes the
slice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, dim_max, dim_min, simplify, substitute
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import Tensor, apply
from sardonyx.core.ir.graph import Function, Value, fresh_symbol
from sardonyx.core.transform.rewriting import Match, Rewriter, RuleSet

LOOP_SLICES = RuleSet("replace loop slices")


def replace_loop_slices(inner: Function) -> Function:
    """Return the function with slices at the iteration number replaced by elements in the bodies of its loops.

    Loops inside of these bodies are left unchanged.
    """
    return LOOP_SLICES.apply(inner) if any(value.op == "loop" for value in inner.values) else inner


@LOOP_SLICES.rule("loop")
def loop_of_elements(m: Match, *operands: Value, **params: Any) -> Value | None:
    """A slice ``x[i:i+1]`` in a loop is the element ``x[i]``."""
    body = replace_slices(params["body"])
    return None if body is params["body"] else m.rewriter.record(m.value, operands, {**params, "body": body})


def replace_slices(body: Function) -> Function:
    """Return the body of a loop with slices at the iteration number replaced by elements."""
    inside = _Inside(body.inputs[0], fresh_symbol())
    for value in body.values:
        if value.op == "bind" and (size := inside.size(value.operands[0])) is not None:
            inside.ends[value.params["symbol"]] = size
    axes = {value: axis for value in body.values if value.op == "slice" and (axis := inside.axis(value)) is not None}
    if not axes:
        return body
    rewritten = _ElementRewriter(body, inside, axes).rewrite(body)
    # Sizes that still depend on the iteration number cannot be planned before the loop.
    return body if inside.symbol in rewritten.free_symbols or rewritten.defined_symbols else rewritten


_ARITHMETIC: Mapping[str, Callable[..., Size]] = {
    "reshape": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": dim_max,
    "min": dim_min,
}


@dataclass
class _Inside:
    """Sizes in the body of a loop, for an iteration number inside the sliced axes.

    Attributes:
        number: The iteration number.
        symbol: The symbol for the number.
        ends: Sizes of the symbols that the body binds, as functions of the number.
        more: The symbolic extents above the number, each with a symbol for its excess over the next number.
        least: The smallest constant extent; None without one.
    """

    number: Value
    symbol: str
    ends: dict[str, Size] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    least: int | None = None

    def size(self, value: Value) -> Size | None:
        """Return a tensor of one integer as a size; None for other tensors."""
        if value is self.number:
            return Dim.symbol(self.symbol)
        if value.is_constant:
            known = value.known
            return (
                int(known.item()) if isinstance(value, Tensor) and known.size == 1 and known.dtype.kind == "i" else None
            )
        if value.op == "dims":
            sizes: tuple[Size, ...] = value.params["sizes"]
            return sizes[0] if len(sizes) == 1 else None
        if value.op == "select":
            return self._chosen(*value.operands)
        if value.op not in _ARITHMETIC:
            return None
        operands = [self.size(operand) for operand in value.operands]
        return None if any(operand is None for operand in operands) else _ARITHMETIC[value.op](*operands)

    def _chosen(self, condition: Value, yes: Value, no: Value) -> Size | None:
        """Return the size for a non-negative number; the other branch counts a negative index from the end."""
        if condition.op != "less":
            return None
        number, limit = map(self.size, condition.operands)
        is_least = number is not None and limit is not None and at_least(number, limit)
        return self.size(no) if is_least else None

    def axis(self, value: Value) -> int | None:
        """Return the axis along which a slice is the element at the iteration number; None for other slices."""
        params = value.params
        moving = [
            axis for axis, (start, limit) in enumerate(zip(params["starts"], params["limits"], strict=True))
            if any(isinstance(end, Dim) and end.symbols() & self.ends.keys() for end in (start, limit))
        ]  # fmt: skip
        if len(moving) != 1:
            return None
        (axis,) = moving
        extent = shape_of(value.operands[0])[axis]
        before = dict(self.more), self.least
        if isinstance(extent, int):
            self.least = extent if self.least is None else min(extent, self.least)
        elif extent.atom is not None and extent.atom.kind == "symbol":
            self.more.setdefault(extent.atom.name, fresh_symbol())
        start, limit = (self.known(params[name][axis]) for name in ("starts", "limits"))
        if start == Dim.symbol(self.symbol) and limit == start + 1 and params["strides"][axis] == 1:
            return axis
        self.more, self.least = before
        return None

    def known(self, size: Size) -> Size:
        """Return a size for a number inside the sliced axes."""
        number = Dim.symbol(self.symbol)
        inside = substitute(size, self.ends)
        inside = substitute(inside, {name: number + 1 + Dim.symbol(more) for name, more in self.more.items()})
        if self.least is not None:
            inside = simplify(inside, {self.symbol: (0, max(self.least - 1, 0))})
        return substitute(inside, {more: Dim.symbol(name) - number - 1 for name, more in self.more.items()})


ELEMENTS = RuleSet("loop slices")


class _ElementRewriter(Rewriter):
    """Rewriter of a loop body, whose sizes hold for an iteration number inside the sliced axes."""

    def __init__(self, body: Function, inside: _Inside, axes: Mapping[Value, int]) -> None:
        super().__init__(body, ELEMENTS, (inside, axes), sizes=inside.ends)
        self._bounds = inside

    def nested(self, values: Mapping[Value, Value], level: int, inside: Callable[[Value], bool]) -> Substitution:
        """Return the rewriter of a function nested in the body."""
        rewriter = copy.copy(self)
        Substitution.__init__(rewriter, values, self._bounds.ends, level, inside)
        return rewriter

    def part(self, part: object) -> object:
        """Return a parameter or a type with its sizes inside the sliced axes."""
        if isinstance(part, Dim) and part.symbols() & self._bounds.ends.keys():
            return self._bounds.known(part)
        return super().part(part)


@ELEMENTS.rule("slice")
def element(
    m: Match, x: Tensor, *, starts: Sequence[Size], limits: Sequence[Size], strides: Sequence[int]
) -> Value | None:
    """``x[i:i+1]`` is ``x[i]``, gathered."""
    inside, axes = m.context
    axis = axes.get(m.value)
    if axis is None:
        return None
    others = [other for other in range(len(shape_of(x))) if other != axis]
    index = apply("reshape", inside.number, shape=(1, 1))
    row = apply("gather", apply("permute", x, axes=(axis, *others)), index, batch=0)
    row = L.permute(row, [1 + others.index(other) if other != axis else 0 for other in range(len(others) + 1)])
    first, last = list(starts), list(limits)
    first[axis], last[axis] = 0, 1
    return apply("slice", row, starts=tuple(first), limits=tuple(last), strides=tuple(strides))
