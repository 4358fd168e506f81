"""Several processes on one port: started, watched and ended by one supervisor."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from sardonyx.errors import OptionError, ResourceError

WORKER = "SARDONYX_SERVE_WORKER"
"""The environment variable of a worker: its index."""

_GROUP = "SARDONYX_SERVE_GROUP"
"""The environment variable of the folder in which the workers agree on changes."""

_READY = "SARDONYX_SERVE_READY"
"""The environment variable of the first worker: the pipe that it writes to when the others may start."""

_LEAST_SECONDS = 1.0
"""A worker that ends earlier than this after its start is started again with a pause."""

_SERVING_SECONDS = 3.0
"""A worker that lives longer than this serves; then a refused start of another is repeated, in steps of this time."""

_FAILED_STARTS = 5

_PATH = 60
"""Longest path of the folder of temporary files: the system limits the path of a socket to 108 bytes."""


def is_worker() -> bool:
    """Return True in a process that a supervisor started."""
    return WORKER in os.environ


def group_folder() -> Path | None:
    """Return the folder in which the workers agree on changes; None in another process, or if nothing changes."""
    folder = os.environ.get(_GROUP)
    return Path(folder) if folder and is_worker() else None


def stop_with_supervisor(stop: Callable[[], object]) -> None:
    """Call a function when the supervisor has gone: its end of this process's standard input is closed.

    The folder of the group is removed first: a supervisor that was killed has left it.
    """

    def watch() -> None:
        while os.read(0, 1024):
            pass
        folder = group_folder()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        stop()

    threading.Thread(target=watch, name="sardonyx-serve-supervisor", daemon=True).start()


def let_others_start() -> None:
    """Tell the supervisor, in its first worker, that the compiled models are stored; do nothing in another process.

    Later workers load the stored models and share the memory of their weights, where each would compile its own copy.
    """
    descriptor = os.environ.pop(_READY, None)
    if descriptor is None:
        return
    from sardonyx.runtime.compiled.program_cache import finish_writing

    def tell() -> None:
        finish_writing()
        os.close(int(descriptor))

    threading.Thread(target=tell, name="sardonyx-serve-ready", daemon=True).start()


def reserve_port(host: str, port: int) -> socket.socket:
    """Return a socket that holds a port for workers, without listening.

    Raises:
        ResourceError: The address is in use, or the system lacks ``SO_REUSEPORT``.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ResourceError("the system cannot share a port between processes.", where="--workers")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
    except OSError as error:
        holder.close()
        raise ResourceError(f"the address cannot be used: {error.strerror}.", where=f"{host}:{port}") from error
    return holder


class Supervisor:
    """Starts workers, starts a worker anew that ends unexpectedly, and ends all of them on a signal.

    Args:
        arguments: The arguments of a worker, after ``python -m sardonyx``.
        workers: The number of workers.
        drain_seconds: Seconds that workers have to end.
        can_change: True if clients may change models, in all workers at once.
    """

    def __init__(self, arguments: Sequence[str], workers: int, drain_seconds: float, can_change: bool = False) -> None:
        if workers < 1:
            raise OptionError(f"expected at least 1 worker, got {workers}.", where="--workers")
        self._arguments = list(arguments)
        self._drain_seconds = drain_seconds
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self._starts = [0.0] * workers
        self._failures = 0
        self._stopping = 0
        self._can_change = can_change
        self._group: Path | None = None

    def run(self) -> int:
        """Run until a signal ends the workers; return the exit code.

        A second signal ends them at once.
        """
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        if self._can_change:
            # Only this user may enter the folder. The path of a socket is short, that of temporary files may not be.
            folder = tempfile.gettempdir()
            self._group = Path(tempfile.mkdtemp(prefix="sardonyx-", dir=folder if len(folder) < _PATH else "/tmp"))
        try:
            self._start_first()
            for index in range(1, len(self._workers)):
                if not self._stopping:
                    self._start(index)
            while not self._stopping:
                if (code := self._watch()) is not None:
                    return code
                time.sleep(0.05)
            return self._end()
        finally:
            for worker in self._workers:
                if worker is not None and worker.poll() is None:
                    worker.kill()
                    worker.wait()
            if self._group is not None:
                shutil.rmtree(self._group, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start_first(self) -> None:
        """Start the first worker, and wait until its models are stored, or it or this process ends."""
        if len(self._workers) == 1:
            self._start(0)
            return
        reader, writer = os.pipe()
        try:
            self._start(0, writer)
            os.close(writer)
            while not self._stopping and not select.select([reader], [], [], 0.05)[0]:
                pass
        finally:
            os.close(reader)

    def _start(self, index: int, ready: int | None = None) -> None:
        self._starts[index] = time.monotonic()
        environment = {**os.environ, WORKER: str(index)} | ({} if ready is None else {_READY: str(ready)})
        if self._group is not None:
            environment[_GROUP] = str(self._group)
        self._workers[index] = subprocess.Popen(
            [sys.executable, "-m", "sardonyx", *self._arguments], stdin=subprocess.PIPE, env=environment,
            pass_fds=() if ready is None else (ready,),
        )  # fmt: skip

    def _watch(self) -> int | None:
        """Start ended workers anew; return an exit code if all end again and again right after their start.

        While another worker serves, a refused start, e.g. because the model file is being replaced, is repeated.
        """
        now = time.monotonic()
        serving = any(
            worker is not None and worker.poll() is None and now - start > _SERVING_SECONDS
            for worker, start in zip(self._workers, self._starts, strict=True)
        )
        for index, worker in enumerate(self._workers):
            if worker is None or worker.poll() is None:
                continue
            is_refused = worker.returncode == 2
            if is_refused and serving:
                if now - self._starts[index] < _SERVING_SECONDS:
                    continue
            elif now - self._starts[index] < _LEAST_SECONDS or is_refused:
                self._failures += 1
                if self._failures >= _FAILED_STARTS or is_refused:
                    return 2 if is_refused else 1
            else:
                self._failures = 0
            self._start(index)
        return None

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping += 1
        for worker in self._workers:
            if worker is not None and worker.poll() is None:
                worker.send_signal(signal.SIGTERM)

    def _end(self) -> int:
        end = time.monotonic() + self._drain_seconds + 5.0
        while time.monotonic() < end and any(worker is not None and worker.poll() is None for worker in self._workers):
            time.sleep(0.02)
        codes = [None if worker is None else worker.poll() for worker in self._workers]
        return 0 if all(code == 0 for code in codes) else 1
