"""Memory of compression beside the bytes of a large file, whose weights are mapped."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx

LAYERS, WIDTH = 12, 1024
BYTES = 4 * LAYERS * WIDTH**2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model of twelve products, 48 MiB of weights in a file beside it."""
    return products(tmp_path / "m.onnx", [WIDTH] * (LAYERS + 1))


def products(path: Path, widths: list[int]) -> Path:
    """Write products of one width to the next, with the weights in a file beside the model."""
    rng = np.random.default_rng(0)
    weights, nodes, x = [], [], "x"
    for number, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        array = (rng.standard_normal((inputs, outputs)) / inputs**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        y = "y" if number == len(widths) - 2 else f"r{number}"
        nodes += [helper.make_node("MatMul", [x, f"w{number}"], [f"m{number}"])]
        nodes += [helper.make_node("Relu", [f"m{number}"], [y])]
        x = y
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", width])
        for name, width in (("x", widths[0]), ("y", widths[-1]))
    ]
    graph = helper.make_graph(nodes, "products", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data = path.with_suffix(".data").name
    onnx.save_model(model, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def samples(width: int = WIDTH) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, width)).astype(np.float32)} for _ in range(4)]


def memory(compress: Callable[[], Any]) -> tuple[float, float]:
    """Return the memory of a result, and the peak, over the bytes of the weights."""
    tracemalloc.start()
    try:
        result = compress()
        held, peak = tracemalloc.get_traced_memory()
        del result
    finally:
        tracemalloc.stop()
    return held / BYTES, peak / BYTES


def test_zeros_by_magnitude_hold_a_bit_per_weight(path: Path, tmp_path: Path) -> None:
    result = sardonyx.prune(path, sparsity=0.5)
    held, peak = memory(lambda: sardonyx.prune(path, sparsity=0.5))
    assert held < 0.2 and peak < 1.3
    result.save(tmp_path / "sparse.onnx")
    model = onnx.load(tmp_path / "sparse.onnx")
    for one in model.graph.initializer:
        array = numpy_helper.to_array(one)
        assert np.count_nonzero(array) == array.size // 2
    first, second = (
        sardonyx.Session(one).run(None, samples()[0])[0] for one in (tmp_path / "sparse.onnx", result.model)
    )
    np.testing.assert_allclose(first, second, rtol=1e-5)


def test_zeros_by_norms_of_inputs_need_no_second_moments(tmp_path: Path) -> None:
    """Second moments of 2,048 inputs have 16 MiB, the weights of a product with 16 outputs an eighth of one."""
    path, data = products(tmp_path / "tall.onnx", [2048, 16, 2048]), samples(2048)
    sardonyx.prune(path, data, sparsity=0.5, criterion="wanda")
    peak = memory(lambda: sardonyx.prune(path, data, sparsity=0.5, criterion="wanda"))[1] * BYTES
    assert peak < 8 << 20


def test_second_moments_of_large_models_are_observed_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are the same, whatever the number of passes, and weights in files are those in memory."""
    whole = sardonyx.prune(path, samples(), sparsity=0.5)
    monkeypatch.setattr("sardonyx.compress.pruning.layer_inputs.LEAST_BYTES", 2 * 4 * WIDTH**2)
    monkeypatch.setattr("sardonyx.compress.pruning.masks.SPILLED_BYTES", 0)
    parts, peak = None, 0.0
    tracemalloc.start()
    try:
        parts = sardonyx.prune(path, samples(), sparsity=0.5)
        peak = tracemalloc.get_traced_memory()[1] / BYTES
    finally:
        tracemalloc.stop()
    for name, value in whole.model.graph.initializers.items():
        first, second = value.const_value, parts.model.graph.initializers[name].const_value
        assert first is not None and second is not None
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert peak < 2.4


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_integer_weights_are_written_one_by_one(path: Path, weights: str) -> None:
    assert memory(lambda: sardonyx.quantize(path, weights=weights))[1] < 1.3


def test_static_integers_are_written_without_a_program_in_memory(path: Path) -> None:
    """The program that observes or judges holds a copy of the weights, which is free when a model is written."""
    assert memory(lambda: sardonyx.quantize(path, samples(), method="nearest", calibration="minmax"))[1] < 1.5
