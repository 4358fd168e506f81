from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx.errors import OptionError, ShapeError
from sardonyx.model import to_proto
from sardonyx.rewrite.evaluate import evaluate

FIRST = """<ir_version: 8, opset_import: ["": 17]>
first (float[N, 2] x) => (float[N, 2] h, float[N, 2] side)
<float[2] w = {1.0, 2.0}> { [n] t = Add(x, w) h = Relu(t) side = Neg(t) }"""

SECOND = """<ir_version: 8, opset_import: ["": 17]>
second (float[M, 2] h) => (float[M, 2] y)
<float[2] w = {10.0, 20.0}> { [n] t = Mul(h, w) y = Identity(t) }"""

W = np.array([1.0, 2.0], np.float32)
X = np.array([[-5.0, 1.0], [2.0, 3.0]], np.float32)


def model(text: str) -> ir.Model:
    return sardonyx.load(onnx.parser.parse_model(text))


def run(joined: ir.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    proto = to_proto(joined)
    onnx.checker.check_model(proto, full_check=True)
    return evaluate(proto, feeds)


def test_equal_names_are_linked() -> None:
    joined = sardonyx.merge([model(FIRST), model(SECOND)])
    got = run(joined, x=X)
    np.testing.assert_array_equal(got["y"], np.maximum(X + W, 0) * [10, 20])
    np.testing.assert_array_equal(got["side"], -(X + W))
    assert [value.name for value in joined.graph.outputs] == ["side", "y"]


def test_clashing_inner_names_are_renamed() -> None:
    joined = sardonyx.merge([model(FIRST), model(SECOND)])
    names = [node.name for node in joined.graph if node.name]
    assert len(set(names)) == len(names) == 2
    assert len(joined.graph.initializers) == 2


def test_named_links_are_used() -> None:
    second = SECOND.replace("float[M, 2] h)", "float[M, 2] g)").replace("Mul(h,", "Mul(g,")
    got = run(sardonyx.merge([model(FIRST), model(second)], {"side": "g"}), x=X)
    np.testing.assert_array_equal(got["y"], -(X + W) * [10, 20])
    assert set(got) == {"h", "y"}


def test_without_equal_names_outputs_are_linked_in_order() -> None:
    one = FIRST.replace(", float[N, 2] side)", ")").replace("side = Neg(t)", "")
    other = SECOND.replace("h)", "g)", 1).replace("Mul(h,", "Mul(g,")
    np.testing.assert_array_equal(
        run(sardonyx.merge([model(one), model(other)]), x=X)["y"], np.maximum(X + W, 0) * [10, 20]
    )


def test_three_models_are_merged() -> None:
    third = '<ir_version: 8, opset_import: ["": 17]> third (float[K, 2] y) => (float[K, 2] z) { z = Exp(y) }'
    got = run(sardonyx.merge([model(FIRST), model(SECOND), model(third)]), x=X)
    assert set(got) == {"side", "z"}


def test_linked_sizes_are_unified() -> None:
    joined = sardonyx.merge([model(FIRST), model(SECOND)])
    assert {str(value.shape) for value in joined.graph.outputs} == {"[N,2]"}


def test_unrelated_sizes_of_one_name_stay_distinct() -> None:
    second = SECOND.replace("(float[M, 2] h)", "(float[M, 2] h, float[N, 7] extra)").replace(
        "y)", "y, float[N, 7] more)", 1
    )
    second = second.replace("y = Identity(t)", "y = Identity(t) more = Abs(extra)")
    joined = sardonyx.merge([model(FIRST), model(second)])
    extra = next(value for value in joined.graph.inputs if value.name == "extra")
    assert str(extra.shape) == "[N_1,7]"
    got = run(joined, x=X, extra=np.ones((5, 7), np.float32))
    assert got["more"].shape == (5, 7)


def test_operator_sets_are_raised_to_the_newest() -> None:
    old = FIRST.replace('"": 17', '"": 11')
    joined = sardonyx.merge([model(old), model(SECOND)])
    assert joined.graph.opset_imports[""] == 17
    np.testing.assert_array_equal(run(joined, x=X)["y"], np.maximum(X + W, 0) * [10, 20])


def test_different_functions_of_one_name_stay_distinct() -> None:
    def with_function(text: str, body: str) -> ir.Model:
        text = (
            text.replace('"": 17]', '"": 17, "local": 1]')
            .replace("Relu(t)", "local.f(t)")
            .replace("Identity(t)", "local.f(t)")
        )
        return model(f'{text} <opset_import: ["": 17], domain: "local"> f (a) => (b) {{ b = {body}(a) }}')

    joined = sardonyx.merge([with_function(FIRST, "Abs"), with_function(SECOND, "Neg")])
    assert len(joined.functions) == 2
    np.testing.assert_array_equal(run(joined, x=X)["y"], -(np.abs(X + W) * [10, 20]))


def test_an_output_may_have_the_name_of_an_inner_tensor() -> None:
    second = (
        SECOND.replace("=> (float[M, 2] y)", "=> (float[M, 2] t)")
        .replace("t = Mul", "u = Mul")
        .replace("y = Identity(t)", "t = Identity(u)")
    )
    got = run(sardonyx.merge([model(FIRST), model(second)]), x=X)
    np.testing.assert_array_equal(got["t"], np.maximum(X + W, 0) * [10, 20])


def test_the_originals_are_unchanged() -> None:
    models = [model(FIRST), model(SECOND)]
    before = [to_proto(original) for original in models]
    sardonyx.merge(models)
    assert [to_proto(original) for original in models] == before


@pytest.mark.parametrize(
    ("change", "links", "error", "message"),
    [
        (("float[M, 2] h", "float[M, 3] h"), None, ShapeError, "h=h"),
        (("float[M, 2] h", "double[M, 2] h"), None, ShapeError, "h=h"),
        (("float[M, 2] y", "float[M, 2] side"), None, OptionError, "side"),
        (("float[M, 2] h", "float[M, 2] z"), None, OptionError, "no name in common"),
        (("", ""), {"nowhere": "h"}, OptionError, "unknown output 'nowhere'.* Choose among h, side"),
        (("", ""), {"h": "h", "side": "b"}, OptionError, "unknown input 'b'.* Choose among h"),
        (("", ""), {"h": "h", "side": "h"}, OptionError, "linked twice"),
    ],
)
def test_refusals(change: tuple[str, str], links: dict[str, str] | None, error: type[Exception], message: str) -> None:
    text = SECOND.replace(*change)
    if change[1].endswith("z"):
        text = text.replace("Mul(h, w)", "Mul(z, w)")
    if change[1].endswith("side"):
        text = text.replace("y = Identity", "side = Identity")
    with pytest.raises(error, match=message):
        sardonyx.merge([model(FIRST), model(text)], links)


def test_one_model_is_refused() -> None:
    with pytest.raises(OptionError):
        sardonyx.merge([model(FIRST)])


def test_an_input_that_is_an_output_keeps_its_name() -> None:
    through = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] h) => (float[N, 2] h) {}'
    joined = sardonyx.merge([model(FIRST), sardonyx.rename(model(through), {"h": "same"})], {"h": "same"})
    got = run(joined, x=X)
    np.testing.assert_array_equal(got["same"], np.maximum(X + W, 0))


def test_links_between_models_that_are_not_adjacent_are_refused() -> None:
    third = (
        SECOND.replace("float[M, 2] h", "float[M, 2] y").replace("Mul(h", "Mul(y").replace("[M, 2] y)\n", "[M, 2] z)\n")
    )
    third = third.replace("y = Identity", "z = Identity")
    with pytest.raises(OptionError, match="y=h"):
        sardonyx.merge([model(FIRST), model(SECOND), model(third)], {"h": "h", "side": "y", "y": "h"})


CALLER = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
{name} (float[N, 2] {x}) => (float[N, 2] {y}) {{ {y} = local.f({x}) }}
<opset_import: ["": 17, "local": 1], domain: "local"> f (a) => (b) {{ c = local.g(a) b = Neg(c) }}
<opset_import: ["": 17], domain: "local"> g (a) => (b) {{ b = Exp(a) }}"""


def test_identical_functions_are_shared() -> None:
    texts = [CALLER.format(name=name, x=x, y=y) for name, x, y in (("p", "x", "h"), ("q", "h", "y"))]
    joined = sardonyx.merge([model(text) for text in texts])
    assert len(joined.functions) == 2
    np.testing.assert_allclose(run(joined, x=X)["y"], -np.exp(-np.exp(X)), rtol=1e-6)


def test_functions_with_different_callees_stay_distinct() -> None:
    first, second = (CALLER.format(name=name, x=x, y=y) for name, x, y in (("p", "x", "h"), ("q", "h", "y")))
    joined = sardonyx.merge([model(first), model(second.replace("Exp", "Sin"))])
    assert len(joined.functions) == 4
    np.testing.assert_allclose(run(joined, x=X)["y"], -np.sin(-np.exp(X)), rtol=1e-6)


def test_the_version_of_a_domain_of_functions_is_relabelled() -> None:
    first, second = (CALLER.format(name=name, x=x, y=y) for name, x, y in (("p", "x", "h"), ("q", "h", "y")))
    joined = sardonyx.merge([model(first), model(second.replace('"local": 1', '"local": 3'))])
    assert joined.graph.opset_imports["local"] == 3
    np.testing.assert_allclose(run(joined, x=X)["y"], -np.exp(-np.exp(X)), rtol=1e-6)


def test_versions_of_a_domain_without_converter_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "mine": {version}]>
    g (float[N] {x}) => (float[N] {y}) {{ {y} = mine.Op({x}) }}"""
    models = [model(text.format(version=v, x=x, y=y)) for v, x, y in ((1, "x", "h"), (2, "h", "y"))]
    with pytest.raises(OptionError, match=r"versions 1 and 2 of the domain mine, .* Op"):
        sardonyx.merge(models)


def test_a_size_fixed_by_the_next_model_is_fixed() -> None:
    joined = sardonyx.merge([model(FIRST), model(SECOND.replace("[M", "[3"))])
    assert [str(value.shape) for value in (*joined.graph.inputs, *joined.graph.outputs)] == ["[3,2]"] * 3
