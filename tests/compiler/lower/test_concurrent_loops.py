"""Loops that do the same are played side by side, and give what they give one after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.compiler.program_checks import check, restored_copy
from tests.core.programs import computed

from sardonyx.compiler.plan.segments import Segment
from sardonyx.compiler.program import Program
from sardonyx.compiler.target.description import host
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.simplify import simplify

N = Dim.symbol("N")
UNITS = 16
Layer = Callable[[L.Tensor, int], L.Tensor]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def layer(x: L.Tensor, seed: int, steps: Size | None = None, units: int = UNITS) -> L.Tensor:
    """The states of a recurrence, ``[steps, batch, units]``."""
    random = np.random.default_rng(seed)
    weights = constant((random.standard_normal((units, units)) * units**-0.5).astype(np.float32), t.FLOAT)

    def step(i: L.Tensor, h: L.Tensor) -> tuple[None, list[L.Tensor], list[L.Tensor]]:
        new = L.tanh(L.take(x, i, 0) + L.matmul(h, weights))
        return None, [new], [new]

    count = L.size_tensor([x.shape[0] if steps is None else steps], ())
    _, (states,) = L.loop(count, None, [L.full((x.shape[1], units), 0, t.FLOAT)], step)
    return states


def of_rows(
    function: Callable[[L.Tensor], list[L.Tensor]], rows: Size = N, units: int = UNITS, batch: int = 1
) -> Function:
    return simplify(trace("f", function, [TensorType(t.FLOAT, (rows, batch, units))]))


def both_ways(x: L.Tensor) -> list[L.Tensor]:
    return [L.concat([layer(x, 1), L.reverse(layer(L.reverse(x * 2, [0]), 2), [0])], -1)]


def beside(function: Function, threads: int) -> list[int]:
    """How many loops are played at once, for each that is the first of such."""
    program = Program.compile(function, threads=threads)
    launches = [item for step in program.steps if isinstance(step, Segment) for item in step.launches]
    counts, at = [], 0
    while at < len(launches):
        if launches[at].bodies:
            counts.append(launches[at].concurrent_loops)
        at += launches[at].concurrent_loops
    return counts


def test_directions_of_a_layer_are_played_at_once() -> None:
    function = of_rows(both_ways)
    assert beside(function, 2) == [2]
    check(function, [normal(5, 1, UNITS)], [normal(1, 1, UNITS)], [normal(0, 1, UNITS)])


def test_threads_make_no_difference() -> None:
    function, rows = of_rows(both_ways), normal(40, 1, UNITS)
    one, two, four = (Program.compile(function, threads=threads) for threads in (1, 2, 4))
    expected = one.run([rows])
    for program in (two, four, restored_copy(two)):
        for _ in range(20):
            for actual, desired in zip(program.run([rows]), expected, strict=True):
                np.testing.assert_array_equal(actual, desired)


def test_layers_that_read_each_other_are_not() -> None:
    function = of_rows(lambda x: [layer(layer(x, 1), 2)])
    assert beside(function, 2) == [1, 1]
    check(function, [normal(5, 1, UNITS)])


def test_what_stands_between_them_goes_before_them_where_it_can() -> None:
    def two_layers(x: L.Tensor) -> list[L.Tensor]:
        first = layer(x, 1)
        return [layer(first * 2, 2), layer(L.tanh(x) * 3, 3)]

    function = of_rows(two_layers)
    assert sorted(beside(function, 2)) == [1, 2]
    check(function, [normal(5, 1, UNITS)])


def test_loops_of_other_counts_or_steps_are_not() -> None:
    assert beside(of_rows(lambda x: [layer(x, 1), layer(x, 2, 3)], 6), 2) == [1, 1]
    assert beside(of_rows(lambda x: [layer(x, 1), L.tanh(layer(x, 2)), layer(x, 3) + 1]), 2) == [3]


def test_large_steps_are_shared_where_threads_would_have_no_loop() -> None:
    units = 256

    def both(x: L.Tensor) -> list[L.Tensor]:
        return [layer(x, 1, units=units), layer(x * 2, 2, units=units)]

    function = of_rows(both, units=units, batch=4)
    assert beside(function, 2) == [2]
    assert beside(function, 4) == [1, 1]
    assert beside(of_rows(both_ways), 4) == [2]
    assert beside(function, 1) == [1, 1]
    check(function, [normal(4, 4, units)])


def test_steps_are_shared_where_a_core_cannot_keep_the_weights() -> None:
    units = next(size for size in (512, 1024, 2048, 4096) if 4 * size * size > host().l2)

    def both(x: L.Tensor) -> list[L.Tensor]:
        return [layer(x, 1, units=units), layer(x * 2, 2, units=units)]

    assert beside(of_rows(both, units=units), 2) == [1, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_behind_the_end_is_found_in_any_of_them(threads: int) -> None:
    function = of_rows(lambda x: [layer(x, 1, 8), layer(x, 2, 8)])
    rows = normal(8, 1, UNITS)
    program = Program.compile(function, threads=threads)
    for actual, expected in zip(program.run([rows]), computed(function, [rows]), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
