"""A limit of the memory of a step: equal results, less memory by the plan, errors where nothing fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import train
from sardonyx.errors import OptionError, ResourceError
from tests.train.networks import classifier, images

WIDTH = 16


def deep(layers: int = 12) -> bytes:
    rng = np.random.default_rng(0)
    weights, nodes, last = [], [], "x"
    for i in range(layers):
        array = (rng.standard_normal((WIDTH, WIDTH)) * 1.4 / WIDTH**0.5).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]),
            helper.make_node("Relu", [f"m{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in ("x", last))
    graph = helper.make_graph(nodes, "deep", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def batches(rows: int = 256, count: int = 2) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{name: rng.random((rows, WIDTH), np.float32) for name in ("x", "labels")} for _ in range(count)]


def trained(
    model: bytes, loss: str, data: list[dict[str, np.ndarray]], optimizer: str = "adamw", **options: Any
) -> train.Trainer:
    trainer = train.Trainer(model, loss, optimizer, seed=1, **options)
    for batch in data:
        trainer.step(batch)
    return trainer


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.01}])
def test_a_step_in_less_memory_gives_the_same_bits(options: dict[str, Any]) -> None:
    data = batches()
    whole = trained(deep(), "mse", data, **options)
    bytes_ = whole.planned_bytes(data[0])
    assert bytes_ is not None
    limit = int(0.8 * bytes_)
    small = trained(deep(), "mse", data, max_memory=limit, **options)
    planned = small.planned_bytes(data[0])
    assert planned is not None
    assert planned <= limit
    assert any("segments" in note for note in small.notes)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(small.state()[name], array)


def test_convolutions_with_batch_statistics_agree() -> None:
    data = [images(32, i) for i in range(2)]
    whole = trained(classifier(normalized=True), "cross-entropy", data, "sgd")
    bytes_ = whole.planned_bytes(data[0])
    assert bytes_ is not None
    small = trained(classifier(normalized=True), "cross-entropy", data, "sgd", max_memory=int(0.8 * bytes_))
    for name, array in whole.state().items():
        np.testing.assert_allclose(small.state()[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


def test_larger_batches_choose_again_and_a_limit_below_all_is_refused() -> None:
    whole = train.Trainer(deep(), "mse", train.AdamW(1e-3))
    limit = whole.planned_bytes(batches(128)[0])
    assert limit is not None
    trainer = train.Trainer(deep(), "mse", train.AdamW(1e-3), max_memory=limit)
    trainer.step(batches(128)[0])
    assert not any("segments" in note for note in trainer.notes)
    trainer.step(batches(144)[0])
    assert any("segments" in note for note in trainer.notes)
    before = trainer.state()
    with pytest.raises(ResourceError, match="smallest form"):
        trainer.step(batches(4096, 1)[0])
    for name, array in trainer.state().items():
        np.testing.assert_array_equal(before[name], array)
    with pytest.raises(OptionError):
        train.Trainer(deep(), "mse", max_memory=0)
