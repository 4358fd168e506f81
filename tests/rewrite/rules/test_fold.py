"""Random graphs of constants: every element type, empty tensors, strings, several outputs, bodies, bounds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed
from tests.rewrite.rules.body_maker import BodyMaker, choose, condition

NUMBERS = ["float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool"]


def _computed(g: GraphMaker) -> str:
    """Return a value that constants alone decide."""
    dtype = g.pick(NUMBERS)
    shape = g.shape(rank=g.int(0, 3), zero=0.1)
    c = g.const(g.array(shape, dtype))
    match g.pick(["chain", "cast", "transpose", "concat", "nonzero", "split", "where", "shape", "topk", "resize"]):
        case "chain" if dtype not in ("bool", "uint8", "int8"):
            y = g.node("Mul", g.node("Add", c, g.const(g.array((), dtype))), c)
        case "cast":
            y = g.node("Cast", c, to=g.pick([1, 6, 7, 9, 10, 11]))
        case "transpose":
            y = g.node("Transpose", c)
        case "concat" if shape:
            y = g.node("Concat", c, g.const(g.array(shape, dtype)), axis=g.axis(len(shape)))
        case "nonzero" if dtype in ("float32", "int64", "bool"):
            y = g.node("NonZero", c)
        case "split" if shape:
            axis = g.axis(len(shape))
            first, second = g.node("Split", c, g.ints(shape[axis], 0), axis=axis, n_outputs=2)
            y = second if g.chance(0.2) else first
        case "where":
            y = g.node("Where", g.const(g.array(shape, "bool")), c, c)
        case "topk" if shape and shape[-1] and dtype in ("float32", "int64"):
            values, indices = g.node("TopK", c, g.ints(1), n_outputs=2)
            y = values if g.chance() else indices
        case "shape":
            y = g.node(g.pick(["Shape", "Size"]), c)
        case _:
            y = g.node("Reshape", c, g.ints(-1)) if 0 not in shape else g.node("Identity", c)
    return str(y)


@generator("fold_constants")
def constants(g: GraphMaker) -> None:
    y = _computed(g)
    g.read_again(y, 0.4)
    g.output(g.node("Identity", g.node("Unsqueeze", y, g.ints(0))))
    x = g.input(g.shape(rank=2))
    if g.chance(0.3):
        random = g.node("RandomUniform", shape=[2])
        g.output(g.node("Shape", random))
    if g.chance(0.3):
        g.output(g.overridable(g.array((2,), special=False)))
    g.output(g.node("Add", x, g.node("Exp", g.weight((1,)))))


@generator("fold_constants")
def strings_and_fills(g: GraphMaker) -> None:
    words = g.loose(np.array([["a", "", "é"], ["b", "a", "日本"]][: g.int(1, 2)], object))
    match g.pick(["words", "equal", "fill", "range", "quantized", "large"]):
        case "words":
            g.output(g.node("Concat", words, g.node("Identity", words), axis=g.pick([0, -1])))
        case "equal":
            g.output(g.node("Gather", words, g.ints(0, -1), axis=1), g.node("Reshape", words, g.ints(-1)))
        case "fill":
            size = g.pick([(), (0,), (3,), (2, 40)])
            value = onnx.numpy_helper.from_array(np.array([g.pick([-0.0, np.nan, 2.0])], np.float32))
            shape = g.const(np.array(size, np.int64))
            g.output(g.node("Neg", g.node("ConstantOfShape", shape, value=g.maybe(value))))
        case "range":
            dtype = g.pick(["int64", "float32", "int32"])
            bounds = (g.const(np.array(v, dtype)) for v in (g.int(-2, 3), g.int(0, 9), g.pick([1, 2, -1])))
            g.output(g.node("Range", *bounds))
        case "quantized":
            q = g.node("QuantizeLinear", g.weight((4,)), g.const(np.float32(0.1)), g.const(np.uint8(3)))
            g.output(g.node("DequantizeLinear", q, g.const(np.float32(0.1)), g.const(np.uint8(3))))
        case _:
            g.output(g.node("Expand", g.weight((1,)), g.ints(200, 200)))
    g.output(g.node("Tile", g.weight((1, 2)), g.ints(g.int(0, 3), 2)))


@generator("fold_constants")
def constants_in_bodies(g: GraphMaker) -> None:
    x, outer = g.input((2,), dynamic=False), g.weight((2,))
    computed = g.node("Neg", outer)
    g.read_again(computed)
    branches = [BodyMaker(g, [outer, computed]) for _ in range(2)]
    for body in branches:
        body.some(1, 3)
        last = body.pool[-1]
        body.output(last if g.chance() else body.node("Add", last, x))
    g.output(*choose(g, condition(g), branches), g.node("Relu", x))


@pytest.mark.parametrize("label", ["fold_constants"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def _transformed(text: str) -> tuple[Engine, onnx.ModelProto]:
    model = model_io.from_proto(onnx.parser.parse_model(text))
    engine = pipeline.transform(model, pipeline.select(passes=["fold_constants", "eliminate_deadend"]), Settings())
    return engine, model_io.to_proto(model)


def test_growth_beyond_the_bound_is_refused_by_its_size() -> None:
    engine, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[300, 300] y)
        <float[1] c = {2.0}, int64[2] shape = {300, 300}> { e = Expand (c, shape)  y = Add (e, x) }"""
    )
    assert [node.op_type for node in result.graph.node] == ["Expand", "Add"]
    assert "add 359980 bytes" in engine.refused[("fold_constants", "Expand(e)")]


def test_quantized_weights_stay_quantized() -> None:
    _, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)
        <uint8[2] q = {1, 2}, float s = {0.5}> { w = DequantizeLinear (q, s)  y = Add (w, x) }"""
    )
    assert [node.op_type for node in result.graph.node] == ["DequantizeLinear", "Add"]


def test_draws_are_not_folded() -> None:
    _, result = _transformed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)
        <float[2] c = {1.0, 2.0}> { r = RandomNormalLike (c)  y = Add (r, x) }"""
    )
    assert [node.op_type for node in result.graph.node] == ["RandomNormalLike", "Add"]


def folded_operators(text: str, **weights: np.ndarray) -> dict[str, int]:
    engine = transformed(text, **weights)
    return dict(Counter(node.op_type for node in engine.model.graph))


def test_an_operand_read_twice_is_freed_once() -> None:
    """A product of a weight with itself has the weight's size; two copies side by side have twice the size."""
    weight = np.random.default_rng(0).random((400, 400), np.float32)
    product = "g (float[400, 400] x) => (float[400, 400] y) { d = Mul (w, w)  y = Add (x, d) }"
    assert folded_operators(product, w=weight) == {"Add": 1}
    copies = "g (float[800, 400] x) => (float[800, 400] y) { d = Concat <axis = 0> (w, w)  y = Add (x, d) }"
    assert folded_operators(copies, w=weight) == {"Concat": 1, "Add": 1}


def test_copies_of_a_folded_value_are_not_freed_twice() -> None:
    """The intermediate value counts once, so that the result would add its size."""
    weight = np.random.default_rng(0).random((400, 400), np.float32)
    text = """g (float[800, 400] x) => (float[800, 400] y) {
        n = Neg (w)  d = Concat <axis = 0> (n, n)  y = Add (x, d)
    }"""
    assert folded_operators(text, w=weight) == {"Concat": 1, "Add": 1}


def test_a_large_fill_is_folded_into_its_reader() -> None:
    weight = np.random.default_rng(0).random((100, 100), np.float32)
    fill = "c = ConstantOfShape <value: tensor = float[1] {2.0}> (s)"
    text = f"g (float[100, 100] x) => (float[100, 100] y) {{ {fill}  d = Mul (c, w)  y = Add (x, d) }}"
    assert folded_operators(text, w=weight, s=np.array([100, 100])) == {"Add": 1}


def test_a_large_fill_without_constant_readers_stays() -> None:
    fill = "c = ConstantOfShape <value: tensor = float[1] {2.0}> (s)"
    text = f"g (float[100, 100] x) => (float[100, 100] y, float[100, 100] c) {{ {fill}  y = Add (x, c) }}"
    assert folded_operators(text, s=np.array([100, 100])) == {"ConstantOfShape": 1, "Add": 1}


@pytest.mark.parametrize("target", ["native", "portable"])
def test_costly_results_are_folded_for_an_engine_that_does_not_fold(target: str) -> None:
    """A bias by distance is loaded; a mask of positions is computed where it is read."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[4, 150, 150] x) => (float[4, 150, 150] y)
        <int64 last = {31}, int64 zero = {0}, float low = {-9.0}> {
        distance = Sub (row, column)  near = Abs (distance)  bucket = Min (near, last)
        rows = Gather (table, bucket)  bias = Transpose <perm = [2, 0, 1]> (rows)  biased = Add (x, bias)
        later = Less (distance, zero)  y = Where (later, low, biased) }"""
    )
    weights = {"row": np.arange(150)[None], "column": np.arange(150)[:, None], "table": np.ones((32, 4), np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    optimized = sardonyx.optimize(model, target=target)
    left = {node.op_type for node in optimized.model.graph}
    assert ("Gather" in left) == (target == "portable")
    assert {"Sub", "Less", "Where"} <= left
