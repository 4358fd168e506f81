"""Operators over numpy have the gradients that their authors register, in models, trainers and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import train
from sardonyx.core import language as L
from sardonyx.core.ir.types import INT64, TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import RuleError, SardonyxError, UnsupportedError

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "my": 1]> {graph}')


def define_power(gradient: Callable[..., Any] | None) -> None:
    """Define the operator Power, x ** exponent + bias, over numpy."""

    @sardonyx.host_operator("Power", domain="my", since=1, types=lambda x, bias=None, **_: (x,), gradient=gradient)
    def power(x: np.ndarray, bias: np.ndarray | None = None, *, exponent: int = 2) -> tuple[np.ndarray]:
        return ((x**exponent + (0 if bias is None else bias)).astype(x.dtype),)


def power_gradient(y: Tensor, dy: Tensor, x: Tensor, bias: Tensor | None = None, *, exponent: int = 2) -> Any:
    assert exponent == 3
    return 3 * x * x * dy, None if bias is None else dy


def derived(model: onnx.ModelProto, *, wrt: list[str]) -> dict[str, np.ndarray]:
    result = sardonyx.gradient(model, "s", wrt)
    names = [str(output.name) for output in result.graph.outputs]
    feeds = {"x": X, "n": np.array(3), "go": np.array(True), "b": np.ones((3, 4), np.float32)}
    read = {str(value.name) for value in result.graph.inputs}
    answers = sardonyx.Session(result).run(None, {name: feeds[name] for name in read})
    return dict(zip(names, answers, strict=True))


def test_a_registered_gradient_is_used_for_the_present_inputs() -> None:
    define_power(power_gradient)
    nodes = "{ p = my.Power <exponent = 3> (%s) s = ReduceSum <keepdims = 0> (p) }"
    both = derived(parsed("g (float[N, 4] x, float[N, 4] b) => (float s) " + nodes % "x, b"), wrt=["x", "b"])
    np.testing.assert_allclose(both["x_gradient"], 3 * X**2, rtol=1e-6)
    np.testing.assert_array_equal(both["b_gradient"], np.ones_like(X))
    alone = derived(parsed("g (float[N, 4] x) => (float s) " + nodes % "x"), wrt=["x"])
    np.testing.assert_array_equal(alone["x_gradient"], both["x_gradient"])


def test_a_registered_gradient_has_a_gradient() -> None:
    define_power(power_gradient)
    model = parsed(
        "g (float[N, 4] x) => (float s) { p = my.Power <exponent = 3> (x) s = ReduceSum <keepdims = 0> (p) }"
    )
    product = sardonyx.gradient(model, "s", ["x"], kind="hvp")
    answers = sardonyx.Session(product).run(["x_product"], {"x": X, "x_tangent": np.ones_like(X)})
    np.testing.assert_allclose(answers[0], 6 * X, rtol=1e-6)


def test_a_registered_gradient_is_used_in_the_body_of_a_loop() -> None:
    define_power(power_gradient)
    model = parsed("""g (float[N, 4] x, int64 n, bool go) => (float s) <float factor = {0.9}> {
        h = Loop (n, go, x) <body = b (int64 i, bool c, float[N, 4] a) => (bool d, float[N, 4] e) {
            d = Identity (c)  t = Mul (a, factor)  e = my.Power <exponent = 3> (t)
        }>
        s = ReduceSum <keepdims = 0> (h) }""")
    value, slope = X.astype(np.float64), np.ones(X.shape)
    for _ in range(3):
        slope *= 2.7 * (0.9 * value) ** 2
        value = (0.9 * value) ** 3
    np.testing.assert_allclose(derived(model, wrt=["x"])["x_gradient"], slope, rtol=1e-5, atol=1e-9)


def test_a_trainer_trains_through_a_registered_gradient() -> None:
    define_power(power_gradient)
    weights = onnx.numpy_helper.from_array(np.full((4, 2), 0.5, np.float32), "w")
    models = {}
    for name, form in (("own", "my.Power <exponent = 3> (x)"), ("standard", "Pow (x, three)")):
        graph = "g (float[N, 4] x) => (float[N, 2] y) <float three = {3.0}> { a = MatMul (x, w) y = %s }"
        model = parsed((graph % form).replace("(x)", "(a)").replace("Pow (x", "Pow (a"))
        model.graph.initializer.append(weights)
        trainer = train.Trainer(model, loss="mse", optimizer=train.SGD(0.01))
        trainer.fit({"x": X, "labels": np.ones((3, 2), np.float32)}, epochs=4, batch_size=3, progress=False)
        models[name] = trainer.model()
    own, standard = (model.graph.initializers["w"].const_value.numpy() for model in models.values())
    np.testing.assert_allclose(own, standard, rtol=1e-5)
    assert not np.array_equal(own, np.full((4, 2), 0.5, np.float32))


def test_several_results_have_cotangents_where_these_are_numbers() -> None:
    def types(x: TensorType) -> tuple[TensorType, TensorType]:
        return x, TensorType(INT64, x.shape)

    def gradient(results: Any, cotangents: Any, x: Tensor) -> Tensor:
        assert len(results) == 2
        assert cotangents[1] is None
        return 2 * x * cotangents[0]

    @sardonyx.host_operator("Both", domain="my", since=1, types=types, gradient=gradient)
    def both(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x * x, np.sign(x).astype(np.int64)

    model = parsed(
        "g (float[N, 4] x) => (float s, int64[N, 4] k) { p, k = my.Both (x) s = ReduceSum <keepdims=0> (p) }"
    )
    np.testing.assert_allclose(derived(model, wrt=["x"])["x_gradient"], 2 * X, rtol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "kind", "match"),
    [
        (None, UnsupportedError, r"Power has no gradient\. Register one"),
        (
            lambda y, dy, x, bias=None, **_: (dy, dy, None),
            RuleError,
            "expected 1 cotangents from the gradient of Power, got 2",
        ),
        (lambda y, dy, x, bias=None, **_: ("dy", None), RuleError, "input 0 of Power, got str"),
        (
            lambda y, dy, x, bias=None, **_: L.reduce_sum(y),
            RuleError,
            r"expected float\[N, 4\] as cotangent of input 0 of Power, got float\[\]",
        ),
        (
            lambda y, dy, x, bias=None, **_: L.concat([dy, dy], 1),
            RuleError,
            r"expected float\[N, 4\] as cotangent of input 0 of Power, got float\[N, 8\]",
        ),
        (lambda y, dy, x, bias=None, **_: 1 / 0, RuleError, "the gradient of Power raised ZeroDivisionError"),
    ],
)
def test_impossible_gradients_are_refused_by_name(
    gradient: Callable[..., Any] | None, kind: type[SardonyxError], match: str
) -> None:
    define_power(gradient)
    model = parsed(
        "g (float[N, 4] x) => (float s) { p = my.Power <exponent = 3> (x) s = ReduceSum <keepdims = 0> (p) }"
    )
    with pytest.raises(kind, match=match):
        sardonyx.gradient(model, "s", ["x"])
