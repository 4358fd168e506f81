"""Triton's configurations: agreement with the model, declared sizes, warm-up, files of tensors, time that is over."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import SardonyxError
from sardonyx.serve import Batching, Limits, Server
from sardonyx.serve.models.repository import LoadOptions, Repository
from sardonyx.serve.models.triton_config import read_config
from tests.serve.conftest import Client, tensor
from tests.serve.dispatching import Gate, endpoint_of, request, run, served, submit
from tests.serve.models import save


def config(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")


def tensors(kind: str, name: str, type: str, dims: str) -> str:
    return f'{kind} [ {{ name: "{name}" data_type: TYPE_{type} dims: {dims} }} ]\n'


@pytest.mark.parametrize(
    "model, text, reason",
    [
        ("net", tensors("input", "z", "FP32", "[ 4 ]"), "no input or output"),
        ("net", tensors("input", "x", "INT32", "[ -1, 4 ]"), "TYPE_FP32"),
        ("net", tensors("input", "x", "FP32", "[ -1, 5 ]"), "sizes"),
        ("net", tensors("input", "x", "FP32", "[ 4 ]"), "sizes"),
        ("net", "max_batch_size: 8\n" + tensors("input", "x", "FP32", "[ -1, 4 ]"), "sizes"),
        ("net", tensors("output", "y", "FP32", "[ -1, 3 ]"), "sizes"),
        ("fixed", "max_batch_size: 8", "open first size"),
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }', "reshape"),
        ("net", 'sequence_batching { control_input { name: "S" control { int32_false_true: [0, 1] } } }', "S"),
        ("net", 'model_warmup [ { inputs { key: "x" value { dims: 4 input_data_file: "no" } } } ]', "cannot be read"),
        ("net", 'model_warmup [ { inputs { key: "x" value { dims: 4 input_data_file: "../no" } } } ]', "folder"),
        ("net", 'model_warmup [ { inputs { key: "x" value { data_type: 99 dims: 4 } } } ]', "configuration|type"),
    ],
)  # fmt: skip
def test_a_configuration_that_contradicts_its_model_is_refused(
    tmp_path: Path, model: str, text: str, reason: str
) -> None:
    save(model, tmp_path / model / "1" / "model.onnx")
    config(tmp_path / model, text)
    with pytest.raises(SardonyxError, match=reason):
        Repository(tmp_path, Limits(), LoadOptions()).load(model)


USUAL = """
name: "doubled"  # a comment
platform: "onnxruntime_onnx"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
instance_group [ { kind: KIND_GPU count: 2 gpus: [ 0 ] } ]
version_policy { all { } }
default_model_filename: "weights.onnx"
dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 100 preserve_ordering: true }
optimization { graph { level: 1 } execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
model_warmup [
  { name: "zeros" batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } } },
  { name: "random" count: 3 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] random_data: true } } },
  { name: "file" batch_size: 4 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "raw" } } }
]
"""


def test_declared_sizes_and_rows_hold_for_requests(tmp_path: Path) -> None:
    folder = tmp_path / "doubled"
    for version in (1, 3):
        save("doubled", folder / str(version) / "weights.onnx")
    config(folder, USUAL)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "raw").write_bytes(np.ones(3, np.float32).tobytes())
    with Server(tmp_path, http="127.0.0.1:0") as server:
        client = Client(server)
        metadata = client.get("/v2/models/doubled").json()
        assert metadata["versions"] == ["1", "3"] and metadata["inputs"][0]["shape"] == [-1, 3]
        assert client.infer("doubled", [tensor("x", "FP32", [4, 3], [1] * 12)]).status == 200
        for shape in ([5, 3], [1, 2], [1, 4], [3]):
            data = [1] * int(np.prod(shape))
            assert client.infer("doubled", [tensor("x", "FP32", shape, data)]).status == 400, shape
        statistics = client.get("/v2/models/doubled/versions/1/stats").json()["model_stats"][0]
        assert statistics["inference_count"] == 0


def test_a_warm_up_has_rows_only_where_requests_have(tmp_path: Path) -> None:
    save("net", tmp_path / "net" / "1" / "model.onnx")
    run_once = (
        'model_warmup { batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: %s zero_data: true } } }'
    )
    for rows, dims, shape in ((0, "[ 1, 4 ]", (1, 4)), (8, "[ 4 ]", (2, 4))):
        config(tmp_path / "net", f"max_batch_size: {rows} {run_once % dims}")
        parsed = read_config(tmp_path / "net" / "config.pbtxt", "net")
        assert [feeds["x"].shape for feeds in parsed.warmup] == [shape]
        assert Repository(tmp_path, Limits(), LoadOptions()).load("net")


def test_an_initial_state_is_read_from_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "accumulate"
    save("accumulate", folder / "1" / "model.onnx")
    text = """max_batch_size: 2 sequence_batching { state { input_name: "state" output_name: "next"
    data_type: TYPE_FP32 dims: 1 initial_state { name: "five" data_type: TYPE_FP32 dims: 1 data_file: "five" } } }"""
    config(folder, text)
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "five").write_bytes(np.float32(5).tobytes())
    with Server(tmp_path, http="127.0.0.1:0") as server:
        x = tensor("x", "FP32", [2, 1], [1, 2])
        reply = Client(server).infer("accumulate", [x], parameters={"sequence_id": 1, "sequence_start": True})
        assert reply.json()["outputs"][0]["data"] == [6, 7]
    (folder / "initial_state" / "five").write_bytes(b"123")
    with pytest.raises(SardonyxError, match="does not fit"):
        read_config(folder / "config.pbtxt", "accumulate")


def test_a_delaying_queue_computes_late_requests_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config(tmp_path / "net", "dynamic_batching { default_queue_policy { timeout_action: DELAY"
           " default_timeout_microseconds: 1000 allow_timeout_override: true } }")  # fmt: skip
    batching = read_config(tmp_path / "net" / "config.pbtxt", "net").batching
    assert batching.delays and batching.timeout_us == 1000
    model = served("net", mode="off", delays=True)
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, request())
        await gate.begun()
        late, _ = submit(endpoint, request(2, timeout_us=1000))
        gone, entry = submit(endpoint, request(3, timeout_us=1000))
        await asyncio.sleep(0.02)
        last, _ = submit(endpoint, request(4))
        assert entry.cancel() and not entry.cancel()
        gate.opened.set()
        await asyncio.gather(first, late, last)
        assert [shape[0] for shape in gate.rows] == [1, 4, 2] and not gone.done()
        assert (model.statistics.cancelled, model.statistics.expired, endpoint.queue.waiting) == (1, 0, 0)
        endpoint.queue.close()

    run(work)


def test_a_folder_that_cannot_be_read_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("net", tmp_path / "net.onnx")
    save("net", tmp_path / "closed" / "1" / "model.onnx")
    (tmp_path / "circle.onnx").symlink_to(tmp_path / "circle.onnx")
    iterdir = Path.iterdir

    def closed(path: Path) -> Any:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", closed)
    with Server(tmp_path, http="127.0.0.1:0", control="load", poll_seconds=0.05) as server:
        client = Client(server)
        x = [tensor("x", "FP32", [1, 4], [1, 2, 3, 4])]
        assert client.infer("net", x).status == 200
        index = {entry["name"]: entry for entry in client.post("/v2/repository/index").json()}
        assert "Permission denied" in index["closed"]["reason"] and index["circle"]["state"] == "UNAVAILABLE"
        for name in ("closed", "circle"):
            assert client.post(f"/v2/repository/models/{name}/load").status == 503
        shutil.rmtree(tmp_path)
        assert client.post("/v2/repository/index").status == 503
        assert client.post("/v2/repository/models/net/load").status == 503
        assert client.infer("net", x).status == 200


def test_options_of_batching_are_checked() -> None:
    with pytest.raises(SardonyxError, match="most_rows"):
        Batching(most_rows=-1)
