"""float16 graphs whose squares and scores exceed float16: held in float32, as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import sardonyx
from sardonyx import model as model_io
from sardonyx.core.eval.run_context import RunContext
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.wide_values import wide_values

GENERATOR = np.random.default_rng(0)
ROWS = (GENERATOR.choice([-400, 400], size=(3, 64)) + GENERATOR.standard_normal((3, 64))).astype(np.float16)
HEADS = {
    name: (60 * GENERATOR.standard_normal(shape)).astype(np.float16)
    for name, shape in {"q": (1, 2, 9, 64), "k": (1, 2, 64, 9), "v": (1, 2, 9, 16)}.items()
}

SQUARES = {"Mul": "s = Mul (d, d)", "Pow": "s = Pow (d, two)"}
ENDS = {
    "Div": "r = Sqrt (e)  n = Div (d, r)",
    "Reciprocal": "r = Sqrt (e)  i = Reciprocal (r)  n = Mul (d, i)",
    "Pow": "r = Pow (e, half)  n = Div (d, r)",
}


def model(text: str, opset: int, **constants: object) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    proto.graph.initializer.extend(tensors)
    return proto


def layer_norm(square: str, end: str, opset: int = 13) -> onnx.ModelProto:
    return model(
        f"""g (float16[N, 64] x) => (float16[N, 64] y) {{
            m = ReduceMean <axes: ints = [-1]> (x)
            d = Sub (x, m)
            {square}
            v = ReduceMean <axes: ints = [-1]> (s)
            e = Add (v, eps)
            {end}
            y = Mul (n, g)
        }}""",
        opset,
        eps=np.float16(1e-5),
        two=np.float16(2),
        half=np.float16(0.5),
        g=np.linspace(0.5, 2, 64).astype(np.float16),
    )


def attention(between: str, opset: int = 13) -> onnx.ModelProto:
    return model(
        f"""g (float16[1, 2, 9, 64] q, float16[1, 2, 64, 9] k, float16[1, 2, 9, 16] v) => (float16[1, 2, 9, 16] y) {{
            s = MatMul (q, k)
            {between}
            p = Softmax <axis = -1> (t)
            y = MatMul (p, v)
        }}""",
        opset,
        c=np.float16(0.125),
        eight=np.float16(8),
        mask=np.zeros((9, 9), np.float16),
    )


CASES = {
    **{f"norm, {a}, {b}": (layer_norm(SQUARES[a], ENDS[b]), {"x": ROWS}) for a in SQUARES for b in ENDS},
    "norm, opset 17": (layer_norm(SQUARES["Mul"], ENDS["Div"], 17), {"x": ROWS}),
    "attention, factor": (attention("t = Mul (s, c)"), HEADS),
    "attention, quotient": (attention("t = Div (s, eight)"), HEADS),
    "attention, mask": (attention("u = Mul (s, c)  t = Add (u, mask)"), HEADS),
    "attention, plain": (attention("t = Identity (s)"), HEADS),
    "norm of a row": (
        model(
            """g (float16[3, 64] x) => (float16[3, 1] y) {
                s = ReduceSumSquare <axes: ints = [-1]> (x)
                y = Sqrt (s)
            }""",
            13,
        ),
        {"x": ROWS},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("provider", ["reference", "native"])
def test_squares_and_scores_stay_finite_as_in_onnxruntime(name: str, provider: str) -> None:
    proto, feeds = CASES[name]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    engine = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = engine.run(None, feeds)
    assert np.isfinite(expected).all()
    wait = {"compile": "wait"} if provider == "native" else {}
    (actual,) = sardonyx.Session(proto, providers=[provider], **wait).run(None, feeds)
    assert actual.dtype == np.float16
    # Two units in the last place: ONNX Runtime holds all values in float32, here the deviation is rounded.
    np.testing.assert_allclose(actual, expected, rtol=2 * 2.0**-10, atol=2 * 2.0**-10)


def wide_names(proto: onnx.ModelProto) -> set[str | None]:
    graph = model_io.from_proto(proto).graph
    return {value.name for value in wide_values(list(graph), graph.outputs)}


def test_only_values_between_a_square_and_a_root_are_wide() -> None:
    assert wide_names(layer_norm(SQUARES["Mul"], ENDS["Div"])) == {"s", "v", "e"}
    assert wide_names(attention("u = Mul (s, c)  t = Add (u, mask)")) == {"s", "u", "t"}


@pytest.mark.parametrize(
    "text",
    [
        "g (float16[4] x) => (float16[4] y, float16[4] s) { s = Mul (x, x)  y = Sqrt (s) }",
        "g (float16[4] x) => (float16[4] y, float16[4] z) { s = Mul (x, x)  y = Sqrt (s)  z = Exp (s) }",
        "g (float16[4] x) => (float16[4] y) { s = Mul (x, x)  y = Add (s, x) }",
        "g (float16[4] x, float16[4] z) => (float16[4] y) { s = Add (x, z)  y = Softmax (s) }",
        "g (float16[4] x, float16[4] z) => (float16[4] y) { s = Mul (x, z)  y = Sqrt (s) }",
    ],
)
def test_other_values_are_rounded(text: str) -> None:
    """Graph outputs, values with other readers, and chains that begin with no square or end with no root."""
    assert wide_names(model(text, 13)) == set()


def test_a_square_that_is_an_output_overflows() -> None:
    proto = model("g (float16[2] x) => (float16[2] y, float16[2] s) { s = Mul (x, x)  y = Sqrt (s) }", 13)
    x = np.array([400, 3], np.float16)
    y, s = ReferenceModel(model_io.from_proto(proto)).run(["y", "s"], {"x": x}, RunContext())
    assert np.array_equal(s, np.array([np.inf, 9], np.float16)) and np.array_equal(y, np.array([np.inf, 3], np.float16))


@pytest.mark.parametrize("provider", ["reference", "native"])
def test_a_requested_intermediate_value_is_rounded(provider: str) -> None:
    proto, feeds = CASES["norm, Mul, Div"]
    wait = {"compile": "wait"} if provider == "native" else {}
    s, y = sardonyx.Session(proto, providers=[provider], **wait).run(["s", "y"], feeds)
    assert s.dtype == y.dtype == np.float16
    assert np.isinf(s).any()


@pytest.mark.parametrize("kind", ["float", "double", "bfloat16"])
def test_other_types_are_computed_as_written(kind: str) -> None:
    """float32 and wider are not converted, and bfloat16 has float32's range."""
    proto = model(f"g ({kind}[2] x) => ({kind}[2] y) {{ s = Mul (x, x)  y = Sqrt (s) }}", 13)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(proto.graph.input[0].type.tensor_type.elem_type))
    (y,) = ReferenceModel(model_io.from_proto(proto)).run(["y"], {"x": np.array([3, 5], dtype)}, RunContext())
    assert y.dtype == dtype and np.array_equal(y.astype(np.float64), [3, 5])
