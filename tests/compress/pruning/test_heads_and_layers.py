"""Heads and layers leave the graph: shapes shrink, open sizes stay, unimportant parts go first."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx
from sardonyx.compress.pruning import Pruned
from sardonyx.errors import UnsupportedError
from tests.compress.pruning.networks import flattened, residual, transformer

TOKENS = [{"x": np.random.default_rng(seed).standard_normal((2, 5, 16)).astype(np.float32)} for seed in range(12)]
OTHER = {"x": np.random.default_rng(99).standard_normal((3, 7, 16)).astype(np.float32)}


def answers(model: bytes | Pruned) -> np.ndarray:
    """Return the output, on which two engines agree, for sizes that no sample has."""
    if isinstance(model, Pruned):
        proto = sardonyx.to_proto(model.model)
        onnx.checker.check_model(proto, full_check=True)
        model = proto.SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, OTHER)[0]
    ours = sardonyx.Session(model, compile="wait").run(None, OTHER)[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    return np.asarray(ours)


@pytest.mark.parametrize("criterion", ["magnitude", "activation", "taylor"])
def test_heads_of_zeros_are_removed_with_their_keys_and_values(criterion: str) -> None:
    source = transformer(zero_heads=True)
    result = sardonyx.prune(source, TOKENS, heads=0.5, criterion=criterion)
    assert result.report.removed == 2 and result.report.candidates == 4
    np.testing.assert_allclose(answers(result), answers(source), rtol=1e-4, atol=1e-4)
    shapes = {name: list(value.shape) for name, value in result.model.graph.initializers.items()}
    assert shapes["qw_0"] == [16, 8] and shapes["kw_0"] == [16, 4] and shapes["out_0"] == [8, 16]
    assert [str(size) for size in result.model.graph.inputs[0].shape] == ["N", "T", "16"]


def test_channels_are_no_heads_and_heads_are_no_channels() -> None:
    result = sardonyx.prune(transformer(), channels=0.5)
    layers = {layer.name: (layer.before, layer.after) for layer in result.report.layers}
    assert layers["query_0"] == (16, 16) and layers["up_0"][1] + layers["up_1"][1] == 32
    answers(result)
    with pytest.raises(UnsupportedError, match="no head can be removed"):
        sardonyx.prune(flattened(False), heads=0.5)


@pytest.mark.parametrize("criterion", ["activation", "taylor"])
def test_the_layers_that_contribute_least_are_removed(criterion: str) -> None:
    source = transformer()
    result = sardonyx.prune(source, TOKENS, layers=0.5, criterion=criterion)
    removed = {layer.name for layer in result.report.layers if layer.removed}
    assert removed == {"attention_sum_1", "hidden_sum_1"}
    assert {node.name for node in result.model.graph}.isdisjoint({"query_1", "up_1", "down_1"})
    assert result.report.weight_bytes[1] < 0.6 * result.report.weight_bytes[0]
    assert result.report.evidence.outputs[0].sqnr > 15
    assert answers(result).shape == (3, 7, 5)


def test_a_model_without_residual_branches_has_no_layer_to_remove() -> None:
    samples = [{"x": np.zeros((1, 3, 8, 8), np.float32)}]
    with pytest.raises(UnsupportedError, match="residual branch"):
        sardonyx.prune(flattened(False), samples, layers=0.5)
    with pytest.raises(UnsupportedError, match="residual branch"):
        sardonyx.prune(residual(False), samples, layers=0.5, exclude=["conv2"])
