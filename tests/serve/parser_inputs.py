"""Requests for the parsers of the server, and connections without sockets that they drive."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.serve import Model
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import frame, header_block, settings_frame
from sardonyx.serve.grpc.own_listener import OwnGrpcListener
from sardonyx.serve.http.application import Application
from sardonyx.serve.http.connection import Connections
from sardonyx.serve.models.ensemble import ServedEnsemble
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.operations.service import Service, ServiceOptions
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.security.tokens import Tokens
from tests.serve.models import ENSEMBLES, session

LIMITS = Limits(body_bytes=1 << 16, head_bytes=4096, streams=8)


class Transport:
    """A transport that collects bytes.

    Attributes:
        sent: The bytes.
        read: The number of them that the client has read.
        is_closed: True once the connection ends.
        is_aborted: True once it ends at once.
        is_paused: True while nothing is received.
    """

    def __init__(self) -> None:
        self.sent = bytearray()
        self.read = 0
        self.is_closed = False
        self.is_aborted = False
        self.is_paused = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.sent += part

    def can_write_eof(self) -> bool:
        return False  # As with TLS.

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1)

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return len(self.sent) - self.read

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


class Machine:
    """A service with connections that are fed bytes by hand; one for all cases."""

    def __init__(
        self, names: Sequence[str] = ("net",), compile: str = "off", limits: Limits = LIMITS, **options: Any
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.service = Service(ServiceOptions(limits, control="edit", **options), None, self.loop)
        needed = {part for name in names if name in ENSEMBLES for part in ENSEMBLES[name].models}
        for name in {*names, *needed} - ENSEMBLES.keys():
            self.service.host.put(name, [ServedModel(name, Model(session(name, compile)))])
        for name in ENSEMBLES.keys() & names:
            self.service.host.put(name, [ServedEnsemble(name, ENSEMBLES[name])])
        self.service.host.is_loading = False
        self._http = Connections(Application(self.service, Tokens()), limits)
        self._grpc = OwnGrpcListener(self.service, Tokens())

    def connect(self, wire: str) -> tuple[Any, Transport]:
        """Return a new connection and its transport."""
        connection: Any = self._http.protocol() if wire == "http" else self._grpc.connection()
        transport = Transport()
        connection.connection_made(transport)
        return connection, transport

    async def settle(self) -> None:
        """Wait until all requests are answered."""
        for _ in range(3):
            await asyncio.sleep(0)
            while self.service.host.pending:
                await asyncio.sleep(0)

    def feed(self, wire: str, parts: list[bytes]) -> tuple[bytes, bool]:
        """Feed bytes to a new connection; return what it sends, and if it ends."""
        return self.loop.run_until_complete(self.converse(wire, parts))

    async def converse(self, wire: str, parts: list[bytes]) -> tuple[bytes, bool]:
        """Feed bytes to a new connection, within the loop; return what it sends, and if it ends."""
        connection, transport = self.connect(wire)
        for part in parts:
            if not transport.is_closed:
                connection.data_received(part)
        for _ in range(20):
            await asyncio.sleep(0)
            if not self.service.host.pending:
                break
        while self.service.host.pending:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        return bytes(transport.sent), transport.is_closed

    def close(self) -> None:
        self.service.close()
        self.loop.close()


def http_seeds() -> list[bytes]:
    """Return well-formed requests of all kinds."""
    x = np.arange(4, dtype=np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    plain = json.dumps({"id": "a", "inputs": [{**tensor, "data": x.tolist()}], "outputs": [{"name": "y"}]}).encode()
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 16}}]}).encode()
    binary = head + x.tobytes()
    length = b"Inference-Header-Content-Length: %d\r\n" % len(head)
    path = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: h\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (plain[:30], plain[30:])) + b"0\r\n\r\n"
    return [
        path + b"Content-Length: %d\r\n\r\n" % len(plain) + plain,
        path + length + b"Content-Length: %d\r\n\r\n" % len(binary) + binary,
        path + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        b"GET /v2/models/net HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n",
        b"POST /v2/models/net/edit HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n"
        + b'[{"verb": "add_output", "tensor": "nil"}]'[:40],
        b"POST /v2/models/net/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 17\r\n\r\n" + b'{"x": [1,2,3,4]} ',
    ]


def grpc_seeds() -> list[bytes]:
    """Return well-formed calls of all kinds."""
    call = message_class("ModelInferRequest")(model_name="net", id="a")
    call.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    call.raw_input_contents.append(np.ones(4, np.float32).tobytes())
    call.parameters["priority"].int64_param = 1
    seeds = []
    for method, message in (("ModelInfer", call), ("ModelStreamInfer", call), ("ServerLive", None)):
        data = b"" if message is None else message.SerializeToString()
        fields = ((":method", "POST"), (":scheme", "http"), (":path", f"/inference.GRPCInferenceService/{method}"),
                  (":authority", "h"), ("content-type", "application/grpc"), ("grpc-timeout", "5S"))  # fmt: skip
        block = header_block(fields)
        body = struct.pack(">BI", 0, len(data)) + data
        seeds.append(
            frames.PREFACE + settings_frame(((4, 100_000), (5, 16384))) + frame(frames.WINDOW_UPDATE, 0, 0, b"\0\1\0\0")
            + frame(frames.HEADERS, 0, 1, block[:20]) + frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[20:])
            + frame(frames.PING, 0, 0, b"12345678")
            + frame(frames.DATA, 0, 1, body[:7]) + frame(frames.DATA, frames.END_STREAM, 1, body[7:])
        )  # fmt: skip
    return seeds


SEEDS = {"http": http_seeds, "grpc": grpc_seeds}
"""Well-formed requests by wire."""


def damaged(rng: random.Random, seed: bytes) -> bytes:
    """Return a seed with some bytes changed, removed, repeated or inserted."""
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if position < len(data):
                data[position] ^= 1 << rng.randrange(8)
            case 1 if position < len(data):
                data[position] = rng.choice(b'\0\xff{}[]",:\r\n -09eN')
            case 2:
                del data[position : position + rng.choice((1, 2, 9, 100))]
            case 3:
                data[position:position] = data[position : position + rng.randrange(40)]
            case 4:
                data[position:position] = rng.randbytes(rng.randrange(12))
            case _:
                data[position:position] = rng.choice((b"1e999", b"-1", b"99999999999999999999", b"null", b"\r\n\r\n"))
    return bytes(data)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """Return bytes in random pieces."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if begin < end]
