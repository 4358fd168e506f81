"""The verifier: traced functions are legal, and every violation is reported with its location."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.gradient_cases import CASES, looped, traced
from tests.core.programs import random_program
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


def function_of(*results: Value, inputs: tuple[Value, ...] = (X,), level: int = 0) -> Function:
    return function("f", inputs, results, level)


def unchecked(op: str, *operands: Value, type: Type = ROW, level: int = 0, **params: object) -> Value:
    return Tensor(op, operands, params, type, level)  # type: ignore[arg-type]


@settings(max_examples=cases(50), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_traced_functions_are_legal(seed: int) -> None:
    check(random_program(np.random.default_rng(seed)).traced())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_legal(name: str) -> None:
    check(gradient(CASES[name][0]))


def test_gradients_of_loops_are_legal() -> None:
    check(gradient(traced(looped, "N", "N N", ":")))


TEN = TensorType(t.FLOAT, (10,))
ILLEGAL: dict[str, tuple[Function, str]] = {}


def illegal(name: str, function: Function, expected: str) -> None:
    ILLEGAL[name] = function, expected


BRANCH = function_of(function_input(1, 0, ROW), inputs=(function_input(1, 0, ROW),), level=1)
COND = {"then": BRANCH, "otherwise": BRANCH, "results": (ROW,), "symbols": ()}
illegal("unknown primitive", function_of(unchecked("sine", X)), "v0 (sine): unknown primitive")
illegal(
    "missing parameter",
    function_of(unchecked("reduce", X, kind="add")),
    "v0 (reduce): expected parameters kind, axes, got kind",
)
illegal(
    "operands of different shapes",
    function_of(unchecked("add", X, L.constant(np.zeros((2, 2)), t.FLOAT))),
    "v1 (add): expected equal shapes for add",
)
illegal("too many operands", function_of(unchecked("sin", X, X)), "v0 (sin): invalid operands or parameters")
illegal(
    "another type than the rule's",
    function_of(unchecked("sin", X, type=TensorType(t.DOUBLE, (N,)))),
    "v0 (sin): the result is float[N], declared double[N]",
)
illegal(
    "another size",
    function_of(unchecked("reshape", X, type=TEN, shape=(N, 1))),
    "v0 (reshape): the result is float[N, 1], declared float[10]",
)
illegal(
    "an axis out of range",
    function_of(unchecked("reduce", X, type=NUMBER, kind="add", axes=(3,))),
    "v0 (reduce): axis 3 is out of range for rank 1",
)
illegal(
    "a constant of another type",
    function_of(unchecked("constant", type=TEN, level=CLOSED, value=np.zeros(3))),
    "v0 (constant): the constant is float64[3], declared float[10]",
)
illegal(
    "a constant that is not an array",
    function_of(unchecked("constant", type=TEN, level=CLOSED, value=[1.0])),
    "v0 (constant): the constant is a list",
)
illegal(
    "a level other than the operands'",
    function_of(unchecked("sin", X, level=3)),
    "v0 (sin): level 3 differs from the maximum level of the operands",
)
illegal(
    "an input of another function",
    function_of(L.sin(function_input(0, 1, ROW))),
    "x1: an input of level 0 that does not belong to this function",
)
illegal(
    "a value of the enclosing function",
    function_of(L.sin(X), inputs=(), level=1),
    "x0: an input of level 0 that does not belong to this function",
)
illegal(
    "inputs out of order",
    function_of(X, inputs=(function_input(0, 1, ROW), X)),
    "x0: expected the input of level 0, position 0, got level 0, position 1",
)
illegal("an input of another primitive", function_of(X, inputs=(L.sin(X),)), "x0: expected an input, got sin")
illegal(
    "an unbound symbol",
    function_of(L.iota((Dim.symbol("Q"),), 0)),
    "v0 (iota): undefined symbol Q: neither bound by an input nor defined before",
)
illegal(
    "a symbol that an expression does not bind",
    function_of(L.iota((N,), 0), inputs=(function_input(0, 0, TensorType(t.FLOAT, (N * N,))),)),
    "v0 (iota): undefined symbol N",
)
illegal(
    "a tuple as result",
    function_of(record("cond", (L.constant(True), X), COND, TupleType((ROW,)))),
    "result 0: a tuple is returned",
)


@pytest.mark.parametrize("name", ILLEGAL)
def test_violations_are_reported_with_their_location(name: str) -> None:
    illegal, expected = ILLEGAL[name]
    actual = [str(fault) for fault in faults(illegal)]
    assert any(fault.startswith(expected) for fault in actual), actual
    with pytest.raises(InvalidModelError):
        check(illegal)


@pytest.mark.parametrize("size", [2 * N, 32 * N + 1], ids=str)
def test_a_size_that_determines_a_symbol_binds_it(size: Dim) -> None:
    check(function_of(L.iota((N,), 0), inputs=(function_input(0, 0, TensorType(t.FLOAT, (size,))),)))


def test_all_violations_are_reported() -> None:
    a, b = unchecked("sine", X), unchecked("sin", X, type=TensorType(t.DOUBLE, (N,)))
    assert [fault.location for fault in faults(function_of(a, b, L.iota((Dim.symbol("Q"),), 0)))] == [
        "v0 (sine)",
        "v1 (sin)",
        "v2 (iota)",
    ]


def test_bodies_are_checked() -> None:
    y = function_input(1, 0, ROW)
    wrong = function("wrong", (y,), (unchecked("sine", y, level=1),), 1)
    right = function("right", (y,), (y,), 1)
    params = {"then": right, "otherwise": wrong, "results": (ROW,), "symbols": ()}
    cond = record("cond", (L.constant(True), X), params, TupleType((ROW,)))
    (fault,) = faults(function_of(apply("get", cond, index=0)))
    assert fault.location == "v1 (cond).otherwise.v0 (sine)"


def test_a_body_is_deeper_than_the_enclosing_function() -> None:
    params = {"then": (same := function_of(X)), "otherwise": same, "results": (ROW,), "symbols": ()}
    cond = record("cond", (L.constant(True), X), params, TupleType((ROW,)))
    violations = list(faults(function_of(apply("get", cond, index=0))))
    assert any("then is at level 0" in fault.problem for fault in violations)


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
def test_a_loop_body_has_the_signature_of_its_loop(types: list[Type], results: object) -> None:
    inner = [function_input(1, i, type) for i, type in enumerate(types)]
    body = function("body", inner, results(*inner), 1)  # type: ignore[operator]
    params = {"body": body, "carried": 1, "results": (ROW,), "symbols": ()}
    loop = record("loop", (L.constant(3, t.INT64), L.constant(True), X), params, TupleType((ROW,)))
    assert any(fault.location == "v2 (loop)" for fault in faults(function_of(apply("get", loop, index=0))))
