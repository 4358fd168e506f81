"""Values that are read through reshapes of open sizes, whose axes loops join and split."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import Session
from sardonyx.compiler.explain import explain

GROUPS = "r = Reshape(c, groups) n = InstanceNormalization(r, one, nil) s = Shape(x) q = Reshape(n, s)"

BODIES = {
    "groups": f"c = Identity(x) {GROUPS} y = Mul(q, g)",
    "groups of a map": f"e = Sigmoid(x) c = Add(x, e) {GROUPS} a = Mul(q, g) y = Add(a, x)",
    "groups of a scaled image": f"c = Mul(x, g) {GROUPS} y = Add(q, g)",
    "groups of a shifted image": f"m = ReduceMax <axes = [2, 3]> (x) c = Sub(x, m) {GROUPS} y = Mul(q, g)",
    "rows of all pixels": "c = Add(x, g) r = Reshape(c, flat) n = Softmax(r) s = Shape(x) y = Reshape(n, s)",
    "columns of pixels": "c = Mul(x, g) r = Reshape(c, flat) t = Transpose <perm = [0, 2, 1]> (r)"
    " m = ReduceMean <axes = [2]> (t) y = Sub(t, m)",
    "joined batches": "c = Mul(x, g) r = Reshape(c, joined) m = ReduceSum (r, last) y = Sub(r, m)",
    "groups of a convolution": f"c = Conv <pads = [1, 1, 1, 1]> (x, w, v) {GROUPS} y = Mul(q, g)",
    "spread rows": "m = ReduceMax <axes = [3]> (x) s = Shape(x) e = Expand(m, s) y = Reshape(e, one_axis)",
    "where maxima are": "r = Reshape(x, groups) i = ArgMax <axis = 2> (r) f = Cast <to = 1> (i) y = Sub(r, f)",
}

CONSTANTS = {
    "one": np.ones(2, np.float32),
    "nil": np.zeros(2, np.float32),
    "g": np.linspace(-1, 2, 6, dtype=np.float32).reshape(6, 1, 1),
    "groups": np.array([0, 2, -1]),
    "flat": np.array([0, 6, -1]),
    "joined": np.array([-1, 3, 2]),
    "last": np.array([2]),
    "one_axis": np.array([-1]),
    "w": np.linspace(-1, 1, 6 * 6 * 9, dtype=np.float32).reshape(6, 6, 3, 3),
    "v": np.linspace(-3, 3, 6, dtype=np.float32),
}


def completed(text: str) -> onnx.ModelProto:
    """The model of a text, with the constants, and an output of any rank."""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="y", type=onnx.helper.make_tensor_type_proto(1, None)))
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in CONSTANTS.items())
    return model


@pytest.mark.parametrize(
    ("body", "sizes"), [*((body, "h, w") for body in BODIES), ("groups of a shifted image", "h, 5")]
)
def test_what_is_read_through_reshapes_is_what_the_interpreter_computes(body: str, sizes: str) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[b, 6, {sizes}] x) => (float y) {{ {BODIES[body]} }}'
    model = completed(text)
    compiled, reference = Session(model, compile="wait"), Session(model, compile="off")
    assert compiled.native is not None
    rng = np.random.default_rng(0)
    for b, h, w in [(1, 1, 1), (2, 3, 5), (1, 8, 7), (2, 4, 8), (1, 17, 1), (1, 5, 13), (3, 1, 16), (0, 2, 3)]:
        fixed = sizes.split(", ")
        h, w = (int(size) if size.isdigit() else run for size, run in zip(fixed, (h, w), strict=True))
        x = rng.standard_normal((b, 6, h, w)).astype(np.float32)
        (actual,), (expected,) = (session.run(None, {"x": x}) for session in (compiled, reference))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", ["h, w", "7, 9"])
@pytest.mark.parametrize(
    ("body", "apart"),
    [
        ("groups", False),
        ("groups of a map", False),
        ("groups of a scaled image", True),
        ("groups of a convolution", True),
    ],
)
def test_what_repeats_along_an_axis_is_not_computed_in_rows_that_join_it(body: str, apart: bool, sizes: str) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[b, 6, {sizes}] x) => (float y) {{ {BODIES[body]} }}'
    program = Session(completed(text), compile="wait").program
    assert program is not None
    reasons = [kernel.reason for kernel in explain(program).kernels]
    assert ("the index would be divided for each element" in reasons) is apart
