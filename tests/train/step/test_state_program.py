"""Programs over fixed arrays: results are those of calls with fresh arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sardonyx.compiler.program import Program
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.train import Trainer
from sardonyx.train.optimizers import OPTIMIZERS
from sardonyx.train.step.state_program import StateProgram
from tests.train.networks import classifier

ROWS = Dim.symbol("N")
STATE, BATCH = TensorType(t.FLOAT, (6, 9)), TensorType(t.FLOAT, (ROWS, 6))


def gradient(p: L.Tensor, x: L.Tensor) -> L.Tensor:
    return L.matmul(L.permute(x, (1, 0)), L.matmul(x, p))


BODIES: dict[str, Callable[[L.Tensor, L.Tensor], Sequence[L.Tensor]]] = {
    "step": lambda p, x: [L.reduce_sum(x), p - 0.01 * gradient(p, x)],
    "reversed": lambda p, x: [L.reduce_sum(x), L.reverse(p, (0,)) + 0.01 * gradient(p, x)],
    "transposed": lambda p, x: [L.reduce_sum(x), L.reshape(L.permute(p, (1, 0)), (6, 9)) * 0.9],
    "reshaped": lambda p, x: [L.reduce_sum(x), L.reshape(L.reshape(p, (54,)) * 0.5, (6, 9))],
    "read after": lambda p, x: [L.reduce_sum(L.matmul(x, p)), p * 0.5],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_state_in_place_is_that_of_fresh_arrays(body: Callable[[L.Tensor, L.Tensor], Sequence[L.Tensor]]) -> None:
    function = trace("f", lambda *values: list(body(*values)), [STATE, BATCH])
    rng = np.random.default_rng(0)
    state = rng.random((6, 9), np.float32)
    fresh = state.copy()
    program = StateProgram(function, [state], [state], threads=1)
    plain = StateProgram(function, [other := fresh.copy()], [result := np.empty_like(fresh)], threads=1)
    for step in range(12):
        x = rng.random((3 + step % 2, 6), np.float32)
        (actual,), (expected,) = program.run([x]), plain.run([x])
        np.testing.assert_array_equal(actual, expected)
        other[...] = result
        np.testing.assert_array_equal(state, other)


WITH_SUMS = {"adafactor", "lamb", "muon"}
"""Optimizers that need sums or products of a whole tensor before they write one element."""


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - WITH_SUMS))
def test_elementwise_optimizers_copy_no_state(name: str) -> None:
    update = Trainer(classifier(), "cross-entropy", OPTIMIZERS[name](), clip_norm=1.0, ema=0.9).plan.update
    pairs = [(i, i) for i in range(len(update.results))]
    program = Program.compile(update, threads=1, in_place=pairs)
    assert all(program.overwritable(pairs))


def test_equal_results_and_constants_leave_one_native_call() -> None:
    def body(*values: L.Tensor) -> list[L.Tensor]:
        p, _, x = values
        new = p - 0.01 * gradient(p, x)
        return [L.reduce_sum(x), new, L.constant(np.full((6, 9), 3.0, np.float32)), new]

    function = trace("f", body, [STATE, STATE, BATCH])
    rng = np.random.default_rng(0)
    first, second, third = (rng.random((6, 9), np.float32) for _ in range(3))
    program = StateProgram(function, [first, second], [first, third, second], threads=1)
    assert len(program.program.function.results) == 2
    fresh = first.copy()
    for _ in range(5):
        x = rng.random((3, 6), np.float32)
        loss, expected, constant, _ = Program.compile(function, threads=1).answer([fresh, second, x])
        (actual,) = program.run([x])
        np.testing.assert_array_equal(actual, loss)
        np.testing.assert_array_equal(first, expected)
        np.testing.assert_array_equal(second, expected)
        np.testing.assert_array_equal(third, constant)
        fresh = expected
    assert program.run([x])[0] is program.run([x])[0], "each call allocates its results"
