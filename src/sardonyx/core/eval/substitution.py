"""Values and functions rebuilt with replaced values and sizes.

Rebuilt primitives define symbols of their own: two copies of a ``bind`` or a ``loop`` never share one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import bind, function_input, level_of
from sardonyx.core.ir.graph import (
    Function,
    Value,
    add_to_scope,
    define,
    defined_by,
    fresh_symbol,
    function,
    intern_value,
    symbols_in,
)
from sardonyx.core.ir.types import MapType, OptionalType, SequenceType, TensorType, TupleType


def _everything(value: Value) -> bool:
    return True


def substitute_values(
    roots: Sequence[Value],
    values: Mapping[Value, Value],
    sizes: Mapping[str, Size] | None = None,
    *,
    level: int,
    inside: Callable[[Value], bool] = _everything,
) -> list[Value]:
    """Return the roots with some values and symbols replaced.

    Args:
        roots: The values to rebuild.
        values: Replacements by replaced value; types are equal except for replaced symbols.
        sizes: Replacements by symbol.
        level: Nesting level of the function that the results belong to.
        inside: Returns True if a value may be rebuilt; other values are kept.
    """
    return Substitution(values, sizes or {}, level, inside).rebuild_all(roots)


class Substitution:
    """Replacement of values and symbols in the values that depend on them.

    Args:
        values: Replacements by replaced value.
        sizes: Replacements by symbol.
        level: Nesting level of the function that the results belong to.
        inside: Returns True if a value may be rebuilt.

    Attributes:
        new: The rebuilt values, by original value.
    """

    def __init__(
        self, values: Mapping[Value, Value], sizes: Mapping[str, Size], level: int, inside: Callable[[Value], bool]
    ) -> None:
        self.new = dict(values)
        self._sizes = dict(sizes)
        self._replaced_symbols = frozenset(sizes)
        self.level = level
        self._inside = inside

    def rebuild_all(self, roots: Sequence[Value]) -> list[Value]:
        """Return the rebuilt roots; every value is rebuilt after its dependencies, without recursion."""
        waiting = [(root, False) for root in reversed(roots)]
        while waiting:
            value, ready = waiting.pop()
            if value in self.new:
                continue
            definers = [v for v in value.definers if not self._replaced_symbols.issuperset(defined_by(v))]
            needed = [v for v in (*value.operands, *definers) if v not in self.new]
            if not self._inside(value) or value.op in ("constant", "input"):
                self.new[value] = value
            elif needed and not ready:
                waiting.append((value, True))
                waiting.extend((other, False) for other in reversed(needed))
            else:
                self.new[value] = self.rebuild(value)
        return [self.new[root] for root in roots]

    def rebuild(self, value: Value) -> Value:
        """Return the value over its rebuilt operands."""
        operands = tuple([self.new[operand] for operand in value.operands])
        return self.rebuild_with(value, operands, {name: self.part(param) for name, param in value.params.items()})

    def rebuild_with(self, value: Value, operands: tuple[Value, ...], params: dict[str, Any]) -> Value:
        """Return the value with other operands and parameters; the value itself if nothing differs."""
        if operands == value.operands and all(params[name] is param for name, param in value.params.items()):
            add_to_scope(value)
            return value
        rebuilt = self._rebind(value, operands[0]) if value.op == "bind" else self.record(value, operands, params)
        rebuilt.origin = rebuilt.origin or value.origin
        return rebuilt

    def _rebind(self, value: Value, operand: Value) -> Value:
        size = bind(operand, value.params["element"])  # type: ignore[arg-type]
        self._sizes[value.params["symbol"]] = size
        return next(other for other in operand.bound if other.params["symbol"] in size.symbols())

    def record(self, value: Value, operands: tuple[Value, ...], params: dict[str, Any]) -> Value:
        """Record the primitive over other operands, with fresh symbols for the defined ones."""
        own = defined_by(value)
        if own:
            names = tuple(fresh_symbol() for _ in own)
            self._sizes.update(zip(own, map(Dim.symbol, names), strict=True))
            # Only the type of the result mentions these symbols.
            own_types = {"results": self.part(value.params["results"])} if "results" in params else {}
            params = {**params, **own_types, "symbols": names}
        type_ = self.part(value.type)
        level = level_of(operands)
        recorded = intern_value(type(value), value.op, operands, params, type_, level, tuple(params.values()))
        for symbol in defined_by(recorded):
            define(symbol, recorded)
        return recorded

    def part(self, part: Any) -> Any:
        """Return a parameter or type with symbols replaced, and functions at the level of the results."""
        if isinstance(part, Function):
            return self.function(part)
        if not self._sizes or not any(symbol in self._sizes for symbol in symbols_in(part)):
            return part
        if isinstance(part, Dim):
            return part.substitute(self._sizes)
        inner = [self.part(item) for item in part]
        is_type = isinstance(part, (TensorType, SequenceType, OptionalType, MapType, TupleType))
        return type(part)(*inner) if is_type else tuple(inner)

    def nested(self, values: Mapping[Value, Value], level: int, inside: Callable[[Value], bool]) -> Substitution:
        """Return the substitution for a function nested in the current one."""
        return Substitution(values, self._sizes, level, inside)

    def function(self, inner: Function) -> Function:
        """Return a nested function, rebuilt."""
        if inner.level > self.level and not inner.free_symbols & self._sizes.keys():
            return inner
        level = max(inner.level, self.level + 1)
        inputs = [function_input(level, i, self.part(value.type)) for i, value in enumerate(inner.inputs)]
        own = set(inner.values)
        body = self.nested(dict(zip(inner.inputs, inputs, strict=True)), level, own.__contains__)
        return function(inner.name, inputs, body.rebuild_all(inner.results), level, inner.node)
