"""Other wires and extensions with stock clients: gRPC, shared memory, sequences, ASGI, security."""

from __future__ import annotations

import asyncio
import importlib
import json
import queue
import ssl
import subprocess
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import OptionError, RequestError
from sardonyx.serve import Control, Limits, Model, Server, State
from sardonyx.serve.client import Client as BinaryClient
from sardonyx.serve.protocol.messages import file_descriptor
from sardonyx.serve.security.tls import Tls
from sardonyx.serve.security.tokens import Tokens, new_token, read_tokens
from tests.serve.conftest import Client, tensor
from tests.serve.models import session

X = tensor("x", "FP32", [1, 4], [1, 2, 3, 4])


def triton(module: str) -> Any:
    name = f"tritonclient.{module}"
    package = "grpc" if module == "grpc" else "geventhttpclient" if module == "http" else "tritonclient"
    pytest.importorskip(package, reason=f"{package} is not installed (extra: test)")
    pytest.importorskip("tritonclient", reason="tritonclient is not installed (extra: test)")
    return importlib.import_module(name)


def sequential() -> Model:
    return Model(session("accumulate"), states=[State("state", "next")])


@pytest.fixture(scope="module", params=["own", "grpcio"])
def both(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of both wires with all extensions on, with each server of gRPC."""
    for package in ("grpc", "hpack"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra: grpc)")
    models = {name: session(name) for name in ("net", "add_sub", "strings", "gather", "half")}
    with Server(
        {**models, "accumulate": sequential()}, http="127.0.0.1:0", grpc="127.0.0.1:0", control="edit",
        allow_shared_memory=True, allow_inner=True, grpc_engine=request.param,
    ) as server:  # fmt: skip
        yield server


def fields(file: FileDescriptorProto) -> dict[str, Any]:
    """Return number, label, type and oneof of every field by its full name, and the numbers of enumerations."""
    collected: dict[str, Any] = {}

    def add(message: Any, prefix: str) -> None:
        name = f"{prefix}{message.name}."
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            collected[name + field.name] = field.number, field.label, field.type, field.type_name, oneof
        for enum in message.enum_type:
            collected.update({f"{name}{enum.name}.{value.name}": value.number for value in enum.value})
        for nested in message.nested_type:
            add(nested, name)

    for message in file.message_type:
        add(message, "")
    for enum in file.enum_type:
        collected.update({f"{enum.name}.{value.name}": value.number for value in enum.value})
    return collected


def test_messages_are_those_of_the_stock_client() -> None:
    triton("grpc")
    expected: dict[str, Any] = {}
    for name in ("service_pb2", "model_config_pb2"):
        file = FileDescriptorProto()
        importlib.import_module(f"tritonclient.grpc.{name}").DESCRIPTOR.CopyToProto(file)
        expected |= fields(file)
    ours = fields(file_descriptor())
    assert len(expected) >= 300
    assert {key: ours.get(key) for key in expected} == expected


def grpc_client(server: Server) -> Any:
    return triton("grpc").InferenceServerClient(f"127.0.0.1:{server.grpc_port}")


def grpc_input(x: np.ndarray, name: str = "x", datatype: str = "FP32") -> Any:
    value = triton("grpc").InferInput(name, list(x.shape), datatype)
    value.set_data_from_numpy(x)
    return value


def test_the_stock_grpc_client_finds_everything(both: Server) -> None:
    client = grpc_client(both)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("net")
    assert client.get_server_metadata().name == "sardonyx"
    assert list(client.get_model_metadata("net").inputs[0].shape) == [-1, 4]
    assert client.get_model_config("net").config.max_batch_size == 64
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    result = client.infer("net", [grpc_input(x)], request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("y"), x @ np.arange(1, 9, dtype=np.float32).reshape(4, 2))
    assert result.get_response().id == "seven"
    assert result.get_response().parameters["sardonyx_revision"].int64_param == 0
    assert client.get_inference_statistics("net").model_stats[0].inference_count >= 2
    assert "net" in [model.name for model in client.get_model_repository_index().models]
    text = np.array([[b"a", "ü".encode()]], np.object_)
    np.testing.assert_array_equal(client.infer("strings", [grpc_input(text, "x", "BYTES")]).as_numpy("y"), text)
    client.close()


def test_the_grpc_client_updates_settings(both: Server) -> None:
    client = grpc_client(both)
    settings = client.update_trace_settings(settings={"trace_rate": "5"}, as_json=True)["settings"]
    assert settings["trace_rate"]["value"] == ["5"]
    with pytest.raises(Exception, match="--trace"):
        client.update_trace_settings(settings={"trace_level": "TIMESTAMPS"})
    assert client.update_log_settings({"log_verbose_level": 1}, as_json=True)["settings"]["log_verbose_level"]
    client.close()


@pytest.mark.parametrize(
    "model, make, code",
    [
        ("none", lambda: grpc_input(np.ones((1, 4), np.float32)), "NOT_FOUND"),
        ("net", lambda: grpc_input(np.ones((1, 3), np.float32)), "INVALID_ARGUMENT"),
        ("net", lambda: grpc_input(np.ones((1, 4), np.int32), "x", "INT32"), "INVALID_ARGUMENT"),
        ("net", lambda: grpc_input(np.ones((1, 4), np.float32), "z"), "INVALID_ARGUMENT"),
    ],
)
def test_refusals_have_the_status_of_grpc(both: Server, model: str, make: Any, code: str) -> None:
    client = grpc_client(both)
    with pytest.raises(Exception, match=code):
        client.infer(model, [make()])
    client.close()


def test_typed_contents_are_checked_and_read(both: Server) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
    stubs = importlib.import_module("tritonclient.grpc.service_pb2_grpc")
    messages = importlib.import_module("tritonclient.grpc.service_pb2")
    with grpc.insecure_channel(f"127.0.0.1:{both.grpc_port}") as channel:
        stub = stubs.GRPCInferenceServiceStub(channel)
        request = messages.ModelInferRequest(model_name="net")
        part = request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        part.contents.fp32_contents.extend([1, 2, 3, 4])
        answer = stub.ModelInfer(request)
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [50, 60]
        part.parameters["shared_memory_region"].string_param = "r"
        with pytest.raises(grpc.RpcError, match="contents and a region") as refused:
            stub.ModelInfer(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        del part.parameters["shared_memory_region"]
        part.contents.fp32_contents.append(5)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_message_of_many_fields_is_refused_before_the_parse(both: Server) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
    many = b"\x2a\0" * 35_000
    with grpc.insecure_channel(f"127.0.0.1:{both.grpc_port}") as channel:
        for name in ("ModelInfer", "ModelMetadata"):
            with pytest.raises(grpc.RpcError, match="at most 4096 fields") as refused:
                channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(many)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        (answer,) = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([many]))
    assert b"at most 4096 fields" in answer


def test_a_stream_answers_in_order_and_reports_errors(both: Server) -> None:
    client = grpc_client(both)
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put(error or result.get_response().id))
    x = grpc_input(np.ones((1, 4), np.float32))
    for number in range(20):
        client.async_stream_infer("net" if number != 7 else "none", [x], request_id=str(number))
    received = [answers.get(timeout=120) for _ in range(20)]
    client.stop_stream()
    client.close()
    assert [str(item) for item in received if not isinstance(item, Exception)] == [str(n) for n in range(20) if n != 7]
    assert "Request for unknown model" in str(received[7])


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_sequences_carry_their_state(both: Server, wire: str) -> None:
    module = triton(wire)
    address = both.url.split("//")[1] if wire == "http" else f"127.0.0.1:{both.grpc_port}"
    client = module.InferenceServerClient(address)

    def step(identity: int | str, value: float, start: bool = False, end: bool = False) -> float:
        x = module.InferInput("x", [1, 1], "FP32")
        x.set_data_from_numpy(np.full((1, 1), value, np.float32))
        result = client.infer("accumulate", [x], sequence_id=identity, sequence_start=start, sequence_end=end)
        assert result.as_numpy("next") is None
        return float(result.as_numpy("y")[0, 0])

    assert [step(1, 1, start=True), step("two", 10, start=True), step(1, 2), step("two", 20, end=True)] == [
        1,
        10,
        3,
        30,
    ]
    assert step(1, 3, end=True) == 6
    for identity in (1, "two"):
        with pytest.raises(Exception, match="not open"):
            step(identity, 1)
    with pytest.raises(Exception, match="sequence_id"):
        step(0, 1)
    client.close()


def test_controls_tell_the_position_in_a_sequence() -> None:
    model = Model(session("add_sub"), controls=[Control("INPUT1", "start", 0, 100)])
    with Server({"net": model}, http="127.0.0.1:0") as server:
        client = Client(server)
        x = tensor("INPUT0", "INT32", [1, 16], [1] * 16)
        first = client.infer("net", [x], parameters={"sequence_id": 5, "sequence_start": True})
        assert first.json()["outputs"][0]["data"][0] == 101
        second = client.infer("net", [x], parameters={"sequence_id": 5, "sequence_end": True})
        assert second.json()["outputs"][0]["data"][0] == 1


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_tensors_pass_through_shared_memory(both: Server, wire: str) -> None:
    module = triton(wire)
    shm = importlib.import_module("tritonclient.utils.shared_memory")
    address = both.url.split("//")[1] if wire == "http" else f"127.0.0.1:{both.grpc_port}"
    client = module.InferenceServerClient(address)
    handle = shm.create_shared_memory_region("data", f"/sardonyx_test_{wire}", 64)
    try:
        x = np.arange(4, dtype=np.float32)[None]
        shm.set_shared_memory_region(handle, [x])
        client.register_system_shared_memory("data", f"/sardonyx_test_{wire}", 64)
        source = module.InferInput("x", [1, 4], "FP32")
        source.set_shared_memory("data", 16)
        target = module.InferRequestedOutput("y")
        target.set_shared_memory("data", 8, offset=32)
        client.infer("net", [source], outputs=[target])
        result = shm.get_contents_as_numpy(handle, np.float32, [1, 2], offset=32)
        assert result.tolist() == [[34, 40]]
        target.set_shared_memory("data", 8, offset=60)
        with pytest.raises(Exception, match="not within"):
            client.infer("net", [source], outputs=[target])
        for key, size in (("../etc/passwd", 8), (f"/sardonyx_test_{wire}", 1 << 40), ("/sardonyx_absent", 8)):
            with pytest.raises(Exception, match=r"expected|within|opened"):
                client.register_system_shared_memory("other", key, size)
        client.unregister_system_shared_memory()
        with pytest.raises(Exception, match="unknown region"):
            client.infer("net", [source])
    finally:
        shm.destroy_shared_memory_region(handle)
        client.close()


def test_inner_tensors_are_outputs_only_where_allowed(both: Server, client: Client) -> None:
    body = {"inputs": [X], "outputs": [{"name": "w"}]}
    assert Client(both).post("/v2/models/net/infer", body).status == 200
    assert client.post("/v2/models/net/infer", body).status == 400


def test_tokens_have_scopes(tmp_path: Path) -> None:
    reader, line = new_token(["read"])
    admin, other = new_token(["infer", "admin"])
    file = tmp_path / "tokens"
    file.write_text(f"# tokens\n{line} dashboards\n{other}\n")
    with Server({"net": session("net")}, http="127.0.0.1:0", tokens=read_tokens(file), control="edit") as server:
        client = Client(server)

        def ask(method: str, path: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return client.request(method, path, {"inputs": [X]} if method == "POST" else None, headers).status

        assert ask("GET", "/v2/health/ready", "") == 200
        assert [ask("GET", "/v2/models/net", token) for token in ("", "wrong", reader, admin)] == [401, 401, 200, 403]
        infer = "/v2/models/net/infer"
        assert [ask("POST", infer, token) for token in ("", reader, admin)] == [401, 403, 200]
        assert [ask("POST", "/v2/models/net/undo", token) for token in (reader, admin)] == [403, 400]
        result = BinaryClient(server.url, admin, retries=0).infer("net", {"x": np.ones((1, 4), np.float32)})
        assert result.revision == 0
    with pytest.raises(RequestError, match="unknown token"):
        Tokens([("0" * 64, ["read"])]).require("Bearer x", "read")


@pytest.mark.parametrize("text", ["", "x read", "0" * 64, f"{'0' * 64} all"])
def test_a_malformed_file_of_tokens_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(OptionError):
        read_tokens(tmp_path / "tokens")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:80", "example.org:80"])
def test_an_open_address_needs_protection(address: str) -> None:
    with pytest.raises(OptionError, match="without a token"):
        Server({}, http=address)
    Server({}, http=address, insecure=True)
    Server({}, http=address, tokens=Tokens([("0" * 64, ["read"])]))


def test_a_client_ends_its_connections(server: Server) -> None:
    with BinaryClient(server.url) as client:
        x = np.ones((1, 4), np.float32)
        expected = client.infer("net", {"x": x}).outputs["y"]
        thread = threading.Thread(target=client.infer, args=("net", {"x": x}))
        thread.start()
        thread.join()
    # Closed, a client opens another connection.
    np.testing.assert_array_equal(client.infer("net", {"x": x}).outputs["y"], expected)
    client.close()


def test_requests_of_other_sites_are_refused(client: Client) -> None:
    headers = {"Origin": "http://attacker.example"}
    assert client.request("POST", "/v2/models/net/infer", {"inputs": [X]}, headers).status == 403
    own = {"Origin": f"http://{client.address}"}
    assert client.request("POST", "/v2/models/net/infer", {"inputs": [X]}, own).status == 200


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    def openssl(*words: str) -> None:
        try:
            subprocess.run(["openssl", *words], cwd=tmp_path, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("openssl is not installed")

    subject = ["-days", "1", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    for name in ("server", "user"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", f"{name}.key",
                "-out", f"{name}.pem", *subject)  # fmt: skip
    tls = Tls(tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "user.pem")
    with Server({"net": session("net")}, http="127.0.0.1:0", tls=tls) as server:
        context = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        x = {"x": np.ones((1, 4), np.float32)}
        with pytest.raises(RequestError, match="cannot be reached"):
            BinaryClient(server.url, tls=context, retries=0).infer("net", x)
        context.load_cert_chain(tmp_path / "user.pem", tmp_path / "user.key")
        client = BinaryClient(server.url, tls=context, retries=0)
        assert client.infer("net", x).outputs["y"].tolist() == [[16, 20]]
        large = {"x": np.ones((100_000, 4), np.float32)}  # Its body is received in one piece of memory.
        for _ in range(3):
            assert (client.infer("net", large).outputs["y"] == [16, 20]).all()


def test_the_asgi_application_answers_as_the_server() -> None:
    application = Server({"net": session("net")}, limits=Limits(body_bytes=2000)).asgi()

    async def ask(path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        forever = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop(0)
            await forever.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        await application(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]

    async def work() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        answers: list[str] = []

        async def send(message: dict[str, Any]) -> None:
            answers.append(message["type"])

        await messages.put({"type": "lifespan.startup"})
        life = asyncio.create_task(application({"type": "lifespan"}, messages.get, send))
        status, body = await ask("/v2/models/net/infer", json.dumps({"inputs": [X]}).encode())
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [50, 60])
        assert (await ask("/v2/models/net/infer", b"x" * 3000))[0] == 413
        assert (await ask("/v2/models/net", b"", "GET"))[0] == 200
        await messages.put({"type": "lifespan.shutdown"})
        await life
        assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(work())


@pytest.mark.parametrize("url", ["http://user:secret@host:99999", "user:secret@host:x", "ftp://user:se@cret@host/"])
def test_a_refused_address_is_shown_without_its_password(url: str) -> None:
    with pytest.raises(OptionError, match="expected http://host:port") as refusal:
        BinaryClient(url)
    shown = "".join(traceback.format_exception_only(refusal.value)) + str(refusal.value.__cause__)
    assert "host" in shown and "secret" not in shown and "cret" not in shown


@pytest.mark.parametrize("timeout", [None, "60", 0, float("nan"), float("inf"), 1j])
def test_a_timeout_is_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(OptionError, match="number of seconds"):
        BinaryClient("http://127.0.0.1:1", timeout=timeout)
