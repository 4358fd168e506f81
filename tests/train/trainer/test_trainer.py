"""Training of models: learning, evaluation, checkpoints, saved models, errors."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx
from sardonyx import train
from sardonyx.errors import ExecutionError, FeedError, ModelFileError, OptionError, SardonyxError
from sardonyx.train.step.step_programs import StepPrograms
from sardonyx.train.trainer import results
from tests.train.networks import classifier, images, points, regression


def trainer_of(model: bytes, **options: Any) -> train.Trainer:
    return train.Trainer(model, "cross-entropy", train.AdamW(0.02), metrics=["top1"], **options)


@pytest.mark.parametrize("normalized", [False, True])
def test_training_learns_and_the_saved_model_answers_as_the_trainer(tmp_path: Path, normalized: bool) -> None:
    trainer = trainer_of(classifier(normalized=normalized))
    history = trainer.fit(images(256), epochs=6, validation=images(64, 1), progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert history["validation_top1"][-1] > 0.9
    assert trainer.save(tmp_path / "tuned.onnx") <= 1e-4
    held_out = images(64, 2)
    session = sardonyx.Session(tmp_path / "tuned.onnx", compile="off")
    (logits,) = session.run(None, {"image": held_out["image"]})
    top1 = float((logits.argmax(1) == held_out["labels"]).mean())
    assert top1 == pytest.approx(trainer.evaluate(held_out)["top1"], abs=0.02)
    onnx.checker.check_model(onnx.load(tmp_path / "tuned.onnx"), full_check=True)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_value": 1.0}, {"max_memory": 1 << 20}])
def test_open_sizes_that_must_equal_those_of_a_weight_are_trained(options: dict[str, Any]) -> None:
    """The gradient of the weight has H * W rows, and the weight 12."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, H, W] x) => (float[N, 2] y) { f = Flatten(x) y = MatMul(f, w) }""")
    weight = np.random.default_rng(0).standard_normal((12, 2)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    trainer = train.Trainer(model, train.MeanSquaredError(), train.SGD(0.05), **options)
    x = np.random.default_rng(1).standard_normal((32, 3, 4)).astype(np.float32)
    history = trainer.fit({"x": x, "labels": np.zeros((32, 2), np.float32)}, epochs=4, batch_size=8, progress=False)
    assert history["loss"][-1] < history["loss"][0]
    before = trainer.state()["parameter:w"].copy()
    with pytest.raises(SardonyxError, match="equal"):
        trainer.step({"x": x[:, :2], "labels": np.zeros((32, 2), np.float32)})
    np.testing.assert_array_equal(trainer.state()["parameter:w"], before)


def test_running_statistics_follow_the_batches() -> None:
    trainer = trainer_of(classifier(normalized=True))
    before = trainer.state()["statistic:bn.running_mean"]
    trainer.step(images(32))
    assert not np.array_equal(before, trainer.state()["statistic:bn.running_mean"])
    frozen = trainer_of(classifier(normalized=True), batch_norm="frozen")
    assert not any(name.startswith("statistic:") for name in frozen.state())


def test_two_runs_of_a_seed_are_equal_to_the_bit() -> None:
    def weights() -> dict[str, np.ndarray]:
        trainer = trainer_of(classifier(dropout=0.3), seed=7)
        trainer.fit(images(96), epochs=2, batch_size=16, progress=False)
        return trainer.state()

    first, second = weights(), weights()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_seeds_drop_other_elements() -> None:
    losses = {trainer_of(classifier(dropout=0.5), seed=seed).step(images(64)) for seed in range(4)}
    assert len(losses) == 4


def test_dropout_drops_in_training_alone() -> None:
    plain = trainer_of(classifier())
    dropped = trainer_of(classifier(dropout=0.5))
    data = images(64)
    assert plain.step(data) != pytest.approx(dropped.step(data), rel=1e-4)
    off = trainer_of(classifier(dropout=0.5), dropout={"drop": 0.0})
    assert trainer_of(classifier()).step(data) == pytest.approx(off.step(data), rel=1e-6)
    assert trainer_of(classifier()).evaluate(data)["loss"] == pytest.approx(
        trainer_of(classifier(dropout=0.5)).evaluate(data)["loss"], rel=1e-6
    )


def test_accumulated_batches_equal_one_batch_of_their_sum() -> None:
    data = images(60)
    parts = [{name: array[a:b] for name, array in data.items()} for a, b in ((0, 10), (10, 40), (40, 60))]
    whole = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    split = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1), accumulate=3)
    for _ in range(2):
        whole.step(data)
        for part in parts:
            split.step(part)
    one, other = whole.state(), split.state()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=2e-5, atol=1e-6)


def test_ragged_batches_need_no_compilation() -> None:
    trainer = trainer_of(classifier())
    for count in (5, 1, 17, 5, 5, 5, 3, 5):
        assert np.isfinite(trainer.step(images(count, count)))


def test_a_softmax_at_the_end_is_left_to_the_loss() -> None:
    logits, probabilities = trainer_of(classifier()), trainer_of(classifier(softmax=True))
    assert any("Softmax" in note for note in probabilities.notes)
    data = images(32)
    for _ in range(3):
        assert logits.step(data) == pytest.approx(probabilities.step(data), rel=1e-5)
    assert probabilities.predict({"image": data["image"]})["probabilities"].sum(1) == pytest.approx(1.0, abs=1e-5)


def test_patterns_select_parameters_and_others_stay() -> None:
    trainer = trainer_of(classifier(), trainable="head*")
    assert trainer.parameters == ("head.weight", "head.bias")
    assert trainer_of(classifier(), trainable="last").parameters == ("head.weight", "head.bias")
    assert trainer_of(classifier(), trainable="biases").parameters == ("conv1.bias", "head.bias")
    assert trainer_of(classifier(), trainable=["conv2"]).parameters == ("conv2.weight",)
    before = onnx.load_model_from_string(classifier())
    trainer.fit(images(64), progress=False)
    weights = {value.name: value.const_value.numpy() for value in trainer.model().graph.initializers.values()}  # type: ignore[union-attr]
    for tensor in before.graph.initializer:
        same = np.array_equal(onnx.numpy_helper.to_array(tensor), weights[tensor.name])
        assert same is not tensor.name.startswith("head")
    with pytest.raises(OptionError, match=r"no parameter matches 'heat.*'.*head"):
        trainer_of(classifier(), trainable="heat.weight")


def test_resumed_training_is_equal_to_the_bit(tmp_path: Path) -> None:
    def fresh() -> train.Trainer:
        return trainer_of(classifier(normalized=True, dropout=0.2), ema=0.9, seed=3)

    whole, broken = fresh(), fresh()
    options: dict[str, Any] = {"epochs": 3, "batch_size": 16, "progress": False}
    whole.fit(images(80), **options)

    class Stopped(Exception):
        pass

    def interrupted() -> Any:
        for number, batch in enumerate(data):
            if number == 3:
                raise Stopped
            yield batch

    data = [{name: array[i : i + 16] for name, array in images(80).items()} for i in range(0, 80, 16)]
    straight = fresh()
    straight.fit(data, epochs=2, progress=False)
    with pytest.raises(Stopped):
        broken.fit(interrupted(), epochs=2, progress=False, checkpoint=tmp_path / "a")
    again = fresh()
    again.fit(data, epochs=2, progress=False, checkpoint=tmp_path / "a", resume=True)
    one, other = straight.state(), again.state()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert straight.history["loss"] == pytest.approx(again.history["loss"], rel=0, abs=0)


@pytest.mark.skipif(sys.platform == "win32", reason="raises a signal as Unix does")
def test_a_training_that_a_signal_ends_during_an_update_goes_on_equal_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh() -> train.Trainer:
        return trainer_of(classifier(normalized=True, dropout=0.2), seed=3)

    options: dict[str, Any] = {"epochs": 2, "batch_size": 16, "progress": False}
    straight = fresh()
    straight.fit(images(80), **options)
    update, calls = StepPrograms.update, list[int]()

    def interrupted(self: StepPrograms, scalars: Any) -> None:
        update(self, scalars)
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(StepPrograms, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fresh().fit(images(80), checkpoint=tmp_path, **options)
    assert len(calls) == 3
    again = fresh()
    again.fit(images(80), checkpoint=tmp_path, resume=True, **options)
    one, other = straight.state(), again.state()
    assert all(np.array_equal(one[name], other[name]) for name in one)


KILLED = """
import sys, os
sys.path.insert(0, sys.argv[2])
from tests.train.networks import classifier, images
from sardonyx import train
trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), seed=1)
def stop(moment):
    if moment.epoch == 1 and sys.argv[3] == "kill":
        os.kill(os.getpid(), 9)
trainer.fit(images(48), epochs=3, batch_size=16, progress=False, checkpoint=sys.argv[1], checkpoint_steps=2,
            resume=True, callbacks=[stop])
trainer.save(sys.argv[1] + "/tuned.onnx")
"""


def test_a_killed_training_goes_on_equal_to_the_bit(tmp_path: Path) -> None:
    def run(folder: str, mode: str) -> int:
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-c", KILLED, str(tmp_path / folder), root, mode]
        return subprocess.run(command, check=False).returncode

    assert run("whole", "run") == 0
    assert run("broken", "kill") == -signal.SIGKILL
    assert run("broken", "run") == 0
    assert (tmp_path / "whole/tuned.onnx").read_bytes() == (tmp_path / "broken/tuned.onnx").read_bytes()


def test_a_training_that_ends_between_accumulated_batches_resumes_to_the_bit(tmp_path: Path) -> None:
    batches = [points(8, seed) for seed in range(6)]

    def broken() -> Iterator[dict[str, np.ndarray]]:
        yield from batches[:3]
        raise RuntimeError("broken")

    def trainer() -> train.Trainer:
        return train.Trainer(regression(), "mse", train.SGD(0.1, momentum=0.9), accumulate=2)

    whole, interrupted, resumed = trainer(), trainer(), trainer()
    whole.fit(batches, progress=False)
    with pytest.raises(RuntimeError, match="broken"):
        interrupted.fit(broken(), checkpoint=tmp_path, progress=False)
    resumed.fit(batches, checkpoint=tmp_path, resume=True, progress=False)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, resumed.state()[name])


def test_an_overflow_of_the_optimizer_is_an_error_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    trainer = train.Trainer(regression(), "mse", train.Adagrad(1e-3))
    trainer.fit(points(16), checkpoint=tmp_path, progress=False)
    stored = (tmp_path / "training.safetensors").read_bytes()
    state = trainer.state()
    state["sum:w"][0, 0] = np.inf  # As after many large gradients: the update of the weight is 0, and finite.
    trainer.load_state(state)
    with pytest.raises(ExecutionError, match=r"infinite or NaN.*smaller learning rate"):
        trainer.fit(points(16), epochs=2, checkpoint=tmp_path, progress=False)
    assert (tmp_path / "training.safetensors").read_bytes() == stored
    with pytest.raises(ExecutionError, match="sum:w"):
        trainer.save(tmp_path / "tuned.onnx")
    with pytest.raises(ExecutionError, match="sum:w"):
        for _ in range(64):
            trainer.step(points(16))


def test_checkpoints_of_another_training_or_damaged_ones_are_refused(tmp_path: Path) -> None:
    trainer_of(classifier()).fit(images(32), checkpoint=tmp_path, progress=False)
    other = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    with pytest.raises(OptionError, match="another training"):
        other.fit(images(32), epochs=2, checkpoint=tmp_path, resume=True, progress=False)
    file = tmp_path / "training.safetensors"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ModelFileError, match="expected a checkpoint"):
        trainer_of(classifier()).fit(images(32), epochs=2, checkpoint=tmp_path, resume=True, progress=False)


def test_early_stopping_restores_the_best_epoch() -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(5.0))
    stopping = train.EarlyStopping(patience=2)
    history = trainer.fit(images(64), epochs=30, validation=images(32, 1), callbacks=[stopping], progress=False)
    assert len(history["loss"]) < 30
    assert trainer.evaluate(images(32, 1))["loss"] == pytest.approx(min(history["validation_loss"]), rel=1e-5)


def test_averages_of_parameters_follow_the_parameters(tmp_path: Path) -> None:
    trainer = trainer_of(classifier(), ema=0.5)
    trainer.fit(images(64), epochs=2, progress=False)
    state = trainer.state()
    assert not np.array_equal(state["average:head.weight"], state["parameter:head.weight"])
    trainer.save(tmp_path / "average.onnx", average=True)
    with pytest.raises(OptionError, match="running means"):
        trainer_of(classifier()).save(tmp_path / "x.onnx", average=True)


def test_half_precision_models_are_trained_in_float32(tmp_path: Path) -> None:
    model = sardonyx.convert_float16(classifier(), keep_io_types=True).model
    trainer = train.Trainer(model, "cross-entropy", train.AdamW(0.02), metrics=["top1"])
    trainer.fit(images(128), epochs=6, progress=False)
    assert trainer.state()["parameter:head.weight"].dtype == np.float32
    assert trainer.evaluate(images(64, 1))["top1"] > 0.8
    assert trainer.model().graph.initializers["head.weight"].const_value.dtype == 10  # type: ignore[union-attr]


def test_losses_of_users_and_of_models_are_trained() -> None:
    from sardonyx.core import language as L

    data = points(64)
    function = train.Trainer(
        regression(),
        train.FunctionLoss(
            function=lambda outputs, labels: (outputs["y"] - labels["labels"]) * (outputs["y"] - labels["labels"]),
            label_types=lambda outputs: {"labels": outputs["y"]},
        ),
        train.SGD(0.1),
    )
    plain = train.Trainer(regression(), "mse", train.SGD(0.1))
    for _ in range(5):
        assert function.step(data) == pytest.approx(plain.step(data), rel=1e-5)
    inputs = train.Trainer(regression(), lambda outputs, labels: L.abs_(outputs["y"]), train.SGD(0.1))
    assert inputs.step({"x": data["x"]}) > inputs.step({"x": data["x"]})


def test_a_function_reads_labels_of_the_type_of_the_output() -> None:
    from sardonyx.core import language as L

    def weighted(outputs: Any, labels: Any) -> Any:
        error = outputs["y"] - labels["labels"]
        return L.reduce_mean(error * error * labels["weights"])

    data = points(64)
    function = train.Trainer(regression(), weighted, train.SGD(0.1))
    assert list(function.batch_types) == ["x", "labels", "weights"]
    plain = train.Trainer(regression(), "mse", train.SGD(0.1))
    for _ in range(5):
        loss = function.step(data | {"weights": np.ones_like(data["labels"])})
        assert loss == pytest.approx(plain.step(data), rel=1e-5)
    untyped = train.FunctionLoss(function=weighted, label_types=lambda outputs: {"labels": outputs["y"]})
    with pytest.raises(OptionError, match="reads the label 'weights', which has no type"):
        train.Trainer(regression(), untyped)


def test_a_loss_that_is_not_finite_names_the_node_and_keeps_the_parameters() -> None:
    trainer = trainer_of(classifier())
    before = trainer.state()
    data = images(8)
    data["image"][3] = 3e38
    with pytest.raises(ExecutionError, match="loss of step 1 is"):
        trainer.step(data)
    data["image"][3] = np.inf
    with pytest.raises(ExecutionError, match="image: 1 of 8 samples of the batch of step 1 hold NaN or infinity"):
        trainer.step(data)
    assert all(np.array_equal(before[name], array) for name, array in trainer.state().items())


def test_evaluation_data_with_nan_are_refused_by_number_before_the_first_step() -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.1))
    held_out = images(40, 1)
    held_out["image"][[7, 33], 0, 2, 2] = [np.nan, np.inf]
    with pytest.raises(ExecutionError, match=r"validation: 2 of 40 samples hold NaN or infinity.*sample 7, 33\."):
        trainer.fit(images(16), epochs=1, validation=held_out, progress=False)
    assert not trainer.history.rows
    batches = [{name: array[at : at + 8] for name, array in held_out.items()} for at in range(0, 40, 8)]
    with pytest.raises(ExecutionError, match="1 of 8 samples hold NaN or infinity"):
        trainer.evaluate(batches)


def test_evaluation_data_with_nan_that_the_model_replaces_are_accepted() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> net (float[N, 2] x) => (float[N, 2] y)
    <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}, float zero = {0.0}> {
        is_missing = IsNaN(x)
        known = Where(is_missing, zero, x)
        y = MatMul(known, w)
    }""")
    data = {"x": np.ones((6, 2), np.float32), "labels": np.zeros((6, 2), np.float32)}
    data["x"][2, 1] = np.nan
    history = train.Trainer(model, "mse", train.SGD(0.01)).fit(data, epochs=1, validation=data, progress=False)
    assert np.isfinite(history["validation_loss"]).all()


def test_the_length_of_gradients_of_mixed_types_is_that_of_the_widest() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[N, 2] x) => (double[N, 1] y) <float[2, 1] w = {0, 0}, double[1, 1] b = {1}>
        { z = MatMul(x, w)  wide = Cast<to = 11>(z)  y = MatMul(wide, b) }"""
    trainer = train.Trainer(parser.parse_model(text), "mse", train.SGD(1.0), clip_norm=0.5)
    trainer.step({"x": np.array([[3e9, 4e9]], np.float32), "labels": np.full((1, 1), 1e10)})  # 6e19 and 8e19.
    assert np.allclose(trainer.state()["parameter:w"], [[0.3], [0.4]], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [train.SGD(1e39), train.AdamW(1e38), train.Lion(1e300)])
@pytest.mark.filterwarnings("error")
def test_numbers_of_a_step_beyond_float32_are_refused(optimizer: train.Optimizer) -> None:
    trainer = train.Trainer(regression(), "mse", optimizer)
    before = trainer.state()
    with pytest.raises(OptionError, match="step 1 exceed the range of float32"):
        trainer.step(points(8))
    assert all(np.array_equal(before[name], array) for name, array in trainer.state().items())


@pytest.mark.parametrize("steps", [0, 5])
def test_an_overflow_of_the_squares_of_gradients_changes_nothing(steps: int) -> None:
    trainer = train.Trainer(regression(), "mse", train.Adam(0.01))
    data = points(8)
    for _ in range(steps):
        trainer.step(data)
    before = trainer.state()
    with pytest.raises(ExecutionError, match="length of the gradient of step"):
        trainer.step(data | {"labels": np.full_like(data["labels"], 1e18)} | {"x": np.full_like(data["x"], 1e3)})
    assert all(np.array_equal(before[name], array) for name, array in trainer.state().items())
    trainer.step(data)


@pytest.mark.parametrize(
    "change, error",
    [
        (lambda d: d | {"labels": d["labels"] + 3}, FeedError),
        (lambda d: d | {"labels": d["labels"].astype(np.float32)}, FeedError),
        (lambda d: d | {"labels": d["labels"][:, None]}, FeedError),
        (lambda d: d | {"labels": d["labels"][:-1]}, OptionError),
        (lambda d: d | {"image": d["image"][:, :, :5]}, FeedError),
        (lambda d: {"labels": d["labels"]}, OptionError),
        (lambda d: {name: array[:0] for name, array in d.items()}, OptionError),
        (lambda d: 5, OptionError),
        (lambda d: [], OptionError),
        (lambda d: "nothing.npz", ModelFileError),
    ],
)
def test_data_that_do_not_fit_are_refused(change: Any, error: type[SardonyxError]) -> None:
    trainer = trainer_of(classifier())
    with pytest.raises(error):
        trainer.fit(change(images(8)), progress=False)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"batch_norm": "off"}, "batch_norm"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"ema": 1.5}, "ema"),
        ({"accumulate": 0}, "accumulate"),
        ({"dropout": {"drop": 1.0}}, "ratio of dropout"),
        ({"metrics": ["top2"]}, "metrics"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        train.Trainer(classifier(dropout=0.1), "cross-entropy", **options)


def test_batches_of_loaders_and_tuples_are_read_in_order() -> None:
    data = images(32)
    trainer = trainer_of(classifier())
    pairs = [(data["image"][i : i + 8], data["labels"][i : i + 8].astype(np.int32)) for i in range(0, 32, 8)]
    trainer.fit(pairs, epochs=2, progress=False)
    trainer.fit((data["image"], data["labels"]), epochs=3, progress=False)
    with pytest.raises(OptionError, match="read once"):
        trainer_of(classifier()).fit(iter(pairs), epochs=2, progress=False)


def test_clipping_bounds_the_update() -> None:
    data = images(16)
    start = train.Trainer(classifier(), "cross-entropy", train.SGD(1.0)).state()
    clipped = train.Trainer(classifier(), "cross-entropy", train.SGD(1.0), clip_norm=1e-3)
    clipped.step(data)
    moved = sum(float(np.square(array - start[name]).sum()) for name, array in clipped.state().items())
    assert np.sqrt(moved) == pytest.approx(1e-3, rel=2e-2)


def test_biases_of_one_element_positions_and_sliced_weights_are_parameters() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]> g (int64[N, 2] x) => (float[N, 1] y) {
      h = Gather (tokens, x)
      p = Add (h, positions)
      axis = Constant <value_ints = [1]> () one = Constant <value_ints = [0]> () three = Constant <value_ints = [1]> ()
      w = Slice (packed, one, three, axis)
      s = ReduceMean <axes = [1], keepdims = 0> (p)
      e = Add (s, epsilon)
      half = Constant <value_ints = [4, 1]> ()
      t = Concat <axis = 0> (w, w)
      column = Reshape (t, half)
      m = MatMul (e, column)
      y = Add (m, bias)
    }""")
    rng = np.random.default_rng(0)
    shapes = {"tokens": (3, 4), "positions": (2, 4), "packed": (2, 8), "bias": (1,), "epsilon": (1,)}
    for name, shape in shapes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.random(shape, np.float32), name))
    trainer = train.Trainer(model, "mse")
    assert set(trainer.parameters) == {"tokens", "positions", "packed", "bias"}
    assert np.isfinite(trainer.step({"x": np.zeros((3, 2), np.int64), "labels": np.ones((3, 1), np.float32)}))


def test_binary_accuracy_has_the_threshold_of_the_output() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 1] y)
        <float[2, 1] w = {1.0, 1.0}> { z = MatMul (x, w)  y = Sigmoid (z) }"""
    model = onnx.parser.parse_model(text)
    x = np.array([[-1, -2], [3, 1], [-1, 0], [2, 2]], np.float32)
    data = {"x": x, "labels": np.array([[0], [1], [0], [1]], np.float32)}
    for loss in ("mse", "bce"):
        trainer = train.Trainer(model, loss, "sgd", metrics=["binary-accuracy"])
        assert trainer.evaluate(data)["binary-accuracy"] == 1.0


def test_the_best_epoch_is_restored_after_the_last_epoch_too() -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(5.0))
    stopping = train.EarlyStopping(patience=100)
    history = trainer.fit(images(64), epochs=4, validation=images(32, 1), callbacks=[stopping], progress=False)
    best = min(history["validation_loss"])
    assert best < history["validation_loss"][-1], "the last epoch is a worse one"
    assert trainer.evaluate(images(32, 1))["loss"] == pytest.approx(best, rel=1e-5)


def test_a_resumed_training_knows_the_best_epoch_before(tmp_path: Path) -> None:
    best = tmp_path / "best.onnx"
    options: dict[str, Any] = {"validation": images(32, 1), "checkpoint": tmp_path / "states", "progress": False}
    trainer = trainer_of(classifier())
    trainer.fit(images(64), epochs=1, callbacks=[train.SaveBest(best)], **options)
    content = best.read_bytes()
    worse = train.Trainer(classifier(), "cross-entropy", train.AdamW(50.0))
    stopping = train.EarlyStopping(patience=1)
    history = worse.fit(images(64), epochs=9, resume=True, callbacks=[train.SaveBest(best), stopping], **options)
    assert history["validation_loss"][1] > history["validation_loss"][0]
    assert len(history["loss"]) == 2 and best.read_bytes() == content


@pytest.mark.parametrize("best", ["top1", "top5"])
def test_metrics_count_classes_and_labels_as_the_loss(best: str) -> None:
    w = onnx.numpy_helper.from_array(np.eye(6, dtype=np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[N, 6, 6] x) => (float[N, 6, 6] y) { y = MatMul (w, x) }'
    )
    model.graph.initializer.append(w)
    # The score of class i is greatest at step i, and least for class 5 at step 0.
    x = np.eye(6, dtype=np.float32)[None]
    x[0, 5, 0] = -1
    labels = np.array([[0, 1, 2, 0, 255, 255]])
    trainer = train.Trainer(model, train.CrossEntropy(axis=1, ignore=255), train.SGD(0.0), metrics=[best])
    hits = {"top1": 3 / 4, "top5": 4 / 4}[best]
    assert trainer.evaluate({"x": x, "labels": labels})[best] == hits


@pytest.mark.parametrize("options", [{}, {"lora": train.LoRA(2)}, {"ema": 0.5}])
def test_predictions_follow_every_change_of_the_weights(options: dict[str, Any]) -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.3), **options)
    feeds = {"image": images(4)["image"]}
    states = [trainer.state()]
    for _ in range(2):
        trainer.step(images(16))
        states.append(trainer.state())
    for state in (states[0], states[2], states[2], states[1]):
        trainer.load_state(state)
        for average in [False, True][: 1 + ("ema" in options)]:
            expected = sardonyx.Session(trainer.model(average=average), compile="wait").run(None, feeds)[0]
            np.testing.assert_allclose(
                trainer.predict(feeds, average=average)["logits"], expected, rtol=1e-5, atol=1e-6
            )


def test_predictions_are_those_of_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[sardonyx.Session] = []

    class Counted(sardonyx.Session):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            sessions.append(self)

    monkeypatch.setattr(results, "Session", Counted)
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(0.3))
    for _ in range(3):
        trainer.step(images(16))
        trainer.predict({"image": images(4)["image"]})
    assert len(sessions) == 1
    assert sessions[0].history == ()  # Weights of earlier predictions are not held.
