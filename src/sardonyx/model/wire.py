"""Extraction and insertion of tensor contents in the protobuf wire format, without parsing.

A model file is mostly tensor contents. `extract_payloads` splits a file into a *skeleton*, a small message that
protobuf parses, and the offsets of the contents in the file; `insert_payloads` is the inverse. Both visit only messages
that are large enough to hold contents, so their time grows with the number of visited fields and not with the size of
the file.

Source: https://protobuf.dev/programming-guides/encoding/ and onnx.proto (field numbers).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, overload

from sardonyx.errors import ModelFileError

MAX_DEPTH = 100
"""Depth limit of nested messages, equal to protobuf's own limit."""

RAW_DATA, FLOAT_DATA, DOUBLE_DATA = 9, 4, 10
"""Fields of ``TensorProto`` whose encoding is the tensor's contents in little-endian order."""

_EXTERNAL_DATA = 13
_PAYLOAD_FIELDS = frozenset({RAW_DATA, FLOAT_DATA, DOUBLE_DATA})
_ENDS_OF_LISTS = tuple(bytes([20 << 3 & 0x7F | 0x80, 1, kind]) for kind in (6, 7, 8))
"""Last bytes of attributes of type FLOATS, INTS and STRINGS: the type field follows the values."""

_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_FIXED_CONTENTS = (FLOAT_DATA << 3 | _FIXED32, DOUBLE_DATA << 3 | _FIXED64)

Buffer = bytes | memoryview


class Contents(Protocol):
    """Bytes of a model: in memory, or read as they are asked for."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> Buffer: ...


class _Message(enum.Enum):
    MODEL = enum.auto()
    GRAPH = enum.auto()
    FUNCTION = enum.auto()
    NODE = enum.auto()
    ATTRIBUTE = enum.auto()
    SPARSE_TENSOR = enum.auto()
    TENSOR = enum.auto()


# Fields to visit. `training_info` is absent: its bytes are copied unchanged.
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

# Fields that are not repeated: protobuf merges two occurrences of one into one message, so that only protobuf can
# tell the contents of the merged tensor.
_SINGULAR: dict[_Message, frozenset[int]] = {
    _Message.MODEL: frozenset({7}),
    _Message.ATTRIBUTE: frozenset({5, 6, 22}),
    _Message.SPARSE_TENSOR: frozenset({1, 2}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Payload:
    """Location of one tensor's contents in a file.

    Attributes:
        start: Offset in bytes from the start of the file.
        length: Number of bytes.
        field: The field of ``TensorProto`` for the contents: `RAW_DATA`, `FLOAT_DATA` or `DOUBLE_DATA`.
    """

    start: int
    length: int
    field: int


def extract_payloads(data: Contents, min_bytes: int, token: str) -> tuple[bytes, list[Payload]]:
    """Split a serialized ``ModelProto`` into a skeleton and the locations of its large tensor contents.

    In the skeleton, a tensor without its contents has a last ``external_data`` entry with ``token`` as key and the
    index of its payload as value.

    Args:
        data: The serialized model.
        min_bytes: Contents of at least this many bytes are extracted.
        token: A key that no model can contain by accident or intent (drawn at random).

    Returns:
        The skeleton, and the payloads in the order of the file.

    Raises:
        ModelFileError: The data is truncated or malformed, or messages are nested more than 100 deep.
    """
    payloads: list[Payload] = []
    pieces = _extract(data, _Message.MODEL, 0, len(data), min_bytes, token.encode(), payloads, 1)
    return (bytes(data[:]) if pieces is None else b"".join(pieces)), payloads


def insert_payloads(data: bytes, markers: Sequence[tuple[int, int, Payload]]) -> Iterator[bytes | Payload]:
    """Replace markers in a serialized skeleton by their contents.

    A marker is the value of a ``raw_data`` field; the tensor gets the payload's field instead. The lengths of all
    enclosing messages are encoded anew.

    Args:
        data: The serialized ``ModelProto`` with markers.
        markers: Start and length of each marker in ``data``, and its payload; in ascending order.

    Yields:
        Byte strings to write unchanged, and payloads whose contents are to be written, in order. The ``start`` of a
        payload is ignored.
    """
    if not markers:
        yield data
        return
    pieces, _ = _insert(data, _Message.MODEL, 0, len(data), markers)
    yield from pieces


def encode_varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def length_field(number: int, value: bytes) -> bytes:
    """Encode a length-delimited field: bytes, a string, a message or packed numbers."""
    return encode_varint(number << 3 | _LENGTH) + encode_varint(len(value)) + value


class _Field(NamedTuple):
    """A length-delimited field: its number; offsets of its tag, length, value, and the end of its value."""

    number: int
    tag: int
    length: int
    start: int
    end: int


def _extract(
    data: Contents,
    kind: _Message,
    start: int,
    end: int,
    min_bytes: int,
    token: bytes,
    payloads: list[Payload],
    depth: int,
) -> list[Buffer] | None:
    """Return the new contents of the message at ``start:end``, or None if nothing was extracted."""
    if depth > MAX_DEPTH:
        raise _malformed(f"nests messages more than {MAX_DEPTH} deep, protobuf's limit", start)
    if kind is _Message.TENSOR:
        return _extract_contents(data, start, end, min_bytes, token, payloads)
    if kind is _Message.ATTRIBUTE and bytes(data[max(start, end - 3) : end]) in _ENDS_OF_LISTS:
        # Each number or text is a field, of which a large ensemble of trees has a million. If the bytes match by
        # accident, the contents only stay in the skeleton.
        return None
    children = _CHILDREN[kind]
    fields = [field for field in _fields(data, start, end, min_bytes) if field.number in children]
    singular = _SINGULAR.get(kind)
    if fields and singular is not None:
        numbers = [field.number for field in _fields(data, start, end, 0)]
        fields = [field for field in fields if field.number not in singular or numbers.count(field.number) == 1]
    pieces: list[Buffer] = []
    copied_end = start
    for field in fields:
        child = children[field.number]
        inner = _extract(data, child, field.start, field.end, min_bytes, token, payloads, depth + 1)
        if inner is not None:
            pieces += (data[copied_end : field.length], encode_varint(sum(map(len, inner))), *inner)
            copied_end = field.end
    if not pieces:
        return None
    pieces.append(data[copied_end:end])
    return pieces


def _extract_contents(
    data: Contents, start: int, end: int, min_bytes: int, token: bytes, payloads: list[Payload]
) -> list[Buffer] | None:
    fields = [field for field in _fields(data, start, end, 0) if field.number in _PAYLOAD_FIELDS]
    # Contents spread over several fields are left to protobuf, which joins them.
    if len(fields) != 1 or fields[0].end - fields[0].start < min_bytes or _has_fixed_contents(data, start, end):
        return None
    (field,) = fields
    entry = length_field(1, token) + length_field(2, str(len(payloads)).encode())
    payloads.append(Payload(field.start, field.end - field.start, field.number))
    return [data[start : field.tag], data[field.end : end], length_field(_EXTERNAL_DATA, entry)]


def _insert(
    data: bytes, kind: _Message, start: int, end: int, markers: Sequence[tuple[int, int, Payload]]
) -> tuple[list[bytes | Payload], int]:
    """Return the new contents of the message at ``start:end`` with all ``markers``, and their length."""
    pieces: list[bytes | Payload] = []
    size = 0
    copied_end = start
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
            head = data[copied_end : field.tag] + encode_varint(payload.field << 3 | _LENGTH)
            inner: list[bytes | Payload] = [payload]
            length = payload.length
        else:
            head = data[copied_end : field.length]
            inner, length = _insert(data, children[field.number], field.start, field.end, markers[first:position])
        head += encode_varint(length)
        pieces += (head, *inner)
        size += len(head) + length
        copied_end = field.end
        if position == len(markers):
            break
    pieces.append(data[copied_end:end])
    return pieces, size + end - copied_end


def _fields(data: Contents, start: int, end: int, min_bytes: int) -> Iterator[_Field]:
    """Iterate over the length-delimited fields of a message with values of at least ``min_bytes`` bytes."""
    position = start
    while position < end:
        tag = position
        key = data[position]
        position += 1
        if key > 0x7F:
            key, position = _varint(data, tag, end)
        wire_type = key & 7
        if wire_type == _LENGTH:
            length_start = position
            if position >= end:
                raise _malformed("ends in the middle of a field", end)
            length = data[position]
            position += 1
            if length > 0x7F:
                if position < end and data[position] < 0x80:  # Fast path: most lengths have two bytes.
                    length += (data[position] - 1) << 7
                    position += 1
                else:
                    length, position = _varint(data, length_start, end)
            if length > end - position:
                raise _malformed(
                    f"contains a field of {length:,} bytes with {max(end - position, 0):,} bytes left", tag
                )
            if length >= min_bytes:
                yield _Field(key >> 3, tag, length_start, position, position + length)
            position += length
        elif wire_type == _FIXED32 and key > 7:
            position += 4
        elif wire_type == _VARINT and key > 7 and position < end and data[position] < 0x80:
            position += 1
        else:
            position = _skip(data, position, end, key)
    if position > end:
        raise _malformed("ends in the middle of a field", end)


def _has_fixed_contents(data: Contents, start: int, end: int) -> bool:
    """Return True if a tensor has floats or doubles in one field each, besides packed fields."""
    position = start
    while position < end:
        key, position = _varint(data, position, end) if data[position] > 0x7F else (data[position], position + 1)
        if key in _FIXED_CONTENTS:
            return True
        position = _skip(data, position, end, key)
    return False


def _skip(data: Contents, position: int, end: int, key: int) -> int:
    """Return the position after the value of a field, including a whole group."""
    open_groups = []
    while True:
        wire_type, number = key & 7, key >> 3
        if number == 0:
            raise _malformed("contains a field with the number 0", position)
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
            raise _malformed(f"contains a field of the unknown wire type {wire_type}", position)
        elif not open_groups or open_groups.pop() != number:
            raise _malformed("ends a group without a start", position)
        if position > end:
            raise _malformed("ends in the middle of a field", end)
        if not open_groups:
            return position
        key, position = _varint(data, position, end)


def _varint(data: Contents, position: int, end: int) -> tuple[int, int]:
    """Decode the varint at ``position``; return its value and the position after the varint."""
    value = shift = 0
    for index in range(position, min(position + 10, end)):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    raise _malformed("contains an unterminated varint", position)


def _malformed(problem: str, offset: int) -> ModelFileError:
    return ModelFileError(
        f"{problem} (at byte {offset:,}).",
        remedy="Download the file again: the file is damaged or not an ONNX model.",
    )
