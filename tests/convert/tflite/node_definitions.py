"""Options of operators of TensorFlow in files for tests: a flexbuffer of a name and a `NodeDef` message."""

from __future__ import annotations

import struct
from typing import Any


def flex_options(operator: str, **attributes: Any) -> bytes:
    """Return the options of an operator: truth values, integers, floats, texts and lists of integers."""
    definition = _field(1, b"name") + _field(2, operator.encode())
    for key, value in attributes.items():
        definition += _field(5, _field(1, key.encode()) + _field(2, _value(value)))
    return flexbuffer_of_texts(operator.encode(), definition)


def flexbuffer_of_texts(*texts: bytes) -> bytes:
    """Return a flexbuffer with one vector of texts, all widths 4."""
    data, starts = b"", []
    for text in texts:
        data += struct.pack("<I", len(text))
        starts.append(len(data))
        data += text + b"\0"
    data += struct.pack("<I", len(texts))
    vector = len(data)
    for start in starts:
        data += struct.pack("<I", len(data) - start)
    data += bytes([5 << 2 | 2] * len(texts))
    return data + struct.pack("<I", len(data) - vector) + bytes([10 << 2 | 2, 4])


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = b""
    while number > 127:
        result += bytes([number & 127 | 128])
        number >>= 7
    return result + bytes([number])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return _varint(5 << 3) + _varint(int(value))
        case int():
            return _varint(3 << 3) + _varint(value)
        case float():
            return _varint(4 << 3 | 5) + struct.pack("<f", value)
        case str():
            return _field(2, value.encode())
    return _field(1, _field(3, b"".join(_varint(number) for number in value)))
