"""Random graphs for the passes that mostly run if named: products, biases, pools and log-softmax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.rewrite.rules.einsum import matrix_product
from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("replace_einsum_with_matmul/plain_product", "replace_einsum_with_matmul/product_of_transposed")
def products(g: GraphMaker) -> None:
    batch = "bh"[: g.int(0, 2)]
    left = batch + g.pick(["ij", "ji"])
    right = (batch if g.chance(0.7) else "") + g.pick(["jk", "kj"])
    result = batch + g.pick(["ik", "ik", "ik", "ki", "ij"])
    sizes = {letter: g.int(1, 4) for letter in "bhijk"}
    dtype = g.pick(["float32", "float32", "float64", "int64"])
    x, y = (g.input([sizes[c] for c in term], dtype, dynamic=g.chance(0.2)) for term in (left, right))
    if g.chance(0.2):
        left, right, result = "..." + left, "..." + right, "..." + result
    space = " " if g.chance(0.3) else ""
    g.output(g.node("Einsum", x, y, equation=f"{left}{space},{right}->{result}"))


@generator("fuse_consecutive_log_softmax")
def log_softmax(g: GraphMaker) -> None:
    g.special = False
    shape = g.shape(rank=g.int(1, 4), zero=0)
    y = g.node("Softmax", g.input(shape), axis=g.maybe(g.axis(len(shape))))
    g.read_again(y)
    g.output(g.node("Log", y))


@generator("adjust_slice_and_matmul")
def slices_of_constants(g: GraphMaker) -> None:
    rank = g.int(2, 4)
    data = [g.int(1, 4) for _ in range(rank)]
    batch = [g.pick([size, 1]) for size in data[:-2]] if g.chance(0.6) else []
    batch = ([g.int(1, 3)] if len(batch) == rank - 2 and g.chance(0.2) else []) + batch
    axis = g.int(0, rank - 1)
    cut = g.ints(axis - rank if g.chance() else axis)
    left, right = g.weight(data), g.weight([*batch, data[-1] if axis != rank - 1 else 1, g.int(1, 4)])
    start = g.input((1,), "int64", dynamic=False, values=np.array([0], np.int64))
    y = g.node("Slice", left, start, g.ints(1), cut)
    g.read_again(y)
    g.output(g.node("MatMul", y, right), g.node("Relu", g.input(g.shape())))


@generator("fuse_add_bias_into_conv/bias_beside_open_weight", "fuse_add_bias_into_conv/computed_bias")
def biases(g: GraphMaker) -> None:
    spatial = g.int(1, 2)
    group, channels = g.pick([1, 2]), 2 * g.int(1, 2)
    x = g.input([1, 2 * group, *[g.int(2, 4)] * spatial], dynamic=g.chance(0.2))
    transposed = g.chance(0.3)
    weight = [2 * group, channels // group] if transposed else [channels, 2]
    w = g.input([*weight, *[g.int(1, 2)] * spatial], dynamic=False)
    own = g.weight([channels]) if g.chance(0.15) else None
    y = g.node("ConvTranspose" if transposed else "Conv", x, w, own, group=g.maybe(group) if group == 1 else group)
    g.read_again(y, 0.1)
    shape = g.pick([[1, channels] + [1] * spatial, [channels] + [1] * spatial, [channels, *[1] * spatial], [1], []])
    added = g.weight(shape) if g.chance() else g.input(shape, dynamic=False)
    g.output(g.node("Add", *([y, added] if g.chance() else [added, y])))


@generator("fuse_pad_into_pool/pad_before_maximum")
def padded_pools(g: GraphMaker) -> None:
    g.nan = False
    spatial = g.int(1, 2)
    dtype = g.pick(["float32", "float32", "float64"])
    x = g.input([1, 2, *[g.int(2, 5)] * spatial], dtype, dynamic=g.chance(0.2))
    if g.chance(0.7):
        x = g.node(g.pick(["Relu", "Sigmoid", "Abs"]), x)
    amounts = [g.pick([0, 0, 1, 2]) for _ in range(2 * spatial)]
    edge = [0, 0] if g.chance(0.9) else [0, 1]
    value = g.maybe(g.const(g.pick([0.0, 0.0, -1.0, 0.5, -np.inf]), dtype))
    y = g.node("Pad", x, g.ints(*edge, *amounts[:spatial], *edge, *amounts[spatial:]), value)
    g.read_again(y, 0.1)
    kernel = [g.int(1, 3)] * spatial
    more = [g.pick([0, 0, 1]) if k > 1 else 0 for k in kernel] * 2
    pads = g.maybe(more, 0.5)
    g.output(
        g.node("MaxPool", y, kernel_shape=kernel, pads=pads, ceil_mode=g.maybe(1, 0.2), strides=[g.int(1, 2)] * spatial)
    )


@generator("fuse_qkv")
def products_of_one_input(g: GraphMaker) -> None:
    rows = g.int(1, 4)
    x = g.input([*g.shape(rank=g.int(0, 2)), rows])
    if g.chance(0.3):
        x = g.node("Relu", x)
    for _ in range(g.int(2, 4)):
        width = g.int(1, 4)
        weight = g.weight([rows, width]) if g.chance(0.8) else g.input([rows, width], dynamic=False)
        y = g.node("MatMul", x, weight)
        g.output(g.node("Neg", y) if g.chance(0.7) else y)


@generator("eliminate_consecutive_idempotent_ops/reshape_twice")
def reshapes(g: GraphMaker) -> None:
    x = g.input((2, 3, 4))
    y = g.node("Reshape", x, g.ints(*g.pick([(4, 6), (24,), (-1, 2), (3, 8)])))
    g.read_again(y)
    g.output(g.node("Reshape", y, g.ints(*g.pick([(6, 4), (2, -1), (8, 3, 1), (0, -1), (-1,)]))))


@generator("eliminate_nop_monotone_argmax/place_of_maximum")
def indices_of_extrema(g: GraphMaker) -> None:
    g.special = False
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.axis(len(shape))
    x = g.input(shape, g.pick(["float32", "float64", "float16"]), dynamic=False)
    operator = g.pick(["Exp", "Softmax", "LogSoftmax", "Sigmoid"])
    along = axis if g.chance(0.8) else g.axis(len(shape))
    y = g.node(operator, x, axis=along if "Softmax" in operator else None)
    g.read_again(y)
    g.output(g.node("ArgMax", y, axis=axis, keepdims=g.maybe(0), select_last_index=g.maybe(1, 0.2)))


LABELS = [
    "replace_einsum_with_matmul/plain_product",
    "replace_einsum_with_matmul/product_of_transposed",
    "fuse_consecutive_log_softmax",
    "adjust_slice_and_matmul",
    "fuse_add_bias_into_conv/bias_beside_open_weight",
    "fuse_add_bias_into_conv/computed_bias",
    "fuse_pad_into_pool/pad_before_maximum",
    "fuse_qkv",
    "eliminate_consecutive_idempotent_ops/reshape_twice",
    "eliminate_nop_monotone_argmax/place_of_maximum",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 100)


def _run(text: str, *passes: str) -> Engine:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    return pipeline.transform(model, pipeline.select(passes=passes), Settings())


@pytest.mark.parametrize(
    ("equation", "transposed", "swapped"),
    [
        ("ij,jk->ik", (False, False), False),
        ("bhid,bhjd->bhij", (False, True), False),
        ("ji,jk->ik", (True, False), False),
        ("...ij, jk -> ...ik", (False, False), False),
        ("jk,ij->ik", (False, False), True),
    ],
)
def test_equations_of_matrix_products_are_read(equation: str, transposed: tuple[bool, bool], swapped: bool) -> None:
    product = matrix_product(equation)
    assert product is not None
    assert (product.transposed, product.swapped) == (transposed, swapped)


@pytest.mark.parametrize(
    "equation", ["ij,jk", "ii,ij->ij", "ij,ij->ij", "bij,cjk->bik", "ij,jk,kl->il", "ij->ji", "i,i->", "ij,kl->ik", ""]
)
def test_other_equations_are_not(equation: str) -> None:
    assert matrix_product(equation) is None


def test_zero_padding_before_a_maximum_stays_where_the_input_may_be_negative() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 4] x) => (float[1, 1, 4] y)
    <int64[6] pads = {0, 0, 1, 0, 0, 1}> { p = Pad (x, pads)  y = MaxPool <kernel_shape = [3]> (p) }"""
    engine = _run(text, "fuse_pad_into_pool")
    assert not engine.applied
    assert "greater than what it pads" in engine.refused[("fuse_pad_into_pool/pad_before_maximum", "y")]


def test_half_precision_keeps_its_softmax_before_argmax() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float16[2, 5] x) => (int64[2, 1] y)
    { p = Softmax (x)  y = ArgMax <axis = 1> (p) }"""
    model = model_io.from_proto(onnx.parser.parse_model(text))
    assert not pipeline.transform(model, pipeline.select(), Settings()).applied
