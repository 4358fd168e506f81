"""Random graphs for the compiler: structured operators between views, over fixed, open and counted sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.runtime.drawn_views import draw_view
from tests.runtime.graph_draft import ML, Case, Draft, Drawn


def draw(structured: str, sizes: str, seed: int) -> Case:
    """Draw a graph with a structured operator between views.

    Args:
        structured: A name of :data:`STRUCTURED`.
        sizes: ``fixed``, ``open`` or ``counted``.
        seed: Decides everything else.
    """
    d = Draft(np.random.default_rng([seed, *structured.encode(), *sizes.encode()]), sizes)
    x = _source(d)
    for _ in range(d.pick(0, 2)):
        x = draw_view(d, x)
    x = STRUCTURED[structured](d, x)
    for _ in range(d.pick(1, 3)):
        x = draw_view(d, x)
        if d.chance(0.25):
            (name,) = d.node(d.choice(["Relu", "Neg", "Abs"]), [x.name])
            x = x.with_shape(name, x.shape, x.fixed)
    d.outputs.append(x)
    return d.case()


def _source(d: Draft) -> Drawn:
    rank = d.pick(2, 4)
    shape = tuple(d.choice([2, 4, 6, 8]) for _ in range(rank))
    array = d.rng.standard_normal(shape).astype(np.float32)
    fixed = [True] * rank
    if d.sizes == "open":
        for axis in {d.pick(0, rank - 1), d.choice([0, rank - 1])}:
            fixed[axis] = False
    x = d.feed(array, fixed)
    if d.sizes == "counted":
        axis = d.pick(0, rank - 1)
        condition_values = np.arange(shape[axis]) % 2 == 0
        condition = d.feed(condition_values, [True])
        (name,) = d.node("Compress", [x.name, condition.name], axis=axis)
        counted = [size // 2 if i == axis else size for i, size in enumerate(shape)]
        return x.with_shape(name, counted, [i != axis for i in range(rank)])
    return x


def _with_form(d: Draft, x: Drawn, rank: int, last_fixed: Sequence[int] = ()) -> Drawn:
    """Return the value itself if its rank and fixed axes fit, else a reshape with the open sizes in axis 0.

    Args:
        d: The draft.
        x: The value.
        rank: The rank.
        last_fixed: Axes whose sizes must be numbers.
    """
    if x.rank == rank and all(x.fixed[axis] for axis in last_fixed):
        return x
    factor = math.prod(size for size, known in zip(x.shape, x.fixed, strict=True) if known)
    sizes: list[int] = []
    for _ in range(rank - 1):
        small = [size for size in range(1, min(factor, 12) + 1) if factor % size == 0]
        sizes.append(d.choice(small))
        factor //= sizes[-1]
    whole = all(x.fixed)
    return d.reshaped(x, [None, *sizes], [whole, *[True] * (rank - 1)])


def _windows(d: Draft, x: Drawn, largest: int = 3) -> tuple[list[int], list[int], list[int]]:
    """Draw kernel, strides and pads over the spatial axes, such that at least one window fits."""
    kernel, strides, pads = [], [], []
    for size in x.shape[2:]:
        taps = d.pick(1, min(largest, size))
        kernel.append(taps)
        strides.append(d.pick(1, 2))
        pads.append(d.pick(0, taps - 1) if taps > 1 else 0)
    return kernel, strides, pads


def _spatial(d: Draft, x: Drawn) -> Drawn:
    return _with_form(d, x, d.choice([x.rank if 3 <= x.rank <= 5 else 3, 3, 4]), (1,))


def _conv(d: Draft, x: Drawn) -> Drawn:
    x = _spatial(d, x)
    channels = x.shape[1]
    groups = d.choice([1, 1, channels, 2 if channels % 2 == 0 else 1])
    filters = groups * d.choice([1, 2, 5])
    kernel, strides, pads = _windows(d, x)
    inputs = [x.name, d.weights(filters, channels // groups, *kernel)]
    if d.chance(0.5):
        inputs.append(d.weights(filters))
    (name,) = d.node("Conv", inputs, group=groups, strides=strides, pads=pads * 2)
    out = [
        (size + 2 * pad - taps) // stride + 1
        for size, pad, taps, stride in zip(x.shape[2:], pads, kernel, strides, strict=True)
    ]
    return x.with_shape(name, (x.shape[0], filters, *out), x.fixed)


def _conv_transpose(d: Draft, x: Drawn) -> Drawn:
    x = _spatial(d, x)
    channels = x.shape[1]
    groups = d.choice([1, 1, channels])
    filters = d.choice([1, 1, 2, 3])
    kernel, strides, _ = _windows(d, x, 4)
    inputs = [x.name, d.weights(channels, filters, *kernel)]
    if d.chance(0.3):
        inputs.append(d.weights(filters * groups))
    out = [(size - 1) * stride + taps for size, taps, stride in zip(x.shape[2:], kernel, strides, strict=True)]
    fixed = x.fixed
    attributes: dict[str, Any] = {}
    if d.chance(0.3):  # The padding depends on the sizes of the image.
        out = [d.pick(1, size) for size in out]
        attributes = {"output_shape": out}
        fixed = (*fixed[:2], *(True for _ in out))
    (name,) = d.node("ConvTranspose", inputs, group=groups, strides=strides, **attributes)
    return x.with_shape(name, (x.shape[0], groups * filters, *out), fixed)


def _conv_integer(d: Draft, x: Drawn) -> Drawn:
    x = _spatial(d, x)
    scale, zero = d.constant(np.float32(0.03125)), d.constant(np.uint8(120))
    (name,) = d.node("QuantizeLinear", [x.name, scale, zero])
    filters = d.choice([1, 2, 5])
    kernel, strides, pads = _windows(d, x)
    weights = d.constant(d.rng.integers(0, 100, (filters, x.shape[1], *kernel)).astype(np.uint8))
    (sums,) = d.node("ConvInteger", [name, weights, zero], strides=strides, pads=pads * 2)
    (cast,) = d.node("Cast", [sums], to=TensorProto.FLOAT)
    (scaled,) = d.node("Mul", [cast, scale])
    out = [
        (size + 2 * pad - taps) // stride + 1
        for size, pad, taps, stride in zip(x.shape[2:], pads, kernel, strides, strict=True)
    ]
    return x.with_shape(scaled, (x.shape[0], filters, *out), x.fixed)


def _pool(d: Draft, x: Drawn) -> Drawn:
    x = _spatial(d, x)
    op = d.choice(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"])
    if op.startswith("Global"):
        (name,) = d.node(op, [x.name])
        return x.with_shape(name, (*x.shape[:2], *[1] * (x.rank - 2)), (*x.fixed[:2], *[True] * (x.rank - 2)))
    kernel, strides, pads = _windows(d, x)
    names = d.node(
        op, [x.name], outputs=2 if op == "MaxPool" and d.chance(0.3) else 1,
        kernel_shape=kernel, strides=strides, pads=pads * 2,
    )  # fmt: skip
    out = [
        (size + 2 * pad - taps) // stride + 1
        for size, pad, taps, stride in zip(x.shape[2:], pads, kernel, strides, strict=True)
    ]
    result = x.with_shape(names[0], (*x.shape[:2], *out), x.fixed)
    if len(names) > 1:
        d.outputs.append(Drawn(names[1], result.shape, result.fixed, np.int64))
    return result


def _matmul(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, d.pick(2, 4), (-1,))
    columns = d.choice([1, 3, 8, 17])
    (name,) = d.node("MatMul", [x.name, d.weights(x.shape[-1], columns)])
    return x.with_shape(name, (*x.shape[:-1], columns), x.fixed)


def _gemm(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, 2, (0, 1) if d.chance(0.2) and all(x.fixed) else (1,))
    columns = d.choice([1, 3, 16])
    (name,) = d.node("Gemm", [x.name, d.weights(columns, x.shape[1]), d.weights(columns)], transB=1)
    return x.with_shape(name, (x.shape[0], columns), x.fixed)


def _self_product(d: Draft, x: Drawn) -> Drawn:
    """Multiply a value by its own transpose, so that both sides may have open sizes."""
    x = _with_form(d, x, d.pick(2, 4))
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (other,) = d.node("Transpose", [x.name], perm=order)
    (name,) = d.node("MatMul", [x.name, other])
    return x.with_shape(name, (*x.shape[:-1], x.shape[-2]), (*x.fixed[:-1], x.fixed[-2]))


def _attention(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, d.choice([3, 4]))
    order = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
    (keys,) = d.node("Transpose", [x.name], perm=order)
    (scores,) = d.node("MatMul", [x.name, keys])
    (scaled,) = d.node("Mul", [scores, d.constant(np.float32(0.3))])
    (weights,) = d.node("Softmax", [scaled], axis=-1)
    (values,) = d.node("Neg", [x.name])
    (name,) = d.node("MatMul", [weights, values])
    return x.with_shape(name, x.shape, x.fixed)


def _heads(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, 3, (2,))
    heads = d.choice([size for size in (1, 2, 4) if x.shape[2] % size == 0])
    (keys,) = d.node("Neg", [x.name])
    (name,) = d.node("MultiHeadAttention", [x.name, keys, x.name], domain="com.microsoft", num_heads=heads)
    return x.with_shape(name, x.shape, x.fixed)


def _recurrent(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, 3, (2,))
    op, gates = d.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    hidden, directions = d.choice([1, 3, 8]), d.choice([1, 2])
    inputs = [
        x.name, d.weights(directions, gates * hidden, x.shape[2]), d.weights(directions, gates * hidden, hidden),
        d.weights(directions, 2 * gates * hidden),
    ]  # fmt: skip
    direction = "bidirectional" if directions == 2 else d.choice(["forward", "reverse"])
    names = d.node(op, inputs, outputs=2, hidden_size=hidden, direction=direction)
    if d.chance(0.5):
        shape = (directions, x.shape[1], hidden)
        return x.with_shape(names[1], shape, (True, x.fixed[1], True))
    d.outputs.append(x.with_shape(names[1], (directions, x.shape[1], hidden), (True, x.fixed[1], True)))
    return x.with_shape(
        names[0], (x.shape[0], directions, x.shape[1], hidden), (x.fixed[0], True, x.fixed[1], True)
    )  # fmt: skip


def _resize(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, d.choice([3, 4]), (1,))
    scales = [1.0, 1.0, *[d.choice([0.5, 1.0, 2.0]) for _ in x.shape[2:]]]
    mode = d.choice(["nearest", "linear", "cubic"] if x.rank == 4 else ["nearest", "linear"])
    shape = [math.floor(size * scale) for size, scale in zip(x.shape, scales, strict=True)]
    if 0 in shape:
        scales, shape = [1.0, 1.0, *[2.0] * (x.rank - 2)], [*x.shape[:2], *[2 * size for size in x.shape[2:]]]
    (name,) = d.node("Resize", [x.name, "", d.constant(np.array(scales, np.float32))], mode=mode)
    return x.with_shape(name, shape, x.fixed)


def _sort(d: Draft, x: Drawn) -> Drawn:
    axes = [axis for axis in range(x.rank) if x.fixed[axis]]
    if not axes:
        x = _with_form(d, x, 2, (1,))
        axes = [1]
    axis = d.choice(axes)
    count = d.pick(1, x.shape[axis])
    names = d.node("TopK", [x.name, d.ints(count)], outputs=2, axis=axis)
    shape = [count if i == axis else size for i, size in enumerate(x.shape)]
    d.outputs.append(Drawn(names[1], tuple(shape), x.fixed, np.int64))
    return x.with_shape(names[0], shape, x.fixed)


def _cumulative(d: Draft, x: Drawn) -> Drawn:
    axis = d.pick(0, x.rank - 1) if x.rank else 0
    x = x if x.rank else _with_form(d, x, 1)
    (name,) = d.node("CumSum", [x.name, d.constant(np.int64(axis))], reverse=d.pick(0, 1))
    return x.with_shape(name, x.shape, x.fixed)


def _trees(d: Draft, x: Drawn) -> Drawn:
    x = _with_form(d, x, 2, (1,))
    trees, features = 3, x.shape[1]
    ids, nodes, modes, values, feature, yes, no = [], [], [], [], [], [], []
    for tree in range(trees):
        ids += [tree] * 3
        nodes += [0, 1, 2]
        modes += ["BRANCH_LEQ", "LEAF", "LEAF"]
        values += [float(d.rng.standard_normal()), 0.0, 0.0]
        feature += [d.pick(0, features - 1), 0, 0]
        yes += [1, 0, 0]
        no += [2, 0, 0]
    leaves = [(tree, node) for tree in range(trees) for node in (1, 2)]
    (name,) = d.node(
        "TreeEnsembleRegressor", [x.name], domain=ML, n_targets=1,
        nodes_treeids=ids, nodes_nodeids=nodes, nodes_modes=modes, nodes_values=values, nodes_featureids=feature,
        nodes_truenodeids=yes, nodes_falsenodeids=no,
        target_treeids=[tree for tree, _ in leaves], target_nodeids=[node for _, node in leaves],
        target_ids=[0] * len(leaves), target_weights=[float(d.rng.standard_normal()) for _ in leaves],
    )  # fmt: skip
    return x.with_shape(name, (x.shape[0], 1), x.fixed)


def _rows(d: Draft, x: Drawn) -> Drawn:
    x = x if x.rank else _with_form(d, x, 1)
    axis = d.pick(0, x.rank - 1)
    op = d.choice(["Softmax", "LogSoftmax", "ReduceMean", "ReduceMax", "LpNormalization", "ArgMax"])
    if op.startswith("Reduce"):
        (name,) = d.node(op, [x.name, d.ints(axis)])
    elif op == "ArgMax":
        (index,) = d.node(op, [x.name], axis=axis)
        (name,) = d.node("Cast", [index], to=TensorProto.FLOAT)
    else:
        (name,) = d.node(op, [x.name], axis=axis)
        return x.with_shape(name, x.shape, x.fixed)
    return x.with_shape(
        name, [1 if i == axis else size for i, size in enumerate(x.shape)],
        [known or i == axis for i, known in enumerate(x.fixed)],
    )  # fmt: skip


def _gather(d: Draft, x: Drawn) -> Drawn:
    x = x if x.rank else _with_form(d, x, 1)
    axis = d.pick(0, x.rank - 1)
    indices = d.feed(d.rng.integers(0, x.shape[axis], (2, 3)), (True, True))
    (name,) = d.node("Gather", [x.name, indices.name], axis=axis)
    return x.with_shape(
        name, (*x.shape[:axis], 2, 3, *x.shape[axis + 1 :]), (*x.fixed[:axis], True, True, *x.fixed[axis + 1 :])
    )


def _scatter(d: Draft, x: Drawn) -> Drawn:
    x = x if x.rank else _with_form(d, x, 1)
    rows = min(2, x.shape[0])
    indices = d.constant(np.arange(rows, dtype=np.int64)[:, None])
    (part,) = d.node("Slice", [x.name, d.ints(0), d.ints(rows), d.ints(0)])
    (updates,) = d.node("Neg", [part])
    (name,) = d.node("ScatterND", [x.name, indices, updates])
    return x.with_shape(name, x.shape, x.fixed)


def _counted(d: Draft, x: Drawn) -> Drawn:
    op = d.choice(["NonZero", "Compress", "Unique"])
    if op == "NonZero":
        x = x if x.rank else _with_form(d, x, 1)
        (positive,) = d.node("Relu", [x.name])
        (positions,) = d.node("NonZero", [positive])
        (name,) = d.node("Cast", [positions], to=TensorProto.FLOAT)
        count = int((_evaluate(d, positive) != 0).sum())
        return x.with_shape(name, (x.rank, count), (True, False))
    if op == "Unique":
        (name,) = d.node("Unique", [x.name])
        return x.with_shape(name, (len(np.unique(_evaluate(d, x.name))),), (False,))
    x = x if x.rank else _with_form(d, x, 1)
    axis = d.pick(0, x.rank - 1)
    condition_values = np.arange(x.shape[axis]) % 2 == 0
    (name,) = d.node("Compress", [x.name, d.feed(condition_values, [True]).name], axis=axis)
    shape = [int(condition_values.sum()) if i == axis else size for i, size in enumerate(x.shape)]
    return x.with_shape(name, shape, [known and i != axis for i, known in enumerate(x.fixed)])


def _loop(d: Draft, x: Drawn) -> Drawn:
    """Collect rows of a value until a condition that only the run knows."""
    x = x if x.rank else _with_form(d, x, 1)
    count = d.pick(1, 5)
    body = helper.make_graph(
        [
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Less", ["next", "end"], ["again"]),
            helper.make_node("Neg", ["state"], ["negated"]),
            helper.make_node("Identity", ["negated"], ["row"]),
            helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("negated", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("row", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("number", TensorProto.FLOAT, []),
        ],
        [numpy_helper.from_array(np.array(1, np.int64), "one")],
    )
    end = d.feed(np.array(count, np.int64), [])
    body.node.insert(0, helper.make_node("Identity", [end.name], ["end"]))
    (limit, condition) = d.constant(np.array(100, np.int64)), d.constant(np.array(True))
    state, rows, numbers = d.node("Loop", [limit, condition, x.name], outputs=3, body=body)
    if d.chance(0.3):
        return x.with_shape(numbers, (count,), (False,))
    if d.chance(0.5):
        d.outputs.append(x.with_shape(numbers, (count,), (False,)))
    if d.chance(0.5):
        d.outputs.append(x.with_shape(state, x.shape, x.fixed))
    return x.with_shape(rows, (count, *x.shape), (False, *x.fixed))


def _evaluate(d: Draft, name: str) -> np.ndarray:
    """Return a value of the graph so far, by ONNX's reference implementation."""
    graph = helper.make_graph(
        d.nodes, "so_far", d.inputs, [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)], d.initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    (array,) = ReferenceEvaluator(model).run(None, d.feeds)
    return np.asarray(array)


STRUCTURED: dict[str, Callable[[Draft, Drawn], Drawn]] = {
    "conv": _conv,
    "conv transpose": _conv_transpose,
    "conv integer": _conv_integer,
    "pool": _pool,
    "matmul": _matmul,
    "gemm": _gemm,
    "self product": _self_product,
    "attention": _attention,
    "heads": _heads,
    "recurrent": _recurrent,
    "resize": _resize,
    "sort": _sort,
    "cumulative": _cumulative,
    "trees": _trees,
    "rows": _rows,
    "gather": _gather,
    "scatter": _scatter,
    "counted": _counted,
    "loop": _loop,
}
"""Operators with kernels of their own, or with fusion rules of their own."""
