"""Whole processes: start, drain, workers, signals, the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import RequestError
from sardonyx.serve import Batching, Limits, Model, Server
from sardonyx.serve.client import Client
from tests.serve.models import save, session
from tests.serve.processes import process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

X = {"x": np.ones((1, 4), np.float32)}


def eventually(client: Client, seconds: float = 120.0, inputs: dict[str, np.ndarray] = X) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            client.infer("net", inputs)
            return
        except RequestError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_sigterm_answers_what_was_accepted_and_exits_with_0(tmp_path: Path) -> None:
    save("net", tmp_path / "net.onnx")
    with process(str(tmp_path / "net.onnx"), "--http", "127.0.0.1:0", "--drain", "10") as (running, announced):
        failures: list[str] = []
        answers = [0]
        closed = threading.Event()

        def ask() -> None:
            client = Client(announced["http"], retries=0)
            try:
                while True:
                    client.infer("net", X)
                    answers[0] += 1
            except RequestError as error:
                # After the announced end of the connection, a new connection is refused.
                if "refused" not in str(error):
                    failures.append(str(error))
                closed.set()

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        while answers[0] < 20:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 0
        for thread in threads:
            thread.join(120)
        assert not failures, failures


def test_workers_share_a_port_and_are_started_anew(tmp_path: Path) -> None:
    save("net", tmp_path / "net.onnx")
    arguments = (str(tmp_path / "net.onnx"), "--http", "127.0.0.1:0", "--workers", "2", "--drain", "5")
    with process(*arguments) as (running, announced):
        client = Client(announced["http"], retries=0)
        eventually(client)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if children.exists():
            before = children.read_text().split()
            assert len(before) == 2
            os.kill(int(before[0]), signal.SIGKILL)
            end = time.monotonic() + 120
            while set(children.read_text().split()) == set(before) or len(children.read_text().split()) < 2:
                assert time.monotonic() < end
                time.sleep(0.02)
        eventually(client)
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) in (0, 1)


@pytest.mark.long
def test_workers_go_on_while_the_model_file_cannot_be_read(tmp_path: Path) -> None:
    model = save("net", tmp_path / "net.onnx")
    content = model.read_bytes()
    arguments = (str(model), "--http", "127.0.0.1:0", "--workers", "2", "--drain", "5")
    with process(*arguments) as (running, announced):
        client = Client(announced["http"], retries=3)
        eventually(client)
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list child processes")
        time.sleep(5)
        model.write_text("being replaced")
        killed = children.read_text().split()[0]
        os.kill(int(killed), signal.SIGKILL)
        end = time.monotonic() + 8
        while time.monotonic() < end:
            assert client.infer("net", X).outputs["y"].tolist() == [[16.0, 20.0]]
            time.sleep(0.05)
        assert running.poll() is None
        model.write_bytes(content)
        steady = 0
        while steady < 40:  # Two workers for two seconds: the new one is not refused any more.
            steady = steady + 1 if len(children.read_text().split()) == 2 else 0
            assert time.monotonic() < end + 60
            time.sleep(0.05)
        eventually(client)


def test_workers_of_a_cold_start_share_the_memory_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SARDONYX_COMPILE", "wait")
    weights = np.random.default_rng(0).standard_normal((3000, 2000)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> net (float[N, 3000] x) => (float[N, 2000] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "net.onnx")
    arguments = (str(tmp_path / "net.onnx"), "--http", "127.0.0.1:0", "--workers", "3", "--drain", "5")
    with process(*arguments) as (running, announced):
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list the children of a process")
        eventually(Client(announced["http"], retries=0), inputs={"x": np.ones((1, 3000), np.float32)})
        end = time.monotonic() + 60
        mapped: list[bool] = []
        while not (len(mapped) == 3 and all(mapped[1:])):
            assert time.monotonic() < end, mapped
            time.sleep(0.05)
            mapped = [
                str(tmp_path / "cache") in Path(f"/proc/{pid}/maps").read_text() for pid in children.read_text().split()
            ]
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) in (0, 1)


def test_slow_clients_are_ended_and_do_not_slow_others() -> None:
    limits = Limits(head_seconds=0.5, connections=64)
    with Server({"net": session("net")}, http="127.0.0.1:0", limits=limits) as server:
        host, port = server.url.split("//")[1].split(":")
        slow = [socket.create_connection((host, int(port)), timeout=120) for _ in range(50)]
        for connection in slow:
            connection.sendall(b"POST /v2/models/net/infer HTTP/1.1\r\nX: ")
        client = Client(server.url)
        assert client.infer("net", X).outputs["y"].tolist() == [[16, 20]]
        for connection in slow:
            assert b"408" in connection.recv(4096)
            connection.close()


def test_too_many_connections_are_refused_by_name() -> None:
    with Server({"net": session("net")}, http="127.0.0.1:0", limits=Limits(connections=2)) as server:
        host, port = server.url.split("//")[1].split(":")
        held = [socket.create_connection((host, int(port)), timeout=120) for _ in range(3)]
        assert b"503" in held[2].recv(4096)
        for connection in held:
            connection.close()


def test_a_client_that_goes_cancels_its_request() -> None:
    with Server({"slow": Model(session("slow"), Batching(mode="off"))}, http="127.0.0.1:0") as server:
        host, port = server.url.split("//")[1].split(":")
        shape = [1, 128, 128]
        data = np.zeros(shape, np.float32).tobytes()
        head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape,
                                       "parameters": {"binary_data_size": len(data)}}]}).encode()  # fmt: skip
        fields = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d" % (len(head), len(head) + len(data))
        request = b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n\r\n" + head + data
        clients = [socket.create_connection((host, int(port)), timeout=120) for _ in range(8)]
        for client in clients:
            client.sendall(request)
        for client in clients[2:]:
            client.close()
        assert b"200" in clients[0].recv(4096)
        end = time.monotonic() + 120
        statistics = server.service.host.get("slow").model.statistics
        while server.service.host.pending and time.monotonic() < end:
            time.sleep(0.01)
        assert statistics.cancelled >= 1
        assert statistics.success.count + statistics.cancelled <= 8


def test_a_model_of_the_hub_is_served_by_its_name_and_lock(tmp_path: Path) -> None:
    model, lock = save("net", tmp_path / "net.onnx"), tmp_path / "sardonyx.lock"
    with process(f"file:{model}", "--lock", str(lock), "--http", "127.0.0.1:0") as (_, announced):
        assert announced["models"] == ["net:1"]
        assert Client(announced["http"]).infer("net", X).outputs["y"].tolist() == [[16.0, 20.0]]
    assert f"file:{model}" in lock.read_text()
    save("doubled", model)
    command = [sys.executable, "-m", "sardonyx", "serve", f"file:{model}", "--lock", str(lock), "--http", "127.0.0.1:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode
    assert "not those of the lock file" in refused.stderr
