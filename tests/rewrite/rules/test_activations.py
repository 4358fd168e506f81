"""Random graphs around activation functions written out, in the orders that exporters write them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx.rewrite import pipeline
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


def _scalar(g: GraphMaker, number: float, dtype: str = "float32") -> str:
    """A number as exporters write it: of rank 0 or 1, and at times of a rank that broadcasts x."""
    return g.const(np.full(g.pick([(), (), (1,), (1, 1)]), number), dtype)


def _scaled(g: GraphMaker, x: str, factor: float, dtype: str) -> str:
    """``factor · x`` as a product in either order, or as a quotient."""
    match g.int(0, 2):
        case 0:
            return g.node("Mul", x, _scalar(g, factor, dtype))
        case 1:
            return g.node("Mul", _scalar(g, factor, dtype), x)
        case _:
            return g.node("Div", x, _scalar(g, 1 / factor, dtype))


def _swapped(g: GraphMaker, op: str, a: str, b: str) -> str:
    return g.node(op, a, b) if g.chance() else g.node(op, b, a)


def _tensor(g: GraphMaker, dtypes: tuple[str, ...] = ("float32", "float32", "float16", "float64")) -> tuple[str, str]:
    """An input, or something computed from one; NaN and infinities only where the function keeps them."""
    dtype = g.pick(dtypes)
    x = g.input(g.shape(), dtype)
    return (g.node("Neg", x) if g.chance(0.3) else x), dtype


def _half_of_product(g: GraphMaker, x: str, factor: str, dtype: str) -> str:
    """``x · factor / 2``, the half at any place."""
    match g.int(0, 2):
        case 0:
            return _scaled(g, _swapped(g, "Mul", x, factor), 0.5, dtype)
        case 1:
            return _swapped(g, "Mul", _scaled(g, x, 0.5, dtype), factor)
        case _:
            return _swapped(g, "Mul", x, _scaled(g, factor, 0.5, dtype))


@generator("fuse_gelu")
def gelu_by_erf(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([20, 21, 17]), False
    x, dtype = _tensor(g, ("float32", "float32", "float16"))
    erf = g.node("Erf", _scaled(g, x, g.pick([math.sqrt(0.5), math.sqrt(0.5), 0.70710678, 0.8]), dtype))
    g.read_again(erf, 0.1)
    if g.chance(0.25):
        half = _scaled(g, x, 0.5, dtype)
        g.output(_swapped(g, "Add", half, _swapped(g, "Mul", half, erf)))
        return
    one = _swapped(g, "Add", erf, _scalar(g, g.pick([1.0, 1.0, 1.0, 2.0]), dtype))
    g.output(g.node("Identity", _half_of_product(g, x, one, dtype)))


@generator("fuse_gelu")
def gelu_by_tanh(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([20, 21]), False
    x, dtype = _tensor(g, ("float32", "float32", "float16"))
    three = g.const(3, g.pick([dtype, "int64"]))
    square = g.node("Mul", x, x)
    match g.int(0, 2):
        case 0:
            cubic = g.node("Add", x, _scaled(g, g.node("Pow", x, three), 0.044715, dtype))
        case 1:
            cubic = g.node("Add", x, _scaled(g, _swapped(g, "Mul", x, square), 0.044715, dtype))
        case _:
            cubic = g.node("Mul", x, g.node("Add", _scaled(g, square, 0.044715, dtype), _scalar(g, 1.0, dtype)))
    tanh = g.node("Tanh", _scaled(g, cubic, g.pick([math.sqrt(2 / math.pi), 0.7979, 0.7]), dtype))
    one = g.node("Add", tanh, _scalar(g, 1.0, dtype))
    g.output(g.node("Identity", _half_of_product(g, x, one, dtype)))


@generator("fuse_hard_swish", "fuse_hard_sigmoid")
def hard_gates(g: GraphMaker) -> None:
    x, dtype = _tensor(g)
    if g.chance(0.3):
        gate = g.node("HardSigmoid", x, alpha=g.pick([1 / 6, 1 / 6, None]), beta=g.maybe(0.5))
    else:
        shifted = _swapped(g, "Add", x, _scalar(g, g.pick([3.0, 3.0, 2.0]), dtype))
        low, high = g.const(g.pick([0.0, 0.0, -1.0]), dtype), g.const(6.0, dtype)
        gate = g.node("Clip", shifted, low, g.maybe(high, 0.9))
        g.read_again(gate, 0.1)
        if g.chance(0.6):
            gate = _scaled(g, gate, 1 / 6, dtype)
            g.output(gate if g.chance(0.3) else _swapped(g, "Mul", x, gate))
            return
    product = _swapped(g, "Mul", x, gate)
    g.output(_scaled(g, product, 1 / 6, dtype) if g.chance(0.7) else product)


@generator("fuse_hard_sigmoid")
def clipped_lines(g: GraphMaker) -> None:
    x, dtype = _tensor(g)
    line = _swapped(g, "Add", _scaled(g, x, g.pick([0.2, 1 / 6, -0.3]), dtype), _scalar(g, 0.5, dtype))
    g.read_again(line, 0.1)
    g.output(g.node("Clip", line, g.const(0.0, dtype), g.const(g.pick([1.0, 1.0, 2.0]), dtype)))


@generator("fuse_mish")
def mishes(g: GraphMaker) -> None:
    g.special = False
    x, dtype = _tensor(g, ("float32",))
    if g.chance():
        soft = g.node("Softplus", x)
    else:
        soft = g.node("Log", g.node("Add", g.node("Exp", x), _scalar(g, g.pick([1.0, 1.0, 2.0]), dtype)))
    g.read_again(soft, 0.1)
    g.output(_swapped(g, "Mul", x, g.node("Tanh", soft)))


@generator("fuse_softsign")
def softsigns(g: GraphMaker) -> None:
    x, dtype = _tensor(g)
    below = _swapped(g, "Add", g.node("Abs", x), _scalar(g, g.pick([1.0, 1.0, 2.0]), dtype))
    g.read_again(below, 0.1)
    g.output(g.node("Div", x, below))


@generator("fuse_leaky_relu")
def leaky_relus(g: GraphMaker) -> None:
    way = g.int(0, 3)
    g.special = g.special and way < 3
    x, dtype = _tensor(g, ("float32", "float32", "float64"))
    slope = g.pick([0.1, 0.01, 0.5, -0.1, 1.5])
    down = _scaled(g, x, slope, dtype) if g.chance(0.3) else _swapped(g, "Mul", x, _scalar(g, slope, dtype))
    zero = _scalar(g, g.pick([0.0, 0.0, 0.0, 1.0]), dtype)
    match way:
        case 0:
            y = _swapped(g, "Max", x, down)
        case 1:
            y = g.node("Where", g.node(g.pick(["Greater", "GreaterOrEqual"]), x, zero), x, down)
        case 2:
            y = g.node("Where", g.node(g.pick(["Less", "LessOrEqual"]), x, zero), down, x)
        case _:
            negative = g.node("Relu", g.node("Neg", x))
            y = g.node("Sub", g.node("Relu", x), _swapped(g, "Mul", negative, _scalar(g, slope, dtype)))
    g.output(y)


@generator("fuse_thresholded_relu")
def thresholded_relus(g: GraphMaker) -> None:
    x, dtype = _tensor(g)
    stored = g.node(g.pick(["Greater", "Greater", "Less"]), x, _scalar(g, g.pick([0.0, 0.5, -1.0]), dtype))
    g.read_again(stored, 0.1)
    g.output(g.node("Where", stored, x, _scalar(g, g.pick([0.0, 0.0, 1.0]), dtype)))


@generator("fuse_prelu")
def prelus(g: GraphMaker) -> None:
    g.special = False
    x = g.input((g.int(1, 3), g.int(2, 4), g.int(1, 3)))
    slope = g.weight(g.pick([(g.shape_of(x)[1], 1), g.shape_of(x)[1:], (4, *g.shape_of(x))]))
    match g.int(0, 2):
        case 0:
            zero = g.const(0.0, "float32")
            g.output(g.node("Where", g.node("Greater", x, zero), x, g.node("Mul", slope, x)))
        case 1:
            down = g.node("Mul", slope, g.node("Relu", g.node("Neg", x)))
            g.output(g.node("Sub", g.node("Relu", x), down))
        case _:
            below = g.node("Mul", g.node("Sub", x, g.node("Abs", x)), slope)
            g.output(g.node("Add", g.node("Relu", x), g.node("Mul", below, g.const(0.5, "float32"))))


@generator("fuse_elu")
def elus(g: GraphMaker) -> None:
    x, dtype = _tensor(g, ("float32",))
    grown = g.node("Sub", g.node("Exp", x), _scalar(g, 1.0, dtype))
    if g.chance():
        grown = _swapped(g, "Mul", grown, _scalar(g, g.pick([0.5, 2.0]), dtype))
    g.output(g.node("Where", g.node("Greater", x, _scalar(g, 0.0, dtype)), x, grown))


@generator("fuse_softplus")
def softpluses(g: GraphMaker) -> None:
    g.special = False
    x, dtype = _tensor(g, ("float32",))
    g.output(g.node("Log", _swapped(g, "Add", g.node("Exp", x), _scalar(g, g.pick([1.0, 1.0, 2.0]), dtype))))


@generator("fuse_swish")
def swishes(g: GraphMaker) -> None:
    g.opset, g.special = 24, False
    x, dtype = _tensor(g, ("float32", "float32", "float16"))
    gate = g.node("Sigmoid", _scaled(g, x, g.pick([1.702, 0.5, -1.0]), dtype) if g.chance() else x)
    g.read_again(gate, 0.1)
    g.output(_swapped(g, "Mul", x, gate))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_gelu",
        "fuse_hard_swish",
        "fuse_hard_sigmoid",
        "fuse_mish",
        "fuse_softsign",
        "fuse_leaky_relu",
        "fuse_thresholded_relu",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


@pytest.mark.parametrize("label", ["fuse_prelu", "fuse_elu", "fuse_softplus", "fuse_swish"])
def test_outputs_stay_equal_for_other_targets(label: str) -> None:
    run_many(label, 200, target="native")


_GELU = """g (float[2, 3] x) => (float[2, 3] y{also}) {{
    a = Div(x, root)
    b = Erf(a)
    c = Add(b, one)
    d = Mul(x, c)
    y = Mul(d, half)
}}"""
_NUMBERS = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


def test_an_older_operator_set_has_no_gelu() -> None:
    engine = transformed(_GELU.format(also=""), **_NUMBERS)
    assert "needs opset 20" in engine.refused.values()


def test_gelu_whose_inner_sum_is_an_output_stays() -> None:
    engine = transformed(_GELU.format(also=", float[2, 3] c"), **_NUMBERS)
    assert "'c' in between has other readers" in engine.refused.values()


def test_operators_slow_in_onnxruntime_are_made_for_other_targets_only() -> None:
    for name in ("fuse_swish", "fuse_softplus", "fuse_elu", "fuse_prelu"):
        assert not [r for r in pipeline.select("portable").rules if r.name == name]
        assert [r for r in pipeline.select("native").rules if r.name == name]


def test_hard_sigmoid_takes_in_the_sum_before_its_limits() -> None:
    engine = transformed(
        "g (float[N] x) => (float[N] y) { a = Add(x, three) b = Clip(a, zero, six) y = Div(b, six) }",
        three=np.float32(3),
        zero=np.float32(0),
        six=np.float32(6),
    )
    assert [node.op_type for node in engine.model.graph] == ["HardSigmoid"]
