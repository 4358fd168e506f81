"""Two minutes of changes under clients of a server: no failed and no wrong answer, and nothing stays open."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")
pytest.importorskip("tritonclient", reason="tritonclient is not installed (extra: test)")

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "serve_soak.py"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory and descriptors are read as on Linux")
def test_a_server_that_changes_under_clients_answers_right() -> None:
    """Memory is judged after an hour alone: `python benchmarks/serve_soak.py --minutes 60`."""
    words = ["--minutes", "2", "--rate", "30", "--weights", "60", "--edits", "10", "--reloads", "12"]
    done = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["errors"] == 0 and report["exit code"] == 0, report
    assert report["descriptors"][1] <= report["descriptors"][0] + 2, report
    assert report["counts"]["weights"] == 60 and report["counts"]["files"] == 6, report
