"""Ensembles whose steps are computed without a request each answer as those whose steps are requests."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="msgspec is not installed (extra: serve)")

from sardonyx.errors import RequestError
from sardonyx.serve import Batching, Ensemble, EnsembleStep, Limits, Model, State
from sardonyx.serve.dispatch.fused import FusedEnsemble
from sardonyx.serve.dispatch.host import Host
from sardonyx.serve.models.ensemble import ServedEnsemble
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.operations.live_edits import edit
from sardonyx.serve.protocol.requests import Answer, InferRequest, RequestedOutput
from tests.random_cases import cases
from tests.serve.dispatching import Gate, request, run
from tests.serve.models import ENSEMBLES, session


class Pipes:
    """A host of `ENSEMBLES` and their models."""

    def __init__(self, is_fused: bool = True, limits: Limits | None = None, **models: Model) -> None:
        may_fuse = (lambda name: True) if is_fused else None
        self.host = Host(limits or Limits(), asyncio.get_running_loop(), may_fuse=may_fuse)
        self.models = {}
        for name in ("doubled", "net", "weighted"):
            self.models[name] = ServedModel(name, models.get(name, Model(session(name))))
            self.host.put(name, [self.models[name]])
        for name, ensemble in ENSEMBLES.items():
            self.put(name, ensemble)

    def put(self, name: str, ensemble: Ensemble) -> None:
        self.host.put(name, [ServedEnsemble(name, ensemble)])

    def submit(self, item: InferRequest, name: str = "pipe") -> tuple[asyncio.Future[Any], Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        entry = self.host.get(name).infer(item, lambda result: future.done() or future.set_result(result))
        return future, entry

    async def outcome(self, item: InferRequest, name: str) -> Any:
        try:
            return await self.submit(item, name)[0]
        except RequestError as error:
            return error

    def counts(self) -> dict[str, Any]:
        counted = {}
        for endpoint in self.host:
            stats = endpoint.model.statistics
            counted[endpoint.model.name] = [stats.inferences, stats.success.count, stats.fail.count, stats.queue.count]
        return counted


def drawn(rng: random.Random, name: str) -> InferRequest:
    """Return a request that may have no result, or a shape or an output that the ensemble lacks."""
    width = (4 if name == "pipe" else 2) + (rng.random() < 0.1)
    x = np.random.default_rng(rng.randrange(1 << 30)).standard_normal((rng.choice((1, 1, 2, 7, 80)), width))
    names = rng.choice(((), ("y",), ("z", "y"), ("y", "y"), ("mid",)))
    outputs = [RequestedOutput(output) for output in names]
    options = {"priority": rng.choice((0, 0, 1)), "timeout_us": rng.choice((0, 0, 10**9))}
    return InferRequest(name, inputs={"x": x.astype(np.float32)}, outputs=outputs, size=x.nbytes, **options)


@pytest.mark.sampled
def test_drawn_requests_are_answered_as_step_by_step() -> None:
    async def work() -> None:
        rng = random.Random(7)
        pipes = [Pipes(), Pipes(is_fused=False)]
        for _ in range(cases(200)):
            seeds = [(rng.choice(("pipe", "branched")), rng.randrange(1 << 30)) for _ in range(rng.randrange(1, 9))]
            results = []
            for part in pipes:
                items = [part.outcome(drawn(random.Random(seed), name), name) for name, seed in seeds]
                results.append(await asyncio.gather(*items))
            for fused, stepped in zip(*results, strict=True):
                assert type(fused) is type(stepped), (fused, stepped)
                if isinstance(fused, Answer):
                    assert [o.name for o in fused.outputs] == [o.name for o in stepped.outputs]
                    assert (fused.model, fused.version, fused.revision) == (stepped.model, "1", stepped.revision)
                    for left, right in zip(fused.outputs, stepped.outputs, strict=True):
                        np.testing.assert_allclose(left.array, right.array, rtol=1e-6)
                else:
                    assert (str(fused), fused.kind, fused.where) == (str(stepped), stepped.kind, stepped.where)
            if rng.random() < 0.2:
                weights = {"a": np.full(2, rng.random(), np.float32)}
                for part in pipes:
                    part.models["weighted"].session.update_weights(weights)
        assert pipes[0].counts() == pipes[1].counts()
        assert pipes[0].models["net"].statistics.executions < pipes[0].models["net"].statistics.success.count

    run(work)


def test_rows_of_several_requests_are_one_run_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipes = Pipes()
        gate = Gate(pipes.models["net"], monkeypatch)
        futures = [pipes.submit(request(1))[0]]
        await gate.begun()
        futures += [pipes.submit(request(2))[0] for _ in range(3)]
        assert pipes.host.get("pipe").queue.waiting == 3
        gate.opened.set()
        answers = [await future for future in futures]
        for rows, answer in zip((1, 2, 2, 2), answers, strict=True):
            np.testing.assert_array_equal(answer.outputs[0].array, np.full((rows, 2), 2.0 * rows) * [16, 20])
        assert [rows[0] for rows in gate.rows] == [1, 6]
        assert pipes.models["doubled"].statistics.executions == 2
        assert pipes.models["net"].statistics.success.count == 4 and not pipes.host.pending

    run(work)


def test_an_edit_between_two_steps_is_in_no_answer_or_in_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipes = Pipes()
        steps = [EnsembleStep("weighted", {"x": a}, {"y": b}) for a, b in (("x", "m"), ("m", "OUT"))]
        pipes.put("twice", Ensemble(steps, ["x"], ["OUT"]))
        gate = Gate(pipes.models["weighted"], monkeypatch)
        begun = pipes.submit(request(1, 2), "twice")[0]
        await gate.begun()
        waiting = pipes.submit(request(1, 2), "twice")[0]
        pipes.models["weighted"].session.update_weights({"a": np.full(2, 3, np.float32)})
        gate.opened.set()
        first, second = await begun, await waiting
        np.testing.assert_array_equal(first.outputs[0].array, [[1, 1]])
        np.testing.assert_array_equal(second.outputs[0].array, [[9, 9]])
        assert (first.revision, second.revision) == (0, 1)
        third = await pipes.submit(request(1, 2), "twice")[0]
        np.testing.assert_array_equal(third.outputs[0].array, [[9, 9]])

    run(work)


def test_requests_fail_by_name_once_an_edit_breaks_the_ensemble(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipes = Pipes()
        gate = Gate(pipes.models["doubled"], monkeypatch)
        begun = pipes.submit(request(1))[0]
        await gate.begun()
        waiting = pipes.submit(request(1))[0]
        edit(pipes.models["net"].session, [
            {"verb": "add_node", "node": {"op_type": "Neg", "inputs": ["y"], "outputs": ["z"]}},
            {"verb": "add_output", "tensor": "z"}, {"verb": "remove_output", "name": "y"},
        ])  # fmt: skip
        gate.opened.set()
        assert isinstance(await begun, Answer)
        error = await waiting
        assert isinstance(error, RequestError) and error.kind == "unavailable" and "no output 'y'" in str(error)
        assert pipes.host.get("pipe").model.statistics.fail.count == 1
        pipes.models["net"].session.undo()
        assert isinstance(await pipes.submit(request(1))[0], Answer)

    run(work)


def test_a_cancelled_request_that_waits_is_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipes = Pipes()
        gate = Gate(pipes.models["doubled"], monkeypatch)
        begun = pipes.submit(request(1))[0]
        await gate.begun()
        _, entry = pipes.submit(request(1))
        entry.cancel()
        pipes.host.remove("net")
        assert pipes.host.pending
        gate.opened.set()
        assert isinstance(await begun, Answer), "a model that is unloaded finishes the requests before"
        assert pipes.models["net"].statistics.inferences == 1 and not pipes.host.pending
        assert pipes.host.get("pipe").model.statistics.cancelled == 1
        with pytest.raises(RequestError, match="missing"):
            pipes.submit(request(1))

    run(work)


def test_too_many_waiting_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pipes = Pipes(limits=Limits(queue_requests=2))
        gate = Gate(pipes.models["doubled"], monkeypatch)
        futures = [pipes.submit(request(1))[0]]
        await gate.begun()
        futures += [pipes.submit(request(1))[0] for _ in range(2)]
        with pytest.raises(RequestError, match="2 requests") as caught:
            pipes.submit(request(1))
        assert caught.value.kind == "exhausted" and pipes.host.get("pipe").model.statistics.rejected == 1
        gate.opened.set()
        assert all(isinstance(answer, Answer) for answer in await asyncio.gather(*futures))

    run(work)


def test_an_ensemble_in_an_ensemble_is_fused_too() -> None:
    async def work() -> None:
        pipes = Pipes()
        steps = [EnsembleStep("doubled", {"x": "x"}, {"y": "m"}), EnsembleStep("pipe", {"x": "m"}, {"y": "OUT"})]
        pipes.put("outer", Ensemble(steps, ["x"], ["OUT"]))
        answers = await asyncio.gather(*(pipes.submit(request(1), "outer")[0] for _ in range(5)))
        for answer in answers:
            np.testing.assert_array_equal(answer.outputs[0].array, [[64, 80]])
        stats = {endpoint.model.name: endpoint.model.statistics for endpoint in pipes.host}
        assert [stats[name].executions for name in ("outer", "pipe", "doubled", "net")] == [1, 1, 2, 1]
        pipes.models["net"].session.update_weights({"w": np.ones((4, 2), np.float32)})
        answer = await pipes.submit(request(1), "outer")[0]
        np.testing.assert_array_equal(answer.outputs[0].array, [[16, 16]])
        assert answer.revision == 1

    run(work)


@pytest.mark.parametrize(
    "options",
    [
        {"batching": Batching(max_delay_us=10)}, {"batching": Batching(queue_requests=5)}, {"cached": True},
        {"batching": Batching(priority_levels=2)}, {"batching": Batching(keeps_order=True)},
        {"batching": Batching(timeout_us=10**6)},
    ],
)  # fmt: skip
def test_models_with_rules_of_their_own_get_every_step_as_a_request(options: dict[str, Any]) -> None:
    async def work() -> None:
        pipes = Pipes(net=Model(session("net"), **options))
        assert pipes.host.get("net").part is None and pipes.host.get("pipe").part is None
        assert isinstance(await pipes.submit(request(1))[0], Answer)
        assert pipes.host.get("doubled").part is pipes.models["doubled"]

    run(work)


def test_models_with_state_are_never_fused() -> None:
    async def work() -> None:
        pipes = Pipes()
        model = Model(session("accumulate"), states=[State("state", "next")])
        pipes.host.put("accumulate", [ServedModel("accumulate", model)])
        assert pipes.host.get("accumulate").part is None

    run(work)


def test_long_steps_become_requests_and_are_measured_again() -> None:
    forgotten = []
    fused = FusedEnsemble(ServedEnsemble("pipe", ENSEMBLES["pipe"]))
    fused.on_long = lambda: forgotten.append(True)
    fused.ran(1, 1, 10**9)
    assert not fused.is_long, "one run does not decide"
    for _ in range(20):
        fused.ran(64, 64, 64 * 1000)
    runs = 0
    while not forgotten:
        fused.ran(1, 1, 10**7)
        runs += 1
    assert 2 < runs < 16
    long = 0
    while fused.is_long:
        long += 1
    assert 100 < long < 10_000
