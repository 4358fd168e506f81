"""Publications: new weights of a live session, while other threads call."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.errors import SardonyxError
from sardonyx.runtime.editing.history import History
from sardonyx.runtime.live.model_version import ModelVersion

ROWS = 24

SWITCH_SECONDS = 1e-4
"""Time after which a calling thread yields: a publication that waits 5 ms for each hand-over takes 60 ms and more,
and calls meet it at fewer points.
"""


def network() -> bytes:
    """Two products whose weights are one number each: an answer tells the numbers that computed it."""
    graph = """net (float[N, 24] x) => (float[N, 24] y) <float[24, 24] w, float[24] b, float[24, 24] v>
        { h = MatMul(x, w) i = Add(h, b) r = Relu(i) y = MatMul(r, v) }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    del model.graph.value_info[:]
    for name, array in weights(1).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model.SerializeToString()


def weights(number: int) -> dict[str, np.ndarray]:
    """Return weights whose answer is `number` for each element of the mean of a row, with different elements."""
    spread = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
    matrix = np.outer(spread / spread.sum(), np.ones(ROWS)).astype(np.float32)
    return {
        "w": number * matrix,
        "b": (0.001 * number * (spread + 1)).astype(np.float32),
        "v": matrix + 1e-3 * matrix.T,
    }


def publish_and_call(publications: int, versions: int) -> int:
    """Publish while two threads call; return the number of checked answers."""
    session = Session(network(), compile="wait")
    x = {"x": np.ones((3, ROWS), np.float32)}
    sets = [weights(number + 1) for number in range(versions)]
    expected = []
    for one in sets:
        session.update_weights(one)
        expected.append(session.run(None, x)[0].tobytes())
    known, torn, counts = frozenset(expected), list[bytes](), [0, 0]
    done = threading.Event()

    def call(thread: int) -> None:
        while not done.is_set():
            answer = session.run(None, x)[0].tobytes()
            counts[thread] += 1
            if answer not in known:
                torn.append(answer)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        for thread in threads:
            thread.start()
        for number in range(publications):
            session.update_weights(sets[number % versions])
    finally:
        done.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not torn
    assert session.run(None, x)[0].tobytes() == expected[(publications - 1) % versions]
    session.undo()
    assert session.run(None, x)[0].tobytes() == expected[(publications - 2) % versions]
    return min(counts)


def test_every_answer_is_that_of_one_publication() -> None:
    assert publish_and_call(200, 5) > 0


def test_the_first_call_after_a_publication_is_as_direct_as_the_ones_before(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(network(), compile="wait")
    x = {"x": np.ones((3, ROWS), np.float32)}
    for number in (1, 2):
        session.update_weights(weights(number))
        session.run(None, x)
        session.run(None, x)
    indirect: list[ModelVersion] = []
    run = ModelVersion.run

    def counted(version: ModelVersion, *arguments: Any) -> list[Any]:
        indirect.append(version)
        return run(version, *arguments)

    monkeypatch.setattr(ModelVersion, "run", counted)
    for number in (3, 4):
        session.update_weights(weights(number))
        np.testing.assert_allclose(session.run(None, x)[0], number, rtol=1e-2)
    # Other sizes than those of the calls before are answered too.
    session.update_weights(weights(5))
    (y,) = session.run(None, {"x": np.ones((7, ROWS), np.float32)})
    assert y.shape == (7, ROWS) and not indirect
    np.testing.assert_allclose(y, 5, rtol=1e-2)


@pytest.mark.long
def test_every_answer_of_ten_thousand_publications_is_that_of_one() -> None:
    assert publish_and_call(10_000, 7) > 0


def test_undo_restores_the_exact_bits_after_many_publications() -> None:
    session = Session(network(), compile="wait")
    x = {"x": np.ones((3, ROWS), np.float32)}
    answers = [session.run(None, x)[0]]
    for number in range(2, 8):
        session.update_weights(weights(number))
        answers.append(session.run(None, x)[0])
    for expected in reversed(answers[:-1]):
        session.undo()
        np.testing.assert_array_equal(session.run(None, x)[0], expected)


def test_the_model_has_the_weights_of_the_last_publication() -> None:
    session = Session(network(), compile="wait")
    for number in range(2, 6):
        session.update_weights(weights(number))
    held, three = session.model, weights(3)
    session.update_weights({"w": three["w"]})
    session.update_weights({"b": three["b"]})
    for model, expected in ((held, weights(5)), (session.model, {**weights(5), "w": three["w"], "b": three["b"]})):
        for name, array in expected.items():
            np.testing.assert_array_equal(model.graph.initializers[name].const_value.numpy(), array)  # type: ignore[union-attr]


def test_edits_of_nodes_and_publications_are_undone_in_turn() -> None:
    session = Session(network(), compile="wait")
    x = {"x": np.ones((3, ROWS), np.float32)}
    answers = [session.run(None, x)[0]]
    for number in range(2, 9):
        if number == 5:
            session.insert_after("r", "Relu")
        else:
            session.update_weights(weights(number))
        answers.append(session.run(None, x)[0])
    for expected in reversed(answers[:-1]):
        session.undo()
        np.testing.assert_array_equal(session.run(None, x)[0], expected)


@pytest.mark.parametrize("array", [np.ones((24, 23), np.float32), np.ones((24, 24)), None], ids=["shape", "type", "no"])
def test_a_refused_publication_changes_nothing(array: np.ndarray | None) -> None:
    session = Session(network(), compile="wait")
    x = {"x": np.ones((3, ROWS), np.float32)}
    for number in range(2, 5):
        session.update_weights(weights(number))
    expected, revision = session.run(None, x)[0], session.revision
    with pytest.raises(SardonyxError):
        session.update_weights({"b": weights(7)["b"], "w" if array is not None else "unknown": array})
    assert session.revision == revision
    np.testing.assert_array_equal(session.run(None, x)[0], expected)


def test_a_publication_computes_in_the_thread_of_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(network(), compile="wait")
    for number in range(2, 4):
        session.update_weights(weights(number))
    threads = list[int]()
    reweighted = ModelVersion.reweighted

    def recorded(version: ModelVersion, *arguments: Any) -> ModelVersion | None:
        threads.append(threading.get_ident())
        return reweighted(version, *arguments)

    monkeypatch.setattr(ModelVersion, "reweighted", recorded)
    session.update_weights(weights(5))
    assert threads == [threading.get_ident()]


def test_an_array_may_change_after_its_publication() -> None:
    session = Session(network(), compile="wait")
    x = {"x": np.ones((1, ROWS), np.float32)}
    for number in range(2, 6):
        new = weights(number)
        session.update_weights(new)
        expected = session.run(None, x)[0]
        for array in new.values():
            array[...] = 7
        np.testing.assert_array_equal(session.run(None, x)[0], expected)


def test_a_model_whose_only_weight_is_folded_away_takes_others() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 16] x) => (float[N, 16] y)
        <float factor = {1.0}> { h = Tanh(x) y = Mul(h, factor) }"""
    session = Session(onnx.parser.parse_model(text), compile="wait", threads=1)
    x = np.linspace(-2, 2, 32, dtype=np.float32).reshape(2, 16)
    for factor in (2, 1, 1, 3, 1):
        session.update_weights({"factor": np.float32(factor)})
        np.testing.assert_allclose(session.run(None, {"x": x})[0], factor * np.tanh(x), rtol=1e-4, atol=1e-6)


def test_a_version_tells_its_latest_edit_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(network(), compile="wait", threads=1)
    x = np.ones((1, ROWS), np.float32)
    answers: list[tuple[int, float]] = []

    def answer() -> None:
        snapshot = session.snapshot()
        answers.append((snapshot.commit, float(snapshot.run(None, {"x": x})[0][0, 0])))

    add = History.add

    def slow_add(*arguments: Any) -> None:
        answer()  # The new version answers, and the history does not list the edit yet.
        add(*arguments)

    monkeypatch.setattr(History, "add", slow_add)
    answer()
    for number in (2, 3, 4):
        session.update_weights(weights(number))
        answer()
    session.undo()
    answer()
    session.update_weights(weights(5))
    answer()
    assert [commit for commit, _ in answers] == [0, 1, 1, 2, 2, 3, 3, 2, 4, 4]
    assert all(len({value for commit, value in answers if commit == one}) == 1 for one in range(5))
