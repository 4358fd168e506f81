"""Profiles: every kernel and every interpreted value is in them, and measuring changes no result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.base.span_recorder import Recorder
from sardonyx.compiler.lower.launch import Launch
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import FeedError, OptionError
from sardonyx.runtime.profiling.profile import drawn_feeds

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
    actual = session.profile({"x": X}, runs=3)
    assert len(actual.kernels) == len(session.program.launches)
    assert [note.primitive for note, _ in actual.interpreted] == ["host Unique", "get"]
    assert actual.runs == 3
    assert actual.seconds > 0
    assert actual.operations >= 2 * 16 * 8 * 6
    for item in actual.kernels:
        assert item.seconds > 0
        assert item.note.operations is not None
        assert item.share == pytest.approx(item.note.operations / item.seconds / actual.peak.operations)
    json.dumps(actual.as_dict())


@pytest.mark.parametrize(
    "graph", ["net () => (float[2] y) { y = Constant<value_floats = [1.0, 2.0]>() }", "net (float[N] x) => () { }"]
)
def test_a_model_without_computations_has_an_empty_profile(graph: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {graph}')
    session = sardonyx.Session(model, compile="wait")
    feeds = {value.name: np.ones(3, np.float32) for value in session.get_inputs()}
    profile = session.profile(feeds, runs=2)
    assert profile.kernels == () and profile.seconds >= 0


def test_a_run_after_it_gives_the_same(session: sardonyx.Session) -> None:
    before = session.run(None, {"x": X})
    session.profile({"x": X}, runs=1)
    for one, other in zip(before, session.run(None, {"x": X}), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("threads", [False, True])
def test_a_run_with_a_clock_gives_the_same(session: sardonyx.Session, threads: bool) -> None:
    program = session.program
    assert program is not None
    want = session.run(None, {"x": X})
    recorder = Recorder(threads=threads)
    for one, other in zip(want, program.run([X], RunContext(recorder=recorder)), strict=True):
        np.testing.assert_array_equal(one, other)
    kernels = [span for span in recorder.spans if isinstance(span.what, Launch)]
    assert [span.what for span in kernels if not span.thread] == program.launches
    shares = [span for span in kernels if span.thread]
    assert bool(shares) == threads
    for share in shares:
        (whole,) = (span for span in kernels if span.what is share.what and not span.thread)
        assert whole.begin <= share.begin <= share.end <= whole.end
        assert share.thread <= program.pool.threads


def test_a_run_is_told_from_its_begin_to_its_end(session: sardonyx.Session) -> None:
    actual = session.profile({"x": X}, runs=1)
    own = [event for event in actual.events if not event.thread]
    assert [event.kernel for event in own if event.kernel >= 0] == list(range(len(actual.kernels)))
    assert [event.title for event in own if event.kind == "interpreter"] == ["host Unique", "get"]
    ends = [event.begin + event.seconds for event in own]
    assert own[0].begin == 0
    assert all(begin.begin >= end for begin, end in zip(own[1:], ends, strict=False)), "one after the other"


def test_kernels_know_the_tensor_that_most_operations_are_for(session: sardonyx.Session) -> None:
    actual = session.profile({"x": X}, runs=1)
    assert {item.note.main for item in actual.kernels} == {"h", "y"}


def test_a_part_of_an_operator_bears_the_name_of_the_whole() -> None:
    """``Gemm`` with a bias that an activation in between keeps from its product: the product has no name of its own."""
    text = """net (float[16, 8] x) => (float[16, 6] y) {
        a = Relu(x)
        y = Gemm(a, w, x2)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{text}')
    model.graph.initializer.append(NET.graph.initializer[0])
    bias = onnx.numpy_helper.from_array(np.ones((16, 6), np.float32), "x2")
    model.graph.initializer.append(bias)
    actual = sardonyx.Session(model, compile="wait").profile({"x": X}, runs=1)
    assert all(item.note.main in ("a", "y") and item.note.tensors for item in actual.kernels)


LOOP = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[4, 4] x, int64 n) => (float[M, 4] y) {
        go = Constant<value = bool {1}>()
        y = Loop(n, go, x) <body = step (int64 i, bool c, float[K, 4] s) => (bool d, float[L, 4] t) {
            d = Identity(c)
            e = Exp(s)
            t = Concat<axis = 0>(s, e)
        }>
    }"""
)


def test_iterations_that_the_interpreter_repeats_lie_in_their_loop() -> None:
    session = sardonyx.Session(LOOP, compile="wait")
    actual = session.profile({"x": X[:4, :4], "n": np.array(3)}, runs=1)
    outer = [event for event in actual.events if event.depth == 0]
    inner = [event for event in actual.events if event.depth and event.kind == "kernel" and not event.thread]
    (loop,) = (event for event in outer if event.title == "loop")
    assert len(inner) >= 3, "in each iteration"
    assert all(loop.begin <= event.begin <= loop.begin + loop.seconds for event in inner)
    assert loop.seconds >= sum(event.seconds for event in inner)


def test_parts_of_a_session_that_providers_share_are_there() -> None:
    session = sardonyx.Session(NET, providers=["native", "reference"], pins=[("h", "reference")], compile="wait")
    actual = session.profile({"x": X}, runs=1)
    assert {part.provider for part in actual.parts} == {"native", "reference"}
    assert all(part.seconds > 0 for part in actual.parts)
    assert all(actual.parts[item.part].provider == "native" for item in actual.kernels)
    assert "MatMul" in [note.primitive for note, _ in actual.interpreted]
    parts = [event for event in actual.events if event.kind == "part"]
    assert [event.title for event in parts] == [part.provider for part in actual.parts]
    assert all(event.depth for event in actual.events if event.kind == "kernel" and not event.thread)
    json.dumps(actual.as_dict())


def test_feeds_are_checked(session: sardonyx.Session) -> None:
    with pytest.raises(FeedError):
        session.profile({"x": X.astype(np.float64)})
    with pytest.raises(OptionError):
        session.profile({"x": X}, runs=0)


def test_of_what_is_not_compiled_the_nodes_are_told() -> None:
    actual = sardonyx.Session(NET, compile="off").profile({"x": X}, runs=2)
    assert not actual.kernels
    assert [note.primitive for note, _ in actual.interpreted] == ["MatMul", "Softmax", "Unique"]
    assert all(note.reason == "compiling is off" and seconds > 0 for note, seconds in actual.interpreted)
    assert [event.tensors[0] for event in actual.events] == ["h", "y", "z"]


def test_a_run_that_fails_says_why(session: sardonyx.Session) -> None:
    with pytest.raises(FeedError):
        session.profile({})


def test_inputs_can_be_drawn(tmp_path: Path, session: sardonyx.Session) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(NET, path)
    feeds, sizes = drawn_feeds(path, session)
    assert feeds["x"].shape == (sizes["N"], 8)


def test_concurrent_loops_share_their_time() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": (2, 48, 8), "r": (2, 48, 16)}
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20]>
        net (float[T, 2, 8] x) => (float[T, 2, 2, 16] y) {
            y = GRU<hidden_size = 16, direction = "bidirectional">(x, w, r)
        }"""
    )
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    )
    session = sardonyx.Session(model, compile="wait", threads=2)
    assert session.program is not None
    loops = [launch for launch in session.program.launches if launch.writes.op == "loop"]
    assert loops[0].concurrent_loops == len(loops) == 2
    profile = session.profile({"x": rng.standard_normal((200, 2, 8)).astype(np.float32)}, runs=3)
    first, second = (kernel for kernel in profile.kernels if kernel.note.title == "loop")
    assert first.seconds == pytest.approx(second.seconds, abs=2e-9)
    assert first.seconds > 1e-6
