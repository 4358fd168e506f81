"""Simplification of functions to a fixed point: rules, known control flow, unread results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.core.dim import Dim, Size, is_long
from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.substitution import substitute_values
from sardonyx.core.eval.tensor import apply_any, function_input, get, sizes_of
from sardonyx.core.ir.graph import Function, Value, defined_by, function, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.transform.rewriting import Rewriter
from sardonyx.core.transform.simplifications import SIMPLIFICATIONS

ROUNDS = 12
"""Most passes over a function; a pass that changes nothing is the last."""


def simplify(function: Function, *, exact: bool = True) -> Function:
    """Return a simpler function with the same results, bit for bit unless ``exact`` is false.

    Args:
        function: The function to simplify, with all bodies and branches.
        exact: Leave out rules with reassociation or without regard for the sign of zero.
    """
    with tracing():
        for _ in range(ROUNDS):
            raise_if_cancelled()
            simpler = _Simplifier(function, exact).rewrite(function)
            if simpler is function:
                break
            function = simpler
    return function


class _Simplifier(Rewriter):
    """One pass over a function and the functions nested in it."""

    def __init__(self, inner: Function, exact: bool) -> None:
        super().__init__(inner, SIMPLIFICATIONS, exact=exact)
        self._results: dict[Value, dict[int, Value]] = {}
        self._used = _used_results(inner)
        self._mentioned = _mentioned_symbols(inner)

    def function(self, inner: Function) -> Function:
        """Return a body or a branch, simplified."""
        return _Simplifier(nested := super().function(inner), self._exact).rewrite(nested)

    def rebuild(self, value: Value) -> Value:
        """Return the simplified value over rewritten operands."""
        operands = tuple([self.new[operand] for operand in value.operands])
        if value.op == "get" and operands[0] in self._results:
            return self._results[operands[0]][value.params["index"]]
        if value.op == "bind":
            sizes, element = sizes_of(operands[0]), value.params["element"]
            size = None if sizes is None else sizes[element[0] if element else 0]
            if size is not None and not is_long(size):  # A long size was bound in order to have a name.
                self._sizes[value.params["symbol"]] = size
                return operands[0]
        if value.op in ("cond", "loop"):
            return self._control(value, operands) or super().rebuild(value)
        if value.op in NUMPY_RULES:
            return self._simplified(value, operands)
        return super().rebuild(value)

    def _simplified(self, value: Value, operands: tuple[Value, ...]) -> Value:
        params, type_ = {name: self.part(p) for name, p in value.params.items()}, self.part(value.type)
        simpler = self.first_match(value, operands, params, type_)
        if simpler is None:
            unchanged = operands == value.operands and all(params[k] is p for k, p in value.params.items())
            simpler = value if unchanged else apply_any(value.op, *operands, **params)
        if simpler.type != type_:
            return self.rebuild_with(value, operands, params)
        simpler.origin = simpler.origin or value.origin
        return simpler

    # Control flow.

    def _control(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        """Return the taken branch of a known condition, or control flow without unread results; None if unchanged."""
        if value.op == "cond":
            then, otherwise = value.params["then"], value.params["otherwise"]
            same = (then.inputs, then.results) == (otherwise.inputs, otherwise.results)
            if operands[0].is_constant or same:
                branch = then if same or bool(operands[0].known) else otherwise
                return self._inline_branch(value, branch, operands[1:])
            read = self._read_results(value)
            inputs = _read_inputs((then, otherwise), [read, read])
            if len(read) == len(value.params["results"]) and len(inputs) == len(then.inputs):
                return None
            params: dict[str, Any] = {
                "then": _narrow(then, inputs, read),
                "otherwise": _narrow(otherwise, inputs, read),
            }
            return self._record_narrow(value, (operands[0], *(operands[1 + i] for i in inputs)), params, read)
        return self._loop(value, operands)

    def _loop(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        body, carried = value.params["body"], value.params["carried"]
        live = _live_results(value, self._read_results(value))
        results = [0, *(1 + i for i in live)]
        state = [i for i in live if i < carried]
        captured = [i for i in _read_inputs((body,), [results]) if i >= 2 + carried]
        if len(live) == len(body.results) - 1 and len(captured) == len(body.inputs) - 2 - carried:
            return None
        inputs = [0, 1, *(2 + i for i in state), *captured]
        params = {"body": _narrow(body, inputs, results), "carried": len(state)}
        return self._record_narrow(value, tuple(operands[i] for i in inputs), params, live)

    def _read_results(self, value: Value) -> list[int]:
        """Return the indices of results that are read, or whose sizes define symbols that other values mention."""
        read, results = set(self._used.get(value, ())), value.params["results"]
        for symbol in self._mentioned.intersection(defined_by(value)):
            if not any(_is_size(symbol, results[i]) for i in read):
                read.update([i for i, type in enumerate(results) if _is_size(symbol, type)][:1])
        return sorted(read)

    def _inline_branch(self, value: Value, branch: Function, operands: Sequence[Value]) -> Value:
        """Replace the results of a condition by the results of the branch that is known to be taken."""
        arguments = dict(zip(branch.inputs, operands, strict=True))
        inside = set(branch.values).__contains__
        results = substitute_values(branch.results, arguments, self._sizes, level=self.level, inside=inside)
        for declared, result in zip(value.params["results"], results, strict=True):
            self._sizes.update(_defined_sizes(declared, result.type, value))
        self._results[value] = dict(enumerate(results))
        return value

    def _record_narrow(
        self, value: Value, operands: tuple[Value, ...], params: dict[str, Any], indices: list[int]
    ) -> Value:
        """Record control flow with some of its results."""
        types = tuple(value.params["results"][i] for i in indices)
        own = tuple(symbol for symbol in defined_by(value) if symbol in set(symbols_in(types)))
        full = {**params, "results": types, "symbols": own}
        narrow = type(value)(value.op, value.operands, full, TupleType(types), value.level)
        recorded = self.record(narrow, operands, {name: self.part(p) for name, p in full.items()})
        self._results[recorded] = {i: get(recorded, j) for j, i in enumerate(indices)}
        return recorded


def _used_results(inner: Function) -> dict[Value, set[int]]:
    """Return the indices of the results that are read, by primitive with several results."""
    used: dict[Value, set[int]] = {}
    for value in inner.values:
        if value.op == "get":
            used.setdefault(value.operands[0], set()).add(value.params["index"])
    return used


def _mentioned_symbols(inner: Function) -> set[str]:
    """Return the symbols in types and parameters of all values except ``get``, without those that a value defines."""
    symbols: set[str] = set()
    for value in inner.values:
        if value.op != "get":
            symbols.update(set(symbols_in((value.params, value.type))) - set(defined_by(value)))
    return symbols


def _is_size(symbol: str, type: Type) -> bool:
    return isinstance(type, TensorType) and Dim.symbol(symbol) in (type.shape or ())


def _read_inputs(functions: Sequence[Function], results: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices of inputs on which these results of any of the functions depend."""
    read: set[int] = set()
    for inner, indices in zip(functions, results, strict=True):
        narrow = function(inner.name, inner.inputs, [inner.results[i] for i in indices], inner.level)
        own = set(narrow.values)
        read.update(i for i, x in enumerate(inner.inputs) if x in own)
        free = {s for v in narrow.values for s in symbols_in((v.params, v.type))}
        read.update(i for i, x in enumerate(inner.inputs) if free & set(symbols_in(x.type)) and _defines(x.type, free))
    return sorted(read)


def _defines(type: Type, free: set[str]) -> bool:
    """Return True if an input's sizes define a symbol of the body."""
    return any(symbol.startswith("%") and symbol in free for symbol in symbols_in(type))


def _live_results(value: Value, read: list[int]) -> list[int]:
    """Return the results of a loop on which the read ones depend, across iterations."""
    body, carried = value.params["body"], value.params["carried"]
    live = set(read)
    while True:
        inputs = _read_inputs((body,), [[0, *(1 + i for i in sorted(live))]])
        more = {i - 2 for i in inputs if 2 <= i < 2 + carried} - live
        if not more:
            return sorted(live)
        live |= more


def _narrow(inner: Function, inputs: Sequence[int], results: Sequence[int]) -> Function:
    """Return the function with some of its inputs and results."""
    new = [function_input(inner.level, j, inner.inputs[i].type) for j, i in enumerate(inputs)]
    arguments = dict(zip([inner.inputs[i] for i in inputs], new, strict=True))
    roots = [inner.results[i] for i in results]
    rebuilt = substitute_values(roots, arguments, level=inner.level, inside=set(inner.values).__contains__)
    return function(inner.name, new, rebuilt, inner.level)


def _defined_sizes(declared: Type, actual: Type, value: Value) -> dict[str, Size]:
    """Return the sizes of symbols that a value defines, from the type of a replacement of one of its results."""
    own, sizes = set(defined_by(value)), {}
    if isinstance(declared, TensorType) and isinstance(actual, TensorType):
        for a, b in zip(declared.shape or (), actual.shape or (), strict=True):
            if isinstance(a, Dim) and a.atom is not None and a.atom.name in own:
                sizes[a.atom.name] = b
    return sizes
