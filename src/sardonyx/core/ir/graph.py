"""The Core graph: values and functions. Pure and hash-consed; built through :mod:`sardonyx.core.eval.tensor`.

A value is a primitive applied to values, with parameters; equal values are the same object, so that equality is
identity. A primitive with several results gives a tuple, from which ``get`` takes one. A function closes a piece of
graph over its inputs: the body of a ``call``, a ``cond`` or a ``loop``, or a whole model.

A symbol in a size is bound by who calls the function (a size of an input), or *defined* by a value at run time
(``bind``: the value of an element; ``host``: a size counted from data). What defines a symbol that a value speaks of
is among the value's dependencies, as its operands are.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import NeedsValueError, RuleError

CLOSED = -1
"""The level of a value that depends on no input."""

DEFINED = "%"
"""The first character of every symbol that a value defines."""


class Value:
    """A primitive applied. Immutable; equal ones are the same object.

    Attributes:
        op: The primitive's name (:data:`sardonyx.core.ir.primitives.PRIMITIVES`).
        operands: The values that it reads.
        params: Its parameters by name: numbers, texts, sizes, element types, functions, and tuples of them.
        type: Its type.
        level: The nesting of the innermost function whose inputs it depends on through its operands; ``CLOSED``
            without any: it is of constants and sizes alone, and can be computed wherever its symbols are known.
        definers: The values that define symbols which occur in its parameters or type.
        origin: The ONNX name that it carries, empty without one; no part of its identity.
        bound: The ``bind`` values that read its elements: alive as long as it is.
    """

    __slots__ = ("__weakref__", "bound", "definers", "level", "op", "operands", "origin", "params", "type")

    def __init__(
        self,
        op: str,
        operands: tuple[Value, ...],
        params: Mapping[str, Any],
        type: Type,
        level: int = CLOSED,
        definers: tuple[Value, ...] = (),
    ) -> None:
        self.op = op
        self.operands = operands
        self.params = params
        self.type = type
        self.level = level
        self.definers = definers
        self.origin = ""
        self.bound: tuple[Value, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether the value itself is known."""
        return self.op == "constant"

    @property
    def known(self) -> Any:
        """The value itself, of a constant: an array, a list for a sequence, None or a value for an optional.

        Raises:
            RuleError: It is no constant; ask ``is_constant`` first.
        """
        if self.op != "constant":
            raise RuleError(f"a value computed by {self.op} is not known while tracing.", where=self.origin)
        return self.params["value"]

    def __repr__(self) -> str:
        return f"<{self.op}: {self.type}>"


class Function:
    """A piece of graph with inputs and results; depends on nothing else but constants and symbols.

    Attributes:
        name: What it computes, for people: an operator's name, ``body``.
        inputs: ``input`` values, in order.
        results: What it returns, in order.
        level: The nesting of its inputs, deeper than that of the function around.
    """

    __slots__ = ("__weakref__", "_defined", "_free", "_order", "inputs", "level", "name", "results")

    def __init__(self, name: str, inputs: Sequence[Value], results: Sequence[Value], level: int) -> None:
        self.level = level
        self.name = name
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self._order: tuple[Value, ...] | None = None
        self._defined: frozenset[str] | None = None
        self._free: frozenset[str] | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that the results need, every one after what it depends on. Bodies are not entered.

        What defines a symbol outside of the function is not among them.
        """
        if self._order is None:
            self._order = tuple(topological(self.results, self.level))
        return self._order

    @property
    def free_symbols(self) -> frozenset[str]:
        """The symbols that its values speak of and none of them defines."""
        if self._free is None:
            spoken = set(symbols_in(tuple(value.type for value in self.inputs)))
            for value in self.values:
                spoken.update(symbols_in((value.params, value.type)))
            self._free = frozenset(spoken - self.defined_symbols)
        return self._free

    @property
    def defined_symbols(self) -> frozenset[str]:
        """The symbols that its values give their numbers; nobody outside knows them."""
        if self._defined is None:
            self._defined = frozenset(symbol for value in self.values for symbol in defined_by(value))
        return self._defined

    def __repr__(self) -> str:
        return f"<function {self.name}: {len(self.inputs)} inputs, {len(self.results)} results>"


def topological(roots: Iterable[Value], level: int = CLOSED) -> Iterator[Value]:
    """The roots and all that they depend on, every value after its dependencies. Does not recurse.

    Args:
        roots: Where to begin.
        level: What defines a symbol at an outer level is left out.
    """
    done: set[Value] = set()
    for root in roots:
        waiting = [(root, dependencies(root, level))] if root not in done else []
        while waiting:
            value, rest = waiting[-1]
            needed = next((other for other in rest if other not in done), None)
            if needed is None:
                waiting.pop()
                done.add(value)
                yield value
            else:
                waiting.append((needed, dependencies(needed, level)))


def dependencies(value: Value, level: int = CLOSED) -> Iterator[Value]:
    """The values that must be computed before this one, in a function of inputs at ``level``."""
    yield from value.operands
    for definer in value.definers:
        if definer.level >= level or definer.level == CLOSED:
            yield definer


def functions_of(value: Value) -> Iterator[Function]:
    """The functions among a value's parameters."""
    for param in value.params.values():
        if isinstance(param, Function):
            yield param


def bodies_of(value: Value) -> tuple[Function, ...]:
    """The body of a loop, or the branches of a choice: where the condition holds first."""
    params = value.params
    return (params["body"],) if value.op == "loop" else (params["then"], params["otherwise"])


class Scope:
    """The values that are made while a function is traced, apart from those made around it.

    Args:
        around: The scope of the function around; None for the outermost.
    """

    __slots__ = ("around", "level", "values")

    def __init__(self, around: Scope | None) -> None:
        self.around = around
        self.level: int = 0 if around is None else around.level + 1
        self.values: set[Value] = set()

    def add(self, value: Value) -> None:
        """Take in a value, unless it was made around or is of a function inside."""
        if value.level > self.level:
            return
        scope: Scope | None = self
        while scope is not None and scope.level >= value.level:
            if value in scope.values:
                return
            scope = scope.around
        self.values.add(value)


scope: ContextVar[Scope | None] = ContextVar("sardonyx_scope", default=None)
"""The scope of the function that is being traced."""


# Hash-consing.

V = TypeVar("V", bound=Value)

_values: weakref.WeakValueDictionary[tuple[Any, ...], Value] = weakref.WeakValueDictionary()
_functions: weakref.WeakValueDictionary[tuple[Any, ...], Function] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # Collecting garbage inside it may drop another entry.


def interned(
    make: type[V], op: str, operands: tuple[Value, ...], params: Mapping[str, Any], type: Type, level: int, key: Any
) -> V:
    """Return the value with these parts: one that exists, or a new one.

    Args:
        make: The class of a new one.
        op: See :class:`Value`.
        operands: See :class:`Value`.
        params: See :class:`Value`.
        type: See :class:`Value`.
        level: See :class:`Value`.
        key: What, besides ``op`` and ``operands``, tells it from others.
    """
    full = (op, operands, key)
    with _lock:
        found = _values.get(full)
        if found is None:
            found = _values[full] = make(
                op, operands, params, type, level, () if op == "constant" else definers_of((params, type))
            )
    noted(found)
    return found  # type: ignore[return-value]


def noted(value: Value) -> None:
    """Count a value among those of the function that is being traced."""
    if value.level != CLOSED and (inner := scope.get()) is not None:
        inner.add(value)


def function(name: str, inputs: Sequence[Value], results: Sequence[Value], level: int) -> Function:
    """Return the function with these parts: one that exists, or a new one."""
    key = (name, tuple(inputs), tuple(results), level)
    with _lock:
        found = _functions.get(key)
        if found is None:
            found = _functions[key] = Function(name, inputs, results, level)
    return found


# Symbols that values define.

_defining: weakref.WeakValueDictionary[str, Value] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def fresh_symbol() -> str:
    """A name that no other symbol has."""
    return f"{DEFINED}{next(_numbers)}"


def define(symbol: str, value: Value) -> None:
    """Record that ``value`` gives ``symbol`` its number at run time."""
    _defining[symbol] = value


def definer(symbol: str) -> Value | None:
    """The value that gives the symbol its number; None for a size of an input."""
    return _defining.get(symbol) if symbol.startswith(DEFINED) else None


def defined_by(value: Value) -> tuple[str, ...]:
    """The symbols that a value gives their numbers."""
    if value.op == "bind":
        return (value.params["symbol"],)
    return value.params["symbols"] if value.op in ("cond", "loop", "host") else ()


def symbols_in(part: Any) -> list[str]:
    """The symbols in sizes anywhere in a parameter or a type; of a function, those that it does not define."""
    found: list[str] = []
    _add_symbols(part, found)
    return found


def _add_symbols(part: Any, found: list[str]) -> None:
    # Asked of every value that is made; types are tuples, and most of what they hold are numbers.
    if isinstance(part, tuple):
        for inner in part:
            if not isinstance(inner, (int, str)):
                _add_symbols(inner, found)
    elif isinstance(part, Dim):
        found += part.symbols_in_order
    elif isinstance(part, Function):
        found += part.free_symbols
    elif not isinstance(part, _WITHOUT_SYMBOLS) and isinstance(part, Mapping):
        for inner in part.values():
            _add_symbols(inner, found)


_WITHOUT_SYMBOLS = (int, str, float, type(None), np.ndarray, Value)
"""The usual parameters in which there are none."""


def definers_of(parts: Any) -> tuple[Value, ...]:
    """The values that define symbols which occur in parameters or types."""
    return tuple({value: None for symbol in symbols_in(parts) if (value := definer(symbol)) is not None})


def require_tensor(value: Value) -> TensorType:
    """The type of a value that must be a tensor of known rank.

    Raises:
        RuleError: It is a sequence, an optional, a map or a tuple.
        NeedsValueError: Its rank is only known at run time.
    """
    if not isinstance(value.type, TensorType):
        raise RuleError(f"a tensor is needed, and {value.type} was given.", where=value.origin)
    if value.type.shape is None:
        raise NeedsValueError("a rank is only known at run time.", value=value, where=value.origin)
    return value.type
