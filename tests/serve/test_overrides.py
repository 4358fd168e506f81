"""Loads with a configuration, and with files, in place of those in the repository."""

from __future__ import annotations

import base64
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import SardonyxError
from sardonyx.serve import Limits, Server
from sardonyx.serve.models import layout
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
from sardonyx.serve.models.override import Override, override_of
from sardonyx.serve.models.repository import LoadOptions, Repository
from tests.serve.conftest import Client, tensor
from tests.serve.models import proto, save


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    save("weighted", root / "net" / "1" / "model.onnx")
    save("doubled", root / "net" / "2" / "model.onnx")
    (root / "net" / "config.pbtxt").write_text("max_batch_size: 8 version_policy { all { } }")
    save("net", root / "plain.onnx")
    return root


def load(client: Client, name: str, **parameters: Any) -> Any:
    named = {key.replace("__", ":"): value for key, value in parameters.items()}
    return client.post(f"/v2/repository/models/{name}/load", {"parameters": named})


def rows(client: Client, name: str, count: int, width: int = 2) -> int:
    return client.infer(name, [tensor("x", "FP32", [count, width], [1.0] * count * width)]).status


def test_a_configuration_stands_in_for_that_of_the_repository_until_the_next_load(root: Path) -> None:
    with Server(root, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        assert rows(client, "net", 8) == 200 and rows(client, "plain", 9, 4) == 200
        config = {"maxBatchSize": 2, "version_policy": {"specific": {"versions": ["1"]}}}
        assert load(client, "net", config=json.dumps(config)).status == 200
        assert rows(client, "net", 2) == 200 and rows(client, "net", 3) == 400
        assert client.get("/v2/models/net").json()["versions"] == ["1"]
        assert client.get("/v2/models/net/config").json()["max_batch_size"] == 2
        assert load(client, "plain", config=json.dumps({"name": "plain", "max_batch_size": 1})).status == 200
        assert rows(client, "plain", 2, 4) == 400
        assert load(client, "net").status == load(client, "plain").status == 200
        assert rows(client, "net", 8) == 200 and rows(client, "plain", 9, 4) == 200
        assert client.get("/v2/models/net").json()["versions"] == ["1", "2"]


@pytest.mark.parametrize("wire", ["http", "grpc"])
def test_clients_of_triton_bring_configuration_and_files(root: Path, wire: str) -> None:
    module = pytest.importorskip(f"tritonclient.{wire}", reason="tritonclient is not installed (extra: test)")
    with Server(root, http="127.0.0.1:0", grpc="127.0.0.1:0", control="edit") as server:
        address = server.url.removeprefix("http://") if wire == "http" else f"127.0.0.1:{server.grpc_port}"
        client = module.InferenceServerClient(address)
        files = {"file:3/model.onnx": proto("net").SerializeToString(), "file:labels.txt": b"no\nyes"}
        output = {"name": "y", "data_type": "TYPE_FP32", "dims": ["2"], "label_filename": "labels.txt"}
        config = {"max_batch_size": 4, "output": [output], "input": [{"name": "x", "data_type": 11, "dims": [4]}]}
        for name in ("net", "fresh"):
            client.load_model(name, config=json.dumps(config), files=files)
            x = np.eye(4, dtype=np.float32)[:2]
            item = module.InferInput("x", [2, 4], "FP32")
            item.set_data_from_numpy(x)
            result = client.infer(name, [item])
            np.testing.assert_array_equal(result.as_numpy("y"), [[1, 2], [3, 4]])
            result = client.infer(name, [item], outputs=[module.InferRequestedOutput("y", class_count=1)])
            assert result.as_numpy("y").ravel().tolist() == [b"2.000000:1:yes", b"4.000000:1:yes"]
            with pytest.raises(Exception, match="version"):
                client.get_model_metadata(name, "1")
        client.unload_model("fresh")
        assert not client.is_model_ready("fresh")
        with pytest.raises(Exception, match="no such model"):
            client.load_model("fresh")
        client.load_model("net")
        assert client.is_model_ready("net", "2")
        with pytest.raises(Exception, match="version"):
            client.get_model_metadata("net", "3")
        client.close()


CONTENTS = base64.b64encode(b"text").decode()


@pytest.mark.parametrize(
    "parameters, status, text",
    [
        ({"config": "{"}, 400, "configuration cannot be read"),
        ({"config": "[]"}, 400, "configuration cannot be read"),
        ({"config": 3}, 400, "JSON text"),
        ({"config": '{"nothing": 1}'}, 400, "nothing"),
        ({"config": '{"max_batch_size": 1e400}'}, 400, "configuration cannot be read"),
        ({"config": '{"parameters":' * 90 + "{}" + "}" * 90}, 400, "configuration cannot be read"),
        ({"config": '{"name": "other"}'}, 400, "name of the folder"),
        ({"config": '{"default_model_filename": "../../plain.onnx"}'}, 400, "file"),
        ({"config": '{"output": [{"name": "y", "label_filename": "/etc/passwd"}]}'}, 400, "file"),
        ({"config": '{"platform": "ensemble"}'}, 400, "ensemble_scheduling"),
        ({"config": '{"backend": "python"}'}, 501, "python"),
        ({"config": " " * (1 << 20) + "{}"}, 400, "at most"),
        ({"file:1/model.onnx": CONTENTS}, 400, "need a configuration"),
        *(
            ({"config": "{}", f"file:{name}": CONTENTS}, 400, "expected a name")
            for name in ("", "/etc/x", "../x", "1/../x", "1/2/x", "01/x", "0/x", ".x", "1/.x", "config.pbtxt", "1\\x",
                         "a\0", "1/x/", "é", "x" * 200, "a/b")
        ),
        ({"config": "{}", "file:1/model.onnx": "no base64"}, 400, "base64"),
        ({"config": "{}", "file:1/model.onnx": 7}, 400, "base64"),
        ({"config": "{}", "file:1/model.onnx": CONTENTS}, 400, "model.onnx"),
        ({"config": "{}", "file:1/model.sdx": CONTENTS}, 501, "machine code"),
        ({"config": "{}", "file:labels.txt": CONTENTS}, 400, "numbered version"),
        ({"config": "{}", **{f"file:{index}.txt": "" for index in range(65)}}, 413, "64 files"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_leaves_the_loaded_model(
    editing: Server, parameters: dict[str, Any], status: int, text: str
) -> None:
    client = Client(editing)
    reply = client.post("/v2/repository/models/net/load", {"parameters": parameters})
    message = reply.json()["error"]
    assert reply.status == status and text in message, message
    assert "sardonyx-model-" not in message and "/tmp" not in message
    assert client.get("/v2/models/net").json()["versions"] == ["1", "2"] and rows(client, "net", 8) == 200


@pytest.fixture(scope="module")
def editing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    save("weighted", folder / "net" / "1" / "model.onnx")
    save("doubled", folder / "net" / "2" / "model.onnx")
    (folder / "net" / "config.pbtxt").write_text("max_batch_size: 8 version_policy { all { } }")
    with Server(folder, http="127.0.0.1:0", control="edit") as server:
        yield server


STATES = [
    {"input_name": "x", "output_name": "y", "dims": [1],
     "initial_state": [{"name": "s", "data_type": "TYPE_UINT8", "dims": [7], "data_file": "key"}]},
]  # fmt: skip
WARMUP = {"x": {"data_type": "TYPE_UINT8", "dims": [7], "input_data_file": "key"}}
OUTPUT = {"name": "y", "data_type": "TYPE_FP32", "dims": [2]}


@pytest.mark.parametrize("is_file", [True, False], ids=["served file", "file of a repository"])
@pytest.mark.parametrize(
    "config",
    [
        {"max_batch_size": 4, "output": [{**OUTPUT, "label_filename": "key"}]},
        {"max_batch_size": 4, "output": [{**OUTPUT, "label_filename": "link"}]},
        {"max_batch_size": 4, "output": [{**OUTPUT, "label_filename": "missing"}]},
        {"sequence_batching": {"state": STATES}},
        {"model_warmup": [{"inputs": WARMUP}]},
    ],
    ids=["labels", "link", "missing labels", "state", "warm-up"],
)
def test_a_configuration_of_a_client_reads_no_file_beside_a_plain_model(
    tmp_path: Path, is_file: bool, config: dict[str, Any]
) -> None:
    root = tmp_path / "models"
    file = save("net", root / "plain.onnx")
    for folder in (tmp_path, root, root / "initial_state", root / "warmup"):
        folder.mkdir(exist_ok=True)
        (folder / "key").write_text("secret\n")
    (root / "link").symlink_to(tmp_path / "key")
    with Server(file if is_file else root, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        reply = load(client, "plain", config=json.dumps(config))
        message = reply.json()["error"]
        assert reply.status == 400 and "a model without a folder has no files" in message, message
        outputs = [{"name": "y", "parameters": {"classification": 2}}]
        reply = client.infer("plain", [tensor("x", "FP32", [1, 4], [1.0] * 4)], outputs=outputs)
        assert reply.json()["outputs"][0]["data"] == ["20.000000:1", "16.000000:0"]


def test_a_configuration_of_a_client_follows_no_link_out_of_the_repository(root: Path) -> None:
    (root.parent / "key").write_text("secret\n")
    (root / "net" / "link").symlink_to(root.parent / "key")
    output = {"name": "y", "data_type": "TYPE_FP32", "dims": [-1], "label_filename": "link"}
    with Server(root, http="127.0.0.1:0", control="load") as server:
        reply = load(Client(server), "net", config=json.dumps({"max_batch_size": 4, "output": [output]}))
        assert reply.status == 400 and "outside of" in reply.json()["error"]


def test_files_of_a_request_need_the_control_of_edits(root: Path) -> None:
    with Server(root, http="127.0.0.1:0", control="load") as server:
        client = Client(server)
        contents = base64.b64encode(proto("net").SerializeToString()).decode()
        reply = load(client, "net", config="{}", file__1_model=contents)
        assert reply.status in (400, 503)
        parameters = {"config": "{}", "file:1/model.onnx": contents}
        reply = client.post("/v2/repository/models/net/load", {"parameters": parameters})
        assert reply.status == 503 and "--control edit" in reply.json()["error"]
        assert rows(client, "net", 8) == 200


def test_a_load_that_fails_keeps_the_configuration_before(root: Path) -> None:
    with Server(root, http="127.0.0.1:0", control="edit") as server:
        client = Client(server)
        assert load(client, "net", config='{"max_batch_size": 3}').status == 200
        assert load(client, "net", config='{"max_batch_size": -3}').status != 200
        assert rows(client, "net", 3) == 200 and rows(client, "net", 4) == 400
        edit = [{"verb": "insert_after", "tensor": "y", "op": "Neg"}]
        assert client.post("/v2/models/net/edit", edit).status == 200
        assert rows(client, "net", 4) == 400


def test_a_poll_keeps_configurations_and_files_of_requests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = root.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    repository = Repository(root, Limits(), LoadOptions(threads=1))
    for name in ("net", "plain"):
        repository.load(name)
    repository.override("net", Override('{"max_batch_size": 3}'))
    repository.reload("net")
    repository.override("fresh", Override("{}", {"1/model.onnx": proto("net").SerializeToString()}))
    repository.reload("fresh")
    assert repository.poll(0) == [] and repository.poll(0) == []
    assert [entry.name for entry in repository.index() if entry.state == "READY"] == ["fresh", "net", "plain"]
    save("weighted", root / "other.tmp").replace(root / "net" / "2" / "model.onnx")
    ((name, change),) = [*repository.poll(0), *repository.poll(0)][:1]
    assert name == "net" and {model.row_limit for model in change()} == {3}
    assert len(list(temporary.iterdir())) == 1
    repository.unload("fresh")
    gc.collect()
    assert not list(temporary.iterdir())
    with pytest.raises(SardonyxError, match="no such model"):
        repository.load("fresh")


def test_a_model_that_a_client_unloads_stays_unloaded_until_its_files_change(root: Path) -> None:
    repository = Repository(root, Limits(), LoadOptions(threads=1))
    for name in ("net", "plain"):
        repository.load(name)
    repository.unload("plain")
    assert [*repository.poll(0), *repository.poll(0)] == []
    save("doubled", root / "other.tmp").replace(root / "plain.onnx")
    assert [name for name, _ in (*repository.poll(0), *repository.poll(0))][:1] == ["plain"]
    moved = root.parent / "plain.onnx"
    repository.load("plain")
    (root / "plain.onnx").replace(moved)
    changes = [*repository.poll(0), *repository.poll(0)]
    assert [name for name, change in changes if change()] == ["plain"] and "plain" not in repository.loaded
    moved.replace(root / "plain.onnx")
    assert [name for name, _ in (*repository.poll(0), *repository.poll(0))][:1] == ["plain"]


def test_a_configuration_is_read_once_at_start_and_anew_by_every_load(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("doubled", root / "first" / "1" / "model.onnx")
    step = (
        'step { model_name: "first" model_version: -1 input_map { key: "x" value: "IN" } '
        'output_map { key: "y" value: "OUT" } }'
    )
    tensors = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 } output { name: "OUT" data_type: TYPE_FP32 dims: 2 }'
    (root / "pipe").mkdir()
    text = f'platform: "ensemble" max_batch_size: 8 {tensors} ensemble_scheduling {{ {step} }}'
    (root / "pipe" / "config.pbtxt").write_text(text)
    reads = []
    read = layout.read_config

    def counted(files: AuxiliaryFiles, name: str) -> Any:
        reads.append(name)
        return read(files, name)

    monkeypatch.setattr(layout, "read_config", counted)
    with Server(root, http="127.0.0.1:0", control="load") as server:
        assert sorted(reads) == ["net", "pipe"]
        client = Client(server)
        assert client.infer("pipe", [tensor("IN", "FP32", [1, 2], [1, 2])]).json()["outputs"][0]["data"] == [2, 4]
        assert load(client, "net").status == 200
        assert sorted(reads) == ["net", "net", "pipe"]


def test_overrides_are_packed_as_they_are() -> None:
    override = override_of({"config": "{}", "file:1/a.onnx": b"\0" * 9, "file:b.txt": CONTENTS, "other": 1})
    assert override == Override("{}", {"1/a.onnx": b"\0" * 9, "b.txt": b"text"})
    assert override is not None and Override.unpacked(*override.packed()) == override
    assert override_of({}) is None
