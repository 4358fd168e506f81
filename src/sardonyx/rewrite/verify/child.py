"""A process of its own to run models in: an engine that crashes, hangs or eats memory takes nothing with it."""

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
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx
import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import facts
from sardonyx.rewrite.evaluate import evaluate

RUN_SECONDS = 300.0
"""Time that one run of a model may take."""


KEPT_BYTES = 512 << 20
"""A process that ever had more memory than this ends with its use."""


class Child:
    """One process that answers requests (see :mod:`sardonyx.rewrite.verify.worker`), from its start to its end."""

    def __init__(self) -> None:
        self._path = _import_path()
        self._is_asked = False
        self._peak = 0
        environment = dict(os.environ, PYTHONPATH=self._path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sardonyx.rewrite.verify.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    @classmethod
    def taken(cls) -> Child:
        """The process that waits for its next use, if there is one; else a new one, which takes a second to start."""
        child = _idle.pop(os.getpid(), None)
        if child is None:
            return cls()
        if child.process.poll() is None and child._path == _import_path():
            return child
        child.stop()
        return cls()

    def leave(self) -> None:
        """Keep it for the next use in this process; end it where it is busy, large, or one waits already."""
        kept = not self._is_asked and self._peak <= KEPT_BYTES
        if not kept or _idle.setdefault(os.getpid(), self) is not self:
            self.stop()

    def stop(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.communicate()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer; status ``ended`` where it ended over the request, or was stopped for taking longer than told."""
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        self._is_asked = True  # An exception on the way to the answer, as an interrupt, leaves the answer to come.
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        deadline = time.monotonic() + seconds
        while not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if time.monotonic() >= deadline:
                self.stop()
                return {"status": "ended", "reason": f"running it took more than {seconds:.0f} s"}
        line = process.stdout.readline()
        if not line:
            return self._ended()
        self._is_asked = False
        answer = json.loads(line)
        self._peak = int(answer["peak_bytes"])
        return {"status": "ready", **answer}

    def _ended(self) -> dict[str, Any]:
        code = self.process.wait()
        self.stop()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return {"status": "ended", "reason": f"the evaluator crashed (its process ended {how})"}


def uses_own_operators(model: ir.Model) -> bool:
    """Whether a node's operator is defined by the user, in this process: no other process knows it."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    return any(facts.is_users(node) for graph in graphs for node in facts.nodes_of(graph))


_idle: dict[int, Child] = {}
"""The child that waits for its next use, by the process that started it."""


def _import_path() -> str:
    """Where this process imports from, as a child is told."""
    return os.pathsep.join(path for path in sys.path if path)


@atexit.register
def _stop_idle() -> None:
    child = _idle.pop(os.getpid(), None)
    if child is not None:
        child.stop()


class Apart:
    """Runs models in a child process, started anew after each crash. A context manager.

    Args:
        here: Whether to run them in this process after all: where operators of the user's own are defined.
    """

    def __init__(self, *, here: bool = False) -> None:
        self._here = here
        self._child: Child | None = None

    def __enter__(self) -> Self:
        """Make a folder for what goes to and fro."""
        self._folder = tempfile.TemporaryDirectory(prefix="sardonyx-apart-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the child to whoever needs one next, and remove the files."""
        if self._child is not None:
            self._child.leave()
            self._child = None
        self._folder.cleanup()

    @contextlib.contextmanager
    def file_of(self, model: ir.Model | onnx.ModelProto | str | Path) -> Iterator[Path]:
        """A file with the model, which is there as long as it is wanted; its own where it is one."""
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
        """The outputs of the model in a file, by name.

        Raises:
            EvaluationError: no engine could run it, or the engine crashed or took too long.
        """
        if self._here:
            return evaluate(path, feeds)
        folder = Path(self._folder.name)
        given, found = folder / "feeds.pickle", folder / "answers.pickle"
        given.write_bytes(pickle.dumps(dict(feeds)))
        request = {"do": "run", "path": str(path), "inputs": str(given), "outputs": str(found)}
        answer = self._ask(request)
        if answer["status"] == "ended":
            # Only a second end is the model's doing: the child may have been gone before.
            answer = self._ask(request)
        if answer["status"] != "ready":
            raise EvaluationError(answer["reason"])
        # The child wrote this file into a folder of ours; it holds what no archive of arrays can.
        answers: dict[str, Any] = pickle.loads(found.read_bytes())
        return answers

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self._child = Child.taken()
        answer = self._child.ask(request, RUN_SECONDS)
        if answer["status"] == "ended":
            self._child = None
        return answer
