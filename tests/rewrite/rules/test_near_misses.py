"""Graphs that look like a pattern and must stay as they are, with the reason that is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings


def transformed(text: str, opset: int = 18, **constants: Any) -> Engine:
    """The engine after the default passes over a graph written in ONNX's text form, with these initializers."""
    graph = parser.parse_graph(text)
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items())
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return pipeline.transform(model_io.from_proto(proto), pipeline.select(), Settings())


FLOAT = np.float32

NEAR_MISSES = [
    (
        "eliminate_nop_with_unit/neutral_but_for_the_sign_of_zero",
        "broadcast the other operand",
        "g (float[N] x) => (float[3, M] y) { y = Add(x, zeros) }",
        {"zeros": np.zeros((3, 1), FLOAT)},
    ),
    (
        "eliminate_absorbing_element/absorbing_operand",
        "NaN and infinities",
        "g (float[2] x) => (float[2] y) { y = Mul(x, zero) }",
        {"zero": FLOAT(0)},
    ),
    (
        "eliminate_nop_expand/expand_before_broadcast",
        "decides the shape",
        "g (float[1] x, float[1] z) => (float[4] y) { w = Expand(x, shape)\n y = Add(w, z) }",
        {"shape": np.array([4])},
    ),
    (
        "eliminate_nop_cast/cast_of_cast",
        "loses values",
        "g (float[2] x) => (float[2] y) { h = Cast<to = 10>(x)\n y = Cast<to = 1>(h) }",
        {},
    ),
    (
        "eliminate_nop_cast/cast_of_cast",
        "out of its range",
        "g (int8[2] x) => (uint8[2] y) { f = Cast<to = 1>(x)\n y = Cast<to = 2>(f) }",
        {},
    ),
    (
        "fuse_consecutive_reshapes/reshape_of_reshape",
        "has other readers",
        "g (float[2, 6] x) => (float[12] y, float[3, 4] z) { r = Reshape(x, a)\n y = Reshape(r, b)\n z = Relu(r) }",
        {"a": np.array([3, 4]), "b": np.array([12])},
    ),
    (
        "fuse_consecutive_slices/slice_of_slice",
        "has other readers",
        "g (float[9] x) => (float[2] y, float[4] z)"
        " { s = Slice(x, one, five)\n y = Slice(s, one, three)\n z = Relu(s) }",
        {"one": np.array([1]), "three": np.array([3]), "five": np.array([5])},
    ),
    (
        "fuse_consecutive_clips/clip_of_clip",
        "above its upper bound",
        "g (float[2] x) => (float[2] y) { c = Clip(x, five, two)\n y = Relu(c) }",
        {"five": FLOAT(5), "two": FLOAT(2)},
    ),
    (
        "fuse_consecutive_muls/mul_of_mul",
        "leave the range",
        "g (float[2] x) => (float[2] y) { p = Mul(x, large)\n y = Mul(p, large) }",
        {"large": FLOAT(1e30)},
    ),
    (
        "fuse_consecutive_muls/mul_of_mul",
        "integer division",
        "g (int64[2] x) => (int64[2] y) { p = Div(x, seven)\n y = Mul(p, seven) }",
        {"seven": np.int64(7)},
    ),
    (
        "rewrite_pow/power_one_half",
        "minus infinity",
        "g (float[2] x) => (float[2] y) { y = Pow(x, half) }",
        {"half": FLOAT(0.5)},
    ),
    (
        "eliminate_split_concat/split_of_concat",
        "other sizes",
        "g (float[2] a, float[4] b) => (float[3] y, float[3] z)"
        " { c = Concat<axis = 0>(a, b)\n y, z = Split(c, sizes) }",
        {"sizes": np.array([3, 3])},
    ),
    (
        "fuse_consecutive_reduce_unsqueeze/reduce_unsqueeze",
        "other axes",
        "g (float[2, 3] x) => (float[3, 1] y) { r = ReduceMax<keepdims = 0>(x, zero)\n y = Unsqueeze(r, one) }",
        {"zero": np.array([0]), "one": np.array([1])},
    ),
    (
        "fuse_consecutive_squeeze_unsqueeze/unsqueeze_of_squeeze",
        "not known to be of size 1",
        "g (float[N, M] x) => (float[N, M] y) { s = Squeeze(x, one)\n y = Unsqueeze(s, one) }",
        {"one": np.array([1])},
    ),
    (
        "fuse_consecutive_reshapes/reshape_of_reshape",
        "not known to be of size 1",
        "g (float[N, M] x) => (float[M, 1] y) { s = Squeeze(x, zero)\n y = Unsqueeze(s, one) }",
        {"zero": np.array([0]), "one": np.array([1])},
    ),
    (
        "fuse_layer_normalization/layer_normalization",
        "size of a normalized axis is not known",
        """g (float[2, N] x) => (float[2, N] y) {
            m = ReduceMean(x, last)
            d = Sub(x, m)
            p = Mul(d, d)
            v = ReduceMean(p, last)
            e = Add(v, epsilon)
            r = Sqrt(e)
            y = Div(d, r)
        }""",
        {"last": np.array([-1]), "epsilon": FLOAT(1e-5)},
    ),
    (
        "fuse_preceding_mul_into_conv/scale_before",
        "may broadcast the channels",
        "g (float[1, C, 4, 4] x) => (float[1, 1, 2, 2] y) { p = Mul(x, factors)\n y = Conv(p, w) }",
        {"factors": np.ones((1, 3, 1, 1), FLOAT), "w": np.ones((1, 3, 3, 3), FLOAT)},
    ),
    (
        "fuse_preceding_bn_into_conv/batch_norm_before",
        "padding with zeros comes after",
        "g (float[1, 2, 4, 4] x) => (float[1, 1, A, B] y) "
        "{ n = BatchNormalization(x, ones, ones, ones, ones) y = Conv <pads = [1, 1, 1, 1]> (n, w) }",
        {"ones": np.ones(2, FLOAT), "w": np.ones((1, 2, 3, 3), FLOAT)},
    ),
    (
        "fuse_transpose_after_gemm/transposed_result",
        "C of the Gemm is not constant",
        "g (float[N, 2] x, float[2] c) => (float[2, N] y) { g = Gemm(x, w, c) y = Transpose(g) }",
        {"w": np.ones((2, 2), FLOAT)},
    ),
    (
        "fuse_scale_into_matmul/scale_of_gemm",
        "one per column",
        "g (float[3, 2] x) => (float[3, 2] y) { g = Gemm(x, w) y = Mul(g, rows) }",
        {"w": np.ones((2, 2), FLOAT), "rows": np.arange(3, dtype=FLOAT)[:, None]},
    ),
    (
        "fuse_reshapes_around_matmul/rows_made_for_product",
        "not the axes merged before",
        "g (float[2, 6, 4] x) => (float[3, 4, 5] y) { r = Reshape(x, rows) p = MatMul(r, w) y = Reshape(p, parted) }",
        {"rows": np.array([12, 4]), "parted": np.array([3, 4, 5]), "w": np.ones((4, 5), FLOAT)},
    ),
    (
        "eliminate_nop_cast/cast_joined_casts",
        "lose values",
        "g (float[N] x, float[M] z) => (float[L] y) "
        "{ a = Cast <to = 10> (x) b = Cast <to = 10> (z) c = Concat <axis = 0> (a, b) y = Cast <to = 1> (c) }",
        {},
    ),
    (
        "eliminate_nop_dropout/dropout",
        "neither training_mode is known to be false nor the ratio to be 0",
        "g (float[N] x, bool training) => (float[N] y) { y = Dropout(x, half, training) }",
        {"half": FLOAT(0.5)},
    ),
]


@pytest.mark.parametrize(("label", "reason", "text", "constants"), NEAR_MISSES)
def test_refused_with_its_reason(label: str, reason: str, text: str, constants: dict[str, Any]) -> None:
    engine = transformed(text, **constants)
    assert [applied.rule for applied in engine.applied if applied.rule == label] == []
    assert any(reason in why for (rule, _), why in engine.refused.items() if rule == label), engine.refused
