"""Limits of a run, and their current usage."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sardonyx.core import language as L
from sardonyx.core.eval.run_context import RunContext, current_run, running, tracing
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir import types as t
from sardonyx.errors import ResourceError


def test_a_run_belongs_to_its_thread_and_nests() -> None:
    seen: list[object] = []
    with running(RunContext(number=1)) as outer:
        with running(RunContext(number=2)) as inner:
            assert current_run() is inner
            with tracing():
                assert current_run() is None
        assert current_run() is outer
        thread = threading.Thread(target=lambda: seen.append(current_run()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert current_run() is None


def test_memory_of_live_values_is_counted() -> None:
    with running(RunContext()) as run:
        x = constant(np.zeros(10_000))
        y = x + 1
        z = y + 1
        assert run.alive == 2 * 80_000
        del y
        assert run.alive == 80_000
        assert run.peak == 160_000
        assert z.known[0] == 2


def test_views_take_no_memory() -> None:
    with running(RunContext()) as run:
        x = constant(np.zeros((1, 1000)))
        for view in (L.broadcast_to(x, (1000, 1000)), L.reshape(x, (1000,)), L.swap_axes(x, 0, 1)):
            assert np.shares_memory(view.known, x.known)
        assert run.alive == 0


def test_an_allocation_beyond_the_memory_limit_is_refused() -> None:
    with running(RunContext(max_memory=100_000)):
        x = constant(np.zeros(10_000))
        y = x + 1
        with pytest.raises(ResourceError, match="160,000 bytes, but 80,000 of the 100,000"):
            L.concat([x, y], 0)


def test_small_values_are_limited_too() -> None:
    with running(RunContext(max_memory=100)), pytest.raises(ResourceError, match="160 bytes, but 0 of the 100"):
        _ = constant(np.zeros(20)) + 1


def test_a_value_tracked_twice_counts_once() -> None:
    run, held = RunContext(), np.zeros(10_000)
    for _ in range(2):
        run.track(held, held.nbytes)
    assert run.alive == run.peak == 80_000
    del held
    assert run.alive == 0


def test_count_from_replaces_tracked_values() -> None:
    run, held = RunContext(), np.zeros(10_000)
    run.track(held, held.nbytes)
    run.count_from(held.nbytes)
    assert run.alive == 80_000
    del held
    assert run.alive == 80_000


def test_timeout_and_termination_end_a_run() -> None:
    with running(RunContext(timeout=0)), pytest.raises(ResourceError, match="took longer than 0 s"):
        _ = constant(np.zeros(2)) + 1
    with running(RunContext()) as run:
        run.terminated = True
        with pytest.raises(ResourceError, match="terminated"):
            _ = constant(np.zeros(2)) + 1


def test_unseeded_random_values_differ_by_run_and_by_node() -> None:
    def drawn(number: int, identity: str) -> list[float]:
        with running(RunContext(number=number)):
            return L.uniform((4,), t.DOUBLE, seed=None, identity=identity).known.tolist()

    assert drawn(0, "a") == drawn(0, "a")
    assert drawn(0, "a") != drawn(1, "a")
    assert drawn(0, "a") != drawn(0, "b")


def test_invalid_arithmetic_is_silent_in_a_run() -> None:
    with running(RunContext()), np.errstate(all="raise"):
        pass
    with running(RunContext()):
        assert np.isnan(L.log(constant(np.float64(-1))).known)
