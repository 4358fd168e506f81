"""Graphs that look like a pattern and must stay as they are, with the reason that is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewrite.models import transformed

FLOAT = np.float32

NEAR_MISSES = [
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
