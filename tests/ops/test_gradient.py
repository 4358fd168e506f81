"""``Gradient`` of values of the graph around it."""

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


def test_by_all_that_it_hangs_on() -> None:
    da, db = session().run(None, {"a": A, "b": B})
    np.testing.assert_allclose(da, 2 * A * np.cos(A * A) * B, rtol=1e-6)
    np.testing.assert_allclose(db, np.sin(A * A), rtol=1e-6)


def test_by_a_value_in_between() -> None:
    (found,) = session(xs=("square",), zs=("b",)).run(["dsquare"], {"a": A, "b": B})
    np.testing.assert_allclose(found, np.cos(A * A) * B, rtol=1e-6)


def test_what_it_hangs_on_must_be_given() -> None:
    with pytest.raises(InvalidModelError, match="hangs on the input 'b', which is not given"):
        session(xs=("a",)).run(None, {"a": A, "b": B})
