"""Triton's configurations: agreement with the model, declared sizes, warm-up, files of tensors, time that is over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx.errors import SardonyxError
from sardonyx.serve import Batching, Limits, Server
from sardonyx.serve.models.auxiliary_files import AuxiliaryFiles
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
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } }', "sizes"),
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 1, 5 ] } }', "other elements"),
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] reshape { shape: [4, -1] } }', "other elements"),
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: [ 0, 4 ] reshape { shape: [ 0, 4 ] } }', "at least 1"),
        ("net", 'input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { } }', "no sizes"),
        ("net", "dynamic_batching { priority_levels: 2 default_priority_level: 3 }", "priority"),
        ("net", "dynamic_batching { priority_levels: 1 priority_queue_policy { key: 2 value { } } }", "priority"),
        ("net", "dynamic_batching { priority_queue_policy { key: 2 value { } } }", "priority"),
        ("net", "max_batchsize: 8", "max_batchsize"),
        ("net", tensors("input", "x", "FP32", "[ -1, 4 ]") * 2, "2 times"),
        ("net", 'input { name: "x" optional: true }', "default"),
        ("net", "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 4, 16 ] }", "from 1 to 8"),
        ("net", "dynamic_batching { priority_levels: 2 default_priority_level: 1 preserve_ordering: true }", "order"),
        ("net", "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY"
         " default_timeout_microseconds: 5 } }", "ordering"),
        ("accumulate", "sequence_batching { } response_cache { enable: true }", "remembered"),
        ("accumulate", "sequence_batching { iterative_sequence: true }", "iterative"),
        ("net", "version_policy { latest { } }", "num_versions"),
        ("net", 'default_model_filename: "other.onnx"', "model file"),
        ("net", 'model_operations { op_library_filename: "ops.so" }', "custom operators"),
        ("net", 'model_repository_agents { agents { name: "checksum" } }', "checksum"),
        ("net", 'runtime: "libother.so"', "runtime"),
        ("net", 'input { name: "x" dims: [ -1, 4 ] is_shape_tensor: true }', "TensorRT"),
        ("net", 'input { name: "x" dims: [ -1, 4 ] format: FORMAT_NCHW }', "3 sizes"),
        ("net", 'max_batch_size: 2 model_warmup { batch_size: 3 inputs { key: "x" value { dims: 4 zero_data: 1 } } }',
         "2 rows"),
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
        parsed = read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net")
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
        read_config(AuxiliaryFiles(tmp_path, folder), "accumulate")


def test_a_delaying_queue_computes_late_requests_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config(tmp_path / "net", "dynamic_batching { default_queue_policy { timeout_action: DELAY"
           " default_timeout_microseconds: 1000 allow_timeout_override: true } }")  # fmt: skip
    batching = read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net").batching
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
        tmp_path.rename(tmp_path.with_name("gone"))
        assert client.post("/v2/repository/index").status == 503
        assert client.post("/v2/repository/models/net/load").status == 503
        assert client.infer("net", x).status == 200


def test_sizes_of_requests_differ_from_those_of_the_model_by_reshape(tmp_path: Path) -> None:
    folder = tmp_path / "reshaped"
    save("sums", folder / "1" / "model.onnx")
    config(folder, """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ 1, 2, -1 ] } }
input { name: "s" data_type: TYPE_FP32 dims: 1 reshape { } }
output { name: "y" data_type: TYPE_FP32 dims: [ 2, -1 ] reshape { shape: [ 1, 2, -1 ] } label_filename: "labels" }
output { name: "t" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { } }
model_warmup { batch_size: 2 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 3 ] zero_data: true } }
  inputs { key: "s" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }
""")  # fmt: skip
    (folder / "labels").write_text("a\nb\n")
    with Server(tmp_path, http="127.0.0.1:0", grpc="127.0.0.1:0") as server:
        client = Client(server)
        described = client.get("/v2/models/reshaped").json()
        assert [part["shape"] for part in described["inputs"]] == [[-1, 2, -1], [-1, 1]]
        assert [part["shape"] for part in described["outputs"]] == [[-1, 2, -1], [-1, 1, 1]]
        assert described["parameters"]["sardonyx_batching"] == "sound"
        for width in (3, 1):
            x = tensor("x", "FP32", [2, 2, width], list(range(4 * width)))
            reply = client.infer("reshaped", [x, tensor("s", "FP32", [2, 1], [10, 20])])
            y, t = reply.json()["outputs"]
            assert (y["shape"], t["shape"], t["data"]) == ([2, 2, width], [2, 1, 1], [11, 21])
            assert y["data"] == [value + 10 + 10 * (value >= 2 * width) for value in range(4 * width)]
        for shape in ([2, 1, 2, 1], [2, 3, 1], [2, 2]):
            x = tensor("x", "FP32", shape, [1] * int(np.prod(shape)))
            refused = client.infer("reshaped", [x, tensor("s", "FP32", [2, 1], [1, 2])])
            assert refused.status == 400 and "[-1, 2, -1]" in refused.json()["error"], shape
        x = tensor("x", "FP32", [1, 2, 1], [5, 6])
        for shape in ([1], [], [1, 1, 1]):
            assert client.infer("reshaped", [x, tensor("s", "FP32", shape, [1])]).status == 400
        reply = client.post("/v2/models/reshaped/generate", {"x": [[5], [6]], "s": 1})
        assert (reply.status, reply.json()["y"]) == (200, [6, 7])
        classes = client.infer(
            "reshaped", [x, tensor("s", "FP32", [1, 1], [1])],
            outputs=[{"name": "y", "parameters": {"classification": 1}}],
        )  # fmt: skip
        assert classes.json()["outputs"][0]["data"] == ["7.000000:1:b"]
        inner = client.get("/v2/models/reshaped/config").json()
        assert inner["input"][0]["reshape"] == {"shape": [1, 2, -1]}


def test_a_remembered_answer_is_reshaped_once(tmp_path: Path) -> None:
    folder = tmp_path / "reshaped"
    save("net", folder / "1" / "model.onnx")
    config(folder, """max_batch_size: 8 response_cache { enable: true }
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: 4 } }
output { name: "y" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: 2 } }""")  # fmt: skip
    with Server(tmp_path, http="127.0.0.1:0") as server:
        client = Client(server)
        for _ in range(3):
            (y,) = client.infer("reshaped", [tensor("x", "FP32", [1, 2, 2], [1, 1, 1, 1])]).json()["outputs"]
            assert (y["shape"], y["data"]) == ([1, 1, 2], [16, 20])


def test_a_priority_has_a_queue_policy_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config(tmp_path / "net", """dynamic_batching { priority_levels: 3 default_priority_level: 2
default_queue_policy { default_timeout_microseconds: 60000000 }
priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 1000 } }
priority_queue_policy { key: 3 value { max_queue_size: 1 } } }""")  # fmt: skip
    batching = read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net").batching
    model = served("net", mode="off", priority_levels=3, default_priority=2, level_queues=batching.level_queues)
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, request())
        await gate.begun()
        late, _ = submit(endpoint, request(2, priority=1))
        third, third_entry = submit(endpoint, request(3, priority=3))
        with pytest.raises(SardonyxError, match="wait for the model"):
            submit(endpoint, request(3, priority=3))
        await asyncio.sleep(0.02)
        assert third_entry.cancel()
        last, _ = submit(endpoint, request(4, priority=3))
        usual, _ = submit(endpoint, request(5))
        gate.opened.set()
        await asyncio.gather(first, late, last, usual)
        assert [shape[0] for shape in gate.rows] == [1, 5, 4, 2] and not third.done()
        endpoint.queue.close()

    run(work)


def test_a_queue_that_keeps_the_order_lets_no_request_overtake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config(tmp_path / "net", "max_batch_size: 8 dynamic_batching { preserve_ordering: true }")
    batching = read_config(AuxiliaryFiles(tmp_path, tmp_path / "net"), "net").batching
    assert batching.keeps_order

    def rows_of(keeps_order: bool) -> list[tuple[int, ...]]:
        model = served("doubled", mode="force", keeps_order=keeps_order)
        gate = Gate(model, monkeypatch)

        async def work() -> None:
            endpoint = endpoint_of(model)
            first, _ = submit(endpoint, request())
            await gate.begun()
            later = [submit(endpoint, request(rows, width))[0] for rows, width in ((1, 4), (2, 4), (1, 5), (4, 4))]
            gate.opened.set()
            await asyncio.gather(first, *later)
            endpoint.queue.close()

        run(work)
        return gate.rows

    assert rows_of(True) == [(1, 4), (3, 4), (1, 5), (4, 4)]
    assert rows_of(False) == [(1, 4), (7, 4), (1, 5)]


def test_options_of_batching_are_checked() -> None:
    with pytest.raises(SardonyxError, match="most_rows"):
        Batching(most_rows=-1)
