"""The machine's measured peak: positive rates, of any number of threads."""

from __future__ import annotations

import pytest

from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.compiler.machine_peak import measured_peak
from sardonyx.compiler.target.description import host


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_measured(threads: int) -> None:
    actual = measured_peak(host(), pool(threads), times=1)
    # No processor that this runs on is slower than a multiply-add of a vector in ten nanoseconds.
    assert actual.operations > 2 * host().lanes(32) * 1e8
    assert actual.bytes > 1e8
