"""Finds and moves tensor contents in the protobuf wire format, without parsing the message.

A model file is mostly tensor contents. `take_out` splits it into a *skeleton*, which is a small message that
protobuf parses, and the places of the contents in the file; `put_back` is its inverse. Both walk only into
messages that are large enough to hold contents, so that their time grows with the number of fields met on the way
and not with the size of the file.

Source: https://protobuf.dev/programming-guides/encoding/ and onnx.proto (field numbers).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sardonyx.errors import ModelFileError

MAX_DEPTH = 100
"""Messages nested deeper than this are refused; it is protobuf's own limit."""

RAW_DATA, FLOAT_DATA, DOUBLE_DATA = 9, 4, 10
"""Fields of ``TensorProto`` whose encoding is the tensor's contents in little-endian order."""

_EXTERNAL_DATA = 13
_PAYLOAD_FIELDS = frozenset({RAW_DATA, FLOAT_DATA, DOUBLE_DATA})
_ENDS_OF_LISTS = tuple(bytes([20 << 3 & 0x7F | 0x80, 1, kind]) for kind in (6, 7, 8))
"""How an attribute ends whose type is FLOATS, INTS or STRINGS: the field of its type comes after those of values."""

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_FIXED_CONTENTS = (FLOAT_DATA << 3 | _FIXED32, DOUBLE_DATA << 3 | _FIXED64)

Buffer = bytes | memoryview


class _Message(enum.Enum):
    MODEL = enum.auto()
    GRAPH = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    SPARSE_TENSOR = enum.auto()
    TENSOR = enum.auto()


# Fields to walk into. `training_info` is absent: it is carried as it is, never opened.
_CHILDREN: dict[_Message, dict[int, _Message]] = {
    _Message.MODEL: {7: _Message.GRAPH, 25: _Message.FUNCTION},
    _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR, 15: _Message.SPARSE_TENSOR},
    _Message.FUNCTION: {7: _Message.NODE, 11: _Message.ATTRIBUTE},
    _Message.NODE: {5: _Message.ATTRIBUTE},
    _Message.ATTRIBUTE: {
        5: _Message.TENSOR,
        6: _Message.GRAPH,
        10: _Message.TENSOR,
        11: _Message.GRAPH,
        22: _Message.SPARSE_TENSOR,
        23: _Message.SPARSE_TENSOR,
    },
    _Message.SPARSE_TENSOR: {1: _Message.TENSOR, 2: _Message.TENSOR},
    _Message.TENSOR: {},
}

# Fields that are not repeated: where the wire holds one of them twice, protobuf merges the two messages, and what
# the merged tensor holds is for protobuf to say.
_SINGULAR: dict[_Message, frozenset[int]] = {
    _Message.MODEL: frozenset({7}),
    _Message.ATTRIBUTE: frozenset({5, 6, 22}),
    _Message.SPARSE_TENSOR: frozenset({1, 2}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Payload:
    """Where the contents of one tensor lie.

    Attributes:
        start: Offset in bytes from the start of the file.
        length: Number of bytes.
        field: The field of ``TensorProto`` that holds them: `RAW_DATA`, `FLOAT_DATA` or `DOUBLE_DATA`.
    """

    start: int
    length: int
    field: int


def take_out(data: Buffer, least: int, token: str) -> tuple[bytes, list[Payload]]:
    """Splits a serialized ``ModelProto`` into a skeleton and the places of its large tensor contents.

    In the skeleton, a tensor whose contents were taken out has a last ``external_data`` entry with ``token`` as key
    and the index of its payload as value.

    Args:
        data: The serialized model.
        least: Contents of at least this many bytes are taken out.
        token: A key that no model can hold by accident or intent (drawn at random).

    Returns:
        The skeleton, and the payloads in the order of the file.

    Raises:
        ModelFileError: The data is truncated or malformed, or messages are nested more than 100 deep.
    """
    payloads: list[Payload] = []
    pieces = _take_out(data, _Message.MODEL, 0, len(data), least, token.encode(), payloads, 1)
    return (bytes(data) if pieces is None else b"".join(pieces)), payloads


def put_back(data: bytes, markers: Sequence[tuple[int, int, Payload]]) -> Iterator[bytes | Payload]:
    """Replaces markers in a serialized skeleton by the contents that they stand for.

    A marker is the value of a ``raw_data`` field; its tensor gets the payload's field instead. The lengths of all
    messages around it are encoded anew.

    Args:
        data: The serialized ``ModelProto`` with markers.
        markers: Start and length of each marker in ``data``, and what it stands for; in ascending order.

    Yields:
        Byte strings to write as they are, and payloads whose contents are to be written, in order. A payload's
        ``start`` is not looked at.
    """
    if not markers:
        yield data
        return
    pieces, _ = _put_back(data, _Message.MODEL, 0, len(data), markers)
    yield from pieces


def encode_varint(value: int) -> bytes:
    """Encodes a non-negative integer as a protobuf varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def length_field(number: int, value: bytes) -> bytes:
    """Encodes a length-delimited field: bytes, a string, a message or packed numbers."""
    return encode_varint(number << 3 | _LENGTH) + encode_varint(len(value)) + value


class _Field(NamedTuple):
    """A length-delimited field: its number, and where its tag, its length and its value begin and its value ends."""

    number: int
    tag: int
    length: int
    start: int
    end: int


def _take_out(
    data: Buffer, kind: _Message, start: int, end: int, least: int, token: bytes, payloads: list[Payload], depth: int
) -> list[Buffer] | None:
    """Returns the new contents of the message at ``start:end``, or None where nothing was taken out of it."""
    if depth > MAX_DEPTH:
        raise _malformed(f"nests messages more than {MAX_DEPTH} deep, which protobuf cannot read", start)
    if kind is _Message.TENSOR:
        return _take_out_contents(data, start, end, least, token, payloads)
    if kind is _Message.ATTRIBUTE and bytes(data[max(start, end - 3) : end]) in _ENDS_OF_LISTS:
        # Numbers and texts have a field each, a million of them in a large ensemble of trees. Where it is not what it
        # seems, contents stay in the skeleton.
        return None
    children = _CHILDREN[kind]
    fields = [field for field in _fields(data, start, end, least) if field.number in children]
    singular = _SINGULAR.get(kind)
    if fields and singular is not None:
        numbers = [field.number for field in _fields(data, start, end, 0)]
        fields = [field for field in fields if field.number not in singular or numbers.count(field.number) == 1]
    pieces: list[Buffer] = []
    copied = start
    for field in fields:
        child = children[field.number]
        inner = _take_out(data, child, field.start, field.end, least, token, payloads, depth + 1)
        if inner is not None:
            pieces += (data[copied : field.length], encode_varint(sum(map(len, inner))), *inner)
            copied = field.end
    if not pieces:
        return None
    pieces.append(data[copied:end])
    return pieces


def _take_out_contents(
    data: Buffer, start: int, end: int, least: int, token: bytes, payloads: list[Payload]
) -> list[Buffer] | None:
    fields = [field for field in _fields(data, start, end, 0) if field.number in _PAYLOAD_FIELDS]
    # Where contents are spread over several fields, protobuf knows how to join them.
    if len(fields) != 1 or fields[0].end - fields[0].start < least or _has_fixed_contents(data, start, end):
        return None
    (field,) = fields
    entry = length_field(1, token) + length_field(2, str(len(payloads)).encode())
    payloads.append(Payload(field.start, field.end - field.start, field.number))
    return [data[start : field.tag], data[field.end : end], length_field(_EXTERNAL_DATA, entry)]


def _put_back(
    data: bytes, kind: _Message, start: int, end: int, markers: Sequence[tuple[int, int, Payload]]
) -> tuple[list[bytes | Payload], int]:
    """Returns the new contents of the message at ``start:end``, which holds all ``markers``, and their length."""
    pieces: list[bytes | Payload] = []
    size = 0
    copied = start
    position = 0
    children = _CHILDREN[kind]
    for field in _fields(data, start, end, markers[0][1]):
        first = position
        while position < len(markers) and markers[position][0] < field.end:
            position += 1
        if first == position:
            continue
        if kind is _Message.TENSOR:
            payload = markers[first][2]
            head = data[copied : field.tag] + encode_varint(payload.field << 3 | _LENGTH)
            inner: list[bytes | Payload] = [payload]
            length = payload.length
        else:
            head = data[copied : field.length]
            inner, length = _put_back(data, children[field.number], field.start, field.end, markers[first:position])
        head += encode_varint(length)
        pieces += (head, *inner)
        size += len(head) + length
        copied = field.end
        if position == len(markers):
            break
    pieces.append(data[copied:end])
    return pieces, size + end - copied


def _fields(data: Buffer, start: int, end: int, least: int) -> Iterator[_Field]:
    """Iterates over the length-delimited fields of a message whose values have at least ``least`` bytes."""
    position = start
    while position < end:
        tag = position
        key = data[position]
        position += 1
        if key > 0x7F:
            key, position = _varint(data, tag, end)
        wire_type = key & 7
        if wire_type == _LENGTH:
            length_at = position
            if position >= end:
                raise _malformed("ends in the middle of a field", end)
            length = data[position]
            position += 1
            if length > 0x7F:
                if position < end and data[position] < 0x80:  # Most lengths have two digits.
                    length += (data[position] - 1) << 7
                    position += 1
                else:
                    length, position = _varint(data, length_at, end)
            if length > end - position:
                raise _malformed(f"claims {length:,} bytes where {max(end - position, 0):,} are left", tag)
            if length >= least:
                yield _Field(key >> 3, tag, length_at, position, position + length)
            position += length
        elif wire_type == _FIXED32 and key > 7:
            position += 4
        elif wire_type == _VARINT and key > 7 and position < end and data[position] < 0x80:
            position += 1
        else:
            position = _skip(data, position, end, key)
    if position > end:
        raise _malformed("ends in the middle of a field", end)


def _has_fixed_contents(data: Buffer, start: int, end: int) -> bool:
    """Whether a tensor holds floats or doubles one to a field, besides those in packed fields."""
    position = start
    while position < end:
        key, position = _varint(data, position, end) if data[position] > 0x7F else (data[position], position + 1)
        if key in _FIXED_CONTENTS:
            return True
        position = _skip(data, position, end, key)
    return False


def _skip(data: Buffer, position: int, end: int, key: int) -> int:
    """Returns the position after the value of a field, a whole group included."""
    open_groups = []
    while True:
        wire_type, number = key & 7, key >> 3
        if number == 0:
            raise _malformed("holds a field with the number 0", position)
        if wire_type == _VARINT:
            _, position = _varint(data, position, end)
        elif wire_type == _FIXED64:
            position += 8
        elif wire_type == _FIXED32:
            position += 4
        elif wire_type == _LENGTH:
            length, position = _varint(data, position, end)
            position += length
        elif wire_type == _START_GROUP:
            open_groups.append(number)
        elif wire_type != _END_GROUP:
            raise _malformed(f"holds a field of the unknown wire type {wire_type}", position)
        elif not open_groups or open_groups.pop() != number:
            raise _malformed("ends a group that was not begun", position)
        if position > end:
            raise _malformed("ends in the middle of a field", end)
        if not open_groups:
            return position
        key, position = _varint(data, position, end)


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Decodes the varint at ``position``; returns it and the position after it."""
    value = shift = 0
    for at in range(position, min(position + 10, end)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise _malformed("holds a number that does not end", position)


def _malformed(problem: str, offset: int) -> ModelFileError:
    return ModelFileError(
        f"{problem} (at byte {offset:,}).", remedy="The file is damaged or no ONNX model; get it again from its source."
    )
