"""Ensembles: models in steps by Triton's configuration and by Python, their models' edits, loads and sequences."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import ModelFileError, RequestError, SardonyxError
from sardonyx.serve import Ensemble, EnsembleStep, Limits, Model, Server, State
from sardonyx.serve.dispatch.ensemble_endpoint import EnsembleEndpoint
from sardonyx.serve.dispatch.host import Host
from sardonyx.serve.models.ensemble import ServedEnsemble
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.repository import LoadOptions, Repository
from sardonyx.serve.protocol.requests import Answer, InferRequest, SequencePosition
from tests.serve.conftest import Client, tensor
from tests.serve.dispatching import Gate, request, run
from tests.serve.models import save, session, steps

DOUBLED = ("doubled", "x: IN", "y: mid")
NET = ("net", "x: mid", "y: OUT")


def described(inputs: str = "IN FP32 4", outputs: str = "OUT FP32 2") -> str:
    lines = []
    for kind, text in (("input", inputs), ("output", outputs)):
        for part in text.split(", "):
            name, type, dims = part.split(" ", 2)
            lines.append(
                f'{kind} [ {{ name: "{name}" data_type: TYPE_{type} dims: [ {dims.replace(" ", ", ")} ] }} ]\n'
            )
    return "".join(lines)


HEAD = 'platform: "ensemble" max_batch_size: 8\n'


def write(root: Path, name: str, text: str) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(text, encoding="utf-8")


def write_models(root: Path) -> Path:
    for name in ("doubled", "net"):
        save(name, root / name / "1" / "model.onnx")
    return root


def write_pipe(root: Path) -> Path:
    write(write_models(root), "pipe", HEAD + described() + steps(DOUBLED, NET))
    return root


X = np.arange(8, dtype=np.float32).reshape(2, 4)
W = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with Server(write_pipe(tmp_path), http="127.0.0.1:0", grpc="127.0.0.1:0", control="edit") as running:
        yield running


def test_an_ensemble_answers_as_its_models_one_after_another(server: Server) -> None:
    client = Client(server)
    reply = client.infer("pipe", [tensor("IN", "FP32", [2, 4], X.ravel().tolist())], id="7")
    assert reply.status == 200, reply.body
    (output,) = reply.json()["outputs"]
    assert (output["name"], output["shape"], reply.json()["id"]) == ("OUT", [2, 2], "7")
    np.testing.assert_array_equal(np.reshape(output["data"], (2, 2)), 2 * X @ W)
    for name, count in (("pipe", 1), ("doubled", 1), ("net", 1)):
        (stats,) = client.get(f"/v2/models/{name}/stats").json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == count
        assert (stats["inference_count"], stats["execution_count"]) == (2, 1)


def test_an_ensemble_is_described_as_a_model(server: Server) -> None:
    client = Client(server)
    metadata = client.get("/v2/models/pipe").json()
    assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
    assert metadata["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}]
    assert metadata["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [-1, 2]}]
    config = client.get("/v2/models/pipe/config").json()
    assert [step["model_name"] for step in config["ensemble_scheduling"]["step"]] == ["doubled", "net"]
    assert config["platform"] == "ensemble" and config["instance_group"] == []
    assert client.get("/v2/models/pipe/ready").status == 200
    metrics = client.get("/metrics").body.decode()
    assert 'sardonyx_revision{model="pipe",version="1"} 0' in metrics, re.findall(".*revision.*", metrics)
    assert client.post("/v2/models/pipe/undo").status == 501


def test_an_ensemble_answers_over_grpc(server: Server) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed (extra: test)")
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.is_model_ready("pipe")
        item = grpc.InferInput("IN", [2, 4], "FP32")
        item.set_data_from_numpy(X)
        np.testing.assert_array_equal(client.infer("pipe", [item]).as_numpy("OUT"), 2 * X @ W)
        assert client.get_model_config("pipe").config.ensemble_scheduling.step[1].model_name == "net"


def test_edits_of_a_model_reach_the_ensemble(server: Server) -> None:
    client = Client(server)
    body = [tensor("IN", "FP32", [1, 4], [1, 0, 0, 0])]
    first = client.infer("pipe", body).json()
    edit = [{"verb": "set_weight", "name": "w", "array": {"shape": [4, 2], "data": [0.5] * 8}}]
    assert client.post("/v2/models/net/edit", edit).status == 200
    second = client.infer("pipe", body).json()
    assert second["outputs"][0]["data"] == [1.0, 1.0]
    assert second["parameters"]["sardonyx_revision"] == first["parameters"]["sardonyx_revision"] + 1
    assert client.get("/v2/models/pipe").json()["parameters"]["sardonyx_revision"] == 1
    edit = [{"verb": "add_node", "node": {"op_type": "Neg", "inputs": ["y"], "outputs": ["z"]}},
            {"verb": "add_output", "tensor": "z"}, {"verb": "remove_output", "name": "y"}]  # fmt: skip
    assert client.post("/v2/models/net/edit", edit).status == 200
    reply = client.infer("pipe", body)
    assert reply.status == 503 and "has no output 'y'" in reply.json()["error"]
    assert client.get("/v2/models/pipe/ready").status == 503
    assert client.post("/v2/models/net/undo").status == 200
    assert client.infer("pipe", body).json()["outputs"] == second["outputs"]


@pytest.mark.parametrize(
    "inputs, kind, text",
    [
        ([tensor("IN", "FP32", [9, 4], [1.0] * 36)], 400, "1 to 8 rows"),
        ([tensor("IN", "FP32", [1, 3], [1.0] * 3)], 400, "[-1, 4]"),
        ([tensor("IN", "INT32", [1, 4], [1] * 4)], 400, "FP32"),
        ([tensor("mid", "FP32", [1, 4], [1.0] * 4)], 400, "unknown input"),
        ([], 400, "missing"),
    ],
)
def test_requests_are_checked_before_the_first_step(
    server: Server, inputs: list[dict[str, Any]], kind: int, text: str
) -> None:
    reply = Client(server).infer("pipe", inputs)
    assert reply.status == kind and text in reply.json()["error"]
    reply = Client(server).infer("pipe", [tensor("IN", "FP32", [1, 4], [1.0] * 4)], outputs=[{"name": "mid"}])
    assert reply.status == 400 and "unknown output" in reply.json()["error"]


@pytest.mark.parametrize(
    "text, reason",
    [
        (described(), "needs ensemble_scheduling"),
        (described() + "ensemble_scheduling { }", "at least one step"),
        (described() + steps(("", "x: IN", "y: OUT")), "no model"),
        (described() + steps(("net", "", "y: OUT")), "no inputs"),
        (described() + steps(("net", "x: IN", "")), "no outputs"),
        (described() + steps(DOUBLED, NET, ("net", "x: mid", "y: OUT")), "computed 2 times"),
        (described() + steps(DOUBLED, ("net", "x: other", "y: OUT")), "not used"),
        (described("IN FP32 4, IN2 FP32 4") + steps(DOUBLED, NET), "'IN2' is not used"),
        (described(outputs="OUT FP32 2, P FP32 2") + steps(DOUBLED, NET), "'P' is not computed"),
        (described("IN FP32 4") + steps(("gather", "x: IN, i: b", "y: a"), ("gather", "x: a, i: c", "y: b"),
                                        ("net", "x: a", "y: OUT"), ("net", "x: b", "y: c")), "a cycle among the steps"),
        (described() + steps(("doubled", "z: IN", "y: mid"), NET), "no input 'z'"),
        (described() + steps(("doubled", "x: IN", "z: mid"), NET), "no output 'z'"),
        (described() + steps(("add_sub", "INPUT0: IN", "OUTPUT0: OUT")), "INT32|FP32"),
        (described("IN INT32 4") + steps(DOUBLED, NET), "INT32 in the ensemble and FP32"),
        (described("IN FP32 4 4") + steps(DOUBLED, NET), r"\[-1, 4, 4\]"),
        (described("IN FP32 5") + steps(("net", "x: IN", "y: OUT")), r"\[-1, 5\]"),
        (described() + steps(DOUBLED, ("none", "x: mid", "y: OUT")), "'none', which is not loaded"),
        (described() + steps(DOUBLED, NET).replace("model_version: -1", "model_version: 2"), "version 2 of the model"),
        (described() + steps(DOUBLED, NET).replace("model_version: -1", "model_version: 0"), "above 0"),
        (described() + steps(DOUBLED, NET) + "instance_group [ { kind: KIND_CPU } ]", "instance_group"),
        (described() + steps(DOUBLED, NET) + "optimization { }", "optimization"),
        (described() + steps(DOUBLED, NET) + 'backend: "onnxruntime"', "no backend"),
        (described() + steps(DOUBLED, NET) + 'model_warmup { name: "w" }', "model_warmup"),
        (described() + steps(DOUBLED, ("small", "x: mid", "y: OUT")), "permits 8 rows, its model small 2"),
        (described() + steps(("circle", "IN: IN", "OUT: OUT")), "have a cycle: circle → circle"),
        (described(outputs="OUT FP32 1") + steps(("gather", "x: IN", "y: OUT")), "input 'i'"),
    ],
)  # fmt: skip
def test_an_ensemble_that_cannot_be_served_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write_models(tmp_path)
    for name in ("add_sub", "gather"):
        save(name, tmp_path / name / "1" / "model.onnx")
    save("net", tmp_path / "small" / "1" / "model.onnx")
    write(tmp_path, "small", "max_batch_size: 2")
    write(tmp_path, "circle", HEAD + text)
    repository = Repository(tmp_path, Limits(), LoadOptions(threads=1))
    for name in ("doubled", "net", "small", "add_sub", "gather"):
        repository.load(name)
    with pytest.raises(SardonyxError, match=reason):
        repository.load("circle")


def test_ensembles_in_ensembles_are_loaded_after_their_models(tmp_path: Path) -> None:
    write_pipe(tmp_path)
    outer = (("pipe", "IN: IN", "OUT: part"), ("doubled", "x: part", "y: OUT"))
    write(tmp_path, "all", HEAD + described() + steps(*outer))
    (tmp_path / "all" / "3").mkdir()
    with Server(tmp_path, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        reply = client.infer("all", [tensor("IN", "FP32", [2, 4], X.ravel().tolist())])
        assert reply.json()["model_version"] == "3"
        np.testing.assert_array_equal(np.reshape(reply.json()["outputs"][0]["data"], (2, 2)), 4 * X @ W)
        outer = (("all", "IN: IN", "OUT: OUT"),)
        write(tmp_path, "pipe", HEAD + described() + steps(*outer))
        reply = client.post("/v2/repository/models/pipe/load")
        assert reply.status == 503 and "have a cycle" in reply.json()["error"]
        assert client.infer("all", [tensor("IN", "FP32", [1, 4], [1.0] * 4)]).status == 200


def test_a_load_brings_the_models_of_an_ensemble_and_an_unload_takes_them(tmp_path: Path) -> None:
    write_pipe(tmp_path)
    body = [tensor("IN", "FP32", [1, 4], [1.0] * 4)]
    with Server(tmp_path, http="127.0.0.1:0", control="load") as server:
        client = Client(server)

        def post(name: str, what: str, **parameters: Any) -> int:
            return client.post(f"/v2/repository/models/{name}/{what}", {"parameters": parameters}).status

        def states() -> dict[str, str]:
            return {entry["name"]: entry["state"] for entry in client.post("/v2/repository/index", {}).json()}

        assert post("pipe", "unload", unload_dependents=True) == 200
        assert states() == {"doubled": "READY", "net": "READY", "pipe": "UNAVAILABLE"}, "loaded by themselves"
        assert post("net", "unload") == post("pipe", "load") == 200
        assert client.infer("pipe", body).status == 200
        assert post("net", "unload") == 200
        reply = client.infer("pipe", body)
        assert reply.status == 503 and "net" in reply.json()["error"]
        assert client.get("/v2/models/pipe/ready").status == 503
        assert post("pipe", "load") == 200
        assert client.infer("pipe", body).status == 200
        assert post("pipe", "unload", unload_dependents=True) == 200
        assert states() == {"doubled": "READY", "net": "UNAVAILABLE", "pipe": "UNAVAILABLE"}
        assert post("pipe", "unload", unload_dependents="x") == 400


def test_polling_loads_an_ensemble_once_its_model_is_whole(tmp_path: Path) -> None:
    write_pipe(tmp_path)
    path = tmp_path / "net" / "1" / "model.onnx"
    good = path.read_bytes()
    path.write_bytes(b"half")
    repository = Repository(tmp_path, Limits(), LoadOptions(threads=1))

    def poll() -> list[str]:
        names = []
        for name, load in repository.poll(0):
            try:
                load()
            except SardonyxError:
                continue
            names.append(name)
        return names

    assert poll() == ["doubled"]
    assert poll() == []
    path.write_bytes(good)
    assert poll() == ["net"]
    assert poll() == ["pipe"]
    assert poll() == []


def test_python_connects_sessions_and_sizes_come_from_the_models() -> None:
    ensemble = Ensemble(
        [EnsembleStep("doubled", {"x": "IN"}, {"y": "mid"}), EnsembleStep("net", {"x": "mid"}, {"y": "OUT"})],
        ["IN"], ["OUT", "mid"],
    )  # fmt: skip
    models = {"pipe": ensemble, "net": session("net"), "doubled": session("doubled")}
    with Server(models, http="127.0.0.1:0") as server:
        client = Client(server)
        assert client.get("/v2/models/pipe").json()["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, -1]}]
        assert client.get("/v2/models/pipe/config").json()["ensemble_scheduling"]["step"][0]["model_version"] == -1
        reply = client.infer("pipe", [tensor("IN", "FP32", [2, 4], X.ravel().tolist())], outputs=[{"name": "mid"}])
        assert reply.json()["outputs"][0]["data"] == (2 * X).ravel().tolist()
        (stats,) = client.get("/v2/models/net/stats").json()["model_stats"]
        assert stats["execution_count"] == 0, "a step that no output needs is not computed"
        reply = client.infer("pipe", [tensor("IN", "FP32", [1, 3], [1.0] * 3)])
        assert reply.status == 422 and "net: x" in reply.json()["error"]
    with pytest.raises(ModelFileError, match="not computed"):
        Ensemble([EnsembleStep("net", {"x": "mid", "i": "IN"}, {"y": "OUT"})], ["IN"], ["OUT"])


# Requests in flight, without a server.


def chain(name: str, first: str, second: str, **options: Any) -> ServedEnsemble:
    parts = [EnsembleStep(first, {"x": "x"}, {"y": "mid"}), EnsembleStep(second, {"x": "mid"}, {"y": "OUT"})]
    return ServedEnsemble(name, Ensemble(parts, ["x"], ["OUT"], **options))


class Pipe:
    """An ensemble of `doubled` and two other models, in a host."""

    def __init__(self, second: str = "net", **options: Any) -> None:
        self.host = Host(Limits(**options.pop("limits", {})), asyncio.get_running_loop())
        self.models = {name: ServedModel(name, Model(session(name))) for name in {"doubled", second}}
        for name, model in self.models.items():
            self.host.put(name, [model])
        self.host.put("pipe", [chain("pipe", "doubled", second, **options)])
        self.endpoint = self.host.get("pipe")
        assert isinstance(self.endpoint, EnsembleEndpoint)

    def submit(self, item: InferRequest) -> tuple[asyncio.Future[Any], Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        entry = self.endpoint.infer(item, lambda result: future.done() or future.set_result(result))
        return future, entry


def test_requests_of_ensembles_are_merged_in_the_queues_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe()
        gate = Gate(pipe.models["net"], monkeypatch)
        futures = [pipe.submit(request(1))[0]]
        await gate.begun()
        futures += [pipe.submit(request(2))[0] for _ in range(3)]
        await asyncio.sleep(0.05)
        gate.opened.set()
        answers = [await future for future in futures]
        assert all(isinstance(answer, Answer) for answer in answers)
        assert [rows[0] for rows in gate.rows] == [1, 6]
        assert pipe.endpoint.queue.running == 0 and pipe.host.pending == 0

    run(work)


def test_an_unloaded_model_finishes_the_requests_of_ensembles(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe()
        gate = Gate(pipe.models["doubled"], monkeypatch)
        future, _ = pipe.submit(request(2))
        await gate.begun()
        pipe.host.remove("net")
        assert pipe.host.pending
        gate.opened.set()
        assert isinstance(await future, Answer)
        assert not pipe.host.pending
        with pytest.raises(RequestError, match="missing"):
            pipe.submit(request(2))

    run(work)


def test_a_cancelled_request_begins_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe()
        gate = Gate(pipe.models["doubled"], monkeypatch)
        _, entry = pipe.submit(request(2))
        await gate.begun()
        entry.cancel()
        entry.cancel()
        gate.opened.set()
        await asyncio.sleep(0.05)
        assert pipe.models["net"].statistics.executions == 0
        assert pipe.endpoint.queue.running == 0 and pipe.endpoint.model.statistics.cancelled == 1

    run(work)


def test_too_many_requests_of_an_ensemble_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe(limits={"queue_requests": 2})
        gate = Gate(pipe.models["doubled"], monkeypatch)
        futures = [pipe.submit(request(2))[0] for _ in range(2)]
        with pytest.raises(RequestError, match="2 requests") as caught:
            pipe.submit(request(2))
        assert caught.value.kind == "exhausted"
        gate.opened.set()
        assert all(isinstance(answer, Answer) for answer in await asyncio.gather(*futures))

    run(work)


def test_the_time_of_a_request_is_that_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe()
        gate = Gate(pipe.models["doubled"], monkeypatch)
        item = request(2, timeout_us=10**8)
        future, _ = pipe.submit(item)
        await gate.begun()
        item.arrival -= 10**12
        gate.opened.set()
        error = await future
        assert isinstance(error, RequestError) and error.kind == "timeout"
        assert pipe.models["net"].statistics.executions == 0

    run(work)


def test_no_answer_mixes_two_revisions_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        host = Host(Limits(), asyncio.get_running_loop())
        model = ServedModel("weighted", Model(session("weighted")))
        host.put("weighted", [model])
        parts = [
            EnsembleStep("weighted", {"x": "x"}, {"y": "mid"}),
            EnsembleStep("weighted", {"x": "mid"}, {"y": "OUT"}),
        ]
        host.put("twice", [ServedEnsemble("twice", Ensemble(parts, ["x"], ["OUT"]))])
        gate = Gate(model, monkeypatch)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        host.get("twice").infer(request(1, 2), future.set_result)
        await gate.begun()
        model.session.update_weights({"a": np.full(2, 3, np.float32)})
        gate.opened.set()
        answer = await future
        assert isinstance(answer, Answer) and answer.revision == 1
        np.testing.assert_array_equal(answer.outputs[0].array, [[9, 9]])

    run(work)


def test_remembered_answers_of_an_ensemble_end_with_their_models(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe(cached=True)
        first = await pipe.submit(request(1))[0]
        again = await pipe.submit(request(1))[0]
        assert pipe.models["net"].statistics.executions == 1
        np.testing.assert_array_equal(first.outputs[0].array, again.outputs[0].array)
        model = session("net")
        with model.edit() as draft:
            draft.set_weight("w", np.zeros((4, 2), np.float32))
        model.undo()
        pipe.host.put("net", [ServedModel("net", Model(session("net")))])
        await pipe.submit(request(1))[0]
        assert pipe.endpoint.model.statistics.cache_hit.count == 1

    run(work)


def test_a_sequence_of_an_ensemble_reaches_the_model_with_state() -> None:
    async def work() -> None:
        host = Host(Limits(), asyncio.get_running_loop())
        states = [State("state", "next")]
        host.put("doubled", [ServedModel("doubled", Model(session("doubled")))])
        host.put("accumulate", [ServedModel("accumulate", Model(session("accumulate"), states=states))])
        parts = [
            EnsembleStep("doubled", {"x": "x"}, {"y": "mid"}),
            EnsembleStep("accumulate", {"x": "mid"}, {"y": "OUT"}),
        ]
        host.put("pipe", [ServedEnsemble("pipe", Ensemble(parts, ["x"], ["OUT"]))])

        async def infer(**position: Any) -> Any:
            item = request(1, 1, sequence=SequencePosition(5, **position) if position else None)
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            host.get("pipe").infer(item, future.set_result)
            return await future

        values = [await infer(is_start=True), await infer(is_end=False), await infer(is_end=True)]
        assert [answer.outputs[0].array.item() for answer in values] == [2, 4, 6]
        error = await infer()
        assert isinstance(error, RequestError) and "sequence_id" in str(error)
        hidden = Ensemble([EnsembleStep("accumulate", {"x": "x", "state": "s"}, {"y": "OUT"})], ["x", "s"], ["OUT"])
        with pytest.raises(ModelFileError, match="no input 'state'"):
            ServedEnsemble("bad", hidden).fit([host.get("accumulate").model])

    run(work)


def test_a_failed_step_names_its_model_and_frees_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipe = Pipe()
        bad = request(1, 3)
        future, _ = pipe.submit(bad)
        error = await future
        assert isinstance(error, RequestError) and error.kind == "no_result" and "net" in error.where
        assert pipe.endpoint.model.statistics.fail.count == 1 and not pipe.host.pending

    run(work)
