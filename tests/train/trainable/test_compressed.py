"""Training of quantized and of pruned models: the result is a quantized or pruned model that answers as the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import train
from sardonyx.errors import OptionError
from sardonyx.train.trainable.quantized import simulated_form
from tests.train.networks import classifier, images


def trained() -> Any:
    trainer = train.Trainer(classifier(), "cross-entropy", train.AdamW(0.02))
    for seed in range(20):
        trainer.step(images(32, seed))
    return trainer.model()


@pytest.mark.parametrize("scheme", ["int8", "w4a8"])
def test_a_quantized_model_is_trained_and_saved_with_its_scales(tmp_path: Path, scheme: str) -> None:
    data = [{"image": images(8, seed)["image"]} for seed in range(4)]
    quantized = sardonyx.to_proto(sardonyx.quantize(trained(), data=data, scheme=scheme).model)
    trainer = train.Trainer(quantized, "cross-entropy", train.AdamW(0.005))
    before = trainer.evaluate(images(128, 99))["loss"]
    for seed in range(30):
        trainer.step(images(32, seed))
    assert trainer.evaluate(images(128, 99))["loss"] < 0.8 * before
    assert trainer.save(tmp_path / "tuned.onnx") <= 1e-5
    tuned = onnx.load(tmp_path / "tuned.onnx")
    assert [node.op_type for node in tuned.graph.node] == [node.op_type for node in quantized.graph.node]
    old = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in quantized.graph.initializer}
    new = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tuned.graph.initializer}
    changed = {name for name in old if not np.array_equal(old[name], new[name])}
    assert changed and all(old[name].dtype == new[name].dtype for name in old)
    assert not any("scale" in name for name in changed)
    feeds = {"image": images(64, 5)["image"]}
    simulated = trainer.predict(feeds)["logits"]
    (native,) = sardonyx.Session(tmp_path / "tuned.onnx", compile="wait").run(None, feeds)
    np.testing.assert_array_equal(native, simulated)


def test_the_rounding_passes_gradients_where_codes_are_not_saturated() -> None:
    from sardonyx.core.eval.trace import trace
    from sardonyx.core.ir import types as t
    from sardonyx.core.ir.types import TensorType
    from sardonyx.core.language import reduce_sum
    from sardonyx.core.transform.differentiation import gradient
    from sardonyx.ops.definitions.fake_quantize import fake_quantize
    from tests.core.programs import computed

    types = [TensorType(t.FLOAT, (5,)), TensorType(t.FLOAT, ())]
    function = trace("f", lambda x, s: [reduce_sum(fake_quantize(x, s, low=-8, high=7))], types)
    x = np.array([-3.0, 0.3, 0.74, 3.6, 9.0], np.float32)
    total, dx, ds = computed(gradient(function), [x, np.float32(0.5)])
    assert total == -3.0 + 0.5 + 0.5 + 3.5 + 3.5
    assert dx.tolist() == [1, 1, 1, 1, 0] and ds == 0


def test_zeros_of_a_pruned_model_stay_zero() -> None:
    model = sardonyx.load(trained())
    weight = model.graph.initializers["conv2.weight"]
    array = weight.const_value.numpy().copy()  # type: ignore[union-attr]
    array[np.abs(array) < np.quantile(np.abs(array), 0.6)] = 0
    weight.const_value = ir.tensor(array, name="conv2.weight")
    trainer = train.Trainer(model, "cross-entropy", train.AdamW(0.01, weight_decay=0.1), keep_zeros=True)
    for seed in range(10):
        trainer.step(images(32, seed))
    tuned = trainer.state()["parameter:conv2.weight"]
    assert np.array_equal(tuned == 0, array == 0) and not np.array_equal(tuned, array)
    with pytest.raises(OptionError, match="no trained weight has a zero"):
        train.Trainer(trained(), "cross-entropy", keep_zeros=True)


def test_adapters_of_a_quantized_model_are_refused() -> None:
    quantized = sardonyx.quantize(trained(), weights="int4").model
    with pytest.raises(OptionError, match="cannot be merged"):
        train.Trainer(quantized, "cross-entropy", lora=train.LoRA(2))


def test_folded_batch_normalization_is_restored() -> None:
    folded = sardonyx.optimize(classifier(normalized=True)).model
    assert not any(node.op_type == "BatchNormalization" for node in folded.graph)
    data = images(64)
    feeds = [{"image": data["image"][i : i + 16]} for i in range(0, 64, 16)]
    restored = train.restore_batch_norm(folded, feeds)
    whole = train.restore_batch_norm(folded, {"image": data["image"]})
    for name in (name for name in restored.graph.initializers if "mean" in name or "var" in name):
        one, other = (model.graph.initializers[name].const_value.numpy() for model in (restored, whole))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for wrong in ([data["image"]], "calibration.npz", []):
        with pytest.raises(OptionError, match="feeds: expected"):
            train.restore_batch_norm(folded, wrong)
    expected = sardonyx.Session(folded, compile="off").run(None, feeds[0])[0]
    np.testing.assert_allclose(
        sardonyx.Session(restored, compile="off").run(None, feeds[0])[0], expected, rtol=1e-4, atol=1e-5
    )
    trainer = train.Trainer(restored, "cross-entropy", train.AdamW(0.02))
    assert sum(name.startswith("statistic:") for name in trainer.state()) == 2
    losses = [trainer.step(data) for _ in range(8)]
    assert losses[-1] < losses[0]
    again = sardonyx.optimize(trainer.model()).model
    assert not any(node.op_type == "BatchNormalization" for node in again.graph)


def test_shared_vectors_and_functions_of_a_quantized_model_are_trained_apart(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
        net (float[N, 4] x) => (float[N, 4] y)
        <int8[4, 4] w = {5, -3, 9, 2, 4, -8, 7, 6, 1, -2, 3, 4, -5, 6, 7, 8},
         float s = {0.1}, float[4] g = {1, 1, 1, 1}>
        { a = local.layer(x, w, s, g)  b = Relu(a)  y = local.layer(b, w, s, g) }
        <domain: "local", opset_import: ["": 17]>
        layer (v, w, s, g) => (r) { f = DequantizeLinear(w, s)  m = MatMul(v, f)  r = Mul(m, g) }"""
    trainer = train.Trainer(onnx.parser.parse_model(text), "mse", train.SGD(0.05))
    assert sorted(trainer.parameters) == ["g", "w_float"]
    shared = text.replace("a = local.layer(x, w, s, g)", "f = DequantizeLinear(w, s)  m = MatMul(x, f)  a = Mul(m, g)")
    shared = shared.replace("b, w, s, g", "b, u, s, g").replace(
        "float s", "int8[4, 4] u = {" + "1, 2, 3, -4, " * 3 + "5, 6, 7, 8}, float s"
    )
    trainer = train.Trainer(onnx.parser.parse_model(shared), "mse", train.SGD(0.05))
    assert len(trainer.parameters) == 4
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    losses = [trainer.step({"x": x, "labels": -x}) for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]
    assert trainer.save(tmp_path / "tuned.onnx") <= 1e-5
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(tmp_path / "tuned.onnx").graph.initializer}
    assert stored["w"].dtype == np.int8 and sum(array.shape == (4,) for array in stored.values()) == 2


def test_answers_of_other_roundings_are_compared_by_the_interpreter() -> None:
    from sardonyx.train.trainable.model_weights import equal_answers, with_weights

    data = images(16)
    quantized = sardonyx.quantize(trained(), data={"image": data["image"]}, scheme="w4a8").model
    trainer = train.Trainer(quantized, "cross-entropy", train.AdamW(0.005))
    simulated = simulated_form(quantized)
    assert simulated is not None
    weights = {name: trainer.state()[f"parameter:{name}"] for name in trainer.parameters}
    feeds = {"image": data["image"]}
    # Kernels that round one value near a half otherwise.
    flipped = {"logits": sardonyx.Session(quantized).run(["logits"], feeds)[0] + np.float32(0.01)}
    equal = with_weights(simulated.model, simulated.model, weights)
    assert equal_answers(quantized, feeds, flipped, ["logits"], "")[1] is False
    assert equal_answers(quantized, feeds, flipped, ["logits"], "", reference=equal) == (0.0, True)
    moved = {name: array + np.float32(0.1) for name, array in weights.items()}
    other = with_weights(simulated.model, simulated.model, moved)
    assert equal_answers(quantized, feeds, flipped, ["logits"], "", reference=other)[1] is False
