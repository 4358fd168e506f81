"""Programs over other weights: equal to what is compiled anew, without compiling; refused where code would differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx.compiler import pipeline
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.core.eval.run_context import RunContext
from sardonyx.model import load
from sardonyx.runtime.compiled import frontend as front_module
from sardonyx.runtime.compiled.compiled_model import NativeModel

RNG = np.random.default_rng(0)


def parsed(graph: str) -> ir.Model:
    return load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'))


def with_weights(model: ir.Model, draw: Callable[[str, np.ndarray], np.ndarray]) -> ir.Model:
    twin = model.clone()
    for name, value in twin.graph.initializers.items():
        assert value.const_value is not None
        value.const_value = ir.Tensor(draw(name, value.const_value.numpy()), name=name)
    return twin


def drawn(_: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return (RNG.random(array.shape) + 0.1).astype(array.dtype)
    return RNG.integers(0, 100, array.shape).astype(array.dtype)


def run(native: NativeModel, feeds: dict[str, Any]) -> list[np.ndarray]:
    return native.run(None, feeds, RunContext())


CONVOLUTIONS = """net (float[1, 3, 12, 12] x) => (float[1, 16, 12, 12] y)
    <float[16, 3, 3, 3] w, float[16, 16, 3, 3] v, float[16] s, float[16] b, float[16] m, float[16] n,
     float[16, 1, 3, 3] d>
    {
        c = Conv<pads = [1, 1, 1, 1]>(x, w)
        e = BatchNormalization(c, s, b, m, n)
        f = Relu(e)
        g = Conv<pads = [1, 1, 1, 1]>(f, v, b)
        h = Conv<pads = [1, 1, 1, 1], group = 16>(g, d)
        y = Add(h, f)
    }"""
PRODUCTS = """net (float[N, 8] x) => (float[N, 8] y) <float[8, 16] w, float[16] b, float[16, 8] v>
    { h = MatMul(x, w) i = Add(h, b) y = MatMul(i, v) }"""
QUANTIZED = """net (uint8[4, 96] x) => (int32[4, 64] y) <int8[96, 64] w> { y = MatMulInteger(x, w) }"""
LOOP = """net (float[4, 4] x) => (float[4, 4] y) <int64 n = {3}, bool t = {1}, float[4, 4] w>
    { y = Loop(n, t, x) <body = body (int64 i, bool c, float[4, 4] a) => (bool d, float[4, 4] r)
        { d = Identity(c) r = MatMul(a, w) }> }"""
MODELS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "convolutions": (CONVOLUTIONS, {"x": RNG.random((1, 3, 12, 12)).astype(np.float32)}),
    "products": (PRODUCTS, {"x": RNG.random((3, 8)).astype(np.float32)}),
    "quantized": (QUANTIZED, {"x": RNG.integers(0, 255, (4, 96)).astype(np.uint8)}),
    "loop": (LOOP, {"x": RNG.random((4, 4)).astype(np.float32)}),
}


def filled(name: str) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model with drawn weights where it only declares them."""
    graph, feeds = MODELS[name]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    for info in proto.graph.value_info:
        tensor = info.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        array = drawn("", np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
    del proto.graph.value_info[:]
    return load(proto), feeds


def only_weights(name: str, array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 0 else drawn(name, array)


@pytest.mark.parametrize("name", MODELS)
def test_other_weights_give_what_compiling_anew_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = filled(name)
    native = NativeModel.compiled(model)
    before = run(native, feeds)
    compiled = [0]
    compile_function = pipeline.compile_function

    def counted(*arguments: Any, **options: Any) -> CompiledFunction:
        compiled[0] += 1
        return compile_function(*arguments, **options)

    monkeypatch.setattr(pipeline, "compile_function", counted)
    for _ in range(2):
        other = with_weights(model, only_weights)
        actual = native.reweighted(other)
        assert actual is not None
        assert not compiled[0]
        anew = NativeModel.compiled(other)
        compiled[0] = 0
        for a, b in zip(run(actual, feeds), run(anew, feeds), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(run(native, feeds), before, strict=True):
            np.testing.assert_array_equal(a, b)
    # One after the other, and back again.
    third = actual.reweighted(model)
    assert third is not None
    for a, b in zip(run(third, feeds), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_other_weights_are_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = filled("convolutions")
    native, other = NativeModel.compiled(model), with_weights(model, drawn)
    expected = run(NativeModel.compiled(other), feeds)

    def optimize(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is rewritten")

    monkeypatch.setattr(front_module, "optimize", optimize)
    for weights in (other, model, other):
        actual = native.reweighted(weights)
        assert actual is not None
        native = actual
    np.testing.assert_array_equal(run(native, feeds)[0], expected[0])


@pytest.mark.parametrize(
    ("graph", "weight", "new"),
    [
        ("(float[N] x) => (float[N] y) <float[1] w = {2}> { y = Mul(x, w) }", "w", np.array([3], np.float32)),
        ("(float[N] x) => (float[N] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }", "w", np.ones(3, np.float32)),
        ("(float[4] x) => (float[2] y) <int64[2] i = {0, 1}> { y = Gather(x, i) }", "i",
         np.array([2, 3], np.int64)),
        ("(float[4] x) => (float[P, Q] y) <int64[2] s = {2, 2}> { y = Reshape(x, s) }", "s",
         np.array([1, 4], np.int64)),
        ("(float[4] x) => (float[4] y, float[2] z) <float[2] w = {1, 2}> { y = Neg(x) z = Identity(w) }", "w",
         np.array([3, 4], np.float32)),
    ],
)  # fmt: skip
def test_what_was_looked_at_makes_another_program(graph: str, weight: str, new: np.ndarray) -> None:
    model = parsed(f"net {graph}")
    native = NativeModel.compiled(model)
    other = with_weights(model, lambda name, array: new if name == weight else array)
    assert native.reweighted(other) is None


def test_equal_weights_are_one_in_memory() -> None:
    model, _ = filled("convolutions")
    first, second = (NativeModel.compiled(item) for item in (model, model.clone()))
    arrays = [set(map(id, item.program.prepared.values())) for item in (first, second)]
    assert arrays[0] & arrays[1]


def test_a_weight_of_which_only_the_last_element_is_another_is_made_anew() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[1, 300] x) => (float[1, 200] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(drawn("w", np.empty((300, 200), np.float32)), "w"))
    model = load(proto)
    native, x = NativeModel.compiled(model), np.zeros((1, 300), np.float32)
    x[0, -1] = 1

    def last_doubled(_: str, array: np.ndarray) -> np.ndarray:
        other = array.copy()
        other[-1, -1] *= 2
        return other

    actual = native.reweighted(with_weights(model, last_doubled))
    assert actual is not None
    (before,), (after,) = run(native, {"x": x}), run(actual, {"x": x})
    assert after[0, -1] == 2 * before[0, -1]
    np.testing.assert_array_equal(after[0, :-1], before[0, :-1])
