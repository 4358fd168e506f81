"""Primitives on sizes: ``Shape`` arithmetic stays symbolic instead of reading tensors at run time.

A rule receives each operand as its elements (ints and Dims) with its shape, and returns the elements of the result, or
None for results without symbolic form. ONNX integer division rounds toward zero and Dims round down: the two are
exchangeable only if both operands are proven not negative.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.core.dim import POSITIVE, Size, at_least, dim_max, dim_min, equal, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType, TensorType
from sardonyx.core.rules.assumed_sizes import assumed_pairs, exceeds


class Sized(NamedTuple):
    """A small tensor of sizes: its elements in order, and its shape."""

    elements: tuple[Size, ...]
    shape: tuple[int, ...]

    @property
    def array(self) -> np.ndarray:
        """The elements as an array of objects."""
        array = np.empty(len(self.elements), object)
        array[:] = self.elements
        return array.reshape(self.shape)


Elements = Sequence[Any]
SizeRule = Callable[..., "Elements | None"]

SIZE_RULES: dict[str, SizeRule] = {}


def size_rule(*names: str) -> Callable[[SizeRule], SizeRule]:
    """Register the rule of primitives on sizes."""

    def register(rule: SizeRule) -> SizeRule:
        for name in names:
            SIZE_RULES[name] = rule
        return rule

    return register


def _elementwise(compute: Callable[..., Any]) -> SizeRule:
    def rule(type: TensorType, *parts: Sized) -> Elements | None:
        results = [compute(*items) for items in zip(*(part.elements for part in parts), strict=True)]
        return None if any(item is None for item in results) else results

    return rule


def _not_negative(*sizes: Size) -> bool:
    return all(at_least(size, 0) is True for size in sizes)


def _quotient(a: Size, b: Size) -> Size | None:
    if not (_is_divisor(b) and _not_negative(a)):
        return None
    exact = floor_div(a, b, POSITIVE)
    return exact if equal(exact * b, a) is True else floor_div(a, b)


def _remainder(a: Size, b: Size) -> Size | None:
    quotient = _quotient(a, b)
    return None if quotient is None else a - b * quotient


def _is_divisor(b: Size) -> bool:
    """Return True if a size is positive, or assumed to be: a division by 0 has no result."""
    if at_least(b, 1) is True:
        return True
    return assumed_pairs.get() is not None and at_least(b, 0) is True and not exceeds(1, b)


def _less(a: Size, b: Size) -> bool | None:
    at_most = at_least(a, b)
    return None if at_most is None else not at_most


def _absolute(a: Size) -> Size | None:
    if _not_negative(a):
        return a
    return -a if at_least(0, a) is True else None


def _sign(a: Size) -> int | None:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    return 1 if at_least(a, 1) is True else None


SIZE_RULES |= {
    "add": _elementwise(operator.add),
    "sub": _elementwise(operator.sub),
    "mul": _elementwise(operator.mul),
    "neg": _elementwise(operator.neg),
    "abs": _elementwise(_absolute),
    "sign": _elementwise(_sign),
    "div": _elementwise(_quotient),
    "rem": _elementwise(_remainder),
    "max": _elementwise(dim_max),
    "min": _elementwise(dim_min),
    "equal": _elementwise(equal),
    "less": _elementwise(_less),
}


@size_rule("select")
def _select(type: TensorType, condition: Sized, x: Sized, y: Sized) -> Elements | None:
    if type.dtype == t.BOOL:
        return None
    return [a if c else b for c, a, b in zip(condition.elements, x.elements, y.elements, strict=True)]


@size_rule("convert")
def _convert(type: TensorType, x: Sized, *, dtype: DType, saturate: bool, rounding: str) -> Elements | None:
    return x.elements if dtype in (t.INT64, t.INT32) else None


@size_rule("reduce")
def _reduce(type: TensorType, x: Sized, *, kind: str, axes: tuple[int, ...]) -> Elements | None:
    combine = {"add": operator.add, "mul": operator.mul, "max": dim_max, "min": dim_min}.get(kind)
    if combine is None:
        return None
    array = x.array
    for axis in sorted(axes, reverse=True):
        if array.shape[axis] == 0:
            return None
        lines = [array.take(i, axis) for i in range(array.shape[axis])]
        total = lines[0]
        for line in lines[1:]:
            total = np.frompyfunc(combine, 2, 1)(total, line)
        array = np.asarray(total, object)
    return list(array.ravel())


@size_rule("reshape")
def _reshape(type: TensorType, x: Sized, *, shape: tuple[int, ...]) -> Elements:
    return x.elements


@size_rule("permute")
def _permute(type: TensorType, x: Sized, *, axes: tuple[int, ...]) -> Elements:
    return list(x.array.transpose(axes).ravel())


@size_rule("broadcast")
def _broadcast(type: TensorType, x: Sized, *, shape: tuple[int, ...]) -> Elements:
    return list(np.broadcast_to(x.array, shape).ravel())


@size_rule("slice")
def _slice(
    type: TensorType, x: Sized, *, starts: tuple[int, ...], limits: tuple[int, ...], strides: tuple[int, ...]
) -> Elements:
    return list(x.array[tuple(map(slice, starts, limits, strides))].ravel())


@size_rule("concat")
def _concat(type: TensorType, *xs: Sized, axis: int) -> Elements:
    return list(np.concatenate([x.array for x in xs], axis=axis).ravel())


@size_rule("reverse")
def _reverse(type: TensorType, x: Sized, *, axes: tuple[int, ...]) -> Elements:
    return list(np.flip(x.array, axes).ravel())


@size_rule("gather")
def _gather(type: TensorType, x: Sized, indices: Sized, *, batch: int) -> Elements | None:
    if batch or not all(isinstance(i, int) for i in indices.elements):
        return None
    at = np.array(indices.elements, np.int64).reshape(indices.shape)
    if any((at[..., i] < 0).any() or (at[..., i] >= x.shape[i]).any() for i in range(at.shape[-1])):
        return None
    return list(np.asarray(x.array[tuple(at[..., i] for i in range(at.shape[-1]))], object).ravel())


@size_rule("scatter")
def _scatter(type: TensorType, x: Sized, indices: Sized, updates: Sized, *, kind: str, batch: int) -> Elements | None:
    if batch or kind != "set" or not all(isinstance(i, int) for i in indices.elements):
        return None
    at = np.array(indices.elements, np.int64).reshape(indices.shape)
    if any((at[..., i] < 0).any() or (at[..., i] >= x.shape[i]).any() for i in range(at.shape[-1])):
        return None
    result = x.array.copy()
    result[tuple(at[..., i] for i in range(at.shape[-1]))] = updates.array
    return list(result.ravel())


@size_rule("scan")
def _scan(type: TensorType, x: Sized, *, kind: str, axis: int) -> Elements | None:
    if len(x.shape) != 1 or kind not in ("add", "mul"):
        return None
    combine = operator.add if kind == "add" else operator.mul
    results: list[Size] = []
    for item in x.elements:
        results.append(item if not results else combine(results[-1], item))
    return results
