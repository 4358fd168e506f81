"""The order in which the engines of a model version are tried, and the path of a native call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.call.fault import Fault
from sardonyx.core.eval.run_context import RunContext
from sardonyx.runtime.live.answerers import Answerer, answer

Answer = Callable[..., Any]


def answerer(name: str, answer: Answer, accepts: bool = True) -> Answerer:
    return Answerer(name, lambda *_: accepts, answer)


def fail(*_: object) -> Any:
    raise Fault("a kernel has no result")


def refuse(*_: object) -> Any:
    raise AssertionError("this answerer must not be called")


def test_the_first_answerer_that_accepts_computes_the_call() -> None:
    answerers = [answerer("a", refuse, accepts=False), answerer("b", lambda *_: [1]), answerer("c", refuse)]
    assert answer(answerers, None, {}, RunContext()) == [1]


@pytest.mark.parametrize("decline", [lambda *_: None, fail], ids=["not compiled yet", "fault"])
def test_the_next_answerer_computes_a_declined_call(decline: Answer) -> None:
    assert answer([answerer("a", decline), answerer("b", lambda *_: [2])], None, {}, RunContext()) == [2]


def test_an_error_of_an_answerer_ends_the_call() -> None:
    def too_late(*_: object) -> Any:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        answer([answerer("a", too_late), answerer("b", refuse)], None, {}, RunContext())


NET = '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[N] y) { z = Relu(x) y = Neg(z) }'
UNDECIDED = """<ir_version: 9, opset_import: ["": 18]>
    net (float[N] x, int64[K] s) => (y) { y = Reshape(x, s) }"""


def session_of(text: str, **options: Any) -> sardonyx.Session:
    return sardonyx.Session(onnx.parser.parse_model(text), **{"compile": "wait", **options})


def answering(session: sardonyx.Session) -> tuple[list[str], str]:
    """The answerers in order, and the one to which a call for all outputs goes."""
    (first,) = [note.name for note in session.answerers if note.answers]
    return [note.name for note in session.answerers], first


def test_a_session_names_its_answerers() -> None:
    assert answering(session_of(NET)) == (["output variant", "native", "interpreter"], "native")
    assert answering(session_of(NET, compile="off")) == (["interpreter"], "interpreter")
    assert answering(session_of(UNDECIDED)) == (["specialization", "interpreter"], "specialization")
    default = onnx.parser.parse_model(NET.replace("float[N] x", "float[N] x, float[1] w"))
    default.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))
    names = ["output variant", "native", "input variant", "interpreter"]
    assert answering(sardonyx.Session(default, compile="wait")) == (names, "native")
    shared = session_of(NET, providers=["native", "reference"], pins=[("z", "reference")])
    assert answering(shared) == (["partition", "interpreter"], "partition")


def test_a_compiled_file_refuses_calls_that_compiled_code_cannot_compute(tmp_path: Path) -> None:
    session_of(NET).save_compiled(tmp_path / "net.sdx")
    assert answering(sardonyx.Session(tmp_path / "net.sdx", compile="wait")) == (["native", "refusal"], "native")


def test_an_interpreted_session_says_why() -> None:
    (interpreter,) = session_of(NET, compile="off").answerers
    assert interpreter.reason == "compiling is off"
    assert "only a call provides" in session_of(UNDECIDED).answerers[0].reason


def test_calls_are_counted_by_the_answerer_that_computed_them() -> None:
    def counts(session: sardonyx.Session) -> dict[str, int]:
        return {note.name: note.calls for note in session.answerers if note.calls}

    session, feeds = session_of(NET), {"x": np.ones(4, np.float32)}
    assert counts(session) == {}
    session.run(["y"], feeds)
    session.run(["z"], feeds)
    assert counts(session) == {"native": 1, "output variant": 1}
    with pytest.raises(sardonyx.errors.FeedError):
        session.run(["y"], {})
    assert counts(session) == {"native": 1, "output variant": 1}
    interpreted = session_of(NET, compile="off")
    for _ in range(3):
        interpreted.run(None, feeds)
    assert counts(interpreted) == {"interpreter": 3}


def test_an_edit_starts_new_counts() -> None:
    session, feeds = session_of(NET), {"x": np.ones(4, np.float32)}
    session.run(["y"], feeds)
    session.add_output("z")
    assert all(note.calls == 0 for note in session.answerers)


def test_a_native_call_runs_no_python_function_but_run_and_the_generated_code() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> net (float[N] x) => (float[N] y) { y = Relu(x) }'
    session = sardonyx.Session(onnx.parser.parse_model(text), compile="wait")
    feeds = {"x": np.ones(4, np.float32)}
    for _ in range(3):
        session.run(None, feeds)
    called: list[str] = []

    def record(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(record)
    try:
        session.run(None, feeds)
    finally:
        sys.setprofile(None)
    assert called == ["run", "call"]  # `call` is the property that holds the generated function.
