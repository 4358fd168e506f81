"""Inference over HTTP: JSON, binary tensors, and what each malformed request gets."""

from __future__ import annotations

import gzip
import json
import math
import socket
import struct
import zlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import RequestError
from sardonyx.serve.protocol import json_codec
from tests.serve.conftest import SMALL, Client, tensor

X = tensor("x", "FP32", [1, 4], [1, 2, 3, 4])


def test_json_answers_equal_the_session(client: Client) -> None:
    reply = client.infer("net", [X], id="seven")
    assert reply.status == 200
    answer = reply.json()
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [50.0, 60.0]}]
    assert (answer["id"], answer["model_version"], answer["parameters"]) == ("seven", "1", {"sardonyx_revision": 0})


def test_json_is_read_though_curl_calls_it_a_form_but_not_from_a_page_of_another_site(client: Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = {"inputs": [X]}
    assert client.post("/v2/models/net/infer", body, **form).json()["outputs"][0]["data"] == [50.0, 60.0]
    assert client.post("/v2/models/net/infer", body, **form, Origin="http://elsewhere.example").status == 403


@pytest.mark.parametrize(
    "data", [[[1, 2, 3, 4], [0, 0, 0, 1]], [1, 2, 3, 4, 0, 0, 0, 1], [[1.0, 2, 3, 4], [0, 0, 0, 1]]]
)
def test_data_may_be_flat_or_nested_as_the_shape(client: Client, data: list[Any]) -> None:
    answer = client.infer("net", [tensor("x", "FP32", [2, 4], data)]).json()
    assert answer["outputs"][0]["data"] == [50, 60, 7, 8]


def binary_request(inputs: dict[str, np.ndarray], datatype: str, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    heads = [
        {"name": n, "datatype": datatype, "shape": list(a.shape), "parameters": {"binary_data_size": a.nbytes}}
        for n, a in inputs.items()
    ]
    head = json.dumps({"inputs": heads, "parameters": parameters}).encode()
    body = head + b"".join(array.tobytes() for array in inputs.values())
    return body, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}


def test_binary_tensors_in_and_out(client: Client) -> None:
    x = np.arange(8, dtype=np.float16).reshape(4, 2)
    body, headers = binary_request({"x": x}, "FP16", binary_data_output=True)
    reply = client.request("POST", "/v2/models/half/infer", body, headers)
    length = int(reply.headers["inference-header-content-length"])
    head = json.loads(reply.body[:length])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 16}
    np.testing.assert_array_equal(np.frombuffer(reply.body[length:], np.float16).reshape(4, 2), x + x)


def test_a_raw_request_is_the_only_input(client: Client) -> None:
    x = np.arange(8, dtype=np.float32)
    reply = client.request(
        "POST", "/v2/models/net/infer", x.tobytes(),
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"},
    )  # fmt: skip
    assert reply.status == 200
    assert json.loads(reply.body[: int(reply.headers["inference-header-content-length"])])["outputs"][0]["shape"] == [
        2,
        2,
    ]


@pytest.mark.parametrize("encoding, pack", [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_bodies_may_be_compressed_both_ways(client: Client, encoding: str, pack: Any) -> None:
    rows = 200
    body = pack(json.dumps({"inputs": [tensor("x", "FP32", [rows, 4], [1] * 4 * rows)]}).encode())
    reply = client.request(
        "POST", "/v2/models/net/infer", body, {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    )
    assert reply.headers["content-encoding"] == encoding
    text = gzip.decompress(reply.body) if encoding == "gzip" else zlib.decompress(reply.body)
    assert json.loads(text)["outputs"][0]["shape"] == [rows, 2]


def test_strings_pass_as_json_and_as_bytes(client: Client) -> None:
    texts = ["", "a\0b", "ü", "x" * 300]
    assert client.infer("strings", [tensor("x", "BYTES", [2, 2], texts)]).json()["outputs"][0]["data"] == texts
    raw = b"".join(struct.pack("<I", len(t.encode())) + t.encode() for t in texts)
    head = json.dumps({
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [2, 2], "parameters": {"binary_data_size": len(raw)}}]
    }).encode()  # fmt: skip
    reply = client.post("/v2/models/strings/infer", head + raw, **{"Inference-Header-Content-Length": str(len(head))})
    assert reply.json()["outputs"][0]["data"] == texts


def test_numbers_that_are_not_finite_are_words_in_json(client: Client) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[NaN,Infinity,0,0]}]}'
    data = client.post("/v2/models/net/infer", body).json()["outputs"][0]["data"]
    assert all(math.isnan(value) for value in data)


def test_classification_names_the_highest_scores(client: Client) -> None:
    outputs = [{"name": "y", "parameters": {"classification": 1}}]
    answer = client.infer("net", [tensor("x", "FP32", [2, 4], [1, 0, 0, 0, -1, 0, 0, 0])], outputs=outputs).json()
    assert answer["outputs"][0]["shape"] == [2, 1]
    assert answer["outputs"][0]["data"] == ["2.000000:1", "-1.000000:0"]
    pair = [tensor(f"INPUT{i}", "INT32", [1, 16], list(range(16))) for i in range(2)]
    answer = client.infer("add_sub", pair, outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}]).json()
    assert answer["outputs"][0]["data"] == ["30:15", "28:14"], "scores of integers have no decimals"


def test_generate_has_plain_fields(client: Client) -> None:
    assert client.post("/v2/models/net/generate", {"x": [1, 2, 3, 4]}).json()["y"] == [50.0, 60.0]
    event = client.post("/v2/models/net/generate_stream", {"x": [1, 2, 3, 4]})
    assert event.headers["content-type"].startswith("text/event-stream")
    assert json.loads(event.body.removeprefix(b"data: "))["y"] == [50.0, 60.0]


def changed(**fields: Any) -> bytes:
    return json.dumps({"inputs": [{**X, **fields}]}).encode()


DEEP = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":' + b"[" * 10_000 + b"]" * 10_000 + b"}]}"
INFER = "/v2/models/net/infer"
BINARY = {"name": "x", "datatype": "FP32", "shape": [1, 4]}


def with_parameters(**parameters: Any) -> bytes:
    return json.dumps({"inputs": [{**BINARY, "parameters": parameters}]}).encode()


MALFORMED: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "truncated JSON": (400, changed()[:-9], {}),
    "not JSON": (400, b"hello", {}),
    "empty body": (400, b"", {}),
    "a list instead of an object": (400, b"[]", {}),
    "no inputs": (400, b"{}", {}),
    "inputs of another type": (400, b'{"inputs":3}', {}),
    "input without a name": (400, b'{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}', {}),
    "not UTF-8": (400, b'{"inputs":[{"name":"\xff"}]}', {}),
    "unknown input": (400, changed(name="z"), {}),
    "missing input": (400, b'{"inputs":[]}', {}),
    "the same input twice": (400, json.dumps({"inputs": [X, X]}).encode(), {}),
    "unknown output": (400, json.dumps({"inputs": [X], "outputs": [{"name": "q"}]}).encode(), {}),
    "the same output twice": (400, json.dumps({"inputs": [X], "outputs": [{"name": "y"}] * 2}).encode(), {}),
    "another datatype": (400, changed(datatype="INT32"), {}),
    "unknown datatype": (400, changed(datatype="FLOAT"), {}),
    "another rank": (400, changed(shape=[4]), {}),
    "another fixed size": (400, changed(shape=[1, 3], data=[1, 2, 3]), {}),
    "negative size": (400, changed(shape=[-1, 4]), {}),
    "sizes beyond 64 bits": (400, changed(shape=[2**40, 2**40]), {}),
    "no element, and a size beyond 64 bits of bytes": (400, changed(shape=[0, 2**62], data=[]), {}),
    "a size that is not an integer": (400, changed(shape=[1.5, 4]), {}),
    "a shape that is not a list": (400, changed(shape="1,4"), {}),
    "too few elements": (400, changed(data=[1, 2, 3]), {}),
    "too many elements": (400, changed(data=[1, 2, 3, 4, 5]), {}),
    "no data": (400, json.dumps({"inputs": [BINARY]}).encode(), {}),
    "strings for numbers": (400, changed(data=["1", "2", "3", "4"]), {}),
    "booleans for numbers": (400, changed(data=[True, False, True, True]), {}),
    "null for a number": (400, changed(data=[1, None, 3, 4]), {}),
    "an object for a number": (400, changed(data=[1, {}, 3, 4]), {}),
    "lists of other lengths": (400, changed(data=[[1, 2], [3]]), {}),
    "lists nested deeper than the shape": (400, changed(data=[[[1, 2, 3, 4]]]), {}),
    "10,000 nested lists": (400, DEEP, {}),
    "1e999": (400, changed(data=[1, 2, 3, 4]).replace(b"[1, 2,", b"[1e999, 2,"), {}),
    "1e39 for float32": (400, changed(data=[1, 2, 3, 4]).replace(b"[1, 2,", b"[1e39, 2,"), {}),
    "more binary data than there are": (400, with_parameters(binary_data_size=16), {}),
    "negative size of binary data": (400, with_parameters(binary_data_size=-1), {}),
    "JSON part longer than the body": (400, changed(), {"Inference-Header-Content-Length": "99999"}),
    "negative length of the JSON part": (400, changed(), {"Inference-Header-Content-Length": "-3"}),
    "length of the JSON part as text": (400, changed(), {"Inference-Header-Content-Length": "many"}),
    "JSON part that ends too early": (400, changed(), {"Inference-Header-Content-Length": "10"}),
    "bytes after the tensors": (400, changed() + b"1234", {"Inference-Header-Content-Length": str(len(changed()))}),
    "unknown content type": (415, changed(), {"Content-Type": "text/plain"}),
    "unknown encoding": (415, changed(), {"Content-Encoding": "br"}),
    "not gzip data": (400, changed(), {"Content-Encoding": "gzip"}),
    "truncated gzip data": (400, gzip.compress(changed())[:-5], {"Content-Encoding": "gzip"}),
    "a gzip bomb": (413, gzip.compress(b" " * (SMALL.body_bytes + 10)), {"Content-Encoding": "gzip"}),
    "negative priority": (400, json.dumps({"inputs": [X], "parameters": {"priority": -1}}).encode(), {}),
    "an object as a parameter": (400, json.dumps({"inputs": [X], "parameters": {"a": {}}}).encode(), {}),
    "a reserved parameter": (400, json.dumps({"inputs": [X], "parameters": {"triton_x": 1}}).encode(), {}),
    "a number as id": (400, json.dumps({"inputs": [X], "id": 3}).encode(), {}),
    "too many inputs": (413, json.dumps({"inputs": [{**X, "name": f"x{i}"} for i in range(65)]}).encode(), {}),
    "data and a region of shared memory": (
        400, changed(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 16}), {},
    ),
    "binary data and a region of shared memory": (
        400, (both := with_parameters(binary_data_size=16, shared_memory_region="r")) + bytes(16),
        {"Inference-Header-Content-Length": str(len(both))},
    ),
    "a region of shared memory that is off": (
        501, with_parameters(shared_memory_region="r", shared_memory_byte_size=16), {},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_request_is_refused_by_name(client: Client, kind: str) -> None:
    status, body, headers = MALFORMED[kind]
    reply = client.request("POST", INFER, body, headers)
    assert reply.status == status, reply.body
    assert reply.json()["error"]
    assert client.infer("net", [X]).status == 200


def test_a_text_of_a_million_lists_is_refused_at_once() -> None:
    """Brackets within strings are no lists."""
    many = 1_100_000
    with pytest.raises(RequestError, match="at most 1048576 lists") as refused:
        json_codec.parse_json(b'{"x": [' + b"[]," * many + b"[]]}", 8)
    assert refused.value.kind == "too_large"
    text = b'{"x": ["' + b"[" * many + b'", "\\"{' + b"{" * many + b'"]}'
    assert [len(part) for part in json_codec.parse_json(text, 8)["x"]] == [many, many + 2]
    with pytest.raises(RequestError, match="at most 1048576 lists"):
        json_codec.parse_head(b'{"inputs": [' + b'{"shape": []},' * many + b"{}]}", False)


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("POST", "/v2/models/none/infer", 404),
        ("POST", "/v2/models/net/versions/9/infer", 404),
        ("POST", "/v2/models/net/versions/x/infer", 404),
        ("POST", "/v2/models/..%2fnet/infer", 404),
        ("GET", "/v2/models/../net", 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2/models/net", 405),
        ("GET", "/v3", 404),
        ("GET", "/v2/cudasharedmemory/status", 501),
        ("POST", "/v2/cudasharedmemory/unregister", 200),
    ],
)
def test_paths_and_methods_are_checked(client: Client, method: str, path: str, status: int) -> None:
    assert client.request(method, path, changed() if method == "POST" else None).status == status


def test_values_without_a_result_name_the_node(client: Client) -> None:
    reply = client.infer("gather", [X, tensor("i", "INT64", [1, 1], [9])])
    assert reply.status == 422
    assert "GatherElements" in reply.json()["error"]


def test_a_result_beyond_the_memory_limit_fails_alone(client: Client) -> None:
    big = [tensor("x", "FP32", [1, 1], [1]), tensor("s", "INT64", [2], [10**6, 10**6])]
    assert client.infer("huge", big).status == 503
    small = [tensor("x", "FP32", [1, 1], [1]), tensor("s", "INT64", [2], [1, 2])]
    assert client.infer("huge", small).json()["outputs"][0]["data"] == [1, 1]


def raw(client: Client, data: bytes) -> bytes:
    host, port = client.address.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(data)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


HEAD = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "data, status",
    [
        (b"garbage\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: -1\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"413"),
        (HEAD + b"X: " + b"a" * 9000 + b"\r\n\r\n", b"431"),
        (HEAD + b"".join(b"A%d: b\r\n" % i for i in range(200)) + b"\r\n", b"431"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    ],
)
def test_malformed_http_is_refused(client: Client, data: bytes, status: bytes) -> None:
    assert raw(client, data).split(b" ")[1] == status


def test_pipelined_and_byte_by_byte_requests_are_answered_in_order(client: Client) -> None:
    body = json.dumps({"inputs": [X], "id": "1"}).encode()
    one = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    two = one.replace(b'"id": "1"', b'"id": "2"')
    last = one.replace(b"Host: x", b"Host: x\r\nConnection: close")
    replies = raw(client, one + two + last)
    assert replies.count(b"HTTP/1.1 200") == 3
    positions = [replies.index(b'"id":"1"'), replies.index(b'"id":"2"'), replies.rindex(b'"id":"1"')]
    assert positions == sorted(positions)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    closing = HEAD + b"Connection: close\r\n"
    chunked = closing + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    assert b"HTTP/1.1 200" in raw(client, chunked)
