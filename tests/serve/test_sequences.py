"""Sequences: malformed first requests, ids that do not fit, clients that go away, time that is over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")
pytest.importorskip("httptools", reason="httptools is not installed (extra: serve)")

from sardonyx import Session
from sardonyx.errors import OptionError, RequestError
from sardonyx.serve import Batching, Control, Model, State
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.protocol.requests import InferRequest, SequencePosition
from tests.serve.dispatching import Gate, endpoint_of, run, submit
from tests.serve.models import HEAD, session

STATES = (State("state", "next"),)

SMALL_ID = """net (float[N, 1] x, int8[N, 1] id, float[N, 1] state) => (float[N, 1] y, int8[N, 1] i, float[N, 1] next)
{ y = Add(x, state) next = Identity(y) i = Identity(id) }"""


def accumulating(**batching: Any) -> ServedModel:
    return ServedModel("net", Model(session("accumulate"), Batching(**batching), states=STATES))


def step(value: float = 1.0, id: int = 7, start: bool = False, end: bool = False, **fields: Any) -> InferRequest:
    inputs = {"x": np.full((1, 1), value, np.float32)}
    return InferRequest("net", inputs=inputs, sequence=SequencePosition(id, start, end), **fields)


def sums(answers: Sequence[Any]) -> list[float]:
    return [float(answer.outputs[0].array[0, 0]) for answer in answers]


def test_a_malformed_first_request_opens_and_replaces_no_sequence() -> None:
    async def work() -> None:
        endpoint = endpoint_of(accumulating())
        malformed = step(start=True)
        malformed.inputs = {"z": malformed.inputs["x"]}
        with pytest.raises(RequestError, match="unknown input"):
            submit(endpoint, malformed)
        with pytest.raises(RequestError, match="not open"):
            submit(endpoint, step())
        assert sums([await submit(endpoint, step(2, start=True))[0]]) == [2]
        missing = step(start=True)
        missing.inputs = {}
        with pytest.raises(RequestError, match="missing"):
            submit(endpoint, missing)
        assert sums([await submit(endpoint, step(3))[0]]) == [5]
        endpoint.queue.close()

    run(work)


@pytest.mark.parametrize("id", [200, 2**63, 2**64 - 1])
def test_an_id_beyond_the_type_of_the_model_is_refused(id: int) -> None:
    model = Session(onnx.parser.parse_model(HEAD + SMALL_ID), compile="off", threads=1)
    served = ServedModel("net", Model(model, states=STATES, controls=[Control("id", "corrid")]))

    async def work() -> None:
        endpoint = endpoint_of(served)
        with pytest.raises(RequestError, match="INT8") as refused:
            submit(endpoint, step(id=id, start=True))
        assert refused.value.kind == "invalid" and not len(endpoint.sequences or ())
        await submit(endpoint, step(id=100, start=True))[0]
        endpoint.queue.close()

    run(work)


def test_a_request_whose_client_has_gone_is_no_part_of_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accumulating()
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, step(1, start=True))
        await gate.begun()
        gone, work = submit(endpoint, step(10))
        last, _ = submit(endpoint, step(100))
        work.cancel()
        gate.opened.set()
        assert sums(await asyncio.gather(first, last)) == [1, 101]
        assert not gone.done() and model.statistics.cancelled == 1
        endpoint.queue.close()

    run(work)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_cancelled_request_in_the_queue_lets_its_sequence_go_on(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    model = accumulating(mode="off")
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        if not is_first:
            gate.opened.set()
            await submit(endpoint, step(1, start=True))[0]
            gate.opened.clear()
            gate.started.clear()
        other, _ = submit(endpoint, step(5, id=8, start=True))
        await gate.begun()
        gone, work = submit(endpoint, step(10, start=is_first))
        later, _ = submit(endpoint, step(100))
        work.cancel()
        gate.opened.set()
        assert sums([await other]) == [5] and not gone.done()
        result = await later
        if is_first:
            assert isinstance(result, RequestError) and "not open" in str(result)
        else:
            assert sums([result]) == [101]
        assert sums([await submit(endpoint, step(3, start=True))[0]]) == [3]
        assert model.statistics.cancelled == 1 and len(endpoint.sequences or ()) == 2
        endpoint.queue.close()

    run(work)


def test_the_wait_for_a_sequence_counts_for_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = accumulating()
    gate = Gate(model, monkeypatch)

    async def work() -> None:
        endpoint = endpoint_of(model)
        first, _ = submit(endpoint, step(1, start=True))
        await gate.begun()
        late, _ = submit(endpoint, step(10, timeout_us=1000))
        last, _ = submit(endpoint, step(100))
        await asyncio.sleep(0.01)
        gate.opened.set()
        result = await late
        assert isinstance(result, RequestError) and result.kind == "timeout"
        assert sums(await asyncio.gather(first, last)) == [1, 101]
        endpoint.queue.close()

    run(work)


def test_a_model_without_the_tensors_of_its_sequences_is_refused() -> None:
    for options in ({"states": [State("none", "next")]}, {"states": [State("state", "none")]},
                    {"controls": [Control("none", "start")]}):  # fmt: skip
        with pytest.raises(OptionError, match="none"):
            ServedModel("net", Model(session("accumulate"), **options))
