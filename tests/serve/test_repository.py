"""The repository: Triton's layout and plain files, versions, policies, polling, hostile names and links."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import ModelFileError, RequestError, SardonyxError
from sardonyx.runtime.compiled.program_cache import ModelSource
from sardonyx.runtime.snapshot import Snapshot
from sardonyx.serve import Limits, Server
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
from sardonyx.serve.models.layout import model_files, model_names
from sardonyx.serve.models.model import Revision
from sardonyx.serve.models.repository import LoadOptions, Repository
from sardonyx.serve.models.triton_config import read_config
from tests.serve.conftest import Client, tensor
from tests.serve.models import save

X = tensor("x", "FP32", [1, 4], [1, 2, 3, 4])


def config(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Models in all layouts."""
    save("net", tmp_path / "plain.onnx")
    for version in (1, 2, 10):
        save("net", tmp_path / "triton" / str(version) / "model.onnx")
    config(tmp_path / "triton", 'name: "triton" max_batch_size: 8 version_policy { latest { num_versions: 2 } }')
    save("net", tmp_path / "bare" / "1" / "any.onnx")
    save("net", tmp_path / "kibae" / "3.onnx")
    save("net", tmp_path / "mlserver" / "net.onnx")
    (tmp_path / "mlserver" / "model-settings.json").write_text('{"parameters": {"uri": "./net.onnx"}}')
    save("net", tmp_path / "specific" / "4" / "m.onnx")
    save("net", tmp_path / "specific" / "5" / "m.onnx")
    config(tmp_path / "specific", 'default_model_filename: "m.onnx" version_policy { specific { versions: [4] } }')
    (tmp_path / "empty").mkdir()
    save("net", tmp_path / "-odd.onnx")
    return tmp_path


def test_every_layout_is_listed_with_its_versions(root: Path) -> None:
    names = ["bare", "kibae", "mlserver", "plain", "specific", "triton"]
    assert model_names(root) == names
    versions = {name: sorted(model_files(root, name).versions) for name in names}
    assert versions == {
        "bare": [1], "kibae": [3], "mlserver": [1], "plain": [1], "specific": [4], "triton": [2, 10],
    }  # fmt: skip


def test_the_newest_version_answers_unless_another_is_named(root: Path) -> None:
    with Server(root, http="127.0.0.1:0") as server:
        client = Client(server)
        assert client.infer("triton", [X]).json()["model_version"] == "10"
        assert client.get("/v2/models/triton").json()["versions"] == ["2", "10"]
        reply = client.post("/v2/models/triton/versions/2/infer", {"inputs": [X]})
        assert reply.json()["model_version"] == "2"
        assert client.post("/v2/models/triton/versions/1/infer", {"inputs": [X]}).status == 404
        config = client.get("/v2/models/triton/config").json()
        assert config["max_batch_size"] == 8 and all(type(size) is int for size in config["input"][0]["dims"])
        assert config["instance_group"][0]["kind"] == "KIND_CPU" and config["parameters"] == {}


@pytest.mark.parametrize(
    "name", ["../plain", "triton/1", "/etc/passwd", "..", ".", "", "a\0b", "none", "-odd", "empty"]
)
def test_a_name_is_never_a_path(root: Path, name: str) -> None:
    with pytest.raises(SardonyxError):
        model_files(root, name)


def test_links_that_lead_out_are_refused(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = save("net", tmp_path_factory.mktemp("outside") / "secret.onnx")
    (root / "link.onnx").symlink_to(outside)
    (root / "folder").symlink_to(outside.parent)
    for name in ("link", "folder"):
        with pytest.raises(ModelFileError):
            model_files(root, name)


@pytest.mark.parametrize("kind", ["outside", "hard link", "pipe", "device", "circle", "long"])
@pytest.mark.parametrize("name", ["config.pbtxt", "labels.txt", "initial_state/zero", "model-settings.json"])
def test_files_beside_a_model_are_regular_files_of_the_repository(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str, kind: str
) -> None:
    save("accumulate", tmp_path / "m" / "1" / "model.onnx")
    state = 'state { input_name: "state" output_name: "next" data_type: TYPE_FP32 dims: [ 1 ] initial_state { '
    state += 'name: "i" data_type: TYPE_FP32 dims: [ 1 ] data_file: "zero" } }'
    config(tmp_path / "m", 'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } '
           f"max_batch_size: 4 sequence_batching {{ {state} }}")  # fmt: skip
    files = {
        "config.pbtxt": (tmp_path / "m" / "config.pbtxt").read_bytes(),
        "labels.txt": b"a\n",
        "initial_state/zero": bytes(4),
    }
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_bytes(files.get(name, b'{"parameters": {"uri": "x.onnx"}}'))
    (tmp_path / "m" / "initial_state").mkdir()
    for file, content in files.items():
        (tmp_path / "m" / file).write_bytes(content)
    repository = Repository(tmp_path, Limits(), LoadOptions(threads=1))
    if name == "model-settings.json":
        save("accumulate", tmp_path / "m" / "x.onnx")
        shutil.rmtree(tmp_path / "m" / "1")
    else:
        assert repository.load("m")
    path = tmp_path / "m" / name
    path.unlink(missing_ok=True)
    match kind:
        case "outside":
            path.symlink_to(secret)
        case "hard link":
            path.hardlink_to(secret)
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "circle":
            path.symlink_to(path)
        case _:
            path.write_bytes(b"\n")
            os.truncate(path, (1 << 30) + 1)
    with pytest.raises(SardonyxError):
        Repository(tmp_path, Limits(), LoadOptions(threads=1)).load("m")


def test_a_pipe_in_place_of_a_model_is_no_model(tmp_path: Path) -> None:
    """Opening a pipe would wait for a writer, and the server with it."""
    save("net", tmp_path / "net.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "folder" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "folder" / "1" / "model.onnx")
    repository = Repository(tmp_path, Limits(), LoadOptions(threads=1))
    assert repository.names() == ["net"]
    with pytest.raises(RequestError, match="no such model"):
        repository.load("pipe")


def test_reasons_name_files_by_their_path_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    repository = Repository(tmp_path, Limits(), LoadOptions(threads=1))
    with pytest.raises(SardonyxError):
        repository.load("broken")
    (entry,) = repository.index()
    assert entry.reason.startswith("broken.onnx: ") and str(tmp_path) not in entry.reason


@pytest.mark.parametrize(
    "text",
    [
        "name: 3", "not a configuration {", 'name: "other"', 'backend: "python"', "ensemble_scheduling { }",
        'default_model_filename: "../m.onnx"', "model_transaction_policy { decoupled: true }", "max_batch_size: -1",
        "max_batch_size: 99999999999", 'instance_group [ { kind: 99999999999 } ]',
        'sequence_batching { control_input [ { name: "S" control [ { kind: 2147483647 } ] } ] }',
        'sequence_batching { state [ { input_name: "s" output_name: "t" dims: [ 9999999999 ] } ] }',
        'input { name: "x" allow_ragged_batch: true }', 'batch_output { target_name: "y" source_input: "x" }',
        'max_batch_size: 2 batch_input { kind: 99 target_name: "s" source_input: "x" }',
        'max_batch_size: 2 input { name: "x" allow_ragged_batch: true } batch_input { target_name: "s" }',
        'max_batch_size: 2 batch_input { target_name: "s" source_input: "x" }',
        'model_warmup [ { inputs { key: "x" value { data_type: TYPE_STRING dims: [ 99999999999 ] } } } ]',
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_served_is_refused(tmp_path: Path, text: str) -> None:
    config(tmp_path / "net", text)
    with pytest.raises(SardonyxError):
        read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net")


def test_a_configuration_sets_batching_queues_and_priorities(tmp_path: Path) -> None:
    config(
        tmp_path / "net",
        "max_batch_size: 16 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100"
        " priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 5"
        " default_timeout_microseconds: 7 } } response_cache { enable: true }",
    )
    options = read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net")
    batching = options.batching
    assert (batching.max_rows, batching.preferred_rows, batching.max_delay_us) == (16, (4, 8), 100)
    assert (batching.priority_levels, batching.default_priority, batching.queue_requests) == (2, 1, 5)
    assert (batching.timeout_us, batching.allows_timeout, options.cached) == (7, False, True)


def test_a_configuration_joins_ragged_requests(tmp_path: Path) -> None:
    save("joined", tmp_path / "joined" / "1" / "model.onnx")
    config(
        tmp_path / "joined",
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'
        ' batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" source_input: "x" }'
        ' batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "less" source_input: "x" }'
        " dynamic_batching { }",
    )
    with Server(tmp_path, http="127.0.0.1:0") as server:
        client = Client(server)
        for length in (1, 5, 5, 5):
            x = [float(number) for number in range(length)]
            reply = client.infer("joined", [tensor("x", "FP32", [1, length], x)])
            answers = {output["name"]: (output["shape"], output["data"]) for output in reply.json()["outputs"]}
            assert answers == {"sum": ([1], [sum(x)]), "less": ([1, length], [-number for number in x])}
        reply = client.infer("joined", [tensor("x", "FP32", [4], [1, 2, 3, 4])])
        assert reply.status == 400 and "expected 2 sizes" in reply.json()["error"]


def test_a_model_whose_load_fails_by_a_defect_leaves_others_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        save("net", tmp_path / name / "1" / "model.onnx")
    load = Repository.load

    def broken(self: Repository, name: str) -> Any:
        if name == "first":
            raise KeyError("a defect")
        return load(self, name)

    monkeypatch.setattr(Repository, "load", broken)
    with Server(tmp_path, http="127.0.0.1:0") as server:
        assert Client(server).infer("second", [X]).status == 200
        assert Client(server).infer("first", [X]).status in (404, 503)


def test_a_huge_batch_limit_allocates_no_rows_ahead(tmp_path: Path) -> None:
    save("net", tmp_path / "net" / "1" / "model.onnx")
    config(tmp_path / "net", "max_batch_size: 2147483647")
    with Server(tmp_path, http="127.0.0.1:0") as server:
        assert [Client(server).infer("net", [X]).status for _ in range(4)] == [200] * 4


def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_polling_takes_complete_changes_and_refuses_bad_ones(tmp_path: Path) -> None:
    save("net", tmp_path / "net" / "1" / "model.onnx")
    with Server(tmp_path, http="127.0.0.1:0", poll_seconds=0.1) as server:
        client = Client(server)
        save("net", tmp_path / "staged.onnx")
        (tmp_path / "net" / "2").mkdir()
        shutil.move(tmp_path / "staged.onnx", tmp_path / "net" / "2" / "model.onnx")
        until(lambda: client.infer("net", [X]).json()["model_version"] == "2")
        (tmp_path / "net" / "2" / "model.onnx").write_bytes(b"half a file")
        until(lambda: any(entry["reason"] for entry in client.post("/v2/repository/index").json()))
        assert client.infer("net", [X]).json()["model_version"] == "2"
        save("add_sub", tmp_path / "second.onnx")
        until(lambda: client.get("/v2/models/second/ready").status == 200)
        (tmp_path / "second.onnx").unlink()
        until(lambda: client.get("/v2/models/second/ready").status == 503)


def test_a_model_whose_files_are_missing_for_one_look_stays(tmp_path: Path) -> None:
    file = save("net", tmp_path / "net.onnx")
    repository = Repository(tmp_path, Limits(), LoadOptions())
    repository.load("net")
    aside = tmp_path.with_name("aside.onnx")
    for _ in range(2):
        file.rename(aside)
        assert not list(repository.poll(60))
        aside.rename(file)
        assert not list(repository.poll(60))
    file.rename(aside)
    assert not list(repository.poll(60))
    ((name, unload),) = repository.poll(60)
    assert name == "net" and len(unload()) == 1 and not repository.loaded


def test_models_are_loaded_and_unloaded_by_name_alone(root: Path) -> None:
    with Server(root, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        assert client.post("/v2/repository/models/plain/unload").status == 200
        assert client.infer("plain", [X]).status == 503
        assert client.get("/v2/models/plain/ready").status == 503
        assert client.post("/v2/repository/models/plain/load").status == 200
        assert client.infer("plain", [X]).status == 200
        assert client.post("/v2/repository/models/none/load").status == 404
        states = {
            entry["name"]: entry["state"] for entry in client.post("/v2/repository/index", {"ready": True}).json()
        }
        assert set(states.values()) == {"READY"} and "triton" in states


def test_a_broken_model_leaves_the_others(root: Path) -> None:
    (root / "broken.onnx").write_bytes(b"no model")
    with Server(root, http="127.0.0.1:0") as server:
        client = Client(server)
        assert client.get("/v2/health/ready").status == 200
        index = {entry["name"]: entry for entry in client.post("/v2/repository/index").json()}
        assert index["broken"]["state"] == "UNAVAILABLE" and index["broken"]["reason"]
        assert client.infer("plain", [X]).status == 200


def test_compiled_files_need_a_permission(tmp_path: Path) -> None:
    (tmp_path / "code.sdx").write_bytes(json.dumps({}).encode())
    with pytest.raises(SardonyxError, match="machine code"):
        Repository(tmp_path, Limits(), LoadOptions()).load("code")


def test_a_file_that_is_removed_before_its_model_is_read_leaves_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save("net", tmp_path / "net.onnx")
    source = ModelSource(file)
    (served,) = Repository(tmp_path, Limits(), LoadOptions()).load("net")
    file.unlink()
    with pytest.raises(ModelFileError, match="cannot be read any more") as refused:
        print(source.model)

    def gone(snapshot: Snapshot) -> Any:
        raise refused.value

    # A program from the cache answers although its model was never read.
    monkeypatch.setattr(Snapshot, "model", property(gone))
    monkeypatch.setattr(Snapshot, "remembered", lambda snapshot, question, answer: answer())
    revision = Revision(served.session, served.session.snapshot())
    assert revision.has_loops
    assert revision.run({"x": np.ones((1, 4), np.float32)})[0].tolist() == [[16, 20]]
