"""Cases of reductions and of cumulative operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ops.generators.draw import FLOATS, INTS, Case, Draw, ints, scalar
from tests.ops.generators.table import draws


@draws(
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
def reduction(draw: Draw, name: str) -> Case:
    shape, opset = draw.shape(), draw.pick(11, 13, 18, 20)
    x = draw.array(shape, draw.pick(*FLOATS, *INTS), -4, 4)
    if name == "ReduceLogSum":
        x = np.asarray(np.abs(x) + 1).astype(x.dtype)
    axes, options = draw.axes(len(shape)), {"keepdims": draw.integer(0, 1)}
    if opset >= (13 if name == "ReduceSum" else 18):
        options["noop_with_empty_axes"] = draw.integer(0, 1)
        return Case(name, opset, [x, draw.maybe(lambda: ints(*axes), 0.8)], options)
    return Case(name, opset, [x], options | ({"axes": axes} if axes else {}))


@draws("ArgMax", "ArgMin")
def position(draw: Draw, name: str) -> Case:
    shape, opset = draw.shape(1, zero=False), draw.pick(11, 12, 13)
    options = draw.options(axis=draw.axis(len(shape)), keepdims=draw.integer(0, 1))
    if opset >= 12:
        options |= draw.options(select_last_index=draw.integer(0, 1))
    return Case(name, opset, [draw.array(shape, draw.pick(np.float32, np.int32), -2, 2, special=False)], options)


@draws("CumSum", "CumProd")
def cumulative(draw: Draw, name: str) -> Case:
    shape, dtype = draw.shape(1), draw.pick(*FLOATS, *INTS)
    options = draw.options(exclusive=draw.integer(0, 1), reverse=draw.integer(0, 1))
    axis: Any = scalar(draw.axis(len(shape)), draw.pick(*INTS))
    return Case(name, 14 if name == "CumSum" else 26, [draw.array(shape, dtype, -3, 3, special=False), axis], options)
