"""Host functions: Python over numpy with a type rule, for what is no arithmetic on tensors.

Strings, sequences, optionals, maps, images, and results counted from data. A host function is opaque to gradient and
compiler; the interpreter runs it, and its type rule tells the rest what comes out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.eval.run_context import RunContext, current_run
from sardonyx.core.eval.tensor import get, known, level_of
from sardonyx.core.ir.graph import Value, define, fresh_symbol, interned, symbols_in
from sardonyx.core.ir.types import TensorType, TupleType, Type, dtype_of, numpy_dtype
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import ExecutionError, SardonyxError


class HostFunction:
    """A Python function of known values.

    Args:
        name: What it is called in listings.
        type_rule: From the types of the operands and the attributes to the types of the results. Sizes that are
            counted from data are ``unknown_size()``.
        compute: From the operands (arrays; lists for sequences; None or a value for optionals; dicts for maps) and the
            attributes to the results, a tuple of the same kinds.
        domain: The domain of the operator ``name`` that it is the definition of.
        since: The version of the domain that it is right for.
        present: Which inputs of the operator the operands are; None for all.
        given: Attributes of the function that are none of the operator.
        module: The module that defines it; by default that of ``compute``.
    """

    __slots__ = ("__weakref__", "compute", "domain", "given", "module", "name", "present", "since", "type_rule")

    def __init__(
        self,
        name: str,
        type_rule: Callable[..., tuple[Type, ...]],
        compute: Callable[..., tuple[Any, ...]],
        *,
        domain: str = "",
        since: int = 1,
        present: tuple[bool, ...] | None = None,
        given: frozenset[str] = frozenset(),
        module: str = "",
    ) -> None:
        self.name = name
        self.type_rule = type_rule
        self.compute = compute
        self.domain = domain
        self.since = since
        self.present = present
        self.given = given
        self.module = module or compute.__module__
        _known[domain, name, since, present] = self

    def results(self, operands: Sequence[Any], attributes: Mapping[str, Any], types: Sequence[Type]) -> tuple[Any, ...]:
        """What it computes of plain values.

        Raises:
            SardonyxError: What it raises as such.
            ExecutionError: It raises anything else, or gives something else than ``types``.
        """
        try:
            found = self.compute(*operands, **attributes)
        except (SardonyxError, MemoryError):
            raise
        except Exception as error:
            raise ExecutionError(f"{self.name} raised {type(error).__name__}: {error}") from error
        if not isinstance(found, tuple) or len(found) != len(types):
            given = f"{len(found)} results" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise ExecutionError(f"{self.name} gave {given}, and a tuple of {len(types)} is needed.")
        for one, declared in zip(found, types, strict=True):
            if isinstance(declared, TensorType) and (wrong := _wrong_tensor(one, declared)):
                raise ExecutionError(f"{self.name} gave {wrong}, and its type rule says {declared}.")
        return found

    def __repr__(self) -> str:
        return f"<host function {self.name}>"


def _wrong_tensor(given: Any, declared: TensorType) -> str:
    """What is given in place of a tensor; empty where it is one of the type."""
    if not isinstance(given, (np.ndarray, np.generic)):
        return f"a {type(given).__name__}"
    right = given.dtype == numpy_dtype(declared.dtype)
    if declared.shape is not None:
        # Sizes that others tell are compared with theirs by who knows them.
        right &= len(declared.shape) == given.ndim
        right &= all(size == n for size, n in zip(declared.shape, given.shape, strict=False) if isinstance(size, int))
    return "" if right else f"{given.dtype}{list(given.shape)}"


_known: weakref.WeakValueDictionary[tuple[str, str, int, tuple[bool, ...] | None], HostFunction]
_known = weakref.WeakValueDictionary()


def known_function(domain: str, name: str, since: int, present: tuple[bool, ...] | None) -> HostFunction | None:
    """The host function that was made with these, if there is one; the last of several."""
    return _known.get((domain, name, since, present))


def unknown_size() -> Dim:
    """A size that only the run tells."""
    return Dim.symbol(fresh_symbol())


def host(function: HostFunction, *operands: Value, **attributes: Any) -> tuple[Value, ...]:
    """Call a host function: at once where all operands are known inside a run, and recorded otherwise."""
    run = current_run()
    if run is not None:
        types = function.type_rule(*[operand.type for operand in operands], **attributes)
        for type in types:
            run.reserve((type.nbytes or 0) if isinstance(type, TensorType) else 0, function.name)
        found = function.results([operand.known for operand in operands], attributes, types)
        return tuple(_counted(run, value, type) for value, type in zip(found, types, strict=True))
    params: dict[str, Any] = {"function": function, "attributes": tuple(attributes.items())}
    type = TYPE_RULES["host"](*[operand.type for operand in operands], **params)
    assert isinstance(type, TupleType)
    params["symbols"] = tuple(
        dict.fromkeys(set(symbols_in(type)) - set(symbols_in(tuple(operand.type for operand in operands))))
    )
    value = interned(Value, "host", operands, params, type, level_of(operands), (function, params["attributes"]))
    for symbol in value.params["symbols"]:
        define(symbol, value)
    return tuple(get(value, i) for i in range(len(type.results)))


def _counted(run: RunContext, result: Any, declared: Type) -> Value:
    """A result as a known value; an array counts toward the limit on memory."""
    value = known(result, actual_type(result, declared))
    if isinstance(declared, TensorType) and result.base is None:
        run.track(value, result.nbytes)
    return value


def actual_type(value: Any, declared: Type) -> Type:
    """The declared type, with the sizes that a tensor turned out to have."""
    if isinstance(declared, TensorType):
        return TensorType(dtype_of(value) if value.dtype != object else declared.dtype, value.shape)
    return declared
