"""Random shape arithmetic, at the sizes drawn and at others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, Unsuitable, generator, run_many

FAR = 2**63 - 1


def open_input(g: GraphMaker, rank: int, dtype: str = "float32", *, zero: float = 0.0) -> tuple[str, tuple[int, ...]]:
    """Return a graph input whose sizes are numbers, names, sums and products of names, or unknown."""
    shape = g.shape(rank=rank, zero=zero)
    dims: list[int | str | None] = []
    for size in shape:
        options = [size, size]
        if size:
            options += [f"n{size}", f"n{size}", None, g.fresh("d")]
        dims.append(g.pick(options))
    return g.input(shape, dtype, dims=dims), shape


def size_of(g: GraphMaker, x: str, rank: int) -> str:
    """Return one size of ``x`` as a vector of one element, taken from its shape in some way."""
    axis = g.axis(rank)
    match g.pick(["gather", "gather0", "slice", "negative", "shape15"]):
        case "gather":
            y = g.node("Gather", g.node("Shape", x), g.ints(axis), axis=g.maybe(0))
        case "gather0":
            scalar = g.node("Gather", g.node("Shape", x), g.const(np.array(axis, np.int64)))
            y = g.node("Unsqueeze", scalar, g.ints(0))
        case "slice":
            end = axis + 1 if axis != -1 else FAR
            y = g.node("Slice", g.node("Shape", x), g.ints(axis), g.ints(end), g.maybe(g.ints(0)))
        case "negative":
            whole = g.node("Shape", x)
            at = axis % rank
            end = at - 1 - rank if at else -rank - g.pick([1, 5, FAR // 2])
            y = g.node("Slice", whole, g.ints(at), g.ints(end), g.ints(0), g.ints(-1))
            y = g.node("Slice", y, g.ints(0), g.ints(1))
        case _:
            if g.opset < 15:
                raise Unsuitable("Shape has no start")
            end = axis + 1
            y = g.node("Shape", x, start=axis, end=end if end else None)
    return str(y)


def number(g: GraphMaker, low: int = -3, high: int = 6) -> str:
    """Return a vector of one element."""
    return g.ints(g.int(low, high))


def arithmetic(g: GraphMaker, sizes: list[str], steps: int) -> str:
    """Return a vector of one element, computed from sizes and numbers."""
    values = list(sizes)
    for _ in range(steps):
        a, b = g.pick(values), g.pick([*values, number(g, 1), number(g)])
        if g.chance(0.3):
            a, b = b, a
        match g.pick(
            ["Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Where", "Neg", "Abs", "Cast", "Reduce", "float"]
        ):
            case "Div" | "Mod" as op:
                b = g.node("Max", b, g.ints(1)) if g.chance() else g.ints(g.pick([-3, -2, 2, 3]))
                y = g.node(op, a, b, fmod=g.maybe(1, 0.3) if op == "Mod" else None)
            case "Where":
                test = g.node(g.pick(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]), a, b)
                if g.chance(0.3):
                    test = g.node("Not", test)
                elif g.chance(0.3):
                    test = g.node(g.pick(["And", "Or"]), test, g.const(np.array([g.chance()])))
                y = g.node("Where", test, g.pick(values), b)
            case "Neg" | "Abs" as op:
                y = g.node(op, a)
            case "Cast":
                y = g.node("Cast", g.node("Cast", a, to=g.pick([6, 7, 9, 1])), to=7)
            case "Reduce":
                both = g.node("Concat", a, b, axis=0)
                op = g.pick(["ReduceProd", "ReduceMax", "ReduceMin", "ReduceSum"])
                if op == "ReduceSum" or g.opset >= 18:
                    y = g.node(op, both, g.maybe(g.ints(0)), keepdims=g.maybe(1))
                else:
                    y = g.node(op, both, axes=g.maybe([0]), keepdims=g.maybe(1))
            case "float":
                scaled = g.node("Mul", g.node("Cast", a, to=1), g.const(g.pick([0.5, 2.0, 1.0]), "float32"))
                y = g.node("Cast", g.node(g.pick(["Floor", "Ceil"]), scaled), to=7)
            case op:
                y = g.node(op, a, b)
        values.append(y)
    return values[-1]


@generator("fold_shape_arithmetic", "eliminate_shape_gather", "eliminate_slice_after_shape", "share_equal_sizes")
def arithmetic_on_sizes(g: GraphMaker) -> None:
    rank = g.int(1, 4)
    x, _ = open_input(g, rank, zero=0.03)
    sizes = [size_of(g, x, rank) for _ in range(g.int(1, 3))]
    if g.chance(0.4):
        other, _ = open_input(g, 2)
        sizes.append(size_of(g, other, 2))
    for _ in range(g.int(1, 2)):
        g.output(arithmetic(g, sizes, g.int(1, 4)))
    if g.chance(0.3):
        g.output(g.node("Size", x))


@generator("eliminate_shape_op", "eliminate_slice_after_shape", "eliminate_shape_gather", "fold_shape_arithmetic")
def whole_shapes(g: GraphMaker) -> None:
    rank = g.int(0, 4)
    x, _ = open_input(g, rank, g.pick(["float32", "bool", "int64"]), zero=0.1)
    shape = g.node("Shape", x)
    if g.opset >= 15 and g.chance(0.6):
        shape = g.node("Shape", x, start=g.maybe(g.int(-6, 6)), end=g.maybe(g.int(-6, 6)))
    g.read_again(shape)
    bounds = [g.pick([0, 1, 2, -1, -2, 5, -7, FAR, -FAR, -FAR - 1]) for _ in range(2)]
    step = g.pick([None, 1, 2, -1, -2, 7])
    operands = [g.ints(bounds[0]), g.ints(bounds[1]), g.ints(g.pick([0, -1])), None if step is None else g.ints(step)]
    y = g.node("Slice", shape, *operands)
    g.output(y)
    match g.pick(["gather", "grid", "split", "concat", "reshape", "squeeze", "expand", "fill"]):
        case "gather" if rank:
            g.output(g.node("Gather", shape, g.const(np.array(g.axis(rank), np.int64))))
        case "grid" if rank:
            g.output(g.node("Gather", shape, g.const(np.array([[0], [g.axis(rank)]], np.int64))))
        case "split":
            first, second = g.node("Split", g.node("Concat", shape, y, axis=0), g.ints(0, -0), n_outputs=2)
            g.output(first, second)
        case "concat":
            g.output(g.node("Concat", y, g.ints(3), shape, axis=g.pick([0, -1])))
        case "reshape":
            g.output(g.node("Reshape", shape, g.pick([g.ints(-1), g.ints(0), g.ints(1, -1), g.ints(-1, 1)])))
        case "squeeze":
            g.output(g.node("Squeeze", g.node("Slice", shape, g.ints(0), g.ints(1))))
        case "expand":
            g.output(g.node("Expand", g.node("Size", x), g.pick([g.ints(2), g.ints(1), g.ints(0), g.ints(2, 2)])))
        case _:
            g.output(g.node("ConstantOfShape", y))


@generator("fold_shape_arithmetic", "share_equal_sizes")
def ranges_and_fills(g: GraphMaker) -> None:
    x, _ = open_input(g, 2)
    size = g.node("Gather", g.node("Shape", x), g.const(np.array(g.axis(2), np.int64)))
    start, step = (g.const(np.array(v, np.int64)) for v in (g.int(-2, 2), g.pick([1, 2, -1])))
    y = g.node("Range", start, size, step)
    g.output(y)
    fill = onnx.numpy_helper.from_array(np.array([g.int(-2, 2)], np.int64))
    filled = g.node("ConstantOfShape", size_of(g, x, 2), value=fill)
    g.output(g.node("Mul", filled, g.ints(-1)) if g.chance() else filled)
    vector = g.ints(*[g.int(-1, 3) for _ in range(g.int(1, 3))])
    ones = g.node("ConstantOfShape", g.node("Shape", vector), value=onnx.numpy_helper.from_array(np.ones(1, np.int64)))
    marked = g.node("Where", g.node("Equal", vector, g.ints(-1)), ones, vector)
    g.output(marked)
    g.output(g.node(g.pick(["ReduceSum", "ReduceProd"]), vector, keepdims=0))


@generator("eliminate_nop_reshape/reshape_to_same", "fuse_concat_into_reshape")
def reshapes(g: GraphMaker) -> None:
    rank = g.int(1, 4)
    x, shape = open_input(g, rank, zero=0.08)
    pieces: list[str] = []
    for axis in range(rank):
        kind = g.pick(["size", "size", "number", "copy", "rest", "literal"])
        if kind == "size":
            at = axis if g.chance(0.8) else g.int(0, rank - 1)
            pieces.append(g.node("Gather", g.node("Shape", x), g.ints(at)))
        else:
            pieces.append(g.ints({"number": shape[axis], "copy": 0, "rest": -1, "literal": g.int(0, 4)}[kind]))
    if g.chance(0.3):
        pieces.insert(g.int(0, rank), g.ints(g.pick([1, 1, 0])))
    if len(pieces) > 1 and g.chance(0.3):
        last, before = pieces.pop(), pieces.pop()
        pieces.append(g.node("Mul", before, last))
    target = g.node("Concat", *pieces, axis=0) if len(pieces) > 1 else pieces[0]
    if g.chance(0.2):
        target = g.node("Shape", x)
    allowzero = g.pick([None, None, None, 0, 1]) if g.opset >= 14 else None
    y = g.node("Reshape", x, target, allowzero=allowzero)
    g.read_again(y)
    g.output(g.node("Neg", y))


@generator("eliminate_nop_expand/expand_to_same")
def expands(g: GraphMaker) -> None:
    rank = g.int(1, 4)
    x, shape = open_input(g, rank, zero=0.05)
    pieces = []
    for axis in range(g.int(0, rank - 1) if g.chance(0.3) else 0, rank):
        match g.pick(["size", "size", "one", "number", "literal"]):
            case "size":
                pieces.append(
                    g.node("Gather", g.node("Shape", x), g.ints(axis if g.chance(0.85) else g.int(0, rank - 1)))
                )
            case "one":
                pieces.append(g.ints(1))
            case "number":
                pieces.append(g.ints(shape[axis]))
            case _:
                pieces.append(g.ints(g.int(0, 3)))
    if g.chance(0.2):
        pieces.insert(0, g.ints(1))
    y = g.node("Expand", x, g.node("Concat", *pieces, axis=0))
    g.read_again(y)
    g.output(g.node("Abs", y))


@generator("share_equal_sizes")
def sizes_again(g: GraphMaker) -> None:
    rank = g.int(2, 4)
    x, _ = open_input(g, rank)
    y = g.node(g.pick(["Relu", "Transpose", "Abs"]), x)
    low = g.int(0, rank - 2)
    pieces = [g.node("Gather", g.node("Shape", x), g.ints(axis)) for axis in range(low, g.int(low + 2, rank))]
    g.output(g.node("ConstantOfShape", g.node("Concat", *pieces, axis=0)))
    again = g.node("Concat", *[size_of(g, y, rank) for _ in range(2)], axis=0)
    g.output(again if g.chance() else g.node("ConstantOfShape", again))
    g.output(y, arithmetic(g, [size_of(g, y, rank), size_of(g, x, rank)], 2))


@generator("fold_shape_arithmetic")
def bounded_positions(g: GraphMaker) -> None:
    """A table cut to the sequence's length: ``table[:, offset : min(n + offset, most)]``."""
    x, _ = open_input(g, 2)
    n = g.node("Gather", g.node("Shape", x), g.ints(g.pick([1, -1])))
    offset = g.int(0, 2)
    end = g.node("Add", n, g.ints(offset)) if g.chance(0.7) else n
    if g.chance(0.7):
        end = g.node("Min", end, g.ints(g.int(1, 8)))
    table = g.weight((1, 8))
    y = g.node("Slice", table, g.ints(offset), end, g.ints(1), g.maybe(g.ints(1)))
    g.output(y, g.node("Shape", y), g.node("Gather", g.node("Shape", y), g.ints(1)))
    g.output(
        g.node("Sub", g.node("Gather", g.node("Shape", x), g.ints(0)), g.node("Gather", g.node("Shape", x), g.ints(0)))
    )


LABELS = [
    "eliminate_shape_op/shape_of_static",
    "eliminate_shape_gather/gather_of_shape",
    "eliminate_slice_after_shape/slice_of_shape",
    "fold_shape_arithmetic/known_sizes",
    "fuse_concat_into_reshape/reshape_target",
    "eliminate_nop_reshape/reshape_to_same",
    "eliminate_nop_expand/expand_to_same",
    "share_equal_sizes",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def _transformed(text: str, *passes: str, **kwargs: Any) -> tuple[Engine, onnx.ModelProto]:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    engine = pipeline.transform(model, pipeline.select(passes=passes or None), Settings(**kwargs))
    return engine, model_io.to_proto(model)


def test_a_target_of_two_open_sizes_is_refused() -> None:
    engine, _ = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[A, B, C, D] x) => (float[M, N] y)
        <int64[1] i0 = {0}, int64[1] i1 = {1}, int64[1] i2 = {2}, int64[1] i3 = {3}> {
            s = Shape (x)
            a = Gather (s, i0)  b = Gather (s, i1)  c = Gather (s, i2)  d = Gather (s, i3)
            p = Mul (a, b)  q = Mul (c, d)  t = Concat <axis = 0> (p, q)  y = Reshape (x, t)
        }"""
    )
    assert "more than one" in engine.refused[("fuse_concat_into_reshape/reshape_target", "y")]


def test_a_division_by_a_size_that_may_be_0_is_kept() -> None:
    """For an empty tensor, the division is an error."""
    _, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (int64[1] y)
        <int64[1] zero = {0}, int64[1] four = {4}> {
            s = Shape (x)  n = Gather (s, zero)  p = Mul (n, four)  y = Div (p, n)
        }"""
    )
    assert [node.op_type for node in result.graph.node][-1] == "Div"


def test_a_product_divided_by_a_number_cancels() -> None:
    _, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (int64[1] y)
        <int64[1] zero = {0}, int64[1] four = {4}> {
            s = Shape (x)  n = Gather (s, zero)  p = Mul (n, four)  q = Div (p, four)  y = Sub (q, n)
        }"""
    )
    assert [node.op_type for node in result.graph.node] in ([], ["Identity"], ["Constant"])
