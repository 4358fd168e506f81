"""Odd requests that are no malformed tensors: settings, queries, names, generation, regions that shrink, edits."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import RequestError, ResourceError
from sardonyx.serve import Model, Server
from sardonyx.serve.dispatch.answer_cache import AnswerCache
from sardonyx.serve.grpc.conversion import parsed_request
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.observation.statistics import Statistics
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.messages import message_class
from sardonyx.serve.protocol.requests import Answer, InferRequest, Output
from tests.serve.conftest import Client, tensor
from tests.serve.models import HEAD, proto, session

X = tensor("x", "FP32", [1, 4], [1, 2, 3, 4])


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    """A server whose clients may change everything."""
    names = ("net", "strings", "batch_sort")
    models: dict[str, Any] = {name: session(name) for name in names}
    with Server(models, http="127.0.0.1:0", control="edit", allow_shared_memory=True) as running:
        yield running


@pytest.fixture
def admin(open_server: Server) -> Client:
    return Client(open_server)


def test_a_refused_setting_leaves_all_settings_as_they_are(admin: Client) -> None:
    for path, changes in (
        ("/v2/trace/setting", {"trace_rate": "5", "unknown": 1}),
        ("/v2/logging", {"log_info": False, "unknown": 1}),
        ("/v2/logging", {"log_warning": False, "log_verbose_level": -1}),
    ):
        before = admin.get(path).json()
        assert admin.post(path, changes).status == 400
        assert admin.get(path).json() == before


def test_a_log_level_fits_the_message_of_grpc(admin: Client) -> None:
    assert admin.post("/v2/logging", {"log_verbose_level": 2**32}).status == 400
    assert admin.post("/v2/logging", {"log_verbose_level": 2**32 - 1}).status == 200
    assert admin.post("/v2/logging", {"log_verbose_level": 0}).status == 200


@pytest.mark.parametrize("query", ["&".join(f"a{i}=1" for i in range(40)), "runs=", "runs=1&runs=2", "runs=%00"])
def test_an_odd_query_is_refused(admin: Client, query: str) -> None:
    assert admin.get(f"/v2/models/net/profile?{query}").status == 400


def test_classes_of_no_rows_are_no_rows(client: Client) -> None:
    outputs = [{"name": "y", "parameters": {"classification": 1}}]
    reply = client.infer("net", [tensor("x", "FP32", [0, 4], [])], outputs=outputs)
    assert reply.json()["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [0, 1], "data": []}]


DATA = '"name":"x","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]'
LONG = f'"name":"x","datatype":"FP32","shape":[1000,4],"data":[{",".join(["0.25"] * 4000)}]'
WORDS = '"name":"x","datatype":"FP32","shape":[1,4],"data":[NaN,1,1,1]'


@pytest.mark.parametrize(
    "fields",
    [
        f'"inputs":[{{{DATA}}}],"inputs":[{{{DATA}}}]',
        f'"inputs":[{{{DATA},"name":"x"}}]',
        f'"inputs":[{{{DATA},"data":[2,2,2,2]}}]',
        f'"inputs":[{{{DATA}, "sh\\u0061pe" : [1,4]}}]',
        f'"id":"a","inputs":[{{{DATA}}}],"id":"b"',
        f'"id":"a:b","inputs":[{{{DATA}}}],"parameters":{{"a":1,"a":2}}',
        f'"inputs":[{{{DATA},"parameters":{{"a:":1,"a:":2}}}}]',
        f'"inputs":[{{{DATA},"parameters":{{"\\u003a":1,"\\u003a":2}}}}]',
        f'"inputs":[{{{DATA}}}],"outputs":[{{"name":"y","name":"y"}}]',
        f'"inputs":[{{{DATA}}}],"outputs":[{{"name":"y","parameters":{{"binary_data":true,"binary_data":false}}}}]',
        f'"inputs":[{{{LONG},"shape":[1000,4]}}]',
        f'"inputs":[{{{WORDS},"name":"x"}}]',
    ],
    ids=lambda fields: fields[-40:],
)
def test_a_name_twice_in_an_object_is_refused(client: Client, fields: str) -> None:
    reply = client.post("/v2/models/net/infer", f"{{{fields}}}".encode())
    assert (reply.status, "twice" in reply.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "fields",
    [
        DATA.replace('"data"', '"\xffdata"'),
        DATA + ',"\xff":1',
        DATA + ',"parameters":{"\xff":1}',
        WORDS.replace("1,4]", '"\\ud800"]'),
        WORDS.replace("1,4]", '"\xed\xa0\x80"]'),
        WORDS.replace('"x"', '"\\ud800"'),
        WORDS + ',"parameters":{"\\udfff":1}',
    ],
    ids=ascii,
)
@pytest.mark.parametrize("more", ["", ',"own":{"a:":":"}', ',"own":"\xff"', ',"own":"\\ud800"'], ids=ascii)
def test_malformed_texts_are_refused_wherever_they_are(client: Client, fields: str, more: str) -> None:
    body = f'{{"inputs":[{{{fields}}}]{more}}}'.encode("latin-1")
    assert client.post("/v2/models/net/infer", body).status == 400


@pytest.mark.parametrize("body", ['{"x":[1,1,1,1],"x":[2,2,2,2]}', '{"x":[1,1,1,1],"parameters":{"a":":","a":1}}'])
def test_a_name_twice_in_other_bodies_is_refused(client: Client, body: str) -> None:
    reply = client.post("/v2/models/net/generate", body.encode())
    assert (reply.status, "twice" in reply.json()["error"]) == (400, True)


def test_colons_in_texts_are_no_names(client: Client) -> None:
    part = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": ["a:b", '"x":"x":']}
    body = {"id": "x:", "inputs": [part], "own": {":": 1}, "parameters": {"a:b": "c:", "\u003a": 1}}
    assert client.post("/v2/models/strings/infer", body).json()["outputs"][0]["data"] == part["data"]
    assert client.post("/v2/models/strings/generate", {"x": ["a:b", "x"], "c": "d:"}).status == 200


@pytest.mark.parametrize("space", [b"", b" \n"])
def test_many_names_are_refused_before_they_are_read(space: bytes) -> None:
    names = b",".join(b'"%x"%b:1' % (number, space) for number in range(200_000))
    head = b'{"inputs":[],"parameters":{%b}}' % names
    begin = time.process_time()
    for read in (lambda: json_codec.parse_head(head, True), lambda: json_codec.parse_json(head, 8)):
        with pytest.raises(RequestError) as refused:
            read()
        assert refused.value.kind == "too_large"
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize("text", ["http://a/b:c", '"a":', "{[", "\\"])
def test_texts_that_look_like_names_are_read(text: str) -> None:
    part = {"name": "x", "datatype": "BYTES", "shape": [70_000], "data": [text] * 70_000}
    head = json_codec.parse_head(json.dumps({"inputs": [part]}).encode(), True)
    assert head.inputs[0].name == "x"


@pytest.mark.parametrize(
    "body, status",
    [
        ({"x": [1, 2, 3, 4]}, 200),
        ({"parameters": {"x": [[1, 2, 3, 4]], "priority": 1, "own": "text"}}, 200),
        ({"x": [1, 2, 3, 4], "stream": False}, 200),
        ({"x": [1, 2, 3, 4], "id": 5}, 400),
        ({"x": [1, 2, 3, 4], "id": "a" * 600}, 400),
        ({"x": [1, 2, 3, 4], "z": [1]}, 400),
        ({"x": [1, 2, 3, 4], "z": None}, 400),
        ({"x": [1, 2, 3, 4], "parameters": {"x": [1]}}, 400),
        ({"x": [1, 2, 3, 4], "parameters": []}, 400),
        ({"x": [1, 2, 3, 4], "priority": -1}, 400),
        ({"x": [1, 2, 3, 4], "triton_own": 1}, 400),
    ],
)
def test_fields_of_generation_are_inputs_or_parameters(client: Client, body: Any, status: int) -> None:
    reply = client.post("/v2/models/net/generate", body)
    assert reply.status == status
    assert status != 200 or reply.json()["y"] == [50.0, 60.0]


def test_limits_hold_for_inputs_in_another_order() -> None:
    from sardonyx import Session

    text = "net (float[N] a, float[M] b) => (float[N, N] y) <int64[1] axis = {1}, int64[1] first = {0}>"
    text += " { c = Unsqueeze(a, axis) r = Unsqueeze(a, first) p = MatMul(c, r) m = ReduceMean(b) y = Add(p, m) }"
    model = onnx.parser.parse_model(HEAD + text)
    served = ServedModel("net", Model(Session(model, compile="off", threads=1, max_memory=1 << 20)))
    few, many = np.ones(10, np.float32), np.ones(2000, np.float32)
    served.revision.run({"a": few, "b": many})
    with pytest.raises(ResourceError):
        served.revision.run({"b": few, "a": many})


def test_remembered_answers_are_bounded_with_their_objects() -> None:
    cache = AnswerCache(capacity=1 << 20)

    def remembered(array: np.ndarray) -> int:
        requests = [InferRequest("net", inputs={"x": np.array([number])}) for number in range(10_000)]
        for item in requests:
            key = cache.key(item)
            cache.get(key, item, revision=0)
            cache.put(key, Answer("net", "1", "", [Output("y", array)], 0))
        return sum(cache.get(cache.key(item), item, 0) is not None for item in requests)

    assert 100 < remembered(np.ones(1, np.float32)) <= 2048
    assert remembered(np.array(["a" * 100_000], object)) < 11


def test_times_by_rows_are_bounded() -> None:
    statistics = Statistics()
    for rows in range(1, 5000):
        statistics.run(rows, 1, (1, 1, 1))
    described = statistics.described()
    assert len(described["batch_stats"]) <= 1024 and described["execution_count"] == 4999


def test_a_region_whose_object_shrinks_is_refused(admin: Client) -> None:
    file = Path(f"/dev/shm/sardonyx-test-shrinks-{os.getpid()}")
    region = "/v2/systemsharedmemory/region/shrinks"
    file.write_bytes(np.arange(4, dtype=np.float32).tobytes() + b"\2\1" + bytes(4094))
    try:
        assert admin.post(f"{region}/register", {"key": file.name, "offset": 0, "byte_size": 4000}).status == 200
        span = {"shared_memory_region": "shrinks", "shared_memory_byte_size": 16}
        source = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": span}
        target = {"shared_memory_region": "shrinks", "shared_memory_offset": 3000, "shared_memory_byte_size": 8}
        written = [{"name": "y", "parameters": target}]
        assert admin.infer("net", [source], outputs=written).status == 200
        assert np.frombuffer(file.read_bytes()[3000:3008], np.float32).tolist() == [34, 40]
        os.truncate(file, 4)
        assert admin.infer("net", [source]).status == 400
        assert admin.infer("net", [X], outputs=written).status == 400
        assert file.stat().st_size == 4
        assert admin.infer("net", [X]).status == 200
    finally:
        admin.post(f"{region}/unregister")
        file.unlink()


@pytest.mark.parametrize("name", ["shared_memory_offset", "shared_memory_byte_size"])
def test_a_place_without_a_region_is_refused(open_server: Server, admin: Client, name: str) -> None:
    parameters = {name: 8}
    assert admin.infer("net", [{**X, "parameters": parameters}]).status == 400
    assert admin.infer("net", [X], outputs=[{"name": "y", "parameters": parameters}]).status == 400
    for part in ("inputs", "outputs"):
        call = message_class("ModelInferRequest")(model_name="net", raw_input_contents=[bytes(16)])
        call.inputs.add(name="x", datatype="FP32", shape=[1, 4])
        call.outputs.add(name="y")
        getattr(call, part)[0].parameters[name].int64_param = 8
        with pytest.raises(RequestError, match="requires shared_memory_region"):
            parsed_request(open_server.service, call)


def test_flags_in_a_region_are_checked(open_server: Server, admin: Client) -> None:
    file = Path(f"/dev/shm/sardonyx-test-flags-{os.getpid()}")
    file.write_bytes(b"\1\2")
    try:
        service: Service = open_server.service
        service.shared_memory.register("flags", file.name, 0, 2)
        with pytest.raises(RequestError, match="expected a name of the region"):
            service.shared_memory.register("", file.name, 0, 2)
        from sardonyx.serve.protocol.datatypes import DATATYPES

        assert service.shared_memory.read("flags", 0, 1, DATATYPES["BOOL"], [1]).tolist() == [True]
        with pytest.raises(RequestError, match="0 and 1"):
            service.shared_memory.read("flags", 0, 2, DATATYPES["BOOL"], [2])
    finally:
        admin.post("/v2/systemsharedmemory/region/flags/unregister")
        file.unlink()


def outside(location: str) -> str:
    """Return a model in base64 whose weight is in a file."""
    model = onnx.parser.parse_model(
        HEAD + "net (float[N, 2] p) => (float[N, 2] q) <float[2] k = {1, 2}> { q = Add(p, k) }"
    )
    weight = model.graph.initializer[0]
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    return base64.b64encode(model.SerializeToString()).decode()


FLOATS = {"datatype": "FP32", "shape": [4, 2]}


@pytest.mark.parametrize(
    "change",
    [
        {"verb": "add_weight", "name": "", "array": {**FLOATS, "data": [1] * 8}},
        {"verb": "add_input", "name": "", "shape": [1]},
        {"verb": "add_input", "name": "z", "shape": [[]]},
        {"verb": "add_input", "name": "z", "shape": [True]},
        {"verb": "add_input", "name": "z", "shape": [1.5]},
        {"verb": "add_input", "name": "z", "shape": [2**70]},
        {"verb": "set_weight", "name": "w", "array": {**FLOATS, "data": ["1"] * 8}},
        {"verb": "set_weight", "name": "w", "array": {**FLOATS, "data": [True] * 8}},
        {"verb": "set_weight", "name": "w", "array": {**FLOATS, "data": [1e300] * 8}},
        {"verb": "set_weight", "name": "w", "array": {**FLOATS, "data": [1] * 7}},
        {"verb": "attach", "model": "aGk=", "at": "y"},
        {"verb": "attach", "model": "", "at": "y"},
        {"verb": "attach", "model": outside("/etc/hostname"), "at": {"p": "y"}},
        {"verb": "attach", "model": outside("weights.bin"), "at": {"p": "y"}},
        {"verb": "replace_node", "name": "y", "node": {"op_type": "Neg", "inputs": ["y"], "outputs": ["y"]}},
        {"verb": "replace_node", "name": "y", "node": {"op_type": "Neg", "inputs": ["y"], "outputs": ["z"]}},
    ],
    ids=lambda change: f"{change['verb']} {str(list(change.values())[2])[:30]}",
)
def test_an_odd_change_is_refused_and_changes_nothing(admin: Client, change: dict[str, Any]) -> None:
    revision = admin.infer("net", [X]).json()["parameters"]["sardonyx_revision"]
    assert admin.post("/v2/models/net/edit", [change]).status == 400
    answer = admin.infer("net", [X]).json()
    assert (answer["outputs"][0]["data"], answer["parameters"]["sardonyx_revision"]) == ([50.0, 60.0], revision)


def test_a_node_cannot_read_what_it_replaces(admin: Client) -> None:
    add = {"verb": "add_node", "node": {"op_type": "Neg", "inputs": ["y"], "outputs": ["z"]}}
    for inputs, outputs in ((["z"], ["u"]), (["z"], [""]), (["z"], ["z"])):
        node = {"op_type": "Neg", "inputs": inputs, "outputs": outputs}
        reply = admin.post("/v2/models/net/edit", [add, {"verb": "replace_node", "name": "z", "node": node}])
        assert reply.status == 400, reply.body
    assert admin.infer("net", [X]).json()["outputs"][0]["data"] == [50.0, 60.0]


def test_an_undo_with_a_malformed_body_undoes_nothing(admin: Client) -> None:
    weights = {"inputs": [tensor("w", "FP32", [4, 2], [0.0] * 8)]}
    assert admin.post("/v2/models/net/weights", weights, **{"content-type": "application/json"}).status == 200
    assert admin.post("/v2/models/net/undo", b"{").status == 400
    assert admin.infer("net", [X]).json()["outputs"][0]["data"] == [0.0, 0.0]
    assert admin.post("/v2/models/net/undo").status == 200


def test_an_unloaded_name_that_no_model_has_stays_unknown(tmp_path: Path) -> None:
    onnx.save(proto("net"), tmp_path / "net.onnx")
    with Server(tmp_path, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        client.post("/v2/repository/models/none/unload")
        assert client.get("/v2/models/none").status == 404
        assert client.post("/v2/repository/models/none/load").status == 404
        assert client.post("/v2/repository/models/net/unload").status == 200
        assert client.get("/v2/models/net").status == 503
