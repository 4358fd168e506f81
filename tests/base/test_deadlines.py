"""What passes a deadline is ended by another thread, once, and nothing else is."""

from __future__ import annotations

import os
import threading
import time

import pytest

from sardonyx.base.deadlines import DEADLINES, Deadlines
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import ResourceError


def test_what_is_due_is_ended_in_order_and_what_is_removed_is_not() -> None:
    watched = Deadlines()
    ended: list[str] = []
    last = threading.Event()
    now = time.monotonic()
    watched.add(now + 0.2, last.set)
    watched.add(now + 0.1, lambda: ended.append("second"))
    watched.add(now, lambda: ended.append("first"))

    def removed() -> None:
        ended.append("removed")

    watched.add(now + 0.15, removed)
    watched.remove(removed)
    watched.remove(removed)
    assert last.wait(300)
    assert ended == ["first", "second"]
    assert time.monotonic() >= now + 0.2


def test_a_run_is_stopped_at_its_deadline_while_it_is_inside() -> None:
    run, stopped = RunContext(timeout=0.05), threading.Event()
    with run.on_end(stopped.set):
        assert stopped.wait(300)
    with pytest.raises(ResourceError, match=r"longer than 0\.05 s"):
        run.check_time()
    later = threading.Event()
    with RunContext(timeout=1000).on_end(later.set):
        pass
    assert not later.is_set()


def test_termination_stops_what_is_inside_and_what_comes_after() -> None:
    run, first, second = RunContext(), threading.Event(), threading.Event()
    with run.on_end(first.set):
        threading.Thread(target=run.terminate).start()
        assert first.wait(300)
    with run.on_end(second.set):
        assert second.is_set()
    with pytest.raises(ResourceError, match="terminated"):
        run.check_time()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_watches_too() -> None:
    with RunContext(timeout=1000).on_end(lambda: None):
        child = os.fork()
        if child == 0:
            stopped = threading.Event()
            DEADLINES.add(time.monotonic(), stopped.set)
            os._exit(7 if stopped.wait(300) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
