"""The rule language: what patterns match, what they bind, and why a near match is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import model as model_io
from sardonyx.errors import RuleError
from sardonyx.rewrite.engine import Engine
from sardonyx.rewrite.language import EXACT, REGISTRY, A, AnyOf, Op, Rank, Rewrite, Rule, Scalar, V
from tests.rewrite.models import info, model, node

Add, Mul, Sub, Neg, Tanh, Softmax, Clip = (
    Op((name,)) for name in ("Add", "Mul", "Sub", "Neg", "Tanh", "Softmax", "Clip")
)

RANK_4, ONE_NUMBER = Rank(4), Scalar()


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
    def found(x: V) -> Rewrite:
        "Tanh(x) + 2."
        return Add(Tanh(x), 2) >> Neg(x)

    return found


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
    assert refused == {("last_axis", "y"): "Softmax has axis=0, and -1 is needed"}


def test_attribute_variables_carry_what_was_written() -> None:
    @sardonyx.rule("carried", exactness=EXACT)
    def carried(x: V, axis: A) -> Rewrite:
        "Softmax as LogSoftmax, along the same axis."
        return Softmax(x, axis=axis) >> Op(("LogSoftmax",))(x, axis=axis)

    engine = fired(graph(node("Softmax", ["x"], ["y"], axis=0)), carried)
    assert [n.attributes["axis"].value for n in engine.model.graph] == [0]


def test_guards_refuse_with_what_is_wanted() -> None:
    @sardonyx.rule("guarded", exactness=EXACT)
    def guarded(x: V = RANK_4, k: V = ONE_NUMBER) -> Rewrite:
        "x * k of rank 4."
        return Mul(x, k) >> Neg(x)

    refused = fired(graph(node("Mul", ["x", "k"], ["y"]), k=np.float32(2)), guarded).refused
    assert refused["guarded", "y"] in ("x is not rank 4", "k is not a constant of one element")


def test_rules_written_wrongly_are_refused_where_they_are_defined() -> None:
    with pytest.raises(RuleError, match="docstring"):

        @sardonyx.rule("silent", exactness=EXACT)
        def silent(x: V) -> Rewrite:
            return Neg(x) >> Tanh(x)

    with pytest.raises(RuleError, match="no guard"):

        @sardonyx.rule("default", exactness=EXACT)
        def default(x: V = 3) -> Rewrite:  # type: ignore[assignment]
            "A default that is no guard."
            return Neg(x) >> Tanh(x)

    with pytest.raises(RuleError, match="replacement"):

        @sardonyx.rule("half", exactness=EXACT)
        def half(x: V) -> Rewrite:
            "No replacement."
            return Neg(x)  # type: ignore[return-value]
