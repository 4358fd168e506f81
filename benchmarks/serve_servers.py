"""Servers of `benchmarks/serve.py`: commands, start on one processor, time and memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import serve_peers

_MARK = "SARDONYX_BENCHMARK_SERVER"

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


def command(server: str, model: Path, folder: Path, http: int, grpc: int) -> list[str] | None:
    """Return the command of a server; None if it is not installed."""
    if server != "triton":
        return serve_peers.command(server, model, folder, http, grpc)
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


def write_ensemble(repository: Path, model: Path) -> None:
    """Write a model between a Relu and a Softmax, as an ensemble of its inputs and outputs."""
    graph = onnx.load(model).graph
    source, result = graph.input[0], graph.output[0]
    for name, operator, value in (("first", "Relu", source), ("last", "Softmax", result)):
        sizes = ["batch", *(dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim[1:])]
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, sizes) for end in ("x", "y")]
        part = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], name, ends[:1], ends[1:])
        file = repository.parent / f"{name}.onnx"
        onnx.save(helper.make_model(part, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    middle = repository.parent / "middle.onnx"
    shutil.copy(model, middle)
    write_repository(repository, [repository.parent / f"{name}.onnx" for name in ("first", "middle", "last")])
    steps = (("first", "x", source.name, "y", "a"), ("middle", source.name, "a", result.name, "b"),
             ("last", "x", "b", "y", result.name))  # fmt: skip
    texts = [
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "{x}" value: "{a}" }} '
        f'output_map {{ key: "{y}" value: "{b}" }} }}'
        for name, x, a, y, b in steps
    ]
    ends = [
        f'{kind} {{ name: "{value.name}" data_type: TYPE_FP32 dims: '
        f"{[dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim[1:]]} }}"
        for kind, value in (("input", source), ("output", result))
    ]
    (repository / "model" / "1").mkdir(parents=True)
    lines = ['platform: "ensemble"', "max_batch_size: 64", *ends, f"ensemble_scheduling {{ {' '.join(texts)} }}"]
    (repository / "model" / "config.pbtxt").write_text("\n".join(lines))


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
        group: The mark of its processes, see :func:`processes`.
        seconds: Time from its start until it was ready.
        processor: Processor time of the group until then, in seconds.
    """

    group: str
    seconds: float
    processor: float


class StartError(RuntimeError):
    """A server that ended, or did not become ready in time."""


@contextlib.contextmanager
def running(words: list[str], http: int, pause: float = 0.1, processors: str = "0") -> Iterator[Running]:
    """Start a server on the first processor, wait until it is ready, and yield it.

    Args:
        words: The command.
        http: Its port of HTTP.
        pause: Seconds between two looks.
        processors: Its processors, as `taskset` names them.

    Raises:
        StartError: The server ended, or did not become ready in time.
    """
    group = secrets.token_hex(16)
    with tempfile.TemporaryFile() as log:
        begin = time.monotonic()
        process = subprocess.Popen(
            ["taskset", "-c", processors, *words],
            stdout=log,
            stderr=log,
            env={**installed(), _MARK: group},
            start_new_session=True,
        )
        try:
            while True:
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=1) as reply,
                ):
                    if reply.status == 200:
                        break
                if process.poll() is not None or time.monotonic() > begin + 300:
                    log.seek(0)
                    raise StartError(log.read().decode(errors="replace").strip()[-2000:])
                time.sleep(pause)
            yield Running(group, time.monotonic() - begin, processor_seconds(group))
        finally:
            while started := processes(group):
                for entry in started:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(entry.name), signal.SIGKILL)
                process.poll()


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


def processes(group: str) -> list[Path]:
    """Return the folders in /proc of all processes of a server, by their environment.

    Some servers start processes in sessions and groups of their own.
    """
    mark, marked = f"{_MARK}={group}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    marked.append(entry)
    return marked


def processor_seconds(group: str) -> float:
    """Return the processor time of all processes of a server."""
    ticks = 0
    for entry in processes(group):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def proportional_memory(group: str) -> float:
    """Return the memory of a server in MB; a shared page counts by the share of each process."""
    total = 0
    for entry in processes(group):
        with contextlib.suppress(OSError):
            lines = (entry / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
