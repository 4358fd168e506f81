"""Random graphs around Transposes between shape changes, and factors before products."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.core.dim import Dim
from sardonyx.rewrite.rules.transposes import group_merged_axes
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator("fuse_reshapes_around_transpose")
def merged_and_split(g: GraphMaker) -> None:
    shape = g.shape(4, zero=0.02)
    a, b, c, d = shape
    x = g.input(shape, g.pick(["float32", "int64"]), dynamic=g.chance(0.2))
    merged, perm, back = g.pick(
        [
            ((a * b, c, d), [0, 2, 1], (a, b, d, c)),
            ((a * b, c, d), [0, 2, 1], (a, b, d, c)),
            ((a, b, c * d), [0, 2, 1], (a, c, d, b)),
            ((a, b, c * d), [2, 0, 1], (c, d, a, b)),
            ((a * b, c, d), [1, 2, 0], (c, d, b, a)),
            ((a * b * c, d), [1, 0], (d, a, b, c)),
            ((a, 1, b * c, d), [0, 3, 1, 2], (a, d, b, c)),
            ((a * c, b, d), [0, 2, 1], (a, c, d, b)),
            ((a, b * c, d), [1, 0, 2], (b, c, a, d)),
            ((a, b * c, d), [1, 2, 0], (b, 1, c, d, a)),
            ((a * b, c * d), [1, 0], (c, d, a * b)),
        ]
    )
    first = g.node("Reshape", x, g.ints(*merged), allowzero=1 if g.opset >= 14 else None)
    g.read_again(first, 0.1)
    transposed = g.node("Transpose", first, perm=perm)
    g.read_again(transposed, 0.1)
    g.output(g.node("Reshape", transposed, g.ints(*back), allowzero=1 if g.opset >= 14 else None))


@generator("fuse_reshapes_around_transpose/transpose_before_split")
def split_behind(g: GraphMaker) -> None:
    """Heads merged into the batch and split from it again, the form of PyTorch's attention."""
    length, batch, heads, width = (g.int(1, 3) for _ in range(4))
    shape = (length, batch, heads * width)
    x = g.input(shape, dims=("L", "B", heads * width) if g.chance(0.5) else None, dynamic=False)
    flat = g.node("Reshape", x, g.ints(0, -1, width))
    g.read_again(flat, 0.05)
    transposed = g.node("Transpose", flat, perm=g.pick([[1, 0, 2], [1, 2, 0], [0, 1, 2]]))
    if g.chance():
        parts = [g.node("Shape", x, start=1, end=2), g.ints(heads), g.ints(-1), g.ints(g.pick([width, length]))]
        target = g.node("Concat", *parts, axis=0)
    else:
        target = g.ints(batch, heads, *g.pick([(length, width), (width, length), (-1, 1)]))
    g.opset = g.pick([17, 18, 21])
    g.output(g.node("Reshape", transposed, target))


def _factor(g: GraphMaker, x: str, dtype: str) -> str:
    number = g.const(np.full(g.pick([(), (), (1,), (1, 1)]), g.pick([0.5, 0.125, 3.0, -0.7])), dtype)
    y = g.node("Div", x, number) if g.chance(0.3) else g.node("Mul", *((x, number) if g.chance() else (number, x)))
    g.read_again(y, 0.1)
    return y


@generator("fuse_scales_of_matmul")
def products_of_scaled(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32", "float32", "float16", "float64"])
    n, k, m = g.int(1, 3), g.int(1, 3), g.int(1, 3)
    left = g.input((*g.shape(g.int(0, 2), zero=0), n, k)[-3:], dtype)
    g.output(g.node("MatMul", _factor(g, left, dtype), _factor(g, g.input((k, m), dtype), dtype)))


@generator("fuse_scale_into_weight")
def scaled_layers(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32", "float32", "float64"])
    x = g.input((2, g.int(1, 3), 4), dtype)
    rows = g.shape_of(x)[1]
    weight = g.weight((4, 6), dtype) if g.chance(0.9) else g.input((4, 6), dtype)
    if g.chance(0.3):
        y = g.node(
            "Gemm", g.node("Reshape", x, g.ints(-1, 4)), weight, g.maybe(g.weight((6,), dtype)), alpha=g.maybe(0.5)
        )
    else:
        y = g.node("MatMul", x, weight)
        g.read_again(y, 0.1)
        if g.chance(0.8):
            bias = g.weight(g.pick([(6,), (1,), (1, 1, 6)]), dtype)
            y = g.node("Add", *((y, bias) if g.chance() else (bias, y)))
    for _ in range(g.int(0, 2)):
        g.read_again(y, 0.05)
        y = g.node("Reshape", y, g.ints(2, rows, 3, 2)) if g.chance(0.6) else g.node("Transpose", y)
    g.output(g.node("Identity", _factor(g, y, dtype)))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_reshapes_around_transpose",
        "fuse_reshapes_around_transpose/transpose_before_split",
        "fuse_scales_of_matmul",
        "fuse_scale_into_weight",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_merged_axes() -> None:
    batch, length = Dim.symbol("batch"), Dim.symbol("length")
    assert group_merged_axes((batch, 12, length, 32), (batch * 12, length, 32)) == [[0, 1], [2], [3]]
    assert group_merged_axes((batch, 1, length), (batch, length)) == [[0], [1, 2]]
    assert group_merged_axes((2, 3), (2, 1, 3)) == [[0], [], [1]]
    assert group_merged_axes((6, 5), (2, 3, 5)) is None
    assert group_merged_axes((batch, length), (length, batch)) is None


def test_keys_split_into_heads_are_transposed_once() -> None:
    engine = transformed(
        """g (float[batch, length, 6, 8] x) => (float[batch, 6, 8, length] y) {
            h = Transpose<perm = [0, 2, 1, 3]>(x)
            b = Shape<end = 1>(x)
            s = Shape<start = 1, end = 2>(x)
            flat = Concat<axis = 0>(open, s, eight)
            m = Reshape(h, flat)
            t = Transpose<perm = [0, 2, 1]>(m)
            full = Concat<axis = 0>(b, six, eight, s)
            y = Reshape(t, full)
        }""",
        open=np.array([-1]),
        six=np.array([6]),
        eight=np.array([8]),
    )
    (node,) = engine.model.graph
    assert node.op_type == "Transpose"
    assert node.attributes["perm"].value == (0, 2, 3, 1)


def test_a_mask_that_masks_nothing_is_not_added() -> None:
    engine = transformed(
        """g (float[4, 100, 100] x) => (float[4, 100, 100] y) {
            m = Where(mask, zero, low)
            y = Add(x, m)
        }""",
        mask=np.ones((1, 100, 100), bool),
        zero=np.float32(-0.0),
        low=np.float32(-np.inf),
    )
    assert [node.op_type for node in engine.model.graph] == ["Identity"]
