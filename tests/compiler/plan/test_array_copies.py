"""Copies by all threads are copies."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.plan.array_copies import copy_arrays
from sardonyx.compiler.target.description import host


@pytest.mark.parametrize("threads", [1, 2])
def test_arrays_of_any_size_and_order_are_copied(threads: int) -> None:
    rng = np.random.default_rng(0)
    large = rng.standard_normal(700_001)
    sources = [
        large, large[::-2], rng.standard_normal((300, 400)).T, np.zeros((0, 3)), np.array(2.0),
        large[1:400_000].astype(np.float32), np.broadcast_to(large[:5], (7, 5)),
    ]  # fmt: skip
    pairs = [(np.full(source.shape, -1, source.dtype), source) for source in sources]
    copy_arrays(pairs, pool(threads), host())
    for target, source in pairs:
        np.testing.assert_array_equal(target, source)
