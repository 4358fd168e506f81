"""Crashes and hangs of an evaluator are contained, and a candidate is blamed only after a second one."""

from __future__ import annotations

import os
import signal

import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx import model as model_io
from sardonyx.compat import onnxsim
from sardonyx.compress.float16 import auto_mixed_precision
from sardonyx.errors import EvaluationError, ShapeError
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.verify import Verifier
from sardonyx.rewrite.verify.child import Child
from sardonyx.rewrite.verify.client import Verifier as Client
from tests.rewrite.models import info, model, node

TANH = model([node("Tanh", ["x"], ["y"])], [info("x", ["n", 4])], [info("y", ["n", 4])])


def crash_at(monkeypatch: pytest.MonkeyPatch, what: str, times: int) -> list[int]:
    """Kill the child before it answers the first requests of one kind."""
    crashes: list[int] = []
    ask = Client.ask

    def crashing(self: Client, request: dict[str, object], seconds: float) -> dict[str, object]:
        if request["do"] == what and len(crashes) < times:
            crashes.append(1)
            assert self.child is not None
            os.kill(self.child.process.pid, signal.SIGSEGV)
            self.child.process.wait()
        return ask(self, request, seconds)

    monkeypatch.setattr(Client, "ask", crashing)
    return crashes


def test_a_crash_over_the_original_is_not_blamed_on_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, "reference", 9)
    with Verifier(model_io.from_proto(TANH)) as verifier:
        verdict = verifier.judge(model_io.from_proto(TANH), exact=True)
    assert verdict.status == "not proved"
    assert "the evaluator crashed" in verdict.reason and "SIGSEGV" in verdict.reason


def test_one_crash_of_the_original_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, "reference", 1)
    with Verifier(model_io.from_proto(TANH)) as verifier:
        assert verifier.judge(model_io.from_proto(TANH), exact=True).status == "proved"


def test_one_crash_of_a_candidate_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = crash_at(monkeypatch, "judge", 1)
    with Verifier(model_io.from_proto(TANH)) as verifier:
        assert verifier.judge(model_io.from_proto(TANH), exact=True).status == "proved"
    assert crashes


def test_a_candidate_that_crashes_again_is_different(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, "judge", 2)
    with Verifier(model_io.from_proto(TANH)) as verifier:
        verdict = verifier.judge(model_io.from_proto(TANH), exact=True)
        assert verdict.status == "different" and "crashed" in verdict.reason
        assert verifier.judge(model_io.from_proto(TANH), exact=True).status == "proved"


def test_an_original_that_takes_too_long_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped child never answers; a running one may answer before the timeout is checked."""
    ask = Client.ask

    def stopped(self: Client, request: dict[str, object], seconds: float) -> dict[str, object]:
        assert self.child is not None
        os.kill(self.child.process.pid, signal.SIGSTOP)
        return ask(self, request, seconds)

    monkeypatch.setattr(Client, "ask", stopped)
    with Verifier(model_io.from_proto(TANH), timeout=0) as verifier:
        verdict = verifier.judge(model_io.from_proto(TANH), exact=True)
    assert verdict.status == "not proved" and "more than" in verdict.reason


def test_exceeding_the_memory_limit_is_a_reason() -> None:
    nodes = [
        node("ConstantOfShape", ["s"], ["c"]),
        node("ReduceSum", ["c"], ["t"], keepdims=0),
        node("Add", ["x", "t"], ["y"]),
    ]
    huge = model(nodes, [info("x", ["n"])], [info("y", ["n"])], {"s": np.array([1 << 20, 1 << 20])})
    with Verifier(model_io.from_proto(huge)) as verifier:
        verdict = verifier.judge(model_io.from_proto(huge), exact=True)
    assert verdict.status == "not proved" and "ConstantOfShape" in verdict.reason
    assert verdict.peak_bytes < 1 << 30


@pytest.mark.long
def test_a_loop_that_doubles_its_state_ends_within_a_gigabyte() -> None:
    hostile = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[n] x) => (float[m] y) <int64 runs = {40}> {
          y = Loop <body = b (int64 i, bool go, float[k] state) => (bool on, float[k2] twice) {
            on = Identity (go)
            twice = Concat <axis = 0> (state, state)
          }> (runs, , x)
        }""")
    verdict = optimize(hostile).report.verdict
    assert verdict.status == "not proved"
    assert 0 < verdict.peak_bytes < 1 << 30


@pytest.mark.parametrize("times", [1, 99])
def test_a_crash_during_a_shape_trial_is_contained(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """One crash is retried; if every run of the original crashes, nothing is compared."""
    crashes: list[int] = []
    ask = Child.ask

    def crashing(self: Child, request: dict[str, object], seconds: float) -> dict[str, object]:
        if len(crashes) < times:
            crashes.append(1)
            os.kill(self.process.pid, signal.SIGSEGV)
            self.process.wait()
        return ask(self, request, seconds)

    monkeypatch.setattr(Child, "ask", crashing)
    fixed = model([node("Tanh", ["x"], ["y"])], [info("x", [1, 4])], [info("y", [1, 4])])
    changed = sardonyx.load(fixed)
    sardonyx.set_batch(changed, "n")
    assert crashes
    assert str(changed.graph.inputs[0].shape) == "[n,4]"


def test_a_model_that_crashes_at_other_shapes_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Child.ask

    def crashing(self: Child, request: dict[str, object], seconds: float) -> dict[str, object]:
        if str(request["path"]).endswith("1.onnx"):
            os.kill(self.process.pid, signal.SIGSEGV)
            self.process.wait()
        return ask(self, request, seconds)

    monkeypatch.setattr(Child, "ask", crashing)
    fixed = model([node("Tanh", ["x"], ["y"])], [info("x", [1, 4])], [info("y", [1, 4])])
    with pytest.raises(ShapeError, match=r"does not run .*crashed.*SIGSEGV"):
        sardonyx.set_batch(sardonyx.load(fixed), "n")


@pytest.fixture
def crash_over_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process asked to run a model is killed first."""
    ask = Child.ask

    def crashing(self: Child, request: dict[str, object], seconds: float) -> dict[str, object]:
        os.kill(self.process.pid, signal.SIGSEGV)
        self.process.wait()
        return ask(self, request, seconds)

    monkeypatch.setattr(Child, "ask", crashing)


@pytest.mark.usefixtures("crash_over_every_run")
def test_a_crash_in_the_search_for_mixed_precision_is_an_error_here() -> None:
    feeds = {"x": np.ones((2, 4), np.float32)}
    with pytest.raises(EvaluationError, match=r"crashed .*SIGSEGV"):
        auto_mixed_precision(model_io.from_proto(TANH), feeds, 1e-2)


@pytest.mark.usefixtures("crash_over_every_run")
def test_a_crash_over_a_trial_of_a_drop_in_module_is_an_error_here() -> None:
    with pytest.raises(EvaluationError, match=r"crashed .*SIGSEGV"):
        onnxsim.simplify(TANH, check_n=1)
