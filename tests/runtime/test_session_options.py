"""Options of sessions and of runs."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest

from sardonyx import RunOptions, Session, SessionOptions
from sardonyx.errors import FeedError, OptionError, ResourceError, ShapeError

NET = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, C] x) => (float[N, C] y) { h = Neg(x) y = Relu(h) }"""
)
ENDLESS = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    net (float[2] x) => (float[2] y) {
        n = Constant<value = int64 {1152921504606846976}>()
        go = Constant<value = bool {1}>()
        y = Loop(n, go, x)<body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e) {
            d = Identity(c)
            e = Sin(a)
        }>
    }"""
)
X = np.array([[1, -2, 3]], np.float32)
Y = [[0, 2, 0]]
TWO = np.ones(2, np.float32)


def test_options_come_together_or_one_by_one() -> None:
    options = SessionOptions(threads=1, timeout=5.0)
    session = Session(NET, options, timeout=7.0, deterministic=True)
    assert (session.options.threads, session.options.timeout, session.options.deterministic) == (1, 7.0, True)
    assert session.run(None, {"x": X})[0].tolist() == Y


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0}, {"timeout": -1.0}, {"optimization": "most"}, {"compile": "later"}, {"log_severity": 5},
        {"free_dimensions": {"N": -1}}, {"providers": []}, {"denormals": "round"},
    ],
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(OptionError) as caught:
        Session(NET, **wrong)  # type: ignore[arg-type]
    assert caught.value.where in (*wrong, "N")


@pytest.mark.parametrize("level", ["none", "basic", "all"])
def test_every_level_computes_the_same(level: str) -> None:
    session = Session(NET, compile="wait", optimization=level)
    assert session.native is not None
    assert session.run(None, {"x": X})[0].tolist() == Y


def test_free_dimensions_are_fixed_by_name() -> None:
    session = Session(NET, free_dimensions={"C": 3, "unknown": 7})
    assert [info.shape for info in (*session.get_inputs(), *session.get_outputs())] == [["N", 3], ["N", 3]]
    assert session.run(None, {"x": X})[0].tolist() == Y
    with pytest.raises(ShapeError):
        session.run(None, {"x": X[:, :2]})
    assert Session(NET).get_inputs()[0].shape == ["N", "C"]


def test_free_dimensions_are_fixed_by_what_they_denote() -> None:
    model = onnx.ModelProto.FromString(NET.SerializeToString())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    session = Session(model, free_denotations={"DATA_BATCH": 1})
    assert session.get_inputs()[0].shape == [1, "C"] == session.get_outputs()[0].shape


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_outputs_that_the_file_declares_in_part_are_described_as_inferred(compile: Literal["off", "wait"]) -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N, 4] x) => (float[N, 4] y, float[M, 4] z, int64[K, 2] at) {
        y = Relu(x) z = Concat<axis = 0>(x, y) places = NonZero(x) at = Transpose(places)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].ClearField("type")
    for output in model.graph.output[1:]:
        output.type.tensor_type.ClearField("shape")
    outputs = Session(model, compile=compile).get_outputs()
    assert [(info.type, info.shape) for info in outputs] == [
        ("tensor(float)", ["N", 4]), ("tensor(float)", ["2*N", 4]), ("tensor(int64)", [None, 2])
    ]  # fmt: skip


def test_only_what_is_severe_enough_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        n (float[N] x, int64 steps) => (float y) {
          z = Loop(steps, , x)<body = deeper (int64 i, bool on, float s) => (bool again, float t) {
            again = Identity(on) axes = Constant<value_ints=[0]>() t = Unsqueeze(s, axes) }>
          y = ReduceSum<keepdims=0>(z)
        }"""
    )
    feeds = {"x": np.ones(4, np.float32), "steps": np.array(3)}
    with caplog.at_level(logging.WARNING, "sardonyx"):
        session = Session(model, compile="wait", log_severity=3)
        assert session.native is None and not caplog.records
        Session(model, compile="wait")
        assert "is not compiled" in caplog.text
    assert session.run(None, feeds)[0] == 4


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_a_run_ends_in_time_and_the_session_goes_on(compile: str) -> None:
    session = Session(ENDLESS, compile=compile)  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match="took longer"):
        session.run(None, {"x": TWO}, RunOptions(timeout=0.05))
    with pytest.raises(ResourceError, match="took longer"):
        session.run(None, {"x": TWO}, RunOptions(timeout=0.05))


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_runs_are_terminated_from_another_thread(compile: str) -> None:
    session, options = Session(ENDLESS, compile=compile), RunOptions()  # type: ignore[arg-type]
    futures = [session.run_async(None, {"x": TWO}, options) for _ in range(3)]
    time.sleep(0.1)
    assert not any(future.done() for future in futures)
    options.terminate()
    for future in futures:
        with pytest.raises(ResourceError, match="terminated"):
            future.result(300)
    with pytest.raises(ResourceError, match="terminated"):
        Session(NET).run(None, {"x": X}, options)
    options.reset()
    assert Session(NET).run(None, {"x": X}, options)[0].tolist() == Y


def test_a_run_is_awaited_while_others_go_on() -> None:
    session = Session(NET)

    async def all_of_them() -> list[list[np.ndarray]]:
        return list(await asyncio.gather(*(session.arun(None, {"x": X * n}) for n in range(1, 4))))

    for n, (y,) in enumerate(asyncio.run(all_of_them()), 1):
        np.testing.assert_array_equal(y, np.array(Y) * n)

    async def wrong() -> None:
        await session.arun(None, {})

    with pytest.raises(FeedError):
        asyncio.run(wrong())


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_a_task_that_is_cancelled_ends_its_run(compile: str) -> None:
    session = Session(ENDLESS, compile=compile)  # type: ignore[arg-type]

    async def cancelled() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(session.arun(None, {"x": TWO}), 0.1)

    before = threading.active_count()
    asyncio.run(cancelled())  # Ends with the threads of the loop.
    assert threading.active_count() <= before


def test_runs_are_recorded(tmp_path: Path) -> None:
    session = Session(NET, compile="wait", profiling=True, profile_prefix=str(tmp_path / "trace"))
    for tag in ("first", "second"):
        session.run(None, {"x": X}, RunOptions(tag=tag))
    session.run(None, {"x": X})
    path = Path(session.end_profiling())
    assert path.parent == tmp_path
    events = json.loads(path.read_text())
    runs = [event["name"] for event in events if event["cat"] == "Session"]
    assert runs == ["session_initialization", "first", "second", "model_run"]
    assert all(event["ph"] == "X" and event["dur"] > 0 for event in events)
    nodes = [event for event in events if event["cat"] == "Node"]
    assert len(nodes) >= 3
    assert all(event["name"].endswith("_kernel_time") for event in nodes)
    assert {event["args"]["op_name"] for event in nodes} <= {node.op_type for node in NET.graph.node}
    assert json.loads(Path(session.end_profiling()).read_text()) == []
    with pytest.raises(OptionError, match="does not record"):
        Session(NET).end_profiling()


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_whoever_speaks_dlpack_can_be_fed(compile: str) -> None:
    class Foreign:
        def __dlpack__(self, **options: object) -> object:
            return X.__dlpack__(**options)  # type: ignore[arg-type]

        def __dlpack_device__(self) -> tuple[int, int]:
            return X.__dlpack_device__()

    session = Session(NET, compile=compile)  # type: ignore[arg-type]
    for _ in range(3):
        assert session.run(None, {"x": Foreign()})[0].tolist() == Y
