"""The rule language: what patterns match, what they bind, and why a near match is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import model as model_io
from sardonyx.errors import RuleError
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.language import (
    EXACT,
    REGISTRY,
    A,
    AnyOf,
    C,
    Maybe,
    Op,
    Rewrite,
    Rule,
    V,
    number,
    rank,
    unshared,
    where,
)
from tests.rewrite.models import info, model, node

Add, Mul, Sub, Neg, Tanh, Softmax, Clip = (
    Op((name,)) for name in ("Add", "Mul", "Sub", "Neg", "Tanh", "Softmax", "Clip")
)


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    before = {name: list(rules) for name, rules in REGISTRY.items()}
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def fired(proto: onnx.ModelProto, rule: Rule) -> Engine:
    engine = Engine(model_io.from_proto(proto))
    engine.run([rule])
    return engine


def graph(*nodes: onnx.NodeProto, **weights: object) -> onnx.ModelProto:
    return model(nodes, [info("x", [2, 3]), info("z", [2, 3])], [info("y", None)], weights)


def plus_two() -> Rule:
    @sardonyx.rule("plus_two", exactness=EXACT)
    def actual(x: V) -> Rewrite:
        "Tanh(x) + 2."
        return Add(Tanh(x), 2) >> Neg(x)

    return actual


@pytest.mark.parametrize("operands", [["t", "two"], ["two", "t"]])
def test_commutative_operators_match_both_ways(operands: list[str]) -> None:
    proto = graph(node("Tanh", ["x"], ["t"]), node("Add", operands, ["y"]), two=np.float32(2))
    assert len(fired(proto, plus_two()).applied) == 1


def test_other_operators_match_one_way() -> None:
    @sardonyx.rule("minus", exactness=EXACT)
    def minus(x: V) -> Rewrite:
        "Tanh(x) - 2."
        return Sub(Tanh(x), 2) >> Neg(x)

    proto = graph(node("Tanh", ["x"], ["t"]), node("Sub", ["two", "t"], ["y"]), two=np.float32(2))
    assert fired(proto, minus).applied == []


@pytest.mark.parametrize(("number", "matches"), [(2, 1), (3, 0), (2.0001, 0)])
def test_numbers_match_constants_of_one_element(number: float, matches: int) -> None:
    proto = graph(node("Tanh", ["x"], ["t"]), node("Add", ["t", "k"], ["y"]), k=np.array([[number]], np.float32))
    assert len(fired(proto, plus_two()).applied) == matches


def test_a_number_is_meant_as_its_type_holds_it() -> None:
    @sardonyx.rule("tenth", exactness=EXACT)
    def tenth(x: V) -> Rewrite:
        "x * 0.1."
        return Mul(x, 0.1) >> Neg(x)

    assert len(fired(graph(node("Mul", ["x", "k"], ["y"]), k=np.float32(0.1)), tenth).applied) == 1


def test_a_repeated_variable_is_the_same_value() -> None:
    @sardonyx.rule("twice", exactness=EXACT)
    def twice(x: V) -> Rewrite:
        "x + x."
        return Add(x, x) >> Neg(x)

    assert len(fired(graph(node("Add", ["x", "x"], ["y"])), twice).applied) == 1
    assert fired(graph(node("Add", ["x", "z"], ["y"])), twice).applied == []


def test_once_refuses_other_readers_and_says_so() -> None:
    @sardonyx.rule("alone", exactness=EXACT)
    def alone(x: V, z: V) -> Rewrite:
        "Tanh(x) * z, where nothing else reads the Tanh."
        return Mul(Tanh(x).once, z) >> Neg(x)

    shared = graph(node("Tanh", ["x"], ["t"]), node("Mul", ["t", "z"], ["m"]), node("Add", ["m", "t"], ["y"]))
    assert fired(shared, alone).refused == {("alone", "m"): "Tanh 't' has other readers"}


def test_any_of_matches_each_operator() -> None:
    @sardonyx.rule("either", exactness=EXACT)
    def either(x: V) -> Rewrite:
        "Abs or Sign."
        return AnyOf("Abs", "Sign")(x) >> Neg(x)

    assert either.roots == {"Abs", "Sign"}
    assert len(fired(graph(node("Abs", ["x"], ["a"]), node("Sign", ["a"], ["y"])), either).applied) == 2


def test_an_ellipsis_stands_for_any_further_operands() -> None:
    @sardonyx.rule("clips", exactness=EXACT)
    def clips(x: V) -> Rewrite:
        "Clip with whatever bounds."
        return Clip(x, ...) >> Neg(x)

    @sardonyx.rule("bare", exactness=EXACT)
    def bare(x: V) -> Rewrite:
        "Clip without bounds."
        return Clip(x) >> Neg(x)

    bounded = graph(node("Clip", ["x", "k"], ["y"]), k=np.float32(0))
    assert len(fired(bounded, clips).applied) == 1
    assert fired(bounded, bare).applied == []


def test_attributes_left_out_have_the_schemas_default() -> None:
    @sardonyx.rule("last_axis", exactness=EXACT)
    def last_axis(x: V) -> Rewrite:
        "Softmax along the last axis."
        return Softmax(x, axis=-1) >> Neg(x)

    assert len(fired(graph(node("Softmax", ["x"], ["y"])), last_axis).applied) == 1
    refused = fired(graph(node("Softmax", ["x"], ["y"], axis=0)), last_axis).refused
    assert refused == {("last_axis", "y"): "Softmax has axis=0, expected -1"}


def test_attribute_variables_carry_what_was_written() -> None:
    @sardonyx.rule("carried", exactness=EXACT)
    def carried(x: V, axis: A) -> Rewrite:
        "Softmax as LogSoftmax, along the same axis."
        return Softmax(x, axis=axis) >> Op(("LogSoftmax",))(x, axis=axis)

    engine = fired(graph(node("Softmax", ["x"], ["y"], axis=0)), carried)
    assert [n.attributes["axis"].value for n in engine.model.graph] == [0]


def test_arithmetic_on_variables_and_patterns_is_the_operator() -> None:
    x, y = V("x"), V("y")
    terms = {
        "Add(x, y)": x + y,
        "Add(1, x)": 1 + x,
        "Sub(Tanh(x), y)": Tanh(x) - y,
        "Sub(1, x)": 1 - x,
        "Mul(x, Neg(y))": x * -y,
        "Mul(0.5, x)": 0.5 * x,
        "Div(x, y)": x / y,
        "Div(1, x)": 1 / x,
        "Add(MatMul(x, y), x)": x @ y + x,
        "Pow(x, 2)": x**2,
        "Pow(2, x)": 2**x,
    }
    assert {text: repr(term) for text, term in terms.items()} == {text: text for text in terms}


def guarded() -> Rule:
    @sardonyx.rule("guarded", exactness=EXACT)
    def actual(x: V, k: C) -> Rewrite:
        "x * k of rank 4, for one number k."
        return x * k >> Neg(x) | where(rank(x) == 4, number(k) > 0)

    return actual


@pytest.mark.parametrize(
    ("shape", "k", "reason"),
    [
        ([1, 2, 3, 4], 2, None),
        ([2, 3], 2, "rank(x) is 2, expected == 4"),
        ([1, 2, 3, 4], [2, 3, 4, 5], "number(k) is unknown, expected > 0"),
        ([1, 2, 3, 4], -2, "number(k) is -2.0, expected > 0"),
    ],
)
@pytest.mark.parametrize("operands", [["x", "k"], ["k", "x"]])
def test_guards_refuse_with_what_they_expect(
    shape: list[int], k: object, reason: str | None, operands: list[str]
) -> None:
    proto = model([node("Mul", operands, ["y"])], [info("x", shape)], [info("y", None)], {"k": np.float32(k)})
    engine = fired(proto, guarded())
    assert len(engine.applied) == (reason is None)
    assert engine.refused == ({} if reason is None else {("guarded/actual", "y"): reason})


def test_a_constant_variable_matches_constants_only() -> None:
    assert fired(graph(node("Mul", ["x", "z"], ["y"])), guarded()).refused == {}
    assert frozenset({"Constant"}) in guarded().after


def test_an_optional_operand_may_be_absent() -> None:
    @sardonyx.rule("bounded", exactness=EXACT)
    def bounded(x: V, low: Maybe, high: Maybe) -> Rewrite:
        "Clip with its bounds exchanged."
        return Tanh(Clip(x, low, high)) >> Clip(x, high, low)

    proto = graph(node("Clip", ["x", "k"], ["c"]), node("Tanh", ["c"], ["y"]), k=np.float32(0))
    (clip,) = fired(proto, bounded).model.graph
    assert [value and value.name for value in clip.inputs] == ["x", None, "k"]


def test_unshared_permits_readers_within_the_pattern() -> None:
    @sardonyx.rule("square", exactness=EXACT)
    def square(x: V) -> Rewrite:
        "Tanh(x) * Tanh(x)."
        return Tanh(x) * Tanh(x) >> Neg(x) | where(unshared)

    twice = graph(node("Tanh", ["x"], ["t"]), node("Mul", ["t", "t"], ["y"]))
    assert len(fired(twice, square).applied) == 1
    again = graph(node("Tanh", ["x"], ["t"]), node("Mul", ["t", "t"], ["m"]), node("Add", ["m", "t"], ["y"]))
    assert fired(again, square).refused == {("square", "m"): "Tanh 't' has other readers"}


def test_facts_are_operands_and_attributes_of_the_replacement() -> None:
    @sardonyx.rule("sloped", exactness=EXACT)
    def sloped(x: V, k: C) -> Rewrite:
        "x * k as a LeakyRelu of that slope."
        return x * k >> Op(("LeakyRelu",))(x, alpha=number(k))

    (leaky,) = fired(graph(node("Mul", ["x", "k"], ["y"]), k=np.float32(0.5)), sloped).model.graph
    assert leaky.attributes["alpha"].value == 0.5


def test_rules_written_wrongly_are_refused_where_they_are_defined() -> None:
    with pytest.raises(RuleError, match="docstring"):

        @sardonyx.rule("silent", exactness=EXACT)
        def silent(x: V) -> Rewrite:
            return Neg(x) >> Tanh(x)

    with pytest.raises(RuleError, match="annotated V, C, Maybe or A"):

        @sardonyx.rule("default", exactness=EXACT)
        def default(x: V = V()) -> Rewrite:  # noqa: B008
            "A default."
            return Neg(x) >> Tanh(x)

    with pytest.raises(RuleError, match="replacement"):

        @sardonyx.rule("half", exactness=EXACT)
        def half(x: V) -> Rewrite:
            "No replacement."
            return Neg(x)  # type: ignore[return-value]
