"""Clients that send or read slowly, or never: they lose their calls, and hold few bytes."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hpack", reason="hpack is not installed (extra: grpc)")
pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Model, Server
from sardonyx.serve.dispatch.queue import Entry
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import HeaderFields, frame, header_block, settings_frame
from sardonyx.serve.grpc.streams import Stream
from sardonyx.serve.models.model import ServedModel, State
from sardonyx.serve.operations import free_memory
from sardonyx.serve.protocol.held_bytes import HeldBytes
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.protocol.requests import InferRequest, SequencePosition
from tests.serve.models import session
from tests.serve.parser_inputs import Machine

LIMITS = Limits(body_bytes=300_000, output_bytes=1, held_bytes=1, connections=2, streams=4)
BEGIN = frames.PREFACE + settings_frame(())
OPEN = frames.END_HEADERS


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(limits=LIMITS)
    yield machine
    machine.close()


def head(method: str) -> bytes:
    return header_block((
        (":method", "POST"), (":scheme", "http"), (":path", f"/inference.GRPCInferenceService/{method}"),
        (":authority", "x"), ("content-type", "application/grpc"),
    ))  # fmt: skip


def call(number: int, method: str = "ModelInfer") -> bytes:
    return frame(frames.HEADERS, OPEN, number, head(method))


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def request(rows: int = 1) -> bytes:
    values = message_class("ModelInferRequest")(
        model_name="net", raw_input_contents=[np.ones((rows, 4), np.float32).tobytes()]
    )
    values.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    return message(values.SerializeToString())


def grpc(machine: Machine, *parts: bytes) -> tuple[Any, Any]:
    """Return a connection that has received parts, and its transport."""

    async def feed() -> tuple[Any, Any]:
        connection, transport = machine.connect("grpc")
        for part in parts:
            connection.data_received(part)
        await machine.settle()
        return connection, transport

    return machine.loop.run_until_complete(feed())


@pytest.mark.parametrize(
    "received, effect",
    [
        (b"PRI", b"took too long"),
        (BEGIN + frame(frames.HEADERS, 0, 1, head("ModelInfer")), b"took too long"),
        (BEGIN + b"\0\xff\0\0\0\0\0\0\x01abc", b"took too long"),
        (BEGIN + call(1), b"grpc-status\x014"),
        (BEGIN + call(1) + frame(frames.DATA, 0, 1, b"\0\0\0\x90\0abc"), b"grpc-status\x014"),
        (BEGIN + call(1, "ModelStreamInfer") + frame(frames.DATA, 0, 1, b"\0\0\0\x90\0abc"), b"grpc-status\x014"),
        (BEGIN + call(1, "ModelStreamInfer"), b""),
        (BEGIN, b""),
    ],
)
def test_a_client_that_sends_too_slowly_is_ended(machine: Machine, received: bytes, effect: bytes) -> None:
    connection, transport = grpc(machine, received)
    before = len(transport.sent)
    connection.sweep(time.monotonic())
    assert len(transport.sent) == before
    connection.sweep(time.monotonic() + 40)
    assert effect in transport.sent[before:] if effect else len(transport.sent) == before


def test_a_call_whose_answer_is_not_accepted_is_reset(machine: Machine) -> None:
    closed = frames.PREFACE + settings_frame(((frames.SETTINGS_INITIAL_WINDOW_SIZE, 0),))
    connection, transport = grpc(machine, closed + call(1) + frame(frames.DATA, frames.END_STREAM, 1, request()))
    connection.sweep(time.monotonic() + LIMITS.idle_seconds - 5)
    assert connection.is_busy
    connection.sweep(time.monotonic() + LIMITS.idle_seconds + 5)
    assert not connection.is_busy
    assert transport.sent.endswith(frame(frames.RST_STREAM, 0, 1, struct.pack(">I", frames.CANCEL)))


def test_a_connection_that_is_not_read_is_not_read_either(machine: Machine) -> None:
    connection, transport = grpc(machine, BEGIN)
    connection.pause_writing()
    assert transport.is_paused
    before = len(transport.sent)

    async def infer() -> None:
        connection.data_received(call(1) + frame(frames.DATA, frames.END_STREAM, 1, request()))
        await machine.settle()

    machine.loop.run_until_complete(infer())
    assert b"grpc-status" not in transport.sent[before:]
    connection.resume_writing()
    assert not transport.is_paused
    assert b"grpc-status\x010" in transport.sent[before:]
    connection.pause_writing()
    connection.sweep(time.monotonic() + LIMITS.idle_seconds + 5)
    assert transport.is_closed


def test_an_idle_connection_makes_room_for_another(machine: Machine) -> None:
    first, transport = grpc(machine, BEGIN)
    grpc(machine, BEGIN + call(1))
    _, refused = grpc(machine)
    assert refused.is_closed
    assert not transport.is_closed
    first.last_active -= LIMITS.idle_seconds + 1
    _, accepted = grpc(machine)
    assert not accepted.is_closed
    assert transport.is_closed and not transport.is_aborted
    first.sweep(time.monotonic() + LIMITS.idle_seconds + 5)
    assert transport.is_aborted


def test_incomplete_requests_of_all_connections_have_a_limit(machine: Machine) -> None:
    part = frame(frames.DATA, 0, 1, b"\0\0\x03\0\0" + bytes(160_000))
    _, first = grpc(machine, BEGIN + call(1) + part)
    begin = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n" + bytes(160_000)

    async def http() -> Any:
        connection, transport = machine.connect("http")
        connection.data_received(begin)
        await asyncio.sleep(0)
        return transport

    assert b"grpc-status" not in first.sent
    second = machine.loop.run_until_complete(http())
    assert b"grpc-status\x018" in first.sent
    assert not second.sent
    machine.loop.run_until_complete(http())
    assert b"HTTP/1.1 503" in second.sent
    assert b"retry-after" in second.sent.lower()
    assert machine.service.held.total == 160_000


def test_incomplete_frames_of_all_connections_have_the_same_limit(machine: Machine) -> None:
    part = struct.pack(">IBI", 1_000_000 << 8, 0, 1) + bytes(200_000)
    _, first = grpc(machine, BEGIN + call(1) + part)
    assert machine.service.held.total == len(part)
    _, second = grpc(machine, BEGIN + call(1) + part)
    assert b"too many frames are incomplete" in first.sent and first.is_closed
    assert not second.is_closed
    assert machine.service.held.total == len(part)


def test_many_small_parts_count_as_a_large_one(machine: Machine) -> None:
    parts = [call(n) + frame(frames.DATA, 0, n, b"\0\0\3\0\0" + bytes(20_000)) for n in (1, 3, 5, 7)]
    grpc(machine, BEGIN, *parts)
    assert machine.service.held.total == 4 * 20_005


def test_a_complete_frame_ends_the_count_of_its_bytes(machine: Machine) -> None:
    data = frame(frames.DATA, frames.END_STREAM, 1, request(1000))
    connection, transport = grpc(machine, BEGIN + call(1) + data[:9_000])
    assert machine.service.held.total == 9_000

    async def rest() -> None:
        connection.data_received(data[9_000:])
        await machine.settle()

    machine.loop.run_until_complete(rest())
    assert b"grpc-status\x010" in transport.sent
    assert machine.service.held.total == 0


@pytest.mark.parametrize(("size", "is_stalled"), [(100, True), (70_000, False)])
def test_an_answer_that_is_accepted_byte_by_byte_is_stalled(machine: Machine, size: int, is_stalled: bool) -> None:
    connection, _ = grpc(machine, BEGIN)
    stream = Stream(connection, 1, HeaderFields({":path": "/x"}), 0)
    stream.pending_bytes = 100_000
    begin = stream.stalled_since = time.monotonic() - 60
    stream.accept(size)
    assert stream.stalled_since == (begin if is_stalled else 0)
    assert stream.pending_bytes == 100_000 - size


def answered(machine: Machine, size: int) -> tuple[Any, Any]:
    """Return a connection of HTTP whose client has not read an answer, and its transport."""
    connection, transport = machine.connect("http")
    transport.sent += bytes(size)
    connection.pause_writing()
    return connection, transport


def test_a_client_that_reads_a_long_answer_slowly_has_time(machine: Machine) -> None:
    connection, transport = answered(machine, 250_000)
    now, idle = time.monotonic(), LIMITS.idle_seconds
    for turn in range(1, 3):
        transport.read += int(idle * 1024)
        connection.end_if_late(now + turn * (idle + 1))
        assert not transport.is_closed
    transport.read += int(idle * 1024) - 1
    connection.end_if_late(now + 3 * (idle + 1))
    assert transport.is_aborted


def test_an_answer_that_is_not_read_counts_until_its_connection_ends(machine: Machine) -> None:
    connection, transport = answered(machine, 250_000)
    connection.data_received(b"\0")
    assert transport.is_closed and not transport.is_aborted
    assert machine.service.held.total == 250_000
    connection.connection_lost(None)
    assert machine.service.held.total == 0


def test_the_oldest_holder_gives_up_first() -> None:
    ended = []

    class Holder:
        def give_up(self) -> None:
            ended.append(self)

    held = HeldBytes(Limits(body_bytes=10, output_bytes=10, held_bytes=30))
    first, second, third = Holder(), Holder(), Holder()
    assert held.hold(first, 10) and held.hold(second, 10) and held.hold(first, 20)
    assert held.total == 30
    assert held.hold(third, 1)
    assert ended == [first]
    assert not held.hold(second, 31)
    assert held.total == 1
    held.release(third)
    held.release(third)
    assert held.total == 0


def test_a_request_whose_client_has_gone_frees_its_inputs_at_once(machine: Machine) -> None:
    async def cancelled() -> weakref.ref[Any]:
        array = np.ones((1, 4), np.float32)
        entry = machine.service.infer(InferRequest("net", inputs={"x": array}), lambda result: None)
        assert isinstance(entry, Entry)
        entry.cancel()
        return weakref.ref(array)

    assert machine.loop.run_until_complete(cancelled())() is None


def test_a_request_after_the_end_of_its_sequence_is_refused(machine: Machine) -> None:
    """Also while the last request of the sequence is computed; a request that begins the sequence anew is not."""
    model = Model(session("accumulate"), states=[State("state", "next")])
    machine.service.host.put("accumulate", [ServedModel("accumulate", model)])
    results: dict[str, Any] = {}

    def send(name: str, value: float, start: bool = False, end: bool = False) -> None:
        request = InferRequest("accumulate", inputs={"x": np.full((1, 1), value, np.float32)})
        request.sequence = SequencePosition(7, start, end)
        machine.service.infer(request, lambda result: results.__setitem__(name, result))

    async def steps() -> None:
        send("first", 1, start=True)
        send("last", 2, end=True)
        send("late", 4)
        send("new", 8, start=True)
        send("next", 16)
        await machine.settle()
        send("open", 32, end=True)
        await machine.settle()

    machine.loop.run_until_complete(steps())
    values = {name: float(result.outputs[0].array[0, 0]) for name, result in results.items() if name != "late"}
    assert values == {"first": 1, "last": 3, "new": 8, "next": 24, "open": 56}
    assert "not open" in str(results["late"])


def test_slow_clients_are_ended_while_the_workers_are_busy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The return of free memory waits for a worker, the sweep of connections does not; a stop ends both."""
    begun = threading.Event()

    async def busy(work: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(free_memory.FreeMemory, "is_due", lambda memory: True)
    with Server({"net": session("net")}, http="127.0.0.1:0", limits=Limits(head_seconds=1.0)) as server:
        monkeypatch.setattr(server.service, "in_worker", busy)
        assert begun.wait(120)
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"POST /")
            received = b""
            while part := connection.recv(4096):
                received += part
        assert received.startswith(b"HTTP/1.1 408")
    gc.collect()
    assert "was destroyed" not in caplog.text


def test_free_memory_is_due_after_growth_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 100 << 20
    monkeypatch.setattr(free_memory, "resident_bytes", lambda: size)
    memory = free_memory.FreeMemory()
    assert not memory.is_due()
    size = 400 << 20
    assert memory.is_due()
    memory.give_back()
    assert [memory.is_due() for _ in range(3)] == [False, True, True]
    memory.give_back()
    assert [memory.is_due() for _ in range(4)] == [False, False, False, True]
    size = 100 << 20
    memory.give_back()
    assert not memory.is_due()
