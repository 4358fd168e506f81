"""Three minutes of mixed models, sizes and edits on eight threads: no error, and memory stays flat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.mark.long
@pytest.mark.early
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read as on Linux")
def test_sessions_stay_right_and_as_large_as_they_are() -> None:
    """In a process of its own, whose memory is that of sessions alone; its threads pause most of the time."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), "--minutes", "3", "--pause", "0.2"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["flat"] and not told["errors"]
    assert len(told["acts"]) == 12 and min(told["acts"].values()) > 32  # What goes before the three minutes.
