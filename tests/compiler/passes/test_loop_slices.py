"""Slices that move with a loop are elements in native code; behind the end they are what they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx

BODY = """
    g (int64 most, float[{axes}] x, float[{state}] s) => (float[?] last, float[?] rows) {{
        one = Constant <value = int64 {{1}}> ()
        zero = Constant <value = int64[1] {{0}}> ()
        axis = Constant <value = int64[1] {{{axis}}}> ()
        yes = Constant <value = bool {{1}}> ()
        last, rows = Loop (most, yes, s)
        <body = step (int64 i, bool c, float[?] a) => (bool d, float[?] b, float[?] o) {{
            d = Identity (c)
            j = Add (i, one)
            begin = Unsqueeze (i, zero)
            end = Unsqueeze (j, zero)
            r = Slice (x, begin, end, axis)
            {step}
            o = Neg (b)
        }}>
    }}"""


def sessions(axes: str, state: str, axis: int, step: str) -> tuple[sardonyx.Session, sardonyx.Session]:
    text = '<ir_version: 9, opset_import: ["": 18]>' + BODY.format(axes=axes, state=state, axis=axis, step=step)
    model = onnx.parser.parse_model(text)
    for graph in (model.graph, model.graph.node[-1].attribute[0].g):
        for value in (*graph.input, *graph.output):
            if value.name in ("a", "b", "o", "last", "rows"):
                value.type.tensor_type.ClearField("shape")
    return sardonyx.Session(model, compile="wait"), sardonyx.Session(model, compile="off")


def same(native: sardonyx.Session, numpy: sardonyx.Session, most: int, x: np.ndarray, s: np.ndarray) -> None:
    feeds = {"most": np.array(most), "x": x, "s": s}
    for _ in range(2):
        for actual, expected in zip(native.run(None, feeds), numpy.run(None, feeds), strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", ["N, 4", "6, 4"])
@pytest.mark.parametrize("state", ["1, 4", "1, 1"])
def test_rows_of_a_tensor(axes: str, state: str) -> None:
    native, numpy = sessions(axes, state, 0, "f = ReduceSum (r, zero) h = Add (a, f) b = Tanh (h)")
    assert native.program is not None
    # A state of one column becomes one of four, which numpy repeats.
    assert not [value.op for value in native.program.host if state == "1, 4"]
    rng = np.random.default_rng(0)
    x, s = rng.random((6, 4), np.float32), rng.random([int(size) for size in state.split(",")], np.float32)
    for most in (1, 6, 0):
        same(native, numpy, most, x, s)
    # Behind the last row there is an empty slice, of which the sum is 0.
    same(native, numpy, 8, x, s)


def test_along_an_inner_axis_and_by_its_size() -> None:
    step = (
        "v = Reshape (r, shape) p = MatMul (a, v) n = Shape (r) k = ReduceSum (n) f = Cast <to = 1> (k) b = Add (p, f)"
    )
    constant = "shape = Constant <value = int64[2] {2, -1}> () "
    native, numpy = sessions("2, N, 2", "3, 2", 1, constant + step)
    assert native.program is not None
    assert not native.program.host
    rng = np.random.default_rng(1)
    for size in (5, 1):
        same(native, numpy, size, rng.random((2, size, 2), np.float32), rng.random((3, 2), np.float32))
