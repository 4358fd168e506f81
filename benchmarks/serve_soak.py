"""A server of eight models for an hour at a low rate: changes under clients, and what they leave.

    python benchmarks/serve_soak.py --minutes 60 [--rate 20] [--reloads 100] [--weights 1000] [--edits 50]

`sardonyx serve` runs as a process of its own on a folder of models. Clients of JSON, binary tensors and gRPC ask all
models; connections stay for some requests and end in any state: after an answer, within a head, within a body, before
the answer is read. A part of the requests is malformed, and must be refused. Meanwhile models are loaded again (by the
control extension, and by a file that polling finds), get new weights, are edited, and the edits are undone; the
changes are spread evenly over the time.

Answers are checked: both outputs of an edited model are one weight's, a weight that it had; others equal the first
answer to the bit. Resident memory, open descriptors and threads of the server are read once a second. After the first
third of the time memory must not grow by more than 2 %, and descriptors and threads must not grow at all once the
clients are gone. The last line is JSON; the exit code is 0 if no check failed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx import demo
from sardonyx.serve.client import Client

CLIENTS = 6
"""Threads that ask; a connection of each lives for some requests."""

EDITED = ("a", "b", "c")
FIXED = ("words", "gathered", "ragged", *demo.names())

TEXTS = {
    "edited": "net (float[N, W] x) => (float[N, W] y, float[N, W] z) <float a = {1}, float b = {1}>"
    " { y = Mul(x, a) z = Mul(x, b) }",
    "words": "net (string[N, 2] x) => (string[N, 2] y) { y = Identity(x) }",
    "gathered": "net (float[N, 4] x, int64[N, 1] i) => (float[N, 1] y) { y = GatherElements <axis = 1> (x, i) }",
    "ragged": "net (float[N, 3, H] x) => (float[N, 3, 1] y) <int64[1] axes = {2}> { y = ReduceMean(x, axes) }",
}

MALFORMED = (
    b"",
    b"{",
    b'{"inputs":[]}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,-4],"data":[1]}]}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3]}]}',
    b'{"inputs":[{"name":"q","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}',
    b"[" * 5000,
)

GROWTH = 0.02
"""Limit of the growth of resident memory, relative to the memory after the first third of the time."""


def write(name: str, path: Path, value: float = 1.0) -> None:
    """Write a model; `value` is the weight of an edited one."""
    if name in demo.names():
        shutil.copy(demo.path(name), path)
        return
    text = TEXTS["edited" if name in EDITED else name].replace("{1}", f"{{{value}}}")
    part = path.with_suffix(".part")
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}'), part)
    part.replace(path)


@contextlib.contextmanager
def server(root: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run the server; yield the process and its announcement."""
    words = [sys.executable, "-m", "sardonyx", "serve", str(root), "--json", "--threads", "1", "--control", "edit",
             "--poll", "1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the server ended with {process.wait()}")
                text += line
            yield process, json.loads(text)
        finally:
            process.kill()


class State:
    """Counts, failures, and the values that the weights of edited models had."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.seconds: list[float] = []
        self.values: dict[str, set[float]] = {name: {1.0} for name in EDITED}
        self.first: dict[tuple[str, int], list[np.ndarray]] = {}
        self.over = threading.Event()
        self.lock = threading.Lock()

    def fail(self, text: str) -> None:
        with self.lock:
            self.errors.append(text[:300])


def inputs(name: str, number: int) -> dict[str, np.ndarray]:
    """Return the inputs of one of 16 requests to a model."""
    rng = np.random.default_rng(number)
    rows = 1 + number % 5
    if name in demo.names():
        image = demo.inputs(name)["image"]
        begin = number % (len(image) - rows)
        return {"image": np.ascontiguousarray(image[begin : begin + rows])}
    if name == "words":
        return {"x": np.array([[f"{number} ü", "b" * (number * 7)]] * rows, object)}
    if name == "gathered":
        return {"x": rng.random((rows, 4), np.float32), "i": rng.integers(0, 4, (rows, 1))}
    if name == "ragged":
        return {"x": rng.random((rows, 3, 1 + number), np.float32)}
    return {"x": np.ones((rows, 1 + number % 3), np.float32)}


class Asker(threading.Thread):
    """A client: draws models, protocols, malformed requests, and connections that end in any state."""

    def __init__(self, number: int, state: State, http_port: int, grpc_port: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._draw = random.Random(number)
        self._state = state
        self._http, self._grpc = http_port, grpc_port
        self._pause = CLIENTS / rate
        self._kinds = ["binary"] * 5 + ["json"] * 5 + ["call"] * 4 + ["malformed", "abandoned"]

    def run(self) -> None:
        """Ask until the time is over."""
        while not self._state.over.is_set():
            client = Client(f"http://127.0.0.1:{self._http}", retries=0)
            try:
                for _ in range(self._draw.randint(1, 40)):
                    if self._state.over.wait(self._draw.expovariate(1 / self._pause)):
                        break
                    self._once(client)
            finally:
                client.close()

    def _once(self, client: Client) -> None:
        kind = self._draw.choice(self._kinds)
        name, number = self._draw.choice(EDITED * 2 + FIXED), self._draw.randrange(16)
        begin = time.perf_counter()
        try:
            if kind == "malformed":
                self._malformed(name)
            elif kind == "abandoned":
                self._abandoned(name)
            else:
                self._check(name, number, getattr(self, f"_{kind}")(client, name, inputs(name, number)))
                self._state.seconds.append(time.perf_counter() - begin)
            self._state.counts[kind] += 1
        except Exception as error:
            self._state.fail(f"{kind} {name} {number}: {type(error).__name__}: {error}")

    def _binary(self, client: Client, name: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return list(client.infer(name, feeds).outputs.values())

    def _json(self, client: Client, name: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        kinds = {"O": "BYTES", "f": "FP32", "i": "INT64"}
        parts = [
            {"name": key, "datatype": kinds[x.dtype.kind], "shape": list(x.shape), "data": x.ravel().tolist()}
            for key, x in feeds.items()
        ]
        answer = client.post(f"/v2/models/{name}/infer", {"inputs": parts})
        types = {"BYTES": object, "FP32": np.float32, "INT64": np.int64}
        return [np.array(o["data"], types[o["datatype"]]).reshape(o["shape"]) for o in answer["outputs"]]

    def _call(self, client: Client, name: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        import tritonclient.grpc as triton

        values = []
        for key, x in feeds.items():
            kind = {"O": "BYTES", "f": "FP32", "i": "INT64"}[x.dtype.kind]
            value = triton.InferInput(key, list(x.shape), kind)
            value.set_data_from_numpy(x)
            values.append(value)
        with triton.InferenceServerClient(f"127.0.0.1:{self._grpc}") as client:
            result = client.infer(name, values, client_timeout=60)
            arrays = [result.as_numpy(output.name) for output in result.get_response().outputs]
        return [np.vectorize(bytes.decode, otypes=[object])(a) if a.dtype == object else a for a in arrays]

    def _check(self, name: str, number: int, answer: list[np.ndarray]) -> None:
        if name in EDITED:
            y, z = (np.unique(np.abs(part)) for part in answer)
            if len(y) != 1 or len(z) != 1 or y[0] != z[0] or float(y[0]) not in self._state.values[name]:
                self._state.fail(f"mixed: {name} answered {y.tolist()} and {z.tolist()}")
            return
        with self._state.lock:
            first = self._state.first.setdefault((name, number), answer)
        for one, other in zip(answer, first, strict=True):
            # Rows of several requests may be computed at once: the last bits depend on their number.
            is_equal = np.array_equal(one, other) if one.dtype == object else np.allclose(one, other, 1e-4, 1e-4)
            if not is_equal:
                self._state.fail(f"wrong: {name} {number}")

    def _malformed(self, name: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=30)
        try:
            connection.request("POST", f"/v2/models/{name}/infer", self._draw.choice(MALFORMED))
            status = connection.getresponse().status
        finally:
            connection.close()
        if not 400 <= status < 500:
            self._state.fail(f"malformed: status {status}")

    def _abandoned(self, name: str) -> None:
        """Send a part of a request, or all of it, and go."""
        body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}'
        head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        whole = head + body if self._draw.random() < 0.7 else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
        port = self._http if whole.startswith(b"POST") else self._grpc
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(whole[: self._draw.randint(0, len(whole))])
            time.sleep(self._draw.choice((0, 0.01, 0.5)))
            if self._draw.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


class Changer(threading.Thread):
    """Changes the edited models, spread evenly over the time."""

    def __init__(self, state: State, root: Path, url: str, changes: list[str], seconds: float) -> None:
        super().__init__(daemon=True)
        self._state, self._root, self._client = state, root, Client(url)
        self._changes, self._seconds = changes, seconds
        self._number = 1

    def run(self) -> None:
        """Make the changes."""
        begin = time.monotonic()
        for index, kind in enumerate(self._changes):
            wait = begin + self._seconds * index / len(self._changes) - time.monotonic()
            if self._state.over.wait(max(wait, 0)):
                return
            name = EDITED[index % len(EDITED)]
            try:
                getattr(self, f"_{kind}")(name)
                self._state.counts[kind] += 1
            except Exception as error:
                self._state.fail(f"{kind} {name}: {type(error).__name__}: {error}")

    def _value(self, name: str) -> float:
        self._number += 1
        self._state.values[name].add(float(self._number))
        return float(self._number)

    def _weights(self, name: str) -> None:
        value = self._value(name)
        parts = [{"name": key, "datatype": "FP32", "shape": [], "data": [value]} for key in "ab"]
        self._client.post(f"/v2/models/{name}/weights", {"inputs": parts})

    def _edits(self, name: str) -> None:
        change = {"verb": "insert_after", "tensor": "y", "op": "Neg", "name": f"negative_{self._number}"}
        self._client.post(f"/v2/models/{name}/edit", [change])
        self._number += 1
        self._client.post(f"/v2/models/{name}/undo")

    def _loads(self, name: str) -> None:
        self._client.post(f"/v2/repository/models/{name}/load")

    def _files(self, name: str) -> None:
        write(name, self._root / f"{name}.onnx", self._value(name))


def used(pid: int) -> tuple[int, int, int]:
    """Return resident bytes, open descriptors and threads of a process."""
    process = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, len(list((process / "fd").iterdir())), int(fields["Threads"])


def drawn_changes(options: argparse.Namespace) -> list[str]:
    kinds = ["weights"] * options.weights + ["edits"] * options.edits
    kinds += ["loads"] * (options.reloads // 2) + ["files"] * (options.reloads - options.reloads // 2)
    random.Random(0).shuffle(kinds)
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=20, help="requests a second of all clients")
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--weights", type=int, default=1000)
    parser.add_argument("--edits", type=int, default=50, help="edits, each of which is undone")
    options = parser.parse_args()
    seconds = options.minutes * 60
    state = State()
    with tempfile.TemporaryDirectory() as text:
        root = Path(text)
        for name in EDITED + FIXED:
            write(name, root / f"{name}.onnx")
        with server(root) as (process, announced):
            grpc_port = int(announced["grpc"])
            url = announced["http"]
            idle = used(process.pid)
            askers = [Asker(n, state, int(url.rpartition(":")[2]), grpc_port, options.rate) for n in range(CLIENTS)]
            changer = Changer(state, root, url, drawn_changes(options), seconds * 0.98)
            for thread in (*askers, changer):
                thread.start()
            samples = watched(process.pid, seconds, state)
            state.over.set()
            for thread in (*askers, changer):
                thread.join(90)
            time.sleep(3)
            last = used(process.pid)
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    return reported(state, samples, idle, last, code)


def watched(pid: int, seconds: float, state: State) -> list[tuple[int, int, int]]:
    """Read the process once a second until the time is over."""
    samples = []
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        time.sleep(1)
        samples.append(used(pid))
        if len(samples) % 60 == 1:
            resident, descriptors, threads = samples[-1]
            print(f"{(time.monotonic() - begin) / 60:4.0f} min  {resident / 1e6:7.1f} MB  {descriptors} descriptors  "
                  f"{threads} threads  {dict(state.counts)}  {len(state.errors)} errors", flush=True)  # fmt: skip
    return samples


def reported(
    state: State,
    samples: list[tuple[int, int, int]],
    idle: tuple[int, int, int],
    last: tuple[int, int, int],
    code: int,
) -> int:
    """Print the report; return the exit code."""
    resident = [sample[0] / 1e6 for sample in samples]
    window = max(len(resident) // 10, 1)
    middle = statistics.median(resident[len(resident) // 3 :][:window])
    end = statistics.median(resident[-window:])
    latencies = sorted(state.seconds)
    report = {
        "counts": dict(state.counts), "errors": len(state.errors), "first errors": state.errors[:5],
        "MB after a third": round(middle, 1), "MB at the end": round(end, 1), "growth": round(end / middle - 1, 4),
        "descriptors": [idle[1], last[1]], "threads": [idle[2], last[2]], "exit code": code,
        "p50 ms": round(latencies[len(latencies) // 2] * 1e3, 2),
        "p99 ms": round(latencies[len(latencies) * 99 // 100] * 1e3, 2),
    }  # fmt: skip
    print(json.dumps(report))
    # Ten threads: two of control and those of models, which begin with the first long run.
    is_good = end <= middle * (1 + GROWTH) and last[1] <= idle[1] + 2 and last[2] <= idle[2] + 10
    return 0 if is_good and not state.errors and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
