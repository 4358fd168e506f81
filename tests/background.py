"""Programs that run beside the tests: minutes by the clock, little of a processor."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO


class Background:
    """A Python program that begins with the tests, in whichever of the processes that share them.

    What it prints goes to a file, which it keeps locked as long as it runs.

    Args:
        folder: That of this run of the tests.
        program: The program.
        arguments: What it is given.
    """

    def __init__(self, folder: Path, program: Path, *arguments: str) -> None:
        self._command = [sys.executable, str(program), *arguments]
        self._printed = folder / f"{program.stem}.background"

    def begin(self) -> None:
        """Begin it, unless another process did."""
        with self._printed.open("a") as file:
            if not _is_locked(file) and file.tell() == 0:
                environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                program = subprocess.Popen(self._command, env=environment, stdout=file, stderr=subprocess.STDOUT)
                _pid(self._printed).write_text(str(program.pid), encoding="ascii")

    def printed(self) -> str:
        """What it has printed when it ends."""
        with self._printed.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return file.read()


def end_all(folder: Path) -> None:
    """End the programs that nobody waited for."""
    for item in folder.glob("*.background"):
        with item.open() as file:
            if _is_locked(file):
                os.kill(int(_pid(item).read_text(encoding="ascii")), signal.SIGTERM)


def _pid(printed: Path) -> Path:
    return printed.with_suffix(".pid")


def _is_locked(file: IO[str]) -> bool:
    """Whether another has the file locked; if not, this one has it locked from now on."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
