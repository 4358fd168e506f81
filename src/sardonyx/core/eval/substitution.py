"""Values and functions built again, with other values in place of some and sizes in place of symbols.

What is built again defines symbols of its own: two copies of a ``bind`` or a ``loop`` never share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import bind, function_input, level_of
from sardonyx.core.ir.graph import (
    Function,
    Value,
    define,
    defined_by,
    fresh_symbol,
    function,
    interned,
    noted,
    symbols_in,
)
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType


def _everything(value: Value) -> bool:
    return True


def substituted(
    roots: Sequence[Value],
    values: Mapping[Value, Value],
    sizes: Mapping[str, Size] | None = None,
    *,
    level: int,
    inside: Callable[[Value], bool] = _everything,
) -> list[Value]:
    """The roots with others in place of some values, and sizes in place of symbols.

    Args:
        roots: What to build again.
        values: By the value that each one replaces; of equal types but for the symbols replaced.
        sizes: By symbol.
        level: The nesting of the function that the results are in.
        inside: Whether a value may be built again; others stay as they are.
    """
    return Substitution(values, sizes or {}, level, inside).values_of(roots)


class Substitution:
    """Values and functions built again.

    Args:
        values: By the value that each one replaces.
        sizes: By symbol.
        level: The nesting of the function that the results are in.
        inside: Whether a value may be built again.
    """

    def __init__(
        self, values: Mapping[Value, Value], sizes: Mapping[str, Size], level: int, inside: Callable[[Value], bool]
    ) -> None:
        self.new = dict(values)
        self._sizes = dict(sizes)
        self._given = frozenset(sizes)
        self.level = level
        self._inside = inside

    def values_of(self, roots: Sequence[Value]) -> list[Value]:
        """The roots, built again; every value after what it depends on, without recursion."""
        waiting = [(root, False) for root in reversed(roots)]
        while waiting:
            value, ready = waiting.pop()
            if value in self.new:
                continue
            definers = [v for v in value.definers if not self._given.issuperset(defined_by(v))]
            needed = [v for v in (*value.operands, *definers) if v not in self.new]
            if not self._inside(value) or value.op in ("constant", "input"):
                self.new[value] = value
            elif needed and not ready:
                waiting.append((value, True))
                waiting.extend((other, False) for other in reversed(needed))
            else:
                self.new[value] = self.made(value)
        return [self.new[root] for root in roots]

    def made(self, value: Value) -> Value:
        """The value built again of what its operands have become."""
        operands = tuple([self.new[operand] for operand in value.operands])
        params = {name: self.part(param) for name, param in value.params.items()}
        if operands == value.operands and all(params[name] is param for name, param in value.params.items()):
            noted(value)
            return value
        made = self._bound(value, operands[0]) if value.op == "bind" else self.recorded(value, operands, params)
        made.origin = made.origin or value.origin
        return made

    def _bound(self, value: Value, operand: Value) -> Value:
        size = bind(operand, value.params["element"])  # type: ignore[arg-type]
        self._sizes[value.params["symbol"]] = size
        return next(other for other in operand.bound if other.params["symbol"] in size.symbols())

    def recorded(self, value: Value, operands: tuple[Value, ...], params: dict[str, Any]) -> Value:
        """The primitive recorded of other operands, with symbols of its own where it defines some."""
        own = defined_by(value)
        if own:
            names = tuple(fresh_symbol() for _ in own)
            self._sizes.update(zip(own, map(Dim.symbol, names), strict=True))
            # Nothing else speaks of them, but for the type.
            own_types = {"results": self.part(value.params["results"])} if "results" in params else {}
            params = {**params, **own_types, "symbols": names}
        type_ = self.part(value.type)
        level = level_of(operands)
        made = interned(type(value), value.op, operands, params, type_, level, tuple(params.values()))
        for symbol in defined_by(made):
            define(symbol, made)
        return made

    def part(self, part: Any) -> Any:
        """A parameter or a type, with sizes in place of symbols and functions at their level."""
        if isinstance(part, Function):
            return self.function(part)
        if not self._sizes or not any(symbol in self._sizes for symbol in symbols_in(part)):
            return part
        if isinstance(part, Dim):
            return part.substitute(self._sizes)
        inner = [self.part(each) for each in part]
        named = isinstance(part, (TensorType, SequenceType, OptionalType, MapType, TupleType))
        return type(part)(*inner) if named else tuple(inner)

    def nested(self, values: Mapping[Value, Value], level: int, inside: Callable[[Value], bool]) -> Substitution:
        """What builds a function that lies in the one at hand."""
        return Substitution(values, self._sizes, level, inside)

    def function(self, inner: Function) -> Function:
        """A function that lies in the one at hand."""
        if inner.level > self.level and not inner.free_symbols & self._sizes.keys():
            return inner
        level = max(inner.level, self.level + 1)
        inputs = [function_input(level, i, self.part(value.type)) for i, value in enumerate(inner.inputs)]
        own = set(inner.values)
        body = self.nested(dict(zip(inner.inputs, inputs, strict=True)), level, own.__contains__)
        return function(inner.name, inputs, body.values_of(inner.results), level)
