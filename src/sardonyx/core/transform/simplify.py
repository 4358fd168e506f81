"""Functions made simpler by rules, results that nobody reads taken out, bodies and branches included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.base.cancellation import require_somebody
from sardonyx.core.dim import Dim, Size, is_long
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.substitution import Substitution, substituted
from sardonyx.core.eval.tensor import apply_any, function_input, get, sizes_of
from sardonyx.core.ir.graph import Function, Value, defined_by, function, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.transform.simplifications import simplified

ROUNDS = 12
"""Most passes over a function; one that changes nothing is the last."""


def simplify(function: Function, *, exact: bool = True) -> Function:
    """The function made simpler: the same results, with the same bits unless ``exact`` is false.

    Args:
        function: What to simplify.
        exact: Leave out rules that reassociate, or that tell zeros of different sign apart no longer.
    """
    with tracing():
        for _ in range(ROUNDS):
            require_somebody()
            simpler = _Simplifier(function, exact).simpler(function)
            if simpler is function:
                break
            function = simpler
    return function


class _Simplifier(Substitution):
    """One pass over a function."""

    def __init__(self, inner: Function, exact: bool) -> None:
        super().__init__({}, {}, inner.level, set(inner.values).__contains__)
        self._exact = exact
        self._taken: dict[Value, dict[int, Value]] = {}
        self._used = _used_results(inner)
        self._spoken = _spoken_symbols(inner)

    def simpler(self, inner: Function) -> Function:
        """The function of the simpler results."""
        return function(inner.name, inner.inputs, self.values_of(inner.results), inner.level)

    def function(self, inner: Function) -> Function:
        """A body or a branch, made simpler."""
        return _Simplifier(nested := super().function(inner), self._exact).simpler(nested)

    def made(self, value: Value) -> Value:
        """The value of what its operands have become, by the first rule that applies."""
        operands = tuple([self.new[operand] for operand in value.operands])
        if value.op == "get" and operands[0] in self._taken:
            return self._taken[operands[0]][value.params["index"]]
        if value.op == "bind":
            known, place = sizes_of(operands[0]), value.params["element"]
            size = None if known is None else known[place[0] if place else 0]
            if size is not None and not is_long(size):  # A size that is long has its name for that.
                self._sizes[value.params["symbol"]] = size
                return operands[0]
        if value.op in ("cond", "loop"):
            return self._control(value, operands) or super().made(value)
        if value.op in NUMPY_RULES:
            return self._computed(value, operands)
        return super().made(value)

    def _computed(self, value: Value, operands: tuple[Value, ...]) -> Value:
        params, type_ = {name: self.part(p) for name, p in value.params.items()}, self.part(value.type)
        found = simplified(value.op, type_, operands, params, self._exact)
        if found is None:
            unchanged = operands == value.operands and all(params[k] is p for k, p in value.params.items())
            found = value if unchanged else apply_any(value.op, *operands, **params)
        if found.type != type_:
            return super().made(value)
        found.origin = found.origin or value.origin
        return found  # type: ignore[no-any-return]

    # What calls functions.

    def _control(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        """A condition that is known, or control flow without what nobody reads; None where it stays as it is."""
        if value.op == "cond":
            then, otherwise = value.params["then"], value.params["otherwise"]
            same = (then.inputs, then.results) == (otherwise.inputs, otherwise.results)
            if operands[0].is_constant or same:
                chosen = then if same or bool(operands[0].known) else otherwise
                return self._in_place(value, chosen, operands[1:])
            kept = self._kept_results(value)
            inputs = _read_inputs((then, otherwise), [kept, kept])
            if len(kept) == len(value.params["results"]) and len(inputs) == len(then.inputs):
                return None
            params: dict[str, Any] = {
                "then": _narrowed(then, inputs, kept),
                "otherwise": _narrowed(otherwise, inputs, kept),
            }
            return self._narrower(value, (operands[0], *(operands[1 + i] for i in inputs)), params, kept)
        return self._loop(value, operands)

    def _loop(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        body, carried = value.params["body"], value.params["carried"]
        kept = _live_results(value, self._kept_results(value))
        results = [0, *(1 + i for i in kept)]
        state = [i for i in kept if i < carried]
        captured = [i for i in _read_inputs((body,), [results]) if i >= 2 + carried]
        if len(kept) == len(body.results) - 1 and len(captured) == len(body.inputs) - 2 - carried:
            return None
        inputs = [0, 1, *(2 + i for i in state), *captured]
        params = {"body": _narrowed(body, inputs, results), "carried": len(state)}
        return self._narrower(value, tuple(operands[i] for i in inputs), params, kept)

    def _kept_results(self, value: Value) -> list[int]:
        """The results that are read, and those whose sizes tell the symbols that other values speak of."""
        kept, results = set(self._used.get(value, ())), value.params["results"]
        for symbol in self._spoken.intersection(defined_by(value)):
            if not any(_is_size(symbol, results[i]) for i in kept):
                kept.update([i for i, type in enumerate(results) if _is_size(symbol, type)][:1])
        return sorted(kept)

    def _in_place(self, value: Value, chosen: Function, operands: Sequence[Value]) -> Value:
        """The results of a branch that is known to be taken."""
        moved = dict(zip(chosen.inputs, operands, strict=True))
        inside = set(chosen.values).__contains__
        found = substituted(chosen.results, moved, self._sizes, level=self.level, inside=inside)
        for declared, one in zip(value.params["results"], found, strict=True):
            self._sizes.update(_told_sizes(declared, one.type, value))
        self._taken[value] = dict(enumerate(found))
        return value

    def _narrower(self, value: Value, operands: tuple[Value, ...], params: dict[str, Any], kept: list[int]) -> Value:
        """Control flow with some of its results."""
        types = tuple(value.params["results"][i] for i in kept)
        own = tuple(symbol for symbol in defined_by(value) if symbol in set(symbols_in(types)))
        full = {**params, "results": types, "symbols": own}
        narrow = type(value)(value.op, value.operands, full, TupleType(types), value.level)
        made = self.recorded(narrow, operands, {name: self.part(p) for name, p in full.items()})
        self._taken[made] = {i: get(made, j) for j, i in enumerate(kept)}
        return made


def _used_results(inner: Function) -> dict[Value, set[int]]:
    """Which results of what has several are read."""
    found: dict[Value, set[int]] = {}
    for value in inner.values:
        if value.op == "get":
            found.setdefault(value.operands[0], set()).add(value.params["index"])
    return found


def _spoken_symbols(inner: Function) -> set[str]:
    """The symbols that values speak of, but for those that only take a result out."""
    found: set[str] = set()
    for value in inner.values:
        if value.op != "get":
            found.update(set(symbols_in((value.params, value.type))) - set(defined_by(value)))
    return found


def _is_size(symbol: str, type: Type) -> bool:
    return isinstance(type, TensorType) and Dim.symbol(symbol) in (type.shape or ())


def _read_inputs(functions: Sequence[Function], results: Sequence[Sequence[int]]) -> list[int]:
    """The positions of inputs that these results of any of the functions depend on."""
    read: set[int] = set()
    for inner, kept in zip(functions, results, strict=True):
        narrow = function(inner.name, inner.inputs, [inner.results[i] for i in kept], inner.level)
        own = set(narrow.values)
        read.update(i for i, x in enumerate(inner.inputs) if x in own)
        free = {s for v in narrow.values for s in symbols_in((v.params, v.type))}
        read.update(i for i, x in enumerate(inner.inputs) if free & set(symbols_in(x.type)) and _tells(x.type, free))
    return sorted(read)


def _tells(type: Type, free: set[str]) -> bool:
    """Whether an input is what gives a body's own symbol its number."""
    return any(symbol.startswith("%") and symbol in free for symbol in symbols_in(type))


def _live_results(value: Value, kept: list[int]) -> list[int]:
    """The results of a loop that those kept depend on from one iteration to the next."""
    body, carried = value.params["body"], value.params["carried"]
    live = set(kept)
    while True:
        read = _read_inputs((body,), [[0, *(1 + i for i in sorted(live))]])
        more = {i - 2 for i in read if 2 <= i < 2 + carried} - live
        if not more:
            return sorted(live)
        live |= more


def _narrowed(inner: Function, inputs: Sequence[int], results: Sequence[int]) -> Function:
    """The function with some of its inputs and results."""
    new = [function_input(inner.level, j, inner.inputs[i].type) for j, i in enumerate(inputs)]
    moved = dict(zip([inner.inputs[i] for i in inputs], new, strict=True))
    kept = [inner.results[i] for i in results]
    built = substituted(kept, moved, level=inner.level, inside=set(inner.values).__contains__)
    return function(inner.name, new, built, inner.level)


def _told_sizes(declared: Type, given: Type, value: Value) -> dict[str, Size]:
    """What the symbols that a value defined are, read off a result that takes the place of its own."""
    own, found = set(defined_by(value)), {}
    if isinstance(declared, TensorType) and isinstance(given, TensorType):
        for a, b in zip(declared.shape or (), given.shape or (), strict=True):
            if isinstance(a, Dim) and a.atom is not None and a.atom.name in own:
                found[a.atom.name] = b
    return found
