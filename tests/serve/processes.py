"""Processes of ``sardonyx serve`` for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run ``sardonyx serve``; yield the process and its announcement."""
    command = [sys.executable, "-m", "sardonyx", "serve", *arguments, "--json", "--threads", "1"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = running.stdout.readline()
            assert line, f"no announcement, exit code {running.poll()}"
            text += line
        yield running, json.loads(text)
    finally:
        running.kill()
        running.wait()
