"""Optimizer runs in child processes: a crash, a hang or full memory is a row of the table.

A `Worker` is a child process that has imported one tool and optimizes one file per request. Alternating requests to
several workers give alternating runs, each with its own heap and its own peak.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import peers

TIMEOUT_SECONDS = 120.0
ADDRESS_SPACE_BYTES = 12 << 30
RESET_PEAK = "5"
"""Text for clear_refs that resets the recorded peak of the process to its current memory."""


@dataclass(frozen=True)
class Run:
    """One optimization from file to file.

    Attributes:
        seconds: Wall time, without the import.
        peak_bytes: Maximum memory of the worker, above its memory after the import.
        children_peak_bytes: Maximum memory of one of the worker's child processes, which starts with the worker's own.
        failure: The reason for a missing result.
        processor_seconds: Processor time of the process.
    """

    seconds: float | None = None
    peak_bytes: int | None = None
    children_peak_bytes: int | None = None
    failure: str | None = None
    processor_seconds: float | None = None


class Worker:
    """A child process with one tool imported; its first run is the warm-up."""

    def __init__(self, tool: str, timeout: float = TIMEOUT_SECONDS) -> None:
        self.command = [sys.executable, __file__, tool]
        self.timeout = timeout

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            pipe = subprocess.PIPE
            self.child = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True)
            stack.callback(self.stop)
            self.opened = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.opened.close()

    def stop(self) -> None:
        self.child.kill()
        self.child.communicate()

    def run(self, source: Path, result: Path) -> Run:
        """Optimize `source` into `result`; a failure is returned, never raised."""
        result.parent.mkdir(parents=True, exist_ok=True)
        result.unlink(missing_ok=True)
        try:
            self.child.stdin.write(f"{json.dumps([str(source), str(result)])}\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            return Run(failure=self.last_words())
        ready, _, _ = select.select([self.child.stdout], [], [], self.timeout)
        if not ready:
            self.child.kill()
            return Run(failure=f"did not end within {self.timeout:.0f} s")
        reply = self.child.stdout.readline()
        if not reply:
            return Run(failure=self.last_words())
        run = Run(**json.loads(reply))
        return run if run.failure or result.exists() else Run(failure="wrote no model")

    def last_words(self) -> str:
        """Return the reason for the end of the process: the signal, or the last line of its output."""
        code = self.child.wait()
        if code < 0:
            return f"crashed: {signal.Signals(-code).name}"
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"ended with exit code {code}"])[-1][:300]


class Workers:
    """One worker for each tool, reused for all models; a failing worker is replaced. A context manager."""

    def __init__(self) -> None:
        self.idle: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self.idle.values():
            worker.__exit__(*exception)
        self.idle.clear()

    def run(self, tool: str, source: Path, result: Path) -> Run:
        """Run the tool once in its worker."""
        worker = self.idle.pop(tool, None) or Worker(tool).__enter__()
        run = worker.run(source, result)
        if run.failure:
            worker.__exit__(None, None, None)
        else:
            self.idle[tool] = worker
        return run


def run_once(tool: str, source: Path, result: Path, timeout: float = TIMEOUT_SECONDS) -> Run:
    """Run the tool once in a new process."""
    with Worker(tool, timeout) as worker:
        return worker.run(source, result)


def resident_bytes(field: str) -> int:
    """Return a field of Linux's memory statistics of this process: VmRSS (current) or VmHWM (peak).

    The peak of `getrusage` includes the parent's, which exec passes on to the child.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE).group(1)) * 1024


def serve(tool: str) -> None:
    """Serve requests, lines with two paths, by lines with a `Run`, in the child process."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    optimize = peers.TOOLS[tool].load()
    Path("/proc/self/clear_refs").write_text(RESET_PEAK)
    imported = resident_bytes("VmRSS")
    for request in sys.stdin:
        source, result = map(Path, json.loads(request))
        gc.collect()
        begin, busy = time.perf_counter(), time.process_time()
        try:
            optimize(source, result)
        except Exception as error:  # the tools' errors have no base class of their own
            reason = " ".join(str(error).split()).replace(f"{source.parent}/", "")
            reply = Run(failure=f"{type(error).__name__}: {reason[:300]}")
        else:
            seconds, busy = time.perf_counter() - begin, time.process_time() - busy
            children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
            reply = Run(seconds, resident_bytes("VmHWM") - imported, children, processor_seconds=busy)
        print(json.dumps(asdict(reply)), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
