"""The same requests to a real Triton server and to this one: equal answers, and equal classes of status.

TRITON_COMMAND is the command of a Triton server with its backend of ONNX Runtime, with ``{repository}``, ``{http}`` and
``{grpc}`` in place of the folder and the ports, as for ``benchmarks/serve.py``.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Server
from sardonyx.serve.protocol.messages import message_class
from tests.suites.triton_requests import HEAD, RAGGED, RAGGED_CONFIG, TEXTS, HttpCase, grpc_cases, http_cases, tensor

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not os.environ.get("TRITON_COMMAND"), reason="TRITON_COMMAND does not name a Triton server"),
]

STRICTER = {
    "output twice": "Triton answers the output once",
    "above INT32": "Triton wraps the numbers around",
    "parameters as text": "Triton ignores the parameters",
    "byte 2 as flag": "Triton hands the byte to the model",
    "more raw contents": "Triton ignores the contents",
}
"""Requests that this server refuses and Triton answers."""

OTHER = {
    "outputs in another order": "Triton answers in the order of the model, this server in that of the request",
    "binary texts": "the backend of ONNX Runtime cuts strings at a zero byte",
    "region without shared memory": "shared memory is off here unless it is allowed: 501",
    "unknown region": "shared memory is off here unless it is allowed: UNIMPLEMENTED",
    "unknown encoding": "501 of Triton, 415 here",
}
"""Requests whose answers differ in another way that is meant."""


class Pair:
    """Ports of Triton and of this server: of HTTP, and of gRPC."""

    def __init__(self, http: tuple[int, int], grpc: tuple[int, int]) -> None:
        self.http = http
        self.grpc = grpc


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root: Path = tmp_path_factory.mktemp("repository")
    for name, text in {**TEXTS, "ragged": HEAD + RAGGED}.items():
        (root / name / "1").mkdir(parents=True)
        onnx.save(onnx.parser.parse_model(text), root / name / "1" / "model.onnx")
    (root / "ragged" / "config.pbtxt").write_text(RAGGED_CONFIG, encoding="utf-8")
    http, grpc = free_port(), free_port()
    words = shlex.split(os.environ["TRITON_COMMAND"].format(repository=root, http=http, grpc=grpc))
    triton = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(triton, http)
        with Server(root, http="127.0.0.1:0", grpc="127.0.0.1:0") as server:
            yield Pair((http, int(server.url.rpartition(":")[2])), (grpc, server.grpc_port))
    finally:
        triton.kill()
        triton.wait()


def wait_for(process: subprocess.Popen[bytes], port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError):
            if ask(port, HttpCase("ready", path="/v2/health/ready", method="GET"))[0] == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"Triton is not ready: exit status {process.poll()}")


def ask(port: int, case: HttpCase) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(case.method, case.path, case.body if case.method == "POST" else None, case.headers)
        response = connection.getresponse()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def outputs(headers: dict[str, str], body: bytes) -> Any:
    """Return what two answers to inference must have in common."""
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    length = int(headers.get("inference-header-content-length", len(body)))
    answer = json.loads(body[:length])
    parts = [(part["name"], part["datatype"], part["shape"], part.get("data")) for part in answer["outputs"]]
    return parts, body[length:], answer.get("id"), answer["model_name"], answer["model_version"]


def require_alike(name: str, theirs: int, ours: int) -> None:
    """Require equal classes of status; a request of a client is never a failure of this server."""
    assert ours < 500 or ours == 501, (name, ours)
    if name in STRICTER:
        assert (theirs // 100, ours // 100) == (2, 4), (name, theirs, ours)
    elif theirs >= 500:
        assert 400 <= ours < 500, (name, theirs, ours)
    else:
        assert ours // 100 == theirs // 100, (name, theirs, ours)


@pytest.mark.parametrize("case", list(http_cases()), ids=lambda case: case.name)
def test_answers_over_http_are_those_of_triton(servers: Pair, case: HttpCase) -> None:
    theirs, ours = (ask(port, case) for port in servers.http)
    if case.name in OTHER and theirs[0] != 200:
        assert 400 <= ours[0] <= 501 and ours[0] != 500
        return
    require_alike(case.name, theirs[0], ours[0])
    if theirs[0] == ours[0] == 200 and case.path.endswith("/infer") and case.name not in OTHER:
        assert outputs(*ours[1:]) == outputs(*theirs[1:])


@pytest.mark.parametrize("length", [1, 3, 8])
def test_concatenated_requests_have_the_sizes_of_triton(servers: Pair, length: int) -> None:
    body = {"inputs": [tensor("x", "FP32", [1, length], list(range(length)))]}
    case = HttpCase("ragged", json.dumps(body).encode(), path="/v2/models/ragged/infer")
    theirs, ours = (ask(port, case) for port in servers.http)
    assert (theirs[0], ours[0]) == (200, 200), (theirs, ours)
    assert sorted(outputs(*ours[1:])[0]) == sorted(outputs(*theirs[1:])[0])
    described = [
        json.loads(ask(port, HttpCase("metadata", path="/v2/models/ragged", method="GET"))[2]) for port in servers.http
    ]
    assert described[0]["inputs"] == described[1]["inputs"]


@pytest.mark.parametrize("path", ["/v2", "/v2/models/simple", "/v2/models/simple/config", "/v2/models/simple/stats"])
def test_descriptions_have_the_fields_of_triton(servers: Pair, path: str) -> None:
    theirs, ours = (json.loads(ask(port, HttpCase("", path=path, method="GET"))[2]) for port in servers.http)
    # Optimization is about graphics processors.
    assert set(theirs) - set(ours) <= {"optimization"}
    if path.endswith("config"):
        both = {part["name"]: part for part in theirs["input"]}
        assert {part["name"]: part for part in ours["input"]} == both


@pytest.mark.parametrize("name, message", list(grpc_cases()), ids=lambda part: part if isinstance(part, str) else "")
def test_answers_over_grpc_are_those_of_triton(servers: Pair, name: str, message: Any) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
    answers = []
    for port in servers.grpc:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            try:
                data = call(message.SerializeToString(), timeout=60)
            except grpc.RpcError as error:
                answers.append(error.code().name)
                continue
            answer = message_class("ModelInferResponse").FromString(data)
            described = [(part.name, part.datatype, list(part.shape)) for part in answer.outputs]
            answers.append((answer.id, answer.model_version, described, list(answer.raw_output_contents)))
    theirs, ours = answers
    if name in STRICTER:
        assert isinstance(theirs, tuple) and ours == "INVALID_ARGUMENT"
    elif name in OTHER:
        assert ours == "UNIMPLEMENTED"
    else:
        assert ours == theirs
