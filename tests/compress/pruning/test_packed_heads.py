"""Heads of products that compute queries, keys and values at once leave all parts."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sardonyx

WIDTH, HEADS = 16, 4
SIZE = WIDTH // HEADS
GONE = (1, 3)
"""The heads whose weights are zero."""

PARTS = """r = Reshape(p, parts) t = Transpose<perm = [2, 0, 3, 1, 4]>(r)"""
SQUEEZED = " ".join(f"{name} = Squeeze({name}1, zero)" for name in "qkv")
PRODUCT = """kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) a = Softmax<axis = -1>(s) o = MatMul(a, v)"""
FORMS = {
    "gather": (PARTS + "q = Gather<axis = 0>(t, zero0) k = Gather<axis = 0>(t, one0) v = Gather<axis = 0>(t, two0)"
               + PRODUCT, "parts first"),
    "split": (PARTS + "q1, k1, v1 = Split<axis = 0>(t)" + SQUEEZED + PRODUCT, "parts first"),
    "split first": ("q1, k1, v1 = Split<axis = -1>(p)"
                    + " ".join(f"{n}2 = Reshape({n}1, heads) {n} = Transpose<perm = [0, 2, 1, 3]>({n}2)" for n in "qkv")
                    + PRODUCT, "parts first"),
    "heads first": ("r = Reshape(p, inner) t = Transpose<perm = [0, 2, 1, 3]>(r) q, k, v = Split<axis = -1>(t)"
                    + PRODUCT, "heads first"),
    "whole parts": ("r = Reshape(p, whole) u = Unsqueeze(r, zero) c3 = Transpose<perm = [3, 1, 2, 0, 4]>(u)"
                    "t = Squeeze(c3, three)"
                    + " ".join(f"{n}1 = Gather<axis = 0>(t, {i}0) {n}2 = Reshape({n}1, heads)"
                               f"{n} = Transpose<perm = [0, 2, 1, 3]>({n}2)"
                               for n, i in zip("qkv", ("zero", "one", "two"), strict=True))
                    + PRODUCT, "parts first"),
    "attention": (PARTS + "q = Gather<axis = 0>(t, zero0) k = Gather<axis = 0>(t, one0) v = Gather<axis = 0>(t, two0)"
                  "o = Attention(q, k, v)", "parts first"),
}  # fmt: skip


def packed(form: str) -> bytes:
    """Return a block of attention by one product, with heads of zeros."""
    body, order = FORMS[form]
    opset = 23 if form == "attention" else 17
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        net (float[N, T, 6] x) => (float[N, T, 5] y) {{
            i = MatMul(x, first) [packed] m = MatMul(i, w) p = Add(m, b) {body}
            ot = Transpose<perm = [0, 2, 1, 3]>(o) of = Reshape(ot, flat) [out] c = MatMul(of, last)
            e = Add(i, c) y = MatMul(e, head) }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    gates = (3, HEADS, SIZE) if order == "parts first" else (HEADS, 3, SIZE)
    axis = gates.index(HEADS)
    w, b = rng.standard_normal((WIDTH, *gates)), rng.standard_normal(gates)
    last = rng.standard_normal((HEADS, SIZE, WIDTH))
    for gone in GONE:
        np.moveaxis(w, axis + 1, 0)[gone] = 0
        np.moveaxis(b, axis, 0)[gone] = 0
        last[gone] = 0
    arrays = {
        "first": rng.standard_normal((6, WIDTH)), "w": w.reshape(WIDTH, -1), "b": b.reshape(-1),
        "last": last.reshape(WIDTH, WIDTH), "head": rng.standard_normal((WIDTH, 5)),
    }  # fmt: skip
    sizes = {
        "parts": [0, 0, 3, HEADS, SIZE], "heads": [0, 0, HEADS, SIZE], "inner": [0, 0, HEADS, 3 * SIZE],
        "whole": [0, 0, 3, WIDTH], "flat": [0, 0, -1], "zero": [0], "three": [3],
    }  # fmt: skip
    initializers = [numpy_helper.from_array(np.array(0.3 * array, np.float32), name) for name, array in arrays.items()]
    initializers += [numpy_helper.from_array(np.array(values, np.int64), name) for name, values in sizes.items()]
    initializers += [numpy_helper.from_array(np.array(i), name) for i, name in enumerate(("zero0", "one0", "two0"))]
    model.graph.initializer.extend(one for one in initializers if one.name in text)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("form", FORMS)
def test_heads_of_zeros_leave_all_parts(form: str) -> None:
    source = packed(form)
    samples = [{"x": np.random.default_rng(seed).standard_normal((2, 5, 6)).astype(np.float32)} for seed in range(9)]
    result = sardonyx.prune(source, samples, heads=0.5, criterion="magnitude", recover="none")
    assert (result.report.removed, result.report.candidates) == (2, HEADS)
    tensors = {name: value.const_value for name, value in result.model.graph.initializers.items()}
    shapes = {name: list(tensor.shape.numpy()) for name, tensor in tensors.items() if tensor is not None}
    assert (shapes["w"], shapes["b"], shapes["last"]) == ([WIDTH, 3 * 8], [3 * 8], [8, WIDTH])
    model = sardonyx.to_proto(result.model)
    onnx.checker.check_model(model, full_check=True)
    other = {"x": np.random.default_rng(99).standard_normal((3, 7, 6)).astype(np.float32)}
    (expected,), (ours,) = (
        sardonyx.Session(one, compile="wait").run(None, other) for one in (source, model.SerializeToString())
    )
    engine = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(engine.run(None, other)[0], expected, rtol=1e-4, atol=1e-4)


def test_halves_that_are_multiplied_are_channels_and_no_heads() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
        net (float[N, T, 6] x) => (float[N, T, 5] y) {
            p = MatMul(x, w) r = Reshape(p, halves) a1, b1 = Split<axis = 2>(r)
            a = Squeeze(a1, two) b = Squeeze(b1, two)
            g = Sigmoid(a) m = Mul(g, b) y = MatMul(m, head) }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((6, 16)).astype(np.float32), "head": rng.standard_normal((8, 5)).astype(np.float32),
        "halves": np.array([0, 0, 2, 8]), "two": np.array([2]),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    result = sardonyx.prune(model.SerializeToString(), channels=0.5, align=False)
    assert (result.report.removed, result.report.candidates) == (4, 8)
    x = rng.standard_normal((2, 3, 6)).astype(np.float32)
    assert sardonyx.Session(result.model, compile="wait").run(None, {"x": x})[0].shape == (2, 3, 5)
