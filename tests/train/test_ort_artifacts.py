"""Artifacts have the form that ONNX Runtime's on-device training requires, and it takes the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from sardonyx import train
from sardonyx.errors import UnsupportedError
from tests.train.networks import classifier, images

pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")

OPTIMIZERS = {"adamw": train.AdamW(0.01, weight_decay=0.05), "sgd": train.SGD(0.1)}


def trainer_of(name: str) -> train.Trainer:
    return train.Trainer(classifier(), "cross-entropy", OPTIMIZERS[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_artifacts_have_the_required_form(tmp_path: Path, name: str) -> None:
    trainer = trainer_of(name)
    paths = train.generate_artifacts(trainer, tmp_path, prefix="a_")
    assert [path.name for path in paths] == [
        "a_training_model.onnx", "a_eval_model.onnx", "a_optimizer_model.onnx", "a_checkpoint",
    ]  # fmt: skip
    training, evaluation, optimizer = (onnx.load(path) for path in paths[:3])
    names = list(trainer.parameters)
    buffers = [f"{one}_grad.accumulation.buffer" for one in names]
    assert [value.name for value in training.graph.input] == ["image", "labels", *names, *buffers, "lazy_reset_grad"]
    results = [f"{one}_grad.accumulation.out" for one in names]
    assert [value.name for value in training.graph.output] == ["loss", *results]
    assert [value.name for value in optimizer.graph.input][:3] == ["learning_rate", "step", "params"]
    onnx.checker.check_model(evaluation, full_check=True)
    weights = {one: trainer.state()[f"parameter:{one}"] for one in names}
    data = images(8)
    (loss,) = onnxruntime.InferenceSession(paths[1]).run(["loss"], {**data, **weights})
    assert loss == pytest.approx(trainer.evaluate(data)["loss"], rel=1e-5)
    stored = paths[3].read_bytes()
    assert stored[4:8] == b"ODTC" and all(array.tobytes() in stored for array in weights.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_device_training_takes_the_steps_of_the_trainer(tmp_path: Path, name: str) -> None:
    api = pytest.importorskip("onnxruntime.training.api", reason="onnxruntime-training is not installed")
    trainer = trainer_of(name)
    paths = train.generate_artifacts(trainer, tmp_path)
    state = api.CheckpointState.load_checkpoint(paths[3])
    module = api.Module(paths[0], state, paths[1])
    optimizer = api.Optimizer(paths[2], module)
    optimizer.set_learning_rate(OPTIMIZERS[name].rate)
    for seed in range(10):
        batch = images(16, seed)
        assert float(module(batch["image"], batch["labels"])) == pytest.approx(trainer.step(batch), rel=1e-5)
        optimizer.step()
        module.lazy_reset_grad()
    for one in trainer.parameters:
        expected = trainer.state()[f"parameter:{one}"]
        np.testing.assert_allclose(state.parameters[one].data, expected, rtol=1e-4, atol=1e-6)


def test_steps_that_artifacts_cannot_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="running statistics"):
        train.generate_artifacts(train.Trainer(classifier(normalized=True), "cross-entropy"), tmp_path)
    with pytest.raises(UnsupportedError, match="AdamW, or SGD"):
        train.generate_artifacts(train.Trainer(classifier(), "cross-entropy", train.Lion()), tmp_path)
    assert not list(tmp_path.iterdir())
