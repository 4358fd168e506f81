"""Small integer tensors that are computed from sizes alone, as Python numbers: element by element, without tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.export.torch.source import Source

MOST_ELEMENTS = 16
"""Longer tensors are tensors."""

MOST_VALUES = 200
"""Number of values above which a computation of sizes stays one of tensors."""


def size_elements(s: Source, value: Value) -> np.ndarray | None:
    """Return the elements of an integer or boolean tensor as Python expressions; None if it depends on data."""
    return _elements(s, value, {})


def _elements(s: Source, value: Value, done: dict[Value, np.ndarray | None]) -> np.ndarray | None:
    if value in done:
        return done[value]
    if len(done) > MOST_VALUES:
        return None
    done[value] = None
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or not _is_plain(type_):
        return None
    shape = tuple(size for size in type_.shape if isinstance(size, int))
    if len(shape) != len(type_.shape) or int(np.prod(shape)) > MOST_ELEMENTS:
        return None
    done[value] = _computed(s, value, shape, done)
    return done[value]


def _is_plain(type_: TensorType) -> bool:
    return type_.dtype in (t.INT64, t.INT32, t.UINT64, t.BOOL)


def _computed(
    s: Source, value: Value, shape: tuple[int, ...], done: dict[Value, np.ndarray | None]
) -> np.ndarray | None:
    params = value.params
    if value.op == "dims":
        return _array([s.size(size) for size in params["sizes"]], shape)
    if value.op == "constant":
        return _array([repr(number) for number in value.known.reshape(-1).tolist()], shape)
    if value.op == "bind":
        return _elements(s, value.operands[0], done)
    if value.op not in _RULES:
        return None
    operands = [_elements(s, operand, done) for operand in value.operands]
    if any(operand is None for operand in operands):
        return None
    return _RULES[value.op](value, shape, *operands)  # type: ignore[no-any-return]


def _array(items: list[str], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)


def _elementwise(pattern: str) -> Any:
    def rule(value: Value, shape: tuple[int, ...], *operands: np.ndarray) -> np.ndarray:
        rows = zip(*(operand.reshape(-1) for operand in operands), strict=True)
        return _array([pattern.format(*row) for row in rows], shape)

    return rule


def _slice(value: Value, shape: tuple[int, ...], x: np.ndarray) -> np.ndarray | None:
    params = value.params
    bounds = list(zip(params["starts"], params["limits"], params["strides"], strict=True))
    if not all(isinstance(number, int) for bound in bounds for number in bound):
        return None
    part: np.ndarray = x[tuple(slice(*bound) for bound in bounds)]
    return part


_RULES: dict[str, Any] = {
    "add": _elementwise("({} + {})"),
    "sub": _elementwise("({} - {})"),
    "mul": _elementwise("({} * {})"),
    "neg": _elementwise("(-{})"),
    "div": _elementwise("truncated({}, {})"),
    "max": _elementwise("torch.sym_max({}, {})"),
    "min": _elementwise("torch.sym_min({}, {})"),
    "less": _elementwise("({} < {})"),
    "equal": _elementwise("({} == {})"),
    "and": _elementwise("({} and {})"),
    "or": _elementwise("({} or {})"),
    "not": _elementwise("(not {})"),
    "select": _elementwise("({1} if {0} else {2})"),
    "convert": lambda value, shape, x: x if value.params["dtype"] != t.BOOL else None,
    "bitcast": lambda value, shape, x: x,
    "reshape": lambda value, shape, x: x.reshape(shape),
    "broadcast": lambda value, shape, x: np.broadcast_to(x, shape),
    "permute": lambda value, shape, x: x.transpose(value.params["axes"]),
    "concat": lambda value, shape, *xs: np.concatenate(xs, axis=value.params["axis"]),
    "slice": _slice,
}
