"""Faults of clients, processes and disks: the others are answered, and nothing is left over."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")

from sardonyx.serve import Batching, Limits, Model, Server
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import header_block
from sardonyx.serve.grpc.http2 import Http2Connection
from sardonyx.serve.http.connection import Connection as HttpConnection
from tests.serve.models import save, session
from tests.serve.processes import process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and files of POSIX")

BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
HEAD = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\n"
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server({"net": session("net")}, http="127.0.0.1:0", limits=Limits(body_bytes=1 << 20)) as running:
        yield running


def connect(server: Server) -> socket.socket:
    host, port = server.url.split("//")[1].split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def is_good(server: Server) -> bool:
    with connect(server) as connection:
        connection.sendall(REQUEST)
        return answer(connection)[0] == 200


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_clients_that_reset_within_a_body_leave_nothing(server: Server) -> None:
    assert is_good(server)
    before = descriptors()
    for size in range(60, len(REQUEST), 5):
        connection = connect(server)
        connection.sendall(REQUEST[:size])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert is_good(server)
    end = time.monotonic() + 120
    while descriptors() > before and time.monotonic() < end:
        time.sleep(0.02)
    assert descriptors() <= before
    assert server.service.host.pending == 0


CALL = header_block((
    (":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ServerLive"),
    ("content-type", "application/grpc"),
))  # fmt: skip
LIVE = frames.PREFACE + frames.settings_frame(()) + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, CALL)
LIVE += frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5))


@pytest.mark.parametrize("grpc", [False, True])
def test_a_connection_that_has_ended_is_freed_without_a_collector(grpc: bool) -> None:
    text = LIVE if grpc else REQUEST
    with Server({"net": session("net")}, http="127.0.0.1:0", grpc="127.0.0.1:0") as server:
        ports = int(server.url.rpartition(":")[2]), server.grpc_port
        gc.collect()
        gc.disable()
        try:
            for size in (0, 1, 30, len(text) - 1, len(text)) * 3:
                with socket.create_connection(("127.0.0.1", ports[grpc]), 10) as connection:
                    connection.sendall(text[:size])
                    if size == len(text):
                        assert connection.recv(1)
            end = time.monotonic() + 120
            while (left := remaining()) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            gc.enable()
        assert not left


def remaining() -> int:
    """Return the number of connections in memory."""
    return sum(isinstance(item, (HttpConnection, Http2Connection)) for item in gc.get_objects())


def test_a_half_closed_connection_ends(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(REQUEST[:80])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b""
    assert is_good(server)


def test_a_body_of_65537_chunks_is_answered(server: Server) -> None:
    spaces = 65537 - len(BODY)
    chunks = b"1\r\n \r\n" * spaces + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
        assert answer(connection)[0] == 200


def test_endless_header_fields_end_their_connection(server: Server) -> None:
    sent = 0
    with connect(server) as connection:
        connection.sendall(HEAD)
        with contextlib.suppress(OSError):
            while sent < 100 << 20:
                connection.sendall(b"X: " + b"a" * 65000)
                sent += 65000
        assert sent < 16 << 20
    assert is_good(server)


def test_a_queue_refuses_a_burst_at_once_and_recovers() -> None:
    model = Model(session("slow"), batching=Batching(mode="off", queue_requests=2))
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 128, 128], "data": [0] * 128 * 128}]})
    request = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with Server({"slow": model}, http="127.0.0.1:0") as server:
        for _ in range(2):
            opened = [connect(server) for _ in range(40)]
            for connection in opened:
                connection.sendall(request)
            statuses = [answer(connection)[0] for connection in opened]
            for connection in opened:
                connection.close()
            assert set(statuses) <= {200, 503} and 200 in statuses
            # After the burst the next request is answered.
            with connect(server) as connection:
                connection.sendall(request)
                assert answer(connection)[0] == 200
        assert server.service.host.pending == 0


def test_a_jump_of_the_clock_of_the_day_changes_no_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(server) as connection:
        connection.sendall(REQUEST)
        assert answer(connection)[0] == 200
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() + 10 * 365 * 86400)
        time.sleep(1.2)
        connection.sendall(REQUEST)
        assert answer(connection)[0] == 200


def test_a_second_signal_ends_a_server_that_drains(tmp_path: Path) -> None:
    save("net", tmp_path / "net.onnx")
    with process(str(tmp_path / "net.onnx"), "--http", "127.0.0.1:0", "--drain", "60") as (running, announced):
        port = int(announced["http"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            # A request that never ends keeps the server draining.
            connection.sendall(REQUEST[:100])
            time.sleep(0.3)
            running.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert running.poll() is None
            running.send_signal(signal.SIGTERM)
            assert running.wait(120) == 1


def test_a_server_starts_without_a_writable_cache(tmp_path: Path) -> None:
    """A disk that is full, or a folder that cannot be written, costs the cache, not the answers."""
    save("net", tmp_path / "net.onnx")
    code = (
        "import sys, http.client\nfrom sardonyx.serve import Server\n"
        "with Server({'net': sys.argv[1]}, http='127.0.0.1:0') as server:\n"
        "    c = http.client.HTTPConnection(server.url.split('//')[1]); c.request('POST', '/v2/models/net/infer',"
        " sys.argv[2]); print(c.getresponse().status)\n"
    )
    full = Path("/dev/full")
    environment = {**os.environ, "SARDONYX_CACHE": str(full if full.exists() else tmp_path / "net.onnx" / "x")}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net.onnx"), BODY.decode()], capture_output=True, text=True,
        timeout=120, check=False, env=environment,
    )  # fmt: skip
    assert result.stdout.strip() == "200", result.stderr[-2000:]


def test_a_half_copied_version_leaves_the_old_answers(tmp_path: Path) -> None:
    save("net", tmp_path / "repository" / "net" / "1" / "model.onnx")
    whole = (tmp_path / "repository" / "net" / "1" / "model.onnx").read_bytes()
    with Server(tmp_path / "repository", http="127.0.0.1:0", poll_seconds=0.1) as server:
        assert is_good(server)
        target = tmp_path / "repository" / "net" / "2" / "model.onnx"
        target.parent.mkdir()
        for data in (b"", whole[: len(whole) // 2], b"\xff" * 100):
            target.write_bytes(data)
            time.sleep(0.5)
            assert is_good(server)
        shutil.rmtree(target.parent)
        assert is_good(server)


def test_a_forked_child_does_not_disturb_the_server(server: Server) -> None:
    with connect(server) as connection:
        connection.sendall(REQUEST)
        assert answer(connection)[0] == 200
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"], close_fds=False)
        answers: list[int] = []

        def ask() -> None:
            for _ in range(50):
                connection.sendall(REQUEST)
                answers.append(answer(connection)[0])

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(120)
        assert child.wait(120) == 0
        assert answers == [200] * 50


@pytest.mark.long
def test_answers_do_not_grow_memory(server: Server) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    values = np.random.default_rng(0).random((400, 4), np.float32)
    with connect(server) as connection:

        def ask(count: int) -> None:
            for index in range(count):
                data = values[index % len(values)].tolist()
                body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": data}]})
                connection.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
                assert answer(connection)[0] == 200

        ask(600)
        before = resident()
        ask(2000)
        assert resident() <= before * 1.02 + (1 << 20)
