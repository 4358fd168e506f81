"""A learner publishes to a live session: whole versions, guarded, kept over a kill, undone to the bit."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx
from sardonyx import train
from sardonyx.errors import ExecutionError, FeedError, OptionError, ResourceError, UnsupportedError
from sardonyx.train import DDM, Guard, Learner, PageHinkley, Replay
from tests.train.networks import classifier, images, points, regression


def session_of(model: bytes = b"") -> sardonyx.Session:
    return sardonyx.Session(model or classifier(), compile="wait", threads=1)


def accuracy(learner: Learner, seed: int = 999) -> float:
    held_out = images(96, seed)
    logits = learner.predict({"image": held_out["image"]}).outputs["logits"]
    return float((logits.argmax(1) == held_out["labels"]).mean())


def test_the_session_learns_from_the_stream() -> None:
    with Learner(session_of(), "cross-entropy", train.AdamW(0.02), replay=Replay(256), publish_every=5) as learner:
        before = accuracy(learner)
        for seed in range(40):
            learner.learn(images(32, seed))
        learner.flush()
        report = learner.report
        assert accuracy(learner) > max(0.8, before)
        assert report.samples == 40 * 32 and report.published > 1 and report.revision == report.published


def test_every_answer_is_that_of_one_published_version() -> None:
    session = session_of(regression())
    x = points(16)["x"]
    answers: list[tuple[int, bytes]] = []
    stop = threading.Event()

    with Learner(session, "mse", train.SGD(0.05)) as learner:

        def call() -> None:
            while not stop.is_set():
                answer = learner.predict({"x": x})
                answers.append((answer.revision, answer.outputs["y"].tobytes()))

        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for seed in range(40):
            learner.learn(points(32, seed))
        learner.flush()
        stop.set()
        for thread in threads:
            thread.join()
        by_revision: dict[int, set[bytes]] = {}
        for revision, answer in answers:
            by_revision.setdefault(revision, set()).add(answer)
        assert all(len(kinds) == 1 for kinds in by_revision.values())
        assert learner.report.published == 40


def test_the_guard_undoes_what_makes_the_model_worse() -> None:
    good = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02))
    for seed in range(80):
        good.step(images(32, seed))
    session = sardonyx.Session(good.model(), compile="wait", threads=1)
    feeds = {"image": images(8)["image"]}
    before = session.run(None, feeds)[0]
    with Learner(session, "cross-entropy", train.SGD(30.0), guard=Guard(every=4), publish_every=4) as learner:
        for seed in range(20):
            learner.learn(images(32, 200 + seed))
        learner.flush()
        assert learner.report.undone > 0 and learner.report.published == 0
    np.testing.assert_array_equal(session.run(None, feeds)[0], before)


def test_the_guard_permits_what_makes_the_model_better() -> None:
    guard = Guard(every=4, window=128)
    with Learner(session_of(), "cross-entropy", train.AdamW(0.02), guard=guard, publish_every=4) as learner:
        for seed in range(60):
            learner.learn(images(32, seed))
        learner.flush()
        assert learner.report.published > 0
        assert accuracy(learner) > 0.8


def test_rollback_restores_the_exact_bits_and_learning_goes_on() -> None:
    session = session_of(regression())
    x = {"x": points(8)["x"]}
    (before,) = session.run(None, x)
    with Learner(session, "mse", train.SGD(0.05)) as learner:
        for seed in range(5):
            learner.learn(points(32, seed))
        learner.flush()
        assert not np.array_equal(session.run(None, x)[0], before)
        learner.rollback(0)
        np.testing.assert_array_equal(session.run(None, x)[0], before)
        learner.learn(points(32, 9))
        learner.flush()
        assert learner.report.published == 6
        with pytest.raises(OptionError, match="revision"):
            learner.rollback(77)


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
import sardonyx
from sardonyx.train import Learner, SGD
from tests.train.networks import points, regression
session = sardonyx.Session(regression(), compile="wait", threads=1)
learner = Learner(session, "mse", SGD(0.05), store=sys.argv[1])
for seed in range(1000):
    learner.learn(points(32, seed))
    if learner.report.published > 20:
        print(session.model.graph.initializers["w"].const_value.numpy().tobytes().hex(), flush=True)
        os.kill(os.getpid(), 9)
"""


def test_a_kill_loses_no_publication(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).resolve().parents[2])]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    session = session_of(regression())
    original = session.run(None, {"x": points(4)["x"]})[0]
    with Learner(session, "mse", train.SGD(0.05), store=tmp_path) as learner:
        tensor = session.model.graph.initializers["w"].const_value
        assert tensor is not None
        assert not np.array_equal(session.run(None, {"x": points(4)["x"]})[0], original)
        assert learner.report.revision == 1
    with pytest.raises(OptionError, match="another learner"):
        Learner(session_of(), "cross-entropy", store=tmp_path)


def test_freeze_stops_learning_until_resume() -> None:
    with Learner(session_of(regression()), "mse", train.SGD(0.05)) as learner:
        learner.freeze()
        learner.learn(points(32))
        assert learner.report.steps == 0
        learner.resume()
        learner.flush()
        assert learner.report.steps == 1


def test_samples_that_do_not_fit_are_refused_at_once() -> None:
    with Learner(session_of(), "cross-entropy") as learner:
        with pytest.raises(FeedError, match="class indices"):
            learner.learn({"image": images(2)["image"]}, np.array([0, 7]))
        with pytest.raises(FeedError, match="rank"):
            learner.learn({"image": images(2)["image"][0]}, np.array([0]))
        with pytest.raises(OptionError, match="missing labels"):
            learner.learn({"image": images(2)["image"]})


def test_a_full_queue_drops_or_refuses_by_choice() -> None:
    with Learner(session_of(regression()), "mse", queue_size=1, when_full="drop") as learner:
        learner.freeze()
        for _ in range(8):
            learner.learn(points(4))
        assert learner.report.dropped >= 16
        learner.resume()
    with Learner(session_of(regression()), "mse", queue_size=1, when_full="refuse") as learner:
        learner.freeze()
        with pytest.raises(ResourceError, match="full"):
            for _ in range(8):
                learner.learn(points(4))
        learner.resume()


def test_the_shape_of_river_is_offered() -> None:
    with Learner(session_of(regression()), "mse", train.SGD(0.05), batch=1) as learner:
        data = points(8)
        for x, y in zip(data["x"], data["labels"], strict=True):
            assert learner.predict_one({"x": x})["y"].shape == (2,)
            learner.learn_one({"x": x}, y)
        learner.flush()
        assert learner.report.steps == 8


@pytest.mark.parametrize("detector", [PageHinkley(threshold=5.0), DDM()])
def test_detectors_signal_a_drift_and_stay_silent_before(detector: Any) -> None:
    rng = np.random.default_rng(0)
    early = [detector.update(float(rng.random() < 0.1)) or detector.drift_detected for _ in range(500)]
    late = [detector.update(float(rng.random() < 0.7)) or detector.drift_detected for _ in range(200)]
    assert not any(early) and any(late)


def test_a_drift_clears_the_memory_of_the_past() -> None:
    replay = Replay(512)
    with Learner(
        session_of(regression()), "mse", train.SGD(1e-5), replay=replay, drift=PageHinkley(threshold=20.0)
    ) as learner:
        for seed in range(10):
            learner.learn(points(32, seed))
        for seed in range(4):
            data = points(32, seed)
            learner.learn({"x": data["x"], "labels": data["labels"] + 10})
        learner.flush()
        assert learner.report.drifts >= 1 and len(replay) < 14 * 32


@pytest.mark.parametrize("guard", [None, Guard(every=3, window=8, least=4, tolerance=10.0)])
def test_the_cut_of_the_stream_does_not_matter(guard: Guard | None) -> None:
    data = points(60, 0)
    states = []
    for size in (60, 7, 1):
        with Learner(session_of(regression()), "mse", train.SGD(0.05), batch=10, guard=guard) as learner:
            for at in range(0, 60, size):
                learner.learn({name: array[at : at + size] for name, array in data.items()})
            learner.flush()
            report = learner.report
            assert report.samples + report.held_back == 60 and report.held_back == (20 if guard else 0)
            states.append(learner.trainer.state())
    for state in states[1:]:
        for name, array in state.items():
            np.testing.assert_allclose(array, states[0][name], rtol=1e-6)


def test_replay_is_bounded_and_uniform_over_the_stream() -> None:
    replay = Replay(100, seed=1)
    for i in range(1000):
        replay.add({"i": np.array(i)})
    drawn = [int(sample["i"]) for sample in replay.draw(200)]
    assert len(drawn) == len(set(drawn)) == 100
    assert 350 < np.mean(drawn) < 650
    ring = Replay(10, policy="ring")
    for i in range(25):
        ring.add({"i": np.array(i)})
    assert sorted(int(sample["i"]) for sample in ring.draw(10)) == list(range(15, 25))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guard(every=1),
        lambda: Guard(least=1),
        lambda: Guard(confidence=1.0),
        lambda: Replay(0),
        lambda: PageHinkley(threshold=0.0),
        lambda: Learner(session_of(regression()), "mse", batch=0),
        lambda: Learner(session_of(regression()), "mse", drift="adwim"),
    ],
)
def test_impossible_options_are_refused(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


def test_a_learner_that_failed_says_so() -> None:
    def broken(_: Learner) -> None:
        raise ExecutionError("the callback failed.")

    with Learner(
        session_of(regression()), "mse", drift=PageHinkley(threshold=1e-9, warm_up=1), on_drift=broken
    ) as learner:
        learner.learn(points(64))
        with pytest.raises(ExecutionError, match="has stopped"):
            learner.flush()
        with pytest.raises(ExecutionError, match="has stopped"):
            learner.learn(points(4))


def test_a_session_learns_and_answers() -> None:
    session = session_of()
    learner = session.learn(loss="cross-entropy", optimizer=train.AdamW(0.02), publish_every=5)
    before = accuracy(learner)
    for seed in range(30):
        data = images(32, seed)
        session.learn({"image": data["image"]}, data["labels"])
    learner.flush()
    assert accuracy(learner) > max(0.8, before)
    with pytest.raises(OptionError, match="first call"):
        session.learn(optimizer=train.SGD(0.1))
    learner.close()
    assert session.learn(loss="cross-entropy") is not learner
    session.learn().close()


def test_labels_that_come_later_are_learned() -> None:
    with Learner(session_of(regression()), "mse", train.SGD(0.05), batch=4, delayed=2) as learner:
        data = [points(4, seed) for seed in range(3)]
        for key, batch in enumerate(data):
            assert learner.observe(key, {"x": batch["x"]}).outputs["y"].shape == (4, 2)
        with pytest.raises(OptionError, match="wait for labels"):
            learner.label(0, data[0]["labels"])  # The oldest of three is forgotten.
        with pytest.raises(FeedError):
            learner.label(1, np.zeros((4, 3), np.float32))
        learner.label(1, data[1]["labels"])
        learner.flush()
        assert learner.report.samples == 4 and learner.report.dropped == 4


def test_consolidated_weights_keep_what_was_learned() -> None:
    first, second = images(96), images(96, 1)
    second["labels"] = (second["labels"] + 1) % 3
    losses = {}
    for strength in (0.0, 3000.0):
        trainer = train.Trainer(classifier(), "cross-entropy", train.EWC(base=train.AdamW(0.01), strength=strength))
        for _ in range(60):
            trainer.step(first)
        known = trainer.evaluate(first)["loss"]
        trainer.consolidate(first, samples=32)
        for _ in range(20):
            trainer.step(second)
        losses[strength] = trainer.evaluate(first)["loss"] - known
    assert losses[3000.0] < 0.5 * losses[0.0]
    with pytest.raises(OptionError, match="EWC"):
        train.Trainer(classifier(), "cross-entropy", train.SGD(0.1)).consolidate(first)


def test_weights_that_cannot_be_published_are_refused_before_the_first_sample() -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=helper.make_tensor("w", 1, [4, 2], np.arange(8.0) / 8)),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", 1, ["N", 4])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, ["N", 2])])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(UnsupportedError, match=r"cannot be published.*trainable_form"):
        Learner(sardonyx.Session(source, compile="wait"), "mse")
    session = sardonyx.Session(train.trainable_form(sardonyx.load(source)), compile="wait")
    with Learner(session, "mse", batch=4) as learner:
        for sample in range(8):
            learner.learn_one({"x": np.full(4, sample, np.float32)}, np.ones(2, np.float32))
        learner.flush()
    assert learner.report.published


def test_samples_of_different_numbers_are_refused_and_the_learner_goes_on() -> None:
    with Learner(session_of(), "cross-entropy", train.SGD(0.1), batch=4) as learner:
        batch = images(8)
        with pytest.raises(FeedError, match="labels: axis 0 has size 7, and N is 8 in image"):
            learner.learn({"image": batch["image"]}, batch["labels"][:7])
        learner.learn(batch)
        learner.flush()
        assert learner.report.samples == 8


def test_a_closed_learner_refuses_samples() -> None:
    learner = Learner(session_of(), "cross-entropy", train.SGD(0.1))
    learner.close()
    with pytest.raises(ExecutionError, match="the learner is closed"):
        learner.learn(images(4))
