"""What a caller feeds and gets: arrays, lists, dicts and None, to known values and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.base.dlpack import from_dlpack
from sardonyx.core.eval.tensor import constant, known
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import (
    STRING,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    dtype_of,
    numpy_dtype,
)
from sardonyx.errors import FeedError


def as_value(fed: Any, declared: Type | None, name: str) -> Value:
    """What was fed, as a known value of the type declared.

    Raises:
        FeedError: It is of another kind.
    """
    match declared:
        case SequenceType():
            if not isinstance(fed, (list, tuple)):
                raise FeedError(f"a list is needed for {declared}, not {type(fed).__name__}.", where=name)
            return known([as_value(item, declared.element, name).known for item in fed], declared)
        case OptionalType():
            return known(None if fed is None else as_value(fed, declared.element, name).known, declared)
        case MapType():
            if not isinstance(fed, Mapping):
                raise FeedError(f"a dict is needed for {declared}, not {type(fed).__name__}.", where=name)
            return known(_map_of(fed, declared), declared)
    if fed is None or isinstance(fed, (list, tuple, dict)):
        raise FeedError(f"an array is needed, not {type(fed).__name__}.", where=name, remedy="Use `numpy.asarray`.")
    array = _array_of(fed, name)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    dtype = dtype_of(array) if array.dtype != object else None
    if dtype is None:
        flat = [w.decode() if isinstance(w, bytes) else w for w in array.ravel().tolist()]
        if other := next((w for w in flat if not isinstance(w, str)), None):
            raise FeedError(f"an array of numbers or texts is needed, not of {type(other).__name__}.", where=name)
        words = np.empty(len(flat), object)
        words[:] = flat
        return constant(words.reshape(array.shape), STRING)
    if isinstance(declared, TensorType) and declared.dtype != dtype:
        raise FeedError(
            f"elements are {dtype.name.lower()}, and {declared.dtype.name.lower()} is needed.",
            where=name,
            remedy="Convert the array with `astype`.",
        )
    return constant(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def shared_array(fed: Any, name: str) -> np.ndarray:
    """The array itself, or the one over the memory of whoever speaks DLPack.

    Raises:
        FeedError: It is neither, or does not give its memory away.
    """
    if isinstance(fed, np.ndarray):
        return fed
    if not hasattr(fed, "__dlpack__"):
        raise FeedError(f"an array is needed, not {type(fed).__name__}.", where=name, remedy="Use `numpy.asarray`.")
    try:
        return from_dlpack(fed)
    except (BufferError, RuntimeError) as error:
        raise FeedError(f"the {type(fed).__name__} cannot be read: {error}.", where=name) from error


def _array_of(fed: Any, name: str) -> np.ndarray:
    """An array of what was fed; over the same memory, unless it lies where numpy does not read and tells numpy so."""
    if isinstance(fed, (np.ndarray, np.generic)) or not hasattr(fed, "__dlpack__"):
        return np.asarray(fed)
    try:
        return shared_array(fed, name)
    except FeedError:
        if not hasattr(fed, "__array__"):
            raise
        try:
            return np.asarray(fed)
        except (TypeError, RuntimeError):
            pass
        raise


def _map_of(fed: Mapping[Any, Any], declared: MapType) -> dict[Any, Any]:
    """A map with numbers of the type declared."""
    if not isinstance(declared.value, TensorType) or declared.value.dtype == STRING:
        return dict(fed)
    number = numpy_dtype(declared.value.dtype).type
    return {key: number(value) for key, value in fed.items()}


def returned(value: Value) -> Any:
    """A result for the caller to keep: an array of its own."""
    found = value.known
    if isinstance(found, np.ndarray):
        return found.copy()
    return found
