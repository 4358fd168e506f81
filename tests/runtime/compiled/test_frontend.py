"""A model that differs in weights alone from one that was rewritten: what becomes of it is what a fresh start gives."""

from __future__ import annotations

import random
from importlib.resources import files

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.compiler.plan.reweight import match_values
from sardonyx.core.ir.graph import Function
from sardonyx.model import load
from sardonyx.rewrite.language import EXACT, Op, Rewrite, V
from sardonyx.rewrite.weight_dependencies import Weight
from sardonyx.runtime.compiled.frontend import LoweredModel, Source, lower_model

GRAPHS = {
    "convolutions and normalization": """(float[1, 3, 6, 6] x) => (float[1, 4, 8, 8] y)
        <float[4, 3, 3, 3] w, float[4] s, float[4] b, float[4] m, float[4] v, float[4, 4, 3, 3] t, float[4] c,
         float[4] s2, float[4] b2, float[4] m2, float[4] v2>
        { f = Conv<pads = [1, 1, 1, 1]>(x, w) g = BatchNormalization(f, s, b, m, v) h = Relu(g)
          i = ConvTranspose(h, t, c) y = BatchNormalization(i, s2, b2, m2, v2) }""",
    "scales": """(float[N, 20] x) => (float[N, 20] y)
        <float[20, 20] w, float[20] b, float k = {0.5}, float[20, 20] v>
        { f = MatMul(x, w) g = Add(f, b) h = Mul(g, k) y = MatMul(h, v) }""",
    "folding": """(float[N, 5] x) => (float[N, 5] y) <float[5, 5] w, float[5, 5] u, float[4, 5] b>
        { t = Transpose<perm = [1, 0]>(w) z = Mul(t, u) f = MatMul(x, z) r = ReduceSum<keepdims = 0>(b, a)
          a = Constant<value = int64[1] {0}>() y = Add(f, r) }""",
    "alike": """(float[N, 20] x) => (float[N, 20] y) <float[20, 20] w, float[20, 20] v, float[20] a, float[20] b>
        { f = MatMul(x, w) g = MatMul(x, v) h = Add(f, a) i = Add(g, b) j = Tanh(h) k = Tanh(i) y = Mul(j, k) }""",
    "neutral": """(float[N, 20] x) => (float[N, 20] y) <float[20] a, float[20] b, float[20] c, float[20] d>
        { f = Add(x, a) g = Mul(f, b) h = Div(g, c) i = Sub(h, d) y = Max(i, x) }""",
    "one number": """(float[N, 20] x) => (float[N, 20] y) <float a, float b, float[1] c, float[1, 20] d>
        { f = Clip(x, a, b) g = Pow(f, c) h = PRelu(g, d) y = LayerNormalization<axis = -1>(h, e)
          e = Identity(d) }""",
    "places": """(float[5, 5] x) => (float[P, 5] y) <int64[2] i, float[5, 5] e, bool[5] m>
        { f = Where(m, x, e) y = Gather(f, i) }""",
}  # fmt: skip


def ordered(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its nodes in order; texts may name constants behind."""
    nodes, known = list(proto.graph.node), {info.name for info in (*proto.graph.input, *proto.graph.initializer)}
    del proto.graph.node[:]
    while nodes:
        ready = next(node for node in nodes if known.issuperset(node.input))
        nodes.remove(ready)
        known.update(ready.output)
        proto.graph.node.append(ready)
    return proto


def drawn(rng: np.random.Generator, dtype: int, shape: list[int]) -> np.ndarray:
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    if kind == np.float32:
        return (rng.random(shape) + 0.25).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)


def model_of(name: str) -> ir.Model:
    """A graph with drawn weights where it only declares them."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> net {GRAPHS[name]}')
    rng = np.random.default_rng(0)
    for info in proto.graph.value_info:
        tensor = info.type.tensor_type
        array = drawn(rng, tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim])
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
    del proto.graph.value_info[:]
    return load(ordered(proto))


def with_weights(model: ir.Model, **arrays: np.ndarray) -> ir.Model:
    twin = model.clone()
    for name, array in arrays.items():
        twin.graph.initializers[name].const_value = ir.Tensor(np.array(array), name=name)
    return twin


def weights_of(model: ir.Model) -> dict[str, np.ndarray]:
    actual = {}
    for name, value in model.graph.initializers.items():
        assert value.const_value is not None
        actual[name] = value.const_value.numpy()
    return actual


def source_of(model: ir.Model) -> Source:
    source = lower_model(model, "all").source
    assert source is not None
    return source


def is_same(first: Function, second: Function) -> bool:
    """Whether two functions have the same form, and the same bits in constants."""
    substitution = match_values(first, second)
    return substitution is not None and all(
        np.asarray(a.known).tobytes() == np.asarray(b.known).tobytes() for a, b in substitution.items() if a.is_constant
    )


def changed(array: np.ndarray, others: list[np.ndarray], rng: random.Random) -> np.ndarray:
    """Elements of the kinds that rules look for."""
    if array.dtype != np.float32:
        return np.array([rng.randrange(2) for _ in range(array.size)], array.dtype).reshape(array.shape)
    alike = [other for other in others if other.shape == array.shape and other.dtype == array.dtype]
    one = array.copy()
    one.reshape(-1)[rng.randrange(array.size)] = rng.choice([0.0, -0.0, np.nan, np.inf, -1e38, 1e-42])
    last = array.copy()
    last.reshape(-1)[-1] += 1
    whole = [np.full_like(array, number) for number in (0, -0.0, 1, 2, np.nan, np.inf, 1e38, -1e-5)]
    return rng.choice([array * np.float32(1.5), one, last, *whole, *alike, *alike])


@pytest.mark.parametrize("name", sorted(GRAPHS.keys() - {"neutral"}))  # Whose rules read what they join.
def test_drawn_weights_are_taken_without_rewriting(name: str) -> None:
    model = model_of(name)
    source, weights = source_of(model), weights_of(model)
    for factor in (1.5, 0.75):
        # A few numbers that no layer reads might be scales, and are looked at.
        large = {key: array for key, array in weights.items() if array.size > 16 or "conv" in name}
        other = with_weights(model, **{key: array * np.float32(factor) for key, array in large.items()})
        actual = source.over(other, "all")
        assert actual is not None
        assert is_same(actual, lower_model(other, "all").function)


@pytest.mark.parametrize("name", GRAPHS)
def test_weights_of_any_kind_become_what_a_fresh_start_gives(name: str) -> None:
    model, rng = model_of(name), random.Random(name)
    source, weights = source_of(model), weights_of(model)
    for _ in range(12):
        arrays = dict(weights)
        for key in rng.sample(sorted(weights), rng.randint(1, 2)):
            arrays[key] = changed(arrays[key], list(arrays.values()), rng)
        other = with_weights(model, **arrays)
        anew = lower_model(other, "all")
        actual = source.over(other, "all")
        assert actual is None or is_same(actual, anew.function)
        if actual is None and anew.source is not None and rng.random() < 0.5:
            # From there on, and back.
            source = anew.source
            back = source.over(model, "all")
            assert back is None or is_same(back, lower_model(model, "all").function)


@pytest.mark.parametrize(
    ("graph", "weight", "new"),
    [
        ("convolutions and normalization", "v", np.full(4, -1, np.float32)),
        ("convolutions and normalization", "v2", np.array([1, 1, 1, np.nan], np.float32)),
        ("scales", "w", np.full((20, 20), 3e38, np.float32)),
        ("alike", "v", "w"),
        ("alike", "b", "a"),
        ("neutral", "a", np.zeros(20, np.float32)),
        ("neutral", "b", np.ones(20, np.float32)),
        ("neutral", "c", np.ones(20, np.float32)),
        ("one number", "c", np.ones(1, np.float32)),
        ("places", "m", np.ones(5, np.bool_)),
        ("places", "i", np.array([3, 4])),
    ],
)
def test_where_a_rule_decides_otherwise_the_model_is_rewritten(graph: str, weight: str, new: np.ndarray | str) -> None:
    model = model_of(graph)
    array = weights_of(model)[new] if isinstance(new, str) else new
    source, other = source_of(model), with_weights(model, **{weight: array})
    actual = source.over(other, "all")
    assert actual is None or is_same(actual, lower_model(other, "all").function)
    if graph != "scales":
        assert actual is None
    # And the other way: what was merged or left out comes back.
    back = source_of(other).over(model, "all")
    assert back is None or is_same(back, lower_model(model, "all").function)


def test_equal_weights_that_differ_later_are_two_again() -> None:
    model = model_of("alike")
    equal = with_weights(model, v=weights_of(model)["w"], b=weights_of(model)["a"])
    assert source_of(equal).over(model, "all") is None
    actual = source_of(equal).over(
        with_weights(equal, **{name: 2 * item for name, item in weights_of(equal).items()}), "all"
    )
    assert actual is not None


def test_a_rewritten_model_holds_no_weights() -> None:
    model = model_of("convolutions and normalization")
    source = source_of(model)
    assert source.over(with_weights(model, w=2 * weights_of(model)["w"]), "all") is not None
    watched = [item for item in source.structure.weights if isinstance(item, Weight)]
    assert watched
    assert all(item.elements is None for item in watched)


def test_a_model_of_another_form_is_rewritten() -> None:
    assert source_of(model_of("neutral")).over(model_of("alike"), "all") is None


def test_a_model_with_bodies_is_rewritten_each_time() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> net (bool c, float[2] x) => (float[2] y)
        { y = If(c) <then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] q)
            { q = Abs(x) }> }"""
    actual: LoweredModel = lower_model(load(onnx.parser.parse_model(text)), "all")
    assert actual.source is None


def test_a_rule_that_is_registered_since_is_applied() -> None:
    model = model_of("scales")
    source = source_of(model)
    other = with_weights(model, b=2 * weights_of(model)["b"])
    assert source.over(other, "all") is not None
    assert source.over(other, "basic") is None

    @sardonyx.rule("turn_subtraction", exactness=EXACT)
    def rotated(x: V, y: V) -> Rewrite:
        "Sub(x, y) is Neg(Sub(y, x))."
        return Op("Sub")(x, y) >> Op("Neg")(Op("Sub")(y, x))

    assert source.over(other, "all") is None


def test_a_part_whose_inputs_have_sizes_that_no_call_binds_is_compiled() -> None:
    path = files("sardonyx.demo") / "digits_detector.onnx"
    part = sardonyx.extract(
        sardonyx.load(str(path)),
        inputs=["/detector/stem/stem.0/Conv_output_0"],
        outputs=["/detector/block8/block8.0/second/second.1/BatchNormalization_output_0"],
    )
    session = sardonyx.Session(part, compile="wait")
    x = np.random.default_rng(0).random((2, 16, 9, 13), np.float32)
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    (expected,) = sardonyx.Session(part, providers=["reference"]).run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4 * float(np.abs(expected).max()))
