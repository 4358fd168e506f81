"""Read flatbuffers by the tables of :mod:`schema`, with every offset and size checked.

A flatbuffer is a graph of tables that refer to each other by relative offsets. A hostile file may refer to positions
outside of the file, to one table many times, or to a table that contains itself: positions, depth and the number of
decoded tables are limited, and a violation is a :class:`ModelFileError`.
Source: https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import struct
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from sardonyx.convert.tflite.schema import TABLES, UNIONS
from sardonyx.errors import ModelFileError

SCALARS = {
    "bool": ("<?", "?"),
    "i8": ("<b", "i1"),
    "u8": ("<B", "u1"),
    "u16": ("<H", "<u2"),
    "i32": ("<i", "<i4"),
    "u32": ("<I", "<u4"),
    "i64": ("<q", "<i8"),
    "u64": ("<Q", "<u8"),
    "f32": ("<f", "<f4"),
}
"""Format of ``struct`` and element type of numpy for each scalar kind."""

_DEEPEST = 16
"""Nesting of tables; the schema needs 6."""


class Field:
    """A field of a table.

    Attributes:
        name: Attribute name of the decoded record; "" for an unused slot.
        kind: Kind of one element.
        is_vector: True for a vector of elements.
        default: Value of an absent scalar.
    """

    def __init__(self, text: str) -> None:
        self.name, _, rest = text.partition(":")
        kind, _, default = rest.partition("=")
        if self.name == "-":
            self.name = ""
        self.is_vector = kind.startswith("[")
        self.kind = kind.strip("[]")
        self.default: bool | int | float = float(default or 0) if kind == "f32" else int(default or 0)
        if kind == "bool":
            self.default = default == "1"


@cache
def fields(table: str) -> tuple[Field, ...]:
    """Return the fields of a table, by slot."""
    return tuple(Field(text) for text in TABLES.get(table, "").split())


class Reader:
    """A decoder of one buffer.

    Args:
        data: The whole file.
        where: Name of the file for errors.
    """

    def __init__(self, data: bytes | memoryview, where: str) -> None:
        self.data = memoryview(data).cast("B")
        self.where = where
        self._remaining = 1000 + len(self.data) // 4

    def root(self, table: str) -> Any:
        """Return the record of the root table.

        Raises:
            ModelFileError: An offset, a size or the nesting is out of range.
        """
        return self._table(table, self._offset(0), 0)

    def error(self, problem: str) -> ModelFileError:
        """Return the error of a malformed file."""
        return ModelFileError(problem, where=self.where, remedy="Download or export the file again.")

    def span(self, start: int, size: int, subject: str) -> memoryview:
        """Return `size` bytes from `start`.

        Raises:
            ModelFileError: The bytes are not within the file.
        """
        if start < 0 or size < 0 or start + size > len(self.data):
            raise self.error(f"expected {subject} within {len(self.data)} bytes, got {size} bytes at offset {start}")
        return self.data[start : start + size]

    def _scalar(self, form: str, position: int) -> Any:
        return struct.unpack(form, self.span(position, struct.calcsize(form), "a scalar"))[0]

    def _offset(self, position: int) -> int:
        return position + int(self._scalar("<I", position))

    def _table(self, table: str, position: int, depth: int) -> Any:
        self._remaining -= 1
        if depth > _DEEPEST or self._remaining < 0:
            raise self.error(f"expected a tree of tables, got more than {len(self.data) // 4} tables or a cycle")
        slots = position - self._scalar("<i", position)
        size, table_size = self._scalar("<H", slots), self._scalar("<H", slots + 2)
        if size < 4 or size % 2 or table_size < 4:
            raise self.error(f"expected the field list of a {table} at offset {slots}, got size {size}")
        self.span(slots, size, f"the field list of a {table}")
        self.span(position, table_size, f"a {table}")
        record = SimpleNamespace()
        union = 0
        for i, field in enumerate(fields(table)):
            if not field.name:
                continue
            at = self._scalar("<H", slots + 4 + 2 * i) if 6 + 2 * i <= size else 0
            if at >= table_size:
                raise self.error(f"field {field.name} of a {table} is at {at}, expected less than {table_size}")
            value = self._field(field, position + at if at else 0, depth, union)
            setattr(record, field.name, value)
            union = value if field.kind == "u8" and not field.is_vector else 0
        return record

    def _field(self, field: Field, position: int, depth: int, union: int) -> Any:
        if field.is_vector:
            return self._vector(field, position, depth)
        if field.kind in SCALARS:
            return self._scalar(SCALARS[field.kind][0], position) if position else field.default
        if not position:
            return "" if field.kind == "str" else None
        return self._reference(field.kind, self._offset(position), depth, union)

    def _reference(self, kind: str, position: int, depth: int, union: int) -> Any:
        if kind == "str":
            return bytes(self.span(position + 4, self._scalar("<I", position), "a string")).decode("utf-8", "replace")
        if kind in UNIONS:
            names = UNIONS[kind]
            if not 0 < union < len(names):
                return None
            kind = names[union]
        return self._table(kind, position, depth + 1)

    def _vector(self, field: Field, position: int, depth: int) -> Any:
        start = self._offset(position) if position else 0
        count = self._scalar("<I", start) if position else 0
        if field.kind in SCALARS:
            element = np.dtype(SCALARS[field.kind][1])
            data = self.span(start + 4, count * element.itemsize, f"{count} elements of {field.name}") if count else b""
            return np.frombuffer(data, element)
        self.span(start + 4, 4 * count, f"{count} references of {field.name}")
        positions = (self._offset(start + 4 + 4 * i) for i in range(count))
        return [self._reference(field.kind, p, depth, 0) for p in positions]
