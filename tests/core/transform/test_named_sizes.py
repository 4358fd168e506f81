"""Sizes that are too long to compute with have names of their own: models of long sizes are compiled all the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from sardonyx.core.dim import Dim, is_long
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import Tensor, apply, constant, size_tensor, sizes_of
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import FLOAT, TensorType
from sardonyx.core.transform.named_sizes import has_long_forms, with_named_sizes
from sardonyx.core.transform.simplify import simplify
from sardonyx.model import load
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import prepare
from sardonyx.runtime.session import Session

HEIGHT, WIDTH = "h" * 400, "w" * 400

LEVELS = f"""
<ir_version: 9, opset_import: ["": 17]>
levels (float[B, 2, {HEIGHT}, {WIDTH}] x) => (float[A] all, float[Y] tail, float[Z] inside, int64[1] less)
    <int64[1] flat = {{-1}}, int64[1] third = {{3}}, int64[1] zero = {{0}}, int64[1] minus = {{-1}}> {{
   p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)
   q = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (p)
   r = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (q)
   a = Reshape (p, flat)
   b = Reshape (q, flat)
   c = Reshape (r, flat)
   d = Neg (b)
   joined = Concat <axis = 0> (a, b, c, d)
   n = Shape (joined)
   start = Div (n, third)
   tail = Slice (joined, start, n, zero)
   inside = Slice (tail, zero, minus, zero)
   all = Add (joined, joined)
   less = Sub (start, n)
}}
"""


def test_models_of_long_sizes_are_compiled() -> None:
    model = onnx.parser.parse_model(LEVELS)
    session = Session(model, compile="wait", threads=1)
    assert session.native is not None
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in [(1, 2, 32, 32), (2, 2, 17, 40), (1, 2, 1, 1), (1, 2, 32, 32)]:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        for actual, expected in zip(session.run(None, {"x": x}), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_results_of_operators_have_no_long_sizes() -> None:
    prepared = prepare(load(onnx.parser.parse_model(LEVELS)))
    types = [declared_type(value) for value in prepared.inputs]
    traced = trace("levels", lambda *inputs: list(prepared.call(list(inputs))), types)
    assert any(value.op == "bind" for value in traced.values)
    assert not any(map(has_long_forms, traced.results))


@pytest.mark.parametrize("number", [0, 3, 700])
def test_named_sizes_are_the_same_values(number: int) -> None:
    symbol, long = Dim.symbol("n"), Dim.symbol("m" * 300)

    def body(x: Tensor, y: Tensor) -> list[Tensor]:
        sizes = with_named_sizes(size_tensor([symbol, long, 5 - long, long * symbol - 9]))
        named = with_named_sizes(x)
        assert isinstance(named, Tensor) and isinstance(sizes, Tensor)
        assert not any(map(is_long, (*named.shape, *(sizes_of(sizes) or ()))))
        return [apply("add", named, named), sizes]

    traced = simplify(trace("named", body, [TensorType(FLOAT, (2, long)), TensorType(FLOAT, (symbol,))]))
    x, y = np.arange(2 * number, dtype=np.float32).reshape(2, number), np.zeros(4, np.float32)
    with running(RunContext()):
        doubled, sizes = evaluate(traced, [constant(x, FLOAT), constant(y, FLOAT)], {})
    np.testing.assert_array_equal(doubled.known, x + x)
    np.testing.assert_array_equal(sizes.known, [4, number, 5 - number, 4 * number - 9])
    assert sizes.type.dtype == t.INT64
