"""Random graphs for neutral and absorbing operands, and operators that undo or repeat themselves."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from tests.rewrite.fuzz import GraphMaker, generator, run_many

UNITS = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1, "And": True, "Or": False, "Xor": False}


def near_shape(g: GraphMaker, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with ``shape``: most often into it, sometimes beyond it."""
    stored = shape[g.int(0, len(shape)) :]
    near = tuple(1 if g.chance(0.6) else size for size in stored)
    return (1, *near) if g.chance(0.1) else near


def filled(g: GraphMaker, shape: tuple[int, ...], number: float, dtype: str) -> str:
    """A tensor of one number, as a constant or as ConstantOfShape."""
    one = np.array([number], dtype)
    if g.chance(0.2) and dtype != "bool":
        target = g.const(np.array(shape, np.int64))
        return str(g.node("ConstantOfShape", target, value=numpy_helper.from_array(one)))
    return g.const(np.full(shape, one[0]))


@generator("eliminate_nop_with_unit/neutral_operand", "eliminate_nop_with_unit/neutral_but_for_the_sign_of_zero")
def units(g: GraphMaker) -> None:
    op = g.pick(list(UNITS))
    dtype = (
        "bool" if op in ("And", "Or", "Xor") else g.pick(["float32", "float32", "float64", "float16", "int64", "int32"])
    )
    shape = g.shape()
    x = g.input(shape, dtype)
    number = UNITS[op] if g.chance(0.85) else 1 - UNITS[op]
    if op in ("Add", "Sub") and dtype.startswith("float") and g.chance():
        number = -0.0
    operands = [x, filled(g, near_shape(g, shape), number, dtype)]
    if op not in ("Sub", "Div", "Pow") and g.chance():
        operands.reverse()
    if op == "Pow" and dtype == "int64":
        g.special = False
    y = g.node(op, *operands)
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_absorbing_element")
def absorbers(g: GraphMaker) -> None:
    op, number = g.pick([("Mul", 0), ("And", False), ("Or", True), ("And", True)])
    dtype = "bool" if op != "Mul" else g.pick(["int64", "int32", "float32"])
    shape = g.shape()
    operands = [g.input(shape, dtype), filled(g, near_shape(g, shape), number, dtype)]
    if g.chance():
        operands.reverse()
    y = g.node(op, *operands)
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_consecutive_idempotent_ops")
def idempotents(g: GraphMaker) -> None:
    op = g.pick(["Relu", "Ceil", "Floor", "Round", "Sign", "Abs"])
    y = g.node(op, g.input(g.shape(), g.pick(["float32", "float64"])))
    g.read_again(y)
    g.output(g.node(op if g.chance(0.8) else "Neg", y))


@generator(
    "eliminate_double_inverse/not_not",
    "eliminate_double_inverse/neg_neg",
    "eliminate_double_inverse/reciprocal_reciprocal",
)
def inverses(g: GraphMaker) -> None:
    op, dtype = g.pick([("Not", "bool"), ("Neg", "float32"), ("Neg", "int32"), ("Reciprocal", "float32")])
    y = g.node(op, g.input(g.shape(), dtype))
    g.read_again(y)
    g.output(g.node(op, y))


@generator(
    "fuse_neg_into_neighbor/add_negated",
    "fuse_neg_into_neighbor/subtract_negated",
    "fuse_neg_into_neighbor/abs_of_negated",
    "fuse_neg_into_neighbor/product_of_negated",
)
def negations(g: GraphMaker) -> None:
    shape, dtype = g.shape(), g.pick(["float32", "int32", "int64"])
    y = g.node("Neg", g.input(shape, dtype))
    g.read_again(y)
    match g.pick(["Add", "Sub", "Abs", "Mul"]):
        case "Abs":
            g.output(g.node("Abs", y))
        case "Mul":
            g.output(g.node("Mul", y, g.node("Neg", g.input(shape[1:], dtype))))
        case op:
            other = g.input(near_shape(g, shape), dtype)
            g.output(g.node(op, *((other, y) if g.chance(0.7) else (y, other))))


@generator("fuse_reciprocal_into_mul/reciprocal_times", "fuse_reciprocal_into_mul/one_over_times")
def reciprocals(g: GraphMaker) -> None:
    shape = g.shape()
    x = g.input(shape)
    y = g.node("Reciprocal", x) if g.chance() else g.node("Div", filled(g, near_shape(g, (1,)), 1, "float32"), x)
    g.read_again(y)
    other = g.input(near_shape(g, shape))
    g.output(g.node("Mul", *((other, y) if g.chance() else (y, other))))


LABELS = [
    "eliminate_nop_with_unit/neutral_operand",
    "eliminate_nop_with_unit/neutral_but_for_the_sign_of_zero",
    "eliminate_absorbing_element",
    "eliminate_consecutive_idempotent_ops",
    "eliminate_double_inverse/not_not",
    "eliminate_double_inverse/neg_neg",
    "eliminate_double_inverse/reciprocal_reciprocal",
    "fuse_neg_into_neighbor/add_negated",
    "fuse_neg_into_neighbor/subtract_negated",
    "fuse_neg_into_neighbor/abs_of_negated",
    "fuse_neg_into_neighbor/product_of_negated",
    "fuse_reciprocal_into_mul/reciprocal_times",
    "fuse_reciprocal_into_mul/one_over_times",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
