"""What is made once: also by threads that ask for it together."""

from __future__ import annotations

import threading
import time

import pytest

from sardonyx.base.call_once import once


def test_threads_that_ask_together_are_given_the_same() -> None:
    created: list[int] = []

    @once
    def make(number: int) -> object:
        created.append(number)
        time.sleep(0.01)
        return object()

    actual: list[object] = []
    threads = [threading.Thread(target=lambda: actual.append(make(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == [1]
    assert len(set(map(id, actual))) == 1
    assert make(2) is not make(1)


def test_a_failure_is_not_remembered() -> None:
    calls: list[None] = []

    @once
    def make() -> int:
        calls.append(None)
        if len(calls) == 1:
            raise ValueError
        return 7

    with pytest.raises(ValueError):
        make()
    assert make() == 7
