"""Calls of a model with open sizes: every call has the results of its own sizes, whatever came before."""

from __future__ import annotations

import mmap
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from sardonyx.errors import FeedError, ShapeError
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.session import Session

MODEL = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, M] x, float[M] b) => (float[N, M] y, float[N] s) {
   y = Mul (x, b)
   axes = Constant <value_ints = [1]> ()
   s = ReduceSum <keepdims = 0> (y, axes)
}
"""

SOFTMAX = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, 64] x) => (float[N] s) {
   p = Softmax (x)
   q = Softmax <axis = 0> (p)
   axes = Constant <value_ints = [1]> ()
   s = ReduceSum <keepdims = 0> (q, axes)
}
"""


@pytest.mark.parametrize("options", [{"compile": "off"}, {"compile": "wait"}, {"pins": [("y", "reference")]}])
def test_question_marks_name_no_size(options: dict[str, object]) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[A, B] x) => (float[A, B] y) { h = Neg(x)  y = Exp(h) }'
    )
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for _ in range(2):
        model.graph.output[0].type.tensor_type.shape.dim.add(dim_param="?")
    session = Session(model, **options)  # type: ignore[arg-type]
    assert session.get_inputs()[0].shape == ["?", "?"]
    for sizes in ((2, 3), (3, 2), (3, 2)):
        np.testing.assert_allclose(session.run(None, {"x": np.zeros(sizes, np.float32)})[0], np.ones(sizes))


def test_sizes_come_and_go() -> None:
    session = Session(onnx.parser.parse_model(MODEL), compile="wait")
    rng = np.random.default_rng(0)
    for n, m in [(2, 3)] * 4 + [(5, 3), (2, 3), (2, 3), (7, 1), (7, 1), (7, 1), (2, 3), (0, 4), (0, 4), (0, 4)]:
        x, b = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal(m).astype(np.float32)
        y, s = session.run(None, {"x": x, "b": b})
        np.testing.assert_array_equal(y, x * b)
        np.testing.assert_allclose(s, (x * b).sum(1), rtol=1e-5, atol=1e-6)
        # The results of a call stay what they were.
        again, _ = session.run(None, {"x": x + 1, "b": b})
        np.testing.assert_array_equal(y, x * b)
        np.testing.assert_array_equal(again, (x + 1) * b)


def fed(n: int, m: int, dtype: type = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n * 100 + m)
    return {"x": rng.random((n, m)).astype(dtype), "b": rng.random(m).astype(dtype)}


def check(session: Session, feeds: dict[str, np.ndarray]) -> None:
    y, s = session.run(None, feeds)
    np.testing.assert_array_equal(y, feeds["x"] * feeds["b"])
    np.testing.assert_allclose(s, y.sum(1), rtol=1e-5, atol=1e-6)


@pytest.fixture
def session() -> Session:
    """One whose calls are generated code."""
    created = Session(onnx.parser.parse_model(MODEL), compile="wait")
    for _ in range(2):
        check(created, fed(2, 3))
    return created


def test_new_sizes_need_no_python(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeModel, "run", None)
    for n, m in ((2, 3), (5, 3), (7, 1), (1, 1), (0, 4), (4, 0), (300, 200), (2, 3)):
        for _ in range(2):
            check(session, fed(n, m))


def test_sizes_that_do_not_fit_are_refused_and_the_next_call_is_right(session: Session) -> None:
    for _ in range(3):
        with pytest.raises(ShapeError, match="axis 0 has size 4, expected M = 3"):
            session.run(None, {"x": fed(2, 3)["x"], "b": fed(2, 4)["b"]})
        with pytest.raises(FeedError):
            session.run(None, {"x": fed(6, 4)["x"], "b": fed(6, 4)["b"].astype(np.float64)})
        check(session, fed(6, 4))
        check(session, fed(2, 3))


def test_memory_is_flat_after_the_largest() -> None:
    session = Session(onnx.parser.parse_model(SOFTMAX), compile="wait")
    feeds = [{"x": np.ones((n, 64), np.float32)} for n in (1, 5000, 3, *range(4000, 4100))]
    for item in feeds[:3]:
        session.run(None, item)
    tracemalloc.start()
    try:
        session.run(None, feeds[1])
        before = tracemalloc.get_traced_memory()[0]
        for item in feeds:
            session.run(None, item)
        growth = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert growth < 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read as on Linux")
def test_a_hundred_thousand_runs_of_changing_sizes_leave_nothing_behind() -> None:
    session = Session(onnx.parser.parse_model(SOFTMAX), compile="wait")
    feeds = [{"x": np.ones((n, 64), np.float32)} for n in np.random.default_rng(0).permutation(60)]

    def run(times: int) -> int:
        for number in range(times):
            session.run(None, feeds[number % 60])
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE

    before = run(10_000)
    assert run(90_000) - before < 1 << 20


def test_calls_of_different_sizes_overlap(session: Session) -> None:
    def many(m: int) -> None:
        for n in range(1, 200):
            check(session, fed(n, m))

    with ThreadPoolExecutor(4) as threads:
        for item in [threads.submit(many, m) for m in (3, 17, 64, 33)]:
            item.result()
