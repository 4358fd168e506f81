"""The dispatcher: merging, its proof, deadlines, priorities, cancellation, limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx import Session
from sardonyx.errors import OptionError, RequestError, UnsupportedError
from sardonyx.runtime.snapshot import Snapshot
from sardonyx.serve import Batching, Concatenation, Model, SizeInput
from sardonyx.serve.models.model import ServedModel, State
from sardonyx.serve.protocol.requests import Answer, InferRequest, SequencePosition
from tests.serve.dispatching import Gate, endpoint_of, request, run, served, submit
from tests.serve.models import save, session


@pytest.mark.parametrize(
    "name, reason",
    [
        ("net", "sound"),
        ("add_sub", "sound"),
        ("strings", "sound"),
        ("half", "sound"),
        ("ragged", "sound"),
        ("batch_mean", "differs from its rows computed apart"),
        ("batch_sort", "differs from its rows computed apart"),
        ("fixed", "the first size of input x is fixed: 1"),
        ("huge", "the first sizes differ|is fixed"),
    ],
)
def test_requests_are_merged_only_where_rows_are_proved_independent(name: str, reason: str) -> None:
    note = served(name).batching_note()
    assert any(part in note for part in reason.split("|")), note


def test_all_waiting_requests_of_a_key_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("net", max_rows=8)
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, request())
        await gate.begun()
        others = [submit(endpoint, request(rows))[0] for rows in (1, 2, 3, 2, 1)]
        gate.opened.set()
        answers = [await future for future in (first, *others)]
        for answer, rows in zip(answers, (1, 1, 2, 3, 2, 1), strict=True):
            assert isinstance(answer, Answer)
            np.testing.assert_array_equal(answer.outputs[0].array, np.full((rows, 2), [16 * rows, 20 * rows]))
        assert gate.rows == [(1, 4), (8, 4), (1, 4)]
        endpoint.queue.close()

    run(work)


def test_a_busy_queue_takes_priorities_first_and_drops_cancelled_and_expired_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = served("net", mode="off")
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, request())
        await gate.begun()
        late, _ = submit(endpoint, request(2))
        urgent, _ = submit(endpoint, request(3, priority=1))
        expired, _ = submit(endpoint, request(4, timeout_us=1000))
        gone, entry = submit(endpoint, request(5))
        entry.cancel()
        result = await expired
        assert isinstance(result, RequestError) and result.kind == "timeout"
        gate.opened.set()
        await asyncio.gather(first, late, urgent)
        assert [shape[0] for shape in gate.rows] == [1, 3, 2]
        assert not gone.done()
        statistics = model.statistics
        assert (statistics.cancelled, statistics.expired, endpoint.queue.waiting) == (1, 1, 0)
        assert statistics.described()["inference_stats"]["fail"]["count"] == 2
        endpoint.queue.close()

    run(work)


def test_a_full_queue_refuses_at_once_and_says_when_to_return(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("net")
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model, queue_requests=2)
        accepted = [submit(endpoint, request())[0]]
        await gate.begun()
        accepted += [submit(endpoint, request())[0] for _ in range(2)]
        with pytest.raises(RequestError) as refused:
            submit(endpoint, request())
        assert refused.value.kind == "exhausted" and (refused.value.retry_after or 0) >= 1
        gate.opened.set()
        assert all(isinstance(answer, Answer) for answer in await asyncio.gather(*accepted))
        assert isinstance(await submit(endpoint, request())[0], Answer)
        endpoint.queue.close()

    run(work)


def test_requests_that_wait_for_their_sequence_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    states = (State("state", "next"),)
    model = ServedModel("accumulate", Model(session("accumulate"), Batching(queue_requests=2), states=states))
    gate = Gate(model, monkeypatch)

    def step(is_start: bool = False) -> InferRequest:
        inputs = {"x": np.ones((1, 1), np.float32)}
        return InferRequest("accumulate", inputs=inputs, sequence=SequencePosition(7, is_start))

    async def work() -> None:
        endpoint = endpoint_of(model)
        accepted = [submit(endpoint, step(True))[0]]
        await gate.begun()
        accepted += [submit(endpoint, step())[0] for _ in range(2)]
        with pytest.raises(RequestError) as refused:
            submit(endpoint, step())
        assert refused.value.kind == "exhausted"
        gate.opened.set()
        answers = await asyncio.gather(*accepted)
        assert [float(answer.outputs[0].array[0, 0]) for answer in answers] == [1, 2, 3]
        assert float((await submit(endpoint, step())[0]).outputs[0].array[0, 0]) == 4
        endpoint.queue.close()

    run(work)


def test_a_request_without_a_result_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served("gather")
    assert model.batching_note() == "sound"
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)

        def item(index: int) -> InferRequest:
            inputs = {"x": np.arange(4, dtype=np.float32)[None], "i": np.array([[index]])}
            return InferRequest("gather", inputs=inputs)

        first, _ = submit(endpoint, item(0))
        await gate.begun()
        futures = [submit(endpoint, item(index))[0] for index in (1, 99, 2)]
        gate.opened.set()
        good, bad, other = [await future for future in futures]
        assert good.outputs[0].array == 1 and other.outputs[0].array == 2
        assert isinstance(bad, Exception) and "GatherElements" in str(bad)
        assert isinstance(await first, Answer)
        endpoint.queue.close()

    run(work)


def test_other_inner_sizes_run_apart_without_padding() -> None:
    model = served("ragged")

    async def work() -> None:
        endpoint = endpoint_of(model)
        sizes = [3, 5, 3, 7, 5, 3]
        futures = []
        for index, size in enumerate(sizes):
            x = np.full((1, 3, size), float(index), np.float32)
            futures.append(submit(endpoint, InferRequest("ragged", inputs={"x": x}))[0])
        answers = await asyncio.gather(*futures)
        assert [float(answer.outputs[0].array[0, 0, 0]) for answer in answers] == list(range(len(sizes)))
        assert model.statistics.executions == 3
        endpoint.queue.close()

    run(work)


def test_padding_by_choice_cuts_outputs_to_the_sizes_of_the_request() -> None:
    model = served("doubled", ragged="pad")

    async def work() -> None:
        endpoint = endpoint_of(model)
        widths = [2, 5, 3]
        arrays = [np.random.default_rng(width).random((1, width), np.float32) for width in widths]
        futures = [submit(endpoint, InferRequest("doubled", inputs={"x": x}))[0] for x in arrays]
        answers = await asyncio.gather(*futures)
        for answer, x in zip(answers, arrays, strict=True):
            np.testing.assert_array_equal(answer.outputs[0].array, x + x)
        assert model.statistics.executions == 1
        endpoint.queue.close()

    run(work)


JOINED = Concatenation(["x"], [SizeInput("ends", "ends", "x")], {"less": "x"})


def test_concatenated_requests_are_one_run_with_the_ends_of_their_rows() -> None:
    model = served("joined", ragged="concat", concatenation=JOINED)
    assert model.batching_note() == "sound"
    assert [(t.name, t.sizes) for t in model.revision.interface.inputs.values()] == [("x", [-1, -1])]
    assert [(t.name, t.sizes) for t in model.revision.interface.outputs.values()] == [("sum", [-1]), ("less", [-1, -1])]

    async def work() -> None:
        endpoint = endpoint_of(model)
        shapes = [(1, 3), (1, 1), (2, 4), (1, 0), (1, 7)]
        arrays = [np.random.default_rng(index).random(shape, np.float32) for index, shape in enumerate(shapes)]
        futures = [submit(endpoint, InferRequest("joined", inputs={"x": x}))[0] for x in arrays]
        answers = await asyncio.gather(*futures)
        for answer, x in zip(answers, arrays, strict=True):
            np.testing.assert_allclose(answer.outputs[0].array, x.sum(1), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(answer.outputs[1].array, -x)
        assert model.statistics.executions == 1
        endpoint.queue.close()

    run(work)


def test_concatenated_rows_that_depend_on_each_other_run_apart() -> None:
    joined = Concatenation(["x"], [SizeInput("counts", "counts", "x")])
    model = served("joined_mean", ragged="concat", concatenation=joined)
    assert "differs from rows apart" in model.batching_note()

    async def work() -> None:
        endpoint = endpoint_of(model)
        futures = [
            submit(endpoint, InferRequest("joined_mean", inputs={"x": np.full((1, 2 + value), value, np.float32)}))[0]
            for value in range(3)
        ]
        assert [float(answer.outputs[0].array[0]) for answer in await asyncio.gather(*futures)] == [0, 1, 2]
        unlike = {"x": np.zeros((1, 2), np.float32), "counts": np.zeros(1, np.int64)}
        with pytest.raises(RequestError, match="unknown input 'counts'"):
            endpoint.infer(InferRequest("joined_mean", inputs=unlike), lambda _: None)
        endpoint.queue.close()

    run(work)


@pytest.mark.parametrize(
    "kind, expected",
    [
        ("counts", [2, 2, 5]),
        ("ends", [2, 4, 9]),
        ("offsets", [0, 2, 4, 9]),
        ("longest", [0, 0, 0, 0, 0]),
        ("shapes", [[2, 3], [2, 3], [5, 3]]),
        ("flat_shapes", [2, 3, 2, 3, 5, 3]),
    ],
)
def test_sizes_of_concatenated_rows(kind: Any, expected: list[Any]) -> None:
    arrays = [np.zeros((2, 2, 3)), np.zeros((1, 5, 3))]
    for dtype in (np.float32, np.int64):
        np.testing.assert_array_equal(
            SizeInput("s", kind, "x").tensor(arrays, np.dtype(dtype)), np.array(expected, dtype), strict=True
        )


def test_impossible_concatenations_are_refused() -> None:
    with pytest.raises(RequestError, match="do not fit int8"):
        SizeInput("s", "ends", "x").tensor([np.zeros((2, 100))], np.dtype(np.int8))
    with pytest.raises(OptionError, match="expected one of 'counts'"):
        SizeInput("s", "count", "x")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected a concatenated input"):
        Concatenation(["x"], [SizeInput("s", "counts", "y")])
    with pytest.raises(OptionError, match="expects the inputs to join"):
        Batching(ragged="concat")
    with pytest.raises(OptionError, match="expects no inputs to join"):
        Batching(concatenation=JOINED)
    with pytest.raises(UnsupportedError, match="concatenation: lost"):
        served("joined", ragged="concat", concatenation=Concatenation(["x"], [SizeInput("lost", "counts", "x")]))
    with pytest.raises(RequestError, match="as many rows of every input, got 1 of x, 2 of z"):
        JOINED.merged([{"x": np.zeros((1, 2)), "z": np.zeros(2)}], {})


def test_a_delay_collects_rows_only_if_it_is_set() -> None:
    model = served("net", max_delay_us=10**8, max_rows=64, preferred_rows=(3,))

    async def work() -> None:
        endpoint = endpoint_of(model)
        futures = [submit(endpoint, request())[0]]
        await asyncio.sleep(0.01)
        assert not futures[0].done()
        futures += [submit(endpoint, request())[0] for _ in range(2)]
        await asyncio.gather(*futures)
        assert model.statistics.executions == 1
        endpoint.queue.close()

    run(work)


def test_remembered_answers_end_with_the_revision() -> None:
    model = ServedModel("weighted", Model(session("weighted"), cached=True))

    async def work() -> None:
        endpoint = endpoint_of(model)

        async def ask() -> tuple[float, int]:
            x = np.ones((1, 2), np.float32)
            answer = await submit(endpoint, InferRequest("weighted", inputs={"x": x}))[0]
            return float(answer.outputs[0].array[0, 0]), answer.revision

        assert [await ask(), await ask()] == [(1, 0), (1, 0)]
        assert (model.statistics.cache_hit.count, model.statistics.executions) == (1, 1)
        model.session.update_weights({"a": np.full(2, 7, np.float32)})
        assert await ask() == (7, 1)
        model.retired = True  # Ends the proof of the new revision in the background.
        endpoint.queue.close()

    run(work)


def test_the_verdict_is_stored_for_later_processes_but_not_that_of_an_edited_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    path = save("batch_mean", tmp_path / "model.onnx")
    first = ServedModel("m", Model(Session(path, compile="wait")))
    monkeypatch.setattr(Snapshot, "run", lambda *_: pytest.fail("the model is run again"))
    again = ServedModel("m", Model(Session(path, compile="wait")))
    assert again.revision.verdict == first.revision.verdict
    assert not again.revision.verdict.is_sound
    edited = Session(path, compile="wait")
    with edited.edit() as edit:
        edit.add_output("m")
    assert edited.snapshot().remembered("batching", lambda: "computed") == "computed"
