"""Splitting: the chain of parts equals the whole, within the limits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import Session, demo
from sardonyx.distributed.split import run_chain
from sardonyx.errors import OptionError
from tests.distributed.networks import layers


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_the_chain_of_parts_computes_the_whole(parts: int, skip: bool) -> None:
    model = layers(8, skip)
    pipeline = sardonyx.split(model, parts)
    assert len(pipeline.parts) == parts and pipeline.error <= 1e-5
    assert sum(pipeline.weight_bytes) == 8 * 16384
    assert max(pipeline.weight_bytes) <= -(-8 // parts) * 16384
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64), np.float32)}
    expected = Session(model).run(["y", "t1"], feeds)
    for left, right in zip(expected, run_chain(pipeline.sessions(), pipeline.outputs, feeds), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_a_limit_of_memory_has_the_fewest_parts() -> None:
    pipeline = sardonyx.split(layers(8), by_memory=3 * 16384)
    assert len(pipeline.parts) == 3 and max(pipeline.weight_bytes) <= 3 * 16384
    with pytest.raises(OptionError, match="the limit is 1,000"):
        sardonyx.split(layers(2), by_memory=1000)


@pytest.mark.parametrize("arguments", [{}, {"parts": 2, "by_memory": 9}, {"parts": 0}, {"parts": 65}])
def test_other_arguments_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        sardonyx.split(layers(2), **arguments)


@pytest.mark.parametrize("name", demo.names())
def test_the_shipped_models_split(name: str) -> None:
    """They have loops, shapes from data, and outputs of several parts."""
    assert sardonyx.split(demo.path(name), 2).error <= 1e-5


def test_labels_are_strings_between_two_parts() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        net (float[b, 8] x, string[n] names) => (string[b] label, float[b, 4] p) {
            h = Relu(x) labels = Identity(names) s = MatMul(h, w) p = Softmax(s)
            best = ArgMax<axis = 1, keepdims = 0>(p) label = Gather(labels, best) }""")
    w = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    pipeline = sardonyx.split(model, 3)
    feeds = {"x": np.eye(5, 8, dtype=np.float32), "names": np.array(["a", "b", "c", "d"], object)}
    label, _ = run_chain(pipeline.sessions(), pipeline.outputs, feeds)
    assert label.tolist() == Session(model).run(["label"], feeds)[0].tolist()
