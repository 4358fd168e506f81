"""Images of mixed sizes, from 16 clients: as they are, and padded to the largest size."""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from serve_peers import free_port
from serve_servers import command, processor_seconds, running

CLIENTS = 16
SIDES = range(96, 321, 32)
"""Heights and widths: 64 sizes."""


def measure(model: Path | None, images: int, peers: list[str]) -> list[dict[str, Any]]:
    """Measure images a second.

    Args:
        model: A model of images with open height and width.
        images: The number of images.
        peers: Peers to measure; Triton alone is measured here.
    """
    if model is None:
        raise SystemExit("--ragged needs --model: a model of images with open height and width")
    name = onnx.load(model, load_external_data=False).graph.input[0].name
    rng = random.Random(0)
    sizes = [(rng.choice(SIDES), rng.choice(SIDES)) for _ in range(images)]
    largest = (max(SIDES), max(SIDES))
    rows: list[dict[str, Any]] = []
    servers = ["sardonyx", *(peer for peer in peers if peer == "triton")]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        target = folder / "model.onnx"
        target.write_bytes(model.read_bytes())
        for server in servers:
            http_port, grpc_port = free_port(), free_port()
            words = command(server, target, folder, http_port, grpc_port)
            if words is None:
                print(f"{server} is not installed: left out")
                continue
            for way in ("as they are", *(("padded",) if server == "triton" else ())):
                with running(words, http_port) as started:
                    bodies = {size: request(name, size if way != "padded" else largest) for size in set(sizes)}
                    first, second = [passes(http_port, bodies) for _ in range(2)]
                    before = processor_seconds(started.group)
                    seconds = send(http_port, [bodies[size] for size in sizes])
                    rows.append({
                        "server": server, "images": way, "images/s": images / seconds,
                        "CPU ms an image": (processor_seconds(started.group) - before) / images * 1e3,
                        "first / second request of a size": statistics.median(
                            first[size] / second[size] for size in bodies
                        ),
                    })  # fmt: skip
    for row in rows:
        row["rate, ours / its"] = rows[0]["images/s"] / row["images/s"]
    return rows


def request(name: str, size: tuple[int, int]) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request with binary tensors."""
    image = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32)
    tensor = {"name": name, "datatype": "FP32", "shape": list(image.shape),
              "parameters": {"binary_data_size": image.nbytes}}  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    fields = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return head + image.tobytes(), fields


def post(connection: http.client.HTTPConnection, body: tuple[bytes, dict[str, str]]) -> None:
    connection.request("POST", "/v2/models/model/infer", *body)
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {text[:300]!r}")


def passes(port: int, bodies: dict[tuple[int, int], tuple[bytes, dict[str, str]]]) -> dict[tuple[int, int], float]:
    """Send each size once, alone; return seconds by size."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seconds = {}
    for size, body in bodies.items():
        begin = time.perf_counter()
        post(connection, body)
        seconds[size] = time.perf_counter() - begin
    connection.close()
    return seconds


def send(port: int, bodies: list[tuple[bytes, dict[str, str]]]) -> float:
    """Send all bodies from 16 clients on the second processor; return the seconds."""
    iterator, lock, errors = iter(bodies), threading.Lock(), []

    def client() -> None:
        os.sched_setaffinity(threading.get_native_id(), {1})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            while True:
                with lock:
                    body = next(iterator, None)
                if body is None:
                    return
                post(connection, body)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - begin
