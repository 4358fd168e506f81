"""Bad input of training has a named error before the first step, and leaves parameters and checkpoints as they are."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import train
from sardonyx.errors import ExecutionError, FeedError, ModelFileError, OptionError, SardonyxError, UnsupportedError
from tests.train.networks import classifier, images, points, regression


def parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
TWO_OUTPUTS = """g (float[N, 4] x) => (float[N, 3] y, float[N, 3] z) {
  y = MatMul (x, v)  z = MatMul (x, w)
}"""


@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_labels_out_of_range(label: int) -> None:
    trainer = train.Trainer(classifier(), "cross-entropy")
    data = images(8)
    data["labels"][5] = label
    with pytest.raises(FeedError, match=rf"from 0 to 2, got {label} at \[5\]"):
        trainer.step(data)
    with pytest.raises(FeedError):
        trainer.evaluate(data)


@pytest.mark.parametrize("steps", [0, 5])  # A size gets a native call of its own after some steps.
def test_indices_out_of_range_are_named_and_change_nothing(steps: int) -> None:
    model = parsed(
        "g (int64[N] i) => (float[N, 3] y) { h = Gather (e, i)  y = MatMul (h, w) }",
        e=np.arange(20, dtype=np.float32).reshape(5, 4), w=W,
    )  # fmt: skip
    trainer = train.Trainer(model, "cross-entropy", train.SGD(0.01))
    labels = np.array([0, 1, 2])
    for _ in range(steps):
        trainer.step({"i": np.array([4, 0, -5]), "labels": labels})
    before = trainer.state()
    wrong = {"i": np.array([1, 2, 30]), "labels": labels}
    for call in (trainer.step, trainer.evaluate, trainer.gradients):
        with pytest.raises(ExecutionError, match="index 30 is out of range"):
            call(wrong)
    for name, array in trainer.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    "batch, match",
    [
        ({"x": np.zeros((2, 5), np.float32), "labels": np.zeros((2, 2), np.float32)}, "axis 1 has size 5, expected 4"),
        ({"x": np.zeros((2, 4, 1), np.float32), "labels": np.zeros((2, 2), np.float32)}, "expected rank 2"),
        ({"x": np.zeros((2, 4), np.float32), "labels": np.zeros((2, 3), np.float32)}, "labels"),
        (
            {"x": np.zeros((2, 4), np.complex64), "labels": np.zeros((2, 2), np.float32)},
            r"got complex64\. Convert the array to float32\.",
        ),
        ({"x": np.zeros((2, 4), np.float32), "labels": np.array([["a", "b"]] * 2)}, "labels"),
        ({"x": np.zeros((0, 4), np.float32), "labels": np.zeros((0, 2), np.float32)}, "expected elements"),
        ({"x": np.zeros((2, 4), np.float32)}, "missing labels"),
        ({}, "missing x, labels"),
    ],
)
def test_batches_that_do_not_fit(batch: dict[str, np.ndarray], match: str) -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    before = trainer.state()
    with pytest.raises((FeedError, OptionError), match=match):
        trainer.step(batch)
    with pytest.raises((FeedError, OptionError)):
        trainer.fit([batch], progress=False)
    assert all(np.array_equal(before[name], array) for name, array in trainer.state().items())


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"privacy": train.Privacy(1.0, 0.1)}])
def test_arrays_of_different_counts_are_named(options: dict[str, Any]) -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1), **options)
    for _ in range(3):  # Interpreted and native calls.
        with pytest.raises(SardonyxError, match=r"size 2, expected .*= 3") as refused:
            trainer.step({"x": np.zeros((3, 4), np.float32), "labels": np.zeros((2, 2), np.float32)})
        assert "labels" in str(refused.value)
        trainer.step({"x": np.ones((3, 4), np.float32), "labels": np.zeros((3, 2), np.float32)})


@pytest.mark.parametrize("name", ["data", "validation"])
@pytest.mark.parametrize(
    "change, match",
    [
        ({"labels": np.array([0, 1, 2, 2, 1, 3])}, r"labels: expected class indices from 0 to 2, got 3 at \[5\]"),
        ({"labels": np.eye(3, dtype=np.float32)[[0, 1, 2, 2, 1, 0]]}, r"got float32\. Give class indices .*`axis`"),
        ({"labels": np.zeros((6, 1), np.int64)}, r"expected rank 1 \[N\], got shape \[2, 1\]\. Give class indices"),
        ({"labels": np.zeros(5, np.int64)}, "the same number of samples"),
        ({"image": np.zeros((6, 1, 8, 9), np.float32)}, "image: axis 3 has size 9, expected 8"),
    ],
)
def test_whole_arrays_are_checked_before_the_first_step(name: str, change: dict[str, np.ndarray], match: str) -> None:
    trainer = train.Trainer(classifier(), "cross-entropy")
    data, before = images(6), trainer.state()
    feeds = {"data": data, "validation": data} | {name: data | change}
    with pytest.raises((FeedError, OptionError), match=rf"{name}.*{match}"):
        trainer.fit(feeds["data"], validation=feeds["validation"], batch_size=2, progress=False)
    assert all(np.array_equal(before[key], array) for key, array in trainer.state().items())


def test_a_batch_of_fixed_size_is_checked_as_a_batch() -> None:
    model = parsed("g (float[2, 4] x) => (float[2, 3] y) { y = MatMul (x, w) }", w=W)
    data = {"x": np.ones((6, 4), np.float32), "labels": np.array([0, 1, 2, 2, 1, 0])}
    history = train.Trainer(model, "cross-entropy").fit(data, validation=data, batch_size=2, progress=False)
    assert history["validation_loss"][0] > 0


def test_teachers_that_read_other_arrays() -> None:
    loss = train.Distillation(alpha=1.0)
    other = parsed("g (float[N, 4] z) => (float[N, 3] y) { y = MatMul (z, w) }", w=W)
    with pytest.raises(OptionError, match="the teacher reads 'z'"):
        train.Trainer(classifier(), loss, teacher=other)
    flat = parsed("g (float[N, 4] image) => (float[N, 3] y) { y = MatMul (image, w) }", w=W)
    with pytest.raises(OptionError, match="the teacher's input 'image' has rank 2, that of the student 4"):
        train.Trainer(classifier(), loss, teacher=flat)
    with pytest.raises(OptionError, match="the loss reads no outputs of a teacher"):
        train.Trainer(classifier(), "cross-entropy", teacher=classifier())


def test_a_checkpoint_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "states").write_text("")
    with pytest.raises(ModelFileError, match="expected a folder, got a file"):
        train.Trainer(classifier(), "cross-entropy").fit(images(4), checkpoint=tmp_path / "states", progress=False)


def test_a_sparse_selection_without_tables() -> None:
    with pytest.raises(OptionError, match="no trained parameter is a table that `Gather` reads"):
        train.Trainer(classifier(), "cross-entropy", train.Adam(), sparse="embeddings")


def test_batches_whose_sizes_contradict_each_other() -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    with pytest.raises(SardonyxError):
        trainer.step({"x": np.zeros((2, 4), np.float32), "labels": np.zeros((3, 2), np.float32)})


def test_an_unknown_parameter_names_similar_ones() -> None:
    with pytest.raises(OptionError, match=r"no parameter matches 'head.wieght'.*head\.weight"):
        train.Trainer(classifier(), "cross-entropy", trainable="head.wieght")


def test_a_loss_that_reaches_no_trained_weight() -> None:
    model = parsed(TWO_OUTPUTS, v=W, w=W)
    with pytest.raises(OptionError, match="no trained parameter reaches the loss"):
        train.Trainer(model, train.MeanSquaredError("y"), trainable="w")
    trainer = train.Trainer(model, train.MeanSquaredError("y"))
    assert trainer.notes == ("No gradient reaches w.",)
    blocked = parsed("g (float[N, 4] x) => (float[N, 3] y) { m = MatMul (x, w)  y = Round (m) }", w=W)
    with pytest.raises(OptionError, match="no trained parameter reaches the loss"):
        train.Trainer(blocked, "mse")
    chosen = parsed(
        "g (float[N, 4] x) => (float[N, 1] y) { m = MatMul (x, w)  i = ArgMax <axis = 1> (m)  y = Cast <to = 1> (i) }",
        w=W,
    )
    with pytest.raises(OptionError, match="no trained parameter reaches the loss"):
        train.Trainer(chosen, "mse")


def test_a_model_of_constants_alone() -> None:
    model = parsed("g (float[N, 3] x) => (float[N, 3] y) { y = Mul (x, c) }", c=np.ones(3, np.float32))
    with pytest.raises(UnsupportedError, match=r"no weight to train: .* \(c\)"):
        train.Trainer(model, "mse")


def test_an_output_of_one_number_has_a_label_of_one_number() -> None:
    model = parsed("g (float[N, 4] x) => (float y) { m = MatMul (x, w)  y = ReduceSum <keepdims = 0> (m) }", w=W)
    trainer = train.Trainer(model, "mse", train.SGD(0.001))
    batch = {"x": np.ones((2, 4), np.float32), "labels": np.float32(1)}
    assert trainer.step(batch) > trainer.step(batch)
    assert trainer.evaluate([batch])["loss"] >= 0


def test_integer_models() -> None:
    integers = parsed("g (int64[N, 4] x) => (int64[N, 3] y) { y = MatMul (x, w) }", w=W.astype(np.int64))
    with pytest.raises((OptionError, UnsupportedError), match="float"):
        train.Trainer(integers, "mse")
    labels = parsed("g (float[N, 4] x) => (int64[N, 1] y) { m = MatMul (x, w)  y = ArgMax <axis = 1> (m) }", w=W)
    with pytest.raises(OptionError, match="floating-point output"):
        train.Trainer(labels, "cross-entropy")
    with pytest.raises(OptionError, match="expected an output of the model"):
        train.Trainer(classifier(), train.CrossEntropy("logit"))


def test_an_operator_without_gradient_is_named() -> None:
    model = parsed(
        "g (float[N, 4] x) => (float[M, 3] y) { m = MatMul (x, w)  y, i, j, k = Unique <axis = 0> (m) }", w=W
    )
    with pytest.raises(UnsupportedError, match="Unique has no gradient"):
        train.Trainer(model, train.FunctionLoss(outputs=("y",)))


def test_a_failing_loader_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    def loader() -> Any:
        for seed in range(3):
            yield images(16, seed)
        raise Broken("the disk is gone")

    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    with pytest.raises(Broken, match="the disk is gone"):
        trainer.fit(loader(), checkpoint=tmp_path, progress=False)
    again = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    again.fit([images(16, seed) for seed in range(4)], checkpoint=tmp_path, resume=True, progress=False)
    straight = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    straight.fit([images(16, seed) for seed in range(4)], progress=False)
    assert all(np.array_equal(straight.state()[name], array) for name, array in again.state().items())


@pytest.fixture
def interruptible() -> Any:
    """Ctrl-C raises KeyboardInterrupt, whatever handler the process has."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_leaves_a_checkpoint(tmp_path: Path, interruptible: None) -> None:
    def loader() -> Any:
        for seed in range(1000):
            if seed == 3:
                signal.raise_signal(signal.SIGINT)
            yield images(16, seed)

    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.01))
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader(), checkpoint=tmp_path, progress=False)
    fresh = train.Trainer(classifier(), "cross-entropy", train.SGD(0.01))
    fresh.fit([images(16)] * 2, epochs=1, steps=1, checkpoint=tmp_path, resume=True, progress=False)
    assert any(not np.array_equal(array, trainer.state()[name]) for name, array in
               train.Trainer(classifier(), "cross-entropy", train.SGD(0.01)).state().items())  # fmt: skip
    assert (tmp_path / "training.safetensors").exists()


@pytest.mark.parametrize("name", ["label", "y", "target"])
def test_labels_may_have_another_usual_name(name: str) -> None:
    data = points(8)
    losses = [
        train.Trainer(regression(), "mse", train.SGD(0.1), seed=0).fit(named, epochs=1, batch_size=4)["loss"]
        for named in (data, {"x": data["x"], name: data["labels"]})
    ]
    assert losses[0] == losses[1]


def test_an_array_of_no_usual_name_is_no_label() -> None:
    data = points(8)
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    with pytest.raises(OptionError, match="missing labels"):
        trainer.fit({"x": data["x"], "weights": data["labels"]}, epochs=1)


def test_a_learner_refuses_what_does_not_fit_at_once() -> None:
    session = sardonyx.Session(regression(), compile="wait", threads=1)
    with train.Learner(session, "mse") as learner:
        with pytest.raises(FeedError):
            learner.learn({"x": np.zeros((2, 5), np.float32)}, np.zeros((2, 2), np.float32))
        with pytest.raises(OptionError, match="missing labels"):
            learner.learn({"x": points(2)["x"]})
        learner.learn({"x": points(2)["x"]}, points(2)["labels"])
        learner.flush()
        assert learner.report.samples == 2


@pytest.mark.parametrize(
    "options, where",
    [
        ({"trainable": []}, "trainable"),
        ({"trainable": 3}, "trainable"),
        ({"groups": ["w"]}, "groups: expected options by pattern of names"),
        ({"groups": {"w": 0.1}}, "groups, w: expected options by name"),
        ({"groups": {"w": {"rate": -1}}}, "rate"),
        ({"groups": {"w": {"rate": "x"}}}, "rate"),
        ({"clip_norm": "a"}, "clip_norm"),
        ({"clip_value": float("nan")}, "clip_value"),
        ({"ema": "a"}, "ema"),
        ({"accumulate": 1.5}, "accumulate"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 31}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"dropout": {"drop*": 0.5}}, "dropout"),
        ({"max_memory": "2GB"}, "max_memory"),
        ({"metrics": 3}, "metrics"),
        ({"lora": 8}, "expected a LoRA, got 8"),
        ({"loss": None}, "loss"),
        ({"optimizer": 3}, "optimizer"),
    ],
)
def test_options_of_another_kind_are_named(options: dict[str, object], where: str) -> None:
    arguments = {"loss": "mse", "optimizer": "sgd", **options}
    with pytest.raises(OptionError, match=where):
        train.Trainer(regression(), **arguments)  # type: ignore[arg-type]


def test_one_name_is_a_collection_of_one_name() -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", metrics="top1")  # type: ignore[arg-type]
    assert "top1" in trainer.evaluate(images(8))
    names = [parameter.name for parameter in sardonyx.gradient(regression(), wrt="w").graph.outputs]
    assert "w_gradient" in names


def test_functions_of_training_name_arguments_of_another_kind(tmp_path: Path) -> None:
    session = sardonyx.Session(regression(), compile="off")
    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("of: expected the name of a tensor, got 3", lambda: sardonyx.gradient(regression(), of=3)),
        ("session: expected a Session", lambda: train.Learner("model.onnx", "mse")),
        ("guard: expected a Guard, got True", lambda: train.Learner(session, "mse", guard=True)),
        ("replay: expected a Replay, got 100", lambda: train.Learner(session, "mse", replay=100)),
        ("trainer: expected a Trainer", lambda: train.generate_artifacts("model.onnx", tmp_path)),
        ("trainer: expected a Trainer", lambda: train.with_training_info("model.onnx")),
        ("classes: expected an integer of at least 1, got 'ten'", lambda: train.swap_head(classifier(), "ten")),
    )  # type: ignore[arg-type]
    for match, call in calls:
        with pytest.raises(OptionError, match=match):
            call()


@pytest.mark.parametrize("rate", ["x", float("nan"), float("inf"), -1, None])
def test_rates_that_are_no_numbers_are_refused(rate: object) -> None:
    with pytest.raises(OptionError, match="rate"):
        train.SGD(rate)  # type: ignore[arg-type]


def test_calls_with_impossible_arguments_are_refused() -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1))
    batch = {"x": np.zeros((2, 4), np.float32), "labels": np.zeros((2, 2), np.float32)}
    before = trainer.state()
    for wrong in (3, None, (batch["x"],), (batch["x"], batch["labels"], batch["x"]), {**batch, "x": [[1], [1, 2]]}):
        with pytest.raises((FeedError, OptionError)):
            trainer.step(wrong)  # type: ignore[arg-type]
    for options in (
        {"epochs": 1.5}, {"epochs": 0}, {"steps": 0}, {"checkpoint_steps": -1}, {"batch_size": "3"}, {"batch_size": 0},
    ):  # fmt: skip
        with pytest.raises(OptionError):
            trainer.fit(batch, progress=False, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="at least one batch"):
        trainer.evaluate([])
    for name, array in trainer.state().items():
        np.testing.assert_array_equal(before[name], array)
    trainer.fit(batch, progress=False)
    with pytest.raises(OptionError, match="counts all"):
        trainer.fit(batch, progress=False)


def test_samples_with_nan_are_named_by_their_number_in_the_data() -> None:
    data = images(40)
    data["image"][[7, 31], 0, 2, 2] = np.nan, np.inf
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.01))
    with pytest.raises(ExecutionError, match=r"2 of 40 samples .* In the data: sample 7, 31\."):
        trainer.fit(data, batch_size=40, progress=False)
    with pytest.raises(ExecutionError, match=r"1 of 1 samples .* In the data: sample (7|31)\."):
        trainer.fit(data, batch_size=1, progress=False)


def test_outputs_of_unknown_rank_are_refused() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> net (float[N, 4] x) => (y) {
            h = MatMul (x, w)
            n = Constant <value = int64 {3}> ()
            go = Constant <value = bool {1}> ()
            none = SequenceEmpty <dtype = 1> ()
            last, all = Loop (n, go, h, none) <body = step (int64 i, bool c, float[N, 4] s, seq(float[N, 4]) before)
                => (bool d, float[N, 4] t, seq(float[N, 4]) after) {
                d = Identity (c)
                t = Tanh (s)
                after = SequenceInsert (before, t)
            }>
            y = ConcatFromSequence <axis = 1> (all)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    with pytest.raises(UnsupportedError, match="rank of the output that the loss reads"):
        train.Trainer(model, "mse", train.SGD(0.1))
