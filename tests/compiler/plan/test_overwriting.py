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
    function = trace("f", lambda *values: list(body(*values)), [MATRIX] * inputs)
    return Program.compile(function, threads=1, in_place=pairs).overwritable(pairs)


def in_place_and_apart(
    body: Callable[..., Sequence[L.Tensor]], arrays: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]
) -> tuple[list[np.ndarray], list[np.ndarray], list[bool]]:
    """Return the results of a call over its inputs, those of other memory, and which pairs were permitted."""
    types = [TensorType(t.dtype_of(array), array.shape) for array in arrays]
    program = Program.compile(trace("f", lambda *values: list(body(*values)), types), threads=2, in_place=pairs)
    expected = [array.copy() for array in program.run([array.copy() for array in arrays])]
    permitted = program.overwritable(pairs)
    targets: list[np.ndarray | None] = [None] * len(expected)
    for (i, j), is_permitted in zip(pairs, permitted, strict=True):
        if is_permitted:
            targets[j] = arrays[i]
    entry, actual = binding(program, arrays, targets, trial=False)
    entry.call()
    return actual, expected, permitted


def test_an_elementwise_result_may_overwrite_its_operands() -> None:
    assert answers(lambda p, g: [p - 0.1 * g], [(0, 0), (1, 0)]) == [True, True]


def test_two_results_of_one_kernel_may_overwrite_two_operands() -> None:
    def momentum(p: L.Tensor, m: L.Tensor, g: L.Tensor) -> list[L.Tensor]:
        new = 0.9 * m + g
        return [p - 0.1 * new, new]

    assert answers(momentum, [(0, 0), (1, 1)], inputs=3) == [True, True]


def test_no_result_overwrites_an_input_of_a_call_that_may_fail() -> None:
    types = [MATRIX, MATRIX, TensorType(t.INT64, (64, 64))]
    function = trace("f", lambda p, g, i: [p - g, i / i], types)
    program = Program.compile(function, threads=1, in_place=[(0, 0)])
    assert program.overwritable([(0, 0)]) == [False]


def test_a_result_of_another_element_type_does_not_overwrite() -> None:
    assert answers(lambda p, g: [L.cast(p - g, t.INT32), p * g], [(0, 0)]) == [False]


def test_an_entry_of_a_vector_of_numbers_does_not_matter() -> None:
    def body(p: L.Tensor, g: L.Tensor, numbers: L.Tensor) -> list[L.Tensor]:
        return [p * L.entry(numbers, 2) - L.entry(numbers, 1) * g]

    arrays = [*np.random.default_rng(0).random((2, 64, 64), np.float32), np.array([1, 2, 3], np.float32)]
    (actual,), (expected,), permitted = in_place_and_apart(body, arrays, [(0, 0)])
    assert permitted == [True]
    assert actual is arrays[0]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int8])
@pytest.mark.parametrize("shape", [(13,), (100,), (3, 13), (8193,), (5, 5, 3, 3)])
def test_no_position_is_computed_twice(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    """The last vector of a row, or the last block, may overlap the one before where memory differs."""
    arrays = [np.random.default_rng(i).integers(0, 20, shape).astype(dtype) for i in (0, 1)]
    (actual,), (expected,), permitted = in_place_and_apart(lambda p, g: [p - g], arrays, [(0, 0)])
    assert permitted == [True]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape", [(100, 3), (37, 5), (9, 4, 13), (70, 70)])
def test_a_repeated_operand_does_not_matter(shape: tuple[int, ...]) -> None:
    def body(p: L.Tensor, g: L.Tensor) -> list[L.Tensor]:
        return [p - L.broadcast_to(g, shape)]

    arrays = [np.random.default_rng(0).random(size, np.float32) for size in (shape, shape[-1:])]
    (actual,), (expected,), _ = in_place_and_apart(body, arrays, [(0, 0)])
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("shape", [(64, 64), (13,)])
def test_a_result_is_written_after_the_reads_of_further_results(shape: tuple[int, ...]) -> None:
    def body(p: L.Tensor, q: L.Tensor, g: L.Tensor) -> list[L.Tensor]:
        new = g * 2.0  # Written over p, which the second result reads.
        return [new, new * p + q]

    arrays = list(np.random.default_rng(0).random((3, *shape), np.float32))
    actual, expected, _ = in_place_and_apart(body, arrays, [(0, 0), (1, 1)])
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


TERMS = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=3, max_size=3)


@given(TERMS, st.sampled_from([(64, 64), (13,), (3, 13), (100, 3)]), st.permutations(range(3)))
@settings(max_examples=40, deadline=None)
def test_results_over_inputs_are_those_of_other_memory(
    terms: list[tuple[int, int, int]], shape: tuple[int, ...], order: list[int]
) -> None:
    def body(*values: L.Tensor) -> list[L.Tensor]:
        known, results = list(values), []
        for i, j, k in terms:  # A result may depend on the results before.
            i, j, k = (min(number, len(known) - 1) for number in (i, j, k))
            results.append(known[i] * 0.5 + known[j] * known[k])
            known.append(results[-1])
        return results

    # Terms that are equal, or equal in the end, are one value: a call binds one array to a value.
    if len(set(trace("f", body, [TensorType(t.FLOAT, shape)] * 4).results)) == 3:
        arrays = list(np.random.default_rng(0).random((4, *shape), np.float32))
        actual, expected, _ = in_place_and_apart(body, arrays, [(i, order[i]) for i in range(3)])
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
    arrays = list(np.random.default_rng(0).random((2, 64, 64), np.float32))
    # A call over the input, if one is permitted, must have the same results.
    actual, expected, _ = in_place_and_apart(body, arrays, [(0, 0)])
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
