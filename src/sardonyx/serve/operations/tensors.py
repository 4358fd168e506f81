"""Raw tensors of requests and answers, and requested outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.operations.parameters import whole
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.datatypes import Datatype, shortened
from sardonyx.serve.protocol.limits import elements_of, require_length
from sardonyx.serve.protocol.requests import RequestedOutput
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


def requested_output(service: Service, name: str, parameters: Mapping[str, Any]) -> RequestedOutput:
    """Return a requested output with the meaning of its parameters.

    Raises:
        RequestError: A parameter has another type, or names an unknown region.
    """
    if not parameters:
        return RequestedOutput(name)
    binary = parameters.get("binary_data")
    if binary is not None and not isinstance(binary, bool):
        raise RequestError(f"expected true or false, got {shortened(binary)}.", where="binary_data")
    classes = whole(parameters, "classification")
    if classes > 1_000_000:
        raise RequestError("expected at most 1,000,000 classes.", where="classification")
    destination = None
    region = parameters.get("shared_memory_region")
    if region is not None:
        span = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
        destination = service.shared_memory.destination(region, *span)
    return RequestedOutput(name, binary, classes, destination)


def binary_data(array: np.ndarray, datatype: Datatype) -> Buffer:
    """Return the raw bytes of an array, without a copy where possible."""
    if datatype.size == 0:
        return write_strings(array)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    raw: Any = array.reshape(-1).view(np.uint8)
    return memoryview(raw)
