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

import numpy as np
import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Server
from sardonyx.serve.protocol.messages import message_class
from tests.suites.triton_requests import (
    ENSEMBLES,
    HEAD,
    RAGGED,
    RAGGED_CONFIG,
    RESHAPED,
    RESHAPED_CONFIG,
    SEQUENCE,
    SEQUENCE_CONFIG,
    SEQUENCE_STEPS,
    TEXTS,
    HttpCase,
    grpc_cases,
    http_cases,
    tensor,
)

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
    """Ports of Triton and of this server: of HTTP, of gRPC, and of HTTP with shared memory."""

    def __init__(self, http: tuple[int, int], grpc: tuple[int, int], sharing: tuple[int, int]) -> None:
        self.http = http
        self.grpc = grpc
        self.sharing = sharing


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root: Path = tmp_path_factory.mktemp("repository")
    for name, text in {**TEXTS, "ragged": HEAD + RAGGED, "steps": HEAD + SEQUENCE, "reshaped": HEAD + RESHAPED}.items():
        (root / name / "1").mkdir(parents=True)
        onnx.save(onnx.parser.parse_model(text), root / name / "1" / "model.onnx")
    (root / "ragged" / "config.pbtxt").write_text(RAGGED_CONFIG, encoding="utf-8")
    (root / "steps" / "config.pbtxt").write_text(SEQUENCE_CONFIG, encoding="utf-8")
    (root / "reshaped" / "config.pbtxt").write_text(RESHAPED_CONFIG, encoding="utf-8")
    (root / "floats" / "config.pbtxt").write_text("max_batch_size: 4", encoding="utf-8")
    for name, text in ENSEMBLES.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text, encoding="utf-8")
    http, grpc = free_port(), free_port()
    words = shlex.split(os.environ["TRITON_COMMAND"].format(repository=root, http=http, grpc=grpc))
    triton = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(triton, http)
        with (
            Server(root, http="127.0.0.1:0", grpc="127.0.0.1:0") as server,
            Server(root, http="127.0.0.1:0", allow_shared_memory=True) as sharing,
        ):
            yield Pair(
                (http, int(server.url.rpartition(":")[2])), (grpc, server.grpc_port),
                (http, int(sharing.url.rpartition(":")[2])),
            )  # fmt: skip
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


@pytest.mark.parametrize(
    "x, s", [([2, 3], [2, 1]), ([1, 1], [1, 1]), ([2, 1, 3], [2, 1]), ([2, 3], [2]), ([6], [1, 1]), ([2, 3], [1, 1])]
)
def test_reshaped_tensors_have_the_sizes_of_triton(servers: Pair, x: list[int], s: list[int]) -> None:
    inputs = [tensor(n, "FP32", z, list(range(int(np.prod(z))))) for n, z in (("x", x), ("s", s))]
    case = HttpCase("reshaped", json.dumps({"inputs": inputs}).encode(), path="/v2/models/reshaped/infer")
    theirs, ours = (ask(port, case) for port in servers.http)
    require_alike("reshaped", theirs[0], ours[0])
    if theirs[0] == 200:
        assert sorted(outputs(*ours[1:])[0]) == sorted(outputs(*theirs[1:])[0])
    described = [ask(port, HttpCase("", path="/v2/models/reshaped", method="GET"))[2] for port in servers.http]
    assert json.loads(described[0])["inputs"] == json.loads(described[1])["inputs"]


@pytest.mark.parametrize(
    "x, s", [([2, 3], [2, 1]), ([4, 1], [4, 1]), ([5, 1], [5, 1]), ([2, 3], [1, 1]), ([2, 3], None), ([6], [1, 1])]
)
def test_ensembles_answer_as_those_of_triton(servers: Pair, x: list[int], s: list[int] | None) -> None:
    parts = [(name, sizes) for name, sizes in (("IN", x), ("S", s)) if sizes is not None]
    inputs = [tensor(name, "FP32", sizes, list(range(int(np.prod(sizes))))) for name, sizes in parts]
    case = HttpCase("branched", json.dumps({"inputs": inputs}).encode(), path="/v2/models/branched/infer")
    theirs, ours = (ask(port, case) for port in servers.http)
    require_alike("branched", theirs[0], ours[0])
    if theirs[0] == 200:
        assert sorted(outputs(*ours[1:])[0]) == sorted(outputs(*theirs[1:])[0])
    for path in ("/v2/models/branched", "/v2/models/branched/config"):
        theirs, ours = (json.loads(ask(port, HttpCase("", path=path, method="GET"))[2]) for port in servers.http)
        for field in ("platform", "inputs", "outputs", "versions", "max_batch_size", "instance_group"):
            assert ours.get(field) == theirs.get(field), field


@pytest.mark.parametrize("model", ["steps", "stateful"])
def test_sequences_have_the_states_and_controls_of_triton(servers: Pair, model: str) -> None:
    answers: list[list[Any]] = [[], []]
    for step, (number, flags) in enumerate(SEQUENCE_STEPS):
        parameters: dict[str, Any] = {"sequence_id": number}
        parameters |= {"sequence_start": flags in ("start", "both"), "sequence_end": flags in ("end", "both")}
        body = {"inputs": [tensor("x", "FP32", [1, 1], [float(step + 1)])], "parameters": parameters}
        case = HttpCase("step", json.dumps(body).encode(), path=f"/v2/models/{model}/infer")
        for received, port in zip(answers, servers.http, strict=True):
            status, headers, content = ask(port, case)
            received.append(sorted(outputs(headers, content)[0]) if status == 200 else status)
    assert answers[1] == answers[0]


def test_shared_memory_is_read_and_written_as_by_triton(servers: Pair) -> None:
    values = np.arange(32, dtype=np.int32)
    answered = []
    for index, port in enumerate(servers.sharing):
        path = Path("/dev/shm") / f"sardonyx-test-{os.getpid()}-{index}"
        region = f"/v2/systemsharedmemory/region/r{index}"
        path.write_bytes(values.tobytes() + bytes(128))
        try:
            statuses = []
            for key, offset, size in [
                (path.name, 0, 256),
                (path.name, 0, 256),
                ("missing", 0, 8),
                (path.name, 0, 1 << 40),
            ]:
                register = json.dumps({"key": f"/{key}", "offset": offset, "byte_size": size}).encode()
                statuses.append(ask(port, HttpCase("register", register, path=f"{region}/register"))[0])
            for sizes in ((64, 64), (64, 60), (64, 1 << 30)):
                parts = [
                    {
                        "name": f"INPUT{i}",
                        "datatype": "INT32",
                        "shape": [1, 16],
                        "parameters": {
                            "shared_memory_region": f"r{index}",
                            "shared_memory_offset": 64 * i,
                            "shared_memory_byte_size": sizes[0],
                        },
                    }
                    for i in range(2)
                ]
                requested = {
                    "name": "OUTPUT0",
                    "parameters": {
                        "shared_memory_region": f"r{index}",
                        "shared_memory_offset": 128,
                        "shared_memory_byte_size": sizes[1],
                    },
                }
                request = json.dumps({"inputs": parts, "outputs": [requested]}).encode()
                status, _, content = ask(port, HttpCase("infer", request))
                statuses.append(status)
                if status == 200:
                    (output,) = json.loads(content)["outputs"]
                    statuses.append((output["name"], output["shape"], "data" in output, "parameters" in output))
                    statuses.append(np.frombuffer(path.read_bytes()[128:192], np.int32).tolist())
            described = json.loads(ask(port, HttpCase("status", path="/v2/systemsharedmemory/status", method="GET"))[2])
            statuses.append([(part["offset"], part["byte_size"]) for part in described])
            statuses.append(ask(port, HttpCase("unregister", b"", path=f"{region}/unregister"))[0])
            statuses.append(ask(port, HttpCase("infer", request))[0])
        finally:
            path.unlink()
        answered.append(statuses)
    assert (values[:16] + values[16:]).tolist() in answered[0]
    # Triton answers 500 to an output that does not fit its region.
    assert answered[1] == [400 if status == 500 else status for status in answered[0]]


def test_a_stream_answers_in_order_and_outlives_errors(servers: Pair) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
    requests = []
    for number, model in enumerate(["floats", "missing", "floats", "floats"]):
        message = message_class("ModelInferRequest")(model_name=model, id=str(number))
        part = message.inputs.add(name="x" if number < 3 else "z", datatype="FP32", shape=[1, 2])
        part.contents.fp32_contents.extend([number, number + 0.5])
        if number:
            message.parameters["triton_enable_empty_final_response"].bool_param = number == 2
        requests.append(message.SerializeToString())
    received: list[list[Any]] = []
    for port in servers.grpc:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            answers = []
            for data in call(iter(requests), timeout=60):
                answer = message_class("ModelStreamInferResponse").FromString(data)
                response = answer.infer_response
                is_final = response.parameters["triton_final_response"].bool_param
                error = bool(answer.error_message)
                answers.append((response.id, list(response.raw_output_contents), error, is_final))
            received.append(answers)
    theirs, ours = received
    # Triton answers an error at once, before requests that it still computes.
    assert sorted(ours) == sorted(theirs)


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
