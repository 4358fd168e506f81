"""Templates of calls for inference: messages that are equal but for their raw contents are read as plain requests.

A template is made of a call that the general path has answered. The raw contents of a ``ModelInferRequest`` are its
last field, and their sizes are fixed by the shapes before them, so that messages of one client differ in the elements
alone. The header block of a plain call is one that led to an answer before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.batch import batch_key
from sardonyx.serve.dispatch.body_templates import BodyTemplate, id_reader, is_plain_id, raw_reader
from sardonyx.serve.dispatch.plain import LARGEST, PlainRequest, is_fixed, is_simple
from sardonyx.serve.grpc.conversion import answer_message
from sardonyx.serve.grpc.frames import HeaderFields, unary_answer
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.requests import Answer, InferRequest, Output

_SIZES = 256
"""Limit of sizes of messages with templates."""

_MESSAGES = 8
"""Limit of templates of one size."""

_WRITERS = 256
"""Limit of kinds of answers with a writer."""

_SHAPES = 256
"""Shapes of answers with remembered texts."""

_MISSES = 32
"""New templates in succession that read no call, before fewer are made."""

_RARELY = 64
"""Calls for each new template after that."""

_ID, _RAW_INPUTS, _RAW_OUTPUTS = 0x1A, 0x3A, 0x32
"""Tags of ids, and of the raw contents in requests and in answers."""


class _Kind(NamedTuple):
    """The properties of answers that share their texts.

    Attributes:
        model: The name of the model.
        version: The version that answers, as text.
        revision: The revision that answers.
        outputs: Index and name of every output, in order.
        id_size: Bytes of the id of a request, which the answer repeats.
    """

    model: str
    version: str
    revision: int
    outputs: tuple[tuple[int, str], ...]
    id_size: int


class _Prepared(NamedTuple):
    """The results of a run in the form of answers.

    Attributes:
        raws: The bytes of every output, and the bytes of a row.
        tensors: Element type and sizes but the first of every output.
        texts: The frames by number of rows, with places for stream and values, and the bytes of their message.
    """

    raws: list[tuple[bytes, int]]
    tensors: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]
    texts: dict[int, tuple[bytes, int]]


class GrpcWriter:
    """Writes the answers of one kind.

    Args:
        kind: The kind.
    """

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self._texts: dict[Any, dict[int, tuple[bytes, int]]] = {}

    def prepare(self, results: Sequence[np.ndarray]) -> _Prepared | None:
        """Return the results in the form of answers; None if the results need the general path."""
        raws, tensors = [], []
        for index, _ in self._kind.outputs:
            array = results[index]
            if array.dtype.kind == "O":
                return None
            tensors.append((array.dtype, array.shape[1:]))
            raws.append((array.tobytes(), array.nbytes // len(array)))
        key = tuple(tensors)
        texts = self._texts.get(key)
        if texts is None:
            if len(self._texts) >= _SHAPES:
                self._texts.clear()
            texts = self._texts[key] = {}
        return _Prepared(raws, key, texts)

    def write(self, requests: Sequence[PlainRequest], prepared: _Prepared) -> None:
        """Answer requests, except those that were cancelled."""
        raws, tensors, texts = prepared
        sinks = {}
        for request in requests:
            if request.is_cancelled:
                continue
            rows, first = request.rows, request.row
            text = texts.get(rows)
            if text is None:
                text = texts[rows] = self._text(rows, tensors)
            frames, size = text
            stream = request.tag[0].to_bytes(4, "big")
            end = first + rows
            if len(raws) == 1 and not self._kind.id_size:
                # Inlined: the most frequent form.
                data, stride = raws[0]
                answer = frames % (stream, stream, data[first * stride : end * stride], stream)
            else:
                parts = [request.id] if self._kind.id_size else []
                parts += [data[first * stride : end * stride] for data, stride in raws]
                answer = frames % (stream, stream, *parts, stream)
            sink = request.sink
            sink.answer(request, answer, size)
            sinks[sink] = True
        for sink in sinks:
            sink.flush()

    def _text(self, rows: int, tensors: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> tuple[bytes, int]:
        kind = self._kind
        outputs = [
            Output(name, np.zeros((rows, *shape), dtype))
            for (_, name), (dtype, shape) in zip(kind.outputs, tensors, strict=True)
        ]
        mark = "\0" * kind.id_size
        answer = Answer(kind.model, kind.version, mark, outputs, kind.revision)
        text: bytes = answer_message(answer).SerializeToString()
        arrays = [output.array.tobytes() for output in outputs]
        tails = [_head(_RAW_OUTPUTS, len(data)) for data in arrays]
        tail = b"".join(part + data for part, data in zip(tails, arrays, strict=True))
        if not text.endswith(tail):
            raise AssertionError("internal: raw contents are not the end of the message.")
        begin = text[: len(text) - len(tail)]
        pieces = [begin + tails[0], *tails[1:]] if tails else [begin]
        if mark:
            before, matched, after = pieces[0].partition(_head(_ID, kind.id_size) + mark.encode())
            pieces[:1] = [before + matched[: -kind.id_size], after]
        return unary_answer([*pieces, b""], len(text)), len(text) + 5


class GrpcTemplates:
    """The templates of a server.

    Args:
        service: The operations of the server.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._host = service.host
        self._generation = self._host.generation
        self._sizes: dict[int, list[BodyTemplate]] = {}
        self._writers: dict[_Kind, GrpcWriter] = {}
        self._misses = 0

    def read(self, message: bytes, sink: Any, tag: Any) -> PlainRequest | None:
        """Let a plain request wait; return None if the bytes are another request.

        Args:
            message: The message.
            sink: The connection.
            tag: Stream and header fields.
        """
        bodies = self._sizes.get(len(message))
        if bodies is None:
            return None
        if self._generation != self._host.generation:
            self._forget()
            return None
        for body in bodies:
            if message.startswith(body.begin):
                if body.collector.is_stale:
                    bodies.remove(body)
                    return None
                request = body.read(message, 0, sink, tag)
                if request is not None:
                    self._misses = 0
                    return request
        return None

    def _forget(self) -> None:
        self._generation = self._host.generation
        self._sizes.clear()

    def learn(self, headers: HeaderFields, data: bytes, message: Any, parsed: InferRequest) -> None:
        """Make a template of a call that was answered, if such calls can be plain.

        Args:
            headers: The header fields.
            data: The message as bytes.
            message: The message.
            parsed: Its contents.
        """
        service = self._service
        if len(data) > LARGEST or service.traces is not None or "grpc-timeout" in headers or not is_simple(parsed):
            return
        headers.is_plain = True
        if self._generation != self._host.generation:
            self._forget()
        others = self._sizes.get(len(data), [])
        if any(data.startswith(body.begin) and not body.collector.is_stale for body in others):
            return
        self._misses += 1
        if self._misses > _MISSES and self._misses % _RARELY:
            return
        body = self._body(data, message, parsed)
        if body is None:
            return
        if len(self._sizes) >= _SIZES:
            self._sizes.clear()
        self._sizes[len(data)] = [body, *(other for other in others if other.begin != body.begin)][:_MESSAGES]

    def _body(self, data: bytes, message: Any, parsed: InferRequest) -> BodyTemplate | None:
        endpoint = self._host.get(parsed.model, parsed.version)
        model, queue = endpoint.model, endpoint.plain_queue(parsed)
        if queue is None:
            return None
        raw = list(message.raw_input_contents)
        arrays = list(parsed.inputs.values())
        key, rows = batch_key(parsed)
        if model.name in self._service.options.privacy or key is None:
            return None
        if len(raw) != len(arrays) or not is_fixed(arrays):
            return None
        identity = parsed.id.encode()
        size = len(identity)
        if size and not is_plain_id(parsed.id):
            return None
        revision = queue.model.revision
        names = list(revision.interface.outputs)
        chosen = [output.name for output in parsed.outputs] or names
        if any(name not in names for name in chosen):
            return None
        try:
            revision.interface.check(parsed.inputs)
        except RequestError:
            return None
        heads = [_head(_RAW_INPUTS, len(part)) for part in raw]
        tail = b"".join(head + part for head, part in zip(heads, raw, strict=True))
        collector = queue.collector(revision, key, rows) if data.endswith(tail) else None
        if collector is None:
            return None
        begin = data[: len(data) - len(tail)]
        readers = [
            raw_reader(index, array.nbytes, array.nbytes // len(array), array.dtype == np.bool_)
            for index, array in enumerate(arrays)
        ]
        kind = _Kind(model.name, model.version, revision.number, tuple((names.index(n), n) for n in chosen), size)
        writer = self._writers.get(kind)
        if writer is None:
            if len(self._writers) >= _WRITERS:
                self._writers.clear()
            writer = self._writers[kind] = GrpcWriter(kind)
        texts = [begin + heads[0], *heads[1:], b""]
        if size:
            # The fields are in the order of their tags, and the template is proved by the message with another id.
            before, key, after = texts[0].partition(_head(_ID, size) + identity)
            texts[:1] = [before + key[:-size], after]
            readers.insert(0, id_reader(size))
            mark = b"\1" * size
            other = type(message).FromString(texts[0] + mark + texts[1] + data[len(begin) + len(heads[0]) :])
            message.id = mark.decode()
            if not key or other != message:
                return None
        return BodyTemplate(texts, readers, collector, writer, rows, bool(size))


def _head(tag: int, size: int) -> bytes:
    """Return tag and length of a field of bytes."""
    head = bytearray((tag,))
    while size >= 128:
        head.append(size % 128 + 128)
        size //= 128
    head.append(size)
    return bytes(head)
