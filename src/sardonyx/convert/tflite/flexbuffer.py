"""Read flexbuffers, the self-describing options of custom operators: numbers, texts, vectors, maps.

Source: https://flatbuffers.dev/flexbuffers/
"""

from __future__ import annotations

import struct
from typing import Any

from sardonyx.errors import ModelFileError

_INTEGERS = {1: "<b", 2: "<h", 4: "<i", 8: "<q"}
_UNSIGNED = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_DEEPEST = 8


def flexbuffer(data: bytes, where: str) -> Any:
    """Return the root value of a flexbuffer: None, a number, a string, bytes, a list or a dict.

    Raises:
        ModelFileError: An offset is out of range, or a type is unknown.
    """
    if len(data) < 3:
        raise ModelFileError(f"options have {len(data)} bytes, expected a flexbuffer", where=where)
    width = data[-1]
    return _Flexbuffer(data, where).value(len(data) - 2 - width, width, data[-2], 0)


class _Flexbuffer:
    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.remaining = 1000 + len(data)

    def scalar(self, forms: dict[int, str], position: int, width: int) -> Any:
        if width not in forms or position < 0 or position + width > len(self.data):
            raise ModelFileError(
                f"malformed options: offset {position} and width {width} in {len(self.data)} bytes", where=self.where
            )
        return struct.unpack_from(forms[width], self.data, position)[0]

    def value(self, position: int, parent_width: int, packed: int, depth: int) -> Any:
        self.remaining -= 1
        if depth > _DEEPEST or self.remaining < 0:
            raise ModelFileError("malformed options: the nesting is too deep", where=self.where)
        kind, width = packed >> 2, 1 << (packed & 3)
        match kind:
            case 0:
                return None
            case 1:
                return self.scalar(_INTEGERS, position, parent_width)
            case 2 | 26:
                number = self.scalar(_UNSIGNED, position, parent_width)
                return bool(number) if kind == 26 else number
            case 3:
                return self.scalar(_FLOATS, position, parent_width)
        target = position - self.scalar(_UNSIGNED, position, parent_width)
        match kind:
            case 4:
                return self.text(target)
            case 5 | 25:
                size = self.scalar(_UNSIGNED, target - width, width)
                if target + size > len(self.data):
                    raise ModelFileError(f"malformed options: {size} bytes at {target}", where=self.where)
                content = self.data[target : target + size]
                return content.decode("utf-8", "surrogateescape") if kind == 5 else content
            case 6 | 7 | 8:
                return self.scalar((_INTEGERS, _UNSIGNED, _FLOATS)[kind - 6], target, width)
            case 9:
                keys = target - 3 * width
                keys_position = keys - self.scalar(_UNSIGNED, keys, width)
                keys_width = self.scalar(_UNSIGNED, keys + width, width)
                names = self.typed(keys_position, keys_width, 4, depth)
                return dict(zip(names, self.vector(target, width, depth), strict=True))
            case 10:
                return self.vector(target, width, depth)
            case 11 | 12 | 13 | 14 | 36:
                return self.typed(target, width, {36: 26}.get(kind, kind - 10), depth)
        raise ModelFileError(f"malformed options: unknown type {kind}", where=self.where)

    def text(self, position: int) -> str:
        end = self.data.find(b"\0", max(position, 0))
        if position < 0 or end < 0:
            raise ModelFileError(f"malformed options: a name at {position} does not end", where=self.where)
        return self.data[position:end].decode("utf-8", "replace")

    def count(self, position: int, width: int) -> int:
        count = int(self.scalar(_UNSIGNED, position - width, width))
        if count > len(self.data):
            raise ModelFileError(f"malformed options: {count} elements", where=self.where)
        return count

    def vector(self, position: int, width: int, depth: int) -> list[Any]:
        count = self.count(position, width)
        kinds = position + count * width
        if kinds + count > len(self.data):
            raise ModelFileError(f"malformed options: {count} elements at {position}", where=self.where)
        return [self.value(position + i * width, width, self.data[kinds + i], depth + 1) for i in range(count)]

    def typed(self, position: int, width: int, kind: int, depth: int) -> list[Any]:
        count = self.count(position, width)
        return [self.value(position + i * width, width, kind << 2, depth + 1) for i in range(count)]
