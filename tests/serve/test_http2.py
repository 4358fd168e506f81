"""The gRPC server of the package against hostile frames; each attack ends its own connection alone."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Limits, Server
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import frame, header_block, settings_frame
from sardonyx.serve.protocol.messages import message_class
from tests.serve.models import session

CALL = header_block((
    (":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers"),
))  # fmt: skip
STREAM = header_block((
    (":method", "POST"), (":scheme", "http"), (":path", "/inference.GRPCInferenceService/ModelStreamInfer"),
    (":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers"),
))  # fmt: skip
RESET = b"<reset>"
BEGIN = frames.PREFACE + settings_frame(())
OPEN = frames.END_HEADERS


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    limits = Limits(body_bytes=1 << 20, streams=8)
    with Server({"net": session("net")}, http=None, grpc="127.0.0.1:0", limits=limits) as running:
        yield running


def request() -> bytes:
    message = message_class("ModelInferRequest")(
        model_name="net", raw_input_contents=[np.ones(4, np.float32).tobytes()]
    )
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    data = message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


def send(server: Server, data: bytes, until: bytes = b"") -> bytes:
    """Send bytes and return what comes until the connection ends, or until some bytes came."""
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=120) as connection:
        received = b""
        try:
            connection.sendall(data)
            while (part := connection.recv(65536)) and (not until or until not in received + part):
                received += part
            return received + part
        except ConnectionError:
            return received + RESET


def good(server: Server) -> bool:
    call = frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, frames.END_STREAM, 1, request())
    return b"grpc-status\x010" in send(server, BEGIN + call, b"grpc-status")


def is_ended(received: bytes, code: int) -> bool:
    """Return True for a frame that ends the connection with a code, or a reset in place of unread bytes."""
    pattern = rb"\x07\0\0\0\0\0.{4}" + re.escape(struct.pack(">I", code))
    return re.search(pattern, received, re.DOTALL) is not None or received.endswith(RESET)


RESETS = b"".join(
    frame(frames.HEADERS, OPEN, n, CALL) + frame(frames.RST_STREAM, 0, n, b"\0\0\0\x08") for n in range(1, 4001, 2)
)
BOMB = b"\x40" + b"\x01a" + b"\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 8000

ATTACKS = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n" + b"x" * 30, frames.PROTOCOL_ERROR),
    "rapid reset": (BEGIN + RESETS, frames.ENHANCE_YOUR_CALM),
    "settings flood": (BEGIN + settings_frame(()) * 3000, frames.ENHANCE_YOUR_CALM),
    "ping flood": (BEGIN + frame(frames.PING, 0, 0, b"12345678") * 3000, frames.ENHANCE_YOUR_CALM),
    "empty data flood": (
        BEGIN + frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, 0, 1) * 3000, frames.ENHANCE_YOUR_CALM,
    ),
    "continuation flood": (
        BEGIN + frame(frames.HEADERS, 0, 1, CALL) + frame(frames.CONTINUATION, 0, 1, b"x" * 1000) * 100,
        frames.ENHANCE_YOUR_CALM,
    ),
    "empty continuation flood": (
        BEGIN + frame(frames.HEADERS, 0, 1, CALL) + frame(frames.CONTINUATION, 0, 1) * 3000, frames.ENHANCE_YOUR_CALM,
    ),
    "header bomb": (BEGIN + frame(frames.HEADERS, OPEN, 1, BOMB), frames.COMPRESSION_ERROR),
    "malformed header block": (BEGIN + frame(frames.HEADERS, OPEN, 1, b"\xff" * 50), frames.COMPRESSION_ERROR),
    "frame too large": (BEGIN + b"\xff\xff\xff\0\0\0\0\0\x01", frames.FRAME_SIZE_ERROR),
    "window beyond 31 bits": (
        BEGIN + frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2, frames.FLOW_CONTROL_ERROR,
    ),
    "window of zero": (BEGIN + frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\0"), frames.FLOW_CONTROL_ERROR),
    "settings by the hundred": (BEGIN + settings_frame([(4, 1)] * 100), frames.ENHANCE_YOUR_CALM),
    "even stream": (BEGIN + frame(frames.HEADERS, OPEN, 2, CALL), frames.PROTOCOL_ERROR),
    "stream used twice": (
        BEGIN + frame(frames.HEADERS, OPEN, 5, CALL) + frame(frames.HEADERS, OPEN, 3, CALL), frames.PROTOCOL_ERROR,
    ),
    "data of no stream": (BEGIN + frame(frames.DATA, 0, 9, b"x"), frames.PROTOCOL_ERROR),
    "padding beyond the frame": (
        BEGIN + frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, frames.PADDED, 1, b"\x09x"),
        frames.PROTOCOL_ERROR,
    ),
    "push by a client": (BEGIN + frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\x02"), frames.PROTOCOL_ERROR),
    "another frame in a header block": (
        BEGIN + frame(frames.HEADERS, 0, 1, CALL) + frame(frames.PING, 0, 0, b"12345678"), frames.PROTOCOL_ERROR,
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_ends_its_connection_with_the_reason(server: Server, attack: str) -> None:
    data, code = ATTACKS[attack]
    received = send(server, data)
    assert is_ended(received, code)
    assert good(server)


@pytest.mark.parametrize(
    "message, status",
    [
        (b"\0\0\0\0\x03\xff\xff\xff", b"3"),
        (b"\0\xff\xff\xff\xff", b"8"),
        (b"\x02\0\0\0\0", b"3"),
        (b"\x01\0\0\0\x01x", b"12"),
        (b"\0\0\0\0\x09abc", b"3"),
        (b"", b"3"),
        (b"\0\0\0\0\0" * 2, b"3"),
        (b"\0\0\x01\x11\x70" + b"\x2a\0" * 35_000, b"8"),
    ],
)
def test_a_malformed_message_has_a_status(server: Server, message: bytes, status: bytes) -> None:
    call = frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, frames.END_STREAM, 1, message)
    assert b"grpc-status" + bytes((len(status),)) + status in send(server, BEGIN + call, b"grpc-message")


def test_probes_of_orchestrators_are_answered(server: Server) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed (extra: grpc)")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=120) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.health.v1.Health/Absent")(b"", timeout=120)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_beyond_the_limit_of_streams_are_refused(server: Server) -> None:
    opened = b"".join(frame(frames.HEADERS, OPEN, n, CALL) for n in range(1, 21, 2))
    refused = frame(frames.RST_STREAM, 0, 17, struct.pack(">I", frames.REFUSED_STREAM))
    assert refused in send(server, BEGIN + opened, refused)


def test_a_client_with_a_closed_window_gets_the_answer_when_it_opens(server: Server) -> None:
    begin = frames.PREFACE + settings_frame(((frames.SETTINGS_INITIAL_WINDOW_SIZE, 0),))
    call = frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, frames.END_STREAM, 1, request())
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=120) as connection:
        connection.sendall(begin + call)
        received = b""
        while b"application/grpc" not in received:
            received += connection.recv(65536)
        assert b"grpc-status" not in received
        for _ in range(200):
            connection.sendall(frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\0\x10"))
            received += connection.recv(65536)
            if b"grpc-status" in received:
                break
        assert b"grpc-status\x010" in received


def test_window_updates_and_pings_of_ordinary_clients_are_no_attack(server: Server) -> None:
    """Clients in C and C++ open windows after every answer: 1,200 control frames here, of 200 calls."""
    controls = frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\x20") + frame(frames.PING, 0, 0, bytes(8))
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=120) as connection:
        connection.sendall(BEGIN)
        received = b""
        for number in range(1, 401, 2):
            call = frame(frames.HEADERS, OPEN, number, CALL) + frame(frames.DATA, frames.END_STREAM, number, request())
            connection.sendall(call + 3 * controls)
            while received.count(b"grpc-status\x010") <= number // 2:
                part = connection.recv(65536)
                assert part, "the connection ended"
                received += part
    assert not is_ended(received, frames.ENHANCE_YOUR_CALM)


def test_data_after_the_end_of_a_call_reset_the_call_alone(server: Server) -> None:
    begin = frames.PREFACE + settings_frame(((frames.SETTINGS_INITIAL_WINDOW_SIZE, 0),))
    call = frame(frames.HEADERS, OPEN, 1, CALL) + frame(frames.DATA, frames.END_STREAM, 1, request())
    closed = frame(frames.RST_STREAM, 0, 1, struct.pack(">I", frames.STREAM_CLOSED))
    ping = frame(frames.PING, 0, 0, b"12345678")
    received = send(server, begin + call + frame(frames.DATA, 0, 1, b"x") + ping, frame(frames.PING, 1, 0, b"12345678"))
    assert closed in received


@pytest.mark.parametrize(
    "fields, status", [((":method", "GET"), b"405"), (("content-type", "application/grpc-web"), b"415")]
)
def test_a_call_of_another_protocol_has_a_status_of_http(
    server: Server, fields: tuple[str, str], status: bytes
) -> None:
    path = "/inference.GRPCInferenceService/ModelInfer"
    names = {":method": "POST", ":scheme": "http", ":path": path, "content-type": "application/grpc"}
    block = header_block(list((names | dict([fields])).items()))
    call = frame(frames.HEADERS, OPEN, 3, CALL) + frame(frames.DATA, frames.END_STREAM, 3, request())
    received = send(server, BEGIN + frame(frames.HEADERS, OPEN, 1, block) + call, b"grpc-status")
    assert b":status\x03" + status in received


PATH = (":path", "/inference.GRPCInferenceService/ModelInfer")
FIELDS = [(":method", "POST"), (":scheme", "http"), PATH, ("content-type", "application/grpc"), ("te", "trailers")]


@pytest.mark.parametrize(
    "fields",
    [
        [*FIELDS, PATH], [PATH, *FIELDS], [*FIELDS[:3], (":status", "200"), *FIELDS[3:]],
        [*FIELDS[:3], (":method", "POST"), *FIELDS[3:]], FIELDS[1:], [FIELDS[0], *FIELDS[2:]],
        [*FIELDS, ("connection", "close")], [*FIELDS, ("transfer-encoding", "chunked")], [*FIELDS[:-1], ("te", "gzip")],
        [*FIELDS, ("X-Name", "a")], [*FIELDS, ("", "a")], [*FIELDS, ("a b", "a")], [*FIELDS, ("a", "b\r\nc: d")],
        [*FIELDS, ("a", "b\0")], [*FIELDS, ("authorization", "Bearer a"), ("authorization", "Bearer b")],
        [*FIELDS, ("grpc-timeout", "1S"), ("grpc-timeout", "2S")],
    ],
    ids=lambda fields: str(fields[-1])[:30],
)  # fmt: skip
def test_fields_that_a_proxy_may_read_otherwise_are_refused(server: Server, fields: list[tuple[str, str]]) -> None:
    bad = frame(frames.HEADERS, OPEN, 1, header_block(fields)) + frame(frames.DATA, frames.END_STREAM, 1, request())
    call = frame(frames.HEADERS, OPEN, 3, CALL) + frame(frames.DATA, frames.END_STREAM, 3, request())
    received = send(server, BEGIN + bad + call, b"grpc-status")
    assert frame(frames.RST_STREAM, 0, 1, struct.pack(">I", frames.PROTOCOL_ERROR)) in received
    assert received.count(b"grpc-status\x010") == 1


def test_many_header_fields_end_the_connection(server: Server) -> None:
    fields = [*FIELDS, *((f"x-{number}", "a") for number in range(100))]
    assert is_ended(
        send(server, BEGIN + frame(frames.HEADERS, OPEN, 1, header_block(fields))), frames.ENHANCE_YOUR_CALM
    )


@pytest.mark.parametrize("text", ["", "S", "1", "abc", "-1S", "1s", "123456789S", "1 S", "\u0663S"])
def test_a_malformed_time_limit_is_refused(server: Server, text: str) -> None:
    head = frame(frames.HEADERS, OPEN, 1, header_block([*FIELDS, ("grpc-timeout", text)]))
    received = send(server, BEGIN + head + frame(frames.DATA, frames.END_STREAM, 1, request()), b"grpc-message")
    assert b"grpc-status\x013" in received


def test_a_stream_accepts_few_messages_whose_answers_are_not_read(server: Server) -> None:
    """A client that reads nothing gets no further window, and all answers in order once it reads."""
    begin = frames.PREFACE + settings_frame(((frames.SETTINGS_INITIAL_WINDOW_SIZE, 0),))
    opened = frame(frames.HEADERS, OPEN, 1, STREAM)
    messages = []
    for number in range(40):
        message = message_class("ModelInferRequest")(model_name="absent", id=f"{number:02}" + "x" * 100_000)
        data = message.SerializeToString()
        messages.append(frame(frames.DATA, 0, 1, struct.pack(">BI", 0, len(data)) + data))
    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=120) as connection:
        connection.sendall(begin + opened + b"".join(messages))
        received = b""
        connection.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(65536):
                received += part
        assert window_of_stream(received) == 0
        connection.settimeout(10)
        wide = struct.pack(">I", 1 << 24)
        end = frame(frames.DATA, frames.END_STREAM, 1)
        connection.sendall(frame(frames.WINDOW_UPDATE, 0, 1, wide) + frame(frames.WINDOW_UPDATE, 0, 0, wide) + end)
        while b"grpc-status" not in received:
            part = connection.recv(65536)
            assert part, "the connection ended"
            received += part
        assert window_of_stream(received) > 0
    assert received.count(b"at most 512 characters") == 40


def window_of_stream(received: bytes) -> int:
    """Return the number of window updates of the first stream."""
    return received.count(b"\0\0\x04\x08\0\0\0\0\x01")
