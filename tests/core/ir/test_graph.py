"""The graph: hash-consing, order, dependencies and free symbols."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import function_input
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, definer, functions_of, sort_topologically, symbols_in
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import RuleError

N = Dim.symbol("N")
X = TensorType(t.FLOAT, (N, 4))


def test_equal_values_are_the_same_object() -> None:
    x = function_input(0, 0, X)
    assert L.sin(x) + 1 is L.sin(x) + 1
    assert L.sin(x) is not L.cos(x)
    assert L.constant([1.0, 2.0], t.FLOAT) is L.constant([1.0, 2.0], t.FLOAT)
    assert L.constant(0.0, t.FLOAT) is not L.constant(-0.0, t.FLOAT)
    assert L.constant(1, t.FLOAT) is not L.constant(1, t.DOUBLE)


def test_equal_functions_are_the_same_object() -> None:
    assert trace("f", lambda x: [x * 2], [X]) is trace("f", lambda x: [x * 2], [X])
    assert trace("f", lambda x: [x * 2], [X]) is not trace("g", lambda x: [x * 2], [X])


def test_unreferenced_values_are_collected() -> None:
    x = function_input(0, 0, X)
    held = weakref.ref(L.exp(L.sin(x)))
    gc.collect()
    assert held() is None


def test_equal_values_from_threads_are_the_same_object() -> None:
    x = function_input(0, 0, X)
    values: list[object] = []
    threads = [
        threading.Thread(target=lambda: values.extend([L.sin(x) * float(i) for i in range(200)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, values))) == 200


def test_order_is_topological() -> None:
    function = trace("f", lambda x: [L.softmax(x) + L.reduce_sum(x)], [X])
    position = {value: i for i, value in enumerate(function.values)}
    assert all(position[o] < position[v] for v in function.values for o in v.operands)
    assert set(sort_topologically(function.results)) == set(function.values)


def test_order_of_a_long_graph_does_not_recurse() -> None:
    def chain(x: L.Tensor) -> list[L.Tensor]:
        for _ in range(5000):
            x = L.sin(x)
        return [x]

    assert len(trace("chain", chain, [X]).values) == 5001


def test_definers_are_dependencies() -> None:
    def filled(n: L.Tensor) -> list[L.Tensor]:
        (size,) = L.sizes(n)
        return [L.full((size,), 1.0, t.FLOAT)]

    function = trace("f", filled, [TensorType(t.INT64, ())])
    (symbol,) = symbols_in(function.results[0].type)
    bind = definer(symbol)
    assert bind is not None and bind.op == "bind"
    assert bind in function.values
    assert function.free_symbols == frozenset()


def test_a_body_with_an_outer_symbol_depends_on_its_definer() -> None:
    def f(c: L.Tensor, n: L.Tensor) -> list[L.Tensor]:
        (size,) = L.sizes(n)
        return list(L.cond(c, lambda: [L.iota((size,), 0)], lambda: [L.iota((size,), 0) * 2]))

    function = trace("f", f, [TensorType(t.BOOL, ()), TensorType(t.INT64, ())])
    cond = next(value for value in function.values if value.op == "cond")
    then, _ = functions_of(cond)
    assert len(then.free_symbols) == 1
    assert any(value.op == "bind" for value in function.values)
    assert [value.op for value in cond.definers] == ["bind"]


def test_free_symbols_are_the_symbols_of_inputs() -> None:
    function = trace("f", lambda x: [x * 2], [X])
    assert function.free_symbols == {"N"}


def test_levels() -> None:
    assert L.constant(1.0, t.FLOAT).level == CLOSED
    assert L.iota((N,), 0).level == CLOSED
    assert (function_input(0, 0, X) + 1).level == 0


def test_only_constants_are_known() -> None:
    assert np.array_equal(L.constant([1, 2], t.INT64).known, [1, 2])
    with pytest.raises(RuleError, match="not known"):
        _ = L.sin(function_input(0, 0, X)).known
