"""Models that can only be traced when a value is known are compiled for what calls tell, and equal numpy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from sardonyx.errors import SardonyxError
from sardonyx.runtime import Session
from sardonyx.runtime.compiled import value_specialization

HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'

RANKS = """g (float[n, c, 4] x) => (float y, float[m] s) {
  h = Tanh(x)
  shape = Shape(h)
  one = Constant<value_int=1>()
  channels = Gather(shape, one)
  is_one = Equal(channels, one)
  q = If(is_one)<then_branch = squeezed () => (float a) {
    axes = Constant<value_ints=[1]>()
    a = Squeeze(h, axes)
  }, else_branch = kept () => (float b) { b = Identity(h) }>
  y = Exp(q)
  s = ReduceSum<keepdims=0>(q, last)
}""".replace("x) =>", "x, int64[1] last) =>")

SQUEEZED = """g (float[a, b, c] x) => (float y) {
  h = Relu(x)
  s = Squeeze(h)
  t = Add(s, s)
  y = Squeeze(t)
}"""

FED_AXES = """g (float[a, b, c] x, int64[k] axes) => (float y) {
  h = Relu(x)
  y = ReduceSum<keepdims=0, noop_with_empty_axes=1>(h, axes)
}"""

NOT_TAKEN = """g (float[n] x, int64[1] at, bool far) => (float y) {
  y = If(far)<then_branch = chosen () => (float a) {
    zero = Constant<value_ints=[0]>()
    table = Constant<value_ints=[0, 1]>()
    axis = Gather(table, at)
    wide = Unsqueeze(x, zero)
    a = ReduceSum<keepdims=0>(wide, axis)
  }, else_branch = other () => (float[n] b) { b = Neg(x) }>
}"""


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(session: Session, text: str, feeds: Mapping[str, Any]) -> None:
    expected = Session(model(text), compile="off").run(None, feeds)
    for _ in range(2):
        for actual, right in zip(session.run(None, feeds), expected, strict=True):
            assert (actual.dtype, actual.shape) == (right.dtype, right.shape)
            np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-6)


def providers(session: Session) -> set[str]:
    return {item.provider for item in session.placement if item.provider}


def test_branches_of_other_ranks() -> None:
    session = Session(model(RANKS), compile="wait")
    assert providers(session) == {"reference"}
    for n, c in ((3, 1), (2, 5), (1, 1), (4, 2)):
        check(session, RANKS, {"x": normal(n, c, 4), "last": np.array([-1])})
        assert providers(session) == {"native"}


def test_what_squeeze_takes_away() -> None:
    session = Session(model(SQUEEZED), compile="wait")
    for shape in ((2, 1, 3), (5, 1, 3), (1, 1, 3), (1, 1, 1), (2, 3, 4), (2, 0, 1)):
        check(session, SQUEEZED, {"x": normal(*shape)})
        assert providers(session) == {"native"}


def test_axes_that_are_fed() -> None:
    session = Session(model(FED_AXES), compile="wait")
    for axes in ([0], [1, 2], [0, 1, 2], [-1], [], [0]):
        check(session, FED_AXES, {"x": normal(2, 3, 4), "axes": np.array(axes, np.int64)})
        assert providers(session) == {"native"}


def test_numpy_computes_what_is_one_case_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_specialization, "MAX_PROGRAMS", 2)
    session = Session(model(FED_AXES), compile="wait")
    for axes in ([0], [1], [2], [0, 1], [1]):
        check(session, FED_AXES, {"x": normal(2, 3, 4), "axes": np.array(axes, np.int64)})


def test_a_session_answers_before_the_program_is_there() -> None:
    session = Session(model(SQUEEZED), compile="background")
    assert session.wait(60)
    feeds = {"x": normal(2, 1, 3)}
    first = session.run(None, feeds)[0]
    for _ in range(600):
        check(session, SQUEEZED, feeds)
        if providers(session) == {"native"}:
            break
        time.sleep(0.05)
    assert providers(session) == {"native"}
    np.testing.assert_allclose(session.run(None, feeds)[0], first, rtol=1e-6)


def test_a_question_without_an_answer_is_of_a_branch_that_is_not_taken() -> None:
    session = Session(model(NOT_TAKEN), compile="wait")
    for at, far in ((0, True), (5, False), (1, True), (0, False)):
        check(session, NOT_TAKEN, {"x": normal(3), "at": np.array([at]), "far": np.array(far)})
    with pytest.raises(SardonyxError):
        session.run(None, {"x": normal(3), "at": np.array([5]), "far": np.array(True)})


def test_programs_count_as_memory_and_shrink() -> None:
    session = Session(model(SQUEEZED), compile="wait")
    check(session, SQUEEZED, {"x": normal(40, 1, 30)})
    before = session.memory().arena
    session.shrink()
    assert session.memory().arena <= before
    check(session, SQUEEZED, {"x": normal(40, 1, 30)})
