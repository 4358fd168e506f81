"""What a proof is made of: samples on which the original runs, several sizes, every branch, and cuts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.verify import Verdict, Verifier
from sardonyx.rewrite.verify.search import MEMORY_EXCEEDED, Feeds, Search
from sardonyx.rewrite.verify.weight_sizes import required_sizes
from tests.rewrite.models import BOOL, INT64, STRING, info, model, node


def judged(original: onnx.ModelProto, candidate: onnx.ModelProto, *, exact: bool = False, **options: object) -> Verdict:
    with Verifier(model_io.from_proto(original), **options) as verifier:  # type: ignore[arg-type]
        return verifier.judge(model_io.from_proto(candidate), exact=exact)


def unary(op: str, shape: list[int | str | None] | None = None) -> onnx.ModelProto:
    dims = ["n", 4] if shape is None else shape
    return model([node(op, ["x"], ["y"], name="it")], [info("x", dims)], [info("y", dims)])


def test_equal_models_are_proved_at_several_sizes() -> None:
    verdict = judged(unary("Tanh"), unary("Tanh"), exact=True)
    assert (verdict.status, verdict.samples, verdict.worst, verdict.exact) == ("proved", 3, 0.0, True)
    assert len({s["n"] for s in verdict.sizes}) == 3
    assert verdict.peak_bytes > 1 << 20


def test_another_operator_is_different_and_the_output_named() -> None:
    verdict = judged(unary("Tanh"), unary("Sigmoid"))
    assert verdict.status == "different"
    assert "'y'" in verdict.reason


def scaled(factor: float) -> onnx.ModelProto:
    nodes = [node("Mul", ["x", "k"], ["y"])]
    return model(nodes, [info("x", ["n", 4])], [info("y", ["n", 4])], {"k": np.float32(factor)})


def test_exact_rewrites_must_give_equal_bits() -> None:
    near = float(np.nextafter(np.float32(1.7), np.float32(2)))
    assert judged(scaled(1.7), scaled(near), exact=True).status == "different"
    assert judged(scaled(1.7), scaled(near)).status == "proved"
    assert judged(scaled(1.7), scaled(1.7 * 1.0003)).status == "different"


def test_names_types_and_declared_shapes_are_compared() -> None:
    other_shape = unary("Tanh", ["m", 4])
    renamed = unary("Tanh")
    renamed.graph.output[0].name = renamed.graph.node[0].output[0] = "z"
    for candidate in (other_shape, renamed):
        verdict = judged(unary("Tanh"), candidate)
        assert verdict.status == "different" and "declared" in verdict.reason


def test_a_fault_at_one_size_alone_is_found() -> None:
    """Squeezing all axes of size one is wrong only for a batch of one."""
    right = [node("Squeeze", ["x", "a"], ["y"])]
    wrong = [node("Squeeze", ["x"], ["y"])]
    shapes = [info("x", ["n", 1, 3])], [info("y", None)]
    original = model(right, *shapes, {"a": np.array([1])})
    assert judged(original, model(wrong, *shapes)).status == "different"


def test_failures_suggest_sizes() -> None:
    """The state's batch is the input's, and 37 numbers make one of them: no size tried first does."""
    nodes = [
        node("Reshape", ["x", "target"], ["r"], name="reshape"),
        node("Add", ["r", "state"], ["s"], name="add"),
        node("Concat", ["s", "other"], ["y"], axis=1, name="concat"),
    ]
    original = model(
        nodes,
        [info("x", [None, None]), info("state", [None, 37]), info("other", [None, 2])],
        [info("y", [None, None])],
        {"target": np.array([-1, 37])},
    )
    assert judged(original, original).status == "proved"


def test_a_size_that_is_the_sum_of_others_is_found() -> None:
    """New tokens are appended to a cache, under a mask of both."""
    nodes = [
        node("Shape", ["mask"], ["masked"]),
        node("Concat", ["past", "new"], ["all"], axis=1),
        node("Add", ["all", "mask"], ["y"]),
        node("Reshape", ["y", "masked"], ["z"]),
    ]
    sizes = {"past": "p", "new": "n", "mask": "t"}
    entries = [info(name, ["batch", size]) for name, size in sizes.items()]
    cached = model(nodes, entries, [info("z", ["batch", "t"])])
    verdict = judged(cached, cached)
    assert (verdict.status, verdict.samples) == ("proved", 3)
    assert all(sizes_["t"] == sizes_["p"] + sizes_["n"] for sizes_ in verdict.sizes)
    assert max(sizes_["n"] for sizes_ in verdict.sizes) > 1


def test_drawn_indices_are_in_range() -> None:
    nodes = [node("Add", ["i", "one"], ["j"]), node("Gather", ["table", "j"], ["y"])]
    weights = {"table": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32), "one": np.array(1)}
    original = model(nodes, [info("i", ["n"], INT64)], [info("y", ["n", 3])], weights)
    assert judged(original, original).status == "proved"


def choice(then: str, other: str) -> onnx.ModelProto:
    """The branch depends on a comparison with 16000."""
    bodies = {
        side: onnx.helper.make_graph([node(op, ["x"], [f"{op}_{side}"])], side, [], [info(f"{op}_{side}", ["n"])])
        for side, op in (("then_branch", then), ("else_branch", other))
    }
    nodes = [node("Equal", ["rate", "k"], ["c"]), node("If", ["c"], ["y"], name="if", **bodies)]
    inputs = [info("x", ["n"]), info("rate", [], INT64)]
    return model(nodes, inputs, [info("y", ["n"])], {"k": np.array(16000)})


def test_both_branches_are_taken() -> None:
    original = choice("Tanh", "Neg")
    assert judged(original, original).notes == ()
    assert judged(original, choice("Abs", "Neg")).status == "different"
    assert judged(original, choice("Tanh", "Abs")).status == "different"


def test_a_branch_taken_by_no_sample_is_noted() -> None:
    original = choice("Tanh", "Neg")
    feeds = {"x": np.ones(3, np.float32), "rate": np.array(16000)}
    assert judged(original, original, inputs=feeds).status == "proved"
    original.graph.node[0].CopyFrom(node("Greater", ["rate", "k"], ["c"]))
    assert "then branch of 'if'" in " ".join(judged(original, original).notes)


def test_sizes_beyond_the_memory_leave_the_other_samples() -> None:
    """As in the search for a branch that no sample takes, whose sizes grow."""

    def run(feeds: Feeds) -> Feeds:
        if len(feeds["x"]) > 2:
            raise MemoryError
        return {"y": feeds["x"]}

    original = model_io.from_proto(unary("Tanh"))
    search = Search(original, run, 0, 3)
    samples = search.samples(lambda sample: True)
    assert len(samples) >= 3 and all(len(sample.feeds["x"]) <= 2 for sample in samples)
    assert MEMORY_EXCEEDED in search.reasons


WEIGHT_SIZES = {
    "g (float[a, b, c, d] x) => (float y) <float[4, 37, 1, 3] w> { y = Conv (x, w) }": {"b": 37},
    "g (float[a, b, c] x) => (float y) <float[4, 37, 3] w> { y = Conv <group = 2> (x, w) }": {"b": 74},
    "g (float[a, b, c] x) => (float y) <float[37, 4] w> { t = Tanh (x)  y = MatMul (t, w) }": {"c": 37},
    "g (float[a, b] x) => (float y) <float[4, 37] w> { y = Gemm <transB = 1> (x, w) }": {"b": 37},
    "g (float[a, b] x) => (float y) <float[37, 4] w> { t = Concat <axis = 1> (x, x, x)  s = Add (t, t)"
    "  u = Pad (s, p)  y = MatMul (u, w) }": {"b": 12},
    "g (float[a, b, c] x) => (float y) <float[1, 16, 37] w, float[1, 16, 4] r>"
    " { , y = LSTM <hidden_size = 4> (x, w, r) }": {"c": 37},
    "g (float[a, b, c, d] x) => (float y) <float[1] s, float[4, 37, 1, 1] w> { t = PRelu (x, s)  y = Conv (t, w) }":
    {"b": 37},
    "g (float[a, b, c, d] x) => (float y) <float[1, 37, 1, 1] s> { y = PRelu (x, s) }": {"b": 37},
    "g (float[a, b] x) => (float y) <float[37] s> { y = PRelu (x, s) }": {"b": 37},
    "g (float[a, b, c] x) => (float y) <float[1] s> { y = LayerNormalization (x, s) }": {},
}  # fmt: skip


@pytest.mark.parametrize("text", WEIGHT_SIZES)
def test_open_sizes_that_weights_determine_are_found(text: str) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    for value in proto.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, 0, 1]), "p"))
    del proto.graph.value_info[:], proto.graph.output[0].type.tensor_type.shape.dim[:]
    original = model_io.from_proto(proto)
    infer_shapes(original, strict=False)
    assert required_sizes(original) == WEIGHT_SIZES[text]
    assert judged(proto, proto).status == "proved"


def test_weights_of_branches_determine_no_sizes() -> None:
    """Each branch needs another size, and both must be taken."""
    product = "{name} () => (float[a, 4] {name}_y) {{ {name}_y = MatMul (x, {name}_w) }}"
    branches = ", ".join(f"{side}_branch = {product.format(name=side)}" for side in ("then", "else"))
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (bool c, float[a, b] x) => (float[a, 4] y)'
        f" {{ y = If (c) <{branches}> }}"
    )
    for name, size in (("then_w", 3), ("else_w", 5)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((size, 4), np.float32), name))
    original = model_io.from_proto(proto)
    infer_shapes(original, strict=False)
    assert required_sizes(original) == {}


def test_real_inputs_are_used() -> None:
    """Relu and Identity agree on the supplied inputs, but not on drawn ones."""
    feeds = {"x": np.abs(np.random.default_rng(0).standard_normal((2, 4))).astype(np.float32)}
    assert judged(unary("Relu"), unary("Identity"), inputs=feeds).status == "proved"
    assert judged(unary("Relu"), unary("Identity")).status == "different"


def test_outputs_of_nan_alone_prove_nothing() -> None:
    nodes = [node("Mul", ["x", "nan"], ["y"])]
    original = model(nodes, [info("x", ["n"])], [info("y", ["n"])], {"nan": np.float32(np.nan)})
    verdict = judged(original, original)
    assert verdict.status == "not proved" and "NaN" in verdict.reason


def boxes_above(threshold: float, factor: float = 1.0) -> onnx.ModelProto:
    """Return a model of the scaled elements above a threshold, possibly none."""
    nodes = [
        node("Greater", ["x", "t"], ["m"]),
        node("Compress", ["x", "m"], ["f"]),
        node("Mul", ["f", "k"], ["y"]),
    ]
    weights = {"t": np.float32(threshold), "k": np.float32(factor)}
    return model(nodes, [info("x", ["n"])], [info("y", ["found"])], weights)


def test_empty_outputs_prove_nothing() -> None:
    verdict = judged(boxes_above(1e6), boxes_above(1e6))
    assert verdict.status == "not proved" and "empty" in verdict.reason


SIZES_ALONE = [
    "(float[n, 4] x) => (float[k, l] y) { s = Shape (x) y = ConstantOfShape (s) }",
    "(float[n, 4] x) => (int64 y) { s = Shape (x) y = ReduceMin <keepdims = 0> (s) }",
    "(float[3, 4] x) => (float[3, 4] y) { y = EyeLike <k = 9> (x) }",
    "(float[n, 0] x) => (float[n, 0] y) { y = Tanh (x) }",
]


def read(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g {graph}')


@pytest.mark.parametrize("graph", SIZES_ALONE)
def test_outputs_of_sizes_alone_are_proved_though_they_repeat_a_number(graph: str) -> None:
    assert judged(read(graph), read(graph)).status == "proved"


def test_a_repeated_number_that_inputs_could_change_proves_nothing() -> None:
    zeros = unary("Tanh", [3, 4])
    zeros.graph.node[0].op_type = "Mul"
    zeros.graph.node[0].input.append("k")
    zeros.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "k"))
    assert judged(zeros, zeros).status == "not proved"


TESTS = [
    ("y = IsInf (x)", "y = IsNaN (x)"),
    ("y = IsInf <detect_negative = 0> (x)", "y = IsInf <detect_positive = 0> (x)"),
    ("t = Mul (x, x) y = IsNaN (t)", "t = Mul (x, x) y = IsInf (t)"),
    ("y = Equal (x, z)", "y = Greater (x, z)"),
]


@pytest.mark.parametrize(("text", "other"), TESTS)
def test_numbers_that_readers_test_for_are_drawn(text: str, other: str) -> None:
    original, candidate = (read(f"(float[n] x, float[n] z) => (bool[n] y) {{ {body} }}") for body in (text, other))
    assert judged(original, original).status == "proved"
    assert judged(original, candidate).status == "different"


def test_mostly_empty_outputs_are_drawn_again() -> None:
    assert judged(boxes_above(2.5), boxes_above(2.5)).status == "proved"
    assert judged(boxes_above(2.5), boxes_above(2.5, factor=1.01)).status == "different"


def test_a_probed_condition_is_not_an_output() -> None:
    """An If whose outputs are empty tells nothing, though its condition is one value."""
    then = onnx.helper.make_graph([node("Identity", ["f"], ["t"])], "t", [], [info("t", ["found"])])
    other = onnx.helper.make_graph([node("Neg", ["f"], ["e"])], "e", [], [info("e", ["found"])])
    proto = boxes_above(1e6)
    del proto.graph.node[2]
    proto.graph.node.append(node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other))
    proto.graph.input.append(info("c", [], BOOL))
    assert judged(proto, proto).status == "not proved"


def test_a_negative_size_is_an_open_one() -> None:
    """Some exporters write an unknown size as -1."""
    original = unary("Tanh", [-1, 4])
    verdict = judged(original, original)
    assert verdict.status == "proved"
    assert len({tuple(sizes.items()) for sizes in verdict.sizes}) > 1


def test_an_impossible_size_is_a_reason_not_a_crash() -> None:
    original = unary("Tanh", [1 << 40])
    verdict = judged(original, original)
    assert verdict.status == "not proved" and "x" in verdict.reason


def test_strings_bools_and_sequences_are_drawn() -> None:
    words = model(
        [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER")],
        [info("x", [3], STRING)],
        [info("y", [3], STRING)],
    )
    truths = model([node("Not", ["x"], ["y"])], [info("x", ["n", 9], BOOL)], [info("y", ["n", 9], BOOL)])
    many = onnx.helper.make_tensor_sequence_value_info("x", 1, ["n", 2])
    sequences = model([node("ConcatFromSequence", ["x"], ["y"], axis=0)], [many], [info("y", [None, 2])])
    for original in (words, truths, sequences):
        assert judged(original, original).status == "proved"


def test_the_trip_count_of_a_loop_is_small() -> None:
    nodes = [node("Identity", ["c"], ["c2"]), node("Mul", ["v", "v"], ["v2"])]
    body = onnx.helper.make_graph(
        nodes,
        "body",
        [info("i", [], INT64), info("c", [], BOOL), info("v", ["n"])],
        [info("c2", [], BOOL), info("v2", ["n"])],
    )
    inputs = [info("m", [], INT64), info("x", ["n"])]
    original = model([node("Loop", ["m", "", "x"], ["y"], body=body)], inputs, [info("y", ["n"])])
    assert judged(original, original).status == "proved"


# -- decisions ---------------------------------------------------------------------------------


def best(*, op: str = "ArgMax", scaled_last: bool = False, sign: float = 1.0) -> onnx.ModelProto:
    """Return a model of the index of the largest of nearly equal numbers, which depends on rounding."""
    if scaled_last:
        nodes = [node("Add", ["x", "large"], ["s"]), node("Mul", ["s", "tiny"], ["scores"])]
    else:
        nodes = [node("Mul", ["x", "tiny"], ["s"]), node("Add", ["s", "one"], ["scores"])]
    nodes.append(node(op, ["scores"], ["y"], axis=1, keepdims=0))
    weights = {"tiny": np.float32(sign * 1e-7), "one": np.float32(1), "large": np.float32(1e7)}
    return model(nodes, [info("x", ["n", 64])], [info("y", ["n"], INT64)], weights)


def test_different_tie_breaking_is_judged_at_the_compared_numbers() -> None:
    verdict = judged(best(), best(scaled_last=True))
    assert verdict.status == "proved"
    assert "'y' depends on decisions" in " ".join(verdict.notes)
    assert judged(best(), best(scaled_last=True), exact=True).status == "different"


def test_a_different_decision_on_equal_numbers_is_different() -> None:
    assert judged(best(), best(op="ArgMin")).status == "different"


def test_different_compared_numbers_are_different() -> None:
    assert judged(best(scaled_last=True), best(scaled_last=True, sign=-1.0)).status == "different"


# -- parts -------------------------------------------------------------------------------------


def around(before: str, after: str, *, level: float = 0.5) -> onnx.ModelProto:
    """A vendor's operator between two standard ones."""
    nodes = [
        node(before, ["x"], ["a"]),
        node("Sharpen", ["a"], ["b"], domain="vendor", name="sharpen", level=level),
        node(after, ["b"], ["y"]),
    ]
    return model(nodes, [info("x", ["n", 4])], [info("y", ["n", 4])], domains=["vendor"])


def test_a_model_around_an_unknown_operator_is_proved_by_parts() -> None:
    verdict = judged(around("Tanh", "Neg"), around("Tanh", "Neg"), exact=True)
    assert verdict.status == "proved by parts"
    assert verdict.samples == 3
    assert "sharpen (vendor::Sharpen)" in " ".join(verdict.notes)


@pytest.mark.parametrize(
    "candidate", [around("Sigmoid", "Neg"), around("Tanh", "Abs"), around("Tanh", "Neg", level=0.6)]
)
def test_a_fault_in_any_part_is_found(candidate: onnx.ModelProto) -> None:
    assert judged(around("Tanh", "Neg"), candidate).status == "different"


def test_an_unknown_operator_left_out_is_different() -> None:
    verdict = judged(around("Tanh", "Neg"), unary("Tanh"))
    assert verdict.status == "different" and "sharpen" in verdict.reason


def test_an_unknown_operator_in_a_body_proves_nothing() -> None:
    then = onnx.helper.make_graph([node("Sharpen", ["x"], ["t"], domain="vendor")], "t", [], [info("t", ["n"])])
    other = onnx.helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [info("e", ["n"])])
    nodes = [node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other)]
    original = model(nodes, [info("c", [], BOOL), info("x", ["n"])], [info("y", ["n"])], domains=["vendor"])
    verdict = judged(original, original)
    assert verdict.status == "not proved" and "if" in verdict.reason


def test_answers_to_sizes_that_the_model_refuses_do_not_count() -> None:
    """ONNX Runtime joins one column to none, and leaves half of the result unwritten."""
    original, candidate = (
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[4, n] x) => (float[8, m] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] end = {{9999}},
         int64[3] pairs = {{4, -1, 2}}, int64[2] rows = {{8, -1}}> {{ {body} }}""")
        for body in (
            "a = Slice(x, zero, end, one, two)  b = Slice(x, one, end, one, two)  y = Concat<axis = 0>(a, b)",
            "p = Reshape(x, pairs)  t = Transpose<perm = [2, 0, 1]>(p)  y = Reshape(t, rows)",
        )
    )
    verdict = judged(original, candidate)
    assert verdict.status == "proved" and verdict.samples >= 1
    assert all(sizes["n"] % 2 == 0 for sizes in verdict.sizes)
    assert any("not counted" in note and "Concat" in note for note in verdict.notes)


def test_squares_are_tried_where_a_layer_reads_all_positions() -> None:
    nodes = [node("Flatten", ["x"], ["f"]), node("Gemm", ["f", "w"], ["y"])]
    weights = {"w": np.ones((64 * 64, 3), np.float32)}
    flat = model(nodes, [info("x", ["n", 1, "h", "w_"])], [info("y", ["n", 3])], weights)
    verdict = judged(flat, flat, exact=True)
    assert verdict.status == "proved"
    assert {(sizes["h"], sizes["w_"]) for sizes in verdict.sizes} >= {(64, 64)}
