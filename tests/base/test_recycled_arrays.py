"""Memory of freed arrays is lent again, and a free array is prepared in advance."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from sardonyx.base.recycled_arrays import RecycledArrays, release_all

SIZE = 1 << 17


class Counted:
    """Allocates arrays and counts them."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.count = size, 0
        self._arrays: list[weakref.ref[np.ndarray]] = []

    def __call__(self) -> np.ndarray:
        self.count += 1
        array = np.ones(self.size, np.uint8)
        self._arrays.append(weakref.ref(array))
        return array

    @property
    def in_memory(self) -> int:
        return sum(one() is not None for one in self._arrays)


class Blocked(Counted):
    """Allocates the first array at once, and others when `resume` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.resume = threading.Event(), threading.Event()

    def __call__(self) -> np.ndarray:
        if self.count:
            self.entered.set()
            assert self.resume.wait(30)
        return super().__call__()


def finish_requests() -> None:
    """Wait until all requested arrays are prepared."""
    allocate = Counted()
    lent = RecycledArrays(allocate).lend()
    wait_for(allocate, 2)
    assert lent.nbytes == SIZE


def wait_for(allocate: Counted, count: int) -> None:
    deadline = time.monotonic() + 120
    while allocate.count < count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert allocate.count == count


def test_a_free_array_is_prepared_when_the_last_one_is_lent() -> None:
    allocate = Counted()
    arrays = RecycledArrays(allocate)
    first = arrays.lend()
    wait_for(allocate, 2)
    second = arrays.lend()
    assert not np.shares_memory(first, second)
    wait_for(allocate, 3)


def test_small_arrays_are_allocated_when_they_are_lent() -> None:
    allocate = Counted(64)
    arrays = RecycledArrays(allocate)
    first, second = arrays.lend(), arrays.lend()
    assert allocate.count == 2 and not np.shares_memory(first, second)


def test_memory_is_lent_again_after_the_last_view_is_gone() -> None:
    arrays = RecycledArrays(Counted(64))
    view = arrays.lend()[8:]
    address = view.ctypes.data - 8
    assert arrays.lend().ctypes.data != address
    del view
    assert address in {one.ctypes.data for one in [arrays.lend(), arrays.lend()]}


def test_memory_that_is_lent_is_given_back_after_a_release() -> None:
    allocate = Counted(64)
    arrays = RecycledArrays(allocate)
    lent = arrays.lend()
    arrays.release()
    del lent
    arrays.lend()
    assert allocate.count == 2


def test_an_array_is_lent_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    release_all()
    allocate = Counted()
    monkeypatch.setattr(threading.Thread, "start", fail)
    assert RecycledArrays(allocate).lend().nbytes == SIZE and allocate.count == 1


def test_free_memory_is_given_back() -> None:
    allocate = Counted(64)
    arrays = RecycledArrays(allocate)
    arrays.prepare()
    release_all()
    arrays.lend()
    assert allocate.count == 2


def test_a_series_of_replacements_keeps_one_free_array() -> None:
    allocate = Counted()
    arrays = RecycledArrays(allocate)
    current = arrays.lend()
    wait_for(allocate, 2)
    for _ in range(3):
        new = arrays.lend()
        current = new  # The old array is returned.
        del new
        finish_requests()
        assert allocate.count == 2 and current.nbytes == SIZE


def test_an_array_that_is_prepared_too_late_is_given_back() -> None:
    allocate = Blocked()
    arrays = RecycledArrays(allocate)
    lent = arrays.lend()
    assert allocate.entered.wait(30)
    del lent  # Returned while the thread allocates.
    allocate.resume.set()
    finish_requests()
    assert allocate.in_memory == 1


def test_an_array_that_is_prepared_after_a_release_is_given_back() -> None:
    allocate = Blocked()
    arrays = RecycledArrays(allocate)
    lent = arrays.lend()
    assert allocate.entered.wait(30)
    release_all()
    allocate.resume.set()
    finish_requests()
    assert allocate.in_memory == 1 and lent.nbytes == SIZE


def test_a_finalizer_within_a_release_returns_its_array() -> None:
    allocate = Counted(64)
    arrays = RecycledArrays(allocate)
    lent, memory = [arrays.lend()], [np.ones(64, np.uint8)]
    weakref.finalize(memory[0], lent.clear)
    others = RecycledArrays(memory.pop)
    others.lend()
    thread = threading.Thread(target=others.release, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive() and not lent
    arrays.lend()
    assert allocate.count == 1


def exit_code_in_fork(check: Callable[[], bool]) -> int:
    """Return the exit code of a forked process: 0 if the check holds, that of an alarm if it hangs."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(20)
            code = 0 if check() else 1
        finally:  # Also after an exception: the session of tests belongs to the parent.
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_prepares_its_own_arrays_alone() -> None:
    blocked, queued, own = Blocked(), Counted(), Counted()
    first, second = RecycledArrays(blocked), RecycledArrays(queued)
    lent = [first.lend()]
    assert blocked.entered.wait(30)
    lent.append(second.lend())  # Its request waits for the thread.

    def prepares_alone() -> bool:
        lent.append(RecycledArrays(own).lend())
        wait_for(own, 2)
        return queued.count == 1

    code = exit_code_in_fork(prepares_alone)
    blocked.resume.set()
    wait_for(queued, 2)
    assert code == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_during_a_request_leaves_no_lock_held(monkeypatch: pytest.MonkeyPatch) -> None:
    finish_requests()
    entered, resume, start = threading.Event(), threading.Event(), threading.Thread.start

    def block(thread: threading.Thread) -> None:
        if thread.name == "sardonyx-memory":
            entered.set()
            assert resume.wait(30)
        start(thread)

    arrays = RecycledArrays(Counted())
    lending = threading.Thread(target=arrays.lend)
    monkeypatch.setattr(threading.Thread, "start", block)
    lending.start()
    assert entered.wait(30)
    timer = threading.Timer(0.2, resume.set)
    timer.start()

    def lends() -> bool:
        resume.set()
        allocate = Counted()
        lent = RecycledArrays(allocate).lend()
        wait_for(allocate, 2)
        return lent.nbytes == SIZE

    assert exit_code_in_fork(lends) == 0
    timer.join()
    lending.join()
