"""The same program over other weights: what kernels read of constants is made anew, and nothing is compiled.

Two functions that differ in the elements of constants alone become the same kernels, unless one of these elements was
looked at: a constant that is one number everywhere stands in the code, and integers may be places or sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compiler.analysis.constant_values import computed, is_closed
from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.lower.launch import Prepared
from sardonyx.core.eval.interpreter import compute
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import Function, Value, function
from sardonyx.core.ir.types import TensorType, is_float

_WEIGHT_INTEGERS = frozenset({"INT16", "INT8", "UINT8", "INT4", "UINT4", "INT2", "UINT2"})
"""Integer types of which weights are, and neither places nor sizes."""

_BLOCK = 1 << 16
"""Bytes that are compared at a time."""

Meaning = Mapping[Value, Value]
"""What values stand for: those of a function that a program was made of, and the same of another."""


def matched(first: Function, second: Function) -> dict[Value, Value] | None:
    """The values of the second function that stand where those of the first do; None where they differ in more than
    the elements of constants.
    """
    meaning: dict[Value, Value] = {}
    return meaning if _match(first, second, meaning) else None


def _match(first: Function, second: Function, meaning: dict[Value, Value]) -> bool:
    if len(first.values) != len(second.values) or len(first.results) != len(second.results):
        return False
    if not all(map(_alike, zip(first.inputs, second.inputs, strict=True))):
        return False
    for a, b in zip(first.values, second.values, strict=True):
        if a is not b and not _same_place(a, b, meaning):
            return False
        meaning[a] = b
    return all(meaning.get(a) is b for a, b in zip(first.results, second.results, strict=True))


def _alike(pair: tuple[Value, Value]) -> bool:
    return pair[0] is pair[1]


def _same_place(a: Value, b: Value, meaning: dict[Value, Value]) -> bool:
    if a.op != b.op or a.type != b.type or len(a.operands) != len(b.operands) or a.params.keys() != b.params.keys():
        return False
    if a.is_constant:
        return True
    if any(meaning.get(x) is not y for x, y in zip(a.operands, b.operands, strict=True)):
        return False
    for one, other in zip(a.params.values(), b.params.values(), strict=True):
        if isinstance(one, Function) and isinstance(other, Function):
            if one is not other and not _match(one, other, meaning):
                return False
        elif one != other:
            return False
    return True


def remade(
    prepared: Mapping[Value | Prepared, np.ndarray], meaning: Meaning, before: Meaning, results: Sequence[Value]
) -> dict[Value | Prepared, np.ndarray] | None:
    """What kernels read of constants, made anew where these are others; None where one of them was looked at.

    Args:
        prepared: What kernels read of constants now.
        meaning: What the values of the program's function stand for from now on; what is not in it stands for itself.
        before: What they stood for.
        results: What the function gives.
    """
    new = _changed(meaning, before)
    if new is None or not new.isdisjoint(results):
        return None
    arrays = dict(prepared)
    for key in prepared:
        raise_if_cancelled()
        if isinstance(key, Value):
            if key in new:
                arrays[key] = np.asarray(meaning.get(key, key).known)
        elif not is_closed(key.source):
            return None
        elif not new.isdisjoint(function("closed", (), [key.source], 0).values):
            arrays[key] = key.make(lambda value: _read(value, meaning))
    return arrays


def _changed(meaning: Meaning, before: Meaning) -> set[Value] | None:
    found = set()
    for value in {**before, **meaning}:
        if not value.is_constant:
            continue
        was, now = before.get(value, value), meaning.get(value, value)
        if now is was or _same_elements(was, now):
            continue
        if not _is_weight(value) or is_splat(value) or is_splat(now):
            return None
        found.add(value)
    return found


def _is_weight(value: Value) -> bool:
    return isinstance(value.type, TensorType) and (
        is_float(value.type.dtype) or value.type.dtype.name in _WEIGHT_INTEGERS
    )


def _same_elements(a: Value, b: Value) -> bool:
    if not isinstance(a.type, TensorType):
        return False
    first, second = (np.ascontiguousarray(each.known) for each in (a, b))
    if first.dtype == object:
        return bool((first == second).all())
    if first.ctypes.data == second.ctypes.data:
        return True
    # In blocks, and the bits: NaN is NaN, and other weights differ soon.
    one, other = first.reshape(-1).view(np.uint8), second.reshape(-1).view(np.uint8)
    return all(np.array_equal(one[at : at + _BLOCK], other[at : at + _BLOCK]) for at in range(0, one.size, _BLOCK))


def _read(value: Value, meaning: Meaning) -> np.ndarray:
    """The elements of a closed value, where those it is made of stand for others."""
    if value in meaning:
        return computed(meaning[value])
    found: dict[Value, Value] = {}
    with running(RunContext()):
        for each in function("closed", (), [value], 0).values:
            operands = [found[operand] for operand in each.operands]
            found[each] = meaning.get(each, each) if each.is_constant else compute(each, operands, {})
    return np.asarray(found[value].known)
