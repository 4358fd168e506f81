"""Costs: operations and bytes of every primitive, as expressions of the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import AT, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, evaluate
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import SequenceType, TensorType
from sardonyx.core.transform.cost import COSTS, Cost, cost_of, nbytes
from sardonyx.core.transform.differentiation import apply_call

N, M, K = map(Dim.symbol, "NMK")
ROW = TensorType(t.FLOAT, (N,))


def test_every_primitive_has_a_cost() -> None:
    assert COSTS.keys() == PRIMITIVES.keys()


def test_a_product_of_matrices() -> None:
    function = trace("f", lambda x, y: [L.matmul(x, y)], [TensorType(t.FLOAT, (N, M)), TensorType(t.FLOAT16, (M, K))])
    assert cost_of(function) == Cost(2 * N * M * K, 4 * N * M + 2 * M * K, 4 * N * K)


def test_a_convolution() -> None:
    def f(x: L.Tensor) -> list[L.Tensor]:
        return [L.convolve(x, L.full((8, 3, 5, 5), 0.1, t.FLOAT), strides=(2, 2), padding=((2, 2), (2, 2)))]

    function = trace("f", f, [TensorType(t.FLOAT, (N, 3, 32, 32))])
    assert cost_of(function).operations == 2 * N * 8 * 16 * 16 * 3 * 25


def test_views_cost_nothing_and_movement_costs_bytes() -> None:
    function = trace("f", lambda x: [L.permute(L.reshape(x, (M, N)), [1, 0])], [TensorType(t.DOUBLE, (N, M))])
    assert cost_of(function) == Cost(0, 8 * N * M, 8 * N * M)


def test_loops_cost_what_their_iterations_do() -> None:
    def collected(n: L.Tensor, x: L.Tensor) -> list[Value]:
        (state,), (rows,) = L.loop(n, None, [x], lambda i, s: (None, [L.sin(s)], [s]))
        return [state, rows]

    function = trace("f", collected, [TensorType(t.INT64, ()), ROW])
    (trips, _) = function.results[1].type.shape
    assert cost_of(function).operations == N * trips
    counted = trace(
        "f",
        lambda x: list(L.loop(L.size_tensor([x.shape[0]], ()), None, [x], lambda i, s: (None, [s + x], []))[0]),
        [ROW],
    )
    assert cost_of(counted).operations == N * N


def test_a_loop_that_only_the_run_ends_has_a_symbol_of_its_own() -> None:
    function = trace(
        "f", lambda x: list(L.loop(None, None, [x], lambda i, s: (L.reduce_sum(s) < 9.0, [s + x], []))[0]), [ROW]
    )
    (unknown,) = cost_of(function).operations.symbols() - {"N"}
    assert unknown.startswith("%")


def test_a_condition_costs_what_its_dearer_branch_does() -> None:
    function = trace(
        "f", lambda c, x: list(L.cond(c < 0, lambda: [x + x + x], lambda: [x])), [TensorType(t.FLOAT, ()), ROW]
    )
    assert cost_of(function).operations == 2 * N + 1


def test_a_call_costs_what_its_function_does() -> None:
    inner = trace("inner", lambda x: [x * x], [ROW])
    assert cost_of(trace("f", lambda x: apply_call(inner, [x]), [ROW])) == cost_of(inner)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(t.FLOAT, 28), (t.DType.INT4, 4), (t.DType.INT2, 2), (t.BOOL, 7), (t.STRING, 56), (t.COMPLEX64, 56)],
)
def test_bytes(dtype: t.DType, expected: int) -> None:
    assert nbytes(TensorType(dtype, (7,))) == expected
    assert evaluate(nbytes(TensorType(dtype, (N,))), {"N": 7}) == expected
    assert nbytes(SequenceType(TensorType(dtype, None))) == 0


@settings(max_examples=cases(30), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_expression_at_sizes_is_the_cost_at_those_sizes(seed: int) -> None:
    """But for what depends on data, and logarithms of sizes."""
    without = ("cond", "get", "loop", "bind", "host", "sort", "top_k", "fft", "dims", "iota", "gather", "scatter")
    program = random_program(np.random.default_rng(seed), without=without)
    open_ = cost_of(program.traced())
    for sizes in AT:
        fixed = [TensorType(x.dtype, tuple(evaluate(size, sizes) for size in x.shape or ())) for x in program.inputs]
        # What fits no kernel of known values is computed while tracing: only what is recorded is compared.
        closed = trace("program", program, fixed)
        if [v.op for v in closed.values] == [v.op for v in program.traced().values]:
            assert Cost(*(evaluate(part, sizes) for part in open_)) == cost_of(closed)
