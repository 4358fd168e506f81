"""The spec: what tracing gives is legal, and what is not legal is told with all reasons and their places."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import random_program
from tests.core.transform.test_gradients import CASES, looped, traced
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, apply, function_input, record
from sardonyx.core.eval.verifier import check, faults
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, Function, Value, function
from sardonyx.core.ir.types import TensorType, TupleType, Type
from sardonyx.core.transform.differentiation import gradient
from sardonyx.errors import InvalidModelError

N = Dim.symbol("N")
ROW, NUMBER = TensorType(t.FLOAT, (N,)), TensorType(t.FLOAT, ())
FLAG, COUNT = TensorType(t.BOOL, ()), TensorType(t.INT64, ())
X = function_input(0, 0, ROW)


def of(*results: Value, inputs: tuple[Value, ...] = (X,), level: int = 0) -> Function:
    return function("f", inputs, results, level)


def made(op: str, *operands: Value, type: Type = ROW, level: int = 0, **params: object) -> Value:
    return Tensor(op, operands, params, type, level)  # type: ignore[arg-type]


@settings(max_examples=cases(50), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_traced_is_legal(seed: int) -> None:
    check(random_program(np.random.default_rng(seed)).traced())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_legal(name: str) -> None:
    check(gradient(CASES[name][0]))


def test_gradients_of_loops_are_legal() -> None:
    check(gradient(traced(looped, "N", "N N", ":")))


TEN = TensorType(t.FLOAT, (10,))
ILLEGAL: dict[str, tuple[Function, str]] = {}


def illegal(name: str, found: Function, expected: str) -> None:
    ILLEGAL[name] = found, expected


BRANCH = of(function_input(1, 0, ROW), inputs=(function_input(1, 0, ROW),), level=1)
COND = {"then": BRANCH, "otherwise": BRANCH, "results": (ROW,), "symbols": ()}
illegal("unknown primitive", of(made("sine", X)), "v0 (sine): there is no such primitive")
illegal(
    "missing parameter",
    of(made("reduce", X, kind="add")),
    "v0 (reduce): its parameters are kind, and should be kind, axes",
)
illegal(
    "operands that do not fit",
    of(made("add", X, L.constant(np.zeros((2, 2)), t.FLOAT))),
    "v1 (add): add need equal shapes",
)
illegal("too many operands", of(made("sin", X, X)), "v0 (sin): its operands and parameters do not fit")
illegal(
    "another type than the rule's",
    of(made("sin", X, type=TensorType(t.DOUBLE, (N,)))),
    "v0 (sin): it is float[N], and declared as double[N]",
)
illegal(
    "another size",
    of(made("reshape", X, type=TEN, shape=(N, 1))),
    "v0 (reshape): it is float[N, 1], and declared as float[10]",
)
illegal(
    "an axis that is none",
    of(made("reduce", X, type=NUMBER, kind="add", axes=(3,))),
    "v0 (reduce): axis 3 is not one of the 1",
)
illegal(
    "a constant of another type",
    of(made("constant", type=TEN, level=CLOSED, value=np.zeros(3))),
    "v0 (constant): it holds float64[3], and is declared as float[10]",
)
illegal(
    "a constant that is no array",
    of(made("constant", type=TEN, level=CLOSED, value=[1.0])),
    "v0 (constant): it holds a list",
)
illegal(
    "a level that is not its operands'",
    of(made("sin", X, level=3)),
    "v0 (sin): its level 3 is not that of its operands",
)
illegal(
    "an input of another function",
    of(L.sin(function_input(0, 1, ROW))),
    "x1: it is an input of level 0, and none of this function",
)
illegal(
    "a value of the function around",
    of(L.sin(X), inputs=(), level=1),
    "x0: it is an input of level 0, and none of this function",
)
illegal(
    "inputs out of order", of(X, inputs=(function_input(0, 1, ROW), X)), "x0: the input is that of level 0, position 1"
)
illegal("an input that is none", of(X, inputs=(L.sin(X),)), "x0: the input is a sin")
illegal(
    "a symbol that nobody binds",
    of(L.iota((Dim.symbol("Q"),), 0)),
    "v0 (iota): no input binds Q, and nothing before defines it",
)
illegal(
    "a symbol that an expression does not bind",
    of(L.iota((N,), 0), inputs=(function_input(0, 0, TensorType(t.FLOAT, (2 * N,))),)),
    "v0 (iota): no input binds N",
)
illegal(
    "several results as one",
    of(record("cond", (L.constant(True), X), COND, TupleType((ROW,)))),
    "result 0: several results are returned as one",
)


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_is_not_legal_is_told_with_its_place(name: str) -> None:
    illegal, expected = ILLEGAL[name]
    found = [str(fault) for fault in faults(illegal)]
    assert any(fault.startswith(expected) for fault in found), found
    with pytest.raises(InvalidModelError):
        check(illegal)


def test_all_reasons_are_told() -> None:
    a, b = made("sine", X), made("sin", X, type=TensorType(t.DOUBLE, (N,)))
    assert [fault.place for fault in faults(of(a, b, L.iota((Dim.symbol("Q"),), 0)))] == [
        "v0 (sine)",
        "v1 (sin)",
        "v2 (iota)",
    ]


def test_bodies_are_looked_into() -> None:
    y = function_input(1, 0, ROW)
    wrong = function("wrong", (y,), (made("sine", y, level=1),), 1)
    right = function("right", (y,), (y,), 1)
    params = {"then": right, "otherwise": wrong, "results": (ROW,), "symbols": ()}
    cond = record("cond", (L.constant(True), X), params, TupleType((ROW,)))
    (found,) = faults(of(apply("get", cond, index=0)))
    assert found.place == "v1 (cond).otherwise.v0 (sine)"


def test_a_body_lies_deeper_than_the_function_around() -> None:
    params = {"then": (same := of(X)), "otherwise": same, "results": (ROW,), "symbols": ()}
    cond = record("cond", (L.constant(True), X), params, TupleType((ROW,)))
    found = list(faults(of(apply("get", cond, index=0))))
    assert any("its then is at level 0" in fault.problem for fault in found)


@pytest.mark.parametrize(
    ("types", "results"),
    [
        ([COUNT, FLAG, ROW], lambda i, go, x: [x]),
        ([COUNT, FLAG, ROW], lambda i, go, x: [i, x]),
        ([COUNT, FLAG, ROW], lambda i, go, x: [go, L.cast(x, t.DOUBLE)]),
        ([COUNT, FLAG], lambda i, go: [go]),
        ([FLAG, FLAG, ROW], lambda i, go, x: [go, x]),
    ],
)
def test_a_loop_calls_a_body_of_its_form(types: list[Type], results: object) -> None:
    inner = [function_input(1, i, type) for i, type in enumerate(types)]
    body = function("body", inner, results(*inner), 1)  # type: ignore[operator]
    params = {"body": body, "carried": 1, "results": (ROW,), "symbols": ()}
    loop = record("loop", (L.constant(3, t.INT64), L.constant(True), X), params, TupleType((ROW,)))
    assert any(fault.place == "v2 (loop)" for fault in faults(of(apply("get", loop, index=0))))
