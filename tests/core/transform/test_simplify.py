"""Simplification: fewer primitives, the same results with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.gradient_cases import CASES, looped, traced
from tests.core.programs import assert_same, computed, random_array, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import apply
from sardonyx.core.eval.trace import trace
from sardonyx.core.eval.verifier import check
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, functions_of
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.differentiation import gradient
from sardonyx.core.transform.simplifications import SIMPLIFICATIONS, uniform
from sardonyx.core.transform.simplify import simplify

N, M = Dim.symbol("N"), Dim.symbol("M")
X, I, B = TensorType(t.FLOAT, (N, M)), TensorType(t.INT64, (N, M)), TensorType(t.BOOL, (N, M))  # noqa: E741


def primitives(function: Function) -> list[str]:
    return [v.op for v in function.values if v.op not in ("input", "constant")]


def assert_simplified(function: Function, arguments: Sequence[Sequence[np.ndarray]], *, exact: bool = True) -> Function:
    actual = simplify(function, exact=exact)
    check(actual)
    assert simplify(actual, exact=exact) is actual
    for arrays in arguments:
        if exact:
            assert_same(computed(actual, arrays), computed(function, arrays))
        else:
            for a, b in zip(computed(actual, arrays), computed(function, arrays), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)
    return actual


@settings(max_examples=cases(80), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_simplified_program_gives_the_same_bits(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    assert_simplified(program.traced(), program.arrays)


@pytest.mark.parametrize("name", CASES)
def test_simplified_gradients_give_the_same_bits(name: str) -> None:
    function, arrays = CASES[name]
    first = gradient(function)
    actual = assert_simplified(first, [arrays])
    assert len(actual.values) <= len(first.values)


HALF = np.linspace(-2, 2, 6, dtype=np.float32).reshape(3, 2)
SPECIAL = np.array([[0.0, -0.0], [np.nan, np.inf], [-np.inf, 1e-40]], np.float32)


def repeated(x: L.Tensor, *sizes: tuple[int, int]) -> L.Tensor:
    """Broadcast along the last two axes, one time after another."""
    for last in sizes:
        x = L.broadcast_to(x, (*x.shape[:-2], *last))
    return x


# By rule: functions of X (or I, B) and what is left of them.
EXAMPLES: list[tuple[str, TensorType, Callable[[L.Tensor], L.Tensor], list[str]]] = [
    ("of_uniform_operands", X, lambda x: x * L.exp(L.zeros_like(x)), []),
    ("neutral_operand", X, lambda x: x * 1.0 + (-0.0), []),
    ("neutral_operand", B, lambda x: (x & True) | False, []),
    ("neutral_second_operand", X, lambda x: (x - 0.0) / 1.0, []),
    ("integer_times_zero", I, lambda x: x * 0, ["broadcast"]),
    ("operands_that_are_one", X, lambda x: L.maximum(x, x), []),
    ("integer_less_itself", I, lambda x: x - x, ["broadcast"]),
    ("less_than_itself", X, lambda x: x < x, ["broadcast"]),
    ("integer_equal_to_itself", I, lambda x: L.equal(x, x), ["broadcast"]),
    ("sign_of_sign", X, lambda x: apply("neg", -x), []),
    ("again", X, lambda x: L.abs_(L.abs_(-x)), ["abs"]),
    ("known_choice", X, lambda x: L.where(L.full_like(x, 1.0) < 2.0, x, x * 3.0), []),
    ("there_and_back", X, lambda x: L.cast(L.cast(x, t.DOUBLE), t.FLOAT), []),
    ("bits_back", X, lambda x: L.bitcast(L.bitcast(x, t.INT32), t.FLOAT), []),
    ("reduced_over_ones", X, lambda x: apply("reduce", L.unsqueeze(x, [1]), kind="max", axes=(1,)), []),
    ("reshaped_again", X, lambda x: L.reshape(L.reshape(x, (N * M,)), (N, M)), []),
    ("moved_number", X, lambda x: x * L.permute(L.full((M, N), 1.0, t.FLOAT), [1, 0]), []),
    ("permuted_again", X, lambda x: L.permute(L.permute(x, [1, 0]), [1, 0]), []),
    ("broadcast_again", X, lambda x: repeated(L.reshape(x, (N, M, 1, 1)), (2, 1), (2, 3)), ["reshape", "broadcast"]),
    ("whole_or_again", X, lambda x: L.slice_(L.slice_(L.slice_(x, 0, 0, N), 0, 1, N), 0, 1, N - 1), ["slice"]),
    ("nothing_padded", X, lambda x: L.pad(x, [0, 0], [0, 0]), []),
    ("joined", X, lambda x: L.concat([L.concat([x, x], 0), L.slice_(x, 0, 0, 0), x], 0), ["concat"]),
    ("reversed_again", X, lambda x: L.reverse(L.reverse(L.unsqueeze(x, [0]), [0, 1]), [1]), ["reshape"]),
    ("stopped_already", X, lambda x: L.stop_gradient(L.stop_gradient(x)), ["stop_gradient"]),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "type_", "compute", "left"), EXAMPLES, ids=[example[0] for example in EXAMPLES])
def test_a_rule(rule: str, type_: TensorType, compute: Callable[[L.Tensor], L.Tensor], left: list[str]) -> None:
    function = trace("f", lambda x: [compute(x)], [type_])
    arrays = [[HALF], [SPECIAL]] if type_ is X else [[random_array(np.random.default_rng(0), type_, {"N": 3, "M": 2})]]
    assert primitives(assert_simplified(function, arrays)) == left
    assert primitives(function) != left


@pytest.mark.parametrize("elements", [1, 4096, 4097, 10_000])
def test_a_tensor_is_one_number_everywhere_if_its_last_element_is_too(elements: int) -> None:
    array = np.full(elements, np.nan, np.float32)
    actual = uniform(L.constant(array))
    assert actual is not None
    assert np.isnan(actual)
    if elements > 1:
        array[-1] = -array[-1]
        assert uniform(L.constant(array)) is None


def test_every_exact_rule_has_an_example() -> None:
    rules = {item.name for family in SIMPLIFICATIONS.table.values() for item in family if item.exact}
    assert rules - {example[0] for example in EXAMPLES} == {"known_sizes"}


@pytest.mark.parametrize(
    ("compute", "left"),
    [
        (lambda x: x + 0.0, []),
        (lambda x: x * 2.0 * 3.0, ["broadcast", "mul"]),
        (lambda x: 1.0 + (x + 2.0), ["broadcast", "add"]),
        (lambda x: x**2.0, ["mul"]),
    ],
)
def test_rules_that_change_bits_are_asked_for(compute: Callable[[L.Tensor], L.Tensor], left: list[str]) -> None:
    function = trace("f", lambda x: [compute(x)], [X])
    assert primitives(simplify(function)) != left
    assert primitives(assert_simplified(function, [[HALF]], exact=False)) == left


# What calls functions.

ROW, NUMBER, COUNT = TensorType(t.DOUBLE, (N,)), TensorType(t.DOUBLE, ()), TensorType(t.INT64, ())


def test_a_condition_that_becomes_known_takes_its_branch() -> None:
    def f(x: L.Tensor) -> list[Value]:
        known = L.equal(L.reduce_sum(L.cast(x < x, t.INT64) * 0) * 0, 0)
        (y,) = L.cond(known, lambda: [L.concat([x, x], 0)], lambda: [x])
        return [y, L.iota(y.shape, 0)]

    function = trace("f", f, [ROW])
    assert "cond" in primitives(function)
    actual = assert_simplified(function, [[np.arange(3.0)]])
    assert primitives(actual) == ["concat", "iota"]
    assert actual.results[0].type.shape == (2 * N,)


def test_branches_that_are_one_need_no_condition() -> None:
    function = trace("f", lambda c, x: list(L.cond(c < 0, lambda: [x * 1.0], lambda: [x])), [NUMBER, ROW])
    assert primitives(assert_simplified(function, [[np.array(1.0), np.arange(3.0)]])) == []


def test_results_of_conditions_that_nobody_reads_are_not_computed() -> None:
    def f(c: L.Tensor, x: L.Tensor, y: L.Tensor) -> list[Value]:
        return [L.cond(c < 0, lambda: [L.sin(x), L.exp(y)], lambda: [x, L.tanh(y)])[1]]

    actual = assert_simplified(trace("f", f, [NUMBER, ROW, ROW]), [[np.array(-1.0), np.ones(2), np.ones(3)[:2]]])
    cond = next(v for v in actual.values if v.op == "cond")
    assert [len(branch.results) for branch in functions_of(cond)] == [1, 1]
    assert len(cond.operands) == 2


def test_states_and_rows_of_loops_that_nobody_reads_are_not_computed() -> None:
    def f(n: L.Tensor, x: L.Tensor, y: L.Tensor) -> list[Value]:
        def body(i: L.Tensor, a: L.Tensor, b: L.Tensor, c: L.Tensor):
            return None, [a + b, b * 2.0, L.sin(c) + y], [L.cos(c), a]

        return [L.loop(n, None, [x, x * 3.0, y], body)[0][0]]

    actual = assert_simplified(trace("f", f, [COUNT, ROW, ROW]), [[np.int64(3), np.ones(2), np.ones(2)]])
    loop = next(v for v in actual.values if v.op == "loop")
    (body,) = functions_of(loop)
    assert loop.params["carried"] == 2
    assert [v.op for v in body.results][1:] == ["add", "mul"]
    assert len(loop.operands) == 4


def test_what_tells_a_size_that_is_read_stays() -> None:
    def f(n: L.Tensor, x: L.Tensor) -> list[Value]:
        (_,), (rows,) = L.loop(n, None, [x], lambda i, s: (L.reduce_sum(s) < 9.0, [s + x], [i]))
        return [L.shape_tensor(rows)]

    assert_simplified(trace("f", f, [COUNT, ROW]), [[np.int64(5), np.ones(2)], [np.int64(0), np.ones(2)]])


def test_bodies_are_simplified() -> None:
    function = trace(
        "f",
        lambda n, x: list(L.loop(n, None, [x], lambda i, s: (None, [apply("neg", -s) * 1.0 + x], []))[0]),
        [COUNT, ROW],
    )
    loop = next(v for v in assert_simplified(function, [[np.int64(3), np.ones(2)]]).values if v.op == "loop")
    (body,) = functions_of(loop)
    assert primitives(body) == ["add"]


def test_gradients_of_loops_stay_right() -> None:
    function = traced(looped, "N", "N N", ":")
    rng = np.random.default_rng(0)
    for trips in (0, 3):
        arrays = [rng.standard_normal(3), rng.standard_normal((3, 3)), np.int64(trips)]
        assert_simplified(gradient(function), [arrays])


def test_sizes_that_become_known() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        (size,) = L.sizes(x * 0 + 3)
        return [L.iota((size, 2), 0)]

    actual = assert_simplified(trace("f", f, [COUNT]), [[np.int64(7)]])
    assert actual.results[0].type.shape == (3, 2)
