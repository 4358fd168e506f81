"""Write flatbuffers by the tables of :mod:`schema`; every table is stored ahead of its references."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tflite.flatbuffer import SCALARS, Field, fields
from sardonyx.convert.tflite.schema import UNIONS

_ALIGNMENT = 16
"""Alignment of vectors of bytes: interpreters map weights where the file stores them."""


def flatbuffer(table: str, record: Mapping[str, Any], identifier: bytes) -> bytes:
    """Return the flatbuffer of a record.

    Args:
        table: The root table.
        record: Values by field name; tables are mappings, vectors are sequences or arrays, and absent fields have their
            default. A union is a pair of table name and mapping; the slot of the union's number is written with it.
        identifier: Four bytes that identify the format.
    """
    writer = _Writer()
    writer.data += bytes(4) + identifier
    writer.refer(0, writer.table(table, record))
    return bytes(writer.data)


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, size: int, extra: int = 0) -> None:
        self.data += bytes(-(len(self.data) + extra) % size)

    def refer(self, position: int, target: int) -> None:
        struct.pack_into("<I", self.data, position, target - position)

    def table(self, table: str, record: Mapping[str, Any]) -> int:
        slots = fields(table)
        unknown = set(record) - {field.name for field in slots}
        if unknown:
            raise KeyError(f"{table} has no fields {sorted(unknown)}")
        values = {i: record[field.name] for i, field in enumerate(slots) if field.name in record}
        values = {i: value for i, value in values.items() if value is not None}
        for i in [i for i in values if slots[i].kind in UNIONS and not slots[i].is_vector]:
            values[i - 1] = UNIONS[slots[i].kind].index(values[i][0])
        offsets, size = {}, 4
        for i in sorted(values):
            width = self._width(slots[i])
            size += -size % width
            offsets[i] = size
            size += width
        count = max(values, default=-1) + 1
        self.align(8, 4 + 2 * count)
        start = len(self.data) + 4 + 2 * count
        entries = [offsets.get(i, 0) for i in range(count)]
        self.data += struct.pack(f"<HH{count}H", 4 + 2 * count, size, *entries)
        self.data += struct.pack("<i", 4 + 2 * count) + bytes(size - 4)
        for i in sorted(values):
            self._field(slots[i], values[i], start + offsets[i])
        return start

    @staticmethod
    def _width(field: Field) -> int:
        return 4 if field.is_vector or field.kind not in SCALARS else struct.calcsize(SCALARS[field.kind][0])

    def _field(self, field: Field, value: Any, position: int) -> None:
        if field.is_vector:
            self.refer(position, self._vector(field, value))
        elif field.kind in SCALARS:
            struct.pack_into(SCALARS[field.kind][0], self.data, position, value)
        else:
            self.refer(position, self._reference(field.kind, value))

    def _reference(self, kind: str, value: Any) -> int:
        if kind == "str":
            text = value.encode()
            self.align(4)
            start = len(self.data)
            self.data += struct.pack("<I", len(text)) + text + b"\0"
            return start
        return self.table(*value) if kind in UNIONS else self.table(kind, value)

    def _vector(self, field: Field, values: Sequence[Any]) -> int:
        if field.kind in SCALARS:
            array = np.asarray(values, SCALARS[field.kind][1])
            self.align(_ALIGNMENT if field.kind == "u8" else max(array.itemsize, 4), 4)
            start = len(self.data)
            self.data += struct.pack("<I", array.size) + array.tobytes()
            return start
        self.align(4)
        start = len(self.data)
        self.data += struct.pack("<I", len(values)) + bytes(4 * len(values))
        for i, value in enumerate(values):
            self.refer(start + 4 + 4 * i, self._reference(field.kind, value))
        return start
