"""Random Ifs: captured values, nested bodies, names shared between branches, conditions known and shared."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.body_maker import BodyMaker, choose, condition

SUITES = os.environ.get("SARDONYX_SUITES", "")


def random_if(g: GraphMaker, on: str, pool: list[str], conditions: list[str]) -> tuple[str, ...]:
    count = g.int(1, 3)
    branches = [BodyMaker(g, pool, conditions) for _ in range(2)]
    for body in branches:
        body.some(1, 3)
        for _ in range(count):
            body.output(g.pick(body.pool))
    return choose(g, on, branches, count)


@generator(
    "eliminate_if_with_const_cond",
    "propagate_if_condition",
    "fuse_ifs_with_same_condition",
    "eliminate_unused_if_outputs",
    "eliminate_if_with_equal_branches",
)
def ifs(g: GraphMaker) -> None:
    x = g.input(g.shape(g.int(0, 2), zero=0), dynamic=False)
    pool = [x, g.node("Relu", x)]
    conditions = [condition(g, known=g.chance(0.2)) for _ in range(g.int(1, 2))]
    if g.chance(0.3):
        conditions.append(g.node("Not", conditions[0]))
    if g.chance(0.3):
        conditions.append(g.node("And", conditions[0], condition(g)))
    for _ in range(g.int(1, 3)):
        actual = random_if(g, g.pick(conditions), pool, conditions)
        pool.extend(actual)
        if g.chance():
            pool.append(g.node("Neg", g.pick(pool)))
    g.output(pool[-1])
    g.read_again(g.pick(pool[1:]), 0.5)


@generator("eliminate_if_with_const_cond")
def decided_by_shape(g: GraphMaker) -> None:
    x = g.input(g.shape(2, zero=0))
    size = g.node("Gather", g.node("Shape", x), g.const(0, "int64"), axis=0)
    pool = [x, g.node("Relu", x)]
    on = g.node("Equal", size, g.const(g.pick([0, 1, 2]), "int64"))
    actual = random_if(g, on, pool, [on])
    g.output(g.node("Add", actual[-1], x))


@generator("eliminate_if_with_equal_branches")
def alike(g: GraphMaker) -> None:
    x = g.input(g.shape(2, zero=0), dynamic=False)
    bodies = [BodyMaker(g, [x]) for _ in range(2)]
    ops = [g.pick(["Relu", "Neg", "Abs"]) for _ in range(3)]
    flip = g.chance(0.3)
    for which, body in enumerate(bodies):
        value = x
        for position, op in enumerate(ops):
            if position == 2 and which and g.chance(0.4):
                op = "Sigmoid"
            value = body.node(op, value)
            body.pool.append(value)
        other = body.node("Add", body.pool[1], body.const(1.0, "float32"))
        names = [value, other, body.pool[1]]
        for name in reversed(names) if flip and which else names:
            body.output(name)
    actual = choose(g, condition(g), bodies, 3)
    for name in actual:
        if g.chance(0.7):
            g.output(g.node("Identity", name) if g.chance() else name)
    g.output(actual[0])


@generator("rewrite_if_to_where")
def choices(g: GraphMaker) -> None:
    dtype = g.pick(["float32", "int64", "float64", "bool"])
    shape = g.shape(g.int(0, 3))
    dynamic = g.chance(0.3)
    x, y = (g.input(shape, dtype, dynamic=dynamic and i == 1) for i in range(2))
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    count = g.int(1, 3)
    bodies = [BodyMaker(g, [x, y]) for _ in range(2)]
    for body in bodies:
        for _ in range(count):
            if g.chance(0.3):
                body.output(body.const(g.array(shape, dtype, special=False)), elem)
            else:
                body.output(g.pick([x, y]), elem)
    for name in choose(g, condition(g), bodies, count):
        g.output(name)


@generator("eliminate_impossible_branch")
def squeezed_if_one(g: GraphMaker) -> None:
    """What exporters make of ``x.squeeze(axis)`` on an open size, and operators behind it that need one rank."""
    rank = g.int(2, 4)
    shape = list(g.shape(rank, zero=0))
    axis = g.int(0, rank - 1)
    shape[axis] = 1
    x = g.input(shape, dynamic=True)
    size = g.node("Gather", g.node("Shape", x), g.ints(axis), axis=0)
    on = g.node("Equal", size, g.ints(1))
    yes, no = BodyMaker(g, [x]), BodyMaker(g, [x])
    yes.output(yes.node("Squeeze", x, yes.const([axis], "int64")))
    no.output(x)
    (y,) = choose(g, on, (yes, no))
    if g.chance(0.3):
        g.output(g.node("Shape", y))
    else:
        y = g.node("Unsqueeze", g.node("Relu", y), g.ints(0))
        y = g.node("Transpose", y, perm=g.permutation(rank))
        g.output(g.node("Reshape", y, g.ints(-1)))


@generator("eliminate_impossible_branch")
def asks_for_rank(g: GraphMaker) -> None:
    """A second If whose condition is the rank that the first one's branch gave."""
    n = g.int(1, 3)
    x = g.input((n, g.int(1, 3), g.pick([1, 2])), dynamic=g.chance())
    on = condition(g)
    yes, no = BodyMaker(g, [x]), BodyMaker(g, [x])
    yes.output(
        yes.node("ReduceMax", x, keepdims=0, **({"axes": [2]} if g.opset < 18 else {}))
        if g.opset < 18
        else yes.node("ReduceMax", x, yes.const([2], "int64"), keepdims=0)
    )
    no.output(x)
    (y,) = choose(g, on, (yes, no))
    rank = g.node("Size", g.node("Shape", y))
    requested = g.node("Equal", rank, g.const(g.pick([2, 3, 4]), "int64"))
    if g.chance(0.3):
        requested = g.node("Not", requested)
    add, keep = BodyMaker(g, [y]), BodyMaker(g, [y])
    add.output(add.node("Unsqueeze", y, add.const([0], "int64")))
    keep.output(keep.node("Relu", y))
    (z,) = choose(g, requested, (add, keep))
    g.output(g.node("Reshape", z, g.ints(-1)))


LABELS = [
    "eliminate_if_with_const_cond",
    "eliminate_if_with_equal_branches",
    "eliminate_impossible_branch",
    "eliminate_unused_if_outputs",
    "fuse_ifs_with_same_condition",
    "propagate_if_condition",
    "rewrite_if_to_where",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 100)


def _ops(model: onnx.ModelProto) -> list[str]:
    optimized = sardonyx.optimize(model, verify=False).model
    return sorted(node.op_type for node in optimized.graph.all_nodes())


def _model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + text)


def test_condition_on_the_rank_of_another_if_is_its_own_condition() -> None:
    model = _model("""
        g (float[2, 3, 4] x, bool c) => (float[n] z) <int64[1] axes = {2}, int64 three = {3}, int64[1] flat = {-1}> {
            y = If (c) <then_branch = t () => (float[2, 3] a) { s = ReduceMax <axes = [2], keepdims = 0> (x)
                                                               a = Neg (s) },
                        else_branch = e () => (float[2, 3, 4] b) { b = Relu (x) }>
            shape = Shape (y)
            rank = Size (shape)
            is_three = Equal (rank, three)
            w = If (is_three) <then_branch = t2 () => (float[2, 3, 4] a2) { a2 = Exp (y) },
                               else_branch = e2 () => (float[2, 3] b2) { b2 = Sin (y) }>
            z = Reshape (w, flat)
        }""")
    assert _ops(model) == ["Exp", "If", "Neg", "ReduceMax", "Relu", "Reshape", "Sin"]


def test_branch_stays_where_nothing_tells_that_it_is_impossible() -> None:
    model = _model("""
        g (float[n, m] x) => (int64[k] z) <int64[1] one = {1}, int64[1] axis = {1}> {
            shape = Shape (x)
            size = Gather (shape, axis)
            c = Equal (size, one)
            y = If (c) <then_branch = t () => (float[p] a) { a = Squeeze (x, axis) },
                        else_branch = e () => (float[n, m] b) { b = Identity (x) }>
            z = Shape (y)
        }""")
    assert "If" in _ops(model)


def test_equality_of_an_integer_tells_it_inside() -> None:
    model = _model("""
        g (float[4] x, int64 rate) => (float[4] y) <int64 wanted = {16}> {
            c = Equal (rate, wanted)
            y = If (c) <then_branch = t () => (float[4] a) { r = Cast <to = 1> (rate)
                                                            s = Sqrt (r)
                                                            a = Mul (x, s) },
                        else_branch = e () => (float[4] b) { b = Relu (x) }>
        }""")
    assert _ops(model) == ["Equal", "If", "Mul", "Relu"]


@pytest.mark.skipif(not SUITES, reason="SARDONYX_SUITES does not name the folder of public models")
def test_voice_detector_keeps_one_if() -> None:
    counts = sardonyx.optimize(Path(SUITES) / "real" / "silero_vad.onnx", verify=False).report.after
    assert counts.operators["If"] == 1
    assert counts.nodes <= 60
