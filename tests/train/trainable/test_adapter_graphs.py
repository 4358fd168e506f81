"""Adapters beside layers have the gradients that the sum of weight and adapter has, for all kinds of layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx import train
from sardonyx.errors import OptionError
from sardonyx.train import LoRA

SHAPES = {
    "table": (7, 6),
    "kernel": (4, 2, 3),
    "grouped": (4, 2, 3),
    "inner": (6, 8),
    "outer": (12, 8),
    "last": (3, 16),
}

TEXT = """<ir_version: 8, opset_import: ["": 17]> net (int64[N, 5] tokens, float[N, 2, 8] image) => (float[N, 3] y) {
    words = Gather(table, tokens)
    mixed = MatMul(words, inner)
    transposed = Transpose<perm = [1, 0]>(outer)
    wide = MatMul(mixed, transposed)
    seen = Conv<pads = [2, 0], strides = [2]>(image, kernel)
    again = Conv<group = 2>(Concat_0, grouped)
    pooled = ReduceMean<axes = [1], keepdims = 0>(wide)
    sums = ReduceMean<axes = [2], keepdims = 0>(again)
    both = Concat<axis = 1>(pooled, sums)
    y = Gemm<alpha = 0.5, transB = 1>(both, last)
}"""


def layers() -> onnx.ModelProto:
    """Return a model with each kind of layer that adapters are beside, and one that reads weight and adapter."""
    model = onnx.parser.parse_model(TEXT.replace("Concat_0", "seen"))
    rng = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def batch_of(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {
        "tokens": rng.integers(0, 7, (count, 5)),
        "image": rng.standard_normal((count, 2, 8)).astype(np.float32),
        "labels": rng.standard_normal((count, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_gradients_of_adapters_are_those_of_the_sum(alpha: float | None) -> None:
    lora = LoRA(3, alpha)
    trainer = train.Trainer(layers(), "mse", train.SGD(0.3), lora=lora)
    batch = batch_of(6)
    for _ in range(3):
        trainer.step(batch)
    assert {name.rpartition(".")[0] for name in trainer.parameters} == SHAPES.keys()
    whole = train.Trainer(trainer.model(), "mse", train.SGD(0.3), trainable=list(SHAPES)).gradients(batch)
    tensors, gradients = trainer.adapter().tensors, trainer.gradients(batch)
    for name, gradient in whole.items():
        matrix = lora.scale_of(name) * gradient.reshape(len(gradient), -1)
        a, b = tensors[f"{name}.lora_a"], tensors[f"{name}.lora_b"]
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(gradients[f"{name}.lora_a"], matrix @ b.T, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradients[f"{name}.lora_b"], a.T @ matrix, rtol=1e-4, atol=1e-6)


def test_frozen_weights_have_no_gradients_and_answers_are_those_of_the_merged_model(tmp_path: Path) -> None:
    full = train.Trainer(layers(), "mse", train.SGD(0.3))
    trainer = train.Trainer(layers(), "mse", train.SGD(0.3), lora=LoRA(1))
    assert trainer.step(batch_of(4)) == pytest.approx(full.step(batch_of(4)), rel=1e-5)
    assert trainer.save(tmp_path / "merged.onnx") <= 1e-5
    feeds = {name: array for name, array in batch_of(4).items() if name != "labels"}
    (merged,) = sardonyx.Session(tmp_path / "merged.onnx").run(None, feeds)
    np.testing.assert_allclose(merged, trainer.predict(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_adapters_of_large_layers_need_less_memory_than_the_weights() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[N, 512] x) => (float[N, 512] y) { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(512, dtype=np.float32) + 0.1, "w"))
    batch = {"x": np.ones((4, 512), np.float32), "labels": np.zeros((4, 512), np.float32)}
    planned = train.Trainer(model, "mse", train.SGD(0.1), lora=LoRA(4)).planned_bytes(batch)
    assert planned is not None and planned < 512 * 512 * 4


def test_dropout_leaves_inputs_of_adapters_out_of_steps_alone() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (float[N, 24] x) => (float[N, 5] y) { y = MatMul(x, w) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    weight = rng.standard_normal((24, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    batch = {"x": rng.standard_normal((1, 24)).astype(np.float32), "labels": np.zeros((1, 5), np.float32)}
    trainer = train.Trainer(model, "mse", train.SGD(0.05), lora=LoRA(2, dropout=0.5))
    again = train.Trainer(model, "mse", train.SGD(0.05), lora=LoRA(2, dropout=0.5))
    trainer.step(batch)
    before = trainer.state()["parameter:w.lora_a"]
    trainer.step(batch)
    change = (trainer.state()["parameter:w.lora_a"] - before) / batch["x"].T
    is_seen = np.abs(change).max(1) > 0
    assert 4 < is_seen.sum() < 20  # Of 24 inputs.
    np.testing.assert_allclose(change[is_seen], np.broadcast_to(change[is_seen][:1], (is_seen.sum(), 2)), rtol=2e-2)
    again.step(batch)
    again.step(batch)
    np.testing.assert_array_equal(again.state()["parameter:w.lora_a"], trainer.state()["parameter:w.lora_a"])
    answer = trainer.forward({"x": batch["x"]})["y"]
    np.testing.assert_allclose(answer, batch["x"] @ trainer.adapter().weights(model)["w"], rtol=1e-5, atol=1e-6)


def test_dropout_is_refused_where_the_adapter_is_added_to_the_weight() -> None:
    with pytest.raises(OptionError, match=r"dropout, grouped: .*sum of weight and adapter"):
        train.Trainer(layers(), "mse", train.SGD(0.3), lora=LoRA(1, dropout=0.1))
    targets = tuple(name for name in SHAPES if name != "grouped")
    trainer = train.Trainer(layers(), "mse", train.SGD(0.3), lora=LoRA(1, targets=targets, dropout=0.1))
    assert np.isfinite([trainer.step(batch_of(4)) for _ in range(3)]).all()
    with pytest.raises(OptionError, match="DoRA adds the adapter to the weight"):
        LoRA(1, dora=True, dropout=0.1)
