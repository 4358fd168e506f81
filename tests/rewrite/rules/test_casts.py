"""Random graphs for the rules about type conversions, and the conversions that must stay."""

from __future__ import annotations

import pytest
from onnx import TensorProto

from tests.rewrite.fuzz import GraphMaker, generator, run_many

TYPES = ["float32", "float16", "float64", "int32", "int64", "int8", "uint8", "bool"]
CODES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


def cast_input(g: GraphMaker) -> str:
    """An input of any type, without the NaN and infinities that no integer type holds."""
    g.special = False
    return g.input(g.shape(), g.pick(TYPES))


@generator("eliminate_nop_cast/cast_like_known")
def casts_like(g: GraphMaker) -> None:
    g.opset = g.pick([15, 19, 21])
    x = cast_input(g)
    like = cast_input(g) if g.chance() else g.weight((1,), g.pick(["float32", "float16"]))
    y = g.node("CastLike", x, like)
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_nop_cast/cast_of_cast")
def casts_of_casts(g: GraphMaker) -> None:
    y = g.node("Cast", cast_input(g), to=CODES[g.pick(TYPES)])
    g.read_again(y)
    g.output(g.node("Cast", y, to=CODES[g.pick(TYPES)]))


@generator("eliminate_nop_cast/cast_moved_cast")
def casts_around_moves(g: GraphMaker) -> None:
    g.special = False
    source, middle = g.pick(
        [("float16", "float32"), ("float32", "float16"), ("int32", "int64"), ("float32", "float64")]
    )
    x = g.input(g.shape(rank=g.int(1, 3), zero=0), source)
    y = g.node("Cast", x, to=CODES[middle])
    g.read_again(y)
    z = g.node("Transpose", y) if g.chance() else g.node("Reshape", y, g.ints(-1))
    g.read_again(z)
    g.output(g.node("Cast", z, to=CODES[g.pick([source, source, middle])]))


@generator("eliminate_nop_cast/cast_joined_casts")
def casts_around_joins(g: GraphMaker) -> None:
    g.special = False
    source, middle = g.pick([("float16", "float32"), ("float32", "float16"), ("int32", "int64"), ("bool", "int64")])
    shape = g.shape(rank=g.int(1, 3), zero=0)
    parts = [g.input(shape, source) for _ in range(g.int(1, 3))]
    wide = [g.node("Cast", part, to=CODES[middle]) for part in parts]
    if g.chance(0.2):
        wide.append(g.input(shape, middle) if g.chance() else g.node("Cast", g.input(shape, "int8"), to=CODES[middle]))
    g.read_again(wide[0], 0.1)
    y = g.node("Concat", *wide, axis=g.axis(len(shape)))
    g.read_again(y, 0.1)
    g.output(g.node("Cast", y, to=CODES[g.pick([source, source, source, middle])]))


@pytest.mark.parametrize(
    "label",
    [
        "eliminate_nop_cast/cast_like_known",
        "eliminate_nop_cast/cast_of_cast",
        "eliminate_nop_cast/cast_moved_cast",
        "eliminate_nop_cast/cast_joined_casts",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
