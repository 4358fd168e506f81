"""Random graphs for reductions and adjacent operators."""

from __future__ import annotations

import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many

NESTING = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"]
OTHERS = ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]


def reduced(g: GraphMaker, op: str, x: str, shape: tuple[int, ...], axes: list[int] | None, keep: int) -> str:
    """Return a reduction in the form of the opset, with negative axes half of the time."""
    keepdims = g.maybe(1) if keep else 0
    if axes is None:
        return str(g.node(op, x, keepdims=keepdims))
    written = [axis - len(shape) if g.chance() else axis for axis in axes]
    if g.opset >= 18 or op == "ReduceSum":
        return str(g.node(op, x, g.ints(*written), keepdims=keepdims))
    return str(g.node(op, x, axes=written, keepdims=keepdims))


def drawn_axes(g: GraphMaker, rank: int) -> list[int]:
    return sorted(int(a) for a in g.rng.choice(rank, g.int(1, rank), replace=False))


@generator("eliminate_nop_reduce/reduce_of_one")
def reductions_of_one(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 4), zero=0)
    units = [i for i, size in enumerate(shape) if size == 1]
    axes = units if units and g.chance(0.8) else drawn_axes(g, len(shape))
    y = reduced(g, g.pick(NESTING), g.input(shape), shape, axes, g.int(0, 1))
    g.read_again(y)
    g.output(g.node("Relu", y))


@generator("rewrite_sum_as_add")
def sums(g: GraphMaker) -> None:
    g.special, g.opset = False, g.pick([7, 8, 13, 21])
    dtype = g.pick(["float32", "float32", "float64", "float16"])
    shape = g.shape(rank=g.int(0, 3))
    narrow = shape[g.int(0, len(shape)) :] if g.opset > 7 and g.chance(0.3) else shape
    terms = [g.input(shape, dtype), g.input(narrow, dtype) if g.chance() else g.weight(narrow, dtype)]
    y = g.node("Sum", *(terms if g.chance() else reversed(terms)), *([g.weight(shape, dtype)] if g.chance(0.1) else []))
    g.read_again(y)
    g.output(g.node("Relu", y))


@generator("eliminate_nop_reduce/cumulative_sum_of_one")
def cumulative_sums(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3))
    units = [i for i, size in enumerate(shape) if size == 1]
    axis = g.pick(units) if units and g.chance(0.8) else g.int(0, len(shape) - 1)
    y = g.node("CumSum", g.input(shape), g.const(axis, "int64"), exclusive=g.maybe(0), reverse=g.maybe(1, 0.3))
    g.read_again(y)
    g.output(g.node("Relu", y))


@generator(
    "fuse_consecutive_reduce_unsqueeze/reduce_unsqueeze",
    "fuse_consecutive_reduce_unsqueeze/reduce_squeeze",
    "fuse_consecutive_reduce_unsqueeze/reduce_reshape",
)
def reductions_reshaped(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    axes, keep = drawn_axes(g, len(shape)), g.int(0, 1)
    y = reduced(g, g.pick(NESTING + OTHERS), g.input(shape, dynamic=g.chance(0.2)), shape, axes, keep)
    g.read_again(y)
    changed = axes if g.chance(0.8) or len(axes) == 1 else axes[1:]
    if g.chance(0.3):
        shape_with_axes = [1 if i in axes else size for i, size in enumerate(shape)]
        g.output(
            g.node(
                "Reshape",
                y,
                g.ints(*(size for i, size in enumerate(shape_with_axes) if i not in axes) if keep else shape_with_axes),
            )
        )
    else:
        g.output(g.node("Squeeze" if keep else "Unsqueeze", y, g.ints(*changed)))


@generator("fuse_consecutive_reduces")
def nested_reductions(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(2, 4), zero=0)
    first, keep = [g.int(0, len(shape) - 1)], g.int(0, 1)
    op = g.pick(NESTING)
    # ONNX Runtime's maximum keeps or drops a NaN by the place that it stands at.
    g.special = g.special and op not in ("ReduceMax", "ReduceMin")
    y = reduced(g, op, g.input(shape), shape, first, keep)
    g.read_again(y)
    between = tuple(1 if i in first else size for i, size in enumerate(shape))
    if not keep:
        between = tuple(size for i, size in enumerate(shape) if i not in first)
    again = op if g.chance(0.8) else g.pick(NESTING)
    g.output(reduced(g, again, y, between, drawn_axes(g, len(between)), keep if g.chance(0.8) else 1 - keep))


@generator("eliminate_nop_variadic")
def variadics(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 4))
    y = g.node(g.pick(["Sum", "Max", "Min", "Mean"]), g.input(shape), *([g.input(shape)] if g.chance(0.2) else []))
    g.read_again(y)
    g.output(g.node("Relu", y))


@generator("eliminate_nop_softmax")
def softmaxes(g: GraphMaker) -> None:
    g.special = False
    shape = (*g.shape(rank=g.int(0, 2)), 1)
    y = g.node("Softmax", g.input(shape), axis=g.maybe(g.axis(len(shape))))
    g.read_again(y)
    g.output(g.node("Relu", y))


LABELS = [
    "eliminate_nop_reduce/reduce_of_one",
    "eliminate_nop_reduce/cumulative_sum_of_one",
    "fuse_consecutive_reduce_unsqueeze/reduce_unsqueeze",
    "fuse_consecutive_reduce_unsqueeze/reduce_squeeze",
    "fuse_consecutive_reduce_unsqueeze/reduce_reshape",
    "fuse_consecutive_reduces",
    "eliminate_nop_variadic",
    "eliminate_nop_softmax",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
