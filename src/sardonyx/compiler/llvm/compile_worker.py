"""A worker process that compiles modules: LLVM has one lock in a process, so a second core needs a second process.

The worker runs this file alone and imports nothing of the user's program: scripts without a ``__main__`` guard are not
run again. A request on standard input is a frame of a length in eight bytes and a text; a reply on standard output is
an outcome, a length and the object code. The worker ends at the end of its input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import IO

from sardonyx.compiler.llvm.object_code import CodeGenerationError, compiled
from sardonyx.compiler.target.description import Target

_LENGTH = struct.Struct("<Q")
_REPLY = struct.Struct("<?Q")


class ProcessEnded(Exception):
    """The worker ended unexpectedly: killed, or out of memory."""


class CompileProcess:
    """The client of a worker process.

    Args:
        target: The target of all modules.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, target: Target) -> None:
        home = Path(__file__).parents[3]
        paths = os.pathsep.join(str(path) for path in (*sys.path, home) if str(path))
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-c", "from sardonyx.compiler.llvm.compile_worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._first = json.dumps(dataclasses.asdict(target)).encode()

    def compiled(self, text: str) -> bytes:
        """Compile a module.

        Raises:
            CodeGenerationError: LLVM does not accept the text.
            ProcessEnded: The worker ended.
        """
        try:
            if self._first:
                _send(self._input, self._first)
                self._first = b""
            _send(self._input, text.encode())
            accepted, length = _REPLY.unpack(_receive(self._output, _REPLY.size))
            answer = _receive(self._output, length)
        except (OSError, ValueError, EOFError) as error:
            raise ProcessEnded(str(error)) from error
        if not accepted:
            raise CodeGenerationError(answer.decode())
        return answer

    def end(self) -> None:
        """Kill the worker."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # Buffered input may be unsent.
            self._input.close()
        self._output.close()


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def _receive(file: IO[bytes], length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise EOFError(f"expected {length} bytes, got {len(data)}")
    return data


def serve() -> None:
    """Compile modules from standard input until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The client handles interrupts, and closes the input.
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    target: Target | None = None
    while start := source.read(_LENGTH.size):
        frame = _receive(source, *_LENGTH.unpack(start)).decode()
        if target is None:
            target = Target(**json.loads(frame))
            continue
        try:
            accepted, answer = True, compiled(frame, target)
        except CodeGenerationError as error:
            accepted, answer = False, error.problem.encode()
        sink.write(_REPLY.pack(accepted, len(answer)))
        sink.write(answer)
        sink.flush()
