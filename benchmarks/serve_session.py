"""A server beside `session.run` without a server: the same rows, in turns, on the same processor.

Run by `benchmarks/serve.py --session`. Both processes live through the whole measurement, one of them idle at a time. A
turn is a number of requests, not a time: a window of time would cut requests of some ten milliseconds at both ends.
A server with several clients merges their rows, so that it is also compared with runs of as many rows as clients, if
the model has an open batch. The
columns are the time of a row without a server over that with one, medians of the pairs: 1 is a server without cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import serve_open_loop
from serve_load import Load
from serve_peers import free_port
from serve_servers import command, has_open_batch, installed, processor_seconds, running

SESSION = """
import json, sys, time
import numpy as np
import sardonyx
path, data = sys.argv[1:]
session = sardonyx.Session(path, threads=1, compile="wait")
name, row = session.get_inputs()[0].name, np.load(data)
for line in sys.stdin:
    rows, runs = map(int, line.split())
    x = np.repeat(row, rows, axis=0)
    begin, processor = time.perf_counter(), time.process_time()
    for _ in range(runs): session.run(None, {name: x})
    print(json.dumps([time.perf_counter() - begin, time.process_time() - processor]), flush=True)
"""


class Session:
    """A process that runs a session of one thread on command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, rows: int, runs: int) -> tuple[float, float]:
        """Run some times; return the time and the processor time of a row in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rows} {runs}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process of the session has ended")
        seconds, processor = json.loads(line)
        return seconds / (rows * runs), processor / (rows * runs)


@contextlib.contextmanager
def session(model: Path, data: Path) -> Iterator[Session]:
    words = ["taskset", "-c", "0", sys.executable, "-c", SESSION, str(model), str(data)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=installed()
    ) as process:  # fmt: skip
        try:
            yield Session(process)
        finally:
            process.kill()


class Client(serve_open_loop.Connection):
    """A connection that sends its next request at once."""

    def __init__(self, sender: Any, request: bytes, number: int) -> None:
        super().__init__(sender)
        self._request = request
        self.left = number

    def send(self) -> None:
        self.left -= 1
        self.transport.write(self._request)


class Turn:
    """Requests of several clients, each of which sends a number of them, one after another."""

    def __init__(self, clients: int) -> None:
        self.lost = 0
        self.failed = 0
        self._open = clients
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def finished(self, connection: Client, is_good: bool) -> None:
        self.failed += not is_good
        if connection.left:
            connection.send()
            return
        self._open -= 1
        if not self._open and not self._end.done():
            self._end.set_result(None)

    async def run(self, clients: list[Client]) -> float:
        begin = time.perf_counter()
        for client in clients:
            client.send()
        await asyncio.wait_for(self._end, 300)
        return time.perf_counter() - begin


def turn(port: int, request: bytes, clients: int, number: int) -> float:
    """Let clients send requests over HTTP; return the seconds until the last answer.

    Raises:
        RuntimeError: An answer failed.
    """

    async def run() -> float:
        state = Turn(clients)
        loop = asyncio.get_running_loop()
        connections = []
        for _ in range(clients):
            _, one = await loop.create_connection(lambda: Client(state, request, number), "127.0.0.1", port)
            connections.append(one)
        seconds = await state.run(connections)
        if state.failed or state.lost:
            raise RuntimeError(f"{state.failed + state.lost} answers failed")
        for one in connections:
            one.transport.close()
        return seconds

    return asyncio.run(run())


def measure(model: Path, protocols: list[str], clients: list[int], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Return medians of paired ratios, `session.run` to a server, of the time and processor time of a row.

    Args:
        model: The model.
        protocols: Protocols over HTTP.
        clients: Numbers of clients.
        seconds: About the time of a turn.
        rounds: Turns of each.
    """
    import numpy as np

    folder = model.parent
    load = Load(model, folder)
    np.save(folder / "row.npy", load.row)
    http, grpc = free_port(), free_port()
    words = command("sardonyx", model, folder, http, grpc)
    if words is None:
        raise RuntimeError("the packages of the extra serve are not installed")
    results, has_batches = [], has_open_batch(model)
    with running(words, http) as server, session(model, folder / "row.npy") as alone:
        alone.run(1, 3)
        cost = alone.run(1, 3)[0]
        for proto in protocols:
            request = load.request(proto).read_bytes()
            for count in clients:
                runs = max(4, round(seconds / cost / count))
                turn(http, request, count, max(2, runs // 2))
                ratios: dict[str, list[float]] = {}
                for number in range(rounds):
                    # The first of a round alternates, so that a machine that slows down favours neither.
                    parts: dict[str, tuple[float, float]] = {}
                    for name in ("server", "row", "batch")[:: 1 if number % 2 else -1]:
                        if name == "server":
                            before = processor_seconds(server.group)
                            elapsed = turn(http, request, count, runs)
                            used = processor_seconds(server.group) - before
                            parts[name] = elapsed / (runs * count), used / (runs * count)
                        elif name == "row":
                            parts[name] = alone.run(1, runs * count)
                        elif count > 1 and has_batches:
                            parts[name] = alone.run(count, runs)
                    for name in parts.keys() - {"server"}:
                        for kind, index in (("time", 0), ("processor", 1)):
                            ratio = parts[name][index] / parts["server"][index]
                            ratios.setdefault(f"{name} {kind}", []).append(ratio)
                result: dict[str, Any] = {"proto": proto, "clients": count, "requests": runs * count}
                for name in ("row time", "row processor", "batch time", "batch processor"):
                    result[name] = statistics.median(ratios[name]) if name in ratios else math.nan
                results.append(result)
    return results
