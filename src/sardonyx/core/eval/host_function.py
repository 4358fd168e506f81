"""Host functions: Python over numpy with a type rule, for computations other than tensor arithmetic.

Strings, sequences, optionals, maps, images, and results of data-dependent size. A host function is opaque to the
compiler; the interpreter runs the function, and the type rule describes the results. Only its author knows a gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.eval.run_context import RunContext, current_run
from sardonyx.core.eval.tensor import get, known, level_of
from sardonyx.core.ir.graph import Value, define, fresh_symbol, intern_value, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type, dtype_of, numpy_dtype
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import ExecutionError, SardonyxError


class HostFunction:
    """A Python function of known values.

    Args:
        name: Name in listings.
        type_rule: From the types of the operands and the attributes to the types of the results. Data-dependent sizes
            are ``unknown_size()``.
        compute: From the operands (arrays; lists for sequences; None or a value for optionals; dicts for maps) and the
            attributes to the results, a tuple of the same kinds.
        domain: The domain of the defined operator ``name``.
        since: The version of the domain.
        present: For each input of the operator, True if the input is an operand; None for all.
        context_parameters: Attributes of the function that the operator does not have.
        module: The module that defines the function; by default the module of ``compute``.
        gradient: Over Core, from the result, its cotangent, the inputs (None for omitted ones) and the attributes to a
            cotangent for each input, None for inputs without gradient; of several results, tuples of results and of
            cotangents. None if the function has no gradient.
    """

    __slots__ = (
        "__weakref__",
        "compute",
        "context_parameters",
        "domain",
        "gradient",
        "module",
        "name",
        "present",
        "since",
        "type_rule",
    )

    def __init__(
        self,
        name: str,
        type_rule: Callable[..., tuple[Type, ...]],
        compute: Callable[..., tuple[Any, ...]],
        *,
        domain: str = "",
        since: int = 1,
        present: tuple[bool, ...] | None = None,
        context_parameters: frozenset[str] = frozenset(),
        module: str = "",
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.type_rule = type_rule
        self.compute = compute
        self.domain = domain
        self.since = since
        self.present = present
        self.context_parameters = context_parameters
        self.module = module or compute.__module__
        self.gradient = gradient
        _known[domain, name, since, present] = self

    def results(self, operands: Sequence[Any], attributes: Mapping[str, Any], types: Sequence[Type]) -> tuple[Any, ...]:
        """Compute the results for plain values.

        Raises:
            SardonyxError: Raised by the function as such.
            ExecutionError: The function raises another error, or returns results of other types than ``types``.
        """
        try:
            results = self.compute(*operands, **attributes)
        except (SardonyxError, MemoryError):
            raise
        except Exception as error:
            raise ExecutionError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if not isinstance(results, tuple) or len(results) != len(types):
            actual = f"{len(results)} results" if isinstance(results, tuple) else f"a {type(results).__name__}"
            raise ExecutionError(f"expected a tuple of {len(types)} from {self.name}, got {actual}.")
        for result, declared in zip(results, types, strict=True):
            if isinstance(declared, TensorType) and (actual := _describe_mismatch(result, declared)):
                raise ExecutionError(f"expected {declared} from {self.name} by its type rule, got {actual}.")
        return results

    def __repr__(self) -> str:
        return f"<host function {self.name}>"


def _describe_mismatch(result: Any, declared: TensorType) -> str:
    """Describe a result that does not have the declared type; empty if the result does."""
    if not isinstance(result, (np.ndarray, np.generic)):
        return f"a {type(result).__name__}"
    right = result.dtype == numpy_dtype(declared.dtype)
    if declared.shape is not None:
        # Symbolic sizes are checked by the caller, which knows the values of the symbols.
        right &= len(declared.shape) == result.ndim
        right &= all(size == n for size, n in zip(declared.shape, result.shape, strict=False) if isinstance(size, int))
    return "" if right else f"{result.dtype}{list(result.shape)}"


_known: weakref.WeakValueDictionary[tuple[str, str, int, tuple[bool, ...] | None], HostFunction]
_known = weakref.WeakValueDictionary()


def known_function(domain: str, name: str, since: int, present: tuple[bool, ...] | None) -> HostFunction | None:
    """Return the host function that was last created with these arguments; None without one."""
    return _known.get((domain, name, since, present))


def unknown_size() -> Dim:
    """Return a fresh symbol, for a size that is unknown until run time."""
    return Dim.symbol(fresh_symbol())


def host(function: HostFunction, *operands: Value, **attributes: Any) -> tuple[Value, ...]:
    """Call a host function: inside a run at once, on known operands; otherwise record the call."""
    run = current_run()
    if run is not None:
        types = function.type_rule(*[operand.type for operand in operands], **attributes)
        for type in types:
            run.reserve((type.nbytes or 0) if isinstance(type, TensorType) else 0, function.name)
        results = function.results([operand.known for operand in operands], attributes, types)
        return tuple(_track_result(run, value, type) for value, type in zip(results, types, strict=True))
    params: dict[str, Any] = {"function": function, "attributes": tuple(attributes.items())}
    type = TYPE_RULES["host"](*[operand.type for operand in operands], **params)
    assert isinstance(type, TupleType)
    params["symbols"] = tuple(
        dict.fromkeys(set(symbols_in(type)) - set(symbols_in(tuple(operand.type for operand in operands))))
    )
    value = intern_value(Value, "host", operands, params, type, level_of(operands), (function, params["attributes"]))
    for symbol in value.params["symbols"]:
        define(symbol, value)
    return tuple(get(value, i) for i in range(len(type.results)))


def _track_result(run: RunContext, result: Any, declared: Type) -> Value:
    """Return a result as a known value; an array counts toward the memory limit."""
    value = known(result, actual_type(result, declared))
    if isinstance(declared, TensorType) and result.base is None:
        run.track(value, result.nbytes)
    return value


def actual_type(value: Any, declared: Type) -> Type:
    """Return the declared type with the actual sizes of a tensor."""
    if isinstance(declared, TensorType):
        return TensorType(dtype_of(value) if value.dtype != object else declared.dtype, value.shape)
    return declared
