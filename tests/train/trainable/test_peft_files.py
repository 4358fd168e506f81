"""Adapters of PEFT are read and written: merged weights are those of its formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import safetensors.numpy

import sardonyx
from sardonyx import train
from sardonyx.errors import ModelFileError, OptionError
from sardonyx.train import LoRA

TEXT = """<ir_version: 8, opset_import: ["": 17]> net (int64[N, 5] tokens) => (float[N, 3] y) {
    words = Gather("embed.weight", tokens)
    square = MatMul(words, "onnx::MatMul_7")
    transposed = Transpose<perm = [1, 0]>("body.wide.weight")
    wide = MatMul(square, transposed)
    rows = Transpose<perm = [0, 2, 1]>(wide)
    seen = Conv("rows", "body.conv.weight")
    pooled = ReduceMean<axes = [2], keepdims = 0>(seen)
    y = Gemm<transB = 1>(pooled, "head.weight")
}"""
SHAPES = {
    "embed.weight": (7, 6), "onnx::MatMul_7": (6, 6), "body.wide.weight": (8, 6), "body.conv.weight": (4, 8, 3),
    "head.weight": (3, 4),
}  # fmt: skip
MODULES = {"embed": "embed.weight", "body.square": "onnx::MatMul_7", "body.wide": "body.wide.weight"}
MODULES |= {"body.conv": "body.conv.weight", "head": "head.weight"}


def network() -> onnx.ModelProto:
    """Return a model with an anonymous weight that is stored transposed, as exporters write it."""
    names = dict(zip(SHAPES, ("embed", "square_w", "wide_w", "conv_w", "head_w"), strict=True))
    text = TEXT
    for name, plain in names.items():
        text = text.replace(f'"{name}"', plain)
    model = onnx.parser.parse_model(text.replace('"rows"', "rows"))
    back = {plain: name for name, plain in names.items()}
    rng = np.random.default_rng(0)
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = back.get(name, name)
        if "onnx::MatMul_7" in node.input:
            node.name = "/body/square/MatMul"
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def write(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    """Write an adapter in the form of PEFT."""
    folder.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    named = {f"base_model.model.{name}": np.ascontiguousarray(array) for name, array in tensors.items()}
    (folder / "adapter_model.safetensors").write_bytes(safetensors.numpy.save(named, {"format": "pt"}))
    return folder


def matrices() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return A [rank, inputs] and B [outputs, rank] of each module, in the shapes of PEFT."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "embed": ((2, 7), (6, 2)), "body.square": ((2, 6), (6, 2)), "body.wide": ((2, 6), (8, 2)),
        "body.conv": ((2, 8, 3), (4, 2, 1)), "head": ((2, 4), (3, 2)),
    }  # fmt: skip
    return {
        name: (rng.standard_normal(a).astype(np.float32), rng.standard_normal(b).astype(np.float32))
        for name, (a, b) in shapes.items()
    }


def peft_tensors() -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for name, (a, b) in matrices().items():
        kinds = ("lora_embedding_A", "lora_embedding_B") if name == "embed" else ("lora_A.weight", "lora_B.weight")
        tensors |= {f"{name}.{kinds[0]}": a, f"{name}.{kinds[1]}": b}
    return tensors


@pytest.mark.parametrize("rslora", [False, True])
def test_merged_weights_are_those_of_peft(tmp_path: Path, rslora: bool) -> None:
    adapter = train.read_peft(write(tmp_path / "a", peft_tensors(), use_rslora=rslora), network())
    merged = adapter.weights(network())
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in network().graph.initializer}
    scale = 8 / np.sqrt(2) if rslora else 8 / 2
    assert set(merged) == set(SHAPES)
    for module, (a, b) in matrices().items():
        name = MODULES[module]
        delta = scale * (b.reshape(len(b), -1) @ a.reshape(len(a), -1))  # [outputs, inputs], as peft computes it.
        delta = delta.T if module in ("embed", "body.square") else delta
        np.testing.assert_allclose(merged[name], stored[name] + delta.reshape(SHAPES[name]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rslora", [False, True])
def test_ranks_and_alphas_of_single_modules_are_those_of_peft(tmp_path: Path, rslora: bool) -> None:
    model, rng = network(), np.random.default_rng(4)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 6), (6, 3)))
    tensors = {**peft_tensors(), "body.square.lora_A.weight": a, "body.square.lora_B.weight": b}
    patterns = {"rank_pattern": {"squ.*": 3}, "alpha_pattern": {r"body\.(square|wide)": 5, "wide": 1}}
    folder = write(tmp_path / "a", tensors, use_rslora=rslora, **patterns)
    adapter = train.read_peft(folder, model)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for again in (adapter, _rewritten(adapter, tmp_path / "b", model)):
        merged = again.weights(model)
        wide, head = (matrices()[name] for name in ("body.wide", "head"))
        for name, (down, up), alpha in (
            ("onnx::MatMul_7", (a, b), 5), ("body.wide.weight", wide, 5), ("head.weight", head, 8)
        ):  # fmt: skip
            scale = alpha / (np.sqrt(len(down)) if rslora else len(down))
            delta = scale * up @ down
            expected = stored[name] + (delta.T if name == "onnx::MatMul_7" else delta)
            np.testing.assert_allclose(merged[name], expected, rtol=1e-5, atol=1e-5)


def _rewritten(adapter: train.Adapter, folder: Path, model: onnx.ModelProto) -> train.Adapter:
    train.write_peft(adapter, folder, model)
    return train.read_peft(folder, model)


def test_files_name_the_smaller_ranks_of_small_weights(tmp_path: Path) -> None:
    model = network()
    model.graph.node[1].name = "/body/square/MatMul"
    trainer = train.Trainer(model, "mse", train.SGD(0.1), lora=LoRA(6, 3.0, alphas={"body.conv*": 2.0}))
    train.write_peft(trainer.adapter(), tmp_path / "a", model)
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    written = safetensors.numpy.load_file(tmp_path / "a" / "adapter_model.safetensors")
    assert len(written["base_model.model.head.lora_A.weight"]) == 3
    assert config["rank_pattern"] == {r"^body\.conv": 4, "^head": 3}
    alphas = {name: pytest.approx(value) for name, value in {r"^body\.conv": 2 * 4 / 6, "^head": 3 * 3 / 6}.items()}
    assert config["alpha_pattern"] == alphas


def test_biases_of_peft_are_part_of_the_adapter(tmp_path: Path) -> None:
    model, bias = network(), np.array([1.0, 2.0, 3.0], np.float32)
    model.graph.node[-1].input.append("head.bias")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float32), "head.bias"))
    tensors = {**peft_tensors(), "head.base_layer.bias": bias}
    adapter = train.read_peft(write(tmp_path / "a", tensors, bias="lora_only"), model)
    np.testing.assert_array_equal(adapter.weights(model)["head.bias"], bias)
    train.write_peft(adapter, tmp_path / "b", model)
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["bias"] == "all"
    written = safetensors.numpy.load_file(tmp_path / "b" / "adapter_model.safetensors")
    np.testing.assert_array_equal(written["base_model.model.head.base_layer.bias"], bias)
    model.graph.node[-1].input[2] = model.graph.initializer[-1].name = "wrapped.head.bias"
    np.testing.assert_array_equal(train.read_peft(tmp_path / "a", model).weights(model)["wrapped.head.bias"], bias)


def test_lengths_of_dora_are_read(tmp_path: Path) -> None:
    a, b = matrices()["head"]
    lengths = np.array([1.0, 2.0, 3.0], np.float32)
    tensors = {"head.lora_A.weight": a, "head.lora_B.weight": b, "head.lora_magnitude_vector": lengths}
    adapter = train.read_peft(write(tmp_path / "a", tensors, use_dora=True), network())
    weight = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in network().graph.initializer}["head.weight"]
    summed = weight + 4 * b @ a
    expected = summed / np.linalg.norm(summed, axis=1, keepdims=True) * lengths[:, np.newaxis]
    np.testing.assert_allclose(adapter.weights(network())["head.weight"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lora", [LoRA(2), LoRA(3, 6.0, ("head*", "body.wide*", "embed*"), rslora=True)])
def test_trained_adapters_survive_the_files_of_peft(tmp_path: Path, lora: LoRA) -> None:
    model = network()
    model.graph.node[1].name = "/body/square/MatMul"
    trainer = train.Trainer(model, "mse", train.SGD(0.2), lora=lora)
    rng = np.random.default_rng(2)
    for _ in range(2):
        trainer.step({"tokens": rng.integers(0, 7, (4, 5)), "labels": np.ones((4, 3), np.float32)})
    adapter = trainer.adapter()
    if "onnx::MatMul_7" in adapter.targets():  # A name that torch does not know.
        adapter = train.Adapter(lora, {k: v for k, v in adapter.tensors.items() if not k.startswith("onnx::")})
    train.write_peft(adapter, tmp_path / "a", model)
    again = train.read_peft(tmp_path / "a", model)
    for name, array in adapter.weights(model).items():
        np.testing.assert_allclose(again.weights(model)[name], array, rtol=1e-6, atol=1e-7)


def test_other_files_are_refused(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ModelFileError, match="cannot be read"):
        train.read_peft(tmp_path / "none", model)
    with pytest.raises(ModelFileError, match="type LORA, got 'IA3'"):
        train.read_peft(write(tmp_path / "a", peft_tensors(), peft_type="IA3"), model)
    with pytest.raises(ModelFileError, match="layer_replication"):
        train.read_peft(write(tmp_path / "b", peft_tensors(), layer_replication=[[0, 1]]), model)
    with pytest.raises(ModelFileError, match="`rank_pattern` has an invalid regular expression"):
        train.read_peft(write(tmp_path / "b", peft_tensors(), rank_pattern={"head(": 4}), model)
    with pytest.raises(ModelFileError, match="expected `alpha_pattern` to map modules to numbers"):
        train.read_peft(write(tmp_path / "b", peft_tensors(), alpha_pattern=[4]), model)
    with pytest.raises(OptionError, match="expected an integer"):
        train.read_peft(write(tmp_path / "b", peft_tensors(), rank_pattern={"head": "many"}), model)
    with pytest.raises(ModelFileError, match="both matrices"):
        train.read_peft(write(tmp_path / "c", {"head.lora_A.weight": np.ones((2, 4), np.float32)}), model)
    a, b = matrices()["head"]
    with pytest.raises(OptionError, match="no weight of the module 'tail'"):
        train.read_peft(write(tmp_path / "d", {"tail.lora_A.weight": a, "tail.lora_B.weight": b}), model)
    with pytest.raises(OptionError, match="expected an adapter of 3 by 4, got 3 by 5"):
        wide = np.ones((2, 5), np.float32)
        train.read_peft(write(tmp_path / "e", {"head.lora_A.weight": wide, "head.lora_B.weight": b}), model)
    (tmp_path / "a" / "adapter_config.json").write_text("{")
    with pytest.raises(ModelFileError, match="expected a file of PEFT"):
        train.read_peft(tmp_path / "a", model)


def test_weights_trained_whole_are_part_of_the_adapter(tmp_path: Path) -> None:
    trainer = train.Trainer(network(), "mse", train.SGD(0.2), lora=LoRA(2), trainable="head.weight")
    batch = {"tokens": np.arange(10).reshape(2, 5) % 7, "labels": np.ones((2, 3), np.float32)}
    for _ in range(3):
        trainer.step(batch)
    assert "head.weight" in trainer.parameters and "head.weight.lora_a" not in trainer.parameters
    trainer.adapter().save(tmp_path / "a.safetensors")
    session = sardonyx.Session(network(), compile="wait")
    live = train.LiveAdapters(session, {"one": train.Adapter.load(tmp_path / "a.safetensors")})
    feeds = {"tokens": batch["tokens"]}
    (before,) = session.run(None, feeds)
    live.activate(["one"])
    np.testing.assert_allclose(session.run(None, feeds)[0], trainer.predict(feeds)["y"], rtol=1e-4, atol=1e-5)
    live.activate({"one": 0.5})
    live.activate([])
    np.testing.assert_array_equal(session.run(None, feeds)[0], before)


def test_modules_of_anonymous_weights_are_those_of_scopes_in_metadata(tmp_path: Path) -> None:
    model = network()
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".weight"):
            tensor.name = f"wrapped.{tensor.name}"
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name.endswith(".weight"):
                node.input[i] = f"wrapped.{name}"
        if "onnx::MatMul_7" in node.input:
            node.name = "node_linear_1"
            scopes = ["", "wrapped", "wrapped.body", "wrapped.body.square", "linear"]
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    unwrapped = network()
    unwrapped.graph.node[1].name = "/body/square/MatMul"
    plain = train.read_peft(write(tmp_path / "a", peft_tensors()), unwrapped)
    adapter = train.read_peft(write(tmp_path / "a", peft_tensors()), model)
    feeds = {"tokens": np.array([[0, 1, 2, 3, 4]])}
    answers = [sardonyx.Session(one).run(None, feeds)[0] for one in (plain.merge(unwrapped), adapter.merge(model))]
    np.testing.assert_array_equal(*answers)
    train.write_peft(adapter, tmp_path / "b", model, root="wrapped.")
    written = safetensors.numpy.load_file(tmp_path / "b" / "adapter_model.safetensors")
    assert set(written) == {f"base_model.model.{name}" for name in peft_tensors()}
    for name, array in peft_tensors().items():
        np.testing.assert_array_equal(written[f"base_model.model.{name}"], array)


def test_dropout_survives_the_files_of_peft(tmp_path: Path) -> None:
    adapter = train.read_peft(write(tmp_path / "a", peft_tensors(), lora_dropout=0.25), network())
    assert adapter.options.dropout == 0.25
    train.write_peft(adapter, tmp_path / "b", network())
    assert json.loads((tmp_path / "b" / "adapter_config.json").read_text())["lora_dropout"] == 0.25


def test_lengths_of_dora_have_the_shapes_of_peft(tmp_path: Path) -> None:
    trainer = train.Trainer(network(), "mse", train.SGD(0.1), lora=LoRA(2, targets=("head*", "body.conv*"), dora=True))
    train.write_peft(trainer.adapter(), tmp_path / "a", network())
    written = safetensors.numpy.load_file(tmp_path / "a" / "adapter_model.safetensors")
    shapes = {name: array.shape for name, array in written.items() if name.endswith("magnitude_vector")}
    prefix = "base_model.model"
    expected = {f"{prefix}.head.lora_magnitude_vector": (3,), f"{prefix}.body.conv.lora_magnitude_vector": (1, 4, 1)}
    assert shapes == expected
    again = train.read_peft(tmp_path / "a", network())
    for name, array in trainer.adapter().tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
