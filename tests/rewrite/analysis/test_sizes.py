"""Shape arithmetic as expressions agrees with execution."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sardonyx import model as model_io
from sardonyx.core import dim as algebra
from sardonyx.core.dim import product
from sardonyx.rewrite import evaluate
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.analysis.sizes import Sizes, at_least, equal, inferred_size, parsed
from tests.random_cases import cases
from tests.rewrite.models import INT64, info, model, node

BINARY = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")
COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


@st.composite
def arithmetic(draw: st.DrawFn) -> onnx.ModelProto:
    """A graph of integer vectors made of the shape of ``x``, every one of them an output."""
    nodes = [node("Shape", ["x"], ["s"])]
    lengths = {"s": 3}
    weights = {f"c{k}": np.array([k]) for k in (0, 1, 2, 3, 5)}
    weights.update({f"i{k}": np.array([k]) for k in (0, 4)})
    for step in range(draw(st.integers(1, 7))):
        name, first = f"t{step}", draw(st.sampled_from(sorted(lengths)))
        kind = draw(st.sampled_from(["gather", "slice", "concat", "binary", "constant", "compare", "prod", "sum"]))
        if kind == "gather":
            weights[f"g{step}"] = np.array(
                draw(st.lists(st.integers(-lengths[first], lengths[first] - 1), min_size=1, max_size=3))
            )
            nodes.append(node("Gather", [first, f"g{step}"], [name]))
            lengths[name] = len(weights[f"g{step}"])
        elif kind == "slice":
            nodes.append(node("Slice", [first, "i0", f"c{draw(st.sampled_from([1, 2]))}"], [name]))
            lengths[name] = min(lengths[first], int(nodes[-1].input[2][1:]))
        elif kind == "concat":
            second = draw(st.sampled_from(sorted(lengths)))
            nodes.append(node("Concat", [first, second], [name], axis=0))
            lengths[name] = lengths[first] + lengths[second]
        elif kind == "binary":
            fitting = [n for n in sorted(lengths) if lengths[n] in (1, lengths[first])]
            nodes.append(node(draw(st.sampled_from(BINARY)), [first, draw(st.sampled_from(fitting))], [name]))
            lengths[name] = lengths[first]
        elif kind == "constant":
            operator = draw(st.sampled_from(BINARY))
            nodes.append(node(operator, [first, f"c{draw(st.sampled_from([1, 2, 3, 5]))}"], [name]))
            lengths[name] = lengths[first]
        elif kind == "compare":
            second = draw(st.sampled_from(["c0", "c1", "c2", *(n for n in sorted(lengths) if lengths[n] == 1)]))
            nodes.append(node(draw(st.sampled_from(COMPARISONS)), [first, second], [f"{name}_holds"]))
            nodes.append(node("Cast", [f"{name}_holds"], [name], to=INT64))
            lengths[name] = lengths[first]
        else:
            nodes.append(node("ReduceProd" if kind == "prod" else "ReduceSum", [first], [name], keepdims=1))
            lengths[name] = 1
    outputs = [info(name, [length], INT64) for name, length in lengths.items()]
    return model(nodes, [info("x", ["a", "b", 4])], outputs, weights)


@settings(max_examples=cases(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(arithmetic(), st.integers(0, 9), st.integers(0, 9))
def test_expressions_agree_with_execution(proto: onnx.ModelProto, a: int, b: int) -> None:
    try:
        actual = evaluate.evaluate(proto, {"x": np.zeros((a, b, 4), np.float32)})
    except evaluate.EvaluationError:
        return
    loaded = model_io.from_proto(proto)
    inference.infer_shapes(loaded)
    sizes = Sizes(18)
    known = 0
    for value in loaded.graph.outputs:
        elements = sizes.elements(value)
        if elements is None:
            continue
        known += 1
        assert [algebra.evaluate(e, {"a": a, "b": b}) for e in elements[1]] == actual[str(value.name)].tolist()
    assert known


def test_a_chain_of_shape_arithmetic_is_one_expression() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Div", ["n", "two"], ["half"]),
        node("Unsqueeze", ["half", "zero"], ["v"]),
        node("Concat", ["v", "v"], ["y"], axis=0),
    ]
    weights = {"one": np.array(1), "two": np.array(2), "zero": np.array([0])}
    loaded = model_io.from_proto(model(nodes, [info("x", ["n", "w"])], [info("y", [2], INT64)], weights))
    inference.infer_shapes(loaded)
    half = parsed("w//2")
    assert Sizes(18).elements(loaded.graph.outputs[0]) == (1, (half, half))


def test_sizes_of_generated_names_are_inferred_again() -> None:
    nodes = [node("NonZero", ["x"], ["t"]), node("Shape", ["t"], ["s"])]
    loaded = model_io.from_proto(model(nodes, [info("x", [4])], [info("s", [2], INT64)]))
    value = loaded.graph.node(0).outputs[0]
    value.shape = ir.Shape([1, "unk__0"])
    sizes = Sizes(18)
    shape = loaded.graph.outputs[0]
    assert sizes.elements(shape) == (1, (1, parsed("unk__0")))
    value.shape = ir.Shape([1, 24])
    sizes.forget_unknown()
    assert sizes.elements(shape) == (1, (1, 24))


@pytest.mark.parametrize(
    ("a", "b", "known"),
    [("n", "n", True), ("n+1", "n", True), ("n", "m", None), ("n", "n+1", False), ("2*n", "n", True), ("n", "1", None)],
)
def test_at_least_holds_for_all_sizes_from_zero_on(a: str, b: str, known: bool | None) -> None:
    assert at_least(parsed(a), parsed(b)) is known


def test_products_and_quotients_cancel() -> None:
    n, m = parsed("n"), parsed("m")
    assert inferred_size(product([n, m, 4]), product([m, 2])) == parsed("2*n")
    assert inferred_size(n, product([m, 0])) is None
    assert equal(product([n, m]), product([m, n])) is True
