"""Weights of recurrent layers are masked: of the input by its statistics, of the state by magnitude."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.compress.pruning.masks import MaskedLayer

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return (0.4 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def recurrent(operator: str) -> bytes:
    """Return a recurrent layer of two directions, and a product that reads both."""
    text = f"""<ir_version: 9, opset_import: ["" : 17]>
        net (float[T, N, 8] x) => (float[T, N, 3] y) {{
            [cell] h = {operator}<hidden_size: int = 12, direction: string = "bidirectional">(x, w, r)
            t = Transpose<perm = [0, 2, 1, 3]>(h) f = Reshape(t, shape) [head] y = MatMul(f, m) }}"""
    model = onnx.parser.parse_model(text)
    gates = GATES[operator]
    arrays = {
        "w": weight(2, gates * 12, 8), "r": weight(2, gates * 12, 12, seed=1), "m": weight(24, 3, seed=2),
        "shape": np.array([0, 0, 24]),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return bytes(model.SerializeToString())


def samples(scales: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{"x": (weight(6, 2, 8, seed=seed) * scales).astype(np.float32)} for seed in range(9)]


@pytest.mark.parametrize("operator", GATES)
def test_recurrent_weights_are_masked(operator: str) -> None:
    report = (result := sardonyx.prune(recurrent(operator), samples(np.ones(8)), sparsity=0.5)).report
    assert [layer.name for layer in report.layers] == ["cell[W]", "cell[R]", "head"]
    masked = [layer for layer in report.layers if isinstance(layer, MaskedLayer)]
    assert len(masked) == 3
    assert all(abs(layer.zeros / layer.weights - 0.5) < 0.02 and not layer.fixed for layer in masked)
    tensors = {name: value.const_value for name, value in result.model.graph.initializers.items()}
    stored = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
    assert stored["w"].shape == (2, GATES[operator] * 12, 8) and (stored["r"] == 0).mean() == 0.5
    assert report.evidence.outputs[0].sqnr > 3 and not report.notes[0].startswith("No weight")


def test_zeros_are_where_inputs_are_small() -> None:
    scales = np.array([1, 0.01] * 4)
    losses = [
        sardonyx.prune(
            recurrent("GRU"), samples(scales), sparsity=0.5, criterion=criterion, exclude=["cell[R]", "head"]
        )
        for criterion in ("magnitude", "wanda", "sparsegpt")
    ]
    errors = [result.report.evidence.outputs[0].sqnr for result in losses]
    assert errors[1] > errors[0] + 10 and errors[2] > errors[0] + 10
    assert [layer.fixed for layer in losses[0].report.layers] == ["", "excluded", "excluded"]


def test_patterns_are_those_of_consecutive_inputs() -> None:
    result = sardonyx.prune(recurrent("LSTM"), sparsity=0.5, pattern="2:4")
    for name in ("w", "r"):
        value = result.model.graph.initializers[name].const_value
        assert value is not None
        stored = value.numpy()
        assert ((stored.reshape(-1, 4) == 0).sum(1) == 2).all()


@pytest.mark.parametrize("size", [64, 128])
def test_the_share_of_zeros_is_exact_among_equal_weights(size: int) -> None:
    """A weight of few values, in rows that are sorted (64 x 48) and in one that is divided at a limit (128 x 48)."""
    weights = np.random.default_rng(0).integers(1, 4, (48, size)).astype(np.float32)
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> net (float[N, 48] x) => (float[N, {size}] y) {{ y = MatMul(x, w) }}'
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    value = sardonyx.prune(model, sparsity=0.5).model.graph.initializers["w"].const_value
    assert value is not None
    stored = value.numpy()
    assert (stored == 0).sum() == stored.size // 2
    staying, gone = stored.T[stored.T != 0], weights.T[stored.T == 0]
    assert staying.min() >= gone.max()
    limit = weights.T.reshape(-1)[np.argsort(weights.T.reshape(-1), kind="stable")[stored.size // 2 :]]
    np.testing.assert_array_equal(np.sort(staying), np.sort(limit))
