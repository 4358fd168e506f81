"""Calls while edits are made: every answer is one of a model before or after some edit, and no call fails."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.runtime.edited_net import HEAD, B, H, W, X, net, parsed, relu

from sardonyx import Session
from sardonyx.errors import EditError, FeedError, OptionError, SardonyxError
from sardonyx.runtime.live.model_version import ModelVersion
from sardonyx.runtime.options import Compile

CALLERS = 4


class Callers:
    """Threads that call a session without pause, and what they were answered: from when to when, and what."""

    def __init__(self, session: Session) -> None:
        self.answers: list[tuple[float, float, np.ndarray]] = []
        self.failed: list[BaseException] = []
        self._session = session
        self._over = threading.Event()

    @contextmanager
    def calling(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._call) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _call(self) -> None:
        try:
            while not self._over.is_set():
                begin = time.perf_counter()
                actual = self._session.run(None, {"x": X})[0]
                self.answers.append((begin, time.perf_counter(), actual))
        except BaseException as error:
            self.failed.append(error)


class Expected:
    """A model with edits of which numpy knows the result: y = relu(sign * h + b)."""

    def __init__(self) -> None:
        self.sign, self.bias, self.after = 1, B, False

    def result(self) -> np.ndarray:
        actual = relu(self.sign * H + self.bias)
        return np.exp(-actual) if self.after else actual


def edits(
    session: Session, expected: Expected, folder: Path
) -> Iterator[tuple[Callable[[], None], Callable[[], object]]]:
    """Edits without end: what each does to the result, and the edit."""
    rng = np.random.default_rng(0)

    def negate() -> None:
        expected.sign = -expected.sign

    def follow() -> None:
        expected.after = not expected.after

    def nothing() -> None:
        pass

    def start_again() -> None:
        expected.__init__()  # type: ignore[misc]

    def broken() -> None:
        with pytest.raises(SardonyxError):
            session.insert_after("h", "Transpose", perm=[0])

    def both() -> None:
        with session.edit() as g:
            g.insert_after("y", "Neg", name="n")
            g.insert_after("y", "Exp", name="e")

    def neither() -> None:
        with session.edit() as g:
            g.remove_node("e")
            g.remove_node("n")

    onnx.save(net(), folder / "net.onnx")
    while True:
        bias = rng.random(3).astype(np.float32)
        yield negate, lambda: session.insert_after("h", "Neg", name="minus")
        yield nothing, broken
        yield (lambda bias=bias: setattr(expected, "bias", bias)), lambda bias=bias: session.set_weight("b", bias)  # type: ignore[misc]
        yield nothing, lambda: session.add_output("s")
        yield follow, both
        yield nothing, lambda: session.remove_output("s")
        yield follow, neither
        yield nothing, lambda: session.attach(parsed(HEAD), at="s", name="head")
        yield negate, lambda: session.remove_node("minus")
        yield nothing, lambda: session.detach("head")
        yield start_again, lambda: session.reload(folder / "net.onnx")


def commit(session: Session, count: int, folder: Path) -> list[tuple[float, float, np.ndarray]]:
    """Make edits; from when to when each was made, and the result after it."""
    expected = Expected()
    created = [(0.0, 0.0, expected.result())]
    for (change, edit), _ in zip(edits(session, expected, folder), range(count), strict=False):
        change()
        begin = time.perf_counter()
        edit()
        created.append((begin, time.perf_counter(), expected.result()))
    return created


def check(callers: Callers, created: list[tuple[float, float, np.ndarray]]) -> None:
    assert not callers.failed
    assert callers.answers
    ends = np.array([end for _, end, _ in created])
    begins = np.array([begin for begin, _, _ in created])
    close: dict[tuple[bytes, int], bool] = {}  # Of answers, few differ.
    for begin, end, answer in callers.answers:
        # The version that was there when the call began, at the earliest, to the last whose edit was begun meanwhile.
        first = int(np.searchsorted(ends, begin, side="right")) - 1
        last = int(np.searchsorted(begins, end, side="left")) - 1
        name = answer.tobytes()
        for i in range(first, last + 1):
            if (name, i) not in close:
                close[name, i] = np.allclose(answer, created[i][2], rtol=1e-4, atol=1e-5)
        assert any(close[name, i] for i in range(first, last + 1)), (first, last, answer)


@pytest.mark.parametrize(("compile", "count"), [("wait", 11), ("off", 44)])
def test_every_answer_is_of_a_model_before_or_after_some_edit(compile: str, count: int, tmp_path: Path) -> None:
    session = Session(net(), compile=compile)  # type: ignore[arg-type]
    callers = Callers(session)
    with callers.calling():
        created = commit(session, count, tmp_path)
    check(callers, created)


@pytest.mark.long
def test_every_answer_during_a_thousand_edits(tmp_path: Path) -> None:
    session = Session(net(), compile="wait")
    callers = Callers(session)
    with callers.calling():
        created = commit(session, 1000, tmp_path)
    check(callers, created)


def chain(length: int) -> onnx.ModelProto:
    """y = x + length, node by node; `t1` is what the first gives."""
    lines = " ".join(f"t{i + 1} = Add(t{i}, one)" for i in range(length))
    return parsed(f"chain (float[4] t0) => (float[4] t{length}) <float one = {{1}}> {{ {lines} }}")


@pytest.mark.parametrize("compile", ["wait", "background"])
def test_an_edit_ends_when_compiled_code_answers(compile: Compile) -> None:
    session = Session(chain(5), compile=compile)
    session.wait()
    for change in (lambda: session.insert_after("t1", "Neg"), session.undo, lambda: session.add_output("t3")):
        change()
        assert session.native is not None


def test_an_edit_may_end_before_its_code_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()
    compile = ModelVersion.compile_quietly
    session = Session(chain(3), compile="background")
    assert session.wait()
    monkeypatch.setattr(ModelVersion, "compile_quietly", lambda self: (ready.wait(), compile(self)))
    with session.edit(compile="background") as g:
        g.insert_after("t1", "Neg", name="minus")
    assert session.native is None
    np.testing.assert_allclose(session.run(None, {"t0": X[0]})[0], 1 - X[0], rtol=1e-6)
    session.insert_after("t2", "Neg")  # Nothing compiled answers: there is nothing to wait for.
    assert session.native is None
    with session.edit(compile="wait") as g:
        g.remove_node("minus")
    assert session.native is not None
    np.testing.assert_allclose(session.run(None, {"t0": X[0]})[0], -X[0] - 1, rtol=1e-6)
    ready.set()
    assert session.wait()


def test_an_edit_compiles_at_no_other_time() -> None:
    with pytest.raises(OptionError, match="never"):
        Session(chain(1), compile="off").edit(compile="never")  # type: ignore[arg-type]


def test_a_call_may_outlast_its_compiled_code() -> None:
    session = Session(net(), compile="wait")
    for _ in range(3):
        session.run(None, {"x": X})
    assert session.native is not None
    call = session.native.call
    assert call is not None
    del session
    gc.collect()
    blocks = [bytearray(1 << 12) for _ in range(100)]  # What was freed would be written over.
    for _ in range(100):
        actual = call({"x": X})
        assert actual is not None
        np.testing.assert_allclose(actual[0], relu(H + B), rtol=1e-5)
    assert len(blocks) == 100


def test_a_binding_follows_edits() -> None:
    session = Session(net(), compile="wait")
    x, y = X.copy(), np.empty((2, 3), np.float32)
    binding = session.bind({"x": x}, {"y": y})
    session.insert_after("h", "Neg", name="minus")
    binding()
    np.testing.assert_allclose(y, relu(-H + B), rtol=1e-5)
    x[...] = 2 * X
    binding()
    np.testing.assert_allclose(y, relu(-2 * H + B), rtol=1e-5)
    session.insert_after("y", "ReduceSum")
    with pytest.raises(FeedError, match="y"):
        binding()


@pytest.mark.parametrize("names", [["h"], ["y", "s"], ["s", "h", "s"]])
def test_any_tensor_is_an_output_of_compiled_code(names: list[str]) -> None:
    session = Session(net(), compile="wait")
    values = {"h": H, "s": H + B, "y": relu(H + B)}
    for _ in range(2):
        for actual, name in zip(session.run(names, {"x": X}), names, strict=True):
            np.testing.assert_allclose(actual, values[name], rtol=1e-5)
    session.set_weight("w", 2 * W)
    for actual, name in zip(session.run(["h"], {"x": X}), ["h"], strict=True):
        np.testing.assert_allclose(actual, 2 * values[name], rtol=1e-5)
    with pytest.raises(FeedError, match="nothing"):
        session.run(["nothing"], {"x": X})


def replace(path: Path, contents: bytes) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(contents)
    beside.replace(path)


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 300
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def test_a_model_from_the_store_is_reloaded_though_its_file_is_replaced(tmp_path: Path) -> None:
    """A session of a stored program has not read its file: the earlier model is gone, and cannot be restored."""
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    Session(path, compile="wait")
    session = Session(path, compile="wait")
    replace(path, parsed("other (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }").SerializeToString())
    session.reload(path)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
    with pytest.raises(EditError, match="no longer in memory"):
        session.undo()
    session.insert_after("y", "Neg")
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)
    session.undo()
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)


def test_a_file_that_is_replaced_is_reloaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    session = Session(path, watch=True)
    other = parsed("other (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }").SerializeToString()
    replace(path, other[:-10])
    assert until(lambda: "not loaded" in caplog.text)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], relu(H + B), rtol=1e-5)
    replace(path, other)
    assert until(lambda: len(session.history) == 1)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], -X)
    with pytest.raises(OptionError, match="watch"):
        Session(net(), watch=True)
    with pytest.raises(EditError, match="such"):
        session.insert_after("h", "Neg")
