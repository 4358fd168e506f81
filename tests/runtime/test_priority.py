"""Work behind calls: done as if it were done here, by a thread that others go before."""

from __future__ import annotations

import contextvars
import os
import sys
import threading

import pytest

from sardonyx.runtime.priority import behind_calls


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_work_behind_calls_is_nicer_and_who_asks_for_it_is_not() -> None:
    before = niceness()
    assert behind_calls(niceness) == min(before + 5, 19)
    assert niceness() == before


def test_work_behind_calls_sees_the_context_of_who_asks() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert behind_calls(variable.get) == "here"


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_of_work_behind_calls_is_raised_where_it_was_asked_for(kind: type[BaseException]) -> None:
    def work() -> None:
        raise kind("no")

    with pytest.raises(kind, match="no"):
        behind_calls(work)
