"""Work behind calls: done as if it were done here, by a thread that others go before."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.base.cancellation import Cancelled, raise_if_cancelled
from sardonyx.base.thread_priority import lower_priority, run_after_calls
from sardonyx.runtime.live.model_version import ModelVersion


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_work_behind_calls_is_nicer_and_who_asks_for_it_is_not() -> None:
    before = niceness()
    assert run_after_calls(niceness) == min(before + 5, 19)
    assert niceness() == before


def test_work_of_a_thread_of_low_priority_runs_in_this_thread() -> None:
    threads: list[int] = []

    def work() -> None:
        lower_priority()
        threads.extend([threading.get_ident(), run_after_calls(threading.get_ident)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert threads[0] == threads[1]


def test_work_behind_calls_sees_the_context_of_who_asks() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert run_after_calls(variable.get) == "here"


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_of_work_behind_calls_is_raised_where_it_was_asked_for(kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind("no")

    with pytest.raises(kind, match="no"):
        run_after_calls(work)


@pytest.mark.skipif(sys.platform != "linux", reason="it is done in this thread")
def test_work_ends_soon_when_nobody_waits_for_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[type[BaseException]] = []
    over = threading.Event()

    def work() -> None:
        try:
            while not over.wait(0.001):
                raise_if_cancelled()
        except Cancelled as reason:
            ended.append(type(reason))
            over.set()
            raise

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_after_calls(work)
    over.wait(60)
    assert ended == [Cancelled]
    raise_if_cancelled()  # Others go on.


@pytest.mark.skipif(sys.platform != "linux", reason="an edit is computed in this thread")
@pytest.mark.parametrize("change", ["a node", "weights"])
def test_an_edit_that_is_interrupted_is_not_computed_to_its_end(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[2, 3] x) => (float[2, 3] y) <float[3, 3] w = {
        1, 2, 3, 4, 5, 6, 7, 8, 9}> { h = MatMul(x, w) y = Exp(h) }"""
    session = Session(onnx.parser.parse_model(text), compile="wait")
    x = np.eye(2, 3, dtype=np.float32)
    (before,) = session.run(None, {"x": x})
    compiling, given_up, over = (threading.Event() for _ in range(3))
    compile, ended = ModelVersion.compile, list[ModelVersion]()

    def late(version: ModelVersion, *args: Any) -> None:
        compiling.set()
        given_up.wait(60)
        try:
            compile(version, *args)
        except Cancelled:
            ended.append(version)
        finally:
            over.set()

    def interrupted(*_: object) -> None:
        compiling.wait(60)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ModelVersion, "compile", late)
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            if change == "a node":
                session.insert_after("h", "Neg")
            else:
                session.update_weights({"w": np.arange(9, dtype=np.float32).reshape(3, 3)})
        given_up.set()
        assert over.wait(60)
    assert len(ended) == 1
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], before)
    session.insert_after("h", "Neg")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], 1 / before, rtol=1e-5)
