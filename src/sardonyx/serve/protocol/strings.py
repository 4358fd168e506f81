"""Tensors of strings as bytes: each element is its length in four bytes, little-endian, followed by its bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from sardonyx.errors import RequestError

_LENGTH = struct.Struct("<I")


def parse_strings(data: bytes | memoryview, count: int, where: str) -> list[str]:
    """Return the elements of a tensor of strings.

    Args:
        data: The bytes of the tensor, nothing before and after.
        count: The number of elements that the shape has.
        where: The name of the tensor, for messages.

    Raises:
        RequestError: The lengths do not fit the bytes or the count, or an element is not UTF-8.
    """
    if count * 4 > len(data):
        raise RequestError(f"expected {count} strings, got {len(data)} bytes.", where=where)
    view, offset = memoryview(data), 0
    texts: list[str] = []
    while offset < len(view):
        if offset + 4 > len(view):
            raise RequestError("a length of a string is truncated.", where=where)
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += 4
        if length > len(view) - offset:
            raise RequestError(
                f"expected a string of {length} bytes, got {len(view) - offset}.", where=f"{where}[{len(texts)}]"
            )
        texts.append(decoded(bytes(view[offset : offset + length]), f"{where}[{len(texts)}]"))
        offset += length
        if len(texts) > count:
            break
    if len(texts) != count:
        raise RequestError(f"expected {count} strings, got another number.", where=where)
    return texts


def decoded(data: bytes, where: str) -> str:
    """Return bytes as text.

    Raises:
        RequestError: The bytes are not UTF-8, which ONNX requires of strings.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError("expected a string in UTF-8.", where=where) from error


def string_array(texts: list[Any], shape: list[int]) -> np.ndarray:
    """Return texts as an array of objects."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def write_strings(array: np.ndarray) -> bytes:
    """Return the bytes of a tensor of strings."""
    parts = []
    for element in array.ravel().tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)
