"""Random graphs for constants in a row, and constants that must stay apart."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many


def constant_near(g: GraphMaker, shape: tuple[int, ...], dtype: str) -> str:
    """A constant that broadcasts with ``shape``; some are 0."""
    shape = tuple(1 if g.chance(0.4) else size for size in shape[g.int(0, len(shape)) :])
    array = g.array(shape, dtype, special=False)
    if array.size and g.chance(0.1):
        array.reshape(-1)[0] = 0
    if dtype != "float32" or g.chance(0.9):
        return g.const(array)
    return g.input(shape, dtype)


def combined(g: GraphMaker, ops: list[str], x: str, shape: tuple[int, ...], dtype: str) -> str:
    constant = constant_near(g, shape, dtype)
    y = g.node(g.pick(ops), *((x, constant) if g.chance(0.7) else (constant, x)))
    g.read_again(y, 0.1)
    return str(y)


@generator("fuse_consecutive_adds")
def sums(g: GraphMaker) -> None:
    shape, dtype = g.shape(), g.pick(["float32", "float64", "int32", "int64"])
    y = combined(g, ["Add", "Sub"], g.input(shape, dtype), shape, dtype)
    g.output(combined(g, ["Add", "Sub"], y, shape, dtype))


@generator("fuse_consecutive_muls")
def products(g: GraphMaker) -> None:
    shape, dtype = g.shape(), g.pick(["float32", "float64", "int32"])
    ops = ["Mul", "Div"] if dtype != "int32" else ["Mul"]
    y = combined(g, ops, g.input(shape, dtype), shape, dtype)
    g.output(combined(g, ops, y, shape, dtype))


@generator("fuse_linear_chain")
def linear_chains(g: GraphMaker) -> None:
    shape, dtype = g.shape(), g.pick(["float32", "float64", "int32"])
    y = combined(g, ["Add", "Sub"], g.input(shape, dtype), shape, dtype)
    y = combined(g, ["Mul"], y, shape, dtype)
    g.output(combined(g, ["Add", "Sub"], y, shape, dtype))


@generator("adjust_add", "rewrite_div_to_mul/divided_by_power_of_two", "rewrite_div_to_mul/divided_by_constant")
def single_constants(g: GraphMaker) -> None:
    shape = g.shape()
    if g.chance(0.3):
        g.output(combined(g, ["Add"], g.input(shape), shape, "float32"))
    else:
        number = g.pick([2.0, 0.25, -8.0, 3.0, 1e-40, 0.0])
        g.output(g.node("Div", g.input(shape), g.const(np.array(number, np.float32))))


@generator("rewrite_pow/power_one_half", "rewrite_pow/power_two")
def powers(g: GraphMaker) -> None:
    x = g.input(g.shape())
    base = g.pick([x, g.node("Abs", x), g.node("Mul", x, x)])
    exponent = np.full(g.pick([(), (), (1,)]), g.pick([0.5, 2.0, 3.0]), np.float32)
    g.output(g.node("Pow", base, g.const(exponent)))


LABELS = [
    "fuse_consecutive_adds",
    "fuse_consecutive_muls",
    "fuse_linear_chain",
    "adjust_add",
    "rewrite_div_to_mul/divided_by_power_of_two",
    "rewrite_div_to_mul/divided_by_constant",
    "rewrite_pow/power_one_half",
    "rewrite_pow/power_two",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)


def test_rounding_by_a_large_number_is_kept() -> None:
    magic = onnx.numpy_helper.from_array(np.array(12582912.0, np.float32), "magic")
    nodes = [helper.make_node("Add", ["x", "magic"], ["shifted"]), helper.make_node("Sub", ["shifted", "magic"], ["y"])]
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "rounding", infos[:1], infos[1:], [magic])
    model = model_io.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    engine = pipeline.transform(model, pipeline.select(), Settings())
    assert not engine.applied
    assert "rounds" in engine.refused[("fuse_consecutive_adds/add_of_add", "y")]
