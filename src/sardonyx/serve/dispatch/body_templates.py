"""Templates of bodies: the fixed bytes around the values of plain requests, and the readers of the values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.plain import Collector, PlainBatch, PlainRequest, Writer
from sardonyx.serve.protocol import datatypes, json_codec, number_lists
from sardonyx.serve.protocol.datatypes import Datatype
from sardonyx.serve.protocol.requests import REQUEST_BYTES

_ID = re.compile(rb"[ !#-\[\]-~]{1,512}")
"""Ids without characters that JSON escapes."""


class BodyTemplate:
    """The bytes of bodies around the values of their inputs.

    Args:
        texts: The texts before, between and after the values.
        readers: Read the values of every input.
        collector: Receives the values.
        writer: Writes the answers.
        rows: The rows of a request.
        has_id: True if one reader reads the id of the request.

    Attributes:
        begin: The text before the first value.
        collector: As passed.
    """

    def __init__(
        self,
        texts: Sequence[bytes],
        readers: Sequence[Any],
        collector: Collector,
        writer: Writer,
        rows: int,
        has_id: bool = False,
    ) -> None:
        self.begin = texts[0]
        self.collector = collector
        self._parts = tuple((reader, text, len(text)) for reader, text in zip(readers, texts[1:], strict=True))
        self._size = len(texts[0])
        self._writer = writer
        self._rows = rows
        self._held = REQUEST_BYTES + rows * collector.row_bytes
        self._has_id = has_id

    def read(self, data: bytes, begin: int, sink: Any, tag: Any) -> PlainRequest | None:
        """Copy the values of a body to a batch and let the request wait; return None if the bytes do not fit.

        Args:
            data: The bytes of the request, which have ``begin`` at the begin of the body.
            begin: The begin of the body.
            sink: The connection.
            tag: The object by which the connection knows the request.
        """
        collector, rows = self.collector, self._rows
        batch = collector.batch(rows)
        position = begin + self._size
        for reader, text, size in self._parts:
            position = reader(data, position, batch)
            if position < 0 or not data.startswith(text, position):
                return None
            position += size
        if position != len(data):
            return None
        request = PlainRequest(sink, data, len(data) + self._held, batch, self._writer, rows, tag)
        if self._has_id:
            request.id = batch.id
        return request if collector.queue.add_plain(request) else None


def is_plain_id(text: str) -> bool:
    """Return True if a template can read an id: it is written in every wire as it is."""
    return _ID.fullmatch(text.encode()) is not None


def id_reader(size: int | None) -> Any:
    """Return a reader of the id of a request.

    Args:
        size: The number of bytes; None for an id that ends before a quote.
    """

    def read_id(data: bytes, position: int, batch: PlainBatch) -> int:
        end = len(data) if size is None else position + size
        match = _ID.match(data, position, end)
        if match is None or (size is not None and match.end() != end):
            return -1
        batch.id = match[0]
        return match.end()

    return read_id


def list_reader(index: int, datatype: Datatype, shape: list[int], name: str) -> Any:
    """Return a reader of a list of any element type; arguments as for :func:`.parse_data`."""
    rows = shape[0]

    def read_list(data: bytes, position: int, batch: PlainBatch) -> int:
        end = data.find(b"]", position) + 1
        text = data[position:end]
        try:
            # The words NaN and Infinity are left to the general path.
            array = json_codec.parse_data(text, datatype, shape, name, strict=True)
        except RequestError:
            return -1
        batch.arrays[index][batch.rows : batch.rows + rows] = array
        return end

    return read_list


def float_reader(index: int, shape: list[int], name: str) -> Any:
    """Return a reader of a list of float32 numbers.

    Args:
        index: The index of the input.
        shape: The declared sizes.
        name: The name of the input.
    """
    slow = list_reader(index, datatypes.DATATYPES["FP32"], shape, name)
    count = math.prod(shape)
    row_bytes = 4 * count // shape[0]
    read: number_lists.ListReader | None = None

    def read_floats(data: bytes, position: int, batch: PlainBatch) -> int:
        nonlocal read
        if read is None:
            read = number_lists.list_reader()
            if read is None:
                return slow(data, position, batch)  # type: ignore[no-any-return]
        return read(data, position, batch.addresses[index] + batch.rows * row_bytes, count)

    return read_floats


def raw_reader(index: int, size: int, row_bytes: int, is_bool: bool) -> Any:
    """Return a reader of raw bytes.

    Args:
        index: The index of the input.
        size: The number of bytes.
        row_bytes: Bytes of a row.
        is_bool: True if all bytes must be 0 or 1.
    """

    def read_raw(data: bytes, position: int, batch: PlainBatch) -> int:
        values = data[position : position + size]
        if len(values) != size or (is_bool and values.strip(b"\0\1")):
            return -1
        begin = batch.rows * row_bytes
        batch.bytes[index][begin : begin + size] = values
        return position + size

    return read_raw
