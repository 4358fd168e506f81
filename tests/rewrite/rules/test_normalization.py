"""Random graphs around normalizations, Softmax and norms in primitives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


def _reduced(g: GraphMaker, op: str, x: str, axes: list[int], keepdims: int | None = 1) -> str:
    """Return a reduction in the form of this operator set."""
    if g.opset >= (13 if op == "ReduceSum" else 18):
        return g.node(op, x, g.ints(*axes), keepdims=keepdims)
    return g.node(op, x, axes=axes, keepdims=keepdims)


def _swapped(g: GraphMaker, op: str, a: str, b: str) -> str:
    return g.node(op, a, b) if g.chance() else g.node(op, b, a)


def _square(g: GraphMaker, x: str, dtype: str) -> str:
    return (
        g.node("Mul", x, x)
        if g.chance()
        else g.node("Pow", x, g.const(2, dtype if g.opset < 12 else g.pick([dtype, "int64"])))
    )


def _over_rms(g: GraphMaker, d: str, axes: list[int], dtype: str) -> str:
    """Return ``d / √(mean(d²) + ε)`` in the forms that exporters write."""
    mean = _reduced(g, "ReduceMean", _square(g, d, dtype), axes, g.pick([1, 1, None]))
    raised = _swapped(g, "Add", mean, g.const(g.pick([1e-5, 1e-3, [1e-5]]), dtype))
    g.read_again(raised, 0.05)
    match g.int(0, 3):
        case 0:
            return g.node("Div", d, g.node("Sqrt", raised))
        case 1:
            return _swapped(g, "Mul", d, g.node("Reciprocal", g.node("Sqrt", raised)))
        case 2:
            return _swapped(g, "Mul", d, g.node("Pow", raised, g.const(-0.5, dtype)))
        case _:
            return _swapped(g, "Mul", d, g.node("Div", g.const(1.0, dtype), g.node("Sqrt", raised)))


def _deviation(g: GraphMaker, x: str, axes: list[int], p: float = 0.1) -> str:
    mean = _reduced(g, "ReduceMean", x, axes)
    g.read_again(mean, p / 2)
    return g.node("Sub", x, mean)


def _axes(g: GraphMaker, rank: int) -> list[int]:
    """Return the last axis or axes, from the front or the end; sometimes others."""
    last = g.pick([1, 1, 1, 2]) if rank > 1 else 1
    axes = list(range(rank - last, rank)) if g.chance(0.9) else [0]
    return [axis - rank for axis in axes] if g.chance() else axes


def _affine(g: GraphMaker, y: str, shapes: list[tuple[int, ...]], dtype: str, bias: bool = True) -> str:
    for op in ("Mul", "Add") if bias else ("Mul",):
        if g.chance(0.8):
            shape = g.pick(shapes)
            other = g.weight(shape, dtype) if g.chance(0.8) else g.input(shape, dtype)
            y = _swapped(g, op, y, other)
            g.read_again(y, 0.05)
    return y


@generator("fuse_layer_normalization", "fuse_scale_into_normalization", "fuse_bias_into_normalization")
def layer_norms(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([17, 18, 21, 17, 13]), False
    dtype = g.pick(["float32", "float32", "float64"])
    shape = g.shape(g.int(1, 4), low=2)
    x = g.input(shape, dtype)
    axes = _axes(g, len(shape))
    y = _over_rms(g, _deviation(g, x, axes), axes, dtype)
    g.output(_affine(g, y, [shape[-1:], shape[-1:], shape[-2:], (1, *shape[-1:]), (1,), (2, *shape)], dtype))


@generator("fuse_layer_normalization")
def layer_norms_as_lines(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([17, 18, 21]), False
    shape = g.shape(g.int(1, 3), low=2)
    x, size = g.input(shape), shape[-1:]
    mean = _reduced(g, "ReduceMean", x, [-1])
    variance = _reduced(g, "ReduceMean", _square(g, g.node("Sub", x, mean), "float32"), [-1])
    root = g.node("Sqrt", _swapped(g, "Add", variance, g.const(1e-3, "float32")))
    factor = g.weight(g.pick([size, size, (1, *size)]))
    weight = _swapped(g, "Mul", g.node("Reciprocal", root), factor) if g.chance() else g.node("Div", factor, root)
    g.read_again(weight, 0.1)
    rest = g.node("Sub", g.weight(size), _swapped(g, "Mul", mean, weight))
    g.output(_swapped(g, "Add", _swapped(g, "Mul", x, weight), rest))


@generator("fuse_cast_into_normalization")
def layer_norms_of_halves(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([17, 21]), False
    shape = g.shape(g.int(1, 3), low=2)
    x = g.node("Cast", g.input(shape, "float16"), to=1)
    scale = g.const(np.full(shape[-1:], g.pick([1.0, 0.5, 0.1])), "float32")
    y = g.node("LayerNormalization", x, scale, g.maybe(g.const(np.zeros(shape[-1:]), "float32")), epsilon=1e-3)
    g.read_again(y, 0.1)
    g.output(g.node("Cast", y, to=g.pick([10, 10, 11])))


@generator("fuse_rms_normalization", "fuse_scale_into_normalization")
def rms_norms(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 21]), False
    shape = g.shape(g.int(1, 3), low=2)
    x = g.input(shape)
    y = _over_rms(g, x, _axes(g, len(shape)), "float32")
    g.output(_affine(g, y, [shape[-1:], shape[-1:], (1,), (1, *shape[-1:])], "float32", bias=False))


@generator("fuse_instance_normalization", "fuse_scale_into_normalization", "fuse_bias_into_normalization")
def instance_norms(g: GraphMaker) -> None:
    g.special = False
    shape = g.shape(g.pick([4, 4, 5]), low=2)
    # Over one element the spread is √ε alone, and by so little a kernel's rounding of x · scale − mean · scale shows.
    x = g.input(shape, dims=[g.pick([shape[0], "n"]), g.pick([shape[1], shape[1], "c"]), *shape[2:]])
    axes = g.pick([list(range(2, len(shape)))] * 4 + [[1, 2, 3], [2]])
    y = _over_rms(g, _deviation(g, x, axes), axes, "float32")
    channels, rest = shape[1], (1,) * (len(shape) - 2)
    g.output(_affine(g, y, [(channels, *rest), (1, channels, *rest), (channels, *rest), shape[-1:], (1,)], "float32"))


@generator("fuse_group_normalization", "fuse_scale_into_normalization", "fuse_bias_into_normalization")
def group_norms(g: GraphMaker) -> None:
    g.opset, g.special = 21, False
    groups, size = g.int(1, 3), g.int(1, 3)
    shape = (g.int(1, 3), groups * size, *(g.int(1, 3) for _ in range(g.int(1, 2))))
    x = g.input(shape, dynamic=False)
    parts = g.node("Reshape", x, g.ints(*g.pick([(0, groups, -1), (shape[0], groups, -1)])))
    same = g.weight((groups,)) if g.chance(0.3) else g.const(np.ones(groups), "float32")
    y = g.node("InstanceNormalization", parts, same, g.const(np.zeros(groups), "float32"), epsilon=1e-3)
    g.read_again(y, 0.1)
    y = g.node("Reshape", y, g.ints(*shape))
    rest = (1,) * (len(shape) - 2)
    g.output(_affine(g, y, [(shape[1], *rest), (1, shape[1], *rest), shape[-1:]], "float32"))


@generator("fuse_lp_normalization")
def lp_norms(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([22, 22, 18]), False
    shape = g.shape(g.int(1, 3), low=2, zero=0)
    x = g.input(shape)
    norm = _reduced(g, g.pick(["ReduceL1", "ReduceL2"]), x, g.pick([[-1], [0], [0, -1]]) if len(shape) > 1 else [0])
    g.output(g.node("Div", x, norm))


@generator("fuse_softmax")
def softmaxes(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([11, 13, 18, 21]), False
    shape = g.shape(g.int(1, 3), zero=0)
    x = g.input(shape, g.pick(["float32", "float32", "float64"]))
    axis = g.pick([-1, -1, 0])
    match g.int(0, 2):
        case 0:
            y = g.node("Exp", x)
        case 1:
            y = g.node("Exp", g.node("Sub", x, _reduced(g, "ReduceMax", x, [g.pick([axis, axis, -1])])))
        case _:
            if g.chance():
                g.output(g.node("Sub", x, _reduced(g, "ReduceLogSumExp", x, [axis])))
            else:
                g.output(g.node("Exp", g.node("LogSoftmax", x, axis=g.maybe(axis))))
            return
    total = _reduced(g, "ReduceSum", y, [axis], g.pick([1, 1, None]))
    g.read_again(total, 0.1)
    g.output(g.node("Div", y, total) if g.chance(0.7) else _swapped(g, "Mul", y, g.node("Reciprocal", total)))


@generator("fuse_reduce_mean", "fuse_reduce_norm")
def norms(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([11, 13, 18, 21]), False
    shape = g.shape(g.int(1, 3), zero=0)
    dtype = g.pick(["float32", "float32", "float64", "int32"])
    x = g.input(shape, dtype)
    axes, keep = [g.axis(len(shape))], g.pick([0, 1, None])
    square = _square(g, x, dtype) if dtype != "int32" else g.node("Mul", x, x)
    match g.int(0, 4) if dtype != "int32" else g.pick([0, 2]):
        case 0:
            count = shape[axes[0]] + g.pick([0, 0, 0, 1])
            total = _reduced(g, "ReduceSum", x, axes, keep)
            g.read_again(total, 0.1)
            as_product = dtype != "int32" and g.chance()
            by = g.const(np.full(g.pick([(), (1,)]), 1 / count if as_product else count), dtype)
            g.output(_swapped(g, "Mul", total, by) if as_product else g.node("Div", total, by))
        case 1:
            g.output(g.node("Sqrt", _reduced(g, g.pick(["ReduceSumSquare", "ReduceSum"]), square, axes, keep)))
        case 2:
            inner = g.node("Abs", x) if g.chance() else square
            g.read_again(inner, 0.1)
            g.output(_reduced(g, "ReduceSum", inner, axes, keep))
        case 3:
            g.output(g.node("Sqrt", _reduced(g, "ReduceSumSquare", x, axes, keep)))
        case _:
            inner = g.node("Exp", x) if g.chance() else g.node("Abs", x)
            g.read_again(inner, 0.1)
            g.output(g.node("Log", _reduced(g, "ReduceSum", inner, axes, keep)))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_layer_normalization",
        "fuse_rms_normalization",
        "fuse_instance_normalization",
        "fuse_scale_into_normalization",
        "fuse_bias_into_normalization",
        "fuse_cast_into_normalization",
        "fuse_lp_normalization",
        "fuse_softmax",
        "fuse_reduce_mean",
        "fuse_reduce_norm",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


@pytest.mark.parametrize("label", ["fuse_group_normalization", "fuse_reduce_norm"])
def test_outputs_stay_equal_for_other_targets(label: str) -> None:
    run_many(label, 200, target="native")


_LAYER_NORM = """g (float[2, N] x, float[3] g) => (float[2, 3] y) {
    m = ReduceMean<axes = [1]>(x)
    d = Sub(x, m)
    s = Mul(d, d)
    v = ReduceMean<axes = [1]>(s)
    e = Add(v, eps)
    r = Sqrt(e)
    n = Div(d, r)
    y = Mul(n, g)
}"""


def test_layer_normalization_of_unknown_size_stays() -> None:
    engine = transformed(_LAYER_NORM, opset=17, eps=np.float32(1e-5))
    assert "the size of a normalized axis is not known or 0, or the type is not a float" in engine.refused.values()


def test_layer_normalization_takes_a_computed_scale() -> None:
    engine = transformed(_LAYER_NORM.replace("N", "3"), opset=17, eps=np.float32(1e-5))
    (node,) = engine.model.graph
    assert node.op_type == "LayerNormalization"
    assert node.inputs[1] is engine.model.graph.inputs[1]


def test_layer_normalization_needs_opset_17() -> None:
    engine = transformed(_LAYER_NORM.replace("N", "3"), opset=16, eps=np.float32(1e-5))
    assert "needs opset 17" in engine.refused.values()


_PLAIN_LAYER_NORM = _LAYER_NORM.replace("N", "3").replace("y = Mul(n, g)", "z = Mul(n, one)\n    y = Add(z, zero)")
_PLAIN = {"eps": np.float32(1e-5), "one": np.ones(3, np.float32), "zero": np.zeros(3, np.float32)}


def test_units_that_end_a_layer_normalization_stay_below_opset_17() -> None:
    engine = transformed(_PLAIN_LAYER_NORM, opset=16, **_PLAIN)
    assert [node.op_type for node in engine.model.graph][-3:] == ["Div", "Mul", "Add"]
    assert "engines have one kernel for the layer normalization that it ends" in engine.refused.values()


def test_units_that_end_a_layer_normalization_go_into_it() -> None:
    engine = transformed(_PLAIN_LAYER_NORM, opset=17, **_PLAIN)
    assert [node.op_type for node in engine.model.graph] == ["LayerNormalization"]


def test_units_elsewhere_go_below_opset_17() -> None:
    engine = transformed("g (float[2, 3] x) => (float[2, 3] y) { n = Div(x, r)  y = Mul(n, one) }", opset=16,
                         r=np.full(3, 2, np.float32), one=np.ones(3, np.float32))  # fmt: skip
    assert "Mul" not in [node.op_type for node in engine.model.graph][1:]
