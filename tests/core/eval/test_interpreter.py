"""The interpreter: traced functions give the results of the Python function, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.programs import CHOICES, assert_same, computed, eagerly, random_program
from tests.random_cases import cases

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError, FeedError, ResourceError, ShapeError, SizeLimitError

pytestmark = pytest.mark.sampled

N, M = Dim.symbol("N"), Dim.symbol("M")


@settings(max_examples=cases(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_traced_equals_eager_on_random_programs(seed: int) -> None:
    program = random_program(np.random.default_rng(seed))
    function = program.traced()
    for arrays in program.arrays:
        assert_same(computed(function, arrays), eagerly(program, arrays))


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_traced_equals_eager_for_every_primitive(name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    occurrences = 0
    for _ in range(12):
        program = random_program(rng, 3, only=[name, "convert"])
        occurrences += any(step.primitive == name for step in program.steps)
        for arrays in program.arrays:
            assert_same(computed(program.traced(), arrays), eagerly(program, arrays))
    assert occurrences


def test_a_value_is_freed_after_its_last_reader() -> None:
    def chain(x: L.Tensor) -> list[L.Tensor]:
        for _ in range(40):
            x = L.sin(x)
        return [x]

    function = trace("chain", chain, [TensorType(t.DOUBLE, (N,))])
    argument = np.zeros(1 << 16)
    with running(RunContext()) as run:
        value = constant(argument)
        evaluate(function, [value])
        assert run.peak <= 2 * argument.nbytes
        assert run.alive == 0


def test_the_memory_limit_is_checked_before_allocation() -> None:
    function = trace("big", lambda x: [L.full((1 << 40,), 1.0, t.FLOAT) * x], [TensorType(t.FLOAT, ())])
    with running(RunContext(max_memory=1 << 20)), pytest.raises(ResourceError, match="bytes"):
        evaluate(function, [constant(np.float32(1))])


def test_an_infinite_loop_is_stopped() -> None:
    def forever(x: L.Tensor) -> list[L.Tensor]:
        return [L.loop(None, None, [x], lambda i, s: (None, [s + 1], []))[0][0]]

    function = trace("forever", forever, [TensorType(t.FLOAT, ())])
    with running(RunContext(max_loop_iterations=100)), pytest.raises(ResourceError, match="100 iterations"):
        evaluate(function, [constant(np.float32(1))])
    with running(RunContext(timeout=0.05)), pytest.raises(ResourceError, match="took longer"):
        evaluate(function, [constant(np.float32(1))])


def test_sizes_bind_the_symbols_of_inputs() -> None:
    function = trace("f", lambda x, y: [L.matmul(x, y)], [TensorType(t.FLOAT, (N, M)), TensorType(t.FLOAT, (M, 2 * N))])
    computed(function, [np.ones((3, 4), np.float32), np.ones((4, 6), np.float32)])
    with pytest.raises(ShapeError, match="M = 4"):
        computed(function, [np.ones((3, 4), np.float32), np.ones((5, 6), np.float32)])
    with pytest.raises(ShapeError, match="2\\*N = 6"):
        computed(function, [np.ones((3, 4), np.float32), np.ones((4, 7), np.float32)])
    with pytest.raises(FeedError, match=r"expected rank 2 .*, got 1"):
        computed(function, [np.ones(3, np.float32), np.ones((4, 6), np.float32)])
    with pytest.raises(FeedError, match="double"):
        computed(function, [np.ones((3, 4)), np.ones((4, 6), np.float32)])


def test_sizes_that_differ_at_run_time_are_an_error() -> None:
    def add(x: L.Tensor, y: L.Tensor) -> list[L.Tensor]:
        result = x + y
        result.origin = "sum"
        return [result]

    function = trace("f", add, [TensorType(t.FLOAT, (N,)), TensorType(t.FLOAT, (M,))])
    assert computed(function, [np.ones(3, np.float32), np.ones(1, np.float32)])[0].shape == (3,)
    with pytest.raises(ShapeError):
        computed(function, [np.ones(3, np.float32), np.ones(2, np.float32)])


def test_an_untaken_branch_is_not_computed() -> None:
    """An index out of range in the other branch is not an error."""

    def guarded(x: L.Tensor, at: L.Tensor) -> list[L.Tensor]:
        inside = at < L.size_tensor([x.shape[0]], ())
        return list(L.cond(inside, lambda: [L.take(x, at, 0)], lambda: [L.constant(-1.0, t.DOUBLE)]))

    function = trace("f", guarded, [TensorType(t.DOUBLE, (N,)), TensorType(t.INT64, ())])
    assert computed(function, [np.arange(3.0), np.int64(2)])[0] == 2
    assert computed(function, [np.arange(3.0), np.int64(7)])[0] == -1


def test_a_loop_without_iterations_computes_nothing_of_its_body() -> None:
    def guarded(x: L.Tensor, at: L.Tensor, n: L.Tensor) -> list[L.Tensor]:
        return list(L.loop(n, None, [x], lambda i, s: (None, [s + L.take(x, at, 0)], []))[0])

    function = trace("f", guarded, [TensorType(t.DOUBLE, (N,)), TensorType(t.INT64, ()), TensorType(t.INT64, ())])
    assert_same(computed(function, [np.arange(3.0), np.int64(9), np.int64(0)]), [np.arange(3.0)])
    with pytest.raises(ExecutionError, match="out of range"):
        computed(function, [np.arange(3.0), np.int64(9), np.int64(1)])


def test_a_function_needs_a_run() -> None:
    function = trace("f", lambda x: [x], [TensorType(t.FLOAT, ())])
    with pytest.raises(ExecutionError, match="outside of a run"):
        evaluate(function, [constant(np.float32(1))])


def test_an_expression_of_one_symbol_binds_the_symbol() -> None:
    function = trace("f", lambda x: [L.reshape(x, (N, 32))], [TensorType(t.FLOAT, (32 * N,))])
    with running(RunContext()):
        assert evaluate(function, [constant(np.zeros(96, np.float32))])[0].known.shape == (3, 32)
        with pytest.raises(ShapeError, match="32\\*N = 96"):
            evaluate(function, [constant(np.zeros(97, np.float32))])


def test_sizes_beyond_64_bits_are_an_error() -> None:
    n = Dim.symbol("N")

    def body(x: L.Tensor) -> list[L.Tensor]:
        return [apply("dims", sizes=(n * (1 << 62),), shape=(1,), dtype=t.INT64)]

    function = trace("sizes", body, [TensorType(t.FLOAT, (n,))])
    assert computed(function, [np.zeros(1, np.float32)])[0].tolist() == [1 << 62]
    with pytest.raises(SizeLimitError, match="64 bits"):
        computed(function, [np.zeros(3, np.float32)])
