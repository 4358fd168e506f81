"""Tracing: closed functions, captures, conditions and loops with sizes that change."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import assert_same, computed

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import get
from sardonyx.core.eval.trace import trace, trace_closed
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value, functions_of, sort_topologically
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import NeedsValueError, RuleError, TypeMismatchError

N = Dim.symbol("N")
ROW = TensorType(t.DOUBLE, (N,))
NUMBER = TensorType(t.DOUBLE, ())
COUNT = TensorType(t.INT64, ())


def control(function: object, op: str) -> Value:
    return next(value for value in function.values if value.op == op)  # type: ignore[attr-defined]


def test_a_captured_value_becomes_an_input() -> None:
    captures: list[tuple[Value, ...]] = []

    def outer(x: L.Tensor) -> list[Value]:
        y = L.sin(x)
        inner, captured = trace_closed("inner", lambda z: [z * y + 1.0], [ROW])
        captures.append(captured)
        assert len(inner.inputs) == 2
        assert all(value.level in (-1, inner.level) for value in sort_topologically(inner.results))
        return [y]

    function = trace("outer", outer, [ROW])
    assert captures == [(function.results[0],)]


def test_trace_refuses_captures() -> None:
    def outer(x: L.Tensor) -> list[Value]:
        trace("inner", lambda y: [x + y], [ROW])
        return [x]

    with pytest.raises(RuleError, match="1 values from outside"):
        trace("outer", outer, [ROW])


def test_values_recorded_in_a_branch_stay_in_the_branch() -> None:
    function = trace(
        "f", lambda c, x: list(L.cond(c < 0, lambda: [L.sin(x) * 2.0], lambda: [L.sin(x) - 1.0])), [NUMBER, ROW]
    )
    assert [value.op for value in function.values] == ["input", "constant", "less", "input", "cond", "get"]
    then, otherwise = functions_of(control(function, "cond"))
    assert "sin" in [v.op for v in then.values] and "sin" in [v.op for v in otherwise.values]


def test_a_value_recorded_before_a_branch_is_captured() -> None:
    def f(c: L.Tensor, x: L.Tensor) -> list[Value]:
        y = L.sin(x)
        return list(L.cond(c < 0, lambda: [y * 2.0], lambda: [L.sin(x)]))

    function = trace("f", f, [NUMBER, ROW])
    assert "sin" in [v.op for v in function.values]
    assert all("sin" not in [v.op for v in branch.values] for branch in functions_of(control(function, "cond")))
    # A second trace finds the interned values of the first.
    assert trace("f", f, [NUMBER, ROW]) is function


def test_a_known_condition_selects_its_branch() -> None:
    function = trace("f", lambda x: list(L.cond(L.constant(True), lambda: [x + 1.0], lambda: [x])), [ROW])
    assert "cond" not in [v.op for v in function.values]


def test_branches_of_different_sizes_give_a_run_time_size() -> None:
    function = trace("f", lambda c, x: list(L.cond(c < 0, lambda: [L.concat([x, x], 0)], lambda: [x])), [NUMBER, ROW])
    (size,) = function.results[0].type.shape
    assert control(function, "cond").params["symbols"] == tuple(size.symbols())
    assert computed(function, [np.float64(-1), np.ones(3)])[0].shape == (6,)
    assert computed(function, [np.float64(1), np.ones(3)])[0].shape == (3,)


def test_branches_of_different_ranks_need_the_condition() -> None:
    with pytest.raises(NeedsValueError, match="incompatible ranks"):
        trace("f", lambda c, x: list(L.cond(c < 0, lambda: [L.reduce_sum(x)], lambda: [x])), [NUMBER, ROW])
    with pytest.raises(TypeMismatchError, match="incompatible types"):
        trace("f", lambda c, x: list(L.cond(c < 0, lambda: [L.cast(x, t.FLOAT)], lambda: [x])), [NUMBER, ROW])


def test_sizes_defined_in_two_branches_are_distinct() -> None:
    """A size bound in both branches and outside has three symbols."""

    def f(c: L.Tensor, n: L.Tensor) -> list[Value]:
        def filled(value: float) -> list[Value]:
            (size,) = L.sizes(n + 1)
            return [L.full((size,), value, t.DOUBLE)]

        (selected,) = L.cond(c < 0, lambda: filled(1.0), lambda: filled(2.0))
        return [selected, *filled(3.0)]

    function = trace("f", f, [NUMBER, COUNT])
    assert_same(computed(function, [np.float64(-1), np.int64(2)]), [np.full(3, 1.0), np.full(3, 3.0)])
    assert_same(computed(function, [np.float64(1), np.int64(0)]), [np.full(1, 2.0), np.full(1, 3.0)])


def test_a_loop_carries_collects_and_stops() -> None:
    def f(n: L.Tensor, x: L.Tensor) -> list[Value]:
        def body(i: L.Tensor, s: L.Tensor) -> tuple[L.Tensor, list[Value], list[Value]]:
            s = s * 2.0
            return L.reduce_sum(s) < 40.0, [s], [s, i]

        state, rows = L.loop(n, None, [x], body)
        return [*state, *rows]

    function = trace("f", f, [COUNT, ROW])
    x = np.array([1.0, 2.0])
    assert_same(computed(function, [np.int64(2), x]), [x * 4, np.stack([x * 2, x * 4]), np.arange(2)])
    assert_same(
        computed(function, [np.int64(9), x]), [x * 16, np.stack([x * 2**k for k in (1, 2, 3, 4)]), np.arange(4)]
    )
    assert_same(computed(function, [np.int64(0), x]), [x, np.empty((0, 2)), np.empty(0, np.int64)])


def test_a_loop_carries_a_value_that_grows() -> None:
    function = trace(
        "f", lambda n, x: list(L.loop(n, None, [x], lambda i, s: (None, [L.concat([s, x], 0)], []))[0]), [COUNT, ROW]
    )
    assert computed(function, [np.int64(3), np.ones(2)])[0].shape == (8,)
    with pytest.raises(NeedsValueError, match="incompatible ranks"):
        trace(
            "f",
            lambda n, x: list(L.loop(n, None, [x], lambda i, s: (None, [L.unsqueeze(s, [0])], []))[0]),
            [COUNT, ROW],
        )
    with pytest.raises(TypeMismatchError):
        trace("f", lambda n, x: list(L.loop(n, None, [x], lambda i, s: (None, [s < 0], []))[0]), [COUNT, ROW])


def test_a_known_count_is_the_size_of_the_collected_rows() -> None:
    function = trace(
        "f",
        lambda x: list(L.loop(L.size_tensor([x.shape[0]], ()), None, [], lambda i: (None, [], [x * 2.0]))[1]),
        [ROW],
    )
    assert function.results[0].type.shape == (N, N)


def test_get_extracts_results() -> None:
    function = trace("f", lambda c, x: list(L.cond(c < 0, lambda: [x, x * 2.0], lambda: [x * 3.0, x])), [NUMBER, ROW])
    cond = control(function, "cond")
    assert function.results == (get(cond, 0), get(cond, 1))
