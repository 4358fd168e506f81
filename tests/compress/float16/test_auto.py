"""The search for nodes to keep: it meets the tolerance, keeps the guilty ones, and says what it measured."""

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.compress.float16 import auto_mixed_precision, convert_float_to_float16, output_error
from sardonyx.errors import EvaluationError, OptionError

from .loading import parse, run

X = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
OVERFLOWING = """
g (float[3,4] x) => (float[3,4] y) <float k = {300}, float two = {2}> {
    a = Tanh(x) b = Exp(a) [scale] c = Mul(b, k) [square] d = Mul(c, c) [root] e = Sqrt(d) f = Div(e, k)
    g1 = Abs(f) h = Relu(g1) i = Neg(h) y = Mul(i, two)
}
"""


def test_only_the_nodes_that_overflow_are_kept():
    model = parse(OVERFLOWING)
    found = auto_mixed_precision(model, {"x": X}, 1e-2, keep_io_types=True)
    assert set(found.chosen) == {"square", "root"}
    assert found.error <= 1e-2
    assert found.trials[0].error == np.inf
    answers = run(model_io.to_proto(found.model), {"x": X})
    assert output_error({"y": run(model, {"x": X})[0]}, {"y": answers[0]}) <= 1e-2


def test_what_was_chosen_can_be_given_as_a_block_list():
    model = parse(OVERFLOWING)
    found = auto_mixed_precision(model, {"x": X}, 1e-2)
    again = convert_float_to_float16(model, node_block_list=found.chosen)
    assert model_io.to_proto(again.model).SerializeToString() == model_io.to_proto(found.model).SerializeToString()


def test_nothing_is_kept_where_float16_is_good_enough():
    found = auto_mixed_precision(
        parse("g (float[3,4] x) => (float[3,4] y) { y = Tanh(x) }"), [{"x": X}, {"x": -X}], 1e-2
    )
    assert (found.chosen, len(found.trials)) == ((), 1)


def test_inputs_are_drawn_where_none_are_given():
    found = auto_mixed_precision(parse("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }"), None, 1e-2)
    assert 0 < found.error <= 1e-2


def selecting(threshold: float) -> onnx.ModelProto:
    """Gives, beside tanh(x), those of its elements that are above a threshold."""
    return parse(
        f"g (float[N,4] x) => (float[N,4] y, float[M] z) <float k = {{{threshold}}}, int64[1] flat = {{-1}}> {{"
        " y = Tanh(x) over = Greater(y, k) which = Reshape(over, flat) z = Compress(y, which) }"
    )


def test_inputs_are_drawn_until_every_output_holds_something():
    found = auto_mixed_precision(selecting(0.99), None, 1e-2, keep_io_types=True, op_block_list=["Greater"])
    assert found.error > 0


def test_an_output_that_stays_empty_is_not_judged():
    with pytest.raises(EvaluationError, match=r"(?s)z.*nothing to compare.*Give inputs"):
        auto_mixed_precision(selecting(2), None, 1e-2)


@pytest.mark.parametrize("given", [np.zeros((0, 4), np.float32), np.full((3, 4), np.nan, np.float32)])
def test_inputs_that_leave_nothing_to_compare_are_refused(given):
    model = parse("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }")
    with pytest.raises(EvaluationError, match="nothing to compare"):
        auto_mixed_precision(model, {"x": given}, 1e-2)


def test_a_node_in_a_body_can_be_kept():
    model = parse(
        "g (float[3,4] x, bool c) => (float[3,4] y) { y = If (c) <"
        " then_branch = t () => (float[3,4] p) <float k = {300}> {"
        " a = Mul(x, k) [square] b = Mul(a, a) d = Sqrt(b) p = Div(d, k) },"
        " else_branch = f () => (float[3,4] q) { q = Exp(x) } > }"
    )
    found = auto_mixed_precision(model, {"x": X, "c": np.array(True)}, 1e-2)
    assert "square" in found.chosen
    assert found.error <= 1e-2


def test_the_number_of_trials_is_bounded():
    found = auto_mixed_precision(parse(OVERFLOWING), {"x": X}, 1e-2, max_trials=3)
    assert len(found.trials) <= 3
    assert found.error <= 1e-2


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
    ("expected", "found", "error"),
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
def test_output_error(expected, found, error):
    assert output_error({"y": expected}, {"y": found}) == error


def test_a_function_is_searched_too():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17, "local": 1]> '
        "g (float[3,4] x) => (float[3,4] y) { a = Tanh(x) y = local.f(a) } "
        '<domain: "local", opset_import: ["": 17]> f (p) => (q) '
        "{ k = Constant<value = float {300}>() a = Mul(p, k) [square] b = Mul(a, a) c = Sqrt(b) q = Div(c, k) }"
    )
    found = auto_mixed_precision(model, {"x": X}, 1e-2)
    assert "square" in found.chosen


def test_bfloat16_needs_more_tolerance_and_no_range():
    found = auto_mixed_precision(parse(OVERFLOWING), {"x": X}, 0.05, dtype="bfloat16")
    assert (found.chosen, found.kept) == ((), ())
    assert 1e-3 < found.error <= 0.05


def test_every_rounding_is_measured():
    """A sum that float16 cannot hold between two exact operators, which engines without float16 compute in float32."""
    model = parse("g (float[3,4] x) => (float[3,4] y) <float big = {4096}> { a = Add(x, big) y = Sub(a, big) }")
    with pytest.raises(OptionError, match="tolerance"):
        auto_mixed_precision(model, {"x": X}, 1e-5, keep_io_types=False)
    found = auto_mixed_precision(model, {"x": X}, 1e-2, keep_io_types=True)
    assert found.trials[0].error > 0.1
    assert len(found.chosen) == 2
