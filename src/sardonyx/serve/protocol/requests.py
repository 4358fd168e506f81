"""Requests and answers of inference, as arrays."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

REQUEST_BYTES = 2560
"""Bytes of the objects of a request that waits, besides bodies and tensors."""


class Destination:
    """A place in shared memory that receives an output instead of the answer.

    Args:
        write: Copies an array's bytes to the region; returns the number of bytes.
        region: The name of the region.
    """

    __slots__ = ("region", "write")

    def __init__(self, write: Callable[[np.ndarray], int], region: str) -> None:
        self.write = write
        self.region = region


@dataclass(slots=True)
class RequestedOutput:
    """An output that a request names.

    Attributes:
        name: The name of the output, or of an inner tensor where the server permits these.
        is_binary: True for raw bytes after the JSON head; None for the default of the request.
        classes: The number of classes to return in place of scores; 0 for the tensor itself.
        destination: The place of the output in shared memory; None for the answer itself.
    """

    name: str
    is_binary: bool | None = None
    classes: int = 0
    destination: Destination | None = None


@dataclass(slots=True)
class SequencePosition:
    """The position of a request in a sequence.

    Attributes:
        id: The correlation id: a number or a text.
        is_start: True for the first request of the sequence.
        is_end: True for the last request.
    """

    id: int | str
    is_start: bool = False
    is_end: bool = False


@dataclass(slots=True, eq=False)
class InferRequest:
    """A request for one inference.

    Attributes:
        model: The name of the model.
        version: The number of the version as text; empty for the newest.
        id: The client's name for the request; answers repeat the id.
        inputs: The arrays by input name.
        outputs: The requested outputs; empty for all outputs of the model.
        parameters: Further parameters, which answers do not repeat.
        binary_outputs: True if outputs are raw bytes unless an output says otherwise.
        priority: The priority; 1 is the highest, 0 is the default of the model.
        timeout_us: Microseconds that the request may wait; 0 for no limit.
        sequence: The position in a sequence; None for a request of its own.
        size: Bytes that the request occupies while it waits: objects, received bytes, and tensors with memory of their
            own.
        arrival: The time of arrival, in nanoseconds of the monotonic clock.
        cancelled: True once the client has gone: the request is not computed.
        client: The name of the client's token; empty if the server requires no token.
        trace: The W3C trace context of the client; None if it sent none.
        started: The start of the run, as `arrival`; 0 before.
        ended: The end of the run; 0 before.
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: Sequence[RequestedOutput] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    binary_outputs: bool = False
    priority: int = 0
    timeout_us: int = 0
    sequence: SequencePosition | None = None
    size: int = REQUEST_BYTES
    arrival: int = field(default_factory=time.monotonic_ns)
    cancelled: bool = False
    client: str = ""
    trace: str | None = None
    started: int = 0
    ended: int = 0


@dataclass(slots=True, eq=False)
class Output:
    """An output of an answer.

    Attributes:
        name: The name.
        array: The values; strings are objects of type ``str`` or ``bytes``.
        requested: The request for the output; None if the client named no outputs.
    """

    name: str
    array: np.ndarray
    requested: RequestedOutput | None = None


@dataclass(slots=True, eq=False)
class Answer:
    """The answer to a request.

    Attributes:
        model: The name of the model.
        version: The version that answered, as text.
        id: The id of the request.
        outputs: The outputs, in the order of the request or of the model.
        revision: The revision of the model that computed all outputs.
    """

    model: str
    version: str
    id: str
    outputs: list[Output]
    revision: int


def tensor_bytes(array: np.ndarray) -> int:
    """Return the bytes of the memory of a tensor, of which it may be a part, with those of its strings."""
    strings = sum(map(sys.getsizeof, array.flat)) if array.dtype.kind == "O" else 0
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes + strings


class Cancellable(Protocol):
    """Work that can be cancelled when the client has gone."""

    def cancel(self) -> object:
        """Cancel the work."""


Done = Callable[["Answer | Exception"], None]
"""Receives the answer to a request, or the error."""
