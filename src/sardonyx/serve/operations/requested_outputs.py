"""Requested outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.operations.parameters import whole
from sardonyx.serve.operations.service import Service
from sardonyx.serve.operations.shared_memory import require_region
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.requests import RequestedOutput


def requested_output(service: Service, name: str, parameters: Mapping[str, Any]) -> RequestedOutput:
    """Return a requested output with the meaning of its parameters.

    Raises:
        RequestError: A parameter has another type, names an unknown region, or requires a region that none names.
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
    require_region(parameters, name[:64])
    region = parameters.get("shared_memory_region")
    if region is not None:
        span = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
        destination = service.shared_memory.destination(region, *span)
    return RequestedOutput(name, binary, classes, destination)
