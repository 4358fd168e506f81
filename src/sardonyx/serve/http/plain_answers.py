"""Answers to plain requests over HTTP: the bytes of an answer around its values are formatted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from sardonyx.serve.dispatch.plain import PlainRequest
from sardonyx.serve.http.infer_requests import described_answer, described_output
from sardonyx.serve.http.messages import (
    BINARY,
    JSON,
    SMALLEST_COMPRESSED,
    HttpResponse,
    compressed,
    response_head,
)
from sardonyx.serve.protocol import datatypes, json_codec

_SHAPES = 256
"""Shapes of answers with remembered texts."""

_HOLE = b"\0"
"""Stands for values while a text is made; the encoder writes the character of a name in another way."""


class AnswerKind(NamedTuple):
    """The properties of answers that share their texts.

    Attributes:
        model: The name of the model.
        version: The version that answers, as text.
        revision: The revision that answers.
        outputs: Index, name and form (True for raw bytes) of every output, in order.
        accept: The encodings that the client accepts; None for none.
        limit: Limit of the bytes of all outputs.
        has_id: True if the answer repeats the id of the request.
    """

    model: str
    version: str
    revision: int
    outputs: tuple[tuple[int, str, bool], ...]
    accept: str | None
    limit: int
    has_id: bool


class _Text(NamedTuple):
    """The text of answers of equal shapes, with places for values.

    Attributes:
        format: Head and body.
        body: The body alone.
        json_size: Bytes of the JSON part without values.
    """

    format: bytes
    body: bytes
    json_size: int


class _Prepared(NamedTuple):
    """The results of a run in the form of answers.

    Attributes:
        lists: The rows of every output in JSON, as lists.
        raws: The bytes of every raw output, and the bytes of a row.
        tensors: Element type and sizes but the first of every output.
        texts: The texts by number of rows.
    """

    lists: list[list[list[Any]]]
    raws: list[tuple[bytes, int]]
    tensors: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    texts: dict[int, _Text]


class HttpWriter:
    """Writes the answers of one kind.

    Args:
        kind: The kind.
    """

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self._texts: dict[Any, dict[int, _Text]] = {}
        self._has_raw = any(is_raw for _, _, is_raw in kind.outputs)
        self._is_one_list = len(kind.outputs) == 1 and not self._has_raw and kind.accept is None and not kind.has_id

    def prepare(self, results: Sequence[np.ndarray]) -> _Prepared | None:
        """Return the results in the form of answers; None if the results need the general path."""
        lists, raws, tensors, size = [], [], [], 0
        for index, _, is_raw in self._kind.outputs:
            array = results[index]
            tensors.append((array.dtype, array.shape[1:]))
            size += array.nbytes
            if array.dtype.kind == "O":
                return None
            if is_raw:
                raws.append((array.tobytes(), array.nbytes // len(array)))
            elif array.dtype.kind == "f" and not datatypes.all_finite(array):
                return None
            else:
                lists.append(array.reshape(len(array), -1).tolist())
        if size > self._kind.limit:
            return None
        key = tuple(tensors)
        texts = self._texts.get(key)
        if texts is None:
            if len(self._texts) >= _SHAPES:
                self._texts.clear()
            texts = self._texts[key] = {}
        return _Prepared(lists, raws, key, texts)

    def write(self, requests: Sequence[PlainRequest], prepared: _Prepared) -> None:
        """Answer requests, except those that were cancelled."""
        lists, raws, tensors, texts = prepared
        encode = json_codec.encode
        for request in requests:
            if request.is_cancelled:
                continue
            rows, first = request.rows, request.row
            text = texts.get(rows)
            if text is None:
                text = texts[rows] = self._text(rows, tensors)
            size = text.json_size
            if self._is_one_list and rows == 1:
                # Inlined: the most frequent form.
                values = encode(lists[0][first])
                size += len(values)
                request.sink.answer(request, text.format % (size, values), size)
                continue
            end = first + rows
            parts = [request.id] if self._kind.has_id else []
            parts += [encode([value for row in rows_of[first:end] for value in row]) for rows_of in lists]
            size += sum([len(part) for part in parts])
            sizes: tuple[int, ...] = (size,)
            if raws:
                parts += [data[first * stride : end * stride] for data, stride in raws]
                sizes = size + sum([rows * stride for _, stride in raws]), size
            accept = self._kind.accept
            if accept is not None and sizes[0] >= SMALLEST_COMPRESSED:
                headers = {"inference-header-content-length": str(size)} if raws else {}
                body = text.body % tuple(parts)
                response = HttpResponse(200, (body,), BINARY if raws else JSON, headers)
                request.sink.respond(request, compressed(response, accept))
            else:
                request.sink.answer(request, text.format % (*sizes, *parts), sizes[0])

    def _text(self, rows: int, tensors: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> _Text:
        kind = self._kind
        outputs = []
        for (_, name, is_raw), (dtype, shape) in zip(kind.outputs, tensors, strict=True):
            datatype = datatypes.of_dtype(dtype)
            output = described_output(name, datatype, (rows, *shape))
            if is_raw:
                count = int(np.prod(shape, dtype=np.int64)) * rows
                output["parameters"] = {"binary_data_size": count * dtype.itemsize}
            else:
                output["data"] = msgspec.Raw(_HOLE)
            outputs.append(output)
        # The encoder writes the characters of an id that a template reads as they are.
        id = msgspec.Raw(b'"%b"' % _HOLE) if kind.has_id else ""
        text = json_codec.encode(described_answer(kind.model, kind.version, id, kind.revision, outputs))
        pieces = text.split(_HOLE)
        raws = sum(is_raw for _, _, is_raw in kind.outputs)
        body = b"%b".join(piece.replace(b"%", b"%%") for piece in pieces) + b"%b" * raws
        headers = {"inference-header-content-length": "%d"} if raws else {}
        head = response_head(200, "%d", BINARY if raws else JSON, headers)
        return _Text(head.encode("latin-1") + b"\r\n" + body, body, sum(map(len, pieces)))
