"""Products with weights: an open size that the weights tell, and sums without terms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import Session

W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)

NETS = {
    "product": "g (float[N, F] x) => (float[N, K] y) { y = MatMul(x, w) }",
    "of a map": "g (float[N, F] x) => (float[N, K] y) { e = Exp(x) y = Gemm <alpha = 0.5> (e, w) }",
    "behind sums": "g (float[N, F] x) => (float[N, K] y) { s = Sub(x, x) t = Add(s, x) y = MatMul(t, w) }",
    "in a function": "g (float[N, F] x) => (float[N, K] y) { y = my.times(x, w) }"
    ' <domain: "my", opset_import: ["": 21]> times (a, b) => (c) { c = MatMul(a, b) }',
}


@pytest.mark.parametrize("net", NETS)
def test_weights_tell_what_an_open_size_is(net: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "my": 1]> {NETS[net]}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    compiled, reference = Session(model, compile="wait"), Session(model, compile="off")
    assert compiled.native is not None
    for n in (1, 5, 1, 0, 7):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        (actual,), (expected,) = (item.run(None, {"x": x}) for item in (compiled, reference))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


WITHOUT_TERMS = {
    "floats": ("float[N, 0] x", "float[N, 4] y", "float[0, 4] w", "MatMul", np.zeros((3, 0), np.float32)),
    "doubles": ("double[N, 0] x", "double[N, 4] y", "double[0, 4] w", "MatMul", np.zeros((3, 0))),
    "codes": ("uint8[N, 0] x", "int32[N, 4] y", "int8[0, 4] w", "MatMulInteger", np.zeros((3, 0), np.uint8)),
    "an image of codes": (
        "uint8[N, 0, 5, 5] x", "int32[N, 4, 5, 5] y", "int8[4, 0, 1, 1] w", "ConvInteger",
        np.zeros((2, 0, 5, 5), np.uint8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT_TERMS)
def test_products_without_terms_are_compiled_and_zero(case: str) -> None:
    x, y, w, name, array = WITHOUT_TERMS[case]
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({x}) => ({y}) <{w} = {{}}> {{ y = {name} (x, w) }}'
    session = Session(onnx.parser.parse_model(text), compile="wait", threads=1)
    assert session.not_compiled == ""
    (answer,) = session.run(None, {"x": array})
    assert answer.size
    assert not answer.any()
