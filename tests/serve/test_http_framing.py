"""Framing of HTTP/1.1: codings, hosts, upgrades, trailers, and what comes after a request that cannot be read."""

from __future__ import annotations

import json
import re
import socket
import time

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Server
from sardonyx.serve.security.local_names import is_local_name
from tests.serve.conftest import SMALL, Client, tensor
from tests.serve.models import session

BODY = json.dumps({"inputs": [tensor("x", "FP32", [1, 4], [1, 2, 3, 4])]}).encode()
LINE = b"POST /v2/models/net/infer HTTP/1.1\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
END = b"Connection: close\r\n"
CHUNKS = b"%x\r\n%b\r\n" % (len(BODY), BODY)


def statuses(client: Client, *parts: bytes) -> list[bytes]:
    """Send all parts, then return the statuses of all answers until the connection ends."""
    host, port = client.address.split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        for part in parts:
            connection.sendall(part)
        while part := connection.recv(65536):
            received += part
    return re.findall(rb"HTTP/1.1 (\d+)", received)


@pytest.mark.parametrize(
    "fields, status",
    [
        (b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", b"501"),
        (b"Host: x\r\nTransfer-Encoding: xchunked\r\n", b"501"),
        (b"Host: x\r\nTransfer-Encoding: chunked, gzip\r\n", b"400"),
        (b"Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"400"),
        (b"Host: x\r\nTransfer-Encoding: Chunked\r\n" + END, b"200"),
        (b"Transfer-Encoding: chunked\r\n", b"400"),
    ],
)
def test_a_coding_that_is_not_decoded_is_refused(client: Client, fields: bytes, status: bytes) -> None:
    assert statuses(client, LINE + fields + b"\r\n" + CHUNKS + b"0\r\n\r\n") == [status]


def test_a_request_of_1_1_names_its_host(client: Client) -> None:
    assert statuses(client, LINE + LENGTH + b"\r\n" + BODY) == [b"400"]
    assert statuses(client, LINE.replace(b"1.1", b"1.0") + LENGTH + b"\r\n" + BODY) == [b"200"]


def test_requests_before_one_that_cannot_be_read_are_answered(client: Client) -> None:
    good = LINE + b"Host: x\r\n" + LENGTH + b"\r\n" + BODY
    assert statuses(client, good + b"garbage\r\n\r\n") == [b"200", b"400"]
    assert statuses(client, good * 3 + LINE + b"Host: x\r\nContent-Length: -1\r\n\r\n") == [b"200"] * 3 + [b"400"]
    answers = statuses(client, good * 40)
    assert answers[-1] == b"503" and set(answers[:-1]) == {b"200"} and 16 <= len(answers) <= 20


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_is_ignored(client: Client, protocol: bytes) -> None:
    """`curl --http2` sends such a wish, and reads an answer of HTTP/1.1."""
    wish = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % protocol
    get = b"GET /v2 HTTP/1.1\r\n" + wish + b"\r\n"
    last = LINE + b"Host: x\r\n" + END + LENGTH + b"\r\n" + BODY
    assert statuses(client, get + LINE + wish + LENGTH + b"\r\n" + BODY + last) == [b"200"] * 3
    assert statuses(client, get * 12 + last) == [b"200"] * 13
    assert statuses(client, b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n" + last) == [b"405"]


def test_trailers_change_nothing_and_are_bounded(client: Client) -> None:
    head = LINE + b"Host: x\r\n" + END + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS
    trailer = b"0\r\nInference-Header-Content-Length: 4\r\nContent-Type: text/plain\r\nOrigin: http://a.example\r\n\r\n"
    assert statuses(client, head + trailer) == [b"200"]
    endless = [b"a" * 4096] * (SMALL.head_bytes // 4096 + 40)
    begin = time.monotonic()
    assert statuses(client, head + b"0\r\nX: ", *endless) == [b"431"]
    assert statuses(client, head + b"5;a=", *endless) == [b"431"]
    assert time.monotonic() - begin < 60


def test_a_client_that_sends_on_reads_why_it_is_refused(client: Client) -> None:
    """A connection that ends at once is reset where bytes are not read, and the answer with it."""
    size = SMALL.body_bytes + (1 << 19)
    head = LINE + b"Host: x\r\nContent-Length: %d\r\n\r\n" % size
    assert statuses(client, head, *[bytes(65536)] * (size // 65536)) == [b"413"]
    assert statuses(client, b"garbage\r\n\r\n", *[bytes(65536)] * 24) == [b"400"]


@pytest.mark.parametrize(
    "host, is_local",
    [
        ("127.0.0.1:8000", True), ("[::1]:8000", True), ("localhost", True), ("net.localhost:80", True), ("x", True),
        ("192.0.2.7", True), (f"{socket.gethostname()}:1", True), ("", True), ("attacker.example:8000", False),
        ("127.0.0.1.attacker.example", False), ("attacker.example.", False), ("localhost.attacker.example", False),
    ],
)  # fmt: skip
def test_names_of_sites(host: str, is_local: bool) -> None:
    assert is_local_name(host) is is_local


def test_a_site_that_leads_its_name_to_this_machine_is_refused(client: Client) -> None:
    """The browser states one name as the host and as the origin."""
    fields = {"Host": "attacker.example:8000", "Origin": "http://attacker.example:8000"}
    assert client.request("POST", "/v2/models/net/infer", BODY, fields).status == 403
    assert client.request("GET", "/v2/models/net", None, {"Host": "attacker.example"}).status == 403
    with Server({"net": session("net")}, http="127.0.0.1:0", insecure=True) as behind_a_proxy:
        reply = Client(behind_a_proxy).request("GET", "/v2/models/net", None, {"Host": "models.example"})
        assert reply.status == 200
