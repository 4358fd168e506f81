"""Conversion between the values of callers (arrays, lists, dicts, None) and known Core values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.base.dlpack import from_dlpack
from sardonyx.core.eval.tensor import constant, known
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import (
    STRING,
    DType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    conversion_remedy,
    dtype_of,
    is_float,
    numpy_dtype,
)
from sardonyx.errors import FeedError


def as_value(feed: Any, declared: Type | None, name: str) -> Value:
    """Return a feed as a known value of the declared type.

    Raises:
        FeedError: The feed is of another kind.
    """
    match declared:
        case SequenceType():
            if not isinstance(feed, (list, tuple)):
                raise FeedError(f"expected a list for {declared}, got {type(feed).__name__}.", where=name)
            return known([as_value(item, declared.element, name).known for item in feed], declared)
        case OptionalType():
            return known(None if feed is None else as_value(feed, declared.element, name).known, declared)
        case MapType():
            if not isinstance(feed, Mapping):
                raise FeedError(f"expected a dict for {declared}, got {type(feed).__name__}.", where=name)
            return known(_to_map(feed, declared, name), declared)
    if feed is None or isinstance(feed, (list, tuple, dict)):
        raise FeedError(f"expected an array, got {type(feed).__name__}.", where=name, remedy="Use `numpy.asarray`.")
    array = feed_array(feed, name)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    dtype = dtype_of(array) if array.dtype != object else None
    if dtype is None:
        flat = [w.decode() if isinstance(w, bytes) else w for w in array.ravel().tolist()]
        if other := next((w for w in flat if not isinstance(w, str)), None):
            raise FeedError(
                f"expected an array of numbers or strings, got elements of type {type(other).__name__}.", where=name
            )
        words = np.empty(len(flat), object)
        words[:] = flat
        return constant(words.reshape(array.shape), STRING)
    if isinstance(declared, TensorType) and declared.dtype != dtype:
        raise FeedError(
            f"expected elements of type {declared.dtype.name.lower()}, got {dtype.name.lower()}.",
            where=name,
            remedy=conversion_remedy(declared.dtype),
        )
    return constant(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def shared_array(feed: Any, name: str) -> np.ndarray:
    """Return the array itself, or a view of the memory that an object exports over DLPack.

    Raises:
        FeedError: The object is neither an array nor a DLPack exporter, or refuses to export its memory.
    """
    if isinstance(feed, np.ndarray):
        return feed
    if not hasattr(feed, "__dlpack__"):
        raise FeedError(f"expected an array, got {type(feed).__name__}.", where=name, remedy="Use `numpy.asarray`.")
    try:
        return from_dlpack(feed)
    except (BufferError, RuntimeError) as error:
        raise FeedError(f"the {type(feed).__name__} cannot be read: {error}.", where=name) from error


def feed_array(feed: Any, name: str) -> np.ndarray:
    """Return a feed as an array over the same memory, or as a copy if numpy can only convert the feed.

    Args:
        feed: An array, a tensor of another package, numbers, or nested sequences of these.
        name: The name of the feed, for messages.

    Raises:
        FeedError: The memory is that of a device, or its owner refuses.
    """
    if isinstance(feed, (np.ndarray, np.generic)) or not hasattr(feed, "__dlpack__"):
        return np.asarray(feed)
    try:
        return shared_array(feed, name)
    except FeedError:
        if not hasattr(feed, "__array__"):
            raise
        try:
            return np.asarray(feed)
        except (TypeError, RuntimeError):
            pass
        raise


def _to_map(feed: Mapping[Any, Any], declared: MapType, name: str) -> dict[Any, Any]:
    """Return a map with keys and values of the declared types.

    Raises:
        FeedError: A key or a value is of another type.
    """
    key_type = str if declared.key == STRING else int
    keys = [key.item() if isinstance(key, np.generic) else key for key in feed]
    value_type = declared.value.dtype if isinstance(declared.value, TensorType) else None
    values = list(feed.values())
    for kind, elements, dtype in (("keys", keys, declared.key), ("values", values, value_type)):
        wrong = [x for x in elements if dtype is not None and not _is_element(x, dtype)]
        if wrong and dtype is not None:
            raise FeedError(
                f"expected {kind} of type {dtype.name.lower()} for {declared}, got {wrong[0]!r}.", where=name
            )
    if value_type is None or value_type == STRING:
        return dict(zip(map(key_type, keys), values, strict=True))
    number = numpy_dtype(value_type).type
    return dict(zip(map(key_type, keys), map(number, values), strict=True))


def _is_element(value: Any, dtype: DType) -> bool:
    """Return True if a Python or numpy scalar is a value of an element type without loss."""
    if dtype == STRING:
        return isinstance(value, str)
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
        return False
    if is_float(dtype):
        return True
    limits = np.iinfo(numpy_dtype(dtype))
    return bool(value == value // 1 and limits.min <= value <= limits.max)


def to_python(value: Value) -> Any:
    """Return a result for the caller; arrays are copied, so that the caller owns them."""
    result = value.known
    if isinstance(result, np.ndarray):
        return result.copy()
    return result
