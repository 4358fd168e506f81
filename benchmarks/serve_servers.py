"""Servers of `benchmarks/serve.py`: commands, start on one processor, time and memory."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FASTAPI = """
import os, sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options)
app = FastAPI()
@app.get("/v2/health/ready")
def ready(): return {}
@app.post("/v2/models/model/infer")
def infer(body: dict):
    feeds = {i["name"]: np.array(i["data"], np.float32).reshape(i["shape"]) for i in body["inputs"]}
    names = [o.name for o in session.get_outputs()]
    return {"outputs": [{"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()}
                        for n, v in zip(names, session.run(None, feeds))]}
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""

MLSERVER = """
import numpy as np, onnxruntime
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
class Model(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri)
        return True
    async def predict(self, payload):
        feeds = {i.name: NumpyCodec.decode_input(i).astype(np.float32) for i in payload.inputs}
        values = self.session.run(None, feeds)
        outputs = [NumpyCodec.encode_output(o.name, v) for o, v in zip(self.session.get_outputs(), values)]
        return types.InferenceResponse(model_name=self.name, outputs=outputs)
"""

OWN = """
import sys
from sardonyx.serve import Server
from sardonyx.serve.models.repository import LoadOptions
path, http, grpc, engine = sys.argv[1:]
Server(path, http="127.0.0.1:" + http, grpc="127.0.0.1:" + grpc, grpc_engine=engine, load=LoadOptions(threads=1)).run(
    lambda server: None)
"""

TRITON_CONFIG = """
backend: "onnxruntime"
parameters { key: "intra_op_thread_count" value: { string_value: "1" } }
"""
"""One thread a run: threads of ONNX Runtime bind themselves to processors beyond the server's."""

TRITON_BATCHING = """
max_batch_size: 64
dynamic_batching { }
"""
"""For models whose inputs and outputs have an open first size: Triton refuses others with it."""

FLOOR = """
import asyncio, sys
import uvloop
ANSWER = (b"HTTP/1.1 200 OK\\r\\ncontent-length: 200\\r\\ncontent-type: application/json\\r\\n\\r\\n" + b" " * 200)
class Fixed(asyncio.Protocol):
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data): self.transport.write(ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Fixed, "127.0.0.1", int(sys.argv[1]), backlog=1024)
    await server.serve_forever()
uvloop.run(main())
"""
"""Answers all bytes with fixed bytes: the limit of the sockets and the event loop."""

PEERS = ("fastapi", "floor", "grpcio", "mlserver", "triton")


def small_model(path: Path, seed: int = 0) -> Path:
    """Write a perceptron of three products, 64 inputs and 10 outputs, with an open batch."""
    rng = np.random.default_rng(seed)
    sizes = (64, 128, 128, 10)
    nodes, weights, source = [], [], "x"
    for index, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        matrix = (rng.standard_normal((inner, outer)) / inner**0.5).astype(np.float32)
        weights += [numpy_helper.from_array(matrix, f"w{index}"),
                    numpy_helper.from_array(np.zeros(outer, np.float32), f"b{index}")]  # fmt: skip
        target = "y" if index == len(sizes) - 2 else f"p{index}"
        nodes.append(helper.make_node("Gemm", [source, f"w{index}", f"b{index}"], [target]))
        if target != "y":
            nodes.append(helper.make_node("Relu", [target], [f"h{index}"]))
        source = f"h{index}"
    graph = helper.make_graph(
        nodes, "mlp", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", sizes[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", sizes[-1]])], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(server: str, model: Path, folder: Path, http: int, grpc: int) -> list[str] | None:
    """Return the command of a server; None if it is not installed."""
    if server in ("sardonyx", "grpcio"):
        engine = "grpcio" if server == "grpcio" else "own"
        needed = ("httptools", "msgspec", "grpc" if server == "grpcio" else "hpack")
        if not all(importlib.util.find_spec(package) for package in needed):
            return None
        return [sys.executable, "-c", OWN, str(model), str(http), str(grpc), engine]
    if server == "fastapi":
        installed = all(importlib.util.find_spec(package) for package in ("fastapi", "uvicorn", "onnxruntime"))
        return [sys.executable, "-c", FASTAPI, str(model), str(http)] if installed else None
    if server == "floor":
        return [sys.executable, "-c", FLOOR, str(http)] if importlib.util.find_spec("uvloop") else None
    if server == "mlserver":
        python = os.environ.get("MLSERVER_PYTHON", sys.executable)
        if python == sys.executable and importlib.util.find_spec("mlserver") is None:
            return None
        target = folder / "mlserver"
        target.mkdir(exist_ok=True)
        (target / "onnx_model.py").write_text(MLSERVER)
        settings = {"name": "model", "implementation": "onnx_model.Model", "parameters": {"uri": str(model)}}
        (target / "model-settings.json").write_text(json.dumps(settings))
        ports = {
            "http_port": http,
            "grpc_port": grpc,
            "metrics_port": free_port(),
            "parallel_workers": 0,
            "debug": False,
        }
        (target / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **ports}))
        return ["env", "-u", "PYTHONPATH", python, "-c", "from mlserver.cli import main; main()", "start", str(target)]
    template = os.environ.get("TRITON_COMMAND")
    if not template:
        return None
    repository = folder / "repository"
    if not repository.exists():
        write_repository(repository, [model])
    return shlex.split(template.format(repository=repository, http=http, grpc=grpc))


def write_repository(repository: Path, models: list[Path]) -> None:
    """Write models in Triton's layout, each under the name of its file."""
    for model in models:
        folder = repository / model.stem
        (folder / "1").mkdir(parents=True)
        shutil.copy(model, folder / "1" / "model.onnx")
        (folder / "config.pbtxt").write_text(TRITON_CONFIG + TRITON_BATCHING * has_open_batch(model))


def has_open_batch(model: Path) -> bool:
    """Return True if the first size of every input and output is open."""
    graph = onnx.load(model, load_external_data=False).graph
    defaults = {tensor.name for tensor in graph.initializer}
    values = [value for value in (*graph.input, *graph.output) if value.name not in defaults]
    shapes = [value.type.tensor_type.shape.dim for value in values]
    return all(shape and not shape[0].HasField("dim_value") for shape in shapes)


@dataclass
class Running:
    """A started server.

    Attributes:
        group: Its process group.
        seconds: Time from its start until it was ready.
        processor: Processor time of the group until then, in seconds.
    """

    group: int
    seconds: float
    processor: float


@contextlib.contextmanager
def running(words: list[str], http: int, pause: float = 0.1) -> Iterator[Running]:
    """Start a server on the first processor, wait until it is ready, and yield it.

    Args:
        words: The command.
        http: Its port of HTTP.
        pause: Seconds between two looks.
    """
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        process = subprocess.Popen(
            ["taskset", "-c", "0", *words], stdout=log, stderr=log, env=installed(), start_new_session=True
        )
        try:
            while True:
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=1) as reply,
                ):
                    if reply.status == 200:
                        break
                if process.poll() is not None or time.monotonic() > begin + 120:
                    log.seek(0)
                    raise RuntimeError(log.read().decode(errors="replace")[-2000:])
                time.sleep(pause)
            yield Running(process.pid, time.monotonic() - begin, processor_seconds(process.pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def compiled_folder() -> Path:
    """Return the folder of the user's cache for compiled Python modules, which nobody else may write."""
    folder = Path.home() / ".cache" / "sardonyx-benchmark"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise RuntimeError(f"{folder}: expected a folder that this user alone can write")
    return folder


def installed() -> dict[str, str]:
    """Return the environment of a server: with compiled Python modules, which an installed package has."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if "PYTHONDONTWRITEBYTECODE" in os.environ:
        environment["PYTHONPYCACHEPREFIX"] = str(compiled_folder())
    return environment


def processor_seconds(group: int) -> float:
    """Return the processor time of all processes of a group."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def proportional_memory(group: int) -> float:
    """Return the memory of a process group in MB; a shared page counts by the share of each process."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    lines = (entry / "smaps_rollup").read_text().splitlines()
                    total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
