"""Limits of a server, checked before memory is allocated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from sardonyx.errors import OptionError, RequestError
from sardonyx.serve.protocol.datatypes import Datatype, shortened

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of models; nothing else of a request is compared with names of files."""

_LARGEST_SIZE = 2**63 - 1

_LARGEST_RANK = 64

_MOST_ELEMENTS = _LARGEST_SIZE // 16
"""Elements of 16 bytes, the largest, whose bytes are counted by 63 bits."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server; every limit is a field.

    Attributes:
        head_bytes: Bytes of the request line and all header fields.
        headers: Number of header fields.
        body_bytes: Bytes of a body, also after decompression.
        json_depth: Levels of nested lists and objects.
        tensors: Inputs, and requested outputs, of a request.
        compression_ratio: Bytes after decompression over bytes before, for bodies above 64 KiB.
        output_bytes: Bytes of all outputs of an answer.
        connections: Open connections.
        streams: Concurrent streams of an HTTP/2 connection.
        queue_requests: Requests that wait for a model.
        queue_bytes: Bytes of requests that wait for a model: received bytes, tensors and objects.
        held_bytes: Bytes of all incomplete requests, and of all answers that clients do not read; at least a body and
            an answer.
        head_seconds: Time for a complete head.
        body_seconds: Time for a body, beyond one second for each KiB.
        idle_seconds: Time between requests of a connection.
        run_seconds: Time of one run.
        run_bytes: Bytes of the live values of one run.
        loop_iterations: Iterations of each loop of a run.
        sequences: Open sequences of a model.
        shared_memory_regions: Registered regions of shared memory.

    Raises:
        OptionError: A limit is not positive.
    """

    head_bytes: int = 16 << 10
    headers: int = 100
    body_bytes: int = 64 << 20
    json_depth: int = 8
    tensors: int = 64
    compression_ratio: int = 20
    output_bytes: int = 256 << 20
    connections: int = 1024
    streams: int = 64
    queue_requests: int = 1024
    queue_bytes: int = 1 << 30
    held_bytes: int = 1 << 30
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    run_seconds: float = 60.0
    run_bytes: int = 8 << 30
    loop_iterations: int = 10_000_000
    sequences: int = 4096
    shared_memory_regions: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise OptionError(
                    f"expected a limit above 0, got {getattr(self, field.name)}.", where=f"limits.{field.name}"
                )

    def body(self, length: int) -> None:
        """Check the length of a body.

        Raises:
            RequestError: The body is too large.
        """
        if length > self.body_bytes:
            raise RequestError(
                f"expected a body of at most {self.body_bytes} bytes, got {length}.",
                kind="too_large",
                remedy="Send less, or raise --max-body.",
            )

    def count(self, number: int, of: str) -> None:
        """Check the number of tensors in a request.

        Raises:
            RequestError: The request has too many.
        """
        if number > self.tensors:
            raise RequestError(f"expected at most {self.tensors} {of}, got {number}.", kind="too_large")


def elements_of(shape: Sequence[object], where: str) -> int:
    """Return the number of elements of a shape, computed without overflow.

    Raises:
        RequestError: The rank is above 64, a size is not an integer, is negative, or no array has the sizes, even if
            another of them is 0.
    """
    require_rank(len(shape), where)
    number, strides = 1, 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= _LARGEST_SIZE:
            raise RequestError(f"expected sizes from 0 to 2⁶³ - 1, got {shortened(size)}.", where=where)
        number *= size
        strides *= size or 1
        if strides > _MOST_ELEMENTS:
            raise RequestError(f"the shape {shortened(list(shape))} has too many elements.", where=where)
    return number


def require_rank(rank: int, where: str) -> None:
    """Check the number of sizes of a tensor.

    Raises:
        RequestError: The rank is above 64.
    """
    if rank > _LARGEST_RANK:
        raise RequestError(f"expected at most {_LARGEST_RANK} sizes, got {rank}.", where=where)


def require_bytes(shape: Sequence[int], datatype: Datatype, length: int, where: str) -> None:
    """Check the bytes of a tensor against its shape.

    Raises:
        RequestError: The bytes are fewer or more than the shape needs.
    """
    require_length(elements_of(shape, where), shape, datatype, length, where)


def require_length(count: int, shape: Sequence[int], datatype: Datatype, length: int, where: str) -> None:
    """Check the bytes of a tensor against the number of its elements.

    Raises:
        RequestError: The bytes are fewer or more than the elements need.
    """
    needed = count * datatype.size
    if datatype.size and needed != length:
        raise RequestError(
            f"expected {needed} bytes for shape {list(shape)} of {datatype.name}, got {length}.", where=where
        )
