"""A kernel does not iterate over a huge value that no memory holds: the interpreter applies the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx import Session
from sardonyx.errors import ResourceError, SardonyxError

HUGE = np.array([1 << 31, 1 << 30])
SMALL = np.array([3, 4])


def test_constants_that_are_texts_have_no_bound() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
        g (float[N, 3] x) => (string[N] label, float[N, 3] z) <string[3] names = {"a", "b", "c"}>
        { y = Sin (x)  z = Exp (y)  i = ArgMax <axis = 1, keepdims = 0> (z)  label = Gather (names, i) }"""
    )
    session = Session(model, compile="wait", threads=1)
    assert session.not_compiled == ""
    label, _ = session.run(None, {"x": np.array([[0, 1, 0], [0, 0, 1]], np.float32)})
    assert label.tolist() == ["b", "c"]


CASES = {
    "a sum": "g (float[1, 1] x, int64[2] s) => (float y) "
    "{ e = Expand (x, s)  c = Sin (e)  y = ReduceSum <keepdims = 0> (c) }",
    "a sum of copies": "g (float[1, 1] x, int64[2] s) => (float y) { e = Expand (x, s)  y = ReduceMax (e) }",
    "a product": "g (float[1, 1] x, int64[2] s) => (float y) "
    "{ e = Expand (x, s)  c = Sin (e)  t = Transpose (c)  p = MatMul (c, t)  y = ReduceSum <keepdims = 0> (p) }",
    "in a loop": "g (float[1, 1] x, int64[2] s, int64 n) => (float y) { c = Constant <value = bool {1}> () "
    "y = Loop (n, c, x) <body = b (int64 t, bool u, float[1, 1] v) => (bool u2, float[1, 1] v2) "
    "{ u2 = Identity (u)  e = Expand (v, s)  f = Cos (e)  v2 = ReduceMean (f) }> }",
}


def session(text: str, **options: Any) -> Session:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    return Session(model, threads=1, timeout=120, **options)


@pytest.mark.parametrize("name", CASES)
def test_a_size_from_a_tensor_keeps_no_kernel_busy(name: str) -> None:
    native, reference = (session(CASES[name], compile=mode) for mode in ("wait", "off"))
    feeds = {"x": np.full((1, 1), 0.5, np.float32), "s": SMALL, "n": np.array(2)}
    feeds = {value.name: feeds[value.name] for value in native.get_inputs()}
    np.testing.assert_allclose(native.run(None, feeds)[0], reference.run(None, feeds)[0], rtol=1e-5)
    with pytest.raises(SardonyxError) as expected:
        reference.run(None, {**feeds, "s": HUGE})
    with pytest.raises(type(expected.value)):
        native.run(None, {**feeds, "s": HUGE})


def test_a_size_that_the_model_fixes_keeps_no_kernel_busy() -> None:
    native = session(
        f"g (float[1, 1] x) => (float y) <int64[2] s = {{{HUGE[0]}, {HUGE[1]}}}> "
        "{ e = Expand (x, s)  c = Sin (e)  y = ReduceSum <keepdims = 0> (c) }",
        compile="wait",
    )
    with pytest.raises(ResourceError):
        native.run(None, {"x": np.ones((1, 1), np.float32)})


def test_all_pairs_of_large_inputs_are_computed_without_memory() -> None:
    """The differences take 8 GB, more than the limit; no memory holds them."""
    native = session(
        "g (float[N, 1] x) => (float y) "
        "{ t = Transpose (x)  d = Sub (x, t)  a = Abs (d)  y = ReduceMax <keepdims = 0> (a) }",
        compile="wait", max_memory=1 << 20,
    )  # fmt: skip
    x = np.linspace(0, 1, 46_000, dtype=np.float32)[:, None]
    np.testing.assert_allclose(native.run(None, {"x": x})[0], 1)
