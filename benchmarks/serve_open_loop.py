"""Latency at a given rate: an open loop, whose requests are due at random times.

Run by `benchmarks/serve.py --rate`; as a program, it sends the requests of one file to one port and prints JSON.

    python benchmarks/serve_open_loop.py PORT FILE --rate 1000 --seconds 5 --connections 64

Latency counts from the moment at which a request was due, so that a server that stalls is charged for all requests that
were due meanwhile. The sender polls without sleep: give it a processor of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """A connection with at most one request; answers are counted by their length."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._received = b""
        self.due = 0.0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        length = _LENGTH.search(self._received, 0, end)
        if len(self._received) < end + 4 + (int(length[1]) if length else 0):
            return
        is_good = self._received.startswith(b"HTTP/1.1 200")
        self._received = b""
        self._sender.finished(self, is_good)

    def connection_lost(self, error: Exception | None) -> None:
        self._sender.lost += 1


class Sender:
    """Requests at random times of a mean rate (a Poisson process)."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._free: deque[Connection] = deque()
        self.latencies: list[float] = []
        self.failed = 0
        self.lost = 0

    def finished(self, connection: Connection, is_good: bool) -> None:
        self.latencies.append(time.perf_counter() - connection.due)
        self.failed += not is_good
        self._free.append(connection)

    async def run(self, port: int, rate: float, seconds: float, connections: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
            self._free.append(connection)
        gaps = np.random.default_rng(0).exponential(1 / rate, round(rate * seconds))
        begin = time.perf_counter()
        due = deque((begin + np.cumsum(gaps)).tolist())
        expected = len(due)
        end = begin + 4 * seconds + 5
        while len(self.latencies) < expected and not self.lost:
            now = time.perf_counter()
            if now > end:
                raise RuntimeError(f"{expected - len(self.latencies)} of {expected} answers are missing")
            while due and due[0] <= now and self._free:
                connection = self._free.popleft()
                connection.due = due.popleft()
                connection.transport.write(self._request)
            await asyncio.sleep(0)
        if self.lost:
            raise RuntimeError("the server closed a connection")


def measure(port: int, request: Path, rate: float, seconds: float, connections: int = 64) -> dict[str, float]:
    """Send requests from the second processor; return the rate and percentiles of latency in ms.

    Raises:
        RuntimeError: An answer failed or is missing.
    """
    words = ["taskset", "-c", "1", sys.executable, __file__, str(port), str(request), "--rate", str(rate),
             "--seconds", str(seconds), "--connections", str(connections)]  # fmt: skip
    outcome = subprocess.run(words, capture_output=True, text=True)
    if outcome.returncode:
        raise RuntimeError(outcome.stderr[-2000:])
    result: dict[str, float] = json.loads(outcome.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("request", type=Path, help="a file with the bytes of one HTTP request")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args()
    import uvloop

    sender = Sender(arguments.request.read_bytes())
    uvloop.run(sender.run(arguments.port, arguments.rate, arguments.seconds, arguments.connections))
    if sender.failed:
        raise RuntimeError(f"{sender.failed} of {len(sender.latencies)} answers failed")
    # The first tenth warms up.
    ms = np.array(sender.latencies[len(sender.latencies) // 10 :]) * 1e3
    p50, p99 = np.percentile(ms, (50, 99))
    print(json.dumps({"rate": arguments.rate, "answers": len(ms), "p50_ms": p50, "p99_ms": p99}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
