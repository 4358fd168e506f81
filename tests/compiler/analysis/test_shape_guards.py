"""Sizes that do not fit are refused by compiled code too, in the interpreter's words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.compiler.analysis.shape_guards import collect_guards
from sardonyx.errors import SardonyxError, ShapeError
from sardonyx.model import from_proto
from sardonyx.runtime.compiled.frontend import trace_model

RNG = np.random.default_rng(0)


def parsed(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


MODELS = {
    "product": ("(float[N, A] x, float[B, 3] w) => (float[N, 3] y) { y = MatMul(x, w) }", [(2, 4), (4, 3)]),
    "concat": ("(float[N, A] x, float[M, B] w) => (float[K, A] y) { y = Concat<axis = 0>(x, w) }", [(2, 4), (4, 4)]),
    "reshape": ("(float[N, 3] x) => (float[3, 5] y) <int64[2] s = {3, 5}> { y = Reshape(x, s) }", [(5, 3)]),
    "squeeze": ("(float[N, A] x) => (float[N] y) <int64[1] a = {1}> { y = Squeeze(x, a) }", [(5, 1)]),
    "expand": ("(float[N, A] x) => (float[5, 4] y) <int64[2] s = {5, 4}> { y = Expand(x, s) }", [(5, 1)]),
    "add": ("(float[N] x) => (float[5] y) <float[5] c = {1, 2, 3, 4, 5}> { y = Add(x, c) }", [(1,)]),
    "convolution": (
        "(float[N, C, H] x, float[M, K, 3] w) => (float[N, M, L] y) { y = Conv(x, w) }", [(1, 3, 8), (2, 3, 3)]
    ),
    "counted": (
        "(float[N, 3] x, float[M, K] w) => (float[2, K] y) { n = NonZero(x) f = Cast<to = 1>(n) y = MatMul(f, w) }",
        [(2, 3), (6, 3)],
    ),
    "crop": ("(float[N, 3] x) => (float[M, 3] y) <int64[4] p = {-3, 0, 0, 0}> { y = Pad(x, p) }", [(5, 3)]),
    "largest": ("(float[N, 3] x) => (float v, int64 i) <int64[1] k = {4}> { v, i = TopK<axis = 0>(x, k) }", [(5, 3)]),
    "extremum": ("(float[N, 3] x) => (int64[3] y) { y = ArgMax<axis = 0, keepdims = 0>(x) }", [(2, 3)]),
    "windows": (
        "(float[A, 2, N] x) => (float[A, 2, M] y) { y = MaxPool<kernel_shape = [5]>(x) }", [(1, 2, 6)]
    ),
    "suppression": (
        "(float[A, N, 4] x, float[B, C, M] w) => (int64[K, 3] y) <int64[1] m = {9}> { y = NonMaxSuppression(x, w, m) }",
        [(1, 4, 4), (1, 2, 4)],
    ),
    "rows": (
        "(float[N, 3] x) => (float[2, 3] y) <int64[2] i = {0, 0}> { y = Gather<axis = 0>(x, i) }", [(2, 3)]
    ),
}  # fmt: skip
WRONG = {
    "product": [(2, 7), (4, 3)], "concat": [(2, 7), (4, 3)], "reshape": [(2, 3)], "squeeze": [(2, 7)],
    "expand": [(2, 4)], "add": [(3,)], "convolution": [(1, 7, 8), (2, 3, 3)], "counted": [(2, 3), (4, 3)],
    "crop": [(2, 3)], "largest": [(3, 3)], "extremum": [(0, 3)], "windows": [(1, 2, 3)],
    "suppression": [(1, 4, 4), (1, 2, 40)], "rows": [(0, 3)],
}  # fmt: skip


def feeds(shapes: list[tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: drawn(*shape) for name, shape in zip("xw", shapes, strict=False)}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_that_do_not_fit_are_refused(name: str) -> None:
    text, shapes = MODELS[name]
    model = parsed(f"g {text}")
    compiled, plain = Session(model, compile="wait"), Session(model, compile="off")
    for right in (True, True, False, True, False):  # The generated entry is there from the third call on.
        inputs = feeds(shapes if right else WRONG[name])
        if right:
            expected, *_ = plain.run(None, inputs)
            np.testing.assert_allclose(compiled.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-5)
            continue
        with pytest.raises(SardonyxError) as interpreted:
            plain.run(None, inputs)
        with pytest.raises(type(interpreted.value)) as native:
            compiled.run(None, inputs)
        assert str(native.value) == str(interpreted.value)


def test_a_compiled_file_refuses_them_too(tmp_path: Path) -> None:
    text, shapes = MODELS["product"]
    Session(parsed(f"g {text}"), compile="wait").save_compiled(tmp_path / "g.sdx")
    session = Session(tmp_path / "g.sdx", compile="wait")
    for _ in range(3):
        session.run(None, feeds(shapes))
        with pytest.raises(SardonyxError):
            session.run(None, feeds(WRONG["product"]))


def test_a_branch_that_is_not_taken_requires_nothing() -> None:
    session = Session(
        parsed(
            "g (float[N, 3] x, bool c) => (float y) <int64[2] s = {3, 5}> { y = If(c) <"
            "then_branch = t () => (float p) { r = Reshape(x, s) p = ReduceSum<keepdims = 0>(r) },"
            "else_branch = e () => (float q) { q = ReduceMax<keepdims = 0>(x) }> }"
        ),
        compile="wait",
    )
    assert session.native is not None
    x = drawn(2, 3)
    for _ in range(4):  # The generated entry is there from the third call on.
        assert session.run(None, {"x": x, "c": np.array(False)}) == [x.max()]
    call = session.native.call
    assert call is not None
    assert call({"x": x, "c": np.array(False)}) is not None, "native code gave it back"


def test_a_branch_that_is_taken_is_refused_where_its_sizes_do_not_fit() -> None:
    session = Session(
        parsed(
            "g (float[N, 3] x, bool c) => (float[3, 5] y) <int64[2] s = {3, 5}> { y = If(c) <"
            "then_branch = t () => (float[3, 5] p) { p = Reshape(x, s) },"
            "else_branch = e () => (float[3, 5] q) { z = Reshape(x, s) q = Neg(z) }> }"
        ),
        compile="wait",
    )
    for c in (True, False):
        for _ in range(4):
            x = drawn(5, 3)
            expected = x.reshape(3, 5) if c else -x.reshape(3, 5)
            np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(c)})[0], expected)
            with pytest.raises(SardonyxError, match="Reshape"):
                session.run(None, {"x": drawn(2, 3), "c": np.array(c)})


def test_what_is_proven_is_not_looked_at() -> None:
    model = from_proto(parsed("g (float[N, 4] x, float[4, M] w) => (float[N, M] y) { h = MatMul(x, w) y = Add(h, h) }"))
    assert collect_guards(trace_model(model)) == []


CACHED = {
    "MultiHeadAttention": "MultiHeadAttention<num_heads = 2>(q, k, v, , , , pk, pv, n)",
    "DecoderMaskedMultiHeadAttention":
        "DecoderMaskedMultiHeadAttention<num_heads = 2, past_present_share_buffer = 1>(q, k, v, , , pk, pv, n)",
    "Attention": "Attention<num_heads = 2, past_present_share_buffer = 1>(x, w, b, , p, , n)",
}  # fmt: skip
INPUTS = {
    "q": (1, 1, 8), "k": (1, 1, 8), "v": (1, 1, 8), "pk": (1, 2, 16, 4), "pv": (1, 2, 16, 4), "x": (1, 1, 8),
    "w": (8, 24), "b": (24,), "p": (2, 1, 2, 16, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_is_filled_to_its_end_and_no_further(name: str) -> None:
    call = CACHED[name]
    used = [x for x in INPUTS if x in call.partition("(")[2].replace(",", " ").replace(")", " ").split()]
    parameters = ", ".join(f"float[{', '.join(map(str, INPUTS[x]))}] {x}" for x in used)
    model = parsed(f"g ({parameters}, int32[1] n) => (float y, float r) {{ y, r = com.microsoft.{call} }}")
    model.opset_import.add(domain="com.microsoft", version=1)
    compiled, plain = Session(model, compile="wait"), Session(model, compile="off")
    assert compiled.native is not None
    inputs = {x: drawn(*INPUTS[x]) for x in used}
    for filled in (0, 7, 15):
        inputs["n"] = np.array([filled], np.int32)
        for actual, expected in zip(compiled.run(None, inputs), plain.run(None, inputs), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for filled in (16, 17, 1000, 2**31 - 1, -1, -(2**31)):
        inputs["n"] = np.array([filled], np.int32)
        for session in (plain, compiled):
            with pytest.raises(ShapeError):
                session.run(None, inputs)
