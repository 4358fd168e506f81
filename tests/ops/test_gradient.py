"""``Gradient``: derivatives of values of the enclosing graph."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import InvalidModelError


def session(y: str = "c", xs: tuple[str, ...] = ("a", "b"), zs: tuple[str, ...] = ()) -> sardonyx.Session:
    node = onnx.helper.make_node
    outputs = [f"d{name}" for name in xs]
    nodes = [
        node("Mul", ["a", "a"], ["square"]),
        node("Sin", ["square"], ["sine"]),
        node("Mul", ["sine", "b"], ["c"]),
        node(
            "Gradient", [*xs, *zs], outputs, domain="ai.onnx.preview.training", xs=xs, y=y, **({"zs": zs} if zs else {})
        ),
    ]
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "g", [info(n, 1, ["n"]) for n in ("a", "b")], [info(n, 1, ["n"]) for n in outputs]
    )
    imports = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.preview.training", 1)]
    return sardonyx.Session(onnx.helper.make_model(graph, opset_imports=imports, ir_version=9))


A, B = np.array([0.3, -1.2], np.float32), np.array([2.0, 0.5], np.float32)


def test_derivatives_by_all_inputs() -> None:
    da, db = session().run(None, {"a": A, "b": B})
    np.testing.assert_allclose(da, 2 * A * np.cos(A * A) * B, rtol=1e-6)
    np.testing.assert_allclose(db, np.sin(A * A), rtol=1e-6)


def test_derivative_by_an_intermediate_value() -> None:
    (actual,) = session(xs=("square",), zs=("b",)).run(["dsquare"], {"a": A, "b": B})
    np.testing.assert_allclose(actual, np.cos(A * A) * B, rtol=1e-6)


def test_every_input_that_the_target_depends_on_must_be_an_argument() -> None:
    with pytest.raises(InvalidModelError, match="depends on the input 'b', which is not an argument"):
        session(xs=("a",)).run(None, {"a": A, "b": B})


# Written in ONNX's text.

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>'


def run(graph: str, **feeds: object) -> list[np.ndarray]:
    return sardonyx.Session(onnx.parser.parse_model(f"{HEAD} {graph}")).run(
        None, {k: np.asarray(v, np.float32) for k, v in feeds.items()}
    )


NETWORK = """g (float[N, 3] x, float[N, 2] label) => (float loss, float[3, 2] dw, float[2] db) <
    float[3, 2] w = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6}, float[2] b = {0.1, 0.2}
  > {
  product = MatMul (x, w)
  logits = Add (product, b)
  scores = LogSoftmax <axis = -1> (logits)
  picked = Mul (scores, label)
  total = ReduceSum <keepdims = 0> (picked)
  loss = Neg (total)
  dw, db = ai.onnx.preview.training.Gradient <xs = ["w", "b"], zs = ["x", "label"], y = "loss"> (w, b, x, label)
}"""


def test_derivatives_of_a_loss_by_its_weights() -> None:
    rng = np.random.default_rng(0)
    x, label = rng.standard_normal((5, 3)).astype(np.float32), np.eye(2, dtype=np.float32)[[0, 1, 1, 0, 1]]
    _, dw, db = run(NETWORK, x=x, label=label)
    w, b = np.array([[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6]]), np.array([0.1, 0.2])
    scores = np.exp(x @ w + b)
    residual = scores / scores.sum(-1, keepdims=True) - label
    np.testing.assert_allclose(dw, x.T @ residual, rtol=1e-4)
    np.testing.assert_allclose(db, residual.sum(0), rtol=1e-4)


def test_derivative_at_values_other_than_the_graphs() -> None:
    (actual,) = run(
        """g (float x, float at) => (float d) {
          y = Mul (x, x)
          d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (at)
        }""",
        x=2,
        at=5,
    )
    assert actual == 10


def test_second_derivatives() -> None:
    """The second derivative of x**4 is 12 * x**2."""
    first, second = run(
        """g (float x) => (float d, float dd) {
          s = Mul (x, x)
          y = Mul (s, s)
          d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
          dd = ai.onnx.preview.training.Gradient <xs = ["x"], y = "d"> (x)
        }""",
        x=3,
    )
    assert (first, second) == (108, 108)


def test_derivative_through_branches_that_read_outer_values() -> None:
    graph = """g (float x, float[N] v) => (float d) {
      zero = Constant <value = float {0}> ()
      positive = Greater (x, zero)
      y = If (positive) <
        then_branch = a () => (float p) { q = Mul (x, x)  s = ReduceSum <keepdims = 0> (v)  p = Mul (q, s) },
        else_branch = b () => (float n) { n = Neg (x) }
      >
      d = ai.onnx.preview.training.Gradient <xs = ["x"], zs = ["v"], y = "y"> (x, v)
    }"""
    assert run(graph, x=3, v=[1, 2]) == [18]
    assert run(graph, x=-3, v=[1, 2]) == [-1]
