"""Random graphs for fills, gathers after Transpose, pixel blocks and indices of extrema."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("fuse_slice_into_fill/slice_of_fill", "fuse_slice_into_fill/split_of_fill")
def fills(g: GraphMaker) -> None:
    part, count = g.int(1, 2), g.int(2, 3)
    rows = part * count
    x = g.input((g.int(1, 3), 4))
    batch = g.node("Slice", g.node("Shape", x), g.ints(0), g.ints(1))
    axis, pieces = (0, [g.ints(rows), batch, g.ints(2)]) if g.chance(0.7) else (1, [batch, g.ints(rows, 2)])
    target = g.node("Concat", *pieces, axis=0)
    if g.chance(0.2):
        axis, target = 0, g.ints(rows, 2)
    filled = g.node("ConstantOfShape", target) if g.chance() else g.node("Expand", g.weight((1,)), target)
    g.read_again(filled)
    if g.chance():
        sizes = [part] * count if g.chance(0.8) else [1, rows - 1]
        parts = g.node("Split", filled, g.ints(*sizes), axis=axis, n_outputs=len(sizes))
        g.output(*parts[:1], *(part if g.chance(0.2) else g.node("Relu", part) for part in parts[1:]))
    else:
        start = g.int(0, rows - 1)
        g.output(g.node("Slice", filled, g.ints(start), g.ints(start + g.int(0, 2)), g.ints(axis)))


@generator("fuse_elementwise_into_fill")
def functions_of_fills(g: GraphMaker) -> None:
    x = g.input(g.shape(g.int(0, 3)))
    dtype = g.pick(["float32", "int64", "float32", "bool", "float16"])
    number = g.pick([np.nan, -0.0, 1.5, -3, np.inf]) if g.chance(0.5) and dtype.startswith("float") else g.int(-2, 3)
    value = onnx.numpy_helper.from_array(np.array([number], dtype))
    default = dtype == "float32" and g.chance(0.3)
    filled = g.node("ConstantOfShape", g.node("Shape", x), value=None if default else value)
    g.read_again(filled, 0.1)
    if dtype == "bool":
        g.output(g.node("Not", filled) if g.chance() else g.node("And", filled, g.const(np.array(g.chance()))))
    elif g.chance(0.4):
        to = g.pick([onnx.TensorProto.INT32, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL])
        if not np.isfinite(number) and not default:
            to = onnx.TensorProto.FLOAT
        g.output(g.node("Cast", filled, to=to) if g.chance() else g.node("Neg", filled))
    else:
        other = g.const(np.full(g.pick([(), (1,), (1, 1)]), g.int(1, 3)), dtype)
        op = g.pick(["Add", "Sub", "Mul", "Div", "Equal", "Less"])
        g.output(g.node(op, *((filled, other) if g.chance() else (other, filled))))


@generator("fuse_consecutive_gathers")
def nested_gathers(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.int(0, len(shape) - 1)
    first = g.rng.integers(-shape[axis], shape[axis], g.int(1, 4))
    y = g.node("Gather", g.input(shape), g.const(first), axis=axis)
    g.read_again(y)
    second = g.rng.integers(-len(first), len(first), g.pick([(), (2,), (2, 3)]))
    g.output(g.node("Gather", y, g.const(np.asarray(second)), axis=axis - len(shape) if g.chance(0.3) else axis))


@generator("eliminate_transpose_before_gather")
def shuffled_channels(g: GraphMaker) -> None:
    groups, per, height, width = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    x = g.input((1, groups * per, height, width), dynamic=g.chance(0.1))
    transposed = g.node("Transpose", g.node("Reshape", x, g.ints(per, groups, height * width)), perm=[1, 0, 2])
    g.read_again(transposed, 0.1)
    y = g.node("Reshape", transposed, g.ints(groups, -1, per, *g.pick([(height, width), (height * width,)])))
    g.read_again(y, 0.1)
    for index in range(groups):
        g.output(g.node("Gather", y, g.const(np.array(index)), axis=0))
        if g.chance(0.1):
            g.output(g.node("Gather", y, g.ints(index), axis=0))


@generator("eliminate_transpose_before_gather/gather_of_turned")
def transposed_parts(g: GraphMaker) -> None:
    shape = g.shape(g.int(2, 4))
    rank, x = len(shape), g.input(shape, dynamic=g.chance(0.3))
    first = g.int(0, rank - 1)
    perm = [first, *(axis for axis in range(rank) if axis != first)] if g.chance(0.7) else g.permutation(rank)
    transposed = g.node("Transpose", x, perm=perm)
    g.read_again(transposed, 0.1)
    for _ in range(g.int(1, 3)):
        axis = 0 if g.chance(0.8) else g.axis(rank)
        size = shape[perm[axis]]
        if size:
            index = g.int(-size, size - 1)
            g.output(g.node("Gather", transposed, g.const(np.array(index)), axis=g.pick([axis, axis % rank - rank])))
    if not g.has_outputs:
        g.output(transposed)


@generator("fuse_depth_to_space")
def pixel_blocks(g: GraphMaker) -> None:
    n, c, block, h, w = g.int(1, 2), g.int(1, 2), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    match g.pick(["DCR", "CRD", "space", "other"]):
        case "DCR":
            shape, six, perm = (n, c * block**2, h, w), (n, block, block, c, h, w), [0, 3, 4, 1, 5, 2]
            out = (n, c, h * block, w * block)
        case "CRD":
            shape, six, perm = (n, c * block**2, h, w), (n, c, block, block, h, w), [0, 1, 4, 2, 5, 3]
            out = (n, c, h * block, w * block)
        case "space":
            shape, six, perm = (n, c, h * block, w * block), (n, c, h, block, w, block), [0, 3, 5, 1, 2, 4]
            out = (n, c * block**2, h, w)
        case _:
            shape, six, perm = (n, c * block**2, h, w), (n, c, block, block, h, w), [0, 1, 5, 2, 4, 3]
            out = (n, c, w * block, h * block)
    y = g.node("Reshape", g.input(shape), g.ints(*six))
    g.read_again(y, 0.1)
    y = g.node("Transpose", y, perm=perm)
    g.read_again(y, 0.1)
    g.output(g.node("Reshape", y, g.ints(*out)))


@generator("eliminate_nop_monotone_argmax")
def indices_of_extrema(g: GraphMaker) -> None:
    g.special = False
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axis = g.axis(len(shape))
    y = g.node(g.pick(["Exp", "Sigmoid", "Tanh", "Neg"]), g.input(shape))
    if g.chance(0.3):
        y = g.node("Softmax", g.input(shape), axis=axis if g.chance(0.8) else g.axis(len(shape)))
    g.read_again(y)
    if g.chance(0.3):
        values, indices = g.node("TopK", y, g.ints(1), axis=axis, n_outputs=2)
        g.output(indices, *([values] if g.chance(0.3) else []))
    else:
        g.output(g.node(g.pick(["ArgMax", "ArgMin"]), y, axis=axis, keepdims=g.maybe(0)))


LABELS = [
    "fuse_elementwise_into_fill",
    "fuse_slice_into_fill/slice_of_fill",
    "fuse_slice_into_fill/split_of_fill",
    "fuse_consecutive_gathers",
    "eliminate_transpose_before_gather",
    "eliminate_transpose_before_gather/gather_of_turned",
    "fuse_depth_to_space",
    "eliminate_nop_monotone_argmax",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
