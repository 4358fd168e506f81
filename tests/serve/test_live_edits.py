"""Edits over the wire, alone and under load: no failed answer, no answer of two revisions."""

from __future__ import annotations

import base64
import gc
import json
import random
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.serve import Server
from sardonyx.serve.client import Client as BinaryClient
from sardonyx.serve.operations.live_edits import edit, undo
from sardonyx.serve.protocol.refusals import refusal
from tests.random_cases import cases
from tests.serve.conftest import Client, tensor
from tests.serve.drawn_edits import drawn_edit
from tests.serve.models import proto, save, session, steps

X = tensor("x", "FP32", [1, 2], [1, 1])


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def editable() -> Iterator[Server]:
    with Server({"net": session("weighted")}, http="127.0.0.1:0", control="edit") as server:
        yield server


def values(client: Client) -> list[float]:
    answer = client.infer("net", [X]).json()
    return [output["data"][0] for output in answer["outputs"]]


def test_weights_edits_and_undo_name_their_revision(editable: Server) -> None:
    client = Client(editable)
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed (extra: serve)")
    body = safetensors.save({"a": np.full(2, 3, np.float32)})
    assert client.post("/v2/models/net/weights", body).json() == {"revision": 1, "weights": 1}
    assert values(client) == [3, 1]
    weights = {"inputs": [tensor("b", "FP32", [2], [5, 5])]}
    headers = {"Content-Type": "application/json"}
    assert client.post("/v2/models/net/weights", weights, **headers).json()["revision"] == 2
    changes = [
        {"verb": "insert_after", "tensor": "y", "op": "Neg", "name": "negative"},
        {"verb": "add_output", "tensor": "y_old"},
    ]
    refused = client.post("/v2/models/net/edit", changes)
    assert refused.status == 400 and editable.revision("net") == 2
    assert client.post("/v2/models/net/edit", changes[:1]).json() == {"revision": 3, "changes": 1}
    assert values(client) == [-3, 5]
    assert [entry["number"] for entry in client.get("/v2/models/net/history").json()["history"]] == [1, 2, 3]
    assert client.post("/v2/models/net/undo").json()["undone"]["number"] == 3
    answer = client.infer("net", [X]).json()
    assert [output["data"][0] for output in answer["outputs"]] == [3, 5]
    assert answer["parameters"]["sardonyx_revision"] == editable.revision("net") == 4


@pytest.mark.parametrize("form", [{"Content-Type": "application/x-www-form-urlencoded"}, {}])
def test_weights_are_read_from_clients_that_state_no_type_of_their_own(editable: Server, form: dict[str, str]) -> None:
    client = Client(editable)
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed (extra: serve)")
    weights = {"inputs": [tensor("a", "FP32", [2], [7, 7])]}
    assert client.post("/v2/models/net/weights", weights, **form).json() == {"revision": 1, "weights": 1}
    body = safetensors.save({"b": np.full(2, 3, np.float32)})
    assert client.post("/v2/models/net/weights", body, **form).json() == {"revision": 2, "weights": 1}
    assert values(client) == [7, 3]


def test_nodes_weights_and_models_are_added_over_the_wire(editable: Server) -> None:
    client = Client(editable)
    head = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> head (float[M, 2] h) => (float[M, 2] out) { out = Abs(h) }'
    )
    changes = [
        {"verb": "add_weight", "name": "c", "array": {"datatype": "FP32", "shape": [1], "data": [-2]}},
        {"verb": "add_node", "node": {"op_type": "Mul", "inputs": ["x", "c"], "outputs": ["scaled"]}},
        {"verb": "add_output", "tensor": "scaled"},
        {"verb": "attach", "model": base64.b64encode(head.SerializeToString()).decode(), "at": "scaled"},
    ]
    assert client.post("/v2/models/net/edit", {"changes": changes}).status == 200
    outputs = {o["name"]: o["data"][0] for o in client.infer("net", [X]).json()["outputs"]}
    assert outputs["scaled"] == -2 and 2 in outputs.values()


@pytest.mark.parametrize(
    "changes",
    [
        [], "text", [3], [{"verb": "run"}], [{"verb": "add_output"}], [{"verb": "add_output", "tensor": 3}],
        [{"verb": "remove_node", "name": "nothing"}], [{"verb": "attach", "model": "/etc/passwd", "at": "x"}],
        [{"verb": "attach", "model": base64.b64encode(b"not a model").decode(), "at": "x"}],
        [{"verb": "add_output", "tensor": "x", "path": "/tmp"}], [{"verb": "add_node", "node": {"op_type": "Nothing"}}],
        [{"verb": "add_weight", "name": "w", "array": {"datatype": "FP32", "shape": [2**40], "data": [1]}}],
        [{"verb": "insert_after", "tensor": "y", "op": "Neg", "attributes": {"self": 1}}],
    ],
)  # fmt: skip
def test_a_malformed_edit_changes_nothing(editable: Server, changes: Any) -> None:
    client = Client(editable)
    reply = client.post("/v2/models/net/edit", {"changes": changes})
    assert reply.status in (400, 501, 503), reply.body
    assert editable.revision("net") == 0 and values(client) == [1, 1]


@pytest.mark.parametrize("body", [b"", b"garbage", b"\xff" * 8 + b"{}", (2**40).to_bytes(8, "little") + b"{}"])
def test_a_malformed_file_of_weights_changes_nothing(editable: Server, body: bytes) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed (extra: serve)")
    assert Client(editable).post("/v2/models/net/weights", body).status == 400
    assert editable.revision("net") == 0


def test_explain_and_profile_describe_the_current_revision(editable: Server) -> None:
    client = Client(editable)
    assert client.get("/v2/models/net/explain").json()["revision"] == 0
    assert client.get("/v2/models/net/profile?runs=0").status == 400


@pytest.mark.parametrize("control, status", [("off", 503), ("load", 503)])
def test_edits_are_off_unless_allowed(control: str, status: int) -> None:
    with Server({"net": session("weighted")}, http="127.0.0.1:0", control=control) as server:
        client = Client(server)
        assert client.post("/v2/models/net/undo").status == status
        assert client.post("/v2/models/net/edit", [{"verb": "add_output", "tensor": "x"}]).status == status


def test_models_that_no_undo_reaches_are_freed(editable: Server, no_collector: None) -> None:
    client, net = Client(editable), editable.service.host.get("net").model.session
    editable.service.collects_models = True
    graphs = []
    for number in range(96):
        weights = {"inputs": [tensor("a", "FP32", [2], [number, number])]}
        headers = {"Content-Type": "application/json"}
        assert client.post("/v2/models/net/weights", weights, **headers).status == 200
        graphs.append(weakref.ref(net.snapshot().model.graph))
    # The models that can be undone, and those of at most 32 edits since the last collection.
    assert 32 < sum(graph() is not None for graph in graphs) <= 65
    assert graphs[-1]() is not None and graphs[0]() is None


class Load:
    """Clients that ask without a pause and check that both outputs are of one revision."""

    def __init__(self, url: str, clients: int, name: str) -> None:
        self.name = name
        self.stop = threading.Event()
        self.answers = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(url,), daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _ask(self, url: str) -> None:
        client = BinaryClient(url, retries=0)
        x = np.ones((1, 2), np.float32)
        count = 0
        last = 0
        try:
            while not self.stop.is_set():
                result = client.infer(self.name, {"x": x})
                y, z = (float(result.outputs[name][0, 0]) for name in ("y", "z"))
                if abs(y) != abs(z) or (result.revision or 0) < last:
                    self.failures.append(f"mixed: {y} {z} at {result.revision} after {last}")
                last = result.revision or 0
                count += 1
        except Exception as error:
            self.failures.append(repr(error))
        with self._lock:
            self.answers += count

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(120)


def edit_under_load(url: str, clients: int, reloads: int, weights: int, edits: int, name: str = "net") -> Load:
    """Reload, update weights and edit while clients ask; in every revision, both outputs have one magnitude."""
    load = Load(url, clients, name)
    client = BinaryClient(url)
    for number in range(weights):
        value = np.full(2, float(number + 2), np.float32)
        head = {"inputs": [{"name": n, "datatype": "FP32", "shape": [2], "data": value.tolist()} for n in "ab"]}
        client.post("/v2/models/net/weights", head)
    for number in range(edits):
        change = {"verb": "insert_after", "tensor": "y", "op": "Neg", "name": f"negative_{number}"}
        client.post("/v2/models/net/edit", [change])
        if number % 2:
            client.post("/v2/models/net/undo")
    for _ in range(reloads):
        client.post("/v2/repository/models/net/load")
    load.end()
    return load


@pytest.mark.parametrize(
    "clients, reloads, weights, edits",
    [(4, 2, 20, 4), pytest.param(64, 100, 1000, 50, marks=pytest.mark.long)],
)
def test_no_answer_fails_or_is_mixed_while_a_model_changes(
    tmp_path: Any, clients: int, reloads: int, weights: int, edits: int
) -> None:
    save("weighted", tmp_path / "net.onnx")
    with Server(tmp_path, http="127.0.0.1:0", control="edit") as server:
        load = edit_under_load(server.url, clients, reloads, weights, edits)
        assert not load.failures, load.failures[:3]
        assert load.answers > clients
        assert server.revision("net") == reloads + weights + edits + edits // 2
        index = json.loads(json.dumps(Client(server).post("/v2/repository/index").json()))
        assert index == [{"name": "net", "version": "1", "state": "READY", "reason": ""}]
    assert proto("weighted").graph.name == "net"


@pytest.mark.parametrize(
    "clients, reloads, weights, edits",
    [(4, 2, 20, 4), pytest.param(64, 100, 1000, 50, marks=pytest.mark.long)],
)
def test_no_answer_of_an_ensemble_fails_or_is_mixed_while_a_model_changes(
    tmp_path: Any, clients: int, reloads: int, weights: int, edits: int
) -> None:
    save("weighted", tmp_path / "net.onnx")
    save("doubled", tmp_path / "doubled.onnx")
    maps = (("net", "x: x", "y: a, z: b"), ("doubled", "x: a", "y: y"), ("doubled", "x: b", "y: z"))
    ends = [f'{kind} {{ name: "{end}" data_type: TYPE_FP32 dims: [ -1, 2 ] }}'
            for kind, end in (("input", "x"), ("output", "y"), ("output", "z"))]  # fmt: skip
    (tmp_path / "pipe").mkdir()
    (tmp_path / "pipe" / "config.pbtxt").write_text('platform: "ensemble" ' + " ".join(ends) + steps(*maps))
    with Server(tmp_path, http="127.0.0.1:0", control="edit") as server:
        load = edit_under_load(server.url, clients, reloads, weights, edits, "pipe")
        assert not load.failures, load.failures[:3]
        assert load.answers > clients and server.revision("pipe") == reloads + weights + edits + edits // 2
        (stats,) = Client(server).get("/v2/models/pipe/stats").json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == load.answers


@pytest.mark.parametrize("name", ["net", "strings", "gather"])
def test_drawn_edits_are_answered_or_refused_by_name_and_can_be_undone(name: str) -> None:
    running = session(name)
    feeds = {"net": {"x": np.ones((1, 4), np.float32)}, "strings": {"x": np.array([["a", "b"]], object)},
             "gather": {"x": np.ones((1, 4), np.float32), "i": np.zeros((1, 1), np.int64)}}[name]  # fmt: skip
    before = running.run(None, feeds)[0]
    for seed in range(cases(300) // 3):
        changes = json.loads(json.dumps(drawn_edit(random.Random(seed))))
        try:
            edit(running, changes)
        except Exception as error:
            refused, is_defect = refusal(error)
            assert not is_defect and refused.kind in ("invalid", "unsupported", "too_large"), (changes, error)
        else:
            undo(running)
        np.testing.assert_array_equal(running.run(None, feeds)[0], before)
