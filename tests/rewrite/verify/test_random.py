"""Proofs of models that draw random numbers: equal seeds in both models, and distinct ones of distinct nodes."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from sardonyx import model as model_io
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.verify import Verdict, Verifier
from sardonyx.rewrite.verify.random_nodes import number_random_nodes, random_nodes, seeded

DRAWS = {
    "Dropout": "r = Dropout (a, ratio, training)",
    "RandomNormalLike": "r = RandomNormalLike (a)",
    "RandomUniformLike": "r = RandomUniformLike <low: float = -1.0> (a)",
    "RandomNormal": "r = RandomNormal <shape: ints = [4, 6]> ()",
    "RandomUniform": "r = RandomUniform <shape: ints = [4, 6]> ()",
    "Bernoulli": "p = Sigmoid (a)  r = Bernoulli (p)",
}


def random_model(draw: str, *, opset: int = 18) -> onnx.ModelProto:
    """A random node between operators that every run of the optimizer rewrites."""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : {opset}]>
        g (float[4, 6] x) => (float[4, 6] y)
        <float ratio = {{0.4}}, bool training = {{1}}, float one = {{1.0}}, float two = {{2.0}},
         float three = {{3.0}}> {{
            i = Identity (x)
            a = Mul (i, one)
            {draw}
            d = Mul (r, two)
            e = Mul (d, three)
            f = Identity (e)
            y = Add (f, x)
        }}"""
    )


@pytest.mark.parametrize("name", DRAWS)
def test_rewrites_around_random_nodes_are_proved(name: str) -> None:
    report = optimize(random_model(DRAWS[name])).report
    assert report.verdict.status == "proved", report.verdict.reason
    assert not report.dropped
    assert "random nodes have equal seeds in both models" in report.verdict.notes
    assert report.after.nodes <= 4 and report.after.operators[name] == 1


def test_multinomial_is_proved() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[3, 5] x) => (int32[3, 40] y) {
            i = Identity (x)
            m = Multinomial <sample_size: int = 40> (i)
            y = Identity (m)
        }"""
    )
    report = optimize(model).report
    assert (report.verdict.status, report.after.operators) == ("proved", {"Multinomial": 1})


def test_a_dropout_at_the_end_that_takes_the_output_name_is_proved() -> None:
    """The random node has another output name in the result, and no name of its own."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[8, 8] x, bool training) => (float[8, 8] y) <float ratio = {0.5}> {
            a = Dropout (x, ratio, training)
            b = Dropout (x, ratio, training)
            s = Sub (a, b)
            y = Identity (s)
        }"""
    )
    report = optimize(model).report
    assert report.verdict.status == "proved" and report.after.operators == {"Dropout": 2, "Sub": 1}


def test_random_nodes_in_bodies_and_functions_are_proved() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
        g (float[4, 6] x, bool c) => (float[4, 6] y) {
            i = Identity (x)
            y = If (c) <
                then_branch = t () => (float[4, 6] u) { h = own.noisy (i)  u = Identity (h) },
                else_branch = e () => (float[4, 6] v) { n = RandomNormalLike (i)  m = Identity (n)  v = Add (m, i) }
            >
        }
        <domain: "own", opset_import: ["" : 18]>
        noisy (z) => (w) { q = RandomUniformLike (z)  k = Identity (q)  w = Add (k, z) }"""
    )
    report = optimize(model).report
    assert report.verdict.status == "proved", report.verdict.reason
    assert report.after.nodes < report.before.nodes and not report.dropped


def test_the_result_has_no_seed_and_the_names_of_the_original() -> None:
    source = random_model(DRAWS["Dropout"])
    source.graph.node[2].name = "mine"
    result = optimize(source).proto
    (dropout,) = [node for node in result.graph.node if node.op_type == "Dropout"]
    assert (dropout.name, [a.name for a in dropout.attribute]) == ("mine", [])


def judged(original: onnx.ModelProto, candidate: onnx.ModelProto) -> Verdict:
    with Verifier(model_io.from_proto(original)) as verifier:
        return verifier.judge(model_io.from_proto(candidate), exact=True)


@pytest.mark.parametrize("name", DRAWS)
def test_a_changed_model_is_different(name: str) -> None:
    changed = random_model(DRAWS[name])
    changed.graph.initializer[3].float_data[:] = [2.5]
    assert judged(random_model(DRAWS[name]), random_model(DRAWS[name])).status == "proved"
    assert judged(random_model(DRAWS[name]), changed).status == "different"


def test_merged_random_nodes_are_different() -> None:
    def two(first: str, second: str) -> onnx.ModelProto:
        return parser.parse_model(
            f"""<ir_version: 9, opset_import: ["" : 18]>
            g (float[8, 8] x) => (float[8, 8] y) {{
                a = RandomNormalLike (x)
                b = RandomNormalLike (x)
                y = Add ({first}, {second})
            }}"""
        )

    assert judged(two("a", "b"), two("a", "b")).status == "proved"
    assert judged(two("a", "b"), two("a", "a")).status == "different"


def test_a_seed_of_the_model_is_kept() -> None:
    own = random_model("r = RandomNormalLike <seed: float = 5.0> (a)")
    other = random_model("r = RandomNormalLike <seed: float = 6.0> (a)")
    assert judged(own, own).status == "proved"
    assert judged(own, other).status == "different"


def test_a_dropout_by_attribute_is_numbered_and_proved() -> None:
    """Operator sets below 7, which ONNX Runtime does not run: the reference draws by the node's name."""
    model = parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 6]>
        g (float[8, 8] x) => (float[8, 8] y) { i = Identity (x)  d = Dropout (i)  y = Identity (d) }"""
    )
    report = optimize(model).report
    assert (report.verdict.status, report.after.operators) == ("proved", {"Dropout": 1})


def test_a_dropout_outside_of_training_is_not_random() -> None:
    model = model_io.from_proto(random_model("r = Dropout (a, ratio)"))
    assert random_nodes(model) == []
    with seeded(model) as is_random:
        assert not is_random


def test_numbers_follow_copies() -> None:
    model = model_io.from_proto(random_model(DRAWS["RandomNormal"]))
    number_random_nodes(model)
    copy = model.clone()
    with seeded(model), seeded(copy):
        (mine,), (its,) = random_nodes(model), random_nodes(copy)
        assert mine.name == its.name
        assert mine.attributes["seed"].value == its.attributes["seed"].value
    assert "seed" not in mine.attributes
