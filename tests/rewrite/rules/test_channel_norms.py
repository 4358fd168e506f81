"""Random graphs around normalizations over other than the last axes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator(
    "fuse_layer_normalization/layer_normalization_of_channels",
    "fuse_rms_normalization/rms_normalization_of_channels",
    "fuse_scale_into_normalization/parameter_behind_transpose",
)
def channels(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24]), False
    rank = g.int(3, 4)
    shape = tuple(g.int(2, 4) for _ in range(rank))
    x = g.input(shape, dims=("N", *shape[1:]) if g.chance(0.3) else None, dynamic=False)
    axes = g.pick([(1,), (1,), (1,), (0,), (-3,), (1, 2), (rank - 1,)])

    def mean(value: str) -> str:
        return str(g.node("ReduceMean", value, g.ints(*axes), keepdims=g.maybe(1)))

    center = g.chance()
    deviation = g.node("Sub", x, mean(x)) if center else x
    squares = g.node("Mul", deviation, deviation) if g.chance() else g.node("Pow", deviation, g.const(2.0, "float32"))
    spread = g.node("Sqrt", g.node("Add", mean(squares), g.const(g.pick([1e-5, 1e-3]), "float32")))
    g.read_again(spread, 0.05)
    y = g.node("Div", deviation, spread) if g.chance(0.7) else g.node("Mul", deviation, g.node("Reciprocal", spread))
    g.read_again(y, 0.05)
    for op in ("Mul", "Add"):
        if g.chance(0.8):
            wide = g.pick([(shape[1],) + (1,) * (rank - 2), shape[-1:], (1,) * rank, shape])
            weight = g.weight(wide)
            y = g.node(op, *((y, weight) if g.chance() else (weight, y)))
    g.output(y)


@pytest.mark.parametrize(
    "label",
    [
        "fuse_layer_normalization/layer_normalization_of_channels",
        "fuse_rms_normalization/rms_normalization_of_channels",
        "fuse_scale_into_normalization/parameter_behind_transpose",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_channels_that_come_second_are_normalized_between_transposes() -> None:
    text = """g (float[N, 6, H, W] x) => (float[N, 6, H, W] y) {
        mean = ReduceMean<axes = [1]>(x)
        d = Sub(x, mean)
        squares = Pow(d, two)
        variance = ReduceMean<axes = [1]>(squares)
        raised = Add(variance, eps)
        spread = Sqrt(raised)
        n = Div(d, spread)
        scaled = Mul(w, n)
        y = Add(scaled, b)
    }"""
    weights = {name: np.arange(1, 7, dtype=np.float32).reshape(6, 1, 1) for name in ("w", "b")}
    engine = transformed(text, opset=17, two=np.float32(2), eps=np.float32(1e-6), **weights)
    nodes = list(engine.model.graph)
    assert [node.op_type for node in nodes] == ["Transpose", "LayerNormalization", "Transpose"]
    assert len(nodes[1].inputs) == 3
