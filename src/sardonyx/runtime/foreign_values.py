"""Inputs that data engines and clients pass: columns, nested lists and JSON, read without a change of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import FeedError

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16"
_TYPES = {name: np.dtype(name) for name in _NAMES.split()}
_TYPES |= {"float": np.dtype("f4"), "double": np.dtype("f8"), "string": np.dtype(object)}

_SHOWN = 200
"""Characters of a value, or of another library's message, that are repeated."""


def numpy_type(name: str) -> np.dtype[Any] | None:
    """Return the numpy type of a type as sessions name it, e.g. ``tensor(float)``; objects for texts.

    Returns:
        None if numpy lacks the type.
    """
    return _TYPES.get(name.removeprefix("tensor(").removesuffix(")"))


def read_values(values: Any, dtype: np.dtype[Any] | None, where: str) -> np.ndarray:
    """Return values as an array; missing ones are NaN where the elements are floating-point.

    Args:
        values: An array, a number, or nested lists.
        dtype: The element type; objects for texts, None for the type of the values.
        where: The name of the input.

    Raises:
        FeedError: The values are no array, or an element is no value of the type.
    """
    if values is None:
        raise FeedError("expected values, got None.", where=where)
    try:
        array = np.asarray(values, dtype if _is_text(dtype) else None)
    except (TypeError, ValueError) as error:
        raise _unreadable(dtype, str(error), where) from error
    if _is_text(dtype):
        return _texts(array, where)
    if dtype is None or array.dtype == dtype:
        return array
    if array.dtype == object:
        array = _without_missing(array, dtype, where)
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise _unreadable(dtype, "it has complex numbers", where)
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            converted = array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise _unreadable(dtype, str(error), where) from error
    if dtype.kind == "b" or "int" in dtype.name:
        _require_equal(array, converted, where)
    return converted


def read_rows(
    values: Any, dtype: np.dtype[Any] | None, where: str, sizes: Sequence[int] = ()
) -> np.ndarray | list[np.ndarray]:
    """Return the rows of a column as one array, or as a list of arrays if they differ in shape.

    Args:
        values: An array, a column of a data frame, or a list; rows may be arrays or nested lists.
        dtype: The element type, as of :func:`read_values`.
        where: The name of the input.
        sizes: The sizes of a row, for a column without rows.

    Raises:
        FeedError: The values are no rows, or an element is no value of the type.
    """
    try:
        array = None if values is None else np.asarray(values, dtype if _is_text(dtype) else None)
    except (TypeError, ValueError):  # Lists of several lengths.
        array = np.empty(len(values), object)
        array[:] = list(values)
    if array is None or array.ndim == 0:
        raise FeedError(f"expected rows, got {_shown(values)}.", where=where)
    if len(array) == 0:
        return np.zeros(array.shape if array.ndim == 1 + len(sizes) else (0, *sizes), dtype)
    if array.dtype != object or not any(_has_rows(row) for row in array):
        return read_values(array, dtype, where)
    rows = [read_values(row, dtype, where) for row in array]
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows


def _is_text(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and dtype.kind == "O"


def _has_rows(row: Any) -> bool:
    return hasattr(row, "__len__") and not isinstance(row, (str, bytes, Mapping))


def _texts(array: np.ndarray, where: str) -> np.ndarray:
    for element in array.flat:
        if not isinstance(element, (str, bytes)):
            raise FeedError(f"expected texts, got {_shown(element)}.", where=where)
    return array


def _without_missing(array: np.ndarray, dtype: np.dtype[Any], where: str) -> np.ndarray:
    """Return an array of objects with NaN for None and the missing values of data frames."""
    elements = [np.nan if x is None or type(x).__name__ in ("NAType", "NaTType") else x for x in array.flat]
    if dtype.kind != "f" and any(x is np.nan for x in elements):
        raise _unreadable(dtype, "a value is missing", where)
    result = np.empty(len(elements), object)
    result[:] = elements
    return result.reshape(array.shape)


def _require_equal(array: np.ndarray, converted: np.ndarray, where: str) -> None:
    """Check that a conversion to integers or flags kept the numbers."""
    if array.dtype.kind not in "biufO":  # Texts are parsed.
        return
    exact = converted.astype(np.float64) if converted.dtype.kind == "V" else converted
    wrong = np.flatnonzero(np.asarray(exact != array).ravel())
    if wrong.size:
        raise FeedError(f"expected {converted.dtype} values, got {_shown(array.ravel()[wrong[0]])}.", where=where)


def _unreadable(dtype: np.dtype[Any] | None, reason: str, where: str) -> FeedError:
    words = "an array" if dtype is None else "texts" if _is_text(dtype) else str(dtype)
    return FeedError(f"the values cannot be read as {words}: {reason[:_SHOWN]}.", where=where)


def _shown(value: Any) -> str:
    return str(value)[:_SHOWN]
