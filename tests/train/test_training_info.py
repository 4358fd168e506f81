"""A trainer's step as ``training_info``: ONNX Runtime and Sardonyx take the steps of the trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import sardonyx
from sardonyx import train
from sardonyx.errors import InvalidModelError, OptionError, UnsupportedError
from tests.train.networks import classifier, images, points, regression


def test_the_step_of_a_file_is_that_of_the_trainer(tmp_path: Path) -> None:
    trainer = train.Trainer(classifier(normalized=True), "cross-entropy", train.SGD(0.05, momentum=0.9))
    file = train.with_training_info(trainer)
    onnx.save(file, tmp_path / "training.onnx")
    sardonyx.save(sardonyx.load(tmp_path / "training.onnx"), tmp_path / "copy.onnx")
    algorithm = train.TrainingAlgorithm(tmp_path / "copy.onnx")
    for seed in range(4):
        batch = images(16, seed)
        numbers = dict(zip(["step_numbers"], trainer.step_numbers(), strict=True))
        ours = trainer.step(batch)
        assert algorithm.step({**batch, **numbers})["loss"] == pytest.approx(ours, rel=1e-5)
    weights = {value.name: onnx.numpy_helper.to_array(value) for value in algorithm.model().graph.initializer}
    for name in ("parameter:conv2.weight", "statistic:bn.running_mean"):
        actual = weights[name.partition(":")[2]]
        np.testing.assert_allclose(actual, trainer.state()[name], rtol=1e-4, atol=1e-5)


def test_a_step_on_images_of_open_size_is_read_back(tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> net (float[N, 1, H, W] x) => (float[N, 3] y)
        <float[4, 1, 3, 3] w = {{{", ".join(str(i % 5 / 9 - 0.2) for i in range(36))}}},
         float[4, 3] o = {{{"0.1, -0.2, 0.3, " * 3}1, 2, 3}}>
        {{ c = Conv<pads = [1, 1, 1, 1]>(x, w)  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
           q = GlobalAveragePool(p)  f = Flatten(q)  y = MatMul(f, o) }}"""
    trainer = train.Trainer(onnx.parser.parse_model(text), "mse", train.SGD(0.1))
    onnx.save(train.with_training_info(trainer), tmp_path / "training.onnx")
    algorithm = train.TrainingAlgorithm(tmp_path / "training.onnx")
    rng = np.random.default_rng(0)
    for size in ((2, 1, 6, 9), (3, 1, 5, 4)):
        batch = {"x": rng.standard_normal(size).astype(np.float32), "labels": np.ones((size[0], 3), np.float32)}
        numbers = {"step_numbers": trainer.step_numbers()[0]}
        assert algorithm.step({**batch, **numbers})["loss"] == pytest.approx(trainer.step(batch), rel=1e-5)


def test_the_algorithm_is_standard_onnx() -> None:
    trainer = train.Trainer(regression(), "mse", train.SGD(0.1, momentum=0.9))
    file = train.with_training_info(trainer)
    graph = file.training_info[0].algorithm
    state = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in (*file.graph.initializer, *graph.initializer)
    }
    for name in state.keys() - {value.name for value in graph.input}:
        if name in {entry.key for entry in file.training_info[0].update_binding}:
            graph.input.append(onnx.helper.make_tensor_value_info(name, 1, state[name].shape))
    bound = {entry.key: entry.value for entry in file.training_info[0].update_binding}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in bound]:
        graph.initializer.remove(tensor)
    model = onnx.helper.make_model(graph, opset_imports=file.opset_import, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [value.name for value in graph.output]
    feeds = {name: state[name] for name in bound}
    for _ in range(3):
        batch = points(8)
        results = dict(
            zip(names, session.run(names, {**feeds, **batch, "step_numbers": trainer.step_numbers()[0]}), strict=True)
        )
        assert results["loss"] == pytest.approx(trainer.step(batch), rel=1e-5)
        feeds = {name: results[new] for name, new in bound.items()}


def test_files_without_or_with_wrong_training_info_are_refused() -> None:
    with pytest.raises(OptionError, match="no training_info"):
        train.TrainingAlgorithm(regression())
    file = train.with_training_info(train.Trainer(regression(), "mse", train.SGD(0.1)))
    file.training_info[0].update_binding[0].key = "nothing"
    with pytest.raises(InvalidModelError, match="update binding"):
        train.TrainingAlgorithm(file)
    with pytest.raises(UnsupportedError, match="several batches"):
        train.with_training_info(train.Trainer(regression(), "mse", accumulate=2))
