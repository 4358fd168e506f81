"""The Core graph: values and functions. Pure and hash-consed.

Values are created by :mod:`sardonyx.core.eval.tensor`. A value is a primitive applied to values, with parameters;
equal values are the same object, so that equality is identity. A primitive with several results gives a tuple, whose
elements ``get`` extracts. A function closes a piece of graph over its inputs: the body of a ``call``, a ``cond`` or a
``loop``, or a whole model.

A symbol in a size is bound by the caller of the function (a size of an input), or *defined* by a value at run time
(``bind``: the value of an element; ``host``: a data-dependent size). The definers of the symbols in a value's
parameters and type are among the value's dependencies, as its operands are.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sardonyx.core.dim import Dim, Size
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import NeedsValueError, RuleError

CLOSED = -1
"""The level of a value that depends on no input."""

DEFINED = "%"
"""The first character of every symbol that a value defines."""


class Value:
    """A primitive applied to operands. Immutable; equal values are the same object.

    Attributes:
        op: The primitive's name (:data:`sardonyx.core.ir.primitives.PRIMITIVES`).
        operands: The values read.
        params: Parameters by name: numbers, texts, sizes, element types, functions, and tuples of these.
        type: Type of the result.
        level: The nesting of the innermost function on whose inputs the value depends through its operands; ``CLOSED``
            without any: the value depends on constants and sizes alone, and can be computed wherever its symbols are
            known.
        definers: The values that define symbols in the parameters or type.
        origin: The ONNX name, empty without one; not part of the identity.
        bound: The ``bind`` values that read elements of this value; this reference keeps them alive.
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
        """True if the value is known."""
        return self.op == "constant"

    @property
    def known(self) -> Any:
        """The value of a constant: an array, a list for a sequence, None or a value for an optional.

        Raises:
            RuleError: The value is not a constant; check ``is_constant`` first.
        """
        if self.op != "constant":
            raise RuleError(f"the value of {self.op} is not known while tracing.", where=self.origin)
        return self.params["value"]

    def __repr__(self) -> str:
        return f"<{self.op}: {self.type}>"


@dataclass(frozen=True)
class NodeForm:
    """The ONNX node that a call of a function equals; export writes the node instead of the function's values.

    Attributes:
        name: The operator.
        domain: Its domain; empty for ``ai.onnx``.
        version: Version of the domain.
        present: False for each omitted input.
        attributes: Names and values, in order.
    """

    name: str
    domain: str
    version: int
    present: tuple[bool, ...]
    attributes: tuple[tuple[str, Any], ...]


class Function:
    """A piece of graph with inputs and results, closed but for constants and symbols.

    Attributes:
        name: For listings: an operator's name, ``body``.
        inputs: ``input`` values, in order.
        results: Results in order.
        level: The nesting of the inputs, deeper than the level of the enclosing function.
        conditions: Pairs of sizes that must be equal in a run, besides those that the values require: simplification
            may remove a value that requires them.
        node: The ONNX node that a call of the function equals, if there is one.
    """

    __slots__ = (
        "__weakref__",
        "_defined",
        "_free",
        "_order",
        "conditions",
        "inputs",
        "level",
        "name",
        "node",
        "results",
    )

    def __init__(
        self, name: str, inputs: Sequence[Value], results: Sequence[Value], level: int, node: NodeForm | None = None
    ) -> None:
        self.level = level
        self.name = name
        self.node = node
        self.inputs = tuple(inputs)
        self.results = tuple(results)
        self.conditions: tuple[tuple[Size, Size], ...] = ()
        self._order: tuple[Value, ...] | None = None
        self._defined: frozenset[str] | None = None
        self._free: frozenset[str] | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that the results depend on, in topological order, without the contents of bodies.

        Definers of symbols outside of the function are excluded.
        """
        if self._order is None:
            self._order = tuple(sort_topologically(self.results, self.level))
        return self._order

    @property
    def free_symbols(self) -> frozenset[str]:
        """The symbols that occur in the values without being defined by any of them."""
        if self._free is None:
            occurring = set(symbols_in(tuple(value.type for value in self.inputs)))
            for value in self.values:
                occurring.update(symbols_in((value.params, value.type)))
            self._free = frozenset(occurring - self.defined_symbols)
        return self._free

    @property
    def defined_symbols(self) -> frozenset[str]:
        """The symbols that the values define; unknown outside of the function."""
        if self._defined is None:
            self._defined = frozenset(symbol for value in self.values for symbol in defined_by(value))
        return self._defined

    def __repr__(self) -> str:
        return f"<function {self.name}: {len(self.inputs)} inputs, {len(self.results)} results>"


def sort_topologically(roots: Iterable[Value], level: int = CLOSED) -> Iterator[Value]:
    """Yield the roots and all dependencies in topological order; iterative.

    Args:
        roots: The values to start from.
        level: Definers at an outer level are left out.
    """
    done: set[Value] = set()
    for root in roots:
        stack = [(root, dependencies(root, level))] if root not in done else []
        while stack:
            value, rest = stack[-1]
            missing = next((other for other in rest if other not in done), None)
            if missing is None:
                stack.pop()
                done.add(value)
                yield value
            else:
                stack.append((missing, dependencies(missing, level)))


def dependencies(value: Value, level: int = CLOSED) -> Iterator[Value]:
    """Yield the values to compute before this one, in a function with inputs at ``level``."""
    yield from value.operands
    for definer in value.definers:
        if definer.level >= level or definer.level == CLOSED:
            yield definer


def functions_of(value: Value) -> Iterator[Function]:
    """Yield the functions among a value's parameters."""
    for param in value.params.values():
        if isinstance(param, Function):
            yield param


def bodies_of(value: Value) -> tuple[Function, ...]:
    """Return the body of a loop, or the branches of a ``cond``, the branch for true first."""
    params = value.params
    return (params["body"],) if value.op == "loop" else (params["then"], params["otherwise"])


class Scope:
    """The values created while a function is traced, separate from the values of enclosing functions.

    Args:
        parent: The scope of the enclosing function; None for the outermost.
    """

    __slots__ = ("level", "parent", "values")

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.level: int = 0 if parent is None else parent.level + 1
        self.values: set[Value] = set()

    def add(self, value: Value) -> None:
        """Add a value, unless the value belongs to an enclosing scope or to a nested function."""
        if value.level > self.level:
            return
        scope: Scope | None = self
        while scope is not None and scope.level >= value.level:
            if value in scope.values:
                return
            scope = scope.parent
        self.values.add(value)


scope: ContextVar[Scope | None] = ContextVar("sardonyx_scope", default=None)
"""The scope of the function that is being traced."""


# Hash-consing.

V = TypeVar("V", bound=Value)

_values: weakref.WeakValueDictionary[tuple[Any, ...], Value] = weakref.WeakValueDictionary()
_functions: weakref.WeakValueDictionary[tuple[Any, ...], Function] = weakref.WeakValueDictionary()
_lock = threading.RLock()  # Collecting garbage inside it may drop another entry.


def intern_value(
    make: type[V], op: str, operands: tuple[Value, ...], params: Mapping[str, Any], type: Type, level: int, key: Any
) -> V:
    """Return the existing value with these parts, or a new one.

    Args:
        make: The class of a new value.
        op: See :class:`Value`.
        operands: See :class:`Value`.
        params: See :class:`Value`.
        type: See :class:`Value`.
        level: See :class:`Value`.
        key: The identity besides ``op`` and ``operands``.
    """
    full = (op, operands, key)
    with _lock:
        value = _values.get(full)
        if value is None:
            value = _values[full] = make(
                op, operands, params, type, level, () if op == "constant" else definers_of((params, type))
            )
    add_to_scope(value)
    return value  # type: ignore[return-value]


def add_to_scope(value: Value) -> None:
    """Add a value to the scope of the function being traced."""
    if value.level != CLOSED and (inner := scope.get()) is not None:
        inner.add(value)


def function(
    name: str, inputs: Sequence[Value], results: Sequence[Value], level: int, node: NodeForm | None = None
) -> Function:
    """Return the existing function with these parts, or a new one."""
    key = (name, tuple(inputs), tuple(results), level, node)
    with _lock:
        result = _functions.get(key)
        if result is None:
            result = _functions[key] = Function(name, inputs, results, level, node)
    return result


# Symbols that values define.

_defining: weakref.WeakValueDictionary[str, Value] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def fresh_symbol() -> str:
    """Return a name that no other symbol has."""
    return f"{DEFINED}{next(_numbers)}"


def is_newer(symbol: str, than: str) -> bool:
    """Return True if :func:`fresh_symbol` returned the first symbol after the second one."""
    number = symbol.removeprefix(DEFINED)
    return symbol != number and number.isdecimal() and int(number) > int(than.removeprefix(DEFINED))


def define(symbol: str, value: Value) -> None:
    """Record that ``value`` defines ``symbol`` at run time."""
    _defining[symbol] = value


def definer(symbol: str) -> Value | None:
    """Return the value that defines the symbol; None for a size of an input."""
    return _defining.get(symbol) if symbol.startswith(DEFINED) else None


def defined_by(value: Value) -> tuple[str, ...]:
    """Return the symbols that a value defines."""
    if value.op == "bind":
        return (value.params["symbol"],)
    return value.params["symbols"] if value.op in ("cond", "loop", "host") else ()


def symbols_in(part: Any) -> list[str]:
    """Return the symbols in sizes anywhere in a parameter or a type; of a function, its free symbols."""
    symbols: list[str] = []
    _add_symbols(part, symbols)
    return symbols


def _add_symbols(part: Any, symbols: list[str]) -> None:
    # Hot path: runs for every new value; types are tuples, most of whose elements are numbers.
    if isinstance(part, tuple):
        for inner in part:
            if not isinstance(inner, (int, str)):
                _add_symbols(inner, symbols)
    elif isinstance(part, Dim):
        symbols += part.symbols_in_order
    elif isinstance(part, Function):
        symbols += part.free_symbols
    elif not isinstance(part, _WITHOUT_SYMBOLS) and isinstance(part, Mapping):
        for inner in part.values():
            _add_symbols(inner, symbols)


_WITHOUT_SYMBOLS = (int, str, float, type(None), np.ndarray, Value)
"""The usual parameter types without symbols."""


def definers_of(parts: Any) -> tuple[Value, ...]:
    """Return the values that define the symbols in parameters or types."""
    return tuple({value: None for symbol in symbols_in(parts) if (value := definer(symbol)) is not None})


def require_tensor(value: Value) -> TensorType:
    """Return the type of a value that must be a tensor of known rank.

    Raises:
        RuleError: The value is a sequence, an optional, a map or a tuple.
        NeedsValueError: The rank is only known at run time.
    """
    if not isinstance(value.type, TensorType):
        raise RuleError(f"expected a tensor, got {value.type}.", where=value.origin)
    if value.type.shape is None:
        raise NeedsValueError("a rank is only known at run time.", value=value, where=value.origin)
    return value.type
