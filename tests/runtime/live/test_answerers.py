"""The order in which the engines of a model version are tried, and the path of a native call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.compiler.call.call_context import Fault
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
