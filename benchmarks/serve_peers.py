"""Python servers of `benchmarks/serve.py`: their programs, and the interpreters that have them.

A peer is looked for in this interpreter, or in that which the variable NAME_PYTHON names: peers pin other versions of
the same packages. Each answers the JSON of the Open Inference Protocol from ONNX Runtime with one thread.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

_SESSION = """
import os, sys
import numpy as np, onnxruntime
def load(path):
    options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)
def answer(session, body):
    feeds = {i["name"]: np.array(i["data"], np.float32).reshape(i["shape"]) for i in body["inputs"]}
    names = [o.name for o in session.get_outputs()]
    return {"outputs": [{"name": n, "datatype": "FP32", "shape": list(v.shape), "data": v.ravel().tolist()}
                        for n, v in zip(names, session.run(None, feeds))]}
"""

FASTAPI = """
import uvicorn
from fastapi import FastAPI
session = load(sys.argv[1])
app = FastAPI()
@app.get("/v2/health/ready")
def ready(): return {}
@app.post("/v2/models/model/infer")
def infer(body: dict): return answer(session, body)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""

LITSERVE = """
import litserve
class Model(litserve.LitAPI):
    def setup(self, device): self.session = load(sys.argv[1])
    def predict(self, body): return answer(self.session, body)
if __name__ == "__main__":
    api = Model(api_path="/v2/models/model/infer")
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/v2/health/ready", track_requests=False)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
"""

BENTOML = """
import bentoml
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
health = Starlette(routes=[Route("/ready", lambda request: JSONResponse({}))])
@bentoml.service(name="model", workers=1, logging={"access": {"enabled": False}})
@bentoml.asgi_app(health, path="/v2/health")
class Model:
    def __init__(self): self.session = load(os.environ["BENCHMARK_MODEL"])
    @bentoml.api(route="/v2/models/model/infer")
    def infer(self, inputs: list[dict]) -> dict: return answer(self.session, {"inputs": inputs})
"""

RAY = """
import ray
from ray import serve
@serve.deployment(num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class Model:
    def __init__(self, path): self.session = load(path)
    async def __call__(self, request):
        return {} if request.method == "GET" else answer(self.session, await request.json())
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
serve.run(Model.bind(sys.argv[1]), route_prefix="/", blocking=True)
"""

MLSERVER = """
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
class Model(MLModel):
    async def load(self):
        self.session = load(self.settings.parameters.uri)
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

PROGRAMS = {"fastapi": FASTAPI, "litserve": LITSERVE, "ray": RAY}
PACKAGES = {
    "fastapi": ("fastapi", "uvicorn"),
    "litserve": ("litserve",),
    "bentoml": ("bentoml",),
    "ray": ("ray.serve",),
    "mlserver": ("mlserver",),
}
PEERS = ("bentoml", "fastapi", "floor", "grpcio", "litserve", "mlserver", "ray", "triton")


def command(server: str, model: Path, folder: Path, http: int, grpc: int) -> list[str] | None:
    """Return the command of a Python server; None if its packages are not installed."""
    if server in ("sardonyx", "grpcio"):
        engine = "grpcio" if server == "grpcio" else "own"
        if not _has(sys.executable, "httptools", "msgspec", "grpc" if server == "grpcio" else "hpack"):
            return None
        return [sys.executable, "-c", OWN, str(model), str(http), str(grpc), engine]
    if server == "floor":
        return [sys.executable, "-c", FLOOR, str(http)] if _has(sys.executable, "uvloop") else None
    python = os.environ.get(f"{server.upper()}_PYTHON", sys.executable)
    if not _has(python, "onnxruntime", *PACKAGES[server]):
        return None
    target = folder / server
    target.mkdir(exist_ok=True)
    clean = ["env", "-u", "PYTHONPATH"]
    if server == "mlserver":
        return [*clean, *_mlserver(python, model, target, http, grpc)]
    if server == "bentoml":
        (target / "service.py").write_text(_SESSION + BENTOML)
        words = ["-m", "bentoml", "serve", "service:Model", "--working-dir", str(target)]
        quiet = ["BENTOML_DO_NOT_TRACK=True", f"BENTOML_HOME={target}", f"BENCHMARK_MODEL={model}"]
        return [*clean, *quiet, python, *words, "--host", "127.0.0.1", "--port", str(http)]
    (target / "server.py").write_text(_SESSION + PROGRAMS[server])
    quiet = ["RAY_USAGE_STATS_ENABLED=0", f"RAY_TMPDIR={folder}"] if server == "ray" else []
    return [*clean, *quiet, python, str(target / "server.py"), str(model), str(http)]


def _mlserver(python: str, model: Path, target: Path, http: int, grpc: int) -> list[str]:
    (target / "onnx_model.py").write_text(_SESSION + MLSERVER)
    settings = {"name": "model", "implementation": "onnx_model.Model", "parameters": {"uri": str(model)}}
    (target / "model-settings.json").write_text(json.dumps(settings))
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": free_port(), "parallel_workers": 0, "debug": False}
    (target / "settings.json").write_text(json.dumps({"host": "127.0.0.1", **ports}))
    return [python, "-c", "from mlserver.cli import main; main()", "start", str(target)]


@functools.cache
def _has(python: str, *packages: str) -> bool:
    """Return True if an interpreter finds all packages; only those that contain others are imported."""
    program = f"import importlib.util as i, sys; sys.exit(not all(map(i.find_spec, {packages!r})))"
    return subprocess.run([python, "-c", program], capture_output=True, check=False).returncode == 0


def free_port() -> int:
    """Return a port of the loopback that no server uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
