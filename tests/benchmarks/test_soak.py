"""Three minutes of mixed models, sizes and edits on eight threads: no error, and memory stays flat."""

from __future__ import annotations

import json
import sys

import pytest
from tests.background import Background


@pytest.mark.beside("benchmarks/soak.py", "--minutes", "3", "--pause", "0.5")
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read as on Linux")
def test_sessions_stay_right_and_as_large_as_they_are(beside: Background) -> None:
    """In a process of its own, whose memory is that of sessions alone; its threads pause most of the time."""
    printed = beside.printed()
    last = printed.splitlines()[-1]
    assert last.startswith("{"), printed
    report = json.loads(last)
    assert not report["errors"] and report["flat"], printed
    # What goes before the three minutes alone.
    assert len(report["acts"]) == 12 and min(report["acts"].values()) > 24
