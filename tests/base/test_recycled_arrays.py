"""Memory of freed arrays is lent again, and a free array is prepared in advance."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from sardonyx.base.recycled_arrays import RecycledArrays, release_all

SIZE = 1 << 17


class Counted:
    """Allocates arrays and counts them."""

    def __init__(self, size: int = SIZE) -> None:
        self.size, self.count = size, 0

    def __call__(self) -> np.ndarray:
        self.count += 1
        return np.ones(self.size, np.uint8)


def wait_for(allocate: Counted, count: int) -> None:
    deadline = time.monotonic() + 30
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_prepares_arrays_too() -> None:
    first = RecycledArrays(Counted())
    lent = first.lend()
    child = os.fork()
    if not child:
        allocate = Counted()
        second = RecycledArrays(allocate)
        held = second.lend()
        deadline = time.monotonic() + 30
        while allocate.count < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        os._exit(allocate.count != 2 or held.nbytes != SIZE)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lent.nbytes == SIZE
