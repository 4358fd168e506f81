"""Measure servers beside each other: requests a second, latency, and processor time of a request.

    python benchmarks/serve.py --proto json binary grpc --clients 1 8 64 --peers fastapi grpcio
    python benchmarks/serve.py --model resnet18.onnx --proto binary grpc --json serve.json --check 1.0

Every server is started here, one at a time, on one processor; the load comes from `wrk` (HTTP) and `h2load` (gRPC) on
another. Servers alternate over the rounds; figures are medians, and ratios are medians of the ratios of a round. The
processor time of a request is that of all processes of a server over the number of its answers: it is the figure that
other work on the machine disturbs least.

Peers: `fastapi` (FastAPI and uvicorn with ONNX Runtime, JSON), `grpcio` (this server with the gRPC of `grpcio`),
`mlserver` (with ONNX Runtime), and `triton` (a Triton server whose command the variable TRITON_COMMAND holds, with
`{repository}`, `{http}` and `{grpc}` in place of the folder and ports). A peer that is not installed is named and left
out. `--check` fails below a ratio of requests a second to every peer.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import rich.console
import rich.table
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

PEERS = ("fastapi", "grpcio", "mlserver", "triton")


def small_model(path: Path) -> Path:
    """Write a perceptron of three products, 64 inputs and 10 outputs, with an open batch."""
    rng = np.random.default_rng(0)
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
    if server == "mlserver":
        if importlib.util.find_spec("mlserver") is None:
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
        return [sys.executable, "-m", "mlserver.cli", "start", str(target)]
    template = os.environ.get("TRITON_COMMAND")
    if not template:
        return None
    repository = folder / "repository"
    (repository / "model" / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(model, repository / "model" / "1" / "model.onnx")
    (repository / "model" / "config.pbtxt").write_text('backend: "onnxruntime" max_batch_size: 64 dynamic_batching { }')
    return shlex.split(template.format(repository=repository, http=http, grpc=grpc))


@contextlib.contextmanager
def running(words: list[str], http: int) -> Iterator[int]:
    """Start a server on the first processor, wait until it is ready, and yield its process id."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(["taskset", "-c", "0", *words], stdout=log, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 120
            while True:
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=1) as reply,
                ):
                    if reply.status == 200:
                        break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise RuntimeError(log.read().decode(errors="replace")[-2000:])
                time.sleep(0.1)
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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


class Load:
    """The bodies of requests for one row, and the programs that send them.

    Args:
        model: The model; its first input has floats.
        folder: A folder for the files of the programs.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        value = onnx.load(model, load_external_data=False).graph.input[0]
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        data = np.random.default_rng(0).random(shape, np.float32).round(4)
        tensor = {"name": value.name, "datatype": "FP32", "shape": shape}
        plain = json.dumps({"inputs": [{**tensor, "data": data.ravel().tolist()}]}).encode()
        part = {**tensor, "parameters": {"binary_data_size": data.nbytes}}
        head = json.dumps({"inputs": [part], "parameters": {"binary_data_output": True}}).encode()
        self._json = self._script(folder / "json.lua", plain, {"Content-Type": "application/json"})
        fields = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
        self._binary = self._script(folder / "binary.lua", head + data.tobytes(), fields)
        from sardonyx.serve.protocol.messages import message_class

        message = message_class("ModelInferRequest")(model_name=model.stem, raw_input_contents=[data.tobytes()])
        message.inputs.add(**tensor)
        self._grpc = folder / "grpc.bin"
        text = message.SerializeToString()
        self._grpc.write_bytes(struct.pack(">BI", 0, len(text)) + text)

    @staticmethod
    def _script(path: Path, body: bytes, headers: dict[str, str]) -> Path:
        path.with_suffix(".body").write_bytes(body)
        lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
        path.write_text("\n".join([
            'wrk.method = "POST"', *lines, f'wrk.body = io.open("{path.with_suffix(".body")}", "rb"):read("*a")',
        ]))  # fmt: skip
        return path

    def run(self, proto: str, name: str, port: int, clients: int, seconds: float) -> tuple[int, float, float]:
        """Send requests; return the number of good answers, requests a second, and the median latency in ms."""
        pin = ["taskset", "-c", "1"]
        if proto == "grpc":
            url = f"http://127.0.0.1:{port}/inference.GRPCInferenceService/ModelInfer"
            words = [*pin, "h2load", "-t1", "-m1", f"-c{clients}", f"-D{max(1, round(seconds))}", "-d", str(self._grpc),
                     "-H", "content-type: application/grpc", "-H", "te: trailers", url]  # fmt: skip
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            good = int(re.search(r"(\d+) succeeded", text)[1])  # type: ignore[index]
            latency = re.search(r"time for request:\s+\S+\s+\S+\s+(\S+)", text)
            return good, good / max(1, round(seconds)), milliseconds(latency[1]) if latency else 0.0
        script = self._json if proto == "json" else self._binary
        url = f"http://127.0.0.1:{port}/v2/models/{name}/infer"
        words = [
            *pin,
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{max(1, round(seconds))}s",
            "--latency",
            "-s",
            str(script),
            url,
        ]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        good = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
        if bad := re.search(r"Non-2xx or 3xx responses: (\d+)", text):
            raise RuntimeError(f"{bad[1]} of {good} answers failed")
        rate = float(re.search(r"Requests/sec:\s+(\S+)", text)[1])  # type: ignore[index]
        return good, rate, milliseconds(re.search(r"50%\s+(\S+)", text)[1])  # type: ignore[index]


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def measure(arguments: argparse.Namespace, console: rich.console.Console) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model = folder / "model.onnx"
        shutil.copy(arguments.model, model) if arguments.model else small_model(model)
        load = Load(model, folder)
        for number in range(arguments.rounds):
            for server in ("sardonyx", *arguments.peers):
                http, grpc = free_port(), free_port()
                words = command(server, model, folder, http, grpc)
                if words is None:
                    if number == 0:
                        console.print(f"{server} is not installed: left out")
                    continue
                with running(words, http) as group:
                    for proto in arguments.proto:
                        if (server == "fastapi" and proto != "json") or (server == "mlserver" and proto == "binary"):
                            continue
                        port = grpc if proto == "grpc" else http
                        for clients in arguments.clients:
                            load.run(proto, "model", port, clients, 1)
                            before = processor_seconds(group)
                            good, rate, latency = load.run(proto, "model", port, clients, arguments.seconds)
                            cpu = (processor_seconds(group) - before) / max(good, 1) * 1e6
                            rows.append({"round": number, "server": server, "proto": proto, "clients": clients,
                                         "requests_per_second": rate, "p50_ms": latency, "cpu_us": cpu})  # fmt: skip
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return medians, and ratios to this server within a round."""
    own = {(r["round"], r["proto"], r["clients"]): r for r in rows if r["server"] == "sardonyx"}
    summary = []
    for key in dict.fromkeys((r["proto"], r["clients"], r["server"]) for r in rows):
        part = [r for r in rows if (r["proto"], r["clients"], r["server"]) == key]
        pairs = [(own[r["round"], r["proto"], r["clients"]], r) for r in part]
        summary.append({
            "proto": key[0], "clients": key[1], "server": key[2],
            **{name: statistics.median(r[name] for r in part) for name in ("requests_per_second", "p50_ms", "cpu_us")},
            "rate_ratio": statistics.median(a["requests_per_second"] / b["requests_per_second"] for a, b in pairs),
            "cpu_ratio": statistics.median(b["cpu_us"] / max(a["cpu_us"], 1e-9) for a, b in pairs),
        })  # fmt: skip
    return sorted(summary, key=lambda row: (row["proto"], row["clients"], -row["requests_per_second"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model with one float input and an open batch; small by default")
    parser.add_argument("--proto", nargs="+", choices=("json", "binary", "grpc"), default=["json", "binary", "grpc"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", type=float, help="fail below this ratio of requests a second")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = rich.console.Console()
    for program in ("wrk", "taskset", *(("h2load",) if "grpc" in arguments.proto else ())):
        if shutil.which(program) is None:
            parser.error(f"{program} is not installed")
    rows = measure(arguments, console)
    summary = summarize(rows)
    table = rich.table.Table(
        "protocol", "clients", "server", "requests/s", "p50 ms", "CPU µs", "rate, ours/its", "CPU, its/ours"
    )
    for row in summary:
        table.add_row(
            row["proto"], str(row["clients"]), row["server"], f"{row['requests_per_second']:,.0f}",
            f"{row['p50_ms']:.2f}", f"{row['cpu_us']:.1f}", f"{row['rate_ratio']:.2f}", f"{row['cpu_ratio']:.2f}",
        )  # fmt: skip
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "summary": summary}, indent=1))
    peers = [row for row in summary if row["server"] != "sardonyx"]
    return int(arguments.check is not None and any(row["rate_ratio"] < arguments.check for row in peers))


if __name__ == "__main__":
    sys.exit(main())
