"""Child process for running models, which contains crashes, hangs and memory exhaustion of engines."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.evaluate import evaluate

RUN_SECONDS = 300.0
"""Time limit of one run of a model."""


END_SECONDS = 30.0
"""Time in which a process ends after it closed its output, e.g. while the system writes its memory to a file."""

REUSE_BYTES = 512 << 20
"""Peak memory above which a process is not reused."""


class Child:
    """One process that answers requests (see :mod:`sardonyx.rewrite.verify.worker`), from start to end."""

    def __init__(self) -> None:
        self._path = _import_path()
        self._is_busy = False
        self._peak = 0
        environment = dict(os.environ, PYTHONPATH=self._path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sardonyx.rewrite.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        os.set_blocking(self.process.stdin.fileno(), False)

    @classmethod
    def acquire(cls) -> Child:
        """Return the idle process if there is one, else a new one, which takes a second to start."""
        child = idle.pop(os.getpid(), None)
        if child is None:
            return cls()
        if child.process.poll() is None and child._path == _import_path():
            return child
        child.stop()
        return cls()

    def release(self) -> None:
        """Retain the child as idle process; end a busy or large one, and a second idle one."""
        reusable = not self._is_busy and self._peak <= REUSE_BYTES
        if not reusable or idle.setdefault(os.getpid(), self) is not self:
            self.stop()

    def stop(self) -> None:
        """Kill the process. A process that it started may still have the pipes open, and nobody waits for that."""
        process = self.process
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer; status ``ended`` if the process ended over the request or exceeded the limit."""
        self._is_busy = True  # After an exception, e.g. an interrupt, the answer is still outstanding.
        deadline = time.monotonic() + seconds
        try:
            self._write(json.dumps(request).encode() + b"\n", deadline)
            line = self._read_line(deadline)
        except TimeoutError:
            self.stop()
            return {"status": "ended", "reason": f"the run took more than {seconds:.0f} s"}
        except (BrokenPipeError, EOFError):
            return self._ended()
        self._is_busy = False
        answer = json.loads(line)
        self._peak = int(answer["peak_bytes"])
        return {"status": "ready", **answer}

    def _write(self, data: bytes, deadline: float) -> None:
        """Write to the process's standard input.

        Raises:
            TimeoutError: The process did not read all before the deadline.
        """
        assert self.process.stdin is not None
        descriptor = self.process.stdin.fileno()
        while data:
            _wait([], [descriptor], deadline)
            data = data[os.write(descriptor, data) :]

    def _read_line(self, deadline: float) -> bytes:
        """Return a line of the process's standard output.

        Raises:
            EOFError: The output ended.
            TimeoutError: No whole line came before the deadline.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        line = b""
        while not line.endswith(b"\n"):
            _wait([descriptor], [], deadline)
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise EOFError
            line += piece
        return line

    def _ended(self) -> dict[str, Any]:
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"status": "ended", "reason": "the evaluator closed its output and did not end"}
        self.stop()
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return {"status": "ended", "reason": f"the evaluator crashed (its process ended {cause})"}


def _wait(reading: Sequence[int], writing: Sequence[int], deadline: float) -> None:
    """Return when one of the descriptors is ready.

    Raises:
        TimeoutError: None was before the deadline.
    """
    while not any(select.select(reading, writing, [], max(0.0, deadline - time.monotonic()))[:2]):
        if time.monotonic() >= deadline:
            raise TimeoutError


def uses_own_operators(model: ir.Model) -> bool:
    """Return True if a node has a user-defined operator, unknown to other processes."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    return any(facts.is_users(node) for graph in graphs for node in facts.nodes_of(graph))


idle: dict[int, Child] = {}
"""Process id → idle child of the process."""


def _import_path() -> str:
    """Return the import path of this process, for a child."""
    return os.pathsep.join(path for path in sys.path if path)


@atexit.register
def stop_idle() -> None:
    """Stop the idle child of this process."""
    child = idle.pop(os.getpid(), None)
    if child is not None:
        child.stop()


class IsolatedRunner:
    """Runner of models in a child process, restarted after each crash. A context manager.

    Args:
        here: Run models in this process instead, as user-defined operators require.
    """

    def __init__(self, *, here: bool = False) -> None:
        self._here = here
        self._child: Child | None = None

    def __enter__(self) -> Self:
        """Create a folder for inputs and answers."""
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-apart-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the child, and remove the files."""
        if self._child is not None:
            self._child.release()
            self._child = None
        self._folder.cleanup()

    @contextlib.contextmanager
    def file_of(self, model: ir.Model | onnx.ModelProto | str | Path) -> Iterator[Path]:
        """Yield a file with the model: the given file, or a temporary one."""
        if isinstance(model, (str, Path)):
            yield Path(model).absolute()
            return
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            path = Path(folder) / "model.onnx"
            if isinstance(model, onnx.ModelProto):
                path.write_bytes(model.SerializeToString())
            else:
                model_io.save(model, path)
            yield path

    def run(self, path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the model in a file, by name.

        Raises:
            EvaluationError: every engine failed, or the engine crashed or took too long.
        """
        if self._here:
            return evaluate(path, feeds)
        folder = Path(self._folder.name)
        inputs, outputs = folder / "feeds.pickle", folder / "answers.pickle"
        inputs.write_bytes(pickle.dumps(dict(feeds)))
        request = {"do": "run", "path": str(path), "inputs": str(inputs), "outputs": str(outputs)}
        answer = self._ask(request)
        if answer["status"] == "ended":
            # Only a second end is caused by the model: the child may have ended before the request.
            answer = self._ask(request)
        if answer["status"] != "ready":
            raise EvaluationError(answer["reason"])
        # Safe to unpickle: our child wrote the file into our folder. Sequences and maps exclude an array archive.
        answers: dict[str, Any] = pickle.loads(outputs.read_bytes())
        return answers

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = Child.acquire()
        answer = self._child.ask(request, RUN_SECONDS)
        if answer["status"] == "ended":
            self._child = None
        return answer
