"""Slices that move with a loop: ``x[i:i+1]``, of which the size is 1 as long as ``i`` is inside of ``x``.

Exported models bind both ends of such a slice from data, so that its size, and all that is computed from it, is only
known in the iteration. Where the ends follow from the iteration's number, the slice becomes a ``gather``: its kernel
sets the fault flag where the number is not inside, and the interpreter then computes what the slice is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, dim_max, dim_min, simplify, substitute
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import Tensor, apply
from sardonyx.core.ir.graph import Function, Value, fresh_symbol, function


def without_moving_slices(body: Function) -> Function:
    """The body of a loop, with an element taken where a slice of one moves with the iteration's number."""
    inside = _Inside(body.inputs[0], fresh_symbol())
    for value in body.values:
        if value.op == "bind" and (size := inside.size(value.operands[0])) is not None:
            inside.ends[value.params["symbol"]] = size
    moving = {value: axis for value in body.values if value.op == "slice" and (axis := inside.axis(value)) is not None}
    if not moving:
        return body
    building = _Building({}, body.level, set(body.values).__contains__, inside, moving)
    made = function(body.name, body.inputs, building.values_of(body.results), body.level)
    # Sizes that still depend on where the slices are stay as they were.
    return body if inside.symbol in made.free_symbols or made.defined_symbols else made


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
    """Sizes in the body of a loop whose number is inside of what is sliced.

    Attributes:
        number: The iteration's number.
        symbol: Stands for it.
        ends: What symbols are that the body binds, by the iteration's number.
        more: The symbols that the number is less than, each with a symbol for how much more than the next number it is.
        least: The least number that it is less than; None for none.
    """

    number: Value
    symbol: str
    ends: dict[str, Size] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    least: int | None = None

    def size(self, value: Value) -> Size | None:
        """A tensor of one integer as a size; None where it is something else."""
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
        """What is counted from the end is chosen where a number is negative; the iteration's number never is."""
        if condition.op != "less":
            return None
        number, limit = map(self.size, condition.operands)
        is_least = number is not None and limit is not None and at_least(number, limit)
        return self.size(no) if is_least else None

    def axis(self, value: Value) -> int | None:
        """The axis along which a slice is the element at the iteration's number; None where it is another slice."""
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
        """A size where the number is inside of what is sliced."""
        number = Dim.symbol(self.symbol)
        inside = substitute(size, self.ends)
        inside = substitute(inside, {name: number + 1 + Dim.symbol(more) for name, more in self.more.items()})
        if self.least is not None:
            inside = simplify(inside, {self.symbol: (0, max(self.least - 1, 0))})
        return substitute(inside, {more: Dim.symbol(name) - number - 1 for name, more in self.more.items()})


class _Building(Substitution):
    """The body built again, its sizes as they are where the number is inside."""

    def __init__(
        self, values: Mapping[Value, Value], level: int, within: Callable[[Value], bool], inside: _Inside,
        moving: Mapping[Value, int],
    ) -> None:  # fmt: skip
        super().__init__(values, inside.ends, level, within)
        self._known = inside
        self._moving = moving

    def nested(self, values: Mapping[Value, Value], level: int, inside: Callable[[Value], bool]) -> Substitution:
        """What builds a function in the body."""
        return _Building(values, level, inside, self._known, self._moving)

    def part(self, part: object) -> object:
        """A parameter or a type."""
        if isinstance(part, Dim) and part.symbols() & self._known.ends.keys():
            return self._known.known(part)
        return super().part(part)

    def made(self, value: Value) -> Value:
        """The value built again of what its operands have become."""
        axis = self._moving.get(value)
        if axis is None:
            return super().made(value)
        x = self.new[value.operands[0]]
        others = [each for each in range(len(shape_of(x))) if each != axis]
        at = apply("reshape", self._known.number, shape=(1, 1))
        found = apply("gather", apply("permute", x, axes=(axis, *others)), at, batch=0)
        found = L.permute(found, [1 + others.index(each) if each != axis else 0 for each in range(len(others) + 1)])
        starts, limits, strides = (list(self.part(value.params[name])) for name in ("starts", "limits", "strides"))  # type: ignore[call-overload]
        starts[axis], limits[axis] = 0, 1
        found = apply("slice", found, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))
        found.origin = found.origin or value.origin
        return found
