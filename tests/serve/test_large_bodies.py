"""Large bodies, which are received in one piece of memory: the same answers, limits and ends of connections."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Limits, Server
from sardonyx.serve import server as server_module
from tests.serve.models import session

ROWS = 60_000
X = np.arange(4 * ROWS, dtype=np.float32).reshape(ROWS, 4) % 7
Y = X @ np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
LIMITS = Limits(body_bytes=8 << 20)
TARGET = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: h\r\n"


def post(body: bytes, *fields: bytes) -> bytes:
    return TARGET + b"".join(field + b"\r\n" for field in fields) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def binary() -> bytes:
    part = {"name": "x", "datatype": "FP32", "shape": [ROWS, 4], "parameters": {"binary_data_size": X.nbytes}}
    head = json.dumps({"inputs": [part], "parameters": {"binary_data_output": True}}).encode()
    return post(head + X.tobytes(), b"Inference-Header-Content-Length: %d" % len(head))


def listed() -> bytes:
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [ROWS, 4], "data": X.ravel().tolist()}]}
    ).encode()


def small() -> bytes:
    return post(b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]}]}')


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "asyncio":
            import asyncio

            patch.setattr(server_module, "new_event_loop", asyncio.new_event_loop)
        with Server({"net": session("net")}, http="127.0.0.1:0", limits=LIMITS) as server:
            yield int(server.url.rpartition(":")[2])


class Answers:
    """Answers on one connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._data = b""

    def next(self) -> tuple[int, bytes]:
        while b"\r\n\r\n" not in self._data:
            self._read()
        head, _, rest = self._data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields[b"content-length"])
        while len(rest) < length:
            self._read()
            rest = self._data.partition(b"\r\n\r\n")[2]
        self._data = rest[length:]
        return int(head.split()[1]), rest[:length]

    def _read(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the connection has ended")
        self._data += data


def send_pieces(connection: socket.socket, data: bytes, seed: int) -> None:
    """Send data in pieces of drawn sizes, some of which arrive apart."""
    rng = np.random.default_rng(seed)
    begin = 0
    while begin < len(data):
        end = begin + int(rng.choice([1, 100, 5000, 70_000, 300_000, 10**7]))
        connection.sendall(data[begin:end])
        begin = end
        if rng.random() < 0.3:
            time.sleep(0.003)


@pytest.mark.parametrize("seed", range(6))
def test_answers_do_not_depend_on_the_pieces(port: int, seed: int) -> None:
    answers = Answers(port)
    with answers.socket as connection:
        for data in (binary(), small(), post(listed()), binary() + small() + small()):
            send_pieces(connection, data, seed)
        for expected in (Y, None, Y, Y, None, None):
            status, body = answers.next()
            assert status == 200, body[:200]
            if expected is None:
                assert json.loads(body)["outputs"][0]["data"] == [16, 20]
            elif body.endswith(b"}"):
                assert json.loads(body)["outputs"][0]["data"] == expected.ravel().tolist()
            else:
                assert body.endswith(expected.tobytes())


def test_a_large_body_is_decompressed(port: int) -> None:
    text = gzip.compress(np.random.default_rng(0).bytes(400_000))
    answers = Answers(port)
    with answers.socket as connection:
        for body, expected in ((gzip.compress(listed(), 0), 200), (text, 400), (gzip.compress(listed(), 0)[:-4], 400)):
            send_pieces(connection, post(body, b"Content-Encoding: gzip"), 1)
            assert answers.next()[0] == expected


def test_a_large_body_of_another_path_is_read(port: int) -> None:
    body = json.dumps({"x": X.tolist()}).encode()
    answers = Answers(port)
    with answers.socket as connection:
        for field in ((), (b"Inference-Header-Content-Length: 3",)):
            request = post(body, *field).replace(b"/infer", b"/generate")
            send_pieces(connection, request, 2)
            status, data = answers.next()
            assert (status, json.loads(data)["y"]) == (200, Y.ravel().tolist())


def test_a_client_that_goes_within_a_large_body_leaves_nothing() -> None:
    data = binary()
    with Server({"net": session("net")}, http="127.0.0.1:0") as server:
        port = int(server.url.rpartition(":")[2])
        for ends in (False, True):
            answers = Answers(port)
            answers.socket.sendall(data[: len(data) // 2])
            end = time.monotonic() + 120
            while not server.service.held.total and time.monotonic() < end:
                time.sleep(0.01)
            assert server.service.held.total > 0
            if ends:
                answers.socket.shutdown(socket.SHUT_WR)
                with pytest.raises(ConnectionError):
                    answers.next()
            answers.socket.close()
            end = time.monotonic() + 120
            while server.service.held.total and time.monotonic() < end:
                time.sleep(0.01)
            assert server.service.held.total == 0


def test_the_memory_of_large_bodies_is_limited() -> None:
    limits = Limits(body_bytes=1 << 20, output_bytes=1 << 20, held_bytes=2 << 20)
    with Server({"net": session("net")}, http="127.0.0.1:0", limits=limits) as server:
        port = int(server.url.rpartition(":")[2])
        data = binary()
        held = [Answers(port) for _ in range(6)]
        for index, answers in enumerate(held):
            answers.socket.sendall(data[:-1000])
            end = time.monotonic() + 120
            while index < 2 and server.service.held.total <= index * len(data) and time.monotonic() < end:
                time.sleep(0.01)
            if index >= 2:
                assert held[index - 2].next()[0] == 503, "the bytes that are held longest are freed"
        held[-1].socket.sendall(data[-1000:])
        assert held[-1].next()[0] == 200
        for answers in held:
            answers.socket.close()
