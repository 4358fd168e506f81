"""Random graphs for limits in a row, and limits that cannot be reached."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


def limited(g: GraphMaker, x: str, dtype: str) -> str:
    """Relu, Clip, Max or Min of ``x``, with bounds that are numbers most of the time."""
    op = g.pick(["Relu", "Clip", "Clip", "Max", "Min"])
    if op == "Relu":
        return str(g.node("Relu", x))

    def bound() -> str:
        shape = (1,) if op != "Clip" and g.chance(0.3) else ()
        array = np.full(shape, g.pick([-1, 0, 1, 2, 3]), dtype)
        return g.const(array) if g.chance(0.9) else g.input(shape, values=array)

    if op == "Clip":
        return str(g.node("Clip", x, bound() if g.chance(0.8) else None, bound() if g.chance(0.8) else None))
    return str(g.node(op, *((x, bound()) if g.chance(0.7) else (bound(), x))))


@generator("fuse_consecutive_clips/clip_of_clip", "fuse_consecutive_clips/min_of_max")
def limits(g: GraphMaker) -> None:
    dtype = g.pick(["float32", "float32", "float64", "int32" if g.opset >= 14 else "float32"])
    y = limited(g, g.input(g.shape(), dtype), dtype)
    g.read_again(y)
    y = limited(g, y, dtype)
    g.output(limited(g, y, dtype) if g.chance(0.3) else y)


@generator("fuse_consecutive_extrema/nested_extrema")
def nested(g: GraphMaker) -> None:
    dtype = g.pick(["float32", "float32", "float64", "int32" if g.opset >= 14 else "float32"])
    op, shape = g.pick(["Max", "Min"]), g.shape()

    def operand() -> str:
        if g.chance(0.4):
            return g.input(shape, dtype)
        return g.const(np.full(g.pick([(), (1,), shape]), g.pick([-1, 0, 1, 2]), dtype))

    y = g.input(shape, dtype)
    for _ in range(g.int(2, 3)):
        operands = [y, *[operand() for _ in range(g.pick([1, 1, 2]))]]
        y = str(g.node(op if g.chance(0.9) else "Max", *(operands if g.chance(0.7) else operands[::-1])))
        g.read_again(y, 0.1)
    g.output(y)


@generator("eliminate_redundant_clip")
def ranges(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3))
    x = g.input(shape)
    op = g.pick(["Sigmoid", "Softmax", "Abs", "Exp", "Relu", "Sqrt", "HardSigmoid", "Clip", "square", "Neg"])
    match op:
        case "square":
            y = g.node("Add", g.node("Mul", x, x), g.const(np.array(g.pick([0.5, -0.5]), np.float32)))
        case "Clip":
            y = g.node("Clip", x, g.const(np.array(0, np.float32)), g.const(np.array(3, np.float32)))
        case _:
            y = g.node(op, x)
    if g.chance(0.3):
        y = g.node("Reshape", y, g.ints(-1)) if 0 not in shape else y
    g.read_again(y)
    if g.chance():
        g.output(g.node("Relu", y))
    else:
        low, high = (
            g.const(np.array(v, np.float32)) if g.chance(0.8) else None for v in (g.pick([0, -1]), g.pick([1, 3]))
        )
        g.output(g.node("Clip", y, low, high))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_consecutive_clips/clip_of_clip",
        "fuse_consecutive_clips/min_of_max",
        "fuse_consecutive_extrema/nested_extrema",
        "eliminate_redundant_clip",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
