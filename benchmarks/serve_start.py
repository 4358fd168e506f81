"""Start-up of servers: time, processor time and memory until ready, and the memory of 4 workers."""

from __future__ import annotations

import os
import shlex
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serve_peers import free_port
from serve_servers import proportional_memory, running, small_model, write_repository

WIDE = 3072
"""Width of the two products of the large model: 75 MB of weights."""


def measure(peers: list[str], rounds: int) -> list[dict[str, Any]]:
    """Measure this server, and Triton where it is named and its command is known."""
    rows = []
    servers = ["sardonyx", *(peer for peer in peers if peer == "triton" and os.environ.get("TRITON_COMMAND"))]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for count in (1, 50):
            repository = folder / str(count)
            models = [folder / f"model{index}.onnx" for index in range(count)]
            for index, path in enumerate(models):
                small_model(path, index)
            write_repository(repository, models)
            for server in servers:
                starts = [start(server, repository) for _ in range(rounds + 1)][1:]
                rows.append({"server": server, "models": count, "workers": 1, **median(starts)})
        large = folder / "large"
        write_repository(large, [large_model(folder / "large.onnx")])
        for workers in (1, 4):
            starts = [start("sardonyx", large, workers) for _ in range(2)][1:]
            rows.append({"server": "sardonyx, 75 MB of weights", "models": 1, "workers": workers, **median(starts)})
    return rows


def median(starts: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(part[name] for part in starts) for name in starts[0]}


def start(server: str, repository: Path, workers: int = 1) -> dict[str, float]:
    """Start a server once; return time and processor time until it is ready, and its memory."""
    http, grpc = free_port(), free_port()
    if server == "triton":
        words = shlex.split(os.environ["TRITON_COMMAND"].format(repository=repository, http=http, grpc=grpc))
    else:
        words = [sys.executable, "-m", "sardonyx", "serve", str(repository), "--http", f"127.0.0.1:{http}",
                 "--threads", "1", "--workers", str(workers)]  # fmt: skip
    with running(words, http, pause=0.005) as started:
        if workers > 1:
            time.sleep(3.0)
        return {"ready s": started.seconds, "CPU s": started.processor, "PSS MB": proportional_memory(started.group)}


def large_model(path: Path) -> Path:
    """Write a model of two wide products with an open batch."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((WIDE, WIDE)) / WIDE**0.5).astype(np.float32), name)
        for name in ("v", "w")
    ]
    nodes = [helper.make_node("MatMul", ["x", "v"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path
