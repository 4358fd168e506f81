"""The parameters extension: sequences, priorities, time limits and forms of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.requests import InferRequest, SequencePosition

_LONGEST_ID = 512


def require_id(id: str) -> None:
    """Check the client's name for a request, which the answer repeats.

    Raises:
        RequestError: The name is too long.
    """
    if len(id) > _LONGEST_ID:
        raise RequestError(f"expected at most {_LONGEST_ID} characters.", where="id")


def set_parameters(request: InferRequest, parameters: Mapping[str, Any]) -> None:
    """Set what the parameters of a request mean, and keep the others.

    Raises:
        RequestError: A parameter has another type, or is reserved for the server.
    """
    get = parameters.get
    identity = get("sequence_id")
    if identity is not None and identity != 0 and identity != "":
        if (
            isinstance(identity, bool)
            or not isinstance(identity, (int, str))
            or (isinstance(identity, int) and not 0 < identity < 2**64)
        ):
            raise RequestError(f"expected a number or a text, got {shortened(identity)}.", where="sequence_id")
        if isinstance(identity, str) and len(identity) > 128:
            raise RequestError("expected at most 128 characters.", where="sequence_id")
        flags = [flag(parameters, name) for name in ("sequence_start", "sequence_end")]
        request.sequence = SequencePosition(identity, *flags)
    request.priority = whole(parameters, "priority")
    request.timeout_us = whole(parameters, "timeout")
    request.binary_outputs = flag(parameters, "binary_data_output")
    for name in parameters:
        if name.startswith(("triton_", "sardonyx_")):
            raise RequestError("the server reserves the name.", where=name[:64])
    request.parameters = parameters


def flag(parameters: Mapping[str, Any], name: str) -> bool:
    """Return a parameter that is true or false; false if it is missing.

    Raises:
        RequestError: The parameter has another type.
    """
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"expected true or false, got {shortened(value)}.", where=name)
    return value


def whole(parameters: Mapping[str, Any], name: str) -> int:
    """Return a parameter that is a number from 0; 0 if it is missing.

    Raises:
        RequestError: The parameter has another type.
    """
    value = parameters.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise RequestError(f"expected a number from 0, got {shortened(value)}.", where=name)
    return value
