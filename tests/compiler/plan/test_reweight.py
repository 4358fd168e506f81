"""Programs over other weights: equal to what is compiled anew, without compiling; refused where code would differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.compiler.plan.reweighted_models import MODELS, drawn, filled, parsed, run, with_weights

from sardonyx.compiler import pipeline
from sardonyx.compiler.plan.compiled_function import CompiledFunction
from sardonyx.model import load
from sardonyx.runtime.compiled import frontend as front_module
from sardonyx.runtime.compiled.compiled_model import NativeModel


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
        ("(float[2] x) => (uint8[2] y) <float[2] w = {1, 2}, float s = {1}> { z = Mul(x, w) y = QuantizeLinear(z, s) }",
         "w", np.array([1, np.nan], np.float32)),
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
