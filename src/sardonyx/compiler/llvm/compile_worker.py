"""A process that compiles for another: LLVM works behind one lock a process, so that a second core needs one.

It is this file, run by Python alone, and reads nothing of the user's program: scripts without a ``__main__`` guard are
not run again. A compilation begins with a frame of eight bytes of length and a text on its standard input, and ends
with one of an outcome, a length and the object code on its standard output. It ends when its input does.
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
    """The other process is gone, for reasons of its own: killed, out of memory."""


class CompileProcess:
    """The process, as the one that has it compile sees it.

    Args:
        target: What it compiles for.

    Raises:
        OSError: It cannot be started.
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
            ProcessEnded: The process is gone.
        """
        try:
            if self._first:
                _send(self._input, self._first)
                self._first = b""
            _send(self._input, text.encode())
            accepted, length = _REPLY.unpack(_received(self._output, _REPLY.size))
            answer = _received(self._output, length)
        except (OSError, ValueError, EOFError) as error:
            raise ProcessEnded(str(error)) from error
        if not accepted:
            raise CodeGenerationError(answer.decode())
        return answer

    def end(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # There may be something that it was not sent any more.
            self._input.close()
        self._output.close()


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(_LENGTH.pack(len(data)))
    file.write(data)
    file.flush()


def _received(file: IO[bytes], length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise EOFError("it ended in the middle of an answer")
    return data


def serve() -> None:
    """Compile what comes in, until nothing does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # An interrupt is for the one who asks; this ends with its input.
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    target: Target | None = None
    while start := source.read(_LENGTH.size):
        frame = _received(source, *_LENGTH.unpack(start)).decode()
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
