"""Host functions: Python over numpy inside of a graph."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.programs import assert_same, computed, eagerly

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant, known
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import SequenceType, TensorType
from sardonyx.errors import ExecutionError

N = Dim.symbol("N")
ROW = TensorType(t.DOUBLE, (N,))
ROWS = SequenceType(TensorType(t.DOUBLE, None))

above = HostFunction(
    "above",
    lambda x, *, limit: (TensorType(x.dtype, (unknown_size(),)), TensorType(t.INT64, ())),
    lambda x, *, limit: (x[x > limit], np.asarray((x > limit).sum())),
)
split = HostFunction("split", lambda x: (ROWS,), lambda x: (list(x),))
join = HostFunction("join", lambda rows: (TensorType(t.DOUBLE, (unknown_size(),)),), lambda rows: (np.array(rows),))


def test_a_data_dependent_size_is_a_symbol_that_the_value_defines() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        selected, count = host(above, x, limit=0.5)
        return [selected * 2.0, L.shape_tensor(selected), count]  # type: ignore[operator,arg-type,list-item]

    function = trace("f", f, [ROW])
    value = next(v for v in function.values if v.op == "host")
    assert len(value.params["symbols"]) == 1
    x = np.array([0.2, 0.7, 0.9])
    expected = [x[1:] * 2, np.array([2]), np.array(2)]
    assert_same(computed(function, [x]), expected)
    assert_same(eagerly(f, [x]), expected)


def test_the_same_call_is_one_value() -> None:
    function = trace("f", lambda x: [host(above, x, limit=0.5)[0], host(above, x, limit=0.5)[1]], [ROW])
    assert sum(v.op == "host" for v in function.values) == 1


def test_sequences_are_operands_and_results() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        (rows,) = host(split, x)
        assert rows.type == ROWS
        return list(host(join, rows))  # type: ignore[arg-type]

    assert_same(computed(trace("f", f, [ROW]), [np.arange(3.0)]), [np.arange(3.0)])
    with running(RunContext()):
        (result,) = evaluate(trace("g", lambda rows: [rows], [ROWS]), [known([np.ones(2)], ROWS)])
        assert result.known[0].tolist() == [1, 1]


def test_a_violated_type_rule_is_an_error() -> None:
    liar = HostFunction("liar", lambda x: (TensorType(x.dtype, (2,)),), lambda x: (x,))
    function = trace("f", lambda x: list(host(liar, x)), [ROW])
    with running(RunContext()), pytest.raises(ExecutionError, match=r"expected .* from liar by its type rule, got"):
        evaluate(function, [constant(np.zeros(3))])
