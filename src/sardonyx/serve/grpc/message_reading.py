"""Messages of gRPC, whose fields are counted before the parse: each becomes an object, of a hundred bytes for two."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.protocol.messages import message_class

_SMALL = 64 << 10
"""Bytes of a message whose objects cannot be many."""

_MOST_FIELDS = 4096
"""Fields of a message, with those of its inputs and outputs: the sizes of 64 inputs may be a field each."""

INFERENCE = "ModelInferRequest"
"""The message of a request for inference, whose inputs and outputs have fields of their own."""

_TENSORS = (5, 6)
"""Numbers of its inputs and outputs."""


def read_message(kind: str, data: bytes) -> Any:
    """Return a message of a kind, unless the library of protocol buffers would allocate many objects.

    Raises:
        RequestError: The bytes are not such a message, or the message has too many fields.
    """
    if len(data) > _SMALL:
        try:
            _counted(data, 0, len(data), 0, _TENSORS if kind == INFERENCE else ())
        except IndexError as error:
            raise RequestError("the message is malformed.") from error
    try:
        return message_class(kind).FromString(data)
    except Exception as error:  # The library's error class depends on its implementation.
        raise RequestError("the message is malformed.") from error


def _counted(data: bytes, offset: int, end: int, count: int, nested: tuple[int, ...]) -> int:
    """Return a count with the fields between two offsets added.

    Args:
        data: The message.
        offset: The offset of the first field.
        end: The offset after the last field.
        count: The number of fields before.
        nested: The numbers of the fields that are messages whose fields count too.
    """
    while offset < end:
        count += 1
        if count > _MOST_FIELDS:
            raise RequestError(f"expected a message of at most {_MOST_FIELDS} fields.", kind="too_large")
        tag, offset = _varint(data, offset)
        match tag & 7:
            case 0:
                _, offset = _varint(data, offset)
            case 1:
                offset += 8
            case 2:
                length, offset = _varint(data, offset)
                if tag >> 3 in nested and offset + length <= end:
                    count = _counted(data, offset, offset + length, count, ())
                offset += length
            case 5:
                offset += 4
            case _:
                raise RequestError("the message is malformed.")
    if offset != end:
        raise RequestError("the message is malformed.")
    return count


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after the number."""
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise RequestError("the message is malformed.")
