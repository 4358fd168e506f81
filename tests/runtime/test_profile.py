"""Profiles: every kernel and every interpreted value is in them, and measuring changes no result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.steps import Segment
from sardonyx.compiler.timed_player import play_timed
from sardonyx.errors import FeedError, OptionError, UnsupportedError
from sardonyx.runtime.profile import drawn_feeds, profile

NET = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 8] x) => (float[N, 6] y, float[K] z) {
        h = MatMul(x, w)
        y = Softmax(h)
        z = Unique(y)
    }"""
)
NET.graph.initializer.append(
    onnx.numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32), "w")
)
X = np.random.default_rng(1).standard_normal((16, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def session() -> sardonyx.Session:
    return sardonyx.Session(NET, compile="wait")


def test_every_part_of_a_run_is_there(session: sardonyx.Session) -> None:
    assert session.program is not None
    found = profile(session, {"x": X}, runs=3)
    assert len(found.kernels) == len(session.program.launches)
    assert [note.primitive for note, _ in found.interpreted] == ["host Unique", "get"]
    assert found.runs == 3
    assert found.seconds > 0
    assert found.operations >= 2 * 16 * 8 * 6
    for each in found.kernels:
        assert each.seconds > 0
        assert each.note.operations is not None
        assert each.share == pytest.approx(each.note.operations / each.seconds / found.peak.operations)
    json.dumps(found.as_dict())


def test_a_run_after_it_gives_the_same(session: sardonyx.Session) -> None:
    before = session.run(None, {"x": X})
    profile(session, {"x": X}, runs=1)
    for one, other in zip(before, session.run(None, {"x": X}), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_tape_played_with_a_clock_gives_the_same(session: sardonyx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    program = session.program
    assert program is not None
    want = session.run(None, {"x": X})
    segments = [step for step in program.steps if isinstance(step, Segment)]
    seconds: list[list[float]] = []

    def play(address: int, kernels: int) -> None:
        seconds.append(play_timed(program.target, address, kernels, program.pool.address, flush=False))

    monkeypatch.setattr(program, "play_tape", play)
    for one, other in zip(want, session.run(None, {"x": X}), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [len(each) for each in seconds] == [len(segment.launches) for segment in segments]


def test_feeds_are_checked(session: sardonyx.Session) -> None:
    with pytest.raises(FeedError):
        profile(session, {"x": X.astype(np.float64)})
    with pytest.raises(OptionError):
        profile(session, {"x": X}, runs=0)


def test_what_is_not_compiled_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="not asked for"):
        profile(sardonyx.Session(NET, compile="off"), {"x": X})


def test_inputs_can_be_drawn(tmp_path: Path, session: sardonyx.Session) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    feeds, sizes = drawn_feeds(path, session)
    assert feeds["x"].shape == (sizes["N"], 8)
