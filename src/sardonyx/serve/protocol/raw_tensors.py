"""Tensors as raw bytes: numbers in the order of the machine, strings with their lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.datatypes import Datatype
from sardonyx.serve.protocol.limits import elements_of, require_length
from sardonyx.serve.protocol.strings import parse_strings, string_array, write_strings

Buffer = bytes | memoryview


def binary_tensor(data: memoryview, datatype: Datatype, shape: list[int], where: str) -> np.ndarray:
    """Return a tensor from its raw bytes; the array is a view of the bytes.

    Raises:
        RequestError: The bytes do not fit the shape.
    """
    count = elements_of(shape, where)
    if datatype.size == 0:
        return string_array(parse_strings(data, count, where), shape)
    require_length(count, shape, datatype, len(data), where)
    if datatype.name == "BOOL" and count and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestError("expected bytes 0 and 1 for BOOL.", where=where)
    return np.frombuffer(data, datatype.dtype).reshape(shape)


def binary_data(array: np.ndarray, datatype: Datatype) -> Buffer:
    """Return the raw bytes of an array, without a copy where possible."""
    if datatype.size == 0:
        return write_strings(array)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)
