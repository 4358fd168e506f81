"""Read `NodeDef` messages, the options of operators of TensorFlow in a file, in the protobuf wire format.

Source: https://protobuf.dev/programming-guides/encoding/ and tensorflow/core/framework/{node_def,attr_value}.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from sardonyx.convert.tflite.flexbuffer import flexbuffer
from sardonyx.errors import ModelFileError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_ATTRIBUTES, _KEY, _VALUE = 5, 1, 2
_LIST, _TEXT, _INTEGER, _NUMBER, _TRUTH, _TYPE = 1, 2, 3, 4, 5, 6


def attributes(custom_options: bytes, where: str) -> SimpleNamespace:
    """Return the attributes of an operator of TensorFlow: truth values, integers, numbers, texts, and lists of these.

    Attributes of other kinds (functions, tensors, shapes) are left out.

    Args:
        custom_options: The options in the file: a flexbuffer of the operator's name and its `NodeDef`.
        where: Name of the operator for errors.

    Raises:
        ModelFileError: The options are malformed.
    """
    root = flexbuffer(custom_options, where)
    if not isinstance(root, list) or len(root) != 2 or not isinstance(root[1], (str, bytes)):
        raise ModelFileError("malformed options: expected a name and a NodeDef", where=where)
    # A flexbuffer holds the message as a text.
    message = root[1] if isinstance(root[1], bytes) else root[1].encode("utf-8", "surrogateescape")
    result: dict[str, Any] = {}
    for number, entry in _fields(message, where):
        if number != _ATTRIBUTES or not isinstance(entry, bytes):
            continue
        parts = dict(_fields(entry, where))
        key, value = parts.get(_KEY, b""), parts.get(_VALUE, b"")
        if isinstance(key, bytes) and isinstance(value, bytes):
            read = _attribute(value, where)
            if read is not None:
                result[key.decode("utf-8", "replace")] = read
    return SimpleNamespace(**result)


def _attribute(message: bytes, where: str) -> Any:
    """Return the value of an `AttrValue`, None for kinds that no operator here has."""
    for number, value in _fields(message, where):
        if number == _LIST and isinstance(value, bytes):
            return [item for kind, part in _fields(value, where) for item in _items(kind, part, where)]
        if number in (_TEXT, _INTEGER, _NUMBER, _TRUTH, _TYPE):
            return _single(number, value)
    return None


def _single(number: int, value: int | bytes | float) -> Any:
    if number == _TEXT:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
    if number == _TRUTH:
        return bool(value)
    return value


def _items(number: int, value: int | bytes | float, where: str) -> Iterator[Any]:
    """Yield elements of a list: integers are packed in one field."""
    if number == _INTEGER and isinstance(value, bytes):
        position = 0
        while position < len(value):
            item, position = _varint(value, position, where)
            yield item
    elif number == _NUMBER and isinstance(value, bytes):
        yield from struct.unpack(f"<{len(value) // 4}f", value[: len(value) // 4 * 4])
    else:
        yield _single(number, value)


def _fields(message: bytes, where: str) -> Iterator[tuple[int, int | bytes | float]]:
    """Yield numbers and values of the fields of a message."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position, where)
        kind = tag & 7
        value: int | bytes | float
        if kind == _VARINT:
            value, position = _varint(message, position, where)
        elif kind == _LENGTH:
            size, position = _varint(message, position, where)
            value = _span(message, position, size, where)
            position += size
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
            (value,) = struct.unpack("<f" if kind == _FIXED32 else "<d", _span(message, position, size, where))
            position += size
        else:
            raise ModelFileError(f"malformed options: unknown wire type {kind} at {position}", where=where)
        yield tag >> 3, value


def _span(message: bytes, position: int, size: int, where: str) -> bytes:
    if size < 0 or position + size > len(message):
        raise ModelFileError(f"malformed options: {size} bytes at {position} of {len(message)}", where=where)
    return message[position : position + size]


def _varint(message: bytes, position: int, where: str) -> tuple[int, int]:
    """Return a signed integer and the position after it."""
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            number &= (1 << 64) - 1
            return number - (1 << 64) if number >> 63 else number, position
    raise ModelFileError(f"malformed options: an integer at {position} does not end", where=where)
