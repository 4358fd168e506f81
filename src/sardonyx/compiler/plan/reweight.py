"""Reweighting: reuse compiled code for a function with other weights.

Two functions that differ only in the elements of constants have the same kernels, unless the compiler has read one of
these elements: a constant with a single repeated element is part of the code, integers may be indices or sizes, and
code that quantizes depends on the magnitude classes of constants.
Otherwise only the prepared constants are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.magnitudes import magnitude_class, quantizes
from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.lower.launch import Launch, Prepared
from sardonyx.core.eval.interpreter import compute
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Function, Value, bodies_of, function
from sardonyx.core.ir.types import TensorType, is_float

_WEIGHT_INTEGERS = frozenset({"INT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"})
"""Integer types of weights; indices and sizes have other types."""

_BLOCK = 1 << 16
"""Bytes that are compared at a time."""

Substitution = Mapping[Value, Value]
"""The values of another function, by corresponding value of a compiled function; others are unchanged."""


def match_values(first: Function, second: Function) -> dict[Value, Value] | None:
    """Return the value of the second function that corresponds to each value of the first.

    The result is None if the functions differ in more than the elements of constants.
    """
    substitution: dict[Value, Value] = {}
    return substitution if extend_match(first, second, substitution) else None


def match_bodies(
    launches: Iterable[Launch], substitution: dict[Value, Value], canonical: Callable[[Function], Function]
) -> bool:
    """Add the values of bodies to a substitution; return False if they differ in more than the elements of constants.

    Passes rewrite a body after the function, so that its launches read constants that the function does not have.

    Args:
        launches: The launches of the compiled function, or of a body.
        substitution: The values of the other function, by corresponding value; added to.
        canonical: Returns the form of a body that is lowered.
    """
    for launch in launches:
        if not launch.bodies:
            continue
        others = bodies_of(substitution[launch.writes])
        for body, other in zip(launch.bodies, others, strict=True):
            if not extend_match(body.function, canonical(other), substitution):
                return False
            if not match_bodies(body.launches, substitution, canonical):
                return False
    return True


def extend_match(first: Function, second: Function, substitution: dict[Value, Value]) -> bool:
    """Add the values of two functions to a substitution; return False if there is none; see :func:`match_values`."""
    if len(first.values) != len(second.values) or len(first.results) != len(second.results):
        return False
    if any(a is not b for a, b in zip(first.inputs, second.inputs, strict=True)):
        return False
    for a, b in zip(first.values, second.values, strict=True):
        if not _corresponds(a, b, substitution):
            return False
        # A constant of equal elements may be one value in several bodies, and other values in the other function.
        if a.is_constant and substitution.get(a, b) is not b:
            return False
        substitution[a] = b
    return all(substitution.get(a) is b for a, b in zip(first.results, second.results, strict=True))


def _corresponds(a: Value, b: Value, substitution: dict[Value, Value]) -> bool:
    if a.op != b.op or a.type != b.type or len(a.operands) != len(b.operands) or a.params.keys() != b.params.keys():
        return False
    if a.is_constant:
        return True
    if any(substitution.get(x) is not y for x, y in zip(a.operands, b.operands, strict=True)):
        return False
    for one, other in zip(a.params.values(), b.params.values(), strict=True):
        if isinstance(one, Function) and isinstance(other, Function):
            if not extend_match(one, other, substitution):
                return False
        elif one != other:
            return False
    return True


def rebuild_constants(
    prepared: Mapping[Value | Prepared, np.ndarray],
    substitution: Substitution,
    before: Substitution,
    results: Sequence[Value],
) -> dict[Value | Prepared, np.ndarray] | None:
    """Return the prepared constants for other weights.

    The result is None if the code may depend on the elements of a changed constant.

    Args:
        prepared: The current constants, in the form that kernels read.
        substitution: The values of the new function, by the values of the compiled function.
        before: The same for the current constants.
        results: The results of the compiled function.
    """
    changed = changed_constants(substitution, before)
    if changed is None or not changed.isdisjoint(results):
        return None
    arrays = dict(prepared)
    for key in prepared:
        raise_if_cancelled()
        if isinstance(key, Value):
            if key in changed:
                arrays[key] = np.asarray(substitution.get(key, key).known)
        elif not is_closed(key.source):
            return None
        elif not changed.isdisjoint(function("closed", (), [key.source], 0).values):
            arrays[key] = key.make(lambda value: elements(value, substitution))
    return arrays


def has_own_constants(prepared: Iterable[Any], substitution: Substitution) -> bool:
    """Return True if a prepared constant depends on weights that are in no matched function.

    Args:
        prepared: The keys of prepared constants.
        substitution: The values of the other function, by corresponding value.
    """
    sources = (key if isinstance(key, Value) else key.source for key in prepared)
    return any(
        value.is_constant and value not in substitution and is_weight(value) and not is_splat(value)
        for source in sources
        for value in function("closed", (), [source], 0).values
    )


def changed_constants(substitution: Substitution, before: Substitution) -> set[Value] | None:
    """Return the constants with other elements; None if one of them may be part of the code."""
    changed = set()
    values = {**before, **substitution}
    limited = quantizes(values)
    for value in values:
        if not value.is_constant:
            continue
        was, now = before.get(value, value), substitution.get(value, value)
        if now is was or _has_same_elements(was, now):
            continue
        if not is_weight(value) or is_splat(value) or is_splat(now):
            return None
        if limited and magnitude_class(was) != magnitude_class(now):
            return None
        changed.add(value)
    return changed


def is_weight(value: Value) -> bool:
    """Return True if code does not depend on the elements of a constant, unless all are equal."""
    return isinstance(value.type, TensorType) and (
        is_float(value.type.dtype) or value.type.dtype.name in _WEIGHT_INTEGERS
    )


def _has_same_elements(a: Value, b: Value) -> bool:
    if not isinstance(a.type, TensorType):
        return False
    first, second = (np.ascontiguousarray(value.known) for value in (a, b))
    if first.dtype == object:
        return bool((first == second).all())
    if first.ctypes.data == second.ctypes.data:
        return True
    # Bits are compared, since NaN differs from NaN; in blocks, since other weights differ in the first one.
    one, other = first.reshape(-1).view(np.uint8), second.reshape(-1).view(np.uint8)
    return all(np.array_equal(one[at : at + _BLOCK], other[at : at + _BLOCK]) for at in range(0, one.size, _BLOCK))


def elements(value: Value, substitution: Substitution) -> np.ndarray:
    """Return the elements of a closed value after substitution of its constants."""
    if value in substitution:
        return evaluate_closed(substitution[value])
    results: dict[Value, Value] = {}
    with running(RunContext()):
        for member in function("closed", (), [value], 0).values:
            operands = [results[operand] for operand in member.operands]
            results[member] = substitution.get(member, member) if member.is_constant else compute(member, operands, {})
    return np.asarray(results[value].known)
