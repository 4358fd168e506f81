"""Templates of requests for inference over HTTP: requests that are equal but for their values are read as plain ones.

A template is made of a request that the general path has answered. Requests of a client differ in the length of the
body and in the values of the inputs, seldom in more, and equal bytes mean the same: the head is compared with that of
the template except for the length, and the body with the text around the values. The values of an input are a flat
JSON list, or raw bytes of a fixed number.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.batch import batch_key
from sardonyx.serve.dispatch.body_templates import (
    BodyTemplate,
    float_reader,
    id_reader,
    is_plain_id,
    list_reader,
    raw_reader,
)
from sardonyx.serve.dispatch.host import AnyEndpoint
from sardonyx.serve.dispatch.plain import LARGEST, PlainRequest, is_fixed, is_simple
from sardonyx.serve.http.messages import HttpRequest
from sardonyx.serve.http.plain_answers import AnswerKind, HttpWriter
from sardonyx.serve.models.served import Computation
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.requests import InferRequest

_HEADS = 64
"""Limit of templates of heads with one request line."""

_LINES = 256
"""Limit of request lines with templates."""

_BODIES = 8
"""Limit of templates of bodies of one head."""

_WRITERS = 256
"""Limit of kinds of answers with a writer."""

_MISSES = 32
"""New templates in succession that read no request, before fewer are made."""

_RARELY = 64
"""Requests for each new template after that."""

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n", re.IGNORECASE)
_DATA = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[')
_ID_KEY = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"')
_MARK = b"id of a template"
"""Stands for an id while a template is made."""

_Reading = tuple[list[bytes], list[Any]]
"""The texts between values, and the readers of the values."""

_VARYING = ("transfer-encoding", "content-encoding", "expect", "upgrade")
"""Header fields whose requests are never plain."""


class HeadTemplate:
    """The bytes of heads around the length of the body.

    Args:
        prefix: The bytes before the length.
        suffix: The bytes after the length.
        request: A request with the head.

    Attributes:
        prefix: As passed.
        bodies: The templates of bodies.
        generation: The number of changes of the models for which the templates hold.
    """

    def __init__(self, templates: HttpTemplates, prefix: bytes, suffix: bytes, request: HttpRequest) -> None:
        self.prefix = prefix
        self.suffix = suffix
        self.bodies: list[BodyTemplate] = []
        self.generation = 0
        self._templates = templates
        self._method, self._target, self._headers = request.method, request.target, dict(request.headers)

    def read(self, data: bytes, sink: Any) -> PlainRequest | None:
        """Let a plain request wait; return None if the bytes are another request.

        Args:
            data: The bytes of the request, which begin with the prefix.
            sink: The connection.
        """
        start = len(self.prefix)
        end = data.find(b"\r", start, start + 10)
        if end < 0 or not data.startswith(self.suffix, end):
            return None
        length, begin = data[start:end], end + len(self.suffix)
        if not length.isdigit() or int(length) != len(data) - begin:
            return None
        templates = self._templates
        if self.generation != templates.host.generation:
            self.bodies.clear()
            return None
        for body in self.bodies:
            if data.startswith(body.begin, begin):
                if body.collector.is_stale:
                    self.bodies.remove(body)
                    return None
                request = body.read(data, begin, sink, self)
                if request is not None:
                    templates.misses = 0
                    return request
        return None

    def request(self, data: bytes, peer: str) -> HttpRequest:
        """Return a plain request as the general path receives requests."""
        body = data[data.index(b"\r\n\r\n") + 4 :]
        headers = {**self._headers, "content-length": str(len(body))}
        return HttpRequest(self._method, self._target, headers, body, peer)


class HttpTemplates:
    """The templates of a server.

    Args:
        service: The operations of the server.

    Attributes:
        host: The endpoints of the models.
        misses: New templates since a request was plain.
    """

    def __init__(self, service: Service) -> None:
        self.host = service.host
        self.misses = 0
        self._service = service
        self._lines: OrderedDict[bytes, list[HeadTemplate]] = OrderedDict()
        self._writers: dict[AnswerKind, HttpWriter] = {}

    def find(self, data: bytes) -> HeadTemplate | None:
        """Return the template of the head with which bytes begin; None for an unknown head."""
        for head in self._lines.get(data[: data.find(b"\r")], ()):
            start = len(head.prefix)
            if data.startswith(head.prefix) and data.startswith(head.suffix, data.find(b"\r", start, start + 10)):
                return head
        return None

    def learn(self, request: HttpRequest, parsed: InferRequest, head_length: int | None) -> None:
        """Make templates of a request that was answered, if such requests can be plain.

        Args:
            request: The request.
            parsed: Its contents.
            head_length: The length of the JSON part; None if the body is JSON alone.
        """
        data = request.source
        # A JSON part of no bytes is a request of raw bytes alone.
        if not 0 < len(data) <= LARGEST or head_length == 0:
            return
        if self._service.traces is not None or not is_simple(parsed):
            return
        self.misses += 1
        if self.misses > _MISSES and self.misses % _RARELY:
            return
        head = self._head(request)
        if head is None:
            return
        endpoint = self.host.get(parsed.model, parsed.version)
        if head.generation != self.host.generation:
            head.generation = self.host.generation
            head.bodies.clear()
        request.template = head
        body = self._body(bytes(request.body), parsed, head_length, endpoint, request.headers.get("accept-encoding"))
        if body is None:
            return
        head.bodies = [body, *(other for other in head.bodies if other.begin != body.begin)][:_BODIES]

    def _head(self, request: HttpRequest) -> HeadTemplate | None:
        data = request.source
        end = data.find(b"\r\n\r\n") + 4
        lengths = list(_LENGTH.finditer(data, 0, end - 2))
        if len(lengths) != 1 or any(name in request.headers for name in _VARYING):
            return None
        if int(lengths[0][1]) != len(data) - end or request.headers.get("content-length") != lengths[0][1].decode():
            return None
        prefix, suffix = data[: lengths[0].start(1)], data[lengths[0].end(1) : end]
        line = data[: data.find(b"\r")]
        heads = self._lines.get(line)
        if heads is None:
            if len(self._lines) >= _LINES:
                self._lines.popitem(last=False)
            heads = self._lines[line] = []
        for head in heads:
            if head.prefix == prefix and head.suffix == suffix:
                return head
        if len(heads) >= _HEADS:
            heads.clear()
        heads.append(HeadTemplate(self, prefix, suffix, request))
        return heads[-1]

    def _body(
        self, body: bytes, parsed: InferRequest, head_length: int | None, endpoint: AnyEndpoint, accept: str | None
    ) -> BodyTemplate | None:
        service = self._service
        queue = endpoint.plain_queue(parsed)
        if queue is None or endpoint.model.name in service.options.privacy:
            return None
        revision = queue.model.revision
        kind = self._kind(revision, parsed, endpoint, accept)
        key, rows = batch_key(parsed)
        if kind is None or key is None or not is_fixed(parsed.inputs.values()):
            return None
        try:
            revision.interface.check(parsed.inputs)
        except RequestError:
            return None
        read = self._raw(body, parsed, head_length, revision) if head_length else self._lists(body, parsed, revision)
        collector = queue.collector(revision, key, rows) if read is not None else None
        if read is None or collector is None:
            return None
        writer = self._writers.get(kind)
        if writer is None:
            if len(self._writers) >= _WRITERS:
                self._writers.clear()
            writer = self._writers[kind] = HttpWriter(kind)
        return BodyTemplate(*read, collector, writer, rows, has_id=bool(parsed.id))

    def _kind(
        self, revision: Computation, parsed: InferRequest, endpoint: AnyEndpoint, accept: str | None
    ) -> AnswerKind | None:
        names = list(revision.interface.outputs)
        requested = parsed.outputs
        if any(output.name not in names for output in requested):
            return None
        chosen = [(output.name, output.is_binary) for output in requested] or [(name, None) for name in names]
        outputs = tuple(
            (names.index(name), name, parsed.binary_outputs if is_binary is None else is_binary)
            for name, is_binary in chosen
        )
        limit, model = self._service.limits.output_bytes, endpoint.model
        return AnswerKind(model.name, model.version, revision.number, outputs, accept, limit, bool(parsed.id))

    def _raw(self, body: bytes, parsed: InferRequest, length: int, revision: Computation) -> _Reading | None:
        """Return texts and readers of a body with raw values after the JSON; None if the body has other values."""
        strict = self._service.options.strict_json
        text = body[:length]
        span = _id_span(text, parsed)
        if span is None:
            return None
        texts, readers = [text[: span[0]], text[span[1] :]] if parsed.id else [text], []
        if parsed.id:
            readers.append(id_reader(None))
        try:
            head = json_codec.parse_head(_MARK.join(texts), strict)
        except RequestError:
            return None
        if parsed.id and head.id != _MARK.decode():
            return None
        for index, part in enumerate(head.inputs):
            array = parsed.inputs[part.name]
            if part.parameters.get("binary_data_size") != array.nbytes:
                return None
            readers.append(raw_reader(index, array.nbytes, array.nbytes // len(array), array.dtype == np.bool_))
        return [*texts, *(b"" for _ in head.inputs)], readers

    def _lists(self, body: bytes, parsed: InferRequest, revision: Computation) -> _Reading | None:
        """Return texts and readers of a body of JSON; None if values are not flat lists."""
        spans: list[tuple[int, int, bytes]] = []
        for match in _DATA.finditer(body):
            end = body.find(b"]", match.end()) + 1
            if end == 0:
                return None
            spans.append((match.end() - 1, end, b"[%d]" % len(spans)))
        lists = [mark for _, _, mark in spans]
        span = _id_span(body, parsed)
        if span is None:
            return None
        if parsed.id:
            spans = sorted([*spans, (*span, _MARK)])
        ends = [0, *(end for _, end, _ in spans)]
        texts = [body[end:begin] for end, begin in zip(ends, [*(begin for begin, _, _ in spans), None], strict=True)]
        # Other values in these places must be the data of the inputs, in order, and the id.
        marked = b"".join(text + mark for text, (_, _, mark) in zip(texts, spans, strict=False)) + texts[-1]
        try:
            head = json_codec.parse_head(marked, strict=True)
        except RequestError:
            return None
        if [bytes(part.data) for part in head.inputs] != lists or (parsed.id and head.id != _MARK.decode()):
            return None
        if any("shared_memory_region" in part.parameters for part in head.inputs):
            return None
        readers = []
        for index, part in enumerate(head.inputs):
            datatype = revision.interface.inputs[part.name].datatype
            if datatype.name == "FP32":
                readers.append(float_reader(index, part.shape, part.name))
            else:
                readers.append(list_reader(index, datatype, part.shape, part.name))
        if parsed.id:
            readers.insert([mark for _, _, mark in spans].index(_MARK), id_reader(None))
        return texts, readers


def _id_span(text: bytes, parsed: InferRequest) -> tuple[int, int] | None:
    """Return where a text has the id of a request, (0, 0) for a request without an id; None if it is not known."""
    if not parsed.id:
        return 0, 0
    name = parsed.id.encode()
    for match in _ID_KEY.finditer(text):
        if text.startswith(name + b'"', match.end()) and is_plain_id(parsed.id):
            return match.end(), match.end() + len(name)
    return None
