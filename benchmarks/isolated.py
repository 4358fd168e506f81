"""Optimizer runs in processes of their own: a crash, a hang or a full memory is a row of the table, not its end.

A `Worker` is a child process that has imported one tool and optimizes a file each time it is asked to. Several workers
asked in turn give alternating runs, each with its own heap and its own peak.
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
"""Written to clear_refs, it lowers the recorded peak of the process to what it holds."""


@dataclass(frozen=True)
class Run:
    """One optimization from file to file.

    Attributes:
        seconds: Wall time, import left out.
        processor_seconds: What the process took of processors meanwhile, whatever else the machine did.
        peak_bytes: The most memory the worker ever held, above what it held once the tool was imported.
        children_peak_bytes: The most memory that one of the worker's own child processes ever held, or the worker
            itself when it started that child.
        failure: Why there is no result.
    """

    seconds: float | None = None
    peak_bytes: int | None = None
    children_peak_bytes: int | None = None
    failure: str | None = None
    processor_seconds: float | None = None


class Worker:
    """A child process with one tool imported; the first run in it is the warm-up."""

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
        """Why the process ended by itself: the signal, or the last line it wrote."""
        code = self.child.wait()
        if code < 0:
            return f"crashed: {signal.Signals(-code).name}"
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [f"ended with exit code {code}"])[-1][:300]


class Workers:
    """One worker a tool, kept from model to model, and another in place of one that fails. A context manager."""

    def __init__(self) -> None:
        self.kept: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self.kept.values():
            worker.__exit__(*exception)
        self.kept.clear()

    def run(self, tool: str, source: Path, result: Path) -> Run:
        """One run in the tool's worker."""
        worker = self.kept.pop(tool, None) or Worker(tool).__enter__()
        run = worker.run(source, result)
        if run.failure:
            worker.__exit__(None, None, None)
        else:
            self.kept[tool] = worker
        return run


def run_once(tool: str, source: Path, result: Path, timeout: float = TIMEOUT_SECONDS) -> Run:
    """One run in a fresh process."""
    with Worker(tool, timeout) as worker:
        return worker.run(source, result)


def resident_bytes(field: str) -> int:
    """A field of Linux's account of this process's memory: VmRSS, held now, or VmHWM, the most ever held.

    `getrusage` would not do: its peak passes from the parent to the child through exec.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE).group(1)) * 1024


def serve(tool: str) -> None:
    """The child's side: a request is a line with two paths, the reply a line with a `Run`."""
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
