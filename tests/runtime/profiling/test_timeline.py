"""Recorded runs: what is written, and what stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sardonyx.errors import ModelFileError
from sardonyx.runtime.profiling.timeline import Timeline


def test_what_was_recorded_is_kept_where_it_cannot_be_written(tmp_path: Path) -> None:
    timeline = Timeline()
    with timeline.run("first"):
        pass
    with pytest.raises(ModelFileError):
        timeline.write(str(tmp_path / "absent" / "trace"))
    with timeline.run("second"):
        pass
    written = json.loads(Path(timeline.write(str(tmp_path / "trace"))).read_text())
    assert [item["name"] for item in written] == ["first", "second"]
    assert json.loads(Path(timeline.write(str(tmp_path / "trace"))).read_text()) == []
