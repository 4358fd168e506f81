"""Removed channels leave every shape consistent, and channels that are zero leave the outputs equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.pruning import Pruned
from sardonyx.errors import EvaluationError, OptionError, UnsupportedError
from tests.compress.pruning.networks import Builder, depthwise, flattened, residual

pytestmark = pytest.mark.sampled

NETWORKS = [residual, depthwise, flattened]
X = np.random.default_rng(5).standard_normal((3, 3, 8, 8)).astype(np.float32)
SAMPLES = [{"x": np.random.default_rng(seed).standard_normal((2, 3, 8, 8)).astype(np.float32)} for seed in range(6)]


def answers(model: bytes | Pruned) -> list[np.ndarray]:
    """Return the outputs on two engines."""
    if isinstance(model, Pruned):
        proto = sardonyx.to_proto(model.model)
        onnx.checker.check_model(proto, full_check=True)
        model = proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    native = sardonyx.Session(model, compile="wait").run(None, {"x": X})[0]
    return [session.run(None, {"x": X})[0], np.asarray(native)]


def sizes(result: Pruned) -> dict[str, tuple[int, int]]:
    return {layer.name: (layer.before, layer.after) for layer in result.report.layers}


@pytest.mark.parametrize(
    "data, criterion",
    [(None, "auto"), (SAMPLES, "auto"), (SAMPLES, "activation")],
    ids=["no data", "data", "activation"],
)
@pytest.mark.parametrize("network", NETWORKS)
def test_channels_of_zeros_are_removed_and_outputs_stay(
    network: Callable[[], bytes], data: object, criterion: str
) -> None:
    result = sardonyx.prune(network(), data, channels=0.5, criterion=criterion)
    for expected, actual in zip(answers(network()), answers(result), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    after = sizes(result)
    removable = [name for name, (before, now) in after.items() if now < before]
    assert removable and all(after[name][1] == after[name][0] // 2 for name in removable)
    assert result.report.weight_bytes[1] < 0.6 * result.report.weight_bytes[0]
    if data is not None:
        assert result.report.evidence.judged == "held out"
        assert all(error.sqnr > 80 for error in result.report.evidence.outputs)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("network", NETWORKS)
def test_any_share_gives_a_valid_model_that_engines_agree_on(network: Callable[[bool], bytes], share: float) -> None:
    result = sardonyx.prune(network(False), channels=share)
    first, second = answers(result)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
    assert all(after >= 1 for _, after in sizes(result).values())
    assert str(result.model.graph.inputs[0].shape[0]) == "N"


def test_the_pruned_function_is_that_of_the_model_with_zeros_in_the_removed_channels() -> None:
    source = onnx.load_from_string(flattened(False))
    result = sardonyx.prune(source, channels=0.4)
    weights = {one.name: one for one in source.graph.initializer}
    for name, bias in (("w1", "b1"), ("w2", "b2")):
        old = onnx.numpy_helper.to_array(weights[name])
        new = result.model.graph.initializers[bias].const_value.numpy()
        whole = onnx.numpy_helper.to_array(weights[bias])
        silent = ~np.isin(whole, new)
        assert silent.sum() == len(whole) - len(new)
        values = old.copy()
        values[(silent,) if name == "w1" else (slice(None), silent)] = 0
        weights[name].CopyFrom(onnx.numpy_helper.from_array(values, name))
        weights[bias].CopyFrom(onnx.numpy_helper.from_array(np.where(silent, 0, whole).astype(np.float32), bias))
    for expected, actual in zip(answers(source.SerializeToString()), answers(result), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_summed_branches_lose_the_same_channels_and_outputs_are_named_as_fixed() -> None:
    result = sardonyx.prune(residual(False), channels=0.25)
    layers = {layer.name: layer for layer in result.report.layers}
    assert layers["conv1"].after == layers["conv2"].after == 6
    assert layers["head"].after == layers["head"].before == 5
    assert "output of the model" in layers["head"].fixed
    assert json.loads(result.model.metadata_props["sardonyx.prune"])["removed"] == 2


def test_a_weight_of_two_layers_is_cut_for_both() -> None:
    b = Builder()
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", 8, 3, 1, 1)], ["a"], "first"),
        helper.make_node("Conv", ["a", b.weight("w2", 8, 8, 1, 1)], ["c"], "second"),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["d"], "third"),
        helper.make_node("Conv", ["d", b.weight("w3", 5, 8, 1, 1)], ["e"], "last"),
        helper.make_node("ReduceMean", ["e"], ["y"], axes=[2, 3], keepdims=0),
    ]
    result = sardonyx.prune(b.model(nodes, 5), channels=0.5)
    assert len(result.model.graph.initializers) == 3
    first, second = answers(result)
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


def test_a_value_that_a_branch_reads_keeps_its_channels() -> None:
    b = Builder()
    inner = helper.make_graph(
        [helper.make_node("Exp", ["a"], ["e"])],
        "then",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["n"])],
        "else",
        [],
        [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", 8, 3, 1, 1)], ["a"], "first"),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", b.weight("limit")], ["test"]),
        helper.make_node("If", ["test"], ["i"], "choice", then_branch=inner, else_branch=other),
        helper.make_node("ReduceMean", ["i"], ["y"], axes=[2, 3], keepdims=0),
    ]
    with pytest.raises(UnsupportedError, match="read by If 'choice'"):
        sardonyx.prune(b.model(nodes, 8), channels=0.5)


def test_excluded_nodes_keep_their_channels() -> None:
    result = sardonyx.prune(flattened(False), channels=0.5, exclude=["conv1"])
    assert sizes(result)["conv1"] == (8, 8) and sizes(result)["hidden"] == (10, 5)
    with pytest.raises(UnsupportedError, match="excluded"):
        sardonyx.prune(flattened(False), channels=0.5, exclude=["Conv", "hidden"])


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OptionError, match="no node and no operator conv9"):
        sardonyx.prune(flattened(False), channels=0.5, exclude=["conv9"])


@pytest.mark.parametrize("options", [{"channels": 0.5}, {"sparsity": 0.5}], ids=["channels", "sparsity"])
@pytest.mark.parametrize("precision", ["FLOAT16", "BFLOAT16"])
def test_half_precision_weights_and_corrected_biases_keep_their_type(precision: str, options: dict[str, float]) -> None:
    convert = sardonyx.convert_float16 if precision == "FLOAT16" else sardonyx.convert_bfloat16
    half = convert(flattened(False)).model
    dtype = half.graph.inputs[0].dtype.numpy()
    result = sardonyx.prune(half, [{"x": one["x"].astype(dtype)} for one in SAMPLES], **options)
    before, after = (
        {name: value.dtype for name, value in model.graph.initializers.items() if name != "shape"}
        for model in (half, result.model)
    )
    assert after == before and precision in {dtype.name for dtype in after.values()}
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"channels": 0.0}, "above 0 and below 1"),
        ({"channels": 1.0}, "above 0 and below 1"),
        ({"sparsity": float("nan")}, "above 0 and below 1"),
        ({"sparsity": -0.5}, "above 0 and below 1"),
        ({}, "got none"),
        ({"channels": 0.5, "sparsity": 0.5}, "got `channels` and `sparsity`"),
        ({"layers": 0.5}, "needs data"),
        ({"heads": 0.5, "recover": "finetune"}, "needs data"),
        ({"heads": 0.5, "recover": "hope"}, "expected one of"),
        ({"channels": 0.5, "steps": 0}, "at least 1"),
        ({"pattern": "2:4"}, "needs a sparsity"),
        ({"pattern": "2:4", "channels": 0.5}, "needs a sparsity"),
        ({"pattern": "4:2", "sparsity": 0.5}, "expected N:M"),
        ({"pattern": "1x1", "sparsity": 0.5}, "expected N:M"),
        ({"pattern": "2:4", "sparsity": 0.3}, "sparsity of 0.5"),
        ({"channels": 0.5, "criterion": "taylor"}, "needs data"),
        ({"channels": 0.5, "criterion": "activation"}, "needs data"),
        ({"channels": 0.5, "criterion": "wanda"}, "expected one of"),
        ({"channels": 0.5, "criterion": "best"}, "expected one of"),
        ({"channels": 0.5, "drop": 1.0}, "evaluate"),
    ],
)
def test_impossible_options_are_named(options: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        sardonyx.prune(residual(), **options)


def test_weights_and_data_that_are_not_finite_are_refused() -> None:
    source = onnx.load_from_string(residual(False))
    weight = next(one for one in source.graph.initializer if one.name == "w2")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.full((8, 8, 3, 3), np.nan, np.float32), "w2"))
    for options in ({"channels": 0.5}, {"sparsity": 0.5}):
        with pytest.raises(EvaluationError, match="finite"):
            sardonyx.prune(source, **options)
    with pytest.raises(EvaluationError, match="NaN"):
        sardonyx.prune(residual(False), [{"x": X * np.nan}], channels=0.5)
    with pytest.raises(OptionError, match="at least one sample"):
        sardonyx.prune(residual(False), [], channels=0.5)


def test_the_metric_has_a_verdict(tmp_path: Path) -> None:
    def evaluate(session: sardonyx.Session) -> float:
        return -float(np.abs(session.run(None, {"x": X})[0] - answers(residual(False))[0]).mean())

    result = sardonyx.prune(residual(False), SAMPLES, channels=0.5, evaluate=evaluate, drop=1e-6)
    assert result.report.evidence.verdict == "not kept"
    result.save(tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < len(residual(False))


@pytest.mark.parametrize("data", [None, SAMPLES], ids=["magnitude", "activation"])
def test_masks_have_the_share_of_zeros_and_claim_no_gain(data: object) -> None:
    result = sardonyx.prune(residual(False), data, sparsity=0.5)
    assert all(layer.zeros == layer.weights // 2 for layer in result.report.layers if layer.weights % 2 == 0)
    before, after = result.report.weight_bytes
    assert after - before == (0 if data is None else 8 * 4)  # The bias that conv1 gets from data.
    assert any("neither bytes nor time" in note for note in result.report.notes)
    answers(result)


def test_magnitude_masks_remove_the_smallest_weights() -> None:
    result = sardonyx.prune(residual(False), sparsity=0.5)
    old = onnx.numpy_helper.to_array(
        next(one for one in onnx.load_from_string(residual(False)).graph.initializer if one.name == "w2")
    )
    new = result.model.graph.initializers["w2"].const_value.numpy()
    assert np.abs(old[new == 0]).max() <= np.abs(new[new != 0]).min()


def test_a_2_4_pattern_has_two_zeros_of_four_input_channels() -> None:
    result = sardonyx.prune(residual(False), sparsity=0.5, pattern="2:4")
    weight = result.model.graph.initializers["w2"].const_value.numpy()
    blocks = np.moveaxis(weight, 1, -1).reshape(-1, 4)
    assert (np.count_nonzero(blocks, axis=1) == 2).all()
    layers = {layer.name: layer for layer in result.report.layers}
    assert "multiple of 4" in layers["conv1"].fixed and not layers["conv1"].zeros
    answers(result)


@pytest.mark.parametrize("has_bias", [True, False])
def test_constant_channels_move_into_the_bias_of_the_reader(has_bias: bool) -> None:
    b = Builder(3)
    bias = [b.weight("b2", 5)] if has_bias else []
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", 8, 3, 1, 1, zero=[0]), b.weight("b1", 8)], ["c"], "conv"),
        helper.make_node("Conv", ["c", b.weight("w2", 5, 8, 3, 3), *bias], ["d"], "reader"),
        helper.make_node("ReduceMean", ["d"], ["y"], axes=[2, 3], keepdims=0),
    ]
    model = b.model(nodes, 5)
    result = sardonyx.prune(model, SAMPLES, channels=0.5, criterion="magnitude")
    assert sizes(result)["conv"] == (8, 4)
    for expected, actual in zip(answers(model), answers(result), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert any("biases of 1 layers" in note for note in result.report.notes)


def test_corrected_masks_have_a_smaller_error() -> None:
    shifted = [{"x": one["x"] + 3} for one in SAMPLES]
    plain = sardonyx.prune(residual(False), sparsity=0.5)
    corrected = sardonyx.prune(residual(False), shifted, sparsity=0.5, criterion="magnitude")
    noise = []
    for result in (plain, corrected):
        before, after = (sardonyx.Session(one, compile="wait") for one in (residual(False), result.model))
        noise.append(sum(np.square(before.run(None, s)[0] - after.run(None, s)[0]).sum() for s in shifted))
    assert noise[1] < 0.5 * noise[0]
