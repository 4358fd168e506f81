"""Results that may be written over inputs: only elementwise ones, after the last reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sardonyx.compiler.direct_call import binding
from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType

MATRIX = TensorType(t.FLOAT, (64, 64))


def answers(body: Callable[..., Sequence[L.Tensor]], pairs: Sequence[tuple[int, int]], inputs: int = 2) -> list[bool]:
    program = Program.compile(trace("f", lambda *values: list(body(*values)), [MATRIX] * inputs), threads=1)
    return program.overwritable(pairs)


def test_an_elementwise_result_may_overwrite_its_operands() -> None:
    assert answers(lambda p, g: [p - 0.1 * g], [(0, 0), (1, 0)]) == [True, True]


def test_two_results_of_one_kernel_may_overwrite_two_operands() -> None:
    def momentum(p: L.Tensor, m: L.Tensor, g: L.Tensor) -> list[L.Tensor]:
        new = 0.9 * m + g
        return [p - 0.1 * new, new]

    assert answers(momentum, [(0, 0), (1, 1)], inputs=3) == [True, True]


def test_no_result_overwrites_an_input_of_a_call_that_may_fail() -> None:
    types = [MATRIX, MATRIX, TensorType(t.INT64, (64, 64))]
    program = Program.compile(trace("f", lambda p, g, i: [p - g, i / i], types), threads=1)
    assert program.overwritable([(0, 0)]) == [False]


def test_a_result_of_another_element_type_does_not_overwrite() -> None:
    assert answers(lambda p, g: [L.cast(p - g, t.INT32), p * g], [(0, 0)]) == [False]


def test_an_entry_of_a_vector_of_numbers_does_not_matter() -> None:
    types = [MATRIX, MATRIX, TensorType(t.FLOAT, (3,))]

    def body(p: L.Tensor, g: L.Tensor, numbers: L.Tensor) -> list[L.Tensor]:
        return [p * L.entry(numbers, 2) - L.entry(numbers, 1) * g]

    program = Program.compile(trace("f", lambda *values: body(*values), types), threads=2)
    assert program.overwritable([(0, 0)]) == [True]
    p, g = np.random.default_rng(0).random((2, 64, 64), np.float32)
    numbers = np.array([1, 2, 3], np.float32)
    (expected,) = program.run([p.copy(), g, numbers])
    entry, (actual,) = binding(program, [p, g, numbers], [p], trial=False)
    entry.call()
    assert actual is p
    np.testing.assert_array_equal(actual, expected)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=3))
@settings(max_examples=25, deadline=None)
def test_results_over_inputs_are_those_of_other_memory(terms: list[tuple[int, int, int]]) -> None:
    def body(*values: L.Tensor) -> list[L.Tensor]:
        return [values[i] * 0.5 + values[j] * values[k] for i, j, k in terms]

    program = Program.compile(trace("f", lambda *values: list(body(*values)), [MATRIX] * 4), threads=2)
    arrays = list(np.random.default_rng(0).random((4, 64, 64), np.float32))
    expected = [array.copy() for array in program.run([array.copy() for array in arrays])]
    permitted = program.overwritable([(i, i) for i in range(3)])
    targets = [arrays[i] if permitted[i] else None for i in range(3)]
    if len(set(program.function.results)) == 3:
        entry, actual = binding(program, arrays, targets, trial=False)
        entry.call()
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda p, g: [L.permute(p, (1, 0)) + g], id="transposed"),
        pytest.param(lambda p, g: [L.reverse(p, (0,)) * g], id="reversed"),
        pytest.param(lambda p, g: [p + L.reduce_sum(p) + g], id="sum"),
        pytest.param(lambda p, g: [L.matmul(p, g)], id="product"),
        pytest.param(lambda p, g: [p - g, L.matmul(p - g, p)], id="read later"),
        pytest.param(lambda p, g: [p * 0.9 + L.permute(g, (1, 0)), p + g], id="other operand transposed"),
    ],
)
def test_other_results_may_not(body: Callable[..., Sequence[L.Tensor]]) -> None:
    results = trace("f", lambda *values: list(body(*values)), [MATRIX] * 2)
    program = Program.compile(results, threads=1)
    if program.overwritable([(0, 0)])[0]:  # A call over the input must have the same results.
        p, g = np.random.default_rng(0).random((2, 64, 64), np.float32)
        expected = program.run([p.copy(), g])
        entry, actual = binding(program, [p, g], [p, *[None] * (len(expected) - 1)], trial=False)
        entry.call()
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other)
