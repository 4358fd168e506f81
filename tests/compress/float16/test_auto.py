"""The search for float32 nodes meets the tolerance, selects the responsible nodes, and records its trials."""

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.compress.float16 import auto_mixed_precision, convert_float16, output_error
from sardonyx.errors import EvaluationError, OptionError

from .loading import parse, run

X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
OVERFLOWING = """
g (float[3,4] x) => (float[3,4] y) <float k = {300}, float two = {2}> {
    a = Tanh(x) b = Exp(a) [scale] c = Mul(b, k) [square] d = Mul(c, c) [root] e = Sqrt(d) f = Div(e, k)
    g1 = Abs(f) h = Relu(g1) i = Neg(h) y = Mul(i, two)
}
"""


def test_only_overflowing_nodes_stay_in_float32():
    model = parse(OVERFLOWING)
    result = auto_mixed_precision(model, {"x": X}, 1e-2, keep_io_types=True)
    assert set(result.chosen) == {"square", "root"}
    assert result.error <= 1e-2
    assert result.trials[0].error == np.inf
    answers = run(model_io.to_proto(result.model), {"x": X})
    assert output_error({"y": run(model, {"x": X})[0]}, {"y": answers[0]}) <= 1e-2


def test_the_chosen_nodes_are_a_valid_block_list():
    model = parse(OVERFLOWING)
    result = auto_mixed_precision(model, {"x": X}, 1e-2)
    again = convert_float16(model, node_block_list=result.chosen)
    assert model_io.to_proto(again.model).SerializeToString() == model_io.to_proto(result.model).SerializeToString()


def test_no_node_stays_in_float32_if_float16_suffices():
    result = auto_mixed_precision(
        parse("g (float[3,4] x) => (float[3,4] y) { y = Tanh(x) }"), [{"x": X}, {"x": -X}], 1e-2
    )
    assert (result.chosen, len(result.trials)) == ((), 1)


def test_missing_inputs_are_drawn():
    result = auto_mixed_precision(parse("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }"), None, 1e-2)
    assert 0 < result.error <= 1e-2


def selecting(threshold: float) -> onnx.ModelProto:
    """Return a model of tanh(x) and the elements of tanh(x) above a threshold."""
    return parse(
        f"g (float[N,4] x) => (float[N,4] y, float[M] z) <float k = {{{threshold}}}, int64[1] flat = {{-1}}> {{"
        " y = Tanh(x) over = Greater(y, k) which = Reshape(over, flat) z = Compress(y, which) }"
    )


def test_inputs_are_drawn_until_every_output_has_elements():
    result = auto_mixed_precision(selecting(0.99), None, 1e-2, keep_io_types=True, op_block_list=["Greater"])
    assert result.error > 0


def test_an_empty_output_is_refused():
    with pytest.raises(EvaluationError, match=r"(?s)z.*nothing to compare.*Give inputs"):
        auto_mixed_precision(selecting(2), None, 1e-2)


@pytest.mark.parametrize(
    ("x", "message"),
    [(np.zeros((0, 4), np.float32), "nothing to compare"), (np.full((3, 4), np.nan, np.float32), "x: .* holds NaN")],
)
def test_inputs_without_comparable_outputs_are_refused(x, message):
    model = parse("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }")
    with pytest.raises(EvaluationError, match=message):
        auto_mixed_precision(model, {"x": x}, 1e-2)


def test_a_node_in_a_body_can_stay_in_float32():
    model = parse(
        "g (float[3,4] x, bool c) => (float[3,4] y) { y = If (c) <"
        " then_branch = t () => (float[3,4] p) <float k = {300}> {"
        " a = Mul(x, k) [square] b = Mul(a, a) d = Sqrt(b) p = Div(d, k) },"
        " else_branch = f () => (float[3,4] q) { q = Exp(x) } > }"
    )
    result = auto_mixed_precision(model, {"x": X, "c": np.array(True)}, 1e-2)
    assert "square" in result.chosen
    assert result.error <= 1e-2


def test_the_number_of_trials_is_bounded():
    result = auto_mixed_precision(parse(OVERFLOWING), {"x": X}, 1e-2, max_trials=3)
    assert len(result.trials) <= 3
    assert result.error <= 1e-2


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("inputs", {"inputs": {}, "tolerance": 0.1}),
        ("tolerance", {"inputs": {"x": X}, "tolerance": 0.0}),
        ("tolerance", {"inputs": {"x": X}, "tolerance": 1e-9}),
        ("max_trials", {"inputs": {"x": X}, "tolerance": 0.1, "max_trials": 1}),
        ("op_block_list", {"inputs": {"x": X}, "tolerance": 0.1, "op_block_list": "Exp"}),
        ("dtype", {"inputs": {"x": X}, "tolerance": 0.1, "dtype": "float8"}),
    ],
)
def test_an_impossible_option_is_named(option, arguments):
    with pytest.raises(OptionError, match=option):
        auto_mixed_precision(parse(OVERFLOWING), **arguments)


@pytest.mark.parametrize(
    ("expected", "actual", "error"),
    [
        (np.float32([1, -4]), np.float16([1, -2]), 0.5),
        (np.float32([1, np.inf]), np.float16([1, np.inf]), 0.0),
        (np.float32([1, np.nan]), np.float16([1, np.nan]), 0.0),
        (np.float32([1, 2]), np.float16([1, np.nan]), np.inf),
        (np.float32([1, 2]), np.float16([1]), np.inf),
        (np.float32([]), np.float16([]), 0.0),
        (np.float32([0, 0]), np.float16([0, 0.25]), 0.25),
        (np.int64([1, 2, 3, 4]), np.int64([1, 2, 3, 5]), 0.25),
        ([np.float32([2])], [np.float16([1])], 0.5),
        ([{"a": np.float32(2)}], [{"a": np.float16(1)}], 0.5),
        ([np.float32([2])], [], np.inf),
    ],
)
def test_output_error_is_relative_to_the_largest_magnitude(expected, actual, error):
    assert output_error({"y": expected}, {"y": actual}) == error


def test_functions_are_searched():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "local": 1]> '
        "g (float[3,4] x) => (float[3,4] y) { a = Tanh(x) y = local.f(a) } "
        '<domain: "local", opset_import: ["": 17]> f (p) => (q) '
        "{ k = Constant<value = float {300}>() a = Mul(p, k) [square] b = Mul(a, a) c = Sqrt(b) q = Div(c, k) }"
    )
    result = auto_mixed_precision(model, {"x": X}, 1e-2)
    assert "square" in result.chosen


def test_bfloat16_does_not_overflow_and_is_less_precise():
    result = auto_mixed_precision(parse(OVERFLOWING), {"x": X}, 0.05, dtype="bfloat16")
    assert (result.chosen, result.float32_nodes) == ((), ())
    assert 1e-3 < result.error <= 0.05


def test_every_rounding_is_measured():
    """Measure a sum beyond float16 between two exact operators, which engines without float16 compute in float32."""
    model = parse("g (float[3,4] x) => (float[3,4] y) <float big = {4096}> { a = Add(x, big) y = Sub(a, big) }")
    with pytest.raises(OptionError, match="tolerance"):
        auto_mixed_precision(model, {"x": X}, 1e-5, keep_io_types=False)
    result = auto_mixed_precision(model, {"x": X}, 1e-2, keep_io_types=True)
    assert result.trials[0].error > 0.1
    assert len(result.chosen) == 2
