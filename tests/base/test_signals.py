"""Ctrl-C waits for the end of a context; a second one does not."""

from __future__ import annotations

import signal
import threading

import pytest

from sardonyx.base.signals import interrupted_after


def test_the_first_signal_waits_for_the_end() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupted_after():
        signal.raise_signal(signal.SIGINT)
        steps.append("after the signal")
    assert steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_signal_is_handled_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), interrupted_after():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal waited")


def test_other_threads_have_no_signals() -> None:
    handlers = []

    def enter() -> None:
        with interrupted_after():
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [before]
