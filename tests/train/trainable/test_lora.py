"""Adapters are trained, saved, merged and exchanged in live sessions; heads are replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import train
from sardonyx.errors import ModelFileError, OptionError, UnsupportedError
from sardonyx.train import LoRA
from tests.train.networks import classifier, images, regression


def adapted(dora: bool = False, steps: int = 60) -> train.Trainer:
    trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), lora=LoRA(2, dora=dora), metrics=["top1"])
    for seed in range(steps):
        trainer.step(images(32, seed))
    return trainer


@pytest.mark.parametrize("dora", [False, True])
def test_adapters_alone_are_trained_and_the_merged_model_answers_as_the_trainer(tmp_path: Path, dora: bool) -> None:
    plain = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.05))
    fresh = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.05), lora=LoRA(2, dora=dora))
    assert fresh.step(images(32)) == pytest.approx(plain.step(images(32)), rel=1e-5)
    trainer = adapted(dora)
    assert all(".lora_" in name for name in trainer.parameters)
    assert trainer.evaluate(images(64, 99))["loss"] < plain.evaluate(images(64, 99))["loss"]
    assert trainer.save(tmp_path / "merged.onnx") <= 1e-4
    names = {tensor.name for tensor in onnx.load(tmp_path / "merged.onnx").graph.initializer}
    assert names == {tensor.name for tensor in onnx.load_model_from_string(classifier()).graph.initializer}


def test_adapters_are_saved_apart_and_swapped_in_a_live_session(tmp_path: Path) -> None:
    trainer = adapted()
    trainer.adapter().save(tmp_path / "a.safetensors")
    adapter = train.Adapter.load(tmp_path / "a.safetensors")
    feeds = {"image": images(4)["image"]}
    session = sardonyx.Session(classifier(), compile="wait")
    (before,) = session.run(None, feeds)
    session.update_weights(adapter.weights(classifier()))
    (after,) = session.run(None, feeds)
    np.testing.assert_allclose(after, trainer.predict(feeds)["logits"], rtol=1e-4, atol=1e-5)
    session.update_weights(adapter.weights(classifier(), share=0.0))
    np.testing.assert_array_equal(session.run(None, feeds)[0], before)


def test_several_adapters_add_their_changes() -> None:
    adapter = adapted(steps=5).adapter()
    once, twice = train.combine([(adapter, 1.0)], classifier()), train.combine([(adapter, 0.25)] * 4, classifier())
    for name, array in once.items():
        np.testing.assert_allclose(array, twice[name], rtol=1e-4, atol=1e-5)


def test_adapters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="rank"):
        LoRA(0)
    with pytest.raises(OptionError, match="rank 2 or more"):
        train.Trainer(classifier(), lora=LoRA(2, targets="biases"))
    with pytest.raises(OptionError, match="no weight"):
        adapted(steps=1).adapter().weights(regression())
    (tmp_path / "x").write_bytes(b"\x10" + bytes(20))
    with pytest.raises(ModelFileError, match="adapter"):
        train.Adapter.load(tmp_path / "x")
    with pytest.raises(OptionError, match="no adapters"):
        train.Trainer(classifier()).adapter()


@pytest.mark.parametrize("softmax", [False, True])
def test_a_new_head_has_other_classes_and_learns(softmax: bool) -> None:
    model = train.swap_head(classifier(softmax=softmax), 5)
    onnx.checker.check_model(sardonyx.to_proto(model), full_check=True)
    data = images(128)
    data["labels"] = data["labels"] + 2
    trainer = train.Trainer(model, "cross-entropy", train.AdamW(0.05), metrics=["top1"])
    trainer.fit(data, epochs=8, progress=False)
    assert trainer.evaluate(data)["top1"] > 0.8
    assert next(iter(trainer.predict({"image": data["image"][:3]}).values())).shape == (3, 5)


def test_heads_that_cannot_be_replaced_are_refused() -> None:
    with pytest.raises(OptionError, match="of at least 1"):
        train.swap_head(classifier(), 0)
    with pytest.raises(OptionError, match="expected one of"):
        train.swap_head(classifier(), 4, output="x")
    proto = onnx.load_model_from_string(regression())
    proto.graph.node.append(onnx.helper.make_node("Reshape", ["y", "two"], ["z"], "flat"))
    proto.graph.initializer.append(onnx.helper.make_tensor("two", onnx.TensorProto.INT64, [1], [-1]))
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["M"]))
    with pytest.raises(UnsupportedError, match="Reshape follows"):
        train.swap_head(proto, 4)


def test_a_student_learns_from_a_teacher_without_labels() -> None:
    teacher = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.05))
    for seed in range(60):
        teacher.step(images(32, seed))
    student = train.Trainer(
        classifier(seed=9), train.Distillation(alpha=1.0), train.AdamW(0.05), teacher=teacher.model(), metrics=["top1"]
    )
    history = student.fit({"image": images(256, 5)["image"]}, epochs=10, progress=False, validation=images(64, 77))
    assert history["validation_top1"][-1] > 0.8


def test_ranks_and_factors_differ_by_pattern(tmp_path: Path) -> None:
    names = [tensor.name for tensor in onnx.load_model_from_string(classifier()).graph.initializer]
    plain = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), lora=LoRA(2, 4.0)).adapter()
    first, *others = plain.targets()
    lora = LoRA(2, 4.0, ranks={first: 3}, alphas={names[-1]: 9.0, "*": 1.0} if names[-1] in others else {"*": 1.0})
    trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02), lora=lora, metrics=["top1"])
    for seed in range(5):
        trainer.step(images(32, seed))
    trainer.save(tmp_path / "merged.onnx")  # Compares answers.
    trainer.adapter().save(tmp_path / "a.safetensors")
    adapter = train.Adapter.load(tmp_path / "a.safetensors")
    assert adapter.options == lora
    assert adapter.tensors[f"{first}.lora_a"].shape[1] == 3
    assert {adapter.tensors[f"{name}.lora_a"].shape[1] for name in others} == {2}
    assert [adapter.options.scale_of(name) for name in (first, "other")] == [1 / 3, 1 / 2]


def test_options_of_single_adapters_are_checked() -> None:
    with pytest.raises(OptionError, match="expected an integer of at least 1, got 0") as refused:
        LoRA(2, ranks={"fc*": 0})
    assert refused.value.where == "ranks, fc*"
    with pytest.raises(OptionError, match="expected numbers by pattern of names"):
        LoRA(2, alphas=3.0)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no weight with an adapter matches 'tail\\*'"):
        train.Trainer(classifier(), "cross-entropy", "sgd", lora=LoRA(2, ranks={"tail*": 4}))
